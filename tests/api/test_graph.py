"""Captures and graphs: how streams fork and join, what is refused during a
capture, and what a graph keeps alive.  The conformance suite has what the
contract says of them."""

import asyncio
import contextlib
import ctypes
import gc
import inspect
import os
import random
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from captures import (
    CAPTURED_EVENT,
    ISOLATION,
    MERGE,
    SIZE,
    UNJOINED,
    UNSUPPORTED,
    Capture,
    byte_of,
    code,
    filling,
    is_unlocked,
    replay,
)
from deadlines import LONG

import pystreams
from pystreams import _C, AcceleratorError
from pystreams.cuda._graphs import Graph


def graph_event(backend):
    """An event that each replay records or waits for."""
    return pystreams.Event(backend.name, enable_timing=False, external=True)


def test_replays_do_the_work_again(backend, stream, graph, buffer):
    other = backend.filled(2, SIZE, stream=stream)
    with Capture(graph, stream):
        other.copy_(buffer, non_blocking=True)
        buffer.fill_(9)
    assert byte_of(buffer, stream) == 1
    for byte in (3, 4):
        buffer.fill_(byte, stream)
        replay(graph, stream)
        assert byte_of(other, stream) == byte
        assert byte_of(buffer, stream) == 9


def test_the_owner_of_a_stream_may_use_the_graph(cuda):
    """The graph forgets a stream on which it was launched, once the stream is
    idle and it has been launched on two others."""
    first, second, third = (cuda.stream() for _ in range(3))
    graph = filling(cuda, cuda.empty(SIZE), 1)
    used = []

    class Owner:
        __cuda_stream__ = (0, first.native_handle)

        def __del__(self):
            used.append(is_unlocked(graph))

    with cuda.hold(first):
        replay(graph, pystreams.ExternalStream(Owner(), cuda.device()))
        replay(graph, second)
    first.synchronize()
    assert used == []
    replay(graph, third)
    assert used == [True]


def test_replays_on_the_default_stream(backend, stream, graph, buffer):
    with Capture(graph, stream):
        buffer.fill_(2)
    graph.replay()
    assert byte_of(buffer, backend.default_stream()) == 2


def test_streams_fork_and_join(backend, stream, graph):
    sides = [backend.stream() for _ in range(3)]
    buffers = [backend.filled(0, SIZE, stream=stream) for _ in sides]
    total = backend.filled(0, SIZE, stream=stream)
    with Capture(graph, stream):
        for byte, (side, buffer) in enumerate(
            zip(sides, buffers, strict=True)
        ):
            side.wait_stream(stream)
            buffer.fill_(byte + 1, side)
        sides[1].wait_stream(sides[2])
        stream.wait_stream(sides[0])
        stream.wait_stream(sides[1])
        total.copy_(buffers[2], non_blocking=True)
    assert not any(side.is_capturing() for side in sides)
    replay(graph, stream)
    assert [byte_of(b, stream) for b in buffers] == [1, 2, 3]
    assert byte_of(total, stream) == 3


def test_branches_do_not_wait_for_each_other(backend, stream, graph, buffer):
    """A long branch and a short one; the join waits for both."""
    side, short = backend.stream(), graph_event(backend)
    with Capture(graph, stream):
        side.wait_stream(stream)
        backend.sleep(stream, 300)
        buffer.fill_(2, side)
        short.record(side)
        stream.wait_stream(side)
    for _ in range(2):
        replay(graph, stream)
        short.synchronize()
        assert not stream.query()
        assert byte_of(buffer, stream) == 2


def test_a_branch_may_wait_for_what_another_lets_go_on(backend, graph):
    first, second, other, launching = (backend.stream() for _ in range(4))
    gate, reached = graph_event(backend), graph_event(backend)
    with Capture(graph, first):
        second.wait_stream(first)
        first.wait_event(gate)
        reached.record(second)
        first.wait_stream(second)
    with backend.hold(other):
        gate.record(other)
        replay(graph, launching)
        reached.synchronize(timeout=20)
        assert not launching.query()
    launching.synchronize()


def test_a_branch_that_fails(faulty, stream, graph, buffer):
    """If a branch fails, the stream that the graph was launched on has
    failed."""
    side = faulty.stream()
    with Capture(graph, stream):
        side.wait_stream(stream)
        _C.fail(side, 719)
        stream.wait_stream(side)
        buffer.fill_(2)
    failed, other = faulty.stream(), faulty.stream()
    replay(graph, failed)
    assert code(failed.synchronize) == 719
    assert not side.is_capturing()
    side.synchronize()
    assert byte_of(buffer, other) == 1
    replay(graph, other)
    assert code(other.synchronize) == 719
    graph.reset()
    buffer.close()


@pytest.mark.parametrize("seed", range(8))
def test_random_branches_keep_their_order(backend, graph, seed):
    """Each buffer is a copy of another for which its branch had waited.  If an
    edge is missing, a copy may have bytes from the replay before."""
    choose = random.Random(seed)
    size = choose.choice([4096, 1 << 18])
    streams = [backend.stream() for _ in range(5)]
    # For each stream, the buffers that are written before its next work, so
    # that this may read them.
    ready = {streams[0]: [0]}
    buffers = [backend.empty(size, stream=streams[0]) for _ in range(40)]
    source = {}
    with Capture(graph, streams[0]):
        for number in range(1, len(buffers)):
            stream = choose.choice(streams)
            if stream not in ready or choose.random() < 0.3:
                earlier = choose.choice(
                    [s for s in ready if s != stream] or [streams[0]]
                )
                stream.wait_stream(earlier)
                known = ready.get(stream, []) + ready[earlier]
                ready[stream] = list(dict.fromkeys(known))
            source[number] = choose.choice(ready[stream][-4:])
            buffers[number].copy_(
                buffers[source[number]], non_blocking=True, stream=stream
            )
            ready[stream].append(number)
        for stream in ready:
            streams[0].wait_stream(stream)
    for byte in (3, 4, 5):
        buffers[0].fill_(byte, streams[0])
        replay(graph, streams[0])
        for buffer in buffers:
            assert byte_of(buffer, streams[0]) == byte


@pytest.mark.parametrize("work", [True, False], ids=["last", "before"])
def test_work_after_the_join_is_unjoined(backend, stream, graph, buffer, work):
    side = backend.stream()
    with stream:
        graph.capture_begin()
        side.wait_stream(stream)
        buffer.fill_(2, side)
        stream.wait_stream(side)
        if work:
            buffer.fill_(3, side)
            assert code(graph.capture_end) == UNJOINED
        else:
            graph.capture_end()
    assert not side.is_capturing()
    side.synchronize()


def test_two_captures_do_not_mix(backend, stream, graph, buffer):
    other, second = backend.stream(), Graph(backend.type)
    with stream:
        graph.capture_begin()
    with other:
        second.capture_begin()
    event = stream.record_event()
    assert code(other.wait_event, event) == MERGE
    for captured, one in ((graph, stream), (second, other)):
        with one, contextlib.suppress(AcceleratorError):
            captured.capture_end()
        assert not one.is_capturing()
    buffer.fill_(2, other)
    assert byte_of(buffer, other) == 2


def test_uncaptured_work_cannot_be_waited_for(backend, stream, graph):
    other = backend.stream()
    with backend.hold(other), stream:
        graph.capture_begin()
        assert code(stream.wait_stream, other) == ISOLATION
        code(graph.capture_end)
    assert not stream.is_capturing()


def test_an_event_that_is_done_orders_nothing(backend, stream, graph, buffer):
    event = backend.stream().record_event()
    event.synchronize()
    with Capture(graph, stream):
        event.wait()
        buffer.fill_(2)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


async def awaiting(work):
    await work


WAITS = {
    "Stream, awaited": lambda stream, event: asyncio.run(awaiting(stream)),
    "Event, awaited": lambda stream, event: asyncio.run(awaiting(event)),
    "Stream, among others": lambda stream, event: pystreams.wait([stream]),
    "Event, among others": lambda stream, event: pystreams.wait([event]),
    "Stream.query": lambda stream, event: stream.query(),
    "Stream.synchronize": lambda stream, event: stream.synchronize(),
    "Stream.synchronize, timed": lambda stream, event: stream.synchronize(1),
    "Event.query": lambda stream, event: event.query(),
    "Event.synchronize": lambda stream, event: event.synchronize(),
    "Event.synchronize, timed": lambda stream, event: event.synchronize(1),
    "a device's synchronize": lambda stream, event: _C.synchronize(
        stream.device_type, stream.device_index
    ),
}


@pytest.mark.parametrize("wait", WAITS)
def test_what_waits_is_refused_and_the_capture_goes_on(
    backend, stream, graph, buffer, wait
):
    event = backend.event()
    event.record(stream)
    event.synchronize()
    with Capture(graph, stream):
        buffer.fill_(2)
        event.record()
        assert code(WAITS[wait], stream, event) == (
            CAPTURED_EVENT if wait.startswith("Event") else UNSUPPORTED
        )
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_a_captured_event_until_it_is_recorded_again(
    backend, stream, graph, buffer
):
    event = backend.event()
    with Capture(graph, stream):
        buffer.fill_(2)
        event.record()
    assert code(event.query) == CAPTURED_EVENT
    replay(graph, stream)
    assert code(event.synchronize) == CAPTURED_EVENT
    event.record(stream)
    event.synchronize()
    assert event.query()


def test_a_copy_that_waits_is_refused(backend, stream, graph, buffer):
    with Capture(graph, stream):
        buffer.fill_(2)
        assert code(buffer.copy_, bytes(SIZE)) == UNSUPPORTED
        if backend.name != "cpu":
            assert code(buffer.tobytes) == UNSUPPORTED
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def allocated(backend):
    gc.collect()
    return backend.in_use()


def test_the_graph_keeps_what_its_work_uses(backend, stream, graph, buffer):
    before = allocated(backend)
    source = backend.filled(5, SIZE, stream=stream)
    address = source.data_ptr()
    with Capture(graph, stream):
        buffer.copy_(source, non_blocking=True)
        del source
    gc.collect()
    others = [backend.filled(6, SIZE, stream=stream) for _ in range(8)]
    assert address not in [other.data_ptr() for other in others]
    del others
    replay(graph, stream)
    assert byte_of(buffer, stream) == 5
    assert allocated(backend) == before + SIZE
    graph.reset()
    assert allocated(backend) == before


def test_reset_while_a_replay_waits_for_its_turn(
    backend, stream, graph, buffer
):
    source = backend.filled(5, SIZE, stream=stream)
    with Capture(graph, stream):
        buffer.copy_(source, non_blocking=True)
    replay(graph, stream)
    stream.synchronize()
    with backend.hold(stream):
        replay(graph, stream)
        del source
        graph.reset()
        others = [backend.empty(SIZE) for _ in range(8)]
        for other in others:
            other.fill_(6)
        backend.wait_beside(backend.default_stream())
    assert byte_of(buffer, stream) == 5


def test_memory_that_is_asked_for_in_a_capture(backend, stream, graph, buffer):
    before = allocated(backend)
    with Capture(graph, stream):
        made = backend.empty(SIZE)
        made.fill_(5)
        buffer.copy_(made, non_blocking=True)
    assert allocated(backend) == before + SIZE
    for _ in range(2):
        replay(graph, stream)
        assert byte_of(buffer, stream) == byte_of(made, stream) == 5
        buffer.zero_(stream)
        made.zero_(stream)
    stream.synchronize()
    graph.reset()
    made.fill_(7, stream)
    assert byte_of(made, stream) == 7
    del made
    assert allocated(backend) == before


def test_memory_of_a_captured_stream_is_not_freed_in_the_graph(
    backend, stream, graph, buffer
):
    """Each replay would free it."""
    unused = backend.filled(5, SIZE, stream=stream)
    with Capture(graph, stream):
        buffer.fill_(2)
        del unused
    for _ in range(3):
        replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_a_stream_that_is_dropped_in_a_capture(backend, stream, graph, buffer):
    with Capture(graph, stream):
        side = backend.stream()
        handle = side.native_handle
        side.wait_stream(stream)
        buffer.fill_(2, side)
        stream.wait_stream(side)
        del side
        gc.collect()
        made = [backend.stream() for _ in range(4)]
        assert handle not in [one.native_handle for one in made]
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2
    # The stream can be used again.
    made += [backend.stream() for _ in range(40)]
    assert len({one.native_handle for one in made}) == len(made)


def test_a_graph_that_is_dropped_in_its_capture(backend, stream, buffer):
    graph = Graph(backend.type)
    with stream:
        graph.capture_begin()
        buffer.fill_(2)
        del graph
    assert not stream.is_capturing()
    assert byte_of(buffer, stream) == 1


def test_a_graph_that_is_dropped_on_another_thread(engine):
    """With a GPU's driver, dropping the graph also ends the capture and
    reports it."""
    stream, graphs = engine.stream(), [Graph(engine.type)]
    with stream:
        graphs[0].capture_begin()
    thread = threading.Thread(target=graphs.clear)
    thread.start()
    thread.join()
    assert not stream.is_capturing()
    stream.synchronize()


def test_collections_disturb_no_capture(backend, stream, graph, buffer):
    with Capture(graph, stream, "global"):
        for byte in range(50):
            # Dropped streams and events are queried, to see if they are done.
            cycle = [backend.stream(), backend.event()]
            cycle.append(cycle)
            memory = backend.empty(SIZE, stream=cycle[0])
            memory.fill_(byte, cycle[0])
            memory.record_stream(backend.stream())
            cycle[1].record(cycle[0])
            buffer.fill_(byte)
            del cycle, memory
            gc.collect()
    replay(graph, stream)
    assert byte_of(buffer, stream) == 49


@pytest.mark.parametrize("keep", [False, True], ids=["ready", "kept"])
def test_a_replay_cannot_be_captured(backend, stream, graph, buffer, keep):
    inner = Graph(backend.type, keep)
    with Capture(inner, backend.stream()):
        buffer.fill_(3)
    with Capture(graph, stream):
        buffer.fill_(2)
        with pytest.raises(RuntimeError, match=r"with add_child\(\)"):
            inner.replay()
    assert byte_of(buffer, stream) == 1
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2
    replay(inner, stream)
    assert byte_of(buffer, stream) == 3


def test_a_replay_cannot_follow_one_whose_stream_is_captured(
    backend, stream, graph, buffer
):
    """The refused replay would wait for the other stream, and so join the
    capture."""
    kept, other = Graph(backend.type, True), backend.stream()
    with Capture(kept, backend.stream()):
        buffer.fill_(3)
    replay(kept, stream)
    kept.instantiate()
    with Capture(graph, stream):
        buffer.fill_(2)
        with pytest.raises(RuntimeError, match="the latest one, whose stream"):
            replay(kept, other)
        assert not other.is_capturing()
    replay(kept, other)
    assert byte_of(buffer, other) == 3
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_a_replay_after_one_that_failed(faulty, stream, graph, buffer):
    failing = faulty.stream()
    with Capture(graph, stream):
        buffer.fill_(2)
    _C.fail(failing, 719)
    replay(graph, failing)
    assert code(failing.synchronize) == 719
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


@pytest.mark.unscheduled
@pytest.mark.parametrize("full", [0, 1], ids=["the earlier's", "its own"])
def test_a_replay_of_a_new_executable_waits_for_room(engine, buffer, full):
    """The replay sleeps until the full queue has room, instead of trying again
    and again."""
    kept = Graph(engine.type, True)
    with Capture(kept, engine.stream()):
        buffer.fill_(2)
    streams = [engine.stream() for _ in range(2)]
    with engine.hold(streams[0]) as first, engine.hold(streams[1]) as second:
        replay(kept, streams[0])
        kept.instantiate()
        # Each stream has its gate queued.  The first stream also has the
        # replay's fill and end queued.
        engine.fill(streams[full], queued=[3, 1][full])
        opener = threading.Timer(0.3, [first, second][full].open)
        opener.start()
        before = time.thread_time()
        replay(kept, streams[1])
        assert time.thread_time() - before < 0.1
        opener.join()
        assert not streams[1].query()
    assert byte_of(buffer, streams[1]) == 2


def test_a_replay_cannot_wait_for_room_behind_itself(engine, buffer):
    """A replay is made by host work of the stream whose queue is full.  If it
    waited for room, that would only come when the host work has ended."""
    kept, seen = Graph(engine.type, True), []
    with Capture(kept, engine.stream()):
        buffer.fill_(2)
    busy, other = engine.stream(), engine.stream()
    replay(kept, busy)
    kept.instantiate()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def work(_):
        engine.fill(busy, queued=1)
        seen.append(code(lambda: replay(kept, other)))

    address = ctypes.cast(work, ctypes.c_void_p).value
    _C.launch_host_function(busy, address)
    busy.synchronize()
    assert seen == [800]


def test_replays_from_several_threads(backend, buffer):
    graph = filling(backend, buffer, 2)

    def run():
        with backend.stream() as stream:
            for _ in range(50):
                graph.replay()
            stream.synchronize()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    backend.synchronize(0)
    assert set(buffer.tobytes()) == {2}


def test_a_graph_is_captured_again_while_another_thread_replays_it(
    backend, stream, graph, buffer
):
    refused = set()

    def replay_until(done):
        while not done.is_set():
            try:
                graph.replay()
            except RuntimeError as error:
                refused.add(str(error))

    done = threading.Event()
    thread = threading.Thread(target=replay_until, args=(done,))
    thread.start()
    for _ in range(100):
        with Capture(graph, stream):
            buffer.fill_(2)
        graph.reset()
    done.set()
    thread.join(LONG)
    backend.synchronize(0)
    assert all("without a preceding" in text for text in refused), refused
    with Capture(graph, stream):
        buffer.fill_(3)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 3


# ---- What people are shown ----


def edges_of(text):
    """Return the labels of a printed graph's nodes, and the pairs of labels
    that edges order, directly or by nodes between them."""
    labels = dict(re.findall(r'^  "(\S+)" \[.*label="(.*)"\];$', text, re.M))
    after = {name: set() for name in labels}
    for first, second in re.findall(r'^  "(\S+)" -> "(\S+)";$', text, re.M):
        after[first].add(second)

    def reached(name):
        return {n for one in after[name] for n in {one, *reached(one)}}

    order = {(a, b) for a in labels for b in reached(a)}
    return labels, {(labels[a], labels[b]) for a, b in order}


def test_a_printed_graph_has_each_operation_and_its_order(engine, tmp_path):
    stream, side = engine.stream(), engine.stream()
    first, second, third = (
        engine.filled(1, SIZE, stream=stream) for _ in range(3)
    )
    event = pystreams.Event(engine.name, enable_timing=False, external=True)
    graph = Graph(engine.type, True)
    with Capture(graph, stream):
        first.fill_(2)
        side.wait_stream(stream)
        second.fill_(3, side)
        third.fill_(4)
        stream.wait_stream(side)
        third.copy_(second, non_blocking=True)
        event.record()
        engine.sleep(stream, 1)
    path = tmp_path / "graph.dot"
    graph.debug_dump(path)
    text = path.read_text()
    assert text.startswith(f'digraph "graph {graph.raw_cuda_graph():#x}" {{')
    assert text.endswith("}\n")
    labels, order = edges_of(text)
    named = {}
    for what in ("0x02", "0x03", "0x04", "copy", "record event", "sleep"):
        (named[what],) = (one for one in labels.values() if what in one)
    assert f"{event.event_id:#x}" in named["record event"]
    assert f"{SIZE} bytes" in named["copy"]
    assert (named["0x02"], named["0x03"]) in order
    assert (named["0x02"], named["0x04"]) in order
    assert (named["0x03"], named["copy"]) in order
    assert (named["0x04"], named["copy"]) in order
    assert (named["copy"], named["record event"]) in order
    assert (named["record event"], named["sleep"]) in order
    # Branches are ordered by the waits among them alone.
    assert (named["0x03"], named["0x04"]) not in order
    assert (named["0x04"], named["0x03"]) not in order
    replay(graph, stream)
    assert byte_of(third, stream) == 3


def test_a_graph_that_cannot_be_written(engine, tmp_path):
    graph = Graph(engine.type, True)
    with pytest.raises(RuntimeError, match="needs a graph that was captured"):
        graph.debug_dump(tmp_path / "graph.dot")
    buffer = engine.filled(1, SIZE, stream=engine.stream())
    with Capture(graph, engine.stream()):
        buffer.fill_(2)
    nowhere = tmp_path / "none" / "graph.dot"
    with pytest.raises(FileNotFoundError) as caught:
        graph.debug_dump(nowhere)
    assert caught.value.filename == nowhere
    if os.path.exists("/dev/full"):
        with pytest.raises(OSError, match="No space left"):
            graph.debug_dump("/dev/full")
    replay(graph, engine.stream())


# ---- What a capture that fails says ----


def line_of(function, text):
    """Return "file:line" of the line in a function that has the text."""
    lines, first = inspect.getsourcelines(function)
    (offset,) = [n for n, line in enumerate(lines) if text in line]
    return f"{__file__}:{first + offset}"


def message(call):
    with pytest.raises(AcceleratorError) as caught:
        call()
    return str(caught.value)


def test_it_says_which_join_is_missing(engine, stream, graph, buffer):
    side = engine.stream()

    def work():
        side.wait_stream(stream)  # the join
        buffer.fill_(2, side)

    with stream:
        graph.capture_begin()
        work()
        text = message(graph.capture_end)
    handle = f"{side.native_handle:#x}"
    place = line_of(work, "# the" + " join")
    assert f"{handle} joined the capture at {place}" in text
    assert f"{stream.native_handle:#x}, on which it began" in text


def test_it_says_which_join_came_too_early(engine, stream, graph, buffer):
    side = engine.stream()

    def work():
        side.wait_event(stream.record_event())
        stream.wait_stream(side)  # too early
        buffer.fill_(2, side)

    with stream:
        graph.capture_begin()
        work()
        text = message(graph.capture_end)
    assert f"is at {line_of(work, '# too' + ' early')}: have another" in text


def test_it_says_which_call_failed(engine, stream, graph):
    other = engine.stream()
    event = other.record_event()

    def work():
        with contextlib.suppress(AcceleratorError):
            stream.wait_event(event)  # of uncaptured work

    with engine.hold(other):
        event.record(other)
        with stream:
            graph.capture_begin()
            work()
            text = message(graph.capture_end)
    assert f"{stream.native_handle:#x} for" in text
    assert f"at {line_of(work, '# of' + ' uncaptured')}, failed: " in text


def explanation(call):
    """What the error of the call says besides the status."""
    return message(call).split("\n", 2)[2]


def test_later_calls_say_it_too(engine, stream, graph, buffer):
    """Later calls on streams of the capture, and waits for these streams, say
    it, too."""
    other, outside = engine.stream(), engine.stream()
    side, child = engine.stream(), filling(engine, buffer, 2, keep=True)
    with Capturing(graph, stream):
        side.wait_stream(stream)
        with pytest.raises(AcceleratorError):
            stream.wait_stream(other)
        texts = {
            explanation(call)
            for call in (
                lambda: buffer.fill_(2),
                lambda: buffer.fill_(2, side),
                lambda: outside.wait_stream(stream),
                lambda: graph.add_child(child),
                graph.capture_end,
            )
        }
    (text,) = texts
    assert text.startswith("Stream.wait_stream on the stream ")
    assert f"{other.native_handle:#x}, at {__file__}:" in text
    assert "\n" not in text


@pytest.mark.parametrize("call", ["Stream.wait_event", "Event.wait"])
def test_a_wait_for_uncaptured_work_says_which_join_is_missing(
    engine, graph, call
):
    stream = pystreams.Stream(engine.device(), name="main")
    other = pystreams.Stream(engine.device(), name="other")
    with engine.hold(other):
        event = other.record_event()
        with pytest.raises(AcceleratorError), Capturing(graph, stream):
            wait = {
                "Stream.wait_event": lambda: stream.wait_event(event),
                "Event.wait": lambda: event.wait(stream),
            }[call]
            text = message(wait)
    main, late = (
        f"'{one.name}' ({one.device.type}:0 {one.native_handle:#x})"
        for one in (stream, other)
    )
    assert f"\n{call} on 'main' failed with " in text
    assert f"\nA capture is in progress, begun on the stream {main} at" in text
    assert text.endswith(
        f"\nThe stream {late} has not joined the capture: have it wait for "
        f"{main} first (wait_stream), and record an event, if this call waits "
        "for one, after that. Or make this call before the capture begins."
    )


def test_a_wait_for_an_event_from_before_the_join_says_so(
    engine, stream, graph
):
    side = engine.stream()

    def work():
        side.wait_stream(stream)  # the late join

    with engine.hold(side):
        event = side.record_event()
        with pytest.raises(AcceleratorError), Capturing(graph, stream):
            work()
            text = message(lambda: stream.wait_event(event))
    assert text.endswith(
        f"\nThe event was recorded on the stream {side.device.type}:0 "
        f"{side.native_handle:#x} before that joined the capture, at "
        f"{line_of(work, '# the late' + ' join')}: record it after that, or "
        "make this call before the capture begins."
    )


@pytest.mark.unscheduled
def test_a_wait_for_an_event_of_an_unknown_stream_says_so(
    engine, stream, graph
):
    """Another process may have recorded the event."""
    event = pystreams.Event(engine.device(), interprocess=True)
    other = engine.stream()
    with engine.hold(other):
        event.record(other)
        with pytest.raises(AcceleratorError), Capturing(graph, stream):
            text = message(lambda: stream.wait_event(event))
    assert "\nThe event was not recorded in the capture: " in text


@pytest.fixture
def two_captures():
    """The numbers of two captures that have begun on devices of type 9."""
    from pystreams.cuda import _captures

    for number in (1, 2):
        _captures.begun((9, number), ("toy:0", number, None))
    yield [(9, 1), (9, 2)]
    for number in (1, 2):
        _captures.forget((9, number), None)


def test_it_says_which_call_of_any_stream_may_have(two_captures):
    """A driver does not say which stream's capture became invalid."""
    from pystreams.cuda import _captures

    def work():
        _captures.refused(9, "Event.query", "not permitted", 900)  # first
        _captures.refused(
            9, "wait", "late", 905, ("toy:0", 1, None), ("toy:0", 3, None)
        )
        _captures.refused(8, "Stream.query", "elsewhere", 900)

    work()
    for capture in two_captures:
        text = _captures.ended(_captures.forget(capture), 901)
        first, second = text.strip().split("\n")
        place = line_of(work, "# " + "first")
        assert first == f"Event.query, at {place}, failed: not permitted."
        assert second.startswith(
            "wait on the stream toy:0 0x1 for work of toy:0 0x3, at "
        )


def test_it_says_on_which_stream_the_call_was(engine, graph, buffer):
    stream, default = engine.stream(blocking=True), engine.default_stream()

    def work():
        with contextlib.suppress(AcceleratorError):
            buffer.fill_(2, stream=default)  # refused

    with stream:
        graph.capture_begin()
        work()
        text = message(graph.capture_end)
    called = f"{stream.device.type}:0 0x0"
    place = line_of(work, "# " + "refused")
    call = f"\na fill on the stream {called}, at {place}, failed: "
    assert call in text


def test_threads_note_captures_at_once(monkeypatch):
    """No thread finds a dict changed while it reads the dict."""
    from pystreams.cuda import _captures

    class Changing(dict):
        """Begins another capture while it is read through."""

        def items(self):
            for item in super().items():
                _captures.begun((9, len(self) + 1), ("toy:0", 9, None))
                yield item

        def __iter__(self):
            return (key for key, _ in self.items())

    noted = Changing(
        {(9, 1): (Changing({("toy:0", 1, None): "here"}), {}, {})}
    )
    monkeypatch.setattr(_captures, "_captures", noted)
    text = _captures.refused(9, "Event.query", "not permitted", 900)
    assert "begun on the stream toy:0 0x1 at here" in text


def test_a_fault_of_the_explanation_is_reported(
    engine, stream, graph, monkeypatch
):
    from pystreams.cuda import _captures

    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    monkeypatch.setattr(_captures, "where", lambda capture: 1 // 0)
    with Capturing(graph, stream):
        text = message(stream.synchronize)
    assert "A capture is in progress" not in text
    assert [seen.exc_type for seen in reported] == [ZeroDivisionError]


def test_it_says_that_no_call_of_ours_failed(two_captures):
    from pystreams.cuda import _captures

    _captures.refused(8, "Stream.query", "elsewhere", 900)
    text = _captures.ended(_captures.forget(two_captures[0]), 901)
    assert "No call of this package failed" in text
    assert _captures.ended(None, 901) == ""


def begin(graph):
    graph.capture_begin()  # here


BEGUN = "begun on the stream {}:0 {:#x} at {}"


def begun(stream):
    """What is said of a capture that begin() has begun on the stream."""
    place = line_of(begin, "# " + "here")
    return BEGUN.format(stream.device.type, stream.native_handle, place)


def test_a_refused_call_says_which_captures_there_are(
    engine, stream, graph, buffer
):
    """The message also says what to do instead of the call."""
    with Capturing(graph, stream):
        text = message(stream.synchronize)
    assert text.endswith(
        f"\nA capture is in progress, {begun(stream)}."
        "\nMake such a call before a capture or after it."
    )


def test_a_call_on_a_stream_with_a_long_name_says_so_too(engine, graph):
    """The message has 80 bytes of the name at most, and no part of a
    character."""
    stream = pystreams.Stream(engine.device(), name="x" * 79 + "ö" * 9)
    with Capturing(graph, stream):
        text = message(stream.synchronize)
    assert f"Stream.synchronize on '{'x' * 79}' failed" in text
    assert "\nA capture is in progress, begun on the stream " in text


def test_of_another_device_type_nothing_is_said(two_captures):
    from pystreams.cuda import _captures

    assert _captures.refused(8, "Stream.query", "elsewhere", 900) == ""


def test_the_default_stream_during_a_capture_of_a_blocking_one(engine):
    stream = engine.stream(blocking=True)
    graph = Graph(engine.type)
    with pytest.raises(AcceleratorError), Capturing(graph, stream):
        text = message(engine.default_stream().record_event)
    assert f"\nA capture is in progress, {begun(stream)}." in text
    assert text.endswith("or capture a stream that is not blocking.")


def test_a_capture_in_a_capture_says_where_that_began(engine, stream, graph):
    other = Graph(engine.type)
    with Capturing(graph, stream):
        text = message(other.capture_begin)
        assert text.endswith(
            f"\nThe stream is in a capture already, {begun(stream)}: end "
            "that first, or begin this one on another stream."
        )
        with pytest.raises(RuntimeError) as caught:
            graph.capture_begin()
        assert str(caught.value).endswith(
            f"\nIts capture, {begun(stream)}, has not ended."
        )
        with (
            engine.stream(),
            pytest.raises(RuntimeError) as caught,
        ):
            graph.capture_end()
        assert str(caught.value).endswith(
            f"\nThe capture, {begun(stream)}, goes on: make that stream "
            "current; if it is closed, reset() drops the capture."
        )


def test_a_capture_whose_stream_was_closed_can_be_dropped(backend, buffer):
    graph, stream = Graph(backend.type), backend.stream()
    with stream:
        begin(graph)
        buffer.fill_(2)
    stream.close()
    with pytest.raises(RuntimeError, match=r"if it is closed, reset\(\)"):
        graph.capture_end()
    graph.reset()
    stream = backend.stream()
    with Capture(graph, stream):
        buffer.fill_(3)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 3


class Capturing:
    """A capture that begin() begins, and that is dropped."""

    def __init__(self, graph, stream):
        self.graph, self.stream = graph, stream

    def __enter__(self):
        self.stream.__enter__()
        begin(self.graph)

    def __exit__(self, *exc_info):
        try:
            self.graph.reset()
        finally:
            self.stream.__exit__(*exc_info)


def test_it_leaves_nothing_behind(engine, stream, graph, buffer):
    from pystreams.cuda import _captures

    for end in (graph.capture_end, graph.reset):
        with stream:
            graph.capture_begin()
            buffer.fill_(2)
            end()
        graph.reset()
    for cyclic in (False, True):
        other = Graph(engine.type)
        if cyclic:
            other.itself = other
        with stream:
            other.capture_begin()
        del other
        gc.collect()
        assert _captures._captures == {}


@pytest.mark.unscheduled
def test_threads_that_capture_in_turn_leave_nothing_behind(
    engine, graph, buffer, switch_often
):
    """A thread may begin a capture of the graph before the capture_end() of
    another thread has returned."""
    from pystreams.cuda import _captures

    def capture():
        stream = engine.stream()
        for _ in range(2000):
            with contextlib.suppress(RuntimeError), stream:
                graph.capture_begin(capture_error_mode="thread_local")
                buffer.fill_(2)
                graph.capture_end()
            with contextlib.suppress(RuntimeError):
                graph.reset()

    threads = [threading.Thread(target=capture) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _captures._captures == {}


END_AT_ONCE = """
import sys, threading, warnings
import pystreams
from pystreams.cuda import _captures
from pystreams.cuda._graphs import Graph

warnings.simplefilter("ignore")  # the graphs are empty
sys.setswitchinterval(1e-6)
stream, again = pystreams.Stream(sys.argv[1]), sys.argv[2] == "again"
turn = threading.Barrier(2)
graphs = []

def end():
    with stream:
        for _ in range(2000):
            turn.wait()
            while not stream.is_capturing():
                pass
            graphs[-1].capture_end()
            if again:
                graphs[-1].reset()
                graphs[-1].capture_begin(capture_error_mode="relaxed")
                graphs[-1].capture_end()
            graphs[-1].replay()
            turn.wait()

thread = threading.Thread(target=end, daemon=True)
thread.start()
with stream:
    for _ in range(2000):
        graphs.append(Graph(stream.device_type, keep_graph=True))
        turn.wait()
        graphs[-1].capture_begin(capture_error_mode="relaxed")
        turn.wait()
        graphs[-1].replay()
thread.join()
stream.synchronize()
assert _captures._captures == {}
"""


@pytest.mark.parametrize("then", ["replays", "again"])
def test_another_thread_ends_a_capture_as_soon_as_it_has_begun(
    backend, run_python, then
):
    """The thread may end the capture, and make another one, before
    capture_begin() has returned."""
    done = run_python(END_AT_ONCE, backend.name, then)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_default_stream_of_a_thread_is_captured(backend):
    own = pystreams.ExternalStream(2, backend.device())
    graph, block = Graph(backend.type), backend.filled(0)
    with Capture(graph, own), ThreadPoolExecutor(1) as pool:
        block.fill_(5, stream=own)
        assert own.is_capturing()
        assert not pool.submit(own.is_capturing).result(LONG)
        pool.submit(own.record_event).result(LONG).synchronize(LONG)
    assert not own.is_capturing()
    replay(graph, own)
    with own:
        assert block.tobytes() == bytes([5]) * block.nbytes
