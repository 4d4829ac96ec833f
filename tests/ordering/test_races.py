"""pystreams.races: each way to order two accesses, tested with the order and
without it, and what happens when a race is found."""

import asyncio
import ctypes
import gc
import logging
import sys
import threading
import time

import pytest
from captures import Capture, replay
from deadlines import LONG, wait_until

import pystreams
from pystreams import accelerator, races
from pystreams.cuda._graphs import Graph
from pystreams.races import Race, RaceError

SIZE = 64


class Two:
    """Two streams of a device, and memory that both use."""

    def __init__(self, backend):
        self.backend = backend
        self.a, self.b = backend.stream(), backend.stream()
        self.x, self.y = backend.empty(SIZE), backend.empty(SIZE)
        # The host can address this memory.
        self.host = pystreams.Buffer(
            SIZE,
            device=backend.device(),
            pin_memory=backend.name == "cuda",
        )
        backend.synchronize()

    def write(self, stream=None):
        self.x.fill_(1, stream=stream or self.a)

    def read(self, stream=None):
        self.y.copy_(self.x, True, stream or self.b)


@pytest.fixture
def two(backend):
    return Two(backend)


@pytest.fixture
def found():
    """The races that are found while the test runs."""
    found = []
    with races.detect(lambda race: found.append(race)):
        yield found


def awaited(work):
    async def main():
        await work

    asyncio.run(main())


def by_event(two):
    two.b.wait_event(two.a.record_event())


def by_event_before_a_later_record(two):
    event = two.a.record_event()
    two.b.wait_event(event)
    event.record(two.b)


def by_a_third_stream(two):
    third = two.backend.stream()
    third.wait_stream(two.a)
    two.b.wait_event(third.record_event())


def by_a_callable(two):
    two.a.submit(int)
    two.a.submit(int).result(LONG)


def by_a_future_that_is_done(two):
    future = two.a.submit(int)
    wait_until(future.done)


def by_completion(two):
    for _ in pystreams.as_completed([two.a.record_event()]):
        pass


def by_tobytes(two):
    with two.a:
        two.x.tobytes()


def by_an_external_view(two):
    handle = two.a.native_handle
    view = pystreams.ExternalStream(handle, device=two.a.device)
    two.b.wait_stream(view)


def by_wait_of_a_callable(two):
    pystreams.wait([two.a.submit(int)])


ORDER = {
    "event": by_event,
    "stream": lambda two: two.b.wait_stream(two.a),
    "later-record": by_event_before_a_later_record,
    "third-stream": by_a_third_stream,
    "stream-synchronize": lambda two: two.a.synchronize(),
    "stream-timeout": lambda two: two.a.synchronize(LONG),
    "event-synchronize": lambda two: two.a.record_event().synchronize(),
    "device-synchronize": lambda two: two.backend.synchronize(),
    "stream-query": lambda two: wait_until(two.a.query),
    "event-query": lambda two: wait_until(two.a.record_event().query),
    "wait-stream": lambda two: pystreams.wait([two.a]),
    "wait-event": lambda two: pystreams.wait([two.a.record_event()]),
    "wait-callable": by_wait_of_a_callable,
    "as-completed": by_completion,
    "await-event": lambda two: awaited(two.a.record_event()),
    "await-stream": lambda two: awaited(two.a),
    "callable": by_a_callable,
    "future-done": by_a_future_that_is_done,
    "tobytes": by_tobytes,
    "external-view": by_an_external_view,
}


def early_event(two):
    two.b.wait_event(two.early)


def wait_before_the_record(two):
    event = two.backend.event()
    two.b.wait_event(event)
    event.record(two.a)


def record_that_was_replaced(two):
    event = two.a.record_event()
    event.record(two.backend.stream())
    two.b.wait_event(event)


def a_query_that_says_no(two):
    with two.backend.hold(two.a):
        assert not two.a.query()


def a_wait_that_gives_up(two):
    with two.backend.hold(two.a):
        with pytest.raises(TimeoutError):
            two.a.synchronize(0.001)
        pystreams.wait([two.a], timeout=0)


def the_library_itself(two):
    """The library queries work when blocks and streams come and go; these
    queries tell the program nothing."""
    for _ in range(40):
        other = two.backend.stream()
        two.backend.empty(SIZE).fill_(1, stream=two.a)
        two.backend.empty(SIZE).fill_(1, stream=other)
        two.backend.event().record(other)


NO_ORDER = {
    "nothing": lambda two: None,
    "early-event": early_event,
    "wait-before-record": wait_before_the_record,
    "replaced-record": record_that_was_replaced,
    "query-says-no": a_query_that_says_no,
    "wait-gives-up": a_wait_that_gives_up,
    "other-way-round": lambda two: two.a.wait_stream(two.b),
    "another-stream": lambda two: two.backend.stream().synchronize(),
    "library": the_library_itself,
}


@pytest.mark.parametrize("order", ORDER.values(), ids=ORDER)
def test_what_orders(two, found, order):
    two.write()
    order(two)
    two.read()
    assert list(map(str, found)) == []


@pytest.mark.parametrize("order", NO_ORDER.values(), ids=NO_ORDER)
def test_what_does_not_order(two, found, order):
    two.early = two.a.record_event()
    two.write()
    order(two)
    two.read()
    (race,) = found
    assert (race.first.name, race.second.name) == ("fill", "copy")
    assert (race.first.writes, race.second.writes) == (True, False)
    assert (race.address, race.nbytes) == (two.x.data_ptr(), SIZE)


def test_the_line_that_is_missing(two, found):
    a, b = two.a, two.b
    two.write(a)
    two.x.fill_(2, stream=b)
    (race,) = found
    assert race.missing == "b.wait_stream(a)"
    a.synchronize(), b.synchronize()
    two.write(a)
    exec(race.missing)
    two.x.fill_(2, stream=b)
    assert len(found) == 1


@pytest.mark.unscheduled
def test_a_stream_that_is_made_again(backend, two, found):
    """The new stream has the native stream of the old one, which is idle.  But
    the program does not know that it is idle."""
    races.declare(two.a, writes=[two.x])
    handle = two.a.native_handle
    del two.a
    again = backend.stream()
    assert again.native_handle == handle
    two.read(again)
    assert [race.first.name for race in found] == ["declared work"]


PAIRS = {
    "read-read": (lambda two: two.read(two.a), lambda two: two.read2(), 0),
    "halves": (
        lambda two: two.x[: SIZE // 2].fill_(1, stream=two.a),
        lambda two: two.x[SIZE // 2 :].fill_(1, stream=two.b),
        0,
    ),
    "one-byte": (
        lambda two: two.x[: SIZE // 2 + 1].fill_(1, stream=two.a),
        lambda two: two.x[SIZE // 2 :].fill_(1, stream=two.b),
        1,
    ),
    "write-write": (
        lambda two: two.write(),
        lambda two: two.write(two.b),
        SIZE,
    ),
    "read-write": (
        lambda two: two.read(two.a),
        lambda two: two.write(two.b),
        SIZE,
    ),
}


@pytest.mark.parametrize(
    ("first", "second", "nbytes"), PAIRS.values(), ids=PAIRS
)
def test_pairs(two, found, first, second, nbytes):
    z = two.backend.empty(SIZE)
    two.backend.synchronize()
    two.read2 = lambda: z.copy_(two.x, True, two.b)
    first(two)
    second(two)
    assert [race.nbytes for race in found] == ([nbytes] if nbytes else [])


def test_the_host(two, found):
    two.host.fill_(1, stream=two.a)
    two.host.memoryview(readonly=True)
    assert [race.second.name for race in found] == ["a view"]
    assert found[0].missing.endswith(".synchronize()")
    found.clear()
    two.a.synchronize()
    two.host.memoryview(readonly=True)
    two.host.memoryview()[:] = bytes(SIZE)
    two.host.fill_(1, stream=two.b)
    assert found == []


def test_a_view_that_is_only_read(two, found):
    two.x.copy_(two.host, True, two.a)
    assert bytes(two.host.memoryview(readonly=True)[:0]) == b""
    assert found == []
    two.host.memoryview()
    assert len(found) == 1
    assert two.host.memoryview(readonly=True).readonly


def test_callables(two, found):
    """The accesses of callables are in the order of their streams."""
    host = two.host
    host.fill_(1, stream=two.a)
    two.a.submit(host.memoryview)
    host.fill_(2, stream=two.a)
    two.a.synchronize()
    assert found == []
    done = two.a.submit(host.memoryview)
    done.exception(LONG)
    found.clear()
    two.a.submit(host.memoryview)
    wait_until(lambda: two.a.query())
    two.a.submit(len, host)
    host.fill_(3, stream=two.b)
    assert [race.first.name for race in found] == ["submit"]


ARGUMENTS = {
    "buffer": lambda host, numpy: ((host,), {}),
    "keyword": lambda host, numpy: ((), {"data": host}),
    "memoryview": lambda host, numpy: ((host.memoryview()[8:],), {}),
    "array": lambda host, numpy: ((numpy.asarray(host)[8:],), {}),
    "reshaped": lambda host, numpy: (
        (numpy.frombuffer(host, "i4").reshape(4, 4)[2:],),
        {},
    ),
}


@pytest.mark.parametrize("make", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_a_callable(two, found, numpy, make):
    """The callable reads the Buffers, and the views of Buffers, that are its
    arguments."""
    args, kwargs = make(two.host, numpy)
    two.host[:8].fill_(1, stream=two.b)
    two.host[-4:].fill_(1, stream=two.b)
    two.a.submit(lambda *args, **kwargs: None, *args, **kwargs)
    assert [race.nbytes for race in found] == (
        [8] if make in list(ARGUMENTS.values())[:2] else [4]
    )
    found.clear()
    two.a.wait_stream(two.b)
    two.a.submit(lambda *args, **kwargs: None, *args, **kwargs)
    two.a.submit(lambda *args: None, bytes(8), numpy.zeros(4), "x", None)
    assert found == []


def test_a_released_view_is_no_argument(two, found):
    """The Buffer of a released view may be gone."""
    for _ in range(20):
        view = pystreams.empty(1 << 16, device="cpu").memoryview(readonly=True)
        view.release()
        gc.collect()
        two.a.submit(lambda view: None, view).result(LONG)
    assert found == []


def test_declared_work(two, found):
    races.declare(two.a, writes=[two.x], name="kernel")
    races.declare(two.b, reads=[(two.x.data_ptr() + 8, 4)], name="other")
    (race,) = found
    assert (race.first.name, race.second.name) == ("kernel", "other")
    assert (race.address, race.nbytes) == (two.x.data_ptr() + 8, 4)


def test_declared_arrays(two, found, numpy):
    array = numpy.zeros((8, 8), "f4")
    races.declare(two.a, writes=[array])
    races.declare(two.b, reads=[array[2:4, ::-1]])
    races.declare(None, reads=[array[7:]])
    assert [race.nbytes for race in found] == [64, 32]


def test_declared_nonsense(two, found):
    with pytest.raises(TypeError, match=r"declare\(\) expects Buffers"):
        races.declare(two.a, reads=[object()])
    with pytest.raises(TypeError):
        races.declare(3.5, reads=[two.x])


def test_a_race_raises_and_is_not_queued(two):
    two.x.fill_(1, stream=two.a)
    two.a.synchronize()
    with races.detect():
        two.y.copy_(two.x, True, two.a)
        with pytest.raises(RaceError, match="nothing orders") as raised:
            two.x.fill_(2, stream=two.b)
        two.a.synchronize()
        two.x.fill_(3, stream=two.b)
        two.b.synchronize()
    assert isinstance(raised.value.race, Race)
    two.backend.synchronize()
    assert set(two.x.tobytes()) == {3}


def test_each_call_that_raises(two, cuda):
    host = pystreams.Buffer(SIZE, device=cuda.device(), pin_memory=True)
    a, b = cuda.stream(), cuda.stream()
    for second in (
        lambda: host.fill_(1, stream=b),
        lambda: host.memoryview(),
        lambda: b.submit(len, host),
        lambda: races.declare(b, writes=[host]),
    ):
        with races.detect():
            host.fill_(0, stream=a)
            with pytest.raises(RaceError):
                second()
        cuda.synchronize()


def test_warnings_come_once(two, caplog):
    with caplog.at_level(logging.WARNING), races.detect("warn"):
        for _ in range(3):
            two.write()
            two.read()
            two.backend.synchronize()
    assert [r.name for r in caplog.records] == ["pystreams.races"]
    assert "two.read()" not in caplog.text
    assert "self.y.copy_(self.x" in caplog.text


def test_nested(two):
    outer, inner = [], []
    with races.detect(outer.append):
        two.write()
        with races.detect(inner.append):
            two.read()
        two.write()
    assert (len(outer), len(inner)) == (1, 1)


@pytest.mark.parametrize("action", ["stop", None, 3])
def test_wrong_actions(action):
    with (
        pytest.raises(ValueError, match="for action, but got"),
        races.detect(action),
    ):
        pass


def test_off_again(two):
    with races.detect():
        two.write()
    two.read()
    with races.detect():
        two.write()
    two.backend.synchronize()


def test_what_was_queued_before(two):
    two.write()
    with races.detect():
        two.read()


def test_graphs(cuda):
    two, graph = Two(cuda), Graph(cuda.type)
    found = []
    with races.detect(found.append):
        with Capture(graph, two.a):
            two.write(two.a)
            two.b.wait_stream(two.a)
            two.read(two.b)
            two.y.fill_(2, stream=two.a)
            two.a.wait_stream(two.b)
        assert [race.second.name for race in found] == ["fill"]
        found.clear()
        replay(graph, two.a)
        replay(graph, two.a)
        assert found == []
        two.x.fill_(1, stream=two.b)
        assert {race.first.name for race in found} == {"graph launch"}
        found.clear()
        cuda.synchronize()
        replay(graph, two.a)
        two.b.wait_stream(two.a)
        two.x.fill_(1, stream=two.b)
        assert found == []


def test_pageable_memory_of_graphs(backend):
    """Each replay reads and writes pageable memory, in the order of its
    stream."""
    stream, graph = backend.stream(), Graph(backend.type)
    block, source, target = backend.filled(1), bytearray(64), bytearray(64)
    read, written = [
        (ctypes.addressof(ctypes.c_char.from_buffer(data)), 64)
        for data in (source, target)
    ]
    found = []
    with races.detect(found.append):
        with Capture(graph, stream):
            block.copy_(source, non_blocking=True)
            block.copy_to(target, non_blocking=True)
        races.declare(None, writes=[read, written])
        assert found == []
        replay(graph, stream)
        replay(graph, stream)
        races.declare(None, reads=[read])
        assert found == []
        races.declare(None, reads=[written])
        (race,) = found
        assert (race.first.name, race.nbytes) == ("graph launch", 64)
        found.clear()
        stream.synchronize()
        races.declare(None, writes=[read, written])
        assert found == []


def test_switched_while_threads_work(backend):
    """The detector is switched on and off at any time, and no thread sees it
    half switched."""
    stop, errors = threading.Event(), []

    def work():
        try:
            stream = backend.stream()
            block = backend.empty(SIZE)
            while not stop.is_set():
                block.fill_(1, stream=stream)
                stream.record_event().synchronize()
                backend.stream().wait_stream(stream)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        with races.detect():
            time.sleep(0.002)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_another_thread_is_in_order(two, found):
    """Calls count as ordered in the order in which they are made."""
    thread = threading.Thread(target=two.a.synchronize)
    two.write()
    thread.start()
    thread.join()
    two.read()
    assert found == []


PROGRAM = """
import pystreams
a, b = pystreams.Stream("cpu"), pystreams.Stream("cpu")
x = pystreams.Buffer(64, device="cpu")
x.fill_(1, stream=a)
x.fill_(2, stream=b)
print("went on")
"""


@pytest.mark.parametrize(
    ("action", "status", "out"),
    [("raise", 1, ""), ("warn", 0, "went on\n"), ("", 0, "went on\n")],
    ids=["raise", "warn", "off"],
)
def test_from_the_environment(run_python, action, status, out):
    done = run_python(PROGRAM, env={"PYSTREAMS_RACES": action})
    assert (done.returncode, done.stdout) == (status, out)
    assert ("nothing orders two accesses" in done.stderr) == (action != "")


@pytest.mark.parametrize(
    ("options", "out"),
    [([], "1\n"), (["--warn"], "went on\n0\n")],
    ids=["raise", "warn"],
)
def test_children_of_the_command(run_python, tmp_path, options, out):
    path = tmp_path / "parent.py"
    path.write_text(
        "import subprocess, sys\n"
        f"child = [sys.executable, '-c', {PROGRAM!r}]\n"
        "print(subprocess.run(child).returncode)\n"
    )
    done = run_python(["-m", "pystreams", "races", *options, path])
    assert (done.returncode, done.stdout) == (0, out)
    assert done.stderr.count("nothing orders two accesses") == 1


def test_a_wrong_environment(run_python):
    done = run_python("import pystreams", env={"PYSTREAMS_RACES": "no"})
    assert "PYSTREAMS_RACES must be 'raise' or 'warn'" in done.stderr


MEMORY = """
import resource, pystreams
from pystreams import races
a, b = pystreams.Stream("cpu"), pystreams.Stream("cpu")
x = [pystreams.Buffer(64, device="cpu") for _ in range(8)]
event = pystreams.Event("cpu")

def work(count):
    for i in range(count):
        x[i % 8].fill_(1, stream=a)
        event.record(a)
        b.wait_event(event)
        x[i % 8].fill_(2, stream=b)
        a.wait_stream(b)
        if i % 10 == 0:
            other = pystreams.Stream("cpu")
            other.wait_stream(a)
            x[i % 8].fill_(3, stream=other)
            a.wait_stream(other)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

with races.detect():
    before = work(5000)
    print(work(40000) - before)
"""


@pytest.mark.unscheduled
def test_memory_stays_flat(run_python, sanitized):
    if sanitized:
        pytest.skip("a sanitizer keeps what is freed")
    done = run_python(MEMORY)
    assert done.stderr == ""
    assert int(done.stdout) < 1024


THREADS = """
import resource, threading, pystreams
from pystreams import races
own = pystreams.ExternalStream(2, "cpu")
x = pystreams.Buffer(64, device="cpu")

def use():
    x.fill_(1, stream=own)
    own.synchronize()

def work(count):
    for _ in range(count):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    # In a child process, ru_maxrss begins with the parent's.
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024

with races.detect():
    before = work(200)
    print(work(1800) - before)
"""


@pytest.mark.unscheduled
def test_memory_stays_flat_over_the_default_streams_of_threads(
    run_python, sanitized
):
    if sanitized:
        pytest.skip("a sanitizer keeps what is freed")
    done = run_python(THREADS)
    assert done.stderr == ""
    assert int(done.stdout) < 4096


def test_a_child(run_python):
    done = run_python(
        PROGRAM.partition("x.fill")[0]
        + """
import os, pystreams.races as races
with races.detect():
    x.fill_(1, stream=a)
    if os.fork() == 0:
        c, d = pystreams.Stream("cpu"), pystreams.Stream("cpu")
        y = pystreams.Buffer(64, device="cpu")
        y.fill_(1, stream=c)
        try:
            y.fill_(2, stream=d)
        except races.RaceError:
            print("found", flush=True)
        os._exit(0)
    os.wait()
"""
    )
    assert (done.stderr, done.stdout) == ("", "found\n")


REGISTERED_LATER = """
import pystreams
from pystreams import races
with races.detect():
    import fake_device
    a, b = pystreams.Stream("mtia"), pystreams.Stream("mtia")
    races.declare(a, writes=[(4096, 8)])
    a.synchronize()
    races.declare(b, writes=[(4096, 8)])
    try:
        races.declare(a, writes=[(4096, 8)])
    except races.RaceError:
        print("found")
"""


def test_a_backend_that_is_registered_later(run_with_device):
    done = run_with_device(REGISTERED_LATER)
    assert (done.stderr, done.stdout) == ("", "found\n")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(PROGRAM + "import sys; print(sys.argv[1:])")
    return path


@pytest.mark.parametrize("warn", [[], ["--warn"]], ids=["raise", "warn"])
def test_the_command(run_python, script, warn):
    program = "import sys, pystreams._cli as cli; sys.exit(cli.main())"
    done = run_python(program, "races", *warn, script, "-x", "y")
    assert done.returncode == (0 if warn else 1)
    assert done.stdout == ("went on\n['-x', 'y']\n" if warn else "")
    assert "x.fill_(2, stream=b)" in done.stderr


def test_the_command_and_a_thread_that_outlives_the_main_module(
    run_python, tmp_path
):
    path = tmp_path / "script.py"
    body = PROGRAM.strip().replace("\n", "\n    ")
    path.write_text(
        f"import threading, time\ndef work():\n    time.sleep(0.2)\n    {body}"
        "\nthreading.Thread(target=work).start()\n"
    )
    program = "import sys, pystreams._cli as cli; sys.exit(cli.main())"
    done = run_python(program, "races", path)
    assert "RaceError" in done.stderr
    assert done.stdout == ""


def test_the_command_without_a_program(run_python, tmp_path):
    program = "import sys, pystreams._cli as cli; sys.exit(cli.main())"
    done = run_python(program, "races", tmp_path / "none.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("none.py is not a file\n")


MODULE = f"""
import pytest
def racing():
    {PROGRAM.strip().replace(chr(10), chr(10) + "    ")}

def test_plain():
    racing()

@pytest.mark.races
def test_marked():
    racing()

def test_fixture(no_races):
    racing()

@pytest.fixture
def filled():
    import pystreams
    stream = pystreams.Stream("cpu")
    yield pystreams.empty(64, device="cpu", stream=stream).fill_(1, stream)

@pytest.mark.races
def test_with_its_fixture(filled):
    filled.memoryview(readonly=True)
"""


@pytest.mark.parametrize(
    ("option", "failed"),
    [
        ([], ["marked", "fixture", "with_its_fixture"]),
        (["--pystreams-races"], ["plain"]),
    ],
    ids=["marked", "all"],
)
def test_under_pytest(run_python, tmp_path, option, failed):
    path = tmp_path / "test_module.py"
    path.write_text(MODULE)
    program = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    options = ["-q", "-p", "no:cacheprovider", "-rf", "--strict-markers"]
    done = run_python(program, *options, *option, path)
    for name in failed:
        assert f"test_{name} - pystreams.races.RaceError" in done.stdout
    assert f"{4 if option else 3} failed" in done.stdout


# ---- What the program calls its streams and events ----


class Holder:
    """Streams and events in attributes, lists and dicts."""

    __slots__ = ("__dict__", "slot")

    def __init__(self, a, b, event):
        self.slot, self.by_name = a, {"work": [None, b], 3: None}
        self.events = (event,)

    @property
    def early(self):
        raise AssertionError("the program's own code runs")


def in_attributes(two, event, order):
    self = Holder(two.a, two.b, event)
    del two, event
    memory = yield
    memory.fill_(1, stream=self.slot)
    order(self.events[0], self.slot)
    yield
    memory.fill_(2, stream=self.by_name["work"][1])


def in_variables(two, event, order):
    copy, work = two.a, two.b
    del two
    memory = yield
    memory.fill_(1, stream=copy)
    order(event, copy)
    yield
    memory.fill_(2, stream=work)


NAMES = {
    in_attributes: (
        "self.by_name['work'][1]",
        "self.slot",
        "self.events[0]",
    ),
    in_variables: ("work", "copy", "event"),
}
RECORDS = {
    "no-record": lambda event, stream: None,
    "record": lambda event, stream: event.record(stream),
}


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("function", NAMES, ids=lambda f: f.__name__)
def test_the_programs_own_names(two, found, function, record):
    """The report proposes to wait for an event that was recorded since the
    first access.  If there is no such event, it proposes to wait for the
    stream."""
    event = two.backend.event()
    event.record(two.a)
    steps = function(two, event, RECORDS[record])
    next(steps)
    steps.send(two.x)
    assert list(steps) == []
    second, first, recorded = NAMES[function]
    (race,) = found
    assert race.missing == (
        f"{second}.wait_event({recorded})"
        if record == "record"
        else f"{second}.wait_stream({first})"
    )


class Key:
    """A key whose hash function must not run any more."""

    hashed = 0

    def __hash__(self):
        self.hashed += 1
        if self.hashed > 1:
            raise AssertionError("the program's own code runs")
        return 1


def test_a_dict_with_keys_of_the_program(two, found):
    streams = {Key(): None, 1: two.a, "b": two.b}
    memory = two.x
    del two
    memory.fill_(1, stream=streams[1])
    memory.fill_(2, stream=streams["b"])
    (race,) = found
    assert race.missing == "streams['b'].wait_stream(streams[1])"
    assert [key.hashed for key in streams if type(key) is Key] == [1]


def test_closed_streams_among_the_variables(two, found):
    closed, a, b, memory = two.backend.stream(), two.a, two.b, two.x
    closed.close()
    del two
    memory.fill_(1, stream=a)
    memory.fill_(2, stream=b)
    assert [race.missing for race in found] == ["b.wait_stream(a)"]
    del closed


class Strange(pystreams.Stream):
    @property
    def device(self):
        raise RuntimeError("the program's own error")

    @property
    def native_handle(self):
        raise RuntimeError("the program's own error")


def test_a_search_for_names_calls_no_property_of_the_program(two, found):
    copy, work, memory = Strange(two.x.device), Strange(two.x.device), two.x
    del two
    memory.fill_(1, stream=copy)
    memory.fill_(2, stream=work)
    assert [race.missing for race in found] == ["work.wait_stream(copy)"]


class Meta(type):
    @property
    def __module__(cls):
        raise RuntimeError("the program's own error")

    __dict__ = __mro__ = __module__


class Namespace:
    """Variables for exec()."""

    def __init__(self, variables):
        self.variables = variables

    def __getitem__(self, name):
        return self.variables[name]

    def __setitem__(self, name, value):
        self.variables[name] = value


def test_a_search_for_names_runs_no_code_of_the_program(two, found):
    a, b, memory = two.a, two.b, two.x
    strange = Meta("Strange", (), {})()
    shapeless = type("Shapeless", (), {})()
    type(shapeless).__module__ = strange
    slots = type("Slots", (), {"__slots__": ("slot",)})
    borrows = type("Borrows", (), {"slot": slots.slot})()
    code = "memory.fill_(1, stream=a)\nmemory.fill_(2, stream=b)"
    variables = Namespace({"memory": memory, "a": a, "b": b})
    exec(code, {"__name__": strange}, variables)
    (race,) = found
    function = "test_a_search_for_names_runs_no_code_of_the_program()"
    line = sys._getframe().f_lineno - 3
    del borrows
    assert race.missing == (
        f"# b, a: in {function}, test_races.py:{line}\nb.wait_stream(a)"
    )


def test_a_search_for_names_that_runs_out_of_memory(two, found, monkeypatch):
    """The race is reported all the same."""

    def no_memory(*arguments):
        raise MemoryError

    monkeypatch.setattr(races, "expressions", no_memory)
    streams = (two.a.native_handle, two.b.native_handle)
    memory = two.x
    memory.fill_(1, stream=two.a)
    memory.fill_(2, stream=two.b)
    (race,) = found
    first, second = (
        f'pystreams.ExternalStream({handle:#x}, "{memory.device}")'
        for handle in streams
    )
    assert race.missing == (
        f"# needs: import pystreams\n{second}.wait_stream({first})"
    )


def overwrite(memory):
    memory.fill_(2)


def test_the_names_of_an_outer_function(two, found):
    copy, work, memory = two.a, two.b, two.x
    del two
    memory.fill_(1, stream=copy)
    with work:
        overwrite(memory)
    (race,) = found
    line = overwrite.__code__.co_firstlineno + 9
    function = "test_the_names_of_an_outer_function()"
    comment = f"# work, copy: in {function}, test_races.py:{line}"
    assert race.missing == f"{comment}\nwork.wait_stream(copy)"
    assert f"    {comment}\n    work.wait_stream(copy)" in str(race)
    exec(race.missing)
    memory.fill_(3, stream=work)
    assert len(found) == 1


def test_names_where_another_thread_runs_the_same_function(two, found):
    """Variables of the other thread's call are not proposed to this thread."""
    a, b, third, memory = two.a, two.b, two.backend.stream(), two.x
    reached, go = threading.Event(), threading.Event()
    del two

    def use(copy, work, event, before):
        before()
        memory.fill_(2, stream=work)

    def pause():
        reached.set()
        assert go.wait(LONG)

    memory.fill_(1, stream=a)
    thread = threading.Thread(
        target=use, args=(a, third, a.record_event(), pause)
    )
    thread.start()
    assert reached.wait(LONG)
    use(a, b, None, lambda: None)
    missing = found[0].missing
    go.set()
    thread.join()
    assert missing == "work.wait_stream(copy)"


def test_streams_that_have_no_variable_but_a_name(backend, found):
    memory = backend.empty(SIZE)
    # The members of a set have no expression that leads to them.
    streams = {backend.stream(name="load"), backend.stream()}
    memory.fill_(1, stream=max(streams, key=lambda s: "load" in repr(s)))
    memory.fill_(2, stream=min(streams, key=lambda s: "load" in repr(s)))
    (race,) = found
    kind, index, handle = race.first.stream
    first, second = (
        f'pystreams.ExternalStream({one.stream[2]:#x}, "{kind}:{index}")'
        for one in (race.first, race.second)
    )
    assert race.missing == (
        f'# {handle:#x}: the stream named "load"\n'
        f"{second}.wait_stream({first})"
    )


@pytest.mark.parametrize("by_event", [True, False], ids=["event", "stream"])
def test_the_index_is_the_programs_own_variable(two, found, by_event):
    """A constant would be wrong in the next pass of the loop."""
    work, copies = two.a, [two.backend.stream(), two.b]
    used = [None, None]
    buffers = [two.backend.empty(SIZE), two.backend.empty(SIZE)]
    del two
    for chunk in (1, 2, 3):
        b = chunk % 2
        buffers[b].fill_(chunk, stream=work)
        if by_event:
            used[b] = work.record_event()
        buffers[b].fill_(chunk, stream=copies[b])
        break
    (race,) = found
    waited = "wait_event(used[b])" if by_event else "wait_stream(work)"
    assert race.missing == f"copies[b].{waited}"


@pytest.mark.parametrize("recorded", [True, False])
def test_the_event_that_the_host_has_to_wait_for(two, found, recorded):
    copy, copied = two.a, two.backend.event()
    host = two.host
    two.host.fill_(1, stream=copy)
    if recorded:
        copied.record(copy)
    host.memoryview(readonly=True)
    (race,) = found
    del two
    assert race.missing == f"{'copied' if recorded else 'copy'}.synchronize()"
    exec(race.missing)
    host.memoryview(readonly=True)
    assert len(found) == 1


def test_an_event_that_comes_after_by_another_stream(two, found):
    """The event was recorded on another stream, after a wait for the first
    access.  The report proposes to wait for this event."""
    a, b, third = two.a, two.b, two.backend.stream()
    memory = two.x
    del two
    memory.fill_(1, stream=a)
    third.wait_stream(a)
    events = [third.record_event()]
    memory.fill_(2, stream=b)
    assert [race.missing for race in found] == ["b.wait_event(events[0])"]
    assert events


# How a program may import what leads to a default stream.
IMPORTS = {
    "the package": ("import pystreams", "pystreams."),
    "another name": ("import pystreams as torch", "torch."),
    "a module": (
        "from pystreams import ExternalStream, accelerator, cuda",
        "",
    ),
    "nothing": ("from pystreams import Stream", None),
}


@pytest.mark.parametrize("imports", IMPORTS)
def test_a_default_stream_without_a_name(backend, found, imports):
    """The report names it as the program can, and says if it needs an import
    for that."""
    statement, prefix = IMPORTS[imports]
    device = backend.device()
    if device.type == "cuda":
        default = f"cuda.default_stream({device.index})"
    elif device.type == accelerator.current_accelerator().type:
        default = f"accelerator.default_stream({device.index})"
    else:
        default = f'ExternalStream(0x0, "{device}")'
    variables = {"memory": backend.empty(SIZE), "b": backend.stream()}
    backend.synchronize()
    exec(statement, variables)
    # The default stream is current.
    exec("memory.fill_(1); memory.fill_(2, stream=b)", variables)
    (race,) = found
    if prefix is None:
        comment, _, code = race.missing.partition("\n")
        assert comment == "# needs: import pystreams"
        assert code == f"b.wait_stream(pystreams.{default})"
        exec("import pystreams", variables)
    else:
        assert race.missing == f"b.wait_stream({prefix}{default})"
    exec(race.missing, variables)
    exec("memory.fill_(2, stream=b)", variables)
    assert len(found) == 1


NO_ACCELERATOR = """
import pystreams
memory, b = pystreams.empty(64, device="cpu"), pystreams.Stream("cpu")
memory.fill_(1)
memory.fill_(2, stream=b)
"""


def test_without_an_accelerator(run_python):
    """A race is reported although the program's accelerator is unusable."""
    env = {"PYSTREAMS_ACCELERATOR": "nothing", "PYSTREAMS_RACES": "raise"}
    done = run_python(NO_ACCELERATOR, env=env)
    assert done.returncode == 1
    assert "RaceError" in done.stderr
    assert 'b.wait_stream(pystreams.ExternalStream(0x0, "cpu:0"))' in (
        done.stderr
    )


# ---- Reads, and Buffers in containers ----


READS = {
    "bytes": bytes,
    "readonly": lambda host: host.memoryview(readonly=True),
    "tobytes": lambda host: host.tobytes(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_reads(two, found, read):
    two.y.copy_(two.host, True, two.a)
    two.host.memoryview(readonly=True)
    assert len(read(two.host)) == SIZE
    assert found == []
    two.host.memoryview()
    assert [race.second.writes for race in found] == [True]


CONTAINERS = {
    "list": lambda host: ([1, host],),
    "tuple": lambda host: ((host.memoryview(readonly=True),),),
    "dict": lambda host: ({"x": {"y": [host]}},),
}


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_buffers_in_containers(two, found, make):
    """A callable reads what its arguments hold."""
    arguments = make(two.host)
    two.host.fill_(1, stream=two.b)
    two.a.submit(lambda *args: None, *arguments)
    assert [race.nbytes for race in found] == [SIZE]
    assert found[0].second.name == "submit"


def test_a_list_that_holds_itself(two, found):
    items = [two.host]
    items.append(items)
    two.a.submit(len, items).result(LONG)
    assert found == []
