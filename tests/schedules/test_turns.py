"""Callables that use streams while a schedule is explored: one thread at a
time has the turn, so that each run under a name is the same."""

import concurrent.futures
import contextlib
import re
import sysconfig
import threading
import time
from functools import partial

import pytest
import turns
from deadlines import LONG

import pystreams
from pystreams import schedules

SIZE = 64


@pytest.mark.parametrize("part", range(4))
def test_random_programs(part):
    """Each program gives the same order, report and bytes each time."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("without the GIL, turns of callables may differ")
    for seed in range(part * 60, part * 60 + 60):
        one, *others = [turns.run(seed) for _ in range(3)]
        assert others == [one, one], f"{seed} under {turns.name_of(seed)}"


FAILING = """
import re, sys
import pystreams
from pystreams import schedules

sys.setswitchinterval(float(sys.argv[2]))

def fn():
    load = pystreams.Stream(sys.argv[1], name="load")
    work = pystreams.Stream(sys.argv[1], name="work")
    scratch = pystreams.Stream(sys.argv[1], name="scratch")
    chunks = [
        pystreams.empty(64, device=load.device, stream=load) for _ in range(4)
    ]
    found = []

    def first(chunk):
        with scratch:
            found.append(chunk.tobytes()[0])

    for i, chunk in enumerate(chunks):
        chunk.fill_(i, load)
        if i != 2:
            work.wait_stream(load)
        work.submit(first, chunk)
    work.synchronize()
    load.synchronize()
    assert found == [0, 1, 2, 3], found

for _ in range(2):
    try:
        schedules.explore(fn, runs=300)
    except AssertionError as error:
        note = "".join(error.__notes__)
        print(error, note)
name = re.search(r'replay\\(fn, "(.*)"\\)', note)[1]
for _ in range(5):
    try:
        schedules.replay(fn, name)
    except AssertionError as error:
        print(error, *error.__notes__)
"""


def test_a_failure_has_one_report(engine, run_python):
    """The report is the same in every process, and in a replay by its name."""
    results = []
    for interval in ("1e-6", "1e-5", "1e-3") * 8:
        done = run_python(
            FAILING, engine.name, interval, env={"PYSTREAMS_SCHEDULE": None}
        )
        assert done.stderr == ""
        assert done.stdout.count('schedule "late:') == 7
        results.append(done.stdout)
    assert len(set(results)) == 1


def test_places_and_numbers(engine):
    """An operation that a callable queues has its own place in the report, and
    a number that follows from the callable's turn."""
    reports = set()

    def fn():
        stream = engine.stream(name="work")
        scratch = engine.stream(name="scratch")
        buffer = engine.empty(SIZE, stream=stream)

        def work():
            with scratch:
                buffer.tobytes()

        for _ in range(3):
            stream.submit(work)
        stream.record_event()
        stream.record_event()
        stream.synchronize()
        raise LookupError

    for _ in range(20):
        with pytest.raises(LookupError) as caught:
            schedules.replay(fn, "early")
        reports.add("\n".join(caught.value.__notes__))
    (report,) = reports
    found = re.findall(r"^ +(\d+)  (\w+) +(\w+) \(.*, in (\w+)$", report, re.M)
    assert found == [
        ("1", "callable", "work", "fn"),
        ("2", "copy", "scratch", "work"),
        ("3", "callable", "work", "fn"),
        ("4", "copy", "scratch", "work"),
        ("5", "callable", "work", "fn"),
        ("6", "copy", "scratch", "work"),
        ("7", "record", "work", "fn"),
        ("8", "record", "work", "fn"),
    ]


def test_callables_end_before_those_that_let_them_begin(engine):
    """The host goes on after all callables, although each of them waits now
    and then."""
    seen = []

    def outer(depth):
        seen.append(depth)
        if depth < 4:
            stream = engine.stream()
            stream.submit(outer, depth + 1)
            filled = engine.empty(SIZE, stream=stream).fill_(1, stream=stream)
            assert filled.tobytes()[0] == 1
        seen.append(-depth)

    for _ in range(10):
        with schedules.run("early"):
            engine.stream().submit(outer, 1)
            assert seen == [1, 2, 3, 4, -4, -3, -2, -1]
        seen.clear()


def again(buffer, stream, future):
    buffer.fill_(future.result() % 2, stream)


def test_what_follows_a_callable_is_of_its_turn(engine):
    """A callable's callbacks and the frees of its arguments belong to its
    turn."""
    runs = [schedules._Run("early", logged=True) for _ in range(20)]
    for run in runs:
        with run:
            stream, other = engine.stream(), engine.stream()
            buffer = engine.empty(SIZE, stream=other)
            for _ in range(3):
                argument = engine.empty(SIZE, stream=other)
                future = stream.submit(len, argument)
                del argument
                stream.submit(buffer.fill_, 1, other)
                future.add_done_callback(partial(again, buffer, other))
            stream.synchronize()
    assert len({run.order for run in runs}) == 1
    assert all(run.operations == runs[0].operations for run in runs)


@pytest.mark.parametrize("name", ["late", "early", "random:3", "pct:2:3"])
def test_a_callable_that_waits_for_one_that_let_it_begin(engine, name):
    """The inner callable waits for the outer one, and finds nothing to run, so
    the outer one goes on."""
    with schedules.run(name):
        stream, other = engine.stream(), engine.stream()
        inner = []

        def work():
            inner.append(other.submit(stream.synchronize))

        stream.submit(work).result(LONG)
        assert inner[0].result(LONG) is None


def wait_for_several(objects, timeout):
    if pystreams.wait(objects, timeout).not_done:
        raise TimeoutError


# In CPython 3.10, these are two different types.
TIMEOUTS = (TimeoutError, concurrent.futures.TimeoutError)


@pytest.mark.parametrize("name", ["late", "early", "random:3", "pct:2:3"])
@pytest.mark.parametrize(
    "host",
    [
        lambda stream, future: stream.synchronize(2 * LONG),
        lambda stream, future: stream.record_event().synchronize(2 * LONG),
        lambda stream, future: future.result(2 * LONG),
        lambda stream, future: pystreams.wait([future, stream], 2 * LONG),
    ],
    ids=[
        "host for stream",
        "host for event",
        "host for Future",
        "host for several",
    ],
)
@pytest.mark.parametrize(
    "inner",
    [
        lambda stream, future: stream.synchronize(LONG),
        lambda stream, future: stream.record_event().synchronize(LONG),
        lambda stream, future: future.result(LONG),
        lambda stream, future: wait_for_several([stream, future], LONG),
    ],
    ids=["stream", "event", "Future", "several"],
)
def test_the_wait_with_the_least_limit_expires_first(
    engine, name, host, inner
):
    """A callable's limit expires, and then the host finds all work done in
    time."""
    expired = []

    def work():
        other.wait_stream(stream)
        try:
            inner(other, other.submit(int))
        except TIMEOUTS:
            expired.append(True)

    with schedules.run(name):
        stream, other = engine.stream(), engine.stream()
        future = stream.submit(work)
        host(stream, future)
        assert future.result(LONG) is None
    assert expired == [True]


def test_the_host_expires_before_a_callable(engine):
    seen = []

    def work():
        other.wait_stream(stream)
        with pytest.raises(TIMEOUTS):
            other.submit(int).result(2 * LONG)
        seen.append("callable")

    with schedules.run("late"):
        stream, other = engine.stream(), engine.stream()
        future = stream.submit(work)
        with pytest.raises(TIMEOUTS):
            future.result(LONG)
        seen.append("host")
        stream.synchronize(2 * LONG)
    assert seen == ["host", "callable"]


@pytest.mark.parametrize(
    "wait",
    [
        lambda stream, future: stream.synchronize(LONG),
        lambda stream, future: future.result(LONG),
    ],
    ids=["stream", "Future"],
)
def test_no_callable_expires_while_the_host_runs(engine, wait):
    """A callable's time limit expires only once the host waits, even if the
    host runs for a long time first."""
    seen = []

    def work():
        other.wait_stream(stream)
        with pytest.raises(TIMEOUTS):
            wait(other, other.submit(int))
        seen.append("callable")

    with schedules.run("early"):
        stream, other = engine.stream(), engine.stream()
        future = stream.submit(work)
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            pass
        seen.append("host")
        future.result(2 * LONG)
    assert seen == ["host", "callable"]


def sleeps(ended, future):
    assert ended.wait(LONG / 2)


def polls(ended, future):
    while not future.done():
        pass


def waits_elsewhere(ended, future):
    while not concurrent.futures.wait([future], 0.02).done:
        pass


def asks_for_the_result(ended, future):
    while True:
        with contextlib.suppress(*TIMEOUTS):
            return future.result(0)


@pytest.mark.parametrize(
    "host", [sleeps, polls, waits_elsewhere, asks_for_the_result]
)
def test_a_callable_expires_though_the_host_does_not_wait(engine, host):
    """The callable's time limit expires after a while, in case the host does
    go on."""

    def work():
        other.wait_stream(stream)
        with pytest.raises(TIMEOUTS):
            other.synchronize(LONG)
        ended.set()

    began = time.monotonic()
    with schedules.run("early"):
        stream, other = engine.stream(), engine.stream()
        ended = threading.Event()
        future = stream.submit(work)
        host(ended, future)
        future.result(LONG)
    assert time.monotonic() - began < LONG / 2


@pytest.mark.parametrize("name", ["late", "early", "random:3", "pct:2:3"])
@pytest.mark.parametrize(
    "host",
    [
        lambda stream, future: future.result(),
        lambda stream, future: future.result(LONG),
        lambda stream, future: stream.synchronize(),
        lambda stream, future: stream.synchronize(LONG),
        lambda stream, future: pystreams.wait([future, stream]),
    ],
    ids=["Future", "Future, limit", "stream", "stream, limit", "several"],
)
def test_a_callable_that_waits_for_a_future_of_another_library(
    engine, name, host
):
    """A callable that waits for a thread of the program is no deadlock, and
    the host's time limit does not expire meanwhile."""
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        schedules.run(name),
    ):
        stream = engine.stream()

        def work():
            return pystreams.wait([pool.submit(time.sleep, 0.05)])

        future = stream.submit(work)
        host(stream, future)
        assert len(future.result(LONG).done) == 1


@pytest.mark.parametrize("name", ["late", "early", "random:3", "pct:2:3"])
def test_threads_of_the_program_and_callables(engine, name):
    """The order of their calls may differ, but no thread waits for ever."""

    def program():
        stream, other = engine.stream(), engine.stream()
        buffer = engine.empty(SIZE, stream=other)

        def work():
            buffer.fill_(1, stream=other)
            other.synchronize()

        for _ in range(5):
            stream.submit(work)
            pystreams.wait([stream, other])

    with schedules.run(name):
        threads = [threading.Thread(target=program) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()


TWO_EMULATIONS = """
from pystreams import cuda, schedules
from pystreams.testing import emulated_cuda

def fn():
    stream = cuda.Stream()
    stream.submit(lambda: stream.submit(int).result())
    stream.synchronize()

with emulated_cuda():
    keep = cuda.Stream()
with emulated_cuda():
    try:
        schedules.explore(fn, runs=1)
    except RuntimeError as error:
        print("deadlock: callable <lambda> (" in str(error))
"""


def test_a_deadlock_in_a_second_emulation(run_python):
    """The callables of the second emulation are not taken for those of the
    first, which is explored, too."""
    done = run_python(
        TWO_EMULATIONS, env={"PYSTREAMS_SCHEDULE": None}, timeout=LONG / 2
    )
    assert done.stdout == "True\n"


ENDS_LATE = """
import time
import pystreams
from pystreams import cuda, schedules
from pystreams.testing import emulated_cuda

def fn():
    stream, other = pystreams.Stream(device="cpu"), cuda.Stream()
    def late():
        time.sleep(0.4)
        future = stream.submit(time.sleep, 0.4)
        future.add_done_callback(lambda future: time.sleep(1))
    other.submit(late)

with emulated_cuda(1):
    schedules.explore(fn, runs=1)
    time.sleep(0.6)
    for fn in (lambda: time.sleep(1.2), int):
        print(schedules.explore(fn, runs=1).runs)
"""


def test_a_callable_that_ends_in_a_later_schedule(run_python):
    done = run_python(
        ENDS_LATE, env={"PYSTREAMS_SCHEDULE": None}, timeout=LONG
    )
    assert (done.stdout, done.stderr) == ("1\n1\n", "")


QUEUES_ELSEWHERE = """
import pystreams
from pystreams import cuda, schedules
from pystreams.testing import emulated_cuda

with emulated_cuda():
    stream, other = pystreams.Stream("cpu"), cuda.Stream()
    found = []
    for name in ("late", "random:1", "random:2"):
        with schedules.run(name):
            other.submit(lambda: stream.submit(found.append, name))
    print(found, stream.query())
"""


def test_a_callable_that_queues_on_another_device_type(run_python):
    """All work is done at the schedule's end, in whatever order the device
    types are finished."""
    done = run_python(QUEUES_ELSEWHERE, env={"PYSTREAMS_SCHEDULE": None})
    assert (done.stdout, done.stderr) == (
        "['late', 'random:1', 'random:2'] True\n",
        "",
    )


LIMITS = """
import time
import pystreams
from pystreams import _C, cuda, schedules
from pystreams.testing import emulated_cuda

with emulated_cuda():
    stream, other = pystreams.Stream("cpu"), cuda.Stream()
    asleep = pystreams.Stream("cpu")
    for name in ("late", "early"):
        with schedules.run(name):
            slow = other.submit(time.sleep, 1)
            print(stream.submit(slow.result).result(60))
            slow = stream.submit(time.sleep, 1)
            _C.sleep(0, 100_000_000_000, asleep)
            print(slow.result(60))
            asleep.synchronize()
            for _ in range(300):
                short = other.submit(pow, 2, 3)
                assert stream.submit(short.result).result(60) == 8
"""


def test_no_limit_expires_while_a_callable_runs(run_python):
    """This holds even if the callable is on another device type, or if a
    stream sleeps for longer than the limit."""
    done = run_python(LIMITS, env={"PYSTREAMS_SCHEDULE": None})
    assert (done.stdout, done.stderr) == ("None\n" * 4, "")
