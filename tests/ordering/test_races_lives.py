"""pystreams.races across threads and runs of the detector: callables that run
late, Futures that outlive a run, waits after which the program knows that
some of the objects are done, but not all, and memory and executables that are
used again."""

import asyncio
import concurrent.futures
import gc
import threading
import time
import weakref
from functools import partial

import pytest
from captures import Capture, is_unlocked, replay
from deadlines import LONG
from gil import FREE

import pystreams
from pystreams import races
from pystreams.cuda._graphs import Graph

SIZE = 64


class Three:
    """Three streams of a device, and memory that the host can address."""

    def __init__(self, backend):
        self.backend = backend
        self.a, self.b, self.c = (backend.stream() for _ in range(3))
        self.x = pystreams.Buffer(
            SIZE,
            device=backend.device(),
            pin_memory=backend.name == "cuda",
        )
        self.go = threading.Event()
        backend.synchronize()

    def later(self, function, stream=None):
        """Submit a callable that runs once `go` is set."""

        def run():
            assert self.go.wait(LONG)
            function()

        return (stream or self.a).submit(run)

    def look(self):
        self.x.memoryview(readonly=True)

    def write(self):
        self.x.memoryview()


@pytest.fixture
def three(backend):
    three = Three(backend)
    yield three
    three.go.set()
    backend.synchronize()


@pytest.fixture
def found():
    found = []
    with races.detect(found.append):
        yield found


# ---- Callables that run late ----


def test_a_callable_before_what_waits_for_it(three, found):
    """Work that comes after the callable in order is queued before the
    callable runs."""
    future = three.later(three.look)
    three.b.wait_event(three.a.record_event())
    three.x.fill_(1, stream=three.b)
    three.go.set()
    future.result(LONG)
    assert list(map(str, found)) == []


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "goes on"])
def test_a_callable_that_copies_on_another_stream(three, found, waits):
    """A copy that the callable waits for is over when the callable is."""
    data = three.backend.empty(SIZE)
    three.backend.synchronize()
    future = three.later(
        lambda: three.x.copy_(data, non_blocking=not waits, stream=three.c)
    )
    data.fill_(1, stream=three.a)
    three.b.wait_event(three.a.record_event())
    data.fill_(2, stream=three.b)
    three.go.set()
    future.result(LONG)
    names = [(race.first.name, race.second.name) for race in found]
    assert names == ([] if waits else [("fill", "copy")])


OWN_WAITS = {
    "no-wait": lambda three: None,
    "stream": lambda three: three.b.synchronize(),
    "event": lambda three: three.b.record_event().synchronize(),
    "copy": lambda three: three.x.copy_(three.y, stream=three.b),
}


@pytest.mark.parametrize("wait", OWN_WAITS)
def test_a_callable_that_uses_what_it_has_queued(three, found, wait):
    """Its own later accesses come after the fill only if it waits."""
    three.y = three.backend.empty(SIZE)
    three.backend.synchronize()

    def run():
        three.x.fill_(1, stream=three.b)
        OWN_WAITS[wait](three)
        three.look()

    three.a.submit(run).result(LONG)
    names = [(race.first.name, race.second.name) for race in found]
    assert names == ([("fill", "a view")] if wait == "no-wait" else [])


@pytest.mark.unscheduled
def test_work_after_what_a_callable_has_queued(three, found):
    """The fill that the callable has queued is not forgotten because of a
    later one, with which the callable's access does not race."""
    queued = threading.Event()

    def run():
        three.x.fill_(1, stream=three.b)
        queued.set()
        assert three.go.wait(LONG)
        three.look()

    future = three.a.submit(run)
    assert queued.wait(LONG)
    three.c.wait_stream(three.b)
    three.x.fill_(2, stream=three.c)
    three.go.set()
    future.result(LONG)
    assert [race.first.name for race in found] == ["fill"]


def test_a_copy_in_a_callable_after_work_of_the_same_stream(three, found):
    """The copy comes after it, even though the callable waits for the copy."""
    data = three.backend.empty(SIZE)
    three.backend.synchronize()
    three.x.fill_(1, stream=three.b)
    copy = partial(three.x.copy_, data, stream=three.b)
    three.a.submit(copy).result(LONG)
    assert list(map(str, found)) == []


def test_a_callable_before_its_stream(three, found):
    """Work that was queued on the callable's stream while the callable was
    pending is not forgotten when the callable runs."""
    future = three.later(three.write)
    event = three.a.record_event()
    three.x.fill_(1, stream=three.a)
    three.go.set()
    until = future.running
    while until():
        pass
    three.b.wait_event(event)
    three.x.fill_(2, stream=three.b)
    assert [race.first.name for race in found] == ["fill"]


def test_a_callable_that_waits_itself(three, found):
    def run():
        three.b.synchronize()
        three.look()

    three.x.fill_(1, stream=three.b)
    three.a.submit(run).result(LONG)
    assert list(map(str, found)) == []


@pytest.mark.parametrize("way", ["query", "synchronize", "timeout", "wait"])
def test_a_callable_that_waits_for_what_the_host_has_waited_for(
    three, found, way
):
    """The host knows that the event is done, and no call of the device is
    needed any more.  The callable knows it after its own wait."""
    event = three.backend.event()

    def run():
        assert three.go.wait(LONG)
        if way == "query":
            assert event.query()
        elif way == "wait":
            pystreams.wait([event])
        else:
            event.synchronize(*([LONG] if way == "timeout" else []))
        three.look()

    future = three.a.submit(run)
    three.x.fill_(1, stream=three.b)
    event.record(three.b)
    event.synchronize()
    three.go.set()
    future.result(LONG)
    assert list(map(str, found)) == []


def test_what_the_host_learned_while_a_callable_was_pending(three, found):
    """The callable was queued before the host learned that the fill is done,
    so it does not come after the fill."""
    future = three.later(three.look)
    three.x.fill_(1, stream=three.b)
    three.b.synchronize()
    races.declare(three.c, reads=[three.x])
    three.go.set()
    future.result(LONG)
    assert [race.first.name for race in found] == ["a view"]


def test_what_came_again_after_a_pending_callable(three, found):
    """Of two accesses of the same stream, the first races with the callable,
    and the second comes after it."""
    future = three.later(three.look)
    three.x.fill_(1, stream=three.b)
    three.b.wait_stream(three.a)
    three.x.fill_(2, stream=three.b)
    three.go.set()
    future.result(LONG)
    assert len(found) == 1


def callable_after_a_stream(three, order):
    three.x.fill_(1, stream=three.b)
    order()
    return three.later(three.look)


def stream_after_a_callable(three, order):
    future = three.later(three.look)
    order()
    three.x.fill_(1, stream=three.b)
    return future


def callable_after_a_callable(three, order):
    first = three.later(three.look)
    order()
    second = three.later(three.write, three.b)
    three.go.set()
    first.exception(LONG)
    return second


PAIRS = [
    callable_after_a_stream,
    stream_after_a_callable,
    callable_after_a_callable,
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
def test_the_line_that_a_callable_misses(three, pair):
    """The missing line belongs before the access that was queued second,
    whichever of the two runs first."""
    found, order = [], lambda: None
    for _ in range(2):
        with races.detect(found.append):
            future = pair(three, order)
            three.go.set()
            future.exception(LONG)
        three.backend.synchronize()
        three.go.clear()
        assert len(found) == 1
        order = partial(exec, found[0].missing)
    second = found[0].second
    assert second.in_callable == pair.__name__.startswith("callable")
    text = str(found[0])
    assert (
        "before the submit() of the second's" in text
    ) == second.in_callable
    code = Three.later.__code__
    for one in (found[0].first, second):
        if not one.in_callable:
            assert one.submitted is None
            continue
        filename, line, function = one.submitted
        assert (filename, function) == (code.co_filename, "later")
        assert line > code.co_firstlineno
        assert f'submitted at\n      File "{filename}", line {line}' in text
    assert "in a callable, on stream" in text


@pytest.mark.skipif(
    FREE,
    reason="without the GIL, variables of other threads may not be read",
)
def test_the_names_for_a_callable_are_those_of_another_thread(three):
    """The name is found where the callable runs, not where it was
    submitted."""
    found, copy, work = [], three.a, three.b
    memory, go = three.x, three.go
    del three
    with races.detect(found.append):
        memory.fill_(1, stream=copy)
        future = work.submit(lambda: go.wait(LONG) and memory.memoryview())
        go.set()
        future.result(LONG)
    assert [race.missing for race in found] == ["work.wait_stream(copy)"]


def test_a_callable_and_the_host(three, found):
    """The host may read before the callable has run, or after it, so this is a
    race."""
    future = three.later(three.write)
    three.look()
    three.go.set()
    future.result(LONG)
    assert len(found) == 1


def test_a_host_that_looks_before_it_submits(three, found):
    three.look()
    future = three.later(three.write)
    three.go.set()
    future.result(LONG)
    assert found == []


def test_a_view_within_the_report_of_another(three):
    """The reporting function reads one view within the report of another."""
    found = []

    def report(race):
        found.append(race)
        if len(found) == 1:
            three.x.memoryview()

    with races.detect(report):
        three.x.fill_(1, stream=three.a)
        three.x.memoryview(readonly=True)
    assert [race.second.writes for race in found] == [False, True]


# ---- Futures ----


def test_a_future_that_was_cancelled(three, found):
    """A cancelled Future says nothing about its stream."""
    with three.backend.hold(three.a):
        three.x.fill_(1, stream=three.a)
        future = three.a.submit(int)
        assert future.cancel()
        assert future.done()
        with pytest.raises(concurrent.futures.CancelledError):
            future.result()
        three.x.fill_(2, stream=three.b)
    assert len(found) == 1


def by_callback(future):
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(LONG)


def by_asyncio(future):
    async def main():
        await asyncio.wait_for(asyncio.wrap_future(future), LONG)

    asyncio.run(main())


def by_asyncio_wait(future):
    async def main():
        await asyncio.wait([asyncio.wrap_future(future)])

    asyncio.run(main())


def by_async_for(future):
    async def main():
        async for _ in pystreams.as_completed([future]):
            pass

    asyncio.run(main())


WAITS = {
    "callback": by_callback,
    "wait": lambda future: concurrent.futures.wait([future]),
    "as_completed": lambda f: list(concurrent.futures.as_completed([f])),
    "wrap_future": by_asyncio,
    "asyncio.wait": by_asyncio_wait,
    "async-for": by_async_for,
    "exception": lambda future: future.exception(),
}


@pytest.mark.parametrize("late", [False, True], ids=["done", "pending"])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_waits_for_a_future(three, found, wait, late):
    future = three.later(int)
    if late:
        threading.Timer(0.05, three.go.set).start()
    else:
        three.go.set()
        while future.running():
            pass
    three.x.fill_(1, stream=three.a)
    future = three.a.submit(int)
    wait(future)
    three.x.fill_(2, stream=three.b)
    assert list(map(str, found)) == []


# ---- One run after another ----


def test_a_future_of_an_earlier_run(three):
    """A Future of an earlier run says nothing about the work of this run."""
    with races.detect():
        for _ in range(20):
            three.x.fill_(1, stream=three.a)
        future = three.a.submit(int)
    found = []
    with races.detect(found.append):
        three.x.fill_(1, stream=three.a)
        future.result(LONG)
        three.x.fill_(1, stream=three.b)
    assert len(found) == 1


def test_a_callable_of_an_earlier_run(three):
    with races.detect():
        others = [three.backend.stream() for _ in range(10)]
        for other in others:
            other.submit(int).result(LONG)
        future = three.later(three.write, others[-1])
    found = []
    with races.detect(found.append):
        three.go.set()
        future.result(LONG)
        three.x.fill_(1, stream=three.b)
    assert found == []


def test_an_action_that_ends_the_run(three):
    run = races.detect(lambda race: run.__exit__(None, None, None))
    run.__enter__()
    three.x.fill_(1, stream=three.a)
    three.x.fill_(2, stream=three.b)
    found = []
    with races.detect(found.append):
        three.x.fill_(3, stream=three.c)
    assert found == []


def test_nested_runs_that_end_in_any_order(three):
    outer, inner = [], []
    one, two = races.detect(outer.append), races.detect(inner.append)
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    three.x.fill_(1, stream=three.a)
    three.x.fill_(2, stream=three.b)
    two.__exit__(None, None, None)
    assert (len(outer), len(inner)) == (0, 1)


# ---- Used again ----


def test_the_default_stream_of_a_thread_that_has_ended(three, found):
    """Its accesses are known as long as they may race, and other threads'
    streams do not take its place before."""
    own = pystreams.ExternalStream(2, three.backend.device())
    others = [three.backend.empty(SIZE) for _ in range(4)]
    three.backend.synchronize()
    for memory in (three.x, *others):
        thread = threading.Thread(target=memory.fill_, args=(1, own))
        thread.start()
        thread.join(LONG)
    three.x.fill_(2, stream=three.b)
    assert [race.first.name for race in found] == ["fill"]
    three.backend.synchronize()
    for memory in (three.x, *others):
        memory.fill_(3, stream=three.c)
    assert len(found) == 1


def test_launches_of_one_graph(cuda):
    """Each launch comes after the earlier launches of the same executable."""
    a, b = cuda.stream(), cuda.stream()
    x, graph = cuda.empty(SIZE), Graph(cuda.type)
    cuda.synchronize()
    found = []
    with races.detect(found.append):
        with Capture(graph, a):
            x.fill_(1, stream=a)
        replay(graph, a)
        replay(graph, b)
        assert found == []
        x.fill_(1, stream=b)
        assert found == []
        x.fill_(1, stream=a)
        assert len(found) == 1


def test_launches_of_an_updated_graph(cuda):
    """The launches make the accesses of the other graph, with which theirs was
    updated."""
    a, b = cuda.stream(), cuda.stream()
    x, y = cuda.empty(SIZE), cuda.empty(SIZE)
    graph, other = Graph(cuda.type), Graph(cuda.type, True)
    cuda.synchronize()
    found = []
    with races.detect(found.append):
        for one, buffer in ((graph, x), (other, y)):
            with Capture(one, a):
                buffer.fill_(1, stream=a)
        graph.update(other)
        replay(graph, a)
        x.fill_(1, stream=b)
        assert found == []
        y.fill_(1, stream=b)
        assert len(found) == 1


@pytest.mark.parametrize("joined", [False, True], ids=["bug", "fixed"])
def test_a_graph_in_a_capture(cuda, joined):
    a, b = cuda.stream(), cuda.stream()
    x = cuda.empty(SIZE)
    graph, child = Graph(cuda.type), Graph(cuda.type, True)
    cuda.synchronize()
    found = []
    with races.detect(found.append):
        with Capture(child, a):
            x.fill_(1, stream=a)
        with Capture(graph, a):
            b.wait_stream(a)
            graph.add_child(child)
            if joined:
                b.wait_stream(a)
            x.fill_(2, stream=b)
            a.wait_stream(b)
        assert len(found) == (0 if joined else 1)
        replay(graph, a)
        x.fill_(3, stream=b)
    assert len(found) == (1 if joined else 2)


def using(graph, reports):
    """An action for races: uses the graph, as another thread does, too."""

    def use(race):
        assert is_unlocked(graph)
        graph.pool()
        reports.append((race.second.name, race.address))

    return use


def test_reports_of_a_launch_may_use_its_graph(three):
    """Each race is reported once, and the work is queued once."""
    backend, a, b, x = three.backend, three.a, three.b, three.x
    y, graph, ran = backend.empty(SIZE), Graph(backend.type, True), []
    reports = []
    with races.detect(using(graph, reports)):
        with Capture(graph, b):
            x.fill_(1, stream=b)
            y.fill_(1, stream=b)
            b.submit(ran.append, 1)
        for buffer in (x, y):
            buffer.fill_(2, stream=a)
        replay(graph, b)
        b.synchronize()
    launched = ["graph launch", "graph launch"]
    assert ([name for name, _ in reports], ran) == (launched, [1])
    assert {address for _, address in reports} == {x.data_ptr(), y.data_ptr()}


def test_a_report_of_a_launch_that_orders_another_race(three):
    """The race that is no race any more when the launch is made again is not
    mistaken for the one that was reported."""
    backend, a, b, c, x = (
        three.backend,
        three.a,
        three.b,
        three.c,
        three.x,
    )
    y, graph, reports = backend.empty(SIZE), Graph(backend.type), []

    def report(race):
        reports.append(race.address)
        (c if race.address == y.data_ptr() else a).synchronize()

    with races.detect(report):
        with Capture(graph, b):
            x.fill_(1, stream=b)
            y.fill_(1, stream=b)
        x.fill_(2, stream=a)
        y.fill_(2, stream=c)
        replay(graph, b)
    assert set(reports) == {x.data_ptr(), y.data_ptr()}


def test_a_report_of_a_launch_that_queues_the_racing_work_again(three):
    a, b, x = three.a, three.b, three.x
    graph, reports = Graph(three.backend.type), []

    def report(race):
        reports.append(race.first.name)
        if len(reports) < 10:
            x.fill_(3, stream=a)

    with races.detect(report):
        with Capture(graph, b):
            x.fill_(1, stream=b)
        x.fill_(2, stream=a)
        replay(graph, b)
    assert reports == ["fill"]


@pytest.mark.skipif(FREE, reason="code objects are freed later")
def test_a_launch_that_drops_the_code_of_an_access(three):
    """Weak references to the code object may have callbacks."""
    a, b, x = three.a, three.b, three.x
    graph, used = Graph(three.backend.type), []

    def use(reference):
        used.append(is_unlocked(graph))

    with races.detect():
        with Capture(graph, b):
            x.fill_(1, stream=b)
        code = compile("x.fill_(1, stream=a)", "program", "exec")
        reference = weakref.ref(code, use)
        exec(code, {"x": x, "a": a})
        del code
        b.wait_stream(a)
        replay(graph, b)
    assert reference() is None
    assert used == [True]


def test_an_owner_that_races_when_a_launch_drops_its_stream(cuda):
    """Its error is its own: the launch is made once."""
    first, second, third = (cuda.stream() for _ in range(3))
    x, graph, ran, errors = cuda.empty(SIZE), Graph(cuda.type), [], []

    class Owner:
        __cuda_stream__ = (0, first.native_handle)

        def __del__(self):
            try:
                x.fill_(2, stream=third)
            except Exception as error:
                errors.append(error)

    with Capture(graph, first):
        first.submit(ran.append, 1)
    with cuda.hold(first):
        replay(graph, pystreams.ExternalStream(Owner(), cuda.device()))
        replay(graph, second)
    cuda.synchronize()
    with races.detect():
        x.fill_(1, stream=second)
        replay(graph, third)
        (error,) = errors
        assert isinstance(error, races.RaceError)
        cuda.synchronize()
    assert ran == [1, 1, 1]


def test_garbage_of_a_launch_may_use_its_graph(three):
    """Before CPython 3.12, any allocation may collect garbage."""
    backend, a, b, x = three.backend, three.a, three.b, three.x
    graph, used = Graph(backend.type, True), []

    class Garbage:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            used.append(is_unlocked(graph))

    thresholds = gc.get_threshold()
    with races.detect(lambda race: None):
        with Capture(graph, b):
            x.fill_(1, stream=b)
        x.fill_(2, stream=a)
        gc.collect()
        try:
            for threshold in range(1, 40):
                Garbage()
                gc.set_threshold(threshold)
                replay(graph, b)
        finally:
            gc.set_threshold(*thresholds)
    gc.collect()
    assert used == [True] * 39


def test_a_report_of_a_launch_that_raises(three):
    """No work is queued, and the next launch is reported, too."""
    a, b, x = three.a, three.b, three.x
    graph, ran = Graph(three.backend.type), []
    with races.detect("raise"):
        with Capture(graph, b):
            x.fill_(1, stream=b)
            b.submit(ran.append, 1)
        x.fill_(2, stream=a)
        for _ in range(2):
            with pytest.raises(races.RaceError, match="graph launch"):
                replay(graph, b)
        b.synchronize()
        assert ran == []
        b.wait_stream(a)
        replay(graph, b)
        b.synchronize()
    assert ran == [1]


def test_a_report_of_a_child_graph_may_use_the_graphs(cuda):
    a, b = cuda.stream(), cuda.stream()
    graph, child = Graph(cuda.type, True), Graph(cuda.type, True)
    x, reports = cuda.empty(SIZE), []
    with races.detect(using(child, reports)):
        with Capture(child, a):
            x.fill_(1, stream=a)
        with Capture(graph, a):
            b.wait_stream(a)
            x.fill_(2, stream=b)
            graph.add_child(child)
            a.wait_stream(b)
    assert reports == [("child graph", x.data_ptr())]
    kinds = [node["node_type"] for node in graph.get_graph_data()["nodes"]]
    # An emulated capture has the child's nodes instead of a child graph.
    assert kinds.count("memset") + kinds.count("child_graph") == 2


@pytest.mark.parametrize("ends", ["ends", "fails", "dropped"])
def test_waits_in_a_capture_do_not_order_eager_work(three, found, ends):
    """They take place only in launches of the graph."""
    backend, a, b, x = three.backend, three.a, three.b, three.x
    y, z, w = (backend.empty(SIZE) for _ in range(3))
    graph = Graph(backend.type)
    x.fill_(1, stream=a)
    y.fill_(1, stream=b)
    with a:
        graph.capture_begin(capture_error_mode="relaxed")
        z.fill_(1, stream=a)
        b.wait_stream(a)
        w.fill_(1, stream=b)
        if ends == "fails":
            with pytest.raises(pystreams.AcceleratorError):
                graph.capture_end()
        else:
            a.wait_stream(b)
            (graph.capture_end if ends == "ends" else graph.reset)()
    assert found == []
    z.copy_(x, non_blocking=True, stream=b)
    assert len(found) == 1
    w.copy_(y, non_blocking=True, stream=a)
    assert len(found) == 2


def test_eager_order_outlasts_a_capture(three, found):
    """What ordered eager work before the capture does so after it, too."""
    backend, a, b, c, x = three.backend, three.a, three.b, three.c, three.x
    y = backend.empty(SIZE)
    x.fill_(1, stream=a)
    b.wait_stream(a)
    y.fill_(1, stream=c)
    c.synchronize()
    with Capture(Graph(backend.type), a):
        b.wait_stream(a)
        y.fill_(2, stream=b)
        a.wait_stream(b)
    x.fill_(2, stream=b)
    y.fill_(3, stream=a)
    assert found == []
    x.fill_(3, stream=a)
    assert len(found) == 1


@pytest.mark.parametrize("waits", [False, True], ids=["bug", "fixed"])
def test_events_that_a_graph_records(cuda, waits):
    a, b = cuda.stream(), cuda.stream()
    x, graph = cuda.empty(SIZE), Graph(cuda.type)
    event = pystreams.cuda.Event(external=True)
    cuda.synchronize()
    found = []
    with races.detect(found.append):
        with Capture(graph, a):
            x.fill_(1, stream=a)
            event.record(a)
        for _ in range(2):
            replay(graph, a)
            if waits:
                b.wait_event(event)
            x.fill_(2, stream=b)
            a.wait_stream(b)
        assert len(found) == (0 if waits else 2)
        x.fill_(3, stream=a)
        b.wait_event(event)
        x.fill_(4, stream=b)
    assert len(found) == (1 if waits else 3)


@pytest.mark.parametrize("fixed", [False, True], ids=["bug", "fixed"])
def test_events_that_a_graph_waits_for(cuda, fixed):
    a, b = cuda.stream(), cuda.stream()
    x, graph = cuda.empty(SIZE), Graph(cuda.type)
    event = pystreams.cuda.Event(external=True)
    cuda.synchronize()
    found = []
    with races.detect(found.append):
        with Capture(graph, a):
            event.wait(a)
            x.fill_(1, stream=a)
        event.record(b)
        for _ in range(2):
            x.fill_(2, stream=b)
            if fixed:
                event.record(b)
            replay(graph, a)
            b.wait_stream(a)
    assert len(found) == (0 if fixed else 2)


@pytest.mark.unscheduled
def test_an_event_of_another_process(backend, three, found, peer):
    """It is not known what the event comes after, so no access is reported."""
    peer.do(
        "theirs = pystreams.Event(backend.device(), enable_timing=False, "
        "interprocess=True)\n"
        "theirs.record(backend.stream())"
    )
    handle = peer.do("theirs.ipc_handle()")
    theirs = pystreams.Event.from_ipc_handle(backend.device(), handle)
    three.x.fill_(1, stream=three.a)
    three.b.wait_event(theirs)
    three.x.fill_(2, stream=three.b)
    theirs.synchronize()
    three.x.fill_(3, stream=three.c)
    assert found == []
    three.x.fill_(4, stream=three.a)
    assert len(found) == 1


@pytest.mark.unscheduled
@pytest.mark.parametrize("interprocess", [False, True])
def test_an_event_that_others_may_record(backend, three, interprocess):
    event = pystreams.Event(
        backend.device(), enable_timing=False, interprocess=interprocess
    )
    found = []
    with races.detect(found.append):
        event.record(three.a)
        three.x.fill_(1, stream=three.a)
        three.b.wait_event(event)
        three.x.fill_(2, stream=three.b)
    assert len(found) == (0 if interprocess else 1)


def again(place, stream, address):
    """Return a Buffer at the address, if a new Buffer gets it."""
    kept = []
    for _ in range(1000):
        kept.append(pystreams.Buffer(512, stream=stream, **place))
        if kept[-1].data_ptr() == address:
            return kept[-1]
    if place.get("pin_memory"):
        raise AssertionError("pinned memory is pooled")
    pytest.skip("the allocator did not give the address again")


def by_record_stream(two, block):
    block.record_stream(two.b)


def by_the_allocating_stream(two, block):
    two.a.wait_stream(two.b)


def by_the_host(two, block):
    two.b.synchronize()


KEPT = {
    "record_stream": by_record_stream,
    "stream": by_the_allocating_stream,
    "host": by_the_host,
    "nothing": None,
}


@pytest.mark.parametrize("pinned", [False, True], ids=["device", "pinned"])
@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_memory_that_is_freed_too_early(three, found, keep, pinned):
    """The owner of the memory does not know what another library does with
    it."""
    if pinned and three.backend.name == "cpu":
        pytest.skip("cpu: needs no pinned memory")
    if pinned and keep is by_the_allocating_stream:
        pytest.skip("pinned memory is not freed in the order of a stream")
    place = {"device": three.backend.device(), "pin_memory": pinned}
    stream = None if pinned else three.a
    block = pystreams.Buffer(512, stream=stream, **place)
    address = block.data_ptr()
    races.declare(three.b, writes=[block[:64]], name="kernel")
    if keep is not None:
        keep(three, block)
    del block
    block = again(place, stream, address)
    block.fill_(0, stream=three.a)
    assert [race.first.name for race in found] == (
        [] if keep is not None else ["kernel"]
    )
    if keep is None:
        (race,) = found
        assert race.freed
        assert "the memory was freed in between" in str(race)
        three.a.wait_stream(three.b)
        block.fill_(0, stream=three.a)
        assert len(found) == 1


def test_memory_that_a_graph_s_kernel_reads(three, found):
    """The graph does not keep memory that only a declared kernel uses."""
    if three.backend.name == "cpu":
        pytest.skip("cpu: memory that is not pinned may get another address")
    place = {"device": three.backend.device(), "pin_memory": True}
    graph = Graph(three.backend.type)
    block = pystreams.Buffer(512, **place)
    address = block.data_ptr()
    with Capture(graph, three.a):
        races.declare(three.a, reads=[block], name="kernel")
        three.backend.call(three.a)
    with three.a:
        graph.replay()
    del block
    again(place, None, address).fill_(0, stream=three.b)
    (race,) = found
    assert race.freed


def test_memory_that_is_freed_after_the_second_operation(three, found):
    """The callable was queued before the kernel, so the kernel is the second
    operation.  That the memory was freed then explains nothing."""
    if three.backend.name == "cpu":
        pytest.skip("cpu: memory that is not pinned may get another address")
    place = {"device": three.backend.device(), "pin_memory": True}
    memory = []
    future = three.later(lambda: memory[0].memoryview(readonly=True))
    block = pystreams.Buffer(512, **place)
    address = block.data_ptr()
    races.declare(three.b, writes=[block[:64]], name="kernel")
    del block
    memory.append(again(place, None, address))
    three.go.set()
    future.result(LONG)
    (race,) = found
    assert race.second.name == "kernel"
    assert not race.freed


def test_an_event_that_was_never_recorded(three, found):
    """It reports no work."""
    three.x.fill_(1, stream=three.a)
    event = three.backend.event()
    assert list(pystreams.as_completed([event])) == [event]
    three.look()
    assert len(found) == 1


def test_memory_that_is_freed_in_time(three, found):
    """An access that comes after a free in the order of its stream is not
    reported."""
    place = {"device": three.backend.device()}
    block = pystreams.Buffer(512, stream=three.a, **place)
    address = block.data_ptr()
    races.declare(three.a, writes=[block], name="kernel")
    block.close()
    again(place, three.c, address).fill_(0, stream=three.c)
    assert found == []


def test_memory_that_is_used_again(three, found):
    """The memory is handed out again when the earlier work that used it is
    done."""
    backend = three.backend
    for pinned in (False, backend.name == "cuda"):
        for stream in (three.a, three.b) * 10:
            memory = pystreams.Buffer(
                SIZE, device=backend.device(), pin_memory=pinned
            )
            memory.fill_(1, stream=stream)
    assert list(map(str, found)) == []


# An allocation waits until a stream no longer uses some memory.  Meanwhile, a
# signal handler waits for another stream.
HANDLER = """
import signal
import pystreams
from pystreams import Buffer, cuda, races

def handler(*_):
    handled.append(c.query())

handled = []
signal.signal(signal.SIGALRM, handler)
a, b, c, d = (cuda.Stream() for _ in range(4))
x = Buffer(64, device="cuda")
large = Buffer(768 << 10, device="cuda", stream=a)
cuda.synchronize()
with cuda.stream(b):
    cuda._sleep(400_000_000)
large.record_stream(b)
del large
with races.detect():
    x.fill_(1, stream=c)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    again = Buffer(768 << 10, device="cuda", stream=a)
    print(handled)
    x.fill_(2, stream=d)
"""


@pytest.mark.unscheduled
def test_a_signal_during_a_wait_of_the_library(run_python):
    """A wait in a signal handler orders work for the program.  This is so even
    if the handler runs inside a wait of the library, which orders nothing."""
    done = run_python(
        HANDLER,
        env={
            "PYSTREAMS_EMULATE_CUDA": "1",
            "PYSTREAMS_EMULATE_MEMORY": "1MiB",
        },
    )
    assert (done.stderr, done.stdout) == ("", "[True]\n")


# ---- Several at once ----


def taken(objects):
    return next(iter(pystreams.as_completed(objects)))


def taken_in_a_loop(objects):
    async def main():
        async for first in pystreams.as_completed(objects):
            return first

    return asyncio.run(main())


@pytest.mark.parametrize("take", [taken, taken_in_a_loop])
@pytest.mark.parametrize(
    "of",
    [
        lambda stream: stream,
        lambda stream: stream.record_event(),
        # A Future that ends while as_completed() waits counts as known.
        pytest.param(
            lambda stream: stream.submit(int), marks=pytest.mark.unscheduled
        ),
    ],
    ids=["streams", "events", "futures"],
)
def test_what_as_completed_has_not_yielded(three, found, take, of):
    """All objects are done, but the program knows it only of the first one."""
    half = SIZE // 2
    parts = three.x[:half], three.x[half:]
    for part, stream in zip(parts, (three.a, three.b), strict=True):
        part.fill_(1, stream=stream)
    objects = [of(three.a), of(three.b)]
    time.sleep(0.05)
    known = objects.index(take(objects))
    parts[known].fill_(2, stream=three.c)
    assert found == []
    parts[not known].fill_(2, stream=three.c)
    assert len(found) == 1


KNOWN_LATER = {
    "query": lambda three, event: event.query(),
    "synchronize": lambda three, event: event.synchronize(),
    "wait_event": lambda three, event: three.c.wait_event(event),
    "wait": lambda three, event: pystreams.wait([event]),
    "await": lambda three, event: asyncio.run(awaited(event)),
}


async def awaited(event):
    await event


@pytest.mark.unscheduled
@pytest.mark.parametrize("way", KNOWN_LATER)
@pytest.mark.parametrize("take", [taken, taken_in_a_loop])
def test_what_is_waited_for_after_as_completed(three, found, take, way):
    """As above, but the program waits for the other object afterwards."""
    half = SIZE // 2
    parts = three.x[:half], three.x[half:]
    for part, stream in zip(parts, (three.a, three.b), strict=True):
        part.fill_(1, stream=stream)
    events = [three.a.record_event(), three.b.record_event()]
    time.sleep(0.05)
    known = events.index(take(events))
    KNOWN_LATER[way](three, events[not known])
    parts[not known].fill_(2, stream=three.c)
    assert list(map(str, found)) == []
