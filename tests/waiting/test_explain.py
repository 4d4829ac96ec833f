"""pystreams.explain: what work waits for, in words."""

import concurrent.futures
import re
import threading
import time
from itertools import pairwise
from textwrap import dedent

import pytest
from captures import Capture
from deadlines import LONG, wait_until
from gil import FREE
from places import ROOT

import pystreams
from pystreams import Stream, cuda, explain, schedules
from pystreams.cuda._graphs import Graph
from pystreams.testing import emulated_cuda

SECONDS = r"\b\d[\d.e-]* s\b"


def words(text):
    """Return the text without what differs from run to run."""
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    return re.sub(SECONDS, "T", re.sub(r"\.py:\d+", ".py", text))


@pytest.fixture
def engine(engine):
    """The CPU engine, without work of earlier tests, which would be explained,
    too."""
    engine.settle()
    return engine


@pytest.fixture
def blocker():
    """A function that returns once the test is over."""
    event = threading.Event()

    def read_chunk():
        event.wait(LONG)

    read_chunk.go = event.set
    yield read_chunk
    event.set()


def named(engine, name):
    return Stream(engine.device(), name=name)


def begin(stream, function, *arguments):
    """Submit a callable, and wait until it runs."""
    future = stream.submit(function, *arguments)
    wait_until(future.running)
    return future


@pytest.fixture
def pair(engine, blocker):
    """Two streams, of which copy waits for load.  load runs a callable."""
    load, copy = named(engine, "load"), named(engine, "copy")
    future = begin(load, blocker)
    event = load.record_event()
    copy.wait_event(event)
    copy.submit(int)
    yield load, copy, event, future
    blocker.go()
    copy.synchronize(LONG)


# Without the GIL, no thread can be stopped so that another one sees the line
# that it runs.
LOAD = (
    "load ({} 0x) has 2 operations; the first is callable read_chunk "
    "(test_explain.py), which has run for T"
) + " and is at test_explain.py in read_chunk" * (not FREE)
COPY = (
    "copy ({} 0x) has 2 operations; the first waits for an event recorded on "
    "load ({} 0x), which "
)


def load_of(engine):
    return LOAD.format(engine.device())


def copy_of(engine):
    device = engine.device()
    return COPY.format(device, device) + load_of(engine).partition(") ")[2]


def test_nothing(engine):
    assert explain() == "no work is known to be pending"


def test_an_idle_stream(engine):
    stream = named(engine, "load")
    handle = stream.native_handle
    text = f"load ({engine.device()} {handle:#x}) is idle"
    assert explain(stream) == text


def test_streams_without_names(engine):
    stream, default = engine.stream(), engine.default_stream()
    device = engine.device()
    handle = stream.native_handle
    assert explain(stream) == f"stream {handle:#x} of {device} is idle"
    assert explain(default) == f"the default stream of {device} is idle"


def test_a_stream_that_runs_a_callable(engine, pair):
    assert words(explain(pair[0])) == load_of(engine)


@pytest.mark.unscheduled
def test_a_method_that_runs(engine, blocker):
    """A bound method is shown as a callable by its function's name."""

    class Reader:
        reads = False

        def read(self):
            self.reads = True
            blocker()

    stream, reader = named(engine, "load"), Reader()
    stream.submit(reader.read)
    wait_until(lambda: reader.reads)
    assert "callable read (test_explain.py)" in words(explain(stream))
    blocker.go()
    stream.synchronize(LONG)


def test_a_stream_that_waits(engine, pair):
    assert words(explain(pair[1])) == copy_of(engine)


def test_an_event(engine, pair):
    text = words(explain(pair[2]))
    assert text.startswith("an event recorded on load (")
    assert text.endswith(load_of(engine).partition(") ")[2])


def test_events_that_wait_for_nothing(engine):
    event = engine.event()
    assert explain(event) == "an event that was never recorded"
    event.record(engine.stream())
    event.synchronize()
    assert explain(event) == "an event that is done"


def test_futures(engine, pair, blocker):
    future = pair[3]
    running = "callable read_chunk (test_explain.py), which has run for T"
    assert words(explain(future)).startswith(running)
    queued = pair[1].submit(int)
    assert words(explain(queued)) == (
        f"callable int (test_explain.py), which is queued on copy "
        f"({engine.device()} 0x), which "
        + copy_of(engine).partition(") ")[2].replace("2", "3", 1)
    )
    blocker.go()
    queued.result(LONG)
    assert explain(queued) == "a Future whose callable has ended"


def test_everything(engine, pair):
    """There is one line for each chain of waits, and one for each thread."""
    copy = pair[1]
    thread = threading.Thread(target=copy.synchronize, name="main")
    thread.start()
    wait_until(lambda: "main has waited" in explain())
    lines = words(explain()).splitlines()
    assert lines[0] == copy_of(engine)
    assert re.fullmatch(
        r"main has waited for T in Stream\.synchronize.*, for copy \(.*\)",
        lines[1],
    )
    assert len(lines) == 2


@pytest.mark.unscheduled
def test_a_sleep(engine):
    stream = engine.stream()
    engine.sleep(stream, 200)
    text = words(explain(stream))
    assert text.endswith("has 1 operation; the first sleeps for T more")


def test_a_replay_that_waits_for_its_fork(engine):
    """The fork runs on a stream of its own that the program does not know."""
    stream, side = engine.stream(), engine.stream()
    graph = Graph(engine.type)
    with Capture(graph, stream):
        side.wait_stream(stream)
        engine.sleep(side, 200)
        stream.wait_stream(side)
    with stream:
        graph.replay()
    wait_until(lambda: "sleeps" in explain(stream))
    assert "stream" not in words(explain(stream)).partition("has ")[2]


def test_other_work(engine):
    stream = engine.stream()
    with engine.hold(stream):
        assert explain(stream).endswith(
            "has 1 operation; the first is a host function, which runs or is "
            "about to"
        )


def test_a_long_chain_is_cut(engine):
    streams = [named(engine, str(i)) for i in range(40)]
    with engine.hold(streams[0]):
        for before, after in pairwise(streams):
            after.wait_stream(before)
        text = words(explain(streams[-1]))
        assert "which waits, through 34 more streams, for 0 (" in text
        assert text.endswith("is a host function, which runs or is about to")
    streams[-1].synchronize(LONG)


def waits_for_each_other(engine):
    one, two = named(engine, "one"), named(engine, "two")
    both = threading.Barrier(2)

    def left():
        both.wait(LONG)
        two.synchronize(1)

    def right():
        both.wait(LONG)
        one.synchronize(3)

    futures = [one.submit(left), two.submit(right)]
    return one, futures


def test_the_deadlock_of_the_page(run_python, tmp_path):
    """The program in docs/explain.md prints what follows it there."""
    page = (ROOT / "docs/explain.md").read_text()
    ((program, output),) = re.findall(
        r"```python\n([^`]*Barrier.*?)```.*?```\n(.*?)```", page, re.DOTALL
    )
    output = " ".join(output.split())
    if FREE:
        output = output.replace(" at ring.py:17 in right", "")
    (tmp_path / "ring.py").write_text(program)
    done = run_python([tmp_path / "ring.py"])
    assert done.stderr == ""
    assert re.findall(r"py:\d+", done.stdout) == re.findall(r"py:\d+", output)
    assert words(done.stdout).split() == words(output).split()


@pytest.mark.unscheduled
def test_a_deadlock(engine):
    one, futures = waits_for_each_other(engine)
    wait_until(lambda: explain(one).startswith("deadlock: "))
    ring = words(explain(one)).partition(";")[0]
    sides = [
        f"callable {name} (test_explain.py) on {stream} ({engine.device()} 0x)"
        for name, stream in (("left", "one"), ("right", "two"))
    ]
    assert ring == (
        f"deadlock: {sides[0]}, {sides[1]} wait for each other in a ring"
    )
    line = words(explain()).splitlines()[0]
    assert line.startswith("deadlock: ")
    assert all(side in line for side in sides)
    assert "\ndeadlock: callable " in str(futures[0].exception(LONG))
    futures[1].result(LONG)


@pytest.mark.unscheduled
def test_a_callable_that_waits_for_one_behind_it(engine):
    stream = named(engine, "load")
    later = []

    def early():
        wait_until(lambda: later)
        later[0].result(0.5)

    future = stream.submit(early)
    later.append(stream.submit(int))
    wait_until(lambda: "deadlock: " in explain(stream))
    text = words(explain(stream))
    assert text.startswith(
        f"deadlock: callable early (test_explain.py) on load "
        f"({engine.device()} 0x) waits for itself; load ("
    )
    assert isinstance(future.exception(LONG), concurrent.futures.TimeoutError)
    assert explain(stream).startswith("load (")


def test_timeouts(engine, pair):
    _, copy, event, future = pair
    for wait in (
        lambda: copy.synchronize(0),
        lambda: event.synchronize(0.01),
        lambda: future.result(0.01),
        lambda: list(pystreams.as_completed([future, copy], 0.01)),
        lambda: pystreams._C.synchronize(engine.type, 0, 0.01),
    ):
        with pytest.raises(
            (TimeoutError, concurrent.futures.TimeoutError)
        ) as (caught):
            wait()
        first, second = str(caught.value).splitlines()
        assert re.search("goes on$|had not ended after|unfinished$", first)
        assert "callable read_chunk (test_explain.py:" in second


def test_a_program_that_is_blocked_can_ask(engine, blocker):
    """explain() is called while the main thread waits and 50 streams have
    work."""
    streams = [engine.stream() for _ in range(50)]
    begin(streams[0], blocker)
    for stream in streams[1:]:
        stream.wait_stream(streams[0])
    texts = []

    def ask():
        for _ in range(20):
            texts.append(explain())
        blocker.go()

    thread = threading.Thread(target=ask)
    thread.start()
    streams[-1].synchronize(LONG)
    thread.join(LONG)
    assert len(texts[0].splitlines()) > 40
    assert "... and " in texts[0].splitlines()[-1]


def test_a_result_of_a_schedule_is_a_wait(engine):
    """The running callable sees who waits for it."""
    with schedules.run("late"):
        text = engine.stream().submit(explain).result(LONG)
    assert "MainThread has waited for" in text
    assert "in Future.result" + " at test_explain.py" * (not FREE) in text


def test_asked_while_all_changes(engine):
    """Several threads call explain(), and none reports a wrong deadlock."""
    streams = [engine.stream() for _ in range(4)]
    end = time.monotonic() + 1
    texts = []

    def work(own):
        while time.monotonic() < end:
            for stream in streams:
                own.wait_stream(stream)
            own.submit(time.sleep, 0.0001)
            own.synchronize()

    def ask():
        while time.monotonic() < end:
            texts.append(explain())

    threads = [threading.Thread(target=work, args=[s]) for s in streams]
    threads += [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert texts
    assert not any("deadlock" in text for text in texts)


@pytest.mark.parametrize("wrong", [5, "copy", object()])
def test_other_objects_are_refused(wrong):
    name = type(wrong).__name__
    with pytest.raises(TypeError, match=f"None for x, but got {name}$"):
        explain(wrong)


def test_a_closed_stream_is_refused(engine):
    stream = engine.stream()
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        explain(stream)


def test_after_a_fork(run_python):
    """A child has none of its parent's work."""
    code = """
        import os, threading, pystreams
        stream = pystreams.Stream("cpu")
        go = threading.Event()
        future = stream.submit(go.wait)
        threading.Thread(target=stream.synchronize, daemon=True).start()
        while "has waited" not in pystreams.explain():
            pass
        child = os.fork()
        if child == 0:
            print(pystreams.explain(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        go.set()
        """
    done = run_python(dedent(code))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "no work is known to be pending\n"


@pytest.mark.unscheduled
def test_work_of_an_emulation_that_was_left(blocker):
    with emulated_cuda(1):
        stream = Stream("cuda")
        future = stream.submit(blocker)
        while not future.running():
            pass
    text = explain()
    assert "callable read_chunk" in text
    assert "Error" not in text
    # No later test may find this work.
    blocker.go()
    stream.synchronize()


@pytest.mark.unscheduled
def test_default_streams_of_two_emulations(blocker):
    """The two default streams have the same handle."""
    idle, busy = (
        "the default stream of cuda:0 " + state
        for state in ("is idle", "has 1 operation; the first is callable ")
    )
    with emulated_cuda(1):
        left = cuda.default_stream()
        future = begin(left, blocker)
        with emulated_cuda(1):
            mine = cuda.default_stream()
            assert explain(mine) == idle
            assert explain(left).startswith(busy)
            assert explain(future).startswith("callable read_chunk")
            assert explain().startswith(busy)
            assert len(explain().splitlines()) == 1
        blocker.go()
        left.synchronize()


AT_THE_END = """
import os, sys, threading, time
import pystreams
from pystreams import _C

stream = pystreams.Stream("cpu")
_C.sleep(stream.device_type, 60_000_000_000, stream)
local = threading.local()

pystreams.explain()  # so that it imports nothing at the end

class Explains:
    def __del__(self):
        assert "has waited" in pystreams.explain()
        os.write(1, b".")

def waits():
    local.explains = Explains()
    stream.synchronize()

for _ in range(4):
    threading.Thread(target=waits, daemon=True).start()
while len(_C.explain_threads()) < 4:
    time.sleep(0.01)
"""


@pytest.mark.unscheduled
def test_when_python_frees_the_states_of_waiting_threads(run_python):
    """At its end, Python frees the states of daemon threads one by one, and
    with them what these threads alone refer to."""
    env = {"PYTHONMALLOC": "debug"}
    done = run_python(AT_THE_END, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    # Without the GIL, Python may leave what these threads refer to.
    assert done.stdout == "." * 4 or (FREE and done.stdout.strip(".") == "")
