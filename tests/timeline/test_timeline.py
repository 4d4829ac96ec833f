"""pystreams.timeline: a row for each thing that happens, with its times, its
place and what it waits for."""

import asyncio
import gc
import inspect
import re
import subprocess
import sys
import threading
import time

import pytest
from captures import Capture, replay
from deadlines import LONG
from together import together

import pystreams
from pystreams import _C, races, schedules, timeline
from pystreams.cuda._graphs import Graph
from pystreams.timeline import _analysis, _cupti

MS = 1_000_000
KIND, NAME, DEVICE, STREAM, THREAD, QUEUED, BEGIN, END, NBYTES = range(9)
FILENAME, LINE, FUNCTION, SOURCE = range(9, 13)


@pytest.fixture(
    params=[
        "exact",
        pytest.param("by events", marks=pytest.mark.unscheduled),
    ]
)
def clock(request, monkeypatch):
    """How operations are timed."""
    monkeypatch.setattr(timeline, "_by_events", request.param == "by events")
    return request.param


class Two:
    def __init__(self, backend):
        # A recording would have rows for memory of earlier tests that it sees
        # freed.
        gc.collect()
        self.backend = backend
        self.a, self.b = backend.stream(), backend.stream()
        self.device = str(backend.device())
        self.block = backend.empty(1 << 12)
        backend.sleep(self.a, 0.01)
        backend.synchronize()


@pytest.fixture
def two(backend):
    return Two(backend)


def of_kind(t, *kinds):
    return [row for row in t.rows if row[KIND] in kinds]


def slack_of(t, backend, clock):
    """Return by how many nanoseconds two times of a device may disagree."""
    slack = 0 if clock == "exact" and backend.on_engine else t.clock_error
    return slack + (1000 if clock == "by events" else 0)


def test_streams_have_their_names(backend):
    """The handle comes after the name, since two streams may have the same
    name."""
    device = str(backend.device())
    streams = [backend.stream(name="copy") for _ in range(2)]
    with timeline.record() as t:
        for stream in streams:
            backend.sleep(stream, 0.01)
        backend.synchronize()
    assert [(row[DEVICE], row[STREAM]) for row in of_kind(t, "sleep")] == [
        (device, f"copy ({stream.native_handle:#x})") for stream in streams
    ]


def test_columns():
    names = "kind name device stream thread queued begin end nbytes filename"
    names += " line function source domain"
    assert tuple(names.split()) == timeline.COLUMNS


def within(backend):
    """Return the direction of a copy within a device."""
    return f"{where(backend)} to {where(backend)}"


def where(backend):
    """Return where a device's memory is."""
    return "host" if backend.name == "cpu" else "device"


@pytest.mark.unscheduled
def test_operations(two, clock):
    """Tests the kinds, sizes, streams and times of operations."""
    backend = two.backend
    other = backend.empty(1 << 12)
    with timeline.record() as t:
        two.block.fill_(1, stream=two.a)
        other.copy_(two.block, non_blocking=True, stream=two.a)
        backend.sleep(two.a, 2)
        backend.call(two.a)
        two.a.submit(time.sleep, 0.002)
        two.a.synchronize()
    rows = of_kind(t, "fill", "copy", "sleep", "function", "callable")
    kinds = [row[KIND] for row in rows]
    assert kinds == ["fill", "copy", "sleep", "function", "callable"]
    assert [row[NBYTES] for row in rows] == [4096, 4096, 0, 0, 0]
    names = ["fill", f"copy {within(backend)}", "sleep", "function", "sleep"]
    assert [row[NAME] for row in rows] == names
    assert {row[DEVICE] for row in rows} == {two.device}
    assert len({row[STREAM] for row in rows}) == 1
    slack = slack_of(t, backend, clock)
    ended = 0
    for row in rows:
        assert 0 <= row[QUEUED] <= row[BEGIN] + slack
        assert ended <= row[BEGIN] + slack
        assert row[BEGIN] <= row[END] <= t.duration + slack
        ended = row[END]
    for row in (rows[2], rows[4]):
        assert row[END] - row[BEGIN] >= 1.9 * MS


@pytest.mark.parametrize("host", ["pinned", "pageable"])
def test_directions_of_copies(two, host):
    backend = two.backend
    block, pinned = backend.empty(64), backend.host(64)
    with timeline.record() as t:
        if host == "pinned":
            block.copy_(pinned, non_blocking=True)
            pinned.copy_(block, non_blocking=True)
        else:
            block.copy_(bytearray(64))
            block.copy_to(bytearray(64))
        pinned.copy_(bytearray(64))
        backend.synchronize()
    device = where(backend)
    assert [row[NAME] for row in of_kind(t, "copy")] == [
        f"copy host to {device}",
        f"copy {device} to host",
        "copy host to host",
    ]


def test_direction_of_a_copy_between_devices(two):
    backend = two.backend
    if backend.count < 2:
        pytest.skip("needs two devices")
    other = backend.empty(64, 1)
    with timeline.record() as t:
        other.copy_(two.block[:64], non_blocking=True)
        backend.synchronize(1)
    direction = "host to host" if backend.name == "cpu" else "peer to peer"
    (row,) = of_kind(t, "copy")
    assert row[NAME] == f"copy {direction}"
    assert {row[NAME] for row in of_kind(t, "wait")} == {"wait"}


def test_a_copy_that_waits_for_the_default_stream(two):
    """The copy's wait for the default stream has a row of its own, named
    "wait" and not "copy"."""
    backend = two.backend
    stream = backend.stream(blocking=True)
    other = backend.empty(1 << 12)
    with timeline.record() as t:
        two.block.fill_(1)
        other.copy_(two.block, non_blocking=True, stream=stream)
        stream.synchronize()
    assert [row[NAME] for row in of_kind(t, "wait")] == ["wait"]


def test_clock_error(two, clock):
    with timeline.record() as t:
        two.backend.sleep(two.a, 0.1)
        two.a.synchronize()
    if clock == "exact" and two.backend.on_engine:
        assert t.clock_error == 0
    elif clock == "exact":  # unless the device reports times itself
        assert 0 <= t.clock_error < 5 * MS
    else:
        assert 0 < t.clock_error < 5 * MS


def test_places(two):
    with timeline.record() as t:
        two.block.fill_(1, stream=two.a)
        line = inspect.currentframe().f_lineno - 1
        two.a.synchronize()
    row = of_kind(t, "fill")[0]
    assert row[FILENAME:SOURCE] == (__file__, line, "test_places")
    assert row[THREAD] == threading.current_thread().name


def test_waits_of_streams(two):
    """Each wait has its record as source, and takes as long as it holds up its
    stream."""
    event = two.backend.event()
    with timeline.record() as t:
        two.backend.sleep(two.a, 5)
        event.record(two.a)
        two.b.wait_event(event)
        two.backend.sleep(two.b, 1)
        two.b.synchronize()
    rows = t.rows
    first, last = of_kind(t, "sleep")
    (wait,) = of_kind(t, "wait")
    assert rows[wait[SOURCE]][KIND] == "record"
    assert rows[wait[SOURCE]][END] >= first[END]
    assert wait[BEGIN] == wait[QUEUED]
    assert wait[END] == max(wait[QUEUED], first[END])
    assert last[BEGIN] >= wait[END]


def test_a_wait_for_what_is_done(two):
    """Core knows that the event is done and does not call the backend; the
    wait still has a row."""
    event = two.backend.event()
    with timeline.record() as t:
        event.record(two.a)
        event.synchronize()
        assert event.query()
        two.b.wait_event(event)
    (wait,) = of_kind(t, "wait")
    assert t.rows[wait[SOURCE]][KIND] == "record"
    assert wait[BEGIN] == wait[END]


@pytest.mark.unscheduled
def test_waits_of_threads(two):
    """Each wait says what the thread waited for."""
    backend = two.backend
    with timeline.record() as t:
        backend.sleep(two.a, 50)
        two.a.synchronize()
        backend.sleep(two.a, 50)
        two.a.record_event().synchronize()
        backend.sleep(two.b, 50)
        backend.synchronize()
        two.a.submit(time.sleep, 0.05).result(LONG)
    rows = t.rows
    waits = of_kind(t, "synchronize")
    ends = [rows[row[SOURCE]][END] for row in waits]
    assert ends == [row[END] for row in of_kind(t, "sleep", "callable")]
    for row in waits:
        assert row[DEVICE] is None and row[STREAM] is None
        assert row[END] - row[BEGIN] > MS
    assert waits[0][NAME] == "Stream.synchronize"


AWAITS = {
    "stream": lambda stream, future: stream,
    "event": lambda stream, future: stream.record_event(),
    "Future": lambda stream, future: future,
}


async def await_work(work):
    await work


def busy_host(t):
    return sum(time for key, time in t.overlap().items() if "host" in key)


@pytest.mark.unscheduled
@pytest.mark.parametrize("kind", AWAITS)
def test_an_await(two, kind):
    """The thread waits, and the path leads through what is awaited."""
    with timeline.record() as t:
        future = two.a.submit(time.sleep, 0.05)
        asyncio.run(await_work(AWAITS[kind](two.a, future)))
    rows = t.rows
    (row,) = of_kind(t, "synchronize")
    assert (row[NAME], row[DEVICE], row[STREAM]) == ("await", None, None)
    assert row[FUNCTION] == "await_work"
    source = rows[row[SOURCE]]
    assert source[KIND] == ("record" if kind == "event" else "callable")
    (call,) = of_kind(t, "callable")
    assert call[QUEUED] <= row[QUEUED] <= row[BEGIN] < call[END] <= row[END]
    assert busy_host(t) <= t.duration - (row[END] - row[BEGIN])
    path = t.critical_path()
    assert [step.row for step in path.steps] == [None, rows.index(call), None]
    assert path.waits[0][0] == rows.index(row)


@pytest.mark.unscheduled
def test_awaits_of_several_tasks(two):
    """No time counts as waiting twice.  The time in which another task
    computes before it makes a call does not count as waiting."""
    computed = []

    async def main():
        two.a.submit(time.sleep, 0.1)
        two.b.submit(time.sleep, 0.2)
        await asyncio.gather(await_work(two.a), compute(), await_work(two.b))

    async def compute():
        begin = time.monotonic()
        time.sleep(0.05)
        computed.append(time.monotonic() - begin)
        two.block.fill_(1, stream=two.backend.stream())

    with timeline.record() as t:
        asyncio.run(main())
    waits = of_kind(t, "synchronize")
    assert [row[NAME] for row in waits] == ["await", "await"]
    (fill,) = of_kind(t, "fill")
    edges = [fill[QUEUED], *(time for row in waits for time in row[6:8])]
    assert edges == sorted(edges)
    assert waits[1][END] >= max(r[END] for r in of_kind(t, "callable"))
    assert busy_host(t) >= computed[0] * 1e9


@pytest.mark.unscheduled
def test_an_await_that_is_cancelled(two):
    """The cancelled await has a row, since the thread has waited."""

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(await_work(two.a), 0.1)

    with timeline.record() as t:
        future = two.a.submit(time.sleep, 0.3)
        asyncio.run(main())
        (row,) = of_kind(t, "synchronize")
        future.result(LONG)
    assert row[NAME] == "await" and row[END] - row[BEGIN] > 5 * MS


def test_an_await_that_outlives_the_timeline(two):
    """The await has no row in the next timeline, either."""

    async def main():
        with timeline.record() as before:
            future = two.a.submit(time.sleep, 0.05)
            task = asyncio.create_task(await_work(two.a))
            await asyncio.sleep(0)
        with timeline.record() as after:
            await task
        future.result(LONG)
        assert of_kind(before, "synchronize") == []
        assert of_kind(after, "synchronize") == []

    asyncio.run(main())


@pytest.mark.unscheduled
def test_completed_in_a_loop(two):
    async def main():
        streams = [two.a, two.b]
        return [s async for s in pystreams.as_completed(streams)]

    with timeline.record() as t:
        two.a.submit(time.sleep, 0.02)
        two.b.submit(time.sleep, 0.04)
        assert asyncio.run(main()) == [two.a, two.b]
    waits = of_kind(t, "synchronize")
    assert [row[NAME] for row in waits] == ["await", "await"]
    assert sum(row[END] - row[BEGIN] for row in waits) > 20 * MS


def test_a_wait_for_several(two):
    with timeline.record() as t:
        two.backend.sleep(two.a, 3)
        pystreams.wait([two.a.record_event()], timeout=LONG)
    (row,) = of_kind(t, "synchronize")
    assert row[END] >= of_kind(t, "sleep")[0][END]


def test_spans(two, clock):
    with timeline.record() as t:
        with timeline.span("work", two.a):
            two.backend.sleep(two.a, 2)
            two.backend.sleep(two.a, 2)
        with timeline.span("outer"), timeline.span("inner"):
            two.a.synchronize()
    work, outer, inner = of_kind(t, "span")
    first, last = of_kind(t, "sleep")
    assert (work[NAME], work[STREAM]) == ("work", first[STREAM])
    slack = slack_of(t, two.backend, clock)
    assert work[BEGIN] <= first[BEGIN] + slack
    assert work[END] + slack >= last[END]
    assert (outer[NAME], outer[STREAM]) == ("outer", None)
    assert outer[BEGIN] <= inner[BEGIN] <= inner[END] <= outer[END]


def test_a_span_may_be_used_again(two):
    span = timeline.span("again")
    with span:
        pass
    with timeline.record() as t, span, span:
        pass
    assert [row[NAME] for row in of_kind(t, "span")] == ["again"] * 2


@pytest.mark.parametrize("name", [None, 1, b"name"])
def test_a_span_with_a_wrong_name(name):
    with pytest.raises(TypeError, match=r"span\(\) expects a str"):
        timeline.span(name)


def test_a_span_with_a_wrong_stream():
    """The stream is refused whether or not something records."""
    with pytest.raises(
        TypeError,
        match=r"span\(\) expects a Stream or an object with "
        "__cuda_stream__ for stream, but got float",
    ):
        timeline.span("name", 3.5)


def test_memory(two):
    before = two.backend.in_use()
    with timeline.record() as t:
        block = two.backend.empty(1 << 16)
        block.close()
    used = [row[NBYTES] - before for row in of_kind(t, "memory")]
    assert used == [1 << 16, 0]


def test_graphs(two, clock):
    """A launch is one row; what is captured has none."""
    graph = Graph(two.backend.type)
    with timeline.record() as t:
        with Capture(graph, two.a):
            two.block.fill_(1, stream=two.a)
            two.b.wait_stream(two.a)
            two.block.fill_(2, stream=two.b)
            two.a.wait_stream(two.b)
        for _ in range(2):
            replay(graph, two.a)
        two.a.synchronize()
    rows = of_kind(t, "graph", "fill", "wait", "record")
    assert [row[KIND] for row in rows] == ["graph"] * 2
    assert rows[0][BEGIN] <= rows[0][END] <= rows[1][END]


@pytest.mark.unscheduled
def test_launches_that_are_done_before_the_call_returns(engine):
    """These launches take as long as their work."""
    stream, block = engine.stream(), engine.empty(1 << 16)
    graph = Graph(engine.type)
    with Capture(graph, stream):
        block.fill_(1, stream=stream)
    with timeline.record() as t:
        for _ in range(3):
            replay(graph, stream)
            stream.synchronize()
    rows = of_kind(t, "graph")
    assert len(rows) == 3
    assert all(row[QUEUED] <= row[BEGIN] < row[END] for row in rows)


def test_failed_and_cancelled_work(two):
    """A callable that never ran has no row, but one that raised has a row."""
    with timeline.record() as t:
        with two.backend.hold(two.a):
            two.a.submit(int).cancel()
            bad = two.a.submit(int, "x")
        with pytest.raises(ValueError):
            bad.result(LONG)
        two.a.synchronize()
    (row,) = of_kind(t, "callable")
    assert row[END] is not None


@pytest.mark.unscheduled
def test_what_has_not_ended(two):
    """Unfinished work has no times.  It gets them when it ends."""
    with two.backend.hold(two.a):
        with timeline.record() as t:
            two.block.fill_(1, stream=two.a)
            event = two.a.record_event()
            two.b.wait_event(event)
        rows = of_kind(t, "fill", "record", "wait")
        assert [row[END] for row in rows] == [None] * 3
        assert "1 had not ended" in str(t)
    two.backend.synchronize()
    assert None not in [row[END] for row in t.rows]
    assert t.rows[0][END] > t.duration


def test_work_that_a_schedule_drops(engine):
    """Dropped work counts as ended, so that later work on its stream gets its
    times."""
    stream, block = engine.default_stream(), engine.empty(64)
    engine.synchronize()

    def fn():
        block.fill_(1, stream=stream)
        raise ZeroDivisionError

    with timeline.record() as t:
        with pytest.raises(ZeroDivisionError):
            schedules.replay(fn, "late")
        block.fill_(2, stream=stream)
        stream.record_event().synchronize()
    ends = [row[END] for row in of_kind(t, "fill", "record")]
    assert len(ends) >= 2
    assert None not in ends


def test_a_callable_captured_since_before_the_timeline(engine):
    """The callable has no row, and later work on its stream gets its times
    without waiting for it."""
    graph, stream = Graph(engine.type), engine.stream()
    with Capture(graph, stream), timeline.record() as t:
        stream.submit(int)
    with timeline.record() as later:
        replay(graph, stream)
        stream.record_event().synchronize()
    assert of_kind(t, "callable") == []
    assert None not in [row[END] for row in of_kind(later, "record")]


def test_work_that_ends_when_the_timeline_is_gone(two):
    with two.backend.hold(two.a):
        with timeline.record() as t:
            two.block.fill_(1, stream=two.a)
            two.a.submit(int)
        del t
        with timeline.record() as t:
            pass
        assert t.rows == []
    two.backend.synchronize()


def test_nested(two):
    """Each recording has the rows of its own time.  If the record of a wait is
    not among them, the wait's row has no source."""
    event = two.backend.event()
    with timeline.record() as outer:
        event.record(two.a)
        with timeline.record() as inner:
            two.b.wait_event(event)
            two.block.fill_(1, stream=two.b)
        two.b.wait_event(event)
    assert [r[KIND] for r in inner.rows] == ["wait", "fill"]
    assert inner.rows[0][SOURCE] is None
    kinds = ["record", "wait", "fill", "wait"]
    assert [r[KIND] for r in outer.rows] == kinds
    assert [r[SOURCE] for r in outer.rows] == [None, 0, None, 0]


def test_off(two):
    """Nothing is kept while nothing records, and spans do nothing."""
    with timeline.record() as t:
        pass
    with timeline.span("none", two.a):
        two.block.fill_(1, stream=two.a)
    two.a.synchronize()
    assert t.rows == []
    assert "0 operations" in str(t)
    assert t.critical_path().steps[0].row is None


def test_reading_while_it_records(two):
    with timeline.record() as t:
        for count in range(1, 4):
            two.block.fill_(1, stream=two.a)
            assert len(of_kind(t, "fill")) == count
            assert str(t) and repr(t)


def test_reading_on_several_threads(two):
    with timeline.record() as t:
        for _ in range(300):
            with timeline.span("alone"):
                pass

    def read(_):
        for _ in range(20):
            assert len(t.rows) == 300

    together(read, 3)


@pytest.mark.parametrize("by_events", [False, True])
def test_reading_while_threads_record(two, monkeypatch, by_events):
    monkeypatch.setattr(timeline, "_by_events", by_events)
    over = threading.Event()

    def work(number):
        if number > 0:
            while not over.is_set():
                assert t.duration >= 0
                assert t.rows is not None
            return
        try:
            for _ in range(100):
                with timeline.span("on a stream", two.a):
                    two.b.wait_stream(two.a)
        finally:
            over.set()

    with timeline.record() as t:
        together(work, 3)
    assert len(of_kind(t, "span")) == 100


def test_threads(two):
    """The rows have each thread's name, even after the thread has ended."""
    # Garbage with a Buffer could be collected in a thread that begins, before
    # threading knows the thread's name.
    gc.collect()
    with timeline.record() as t:
        threads = [
            threading.Thread(
                target=two.block.fill_, args=(1, two.a), name=f"filler {i}"
            )
            for i in range(3)
        ]
        for thread in threads:
            thread.start()
            thread.join(LONG)
    names = [row[THREAD] for row in of_kind(t, "fill")]
    assert names == [f"filler {i}" for i in range(3)]


@pytest.mark.unscheduled
def test_a_thread_without_rows_that_records(two):
    """It counts as busy all the time, like one with rows."""
    with timeline.record() as t:
        thread = threading.Thread(target=two.block.fill_, args=(1, two.a))
        thread.start()
        thread.join(LONG)
    assert [row[THREAD] for row in of_kind(t, "fill")] == [thread.name]
    assert busy_host(t) == t.duration
    with timeline.record() as t:
        pass
    assert t.overlap() == {("host",): t.duration}


def test_threads_with_the_same_name(two):
    """Each of them is a thread of its own, also the one that records."""
    gc.collect()
    inner = []

    def work():
        two.block.fill_(1, stream=two.a)
        with timeline.record() as t:
            two.block.fill_(2, stream=two.a)
        inner.append(t)

    with timeline.record() as t:
        threads = [
            threading.Thread(target=work, name=name)
            for name in ("load", "load", "load (2)", "load")
        ]
        for thread in threads:
            thread.start()
            thread.join(LONG)
    names = ["load", "load (2)", "load (2) (2)", "load (3)"]
    assert [row[THREAD] for row in of_kind(t, "fill")] == [
        name for name in names for _ in range(2)
    ]
    assert [t._thread for t in inner] == names
    for name in names:
        assert name in t.chart(100)


@pytest.mark.unscheduled
def test_overlap_of_threads_with_the_same_name(two):
    """While both wait, the recording thread is busy."""

    def work(stream):
        stream.submit(time.sleep, 0.03).result(LONG)

    with timeline.record() as t:
        threads = [
            threading.Thread(target=work, args=(stream,), name="load")
            for stream in (two.a, two.b)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
    assert busy_host(t) == t.duration


def test_a_wait_for_nothing_is_in_no_path():
    """An example is a wait of another library for work that is done
    already."""
    more = (0, None, None, None, None, None)
    wait = ("synchronize", "cuStreamSynchronize", None, None, "main")
    rows = [
        ("kernel", "k", "cuda:0", "s", "main", 10, 20, 50, *more),
        (*wait, 15, 15, 55, *more),
        (*wait, 60, 60, 61, *more),
        (*wait, 70, 70, 71, *more),
    ]
    path = _analysis.Program(rows, "main").path(100)[::-1]
    assert [(s.row, s.begin, s.end, s.wait) for s in path] == [
        (None, 0, 10, None),
        (0, 20, 50, None),
        (None, 55, 100, 1),
    ]


def steps_with_a_wait(begin, end):
    """Return the path of a program that waits for a kernel, whose end at 50 ns
    is known, from `begin` to `end`."""
    more = (0, None, None, None)
    wait = ("synchronize", "x", None, None, "main", begin, begin, end)
    rows = [
        ("kernel", "k", "cuda:0", "s", "main", 10, 20, 50, *more, None, None),
        (*wait, *more, 0, None),
    ]
    path = _analysis.Program(rows, "main", clock_error=2).path(100)[::-1]
    return [(s.row, s.begin, s.end, s.wait) for s in path]


@pytest.mark.parametrize("end", [50, 55, 48], ids=["same", "later", "error"])
def test_a_wait_until_work_is_done_is_in_the_path(end):
    """The clocks of host and device may disagree on which came first."""
    assert steps_with_a_wait(15, end) == [
        (None, 0, 10, None),
        (0, 20, 50, None),
        (None, end, 100, 1),
    ]


@pytest.mark.parametrize(
    ("begin", "end"), [(50, 55), (60, 61), (15, 40)], ids=str
)
def test_a_wait_that_no_work_ended_is_in_no_path(begin, end):
    """The kernel was done before the wait, or a timeout ended the wait."""
    assert steps_with_a_wait(begin, end) == [(None, 0, 100, None)]


@pytest.mark.unscheduled
def test_the_path_of_a_wait_that_came_late(two):
    """The work was done long before, so the host itself took the time."""
    with timeline.record() as t:
        two.backend.sleep(two.a, 1)
        time.sleep(0.05)
        two.a.record_event().synchronize()
    assert [step.row for step in t.critical_path().steps] == [None]


@pytest.mark.unscheduled
def test_the_path_of_a_wait_that_timed_out(two):
    """The host went on before that work was done."""
    with timeline.record() as t:
        first = two.a.submit(time.sleep, 0.2)
        with pytest.raises(TimeoutError):
            two.a.synchronize(timeout=0.02)
        two.b.submit(first.result, LONG).result(LONG)
    last = t.rows.index(of_kind(t, "callable")[1])
    assert [s.row for s in t.critical_path().steps] == [None, last, None]


def test_a_path_while_time_stands_still():
    """If a wait for several objects is followed by more work, the work may end
    at the same moment as the wait."""
    more = (0, None, None, None, None, None)
    rows = [
        ("sleep", "sleep", "cpu:0", "a", "main", 0, 0, 50, *more),
        ("synchronize", "wait", None, None, "main", 0, 0, 50, *more),
        ("fill", "fill", "cpu:0", "b", "main", 50, 50, 50, *more),
        ("synchronize", "wait", None, None, "main", 50, 50, 50, *more),
    ]
    path = _analysis.Program(rows, "main").path(50)[::-1]
    assert [step.row for step in path] == [None, 0, None]


def test_many_threads_at_once(two):
    """Nothing is lost while other threads read."""
    count, each = 4, 300

    def run(number):
        stream, block = two.backend.stream(), two.backend.empty(64)
        for _ in range(each):
            block.fill_(1, stream=stream)
            two.a.wait_stream(stream)
        stream.synchronize()

    with timeline.record() as t:
        together(run, count, meanwhile=lambda: t.rows)
        two.a.synchronize()
    assert len(of_kind(t, "fill")) == count * each
    waits = of_kind(t, "wait")
    assert len(waits) == count * each
    assert None not in [row[SOURCE] for row in waits]


def test_two_devices(backend):
    if backend.count < 2:
        pytest.skip(f"{backend}: needs two devices")
    with timeline.record() as t:
        for index in range(2):
            stream = backend.stream(index)
            backend.sleep(stream, 0.1)
            stream.synchronize()
    devices = [row[DEVICE] for row in of_kind(t, "sleep")]
    assert devices == [str(backend.device(i)) for i in range(2)]


def test_streams_one_after_another(backend):
    """A stream that takes over a handle has a track of its own."""
    with timeline.record() as t:
        for _ in range(3):
            stream = backend.stream()
            stream.submit(int).result(LONG)
            stream.synchronize()
            del stream
    assert len(of_kind(t, "callable")) == 3


def test_virtual_time(no_gpu_is_used):
    """Under a schedule times are virtual, and the same in every run."""

    def run():
        with timeline.record() as t:
            a, b = (pystreams.Stream("cpu") for _ in range(2))
            cpu = pystreams._C.backends()[0][1]
            pystreams._C.sleep(cpu, 5 * MS, a)
            b.wait_stream(a)
            pystreams._C.sleep(cpu, 3 * MS, b)
            b.synchronize()
        found.append(
            [row[QUEUED : END + 1] for row in t.rows if row[KIND] != "memory"]
        )

    found = []
    for _ in range(3):
        schedules.replay(run, "late")
    assert found[0] == found[1] == found[2]
    assert found[0][0] == (0, 0, 5 * MS)
    assert found[0][3][1:] == (5 * MS, 8 * MS)


@pytest.mark.unscheduled
def test_a_schedule_in_a_recording(no_gpu_is_used):
    """The schedule's work has the times at which it ran, and sleeps end in the
    future."""

    def fn():
        stream = pystreams.Stream("cpu")
        pystreams.empty(64, device="cpu").fill_(1, stream=stream)
        pystreams._C.sleep(
            pystreams._C.backends()[0][1], 3600_000 * MS, stream
        )
        stream.synchronize()

    with timeline.record() as t:
        before = pystreams._C.timeline_now() - t._begin
        schedules.replay(fn, "late")
        schedules.replay(fn, "early")
    fills, sleeps = of_kind(t, "fill"), of_kind(t, "sleep")
    assert before <= fills[0][BEGIN] <= t.duration
    assert sleeps[0][END] == sleeps[0][BEGIN] + 3600_000 * MS
    assert fills[0][BEGIN] <= fills[1][BEGIN] <= t.duration
    assert t.chart().startswith("4 operations in 3.6e+03 s: ")
    t.overlap()
    str(t.critical_path())


NESTED = """
import pystreams
from pystreams import _C, schedules, timeline
cpu = _C.backends()[0][1]
def fn():
    stream = pystreams.Stream("cpu")
    _C.sleep(cpu, 1_000_000_000, stream)
    stream.synchronize()
fn()
with timeline.record() as t:
    fn()
    schedules.replay(fn, "late")
    fn()
print([row[6] // 1_000_000_000 for row in t.rows if row[0] == "sleep"])
print(t.duration // 1_000_000_000)
"""


def test_a_schedule_in_the_programs(run_python):
    """Virtual time goes on in the inner schedule and after it."""
    done = run_python(NESTED, env={"PYSTREAMS_SCHEDULE": "late"})
    assert (done.stdout, done.stderr) == ("[0, 1, 2]\n3\n", "")


def test_with_races(two):
    """The detector and the timeline work at the same time.  If the report of a
    race raises, the second access is not queued and has no row."""
    with timeline.record() as t, races.detect(lambda race: 1 / 0):
        two.block.fill_(1, stream=two.a)
        with pytest.raises(ZeroDivisionError):
            two.block.fill_(2, stream=two.b)
    assert len(of_kind(t, "fill")) == 1


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_chart(two, columns):
    with timeline.record() as t:
        two.backend.sleep(two.a, 2)
        two.backend.sleep(two.b, 4)
        two.backend.synchronize()
    lines = t.chart(columns).splitlines()
    assert max(map(len, lines)) <= columns
    text = "\n".join(lines)
    assert "2 operations" in lines[0]
    assert two.device in text and "MainThread" in text
    assert all(c in text for c in "·█") or all(c in text for c in ".#")


@pytest.mark.unscheduled  # a schedule has its own time
def test_a_chart_is_of_the_time_of_the_operations(backend):
    """The chart leaves out the time before the first operation and after the
    last, so a stream that is busy all that time has a full bar."""
    with timeline.record() as t:
        stream = backend.stream()
        time.sleep(0.1)
        backend.sleep(stream, 50)
        stream.synchronize()
        time.sleep(0.1)
    title, _, ruler, bar, *_ = t.chart(60, ".#").splitlines()
    begin, end = map(float, re.findall(r"([\d.]+) ms", ruler))
    assert 100 <= begin < end < t.duration / MS - 99
    (shown,) = re.findall(r"1 operation in ([\d.]+) ms", title)
    assert float(shown) == pytest.approx(end - begin, abs=1)
    assert "####" in bar and bar.count("#") > bar.count(".")


def test_chart_of_many_streams(backend):
    """The streams with the most operations are drawn."""
    streams = [backend.stream() for _ in range(60)]
    with timeline.record() as t:
        for stream in streams:
            stream.submit(int)
        for stream in streams:
            stream.synchronize()
    assert "and 20 more" in t.chart(80)


FORK = """
import os, sys
import pystreams
from pystreams import timeline

stream = pystreams.Stream("cpu")
with timeline.record() as t:
    stream.submit(int).result()
    pid = os.fork()
    if pid == 0:
        other = pystreams.Stream("cpu")
        with timeline.record() as mine:
            other.submit(int).result()
            other.synchronize()
        str(mine), mine.rows, t.rows
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    stream.submit(int).result()
assert [r[0] for r in t.rows].count("callable") == 2, t.rows
"""


def test_fork(thread_sanitized):
    if thread_sanitized:
        pytest.skip("ThreadSanitizer knows no threads of forked children")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        timeout=LONG,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_span_that_nobody_ends():
    """Without memory, the end of a with block may not run.  Then its span has
    no row."""
    with timeline.record() as t, timeline.span("kept"):
        _C.timeline_span_begin("lost", None)
    assert [row[NAME] for row in t.rows] == ["kept"]


def test_where_cupti_is_looked_for(monkeypatch):
    """CUPTI is looked for in a wheel first, and then in the toolkit that the
    environment names."""
    monkeypatch.setenv("CUDA_HOME", "/mine")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    places = list(_cupti._places())
    toolkits = [place for place in places if "/nvidia/" not in place]
    assert places[-len(toolkits) :] == toolkits
    assert toolkits[:2] == [
        "/mine/extras/CUPTI/lib64/libcupti.so.13",
        "/mine/lib64/libcupti.so.13",
    ]
    assert toolkits[-1] == "/usr/local/cuda/lib64/libcupti.so.12"


def test_cupti_is_not_loaded_without_a_gpu(monkeypatch):
    """It is not even looked for."""
    monkeypatch.setattr(_cupti._C, "device_count", lambda type: 0)
    monkeypatch.setattr(_cupti, "_places", None)
    with timeline.record():
        pass
