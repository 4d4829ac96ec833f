"""Callables in captured graphs: each replay runs them, in the graph's order,
and the next wait for the replay's stream raises what they raised."""

import asyncio
import contextlib
import contextvars
import ctypes
import gc
import sys
import threading
import time
import weakref

import pytest
from capture_stress import capture
from captures import SIZE, Capture, byte_of, replay
from deadlines import LONG
from gil import FREE

import pystreams
from pystreams import _C, races, schedules
from pystreams.cuda._graphs import Graph


@pytest.fixture
def stream(backend):
    return backend.stream()


@pytest.fixture
def graph(backend):
    return Graph(backend.type)


def test_each_replay_runs_it_in_order(backend, stream, graph, buffer):
    seen = []
    with Capture(graph, stream):
        buffer.fill_(2)
        stream.submit(lambda: seen.append(buffer.tobytes()[0]))
        buffer.fill_(3)
        stream.submit(lambda: seen.append(buffer.tobytes()[0]))
    stream.synchronize()
    assert seen == []
    for _ in range(3):
        replay(graph, stream)
    stream.synchronize()
    assert seen == [2, 3] * 3


@pytest.mark.unscheduled
def test_work_behind_it_waits(backend, stream, graph, buffer):
    go, begun = threading.Event(), threading.Event()
    with Capture(graph, stream):
        stream.submit(begun.set)
        stream.submit(go.wait, LONG)
        buffer.fill_(2)
    replay(graph, stream)
    assert begun.wait(LONG)
    assert not stream.query()
    assert buffer.tobytes()[0] == 1
    go.set()
    assert byte_of(buffer, stream) == 2


def test_arguments_context_and_thread(backend, stream, graph):
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("captured")
    seen = []

    def look(*args, **kwargs):
        seen.append((args, kwargs, variable.get()))
        # Each replay has its own copy of the context.
        variable.set("changed")
        seen.append(threading.current_thread() is threading.main_thread())

    with Capture(graph, stream):
        stream.submit(look, 1, two=2)
    variable.set("replayed")
    for _ in range(2):
        replay(graph, stream)
        stream.synchronize()
    assert seen == [((1,), {"two": 2}, "captured"), False] * 2


def test_its_future_is_done_and_says_so(backend, stream, graph):
    with Capture(graph, stream):
        future = stream.submit(int)
    assert future.done()
    assert not future.cancel()
    with pytest.raises(RuntimeError, match="runs at each replay"):
        future.result()
    replay(graph, stream)
    stream.synchronize()


def waits(backend, stream):
    async def wait():
        await stream

    return {
        "stream": stream.synchronize,
        "in time": lambda: stream.synchronize(LONG),
        "device": backend.synchronize,
        "await": lambda: asyncio.run(wait()),
    }


@pytest.mark.parametrize("how", ["stream", "in time", "device", "await"])
def test_the_next_wait_raises_once(backend, stream, graph, buffer, how):
    def fail():
        raise LookupError("from the callable")

    with Capture(graph, stream):
        stream.submit(fail)
        buffer.fill_(2)
    replay(graph, stream)
    other = backend.stream()
    other.synchronize()
    wait = waits(backend, stream)[how]
    with pytest.raises(LookupError, match="from the callable") as caught:
        wait()
    assert caught.traceback[-1].name == "fail"
    wait()
    # The work behind the callable ran.
    assert byte_of(buffer, stream) == 2


def test_an_await_that_suspends_raises(backend, stream, graph):
    go = threading.Event()

    def fail():
        go.wait(LONG)
        raise LookupError

    async def wait():
        asyncio.get_running_loop().call_later(0.05, go.set)
        await stream

    with Capture(graph, stream):
        stream.submit(fail)
    replay(graph, stream)
    with pytest.raises(LookupError):
        asyncio.run(wait())
    stream.synchronize()


def test_failures_of_two_streams(backend, stream, graph):
    def fail():
        raise LookupError

    other = backend.stream()
    with Capture(graph, stream):
        stream.submit(fail)
    replay(graph, stream)
    replay(graph, other)
    for one in (other, stream):
        with pytest.raises(LookupError):
            one.synchronize()
        one.synchronize()


def test_later_failures_are_reported(backend, stream, graph, monkeypatch):
    errors, reported = iter([KeyError(1), KeyError(2), KeyError(3)]), []

    def fail():
        raise next(errors)

    monkeypatch.setattr(
        sys, "unraisablehook", lambda u: reported.append(u.exc_value.args)
    )
    with Capture(graph, stream):
        stream.submit(fail)
    for _ in range(3):
        replay(graph, stream)
    with pytest.raises(KeyError, match="1"):
        stream.synchronize()
    stream.synchronize()
    assert reported == [(2,), (3,)]


def test_after_a_failure_of_the_stream(faulty, graph):
    stream, seen = faulty.stream(), []
    with Capture(graph, stream):
        stream.submit(seen.append, 1)
    _C.fail(stream, 719)
    replay(graph, stream)
    with pytest.raises(pystreams.AcceleratorError):
        stream.synchronize()
    assert seen == []
    # The graph keeps the stream of its latest replay.
    graph.reset()


@pytest.mark.unscheduled
def test_branches_run_at_once(backend, stream, graph):
    side, barrier = backend.stream(), threading.Barrier(2)
    with Capture(graph, stream):
        side.wait_stream(stream)
        stream.submit(barrier.wait, LONG)
        side.submit(barrier.wait, LONG)
        stream.wait_stream(side)
    for _ in range(5):
        replay(graph, stream)
    stream.synchronize()
    assert not barrier.broken


@pytest.mark.unscheduled
def test_graphs_run_at_once(backend):
    """Two graphs are captured on one stream and launched on two."""
    capturing, barrier = backend.stream(), threading.Barrier(2)
    graphs = [Graph(backend.type) for _ in range(2)]
    for graph in graphs:
        with Capture(graph, capturing):
            capturing.submit(barrier.wait, LONG)
    streams = [backend.stream() for _ in graphs]
    for _ in range(5):
        for graph, stream in zip(graphs, streams, strict=True):
            replay(graph, stream)
    for stream in streams:
        stream.synchronize()


def test_replays_of_one_graph_on_several_threads(backend, stream, graph):
    running, most, count = 0, 0, 0

    def enter():
        nonlocal running, most
        running += 1
        most = max(most, running)

    def leave():
        nonlocal running, count
        running -= 1
        count += 1

    with Capture(graph, stream):
        stream.submit(enter)
        backend.sleep(stream, 1)
        stream.submit(leave)

    def launch():
        mine = backend.stream()
        for _ in range(25):
            replay(graph, mine)
        mine.synchronize()

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, count) == (1, 100)


@pytest.mark.unscheduled
def test_reset_while_it_runs(backend, stream, graph, buffer):
    go, begun, seen = threading.Event(), threading.Event(), []
    with Capture(graph, stream):
        stream.submit(begun.set)
        stream.submit(go.wait, LONG)
        stream.submit(seen.append, buffer)
    for _ in range(3):
        replay(graph, stream)
    begun.wait(LONG)
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding"):
        replay(graph, stream)
    go.set()
    stream.synchronize()
    assert seen == [buffer] * 3
    # The graph can capture again.
    with Capture(graph, stream):
        stream.submit(seen.clear)
    replay(graph, stream)
    stream.synchronize()
    assert seen == []


class Callable:
    def __call__(self):
        pass


def test_dropped_with_the_graph(backend, stream, graph):
    callable = Callable()
    dropped = weakref.ref(callable)
    with Capture(graph, stream):
        stream.submit(callable)
    del callable
    replay(graph, stream)
    stream.synchronize()
    assert dropped() is not None
    graph.reset()
    # The thread that ran the callable drops it a moment later.
    stream.submit(int).result(LONG)
    gc.collect()
    assert dropped() is None


def test_a_cycle_is_collected(backend, stream):
    graph, callable = Graph(backend.type), Callable()
    callable.graph = graph
    dropped = weakref.ref(callable)
    with Capture(graph, stream):
        stream.submit(callable)
    del graph, callable
    gc.collect()
    assert dropped() is None


@pytest.mark.skipif(FREE, reason="gc.get_objects() has no such graph")
def test_a_graph_that_is_being_collected_is_empty(backend, stream, buffer):
    """The collector has dropped its callables.  gc.get_objects() has such a
    graph as long as something that is dropped later refers to it."""

    class Doomed(Graph):
        pass

    def use(_):
        for graph in gc.get_objects():
            if type(graph) is Doomed:
                for call, *arguments in (
                    (graph.replay,),
                    (other.update, graph),
                    (parent.add_child, graph),
                ):
                    with pytest.raises(RuntimeError) as caught:
                        call(*arguments)
                    messages.append(str(caught.value))

    def leave():
        graphs = [Doomed(backend.type, True) for _ in range(2)]
        for graph in graphs:
            memory = backend.empty(SIZE)
            freed.append(weakref.ref(memory, use))
            with Capture(graph, stream):
                stream.submit(len, memory)
        later = list(graphs)
        later.append(later)

    messages, freed = [], []
    other, parent = Graph(backend.type, True), Graph(backend.type)
    with Capture(other, stream):
        buffer.fill_(2)
    # If none is collected meanwhile, the oldest are dropped first.
    gc.disable()
    try:
        leave()
        with Capture(parent, stream):
            buffer.fill_(3)
            gc.collect()
    finally:
        gc.enable()
    assert not any(memory() for memory in freed)
    assert messages == [
        "Called CUDAGraph::replay without a preceding successful capture.",
        "update() needs the work that the other graph captured: capture it "
        "with keep_graph=True",
        "add_child() needs the work that the other graph captured: capture it "
        "with keep_graph=True",
    ]


def test_a_result_that_was_asked_for_keeps_no_graph(backend, stream):
    """The exception's traceback refers to the function that has the graph."""
    dropped = []

    def ask():
        graph = Graph(backend.type)
        dropped.append(weakref.ref(graph))
        with Capture(graph, stream):
            future = stream.submit(int)
        with contextlib.suppress(RuntimeError):
            future.result()

    ask()
    gc.collect()
    assert dropped[0]() is None


def test_a_capture_that_fails_drops_it(backend, stream, graph):
    side, callable = backend.stream(), Callable()
    dropped = weakref.ref(callable)
    with pytest.raises(pystreams.AcceleratorError), Capture(graph, stream):
        side.wait_stream(stream)
        side.submit(callable)
    del callable
    gc.collect()
    assert dropped() is None


def test_it_cannot_wait_for_its_own_stream(backend, stream, graph):
    with Capture(graph, stream):
        stream.submit(stream.synchronize)
    replay(graph, stream)
    with pytest.raises(RuntimeError, match="cannot wait for the stream"):
        stream.synchronize()


def test_it_may_use_graphs_and_streams(backend, stream, graph, buffer):
    inner, other = Graph(backend.type), backend.stream()
    with Capture(inner, other):
        buffer.fill_(7)

    def use():
        replay(inner, other)
        other.synchronize()

    with Capture(graph, stream):
        buffer.fill_(2)
        stream.submit(use)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 7


def test_two_captures_at_once(backend):
    streams, seen = [backend.stream() for _ in range(2)], []
    graphs = [Graph(backend.type) for _ in streams]
    first, second = (
        Capture(graph, stream)
        for graph, stream in zip(graphs, streams, strict=True)
    )
    with first, second:
        for name, stream in enumerate(streams):
            stream.submit(seen.append, name)
    for graph, stream in zip(graphs, streams, strict=True):
        replay(graph, stream)
        stream.synchronize()
    assert seen == [0, 1]


def test_instantiated_again(backend, stream):
    graph, seen, other = Graph(backend.type, True), [], backend.stream()
    with Capture(graph, stream):
        stream.submit(seen.append, 1)
    for one in (stream, other, stream):
        graph.instantiate()
        replay(graph, one)
    stream.synchronize()
    assert seen == [1, 1, 1]


def test_the_graph_as_text(engine, stream, tmp_path):
    graph = Graph(engine.type, True)
    with Capture(graph, stream):
        stream.submit(int)
    graph.debug_dump(tmp_path / "graph.dot")
    assert "callable" in (tmp_path / "graph.dot").read_text()


# ---- Races ----


@pytest.fixture
def host(backend):
    """Memory that callables and streams access."""
    pinned = backend.name != "cpu"
    return pystreams.empty(SIZE, device="cpu", pin_memory=pinned)


def test_a_race_with_its_argument(backend, stream, graph, host):
    other = backend.stream()
    view = host.memoryview(readonly=True)
    with races.detect("raise"):
        with Capture(graph, stream):
            stream.submit(len, view)
        replay(graph, stream)
        with pytest.raises(races.RaceError, match="graph launch"):
            host.fill_(2, other)
        stream.synchronize()
        host.fill_(2, other)
        with pytest.raises(races.RaceError, match="graph launch"):
            replay(graph, stream)
        stream.wait_stream(other)
        replay(graph, stream)
        stream.synchronize()


def test_what_it_writes_is_in_order(backend, stream, graph, host):
    """Replays of one graph are ordered, on whatever streams they run."""
    with races.detect("raise"):
        with Capture(graph, stream):
            stream.submit(lambda: host.memoryview()[0])
        for one in (stream, backend.stream(), backend.stream()):
            replay(graph, one)
        host.fill_(2, one)
        one.synchronize()


def test_what_it_writes_races(backend, stream, graph, host):
    other, done = backend.stream(), []
    with races.detect(done.append):
        with Capture(graph, stream):
            stream.submit(lambda: host.memoryview())
        replay(graph, stream)
        host.fill_(2, other)
        stream.synchronize()
        other.synchronize()
    assert len(done) == 1


# ---- Processes ----

PROGRAM = """
import os, sys, threading, time
import pystreams
from pystreams.cuda._graphs import Graph
device_type, kind = int(sys.argv[1]), sys.argv[2]
name = "cpu" if device_type == 0 else "cuda"
stream = pystreams.Stream(name)

def capture(*calls):
    graph = Graph(device_type)
    with stream:
        graph.capture_begin()
        for call in calls:
            stream.submit(*call)
        graph.capture_end()
    return graph

def replay(graph):
    with stream:
        graph.replay()
"""


@pytest.fixture
def program(backend, run_python):
    def run(text, **options):
        return run_python(
            ["-c", PROGRAM + text], str(backend.type), "kind", **options
        )

    return run


@pytest.mark.unscheduled
def test_exit_with_replays_that_wait(program):
    done = program(
        """
graph = capture((print, "ran"), (time.sleep, 0.2), (print, "late"))
for _ in range(100):
    replay(graph)
time.sleep(0.1)
"""
    )
    assert done.stdout.startswith("ran")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.unscheduled
def test_exit_reports_what_no_wait_raised(program):
    done = program(
        """
replay(capture((int, "x")))
time.sleep(0.3)
"""
    )
    assert done.returncode == 0, done.stderr
    assert "ValueError: invalid literal" in done.stderr


def test_fork_with_replays_that_wait(program, engine, sanitized):
    if sanitized:
        pytest.skip("a sanitizer's allocator may stay locked in a child")
    done = program(
        """
go = threading.Event()
graph = capture((go.wait, 20), (print, "ran in", os.getpid() * 0))
replay(graph)
child = os.fork()
if child == 0:
    stream = pystreams.Stream(name)
    try:
        replay(graph)
    except RuntimeError:
        print("refused", flush=True)
    replay(capture((print, "child")))
    stream.synchronize()
    sys.stdout.flush()
    os._exit(0)
print(os.waitpid(child, 0)[1])
go.set()
stream.synchronize()
"""
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "0",
        "child",
        "ran in 0",
        "refused",
    ]


def test_a_callable_that_forks(program, engine):
    done = program(
        """
def fork():
    child = os.fork()
    if child == 0:
        return
    print(os.waitpid(child, 0)[1])

replay(capture((fork,)))
stream.synchronize()
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"


@pytest.mark.parametrize("schedule", ["late", "early", "random:1", "pct:2:3"])
def test_in_a_schedule(program, engine, schedule):
    done = program(
        """
seen = []
graph = capture((seen.append, 1), (seen.append, 2))
for _ in range(3):
    replay(graph)
assert seen == [] or "late" not in os.environ["PYSTREAMS_SCHEDULE"]
stream.synchronize()
print(seen)
""",
        env={"PYSTREAMS_SCHEDULE": schedule},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1, 2, 1, 2, 1, 2]\n"


def test_exploring_schedules(engine):
    def program():
        stream, side = engine.stream(), engine.stream()
        graph, seen = Graph(engine.type), []
        with Capture(graph, stream):
            side.wait_stream(stream)
            stream.submit(seen.append, 1)
            side.submit(seen.append, 1)
            stream.wait_stream(side)
            stream.submit(seen.append, 2)
        replay(graph, stream)
        replay(graph, stream)
        stream.synchronize()
        assert seen == [1, 1, 2] * 2

    schedules.explore(program, runs=50)


@pytest.mark.unscheduled
def test_explained_while_replays_begin(backend, switch_often):
    """A replay's callables have no stream before it is launched."""
    graphs = [Graph(backend.type) for _ in range(2)]
    stream = backend.stream()
    for graph in graphs:
        with Capture(graph, stream):
            for _ in range(20):
                stream.submit(int)
    over = threading.Event()

    def look():
        while not over.is_set():
            pystreams.explain()

    def replays():
        own = backend.stream()
        for _ in range(40):
            replay(graphs[0], own)
        own.synchronize()

    looking = threading.Thread(target=look)
    threads = [threading.Thread(target=replays) for _ in range(4)]
    for thread in [looking, *threads]:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    over.set()
    looking.join(LONG)
    assert not looking.is_alive()


@pytest.mark.unscheduled
@pytest.mark.parametrize("where", ["side", "origin"])
@pytest.mark.parametrize("end", ["reset", "replay"])
def test_submitted_while_another_thread_ends_the_capture(
    backend, stream, graph, buffer, end, where, switch_often
):
    """The callable is in the capture, or runs by itself."""
    side = backend.stream() if where == "side" else stream
    over = threading.Event()
    refused = set()

    def submit():
        while not over.is_set():
            try:
                side.submit(int).result(LONG)
            except RuntimeError as error:
                refused.add(str(error).split(":")[0])

    thread = threading.Thread(target=submit)
    thread.start()
    for _ in range(100):
        joins = end == "replay"
        capture(graph, stream, [side], buffer, pause=0.001, joins=joins)
    over.set()
    thread.join(LONG)
    assert not thread.is_alive()
    assert refused == {
        "the callable was captured into a graph, and runs at each replay"
    }
    assert side.submit(int).result(LONG) == 0


@pytest.mark.unscheduled
def test_in_all_orders(engine):
    """A replay's callable may touch all memory: both orders are explored."""
    seen = set()

    def fn():
        one, two = engine.stream(), engine.stream()
        memory = engine.empty(SIZE, stream=one)
        memory.fill_(0, stream=one)
        one.synchronize()
        graph = Graph(engine.type)
        found = []
        address = memory.data_ptr()
        with Capture(graph, one):
            one.submit(lambda: found.append(ctypes.string_at(address, 1)[0]))
        memory.fill_(7, stream=two)
        replay(graph, one)
        engine.synchronize()
        seen.update(found)

    schedules.explore(fn, strategy="all")
    assert seen == {0, 7}


class Stop(BaseException):
    pass


@pytest.mark.unscheduled
@pytest.mark.parametrize(
    ("raised", "caught"), [(Stop, Stop), (StopIteration, RuntimeError)]
)
def test_awaited_exceptions(graph, stream, raised, caught):
    """An await raises whatever the callable of a replay has raised."""

    def fail():
        time.sleep(0.1)
        raise raised

    async def main():
        with stream:
            graph.replay()
        with pytest.raises(caught):
            await stream

    with Capture(graph, stream):
        stream.submit(fail)
    asyncio.run(main())
