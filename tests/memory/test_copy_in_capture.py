"""Which copies a capture takes, and what their replays read and write."""

import gc
import threading
import weakref
from array import array

import pytest
from captures import Capture, replay
from deadlines import LONG, wait_until

import pystreams
from pystreams import _C, _staging, trace
from pystreams.cuda._graphs import Graph

WAITED_FOR = "a copy that is waited for.*non_blocking=True"
SMALL, LARGE = 64, 4 << 20


class Data(bytearray):
    """A bytearray to which there can be weak references."""


@pytest.fixture(params=[SMALL, LARGE], ids=["small", "large"])
def nbytes(request):
    return request.param


@pytest.mark.parametrize(
    "copy",
    [
        lambda b, h: b.copy_(bytes(64)),
        lambda b, h: b.copy_to(bytearray(64)),
        lambda b, h: b.tobytes(),
        lambda b, h: b.copy_(h),
        lambda b, h: h.copy_(b),
    ],
    ids=["from", "to", "bytes", "from pinned", "to pinned"],
)
def test_copies_that_a_capture_refuses(pinning, graph, copy):
    """The capture goes on, and takes the other copies."""
    memory = bytearray(range(64))
    host = pystreams.pin(memory, device=pinning.device())
    block = pinning.filled(1)
    with pinning.stream() as stream:
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            with pytest.raises(pystreams.AcceleratorError, match=WAITED_FOR):
                copy(block, host)
            block.copy_(host, non_blocking=True)
        finally:
            graph.capture_end()
        graph.replay()
        stream.synchronize()
    assert block.tobytes() == memory


def test_a_capture_refuses_the_memory_of_another_backend(cuda):
    block, host = cuda.filled(1), pystreams.empty(64, device="cpu")
    graph = Graph(cuda.type)
    with Capture(graph, cuda.stream()):
        with pytest.raises(
            pystreams.AcceleratorError, match=r"another backend.s.*pin_memory"
        ):
            block.copy_(host, non_blocking=True)
        block.fill_(2)


def test_each_replay_reads_pageable_memory(backend, stream, graph, nbytes):
    block, data = backend.filled(1, nbytes), Data(nbytes)
    with Capture(graph, stream):
        block.copy_(data, non_blocking=True)
    assert block.tobytes() == bytes([1]) * nbytes
    for byte in (2, 3):
        data[:] = bytes([byte]) * nbytes
        replay(graph, stream)
        stream.synchronize()
        assert block.tobytes() == data


def test_each_replay_writes_pageable_memory(backend, stream, graph, nbytes):
    block, data = backend.filled(1, nbytes), bytearray(nbytes)
    with Capture(graph, stream):
        block.copy_to(data, non_blocking=True)
    assert not any(data)
    for byte in (2, 3):
        block.fill_(byte, stream)
        replay(graph, stream)
        stream.synchronize()
        assert data == bytes([byte]) * nbytes


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_pageable_memory_is_accessed_in_order(
    backend, stream, graph, nbytes, mode
):
    """The copy's replay runs after the captured work before it, and before the
    captured work behind it."""
    block, data, seen = backend.filled(1, nbytes), bytearray(nbytes), []
    copied = bytearray(nbytes)

    def write():
        data[:] = bytes([data[0] + 1]) * nbytes

    with Capture(graph, stream, mode):
        stream.submit(write)
        block.copy_(data, non_blocking=True)
        block.copy_to(copied, non_blocking=True)
        stream.submit(lambda: seen.append(bytes(copied)))
    for _ in range(3):
        replay(graph, stream)
    stream.synchronize()
    assert seen == [bytes([byte]) * nbytes for byte in (1, 2, 3)]


@pytest.mark.unscheduled
def test_a_replay_behind_work_that_is_not_done(backend, stream, graph, nbytes):
    """The replay does not wait for that work, and returns at once."""
    block, copied = backend.filled(1, nbytes), bytearray(nbytes)
    data = bytearray(nbytes)
    with Capture(graph, stream):
        block.copy_(data, non_blocking=True)
        block.copy_to(copied, non_blocking=True)
    replay(graph, stream)
    stream.synchronize()
    go = threading.Event()
    # If a replay holds up this thread, the test fails instead of hanging.
    timer = threading.Timer(LONG / 4, go.set)
    timer.start()
    held = stream.submit(go.wait, LONG)
    thread = threading.Thread(target=replay, args=(graph, stream))
    thread.start()
    other = backend.stream()
    other.record_event().synchronize()
    thread.join(LONG)
    timer.cancel()
    assert not go.is_set()
    data[:] = bytes([2]) * nbytes
    go.set()
    assert held.result(LONG)
    stream.synchronize()
    assert copied == block.tobytes() == data


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytes([7]) * SMALL,
        lambda: memoryview(bytearray([7]) * SMALL),
        lambda: array("i", [0x07070707] * (SMALL // 4)),
    ],
    ids=["bytes", "memoryview", "array"],
)
def test_pageable_memory_of_any_object(backend, stream, graph, make):
    block = backend.filled(1)
    with Capture(graph, stream):
        block.copy_(make(), non_blocking=True)
    gc.collect()
    replay(graph, stream)
    stream.synchronize()
    assert block.tobytes() == bytes([7]) * SMALL


def test_a_graph_keeps_the_object_of_a_copy(backend, stream, graph):
    """The graph keeps the object until it is reset and its replays are done.
    The object cannot be resized meanwhile."""
    block, data = backend.filled(1), Data([7] * SMALL)
    kept = weakref.ref(data)
    with Capture(graph, stream):
        block.copy_(data, non_blocking=True)
    with pytest.raises(BufferError):
        data.append(1)
    del data
    gc.collect()
    replay(graph, stream)
    graph.reset()
    stream.synchronize()
    assert block.tobytes() == bytes([7]) * SMALL

    def is_gone():
        backend.filled(1)  # Frees memory that is not in use any more.
        gc.collect()
        return kept() is None

    wait_until(is_gone)


def nodes_of(graph):
    nodes = graph.get_graph_data()["nodes"]
    return [(node["node_type"], node["nbytes"]) for node in nodes]


def test_the_nodes_of_copies(engine, stream):
    """The CPU copies pageable memory directly.  Other devices copy pinned
    memory, and a callable before or after that copies between the pinned
    memory and the object."""
    block, data = engine.filled(1), bytearray(SMALL)
    graph = Graph(engine.type, True)
    with Capture(graph, stream):
        block.copy_(data, non_blocking=True)
        block.copy_to(data, non_blocking=True)
    copies = [("memcpy", SMALL)] * 2
    if engine.name != "cpu":
        copies = [("host", 0), *copies, ("host", 0)]
    assert nodes_of(graph) == copies


def test_wrong_copies_leave_nothing_in_the_graph(engine, stream):
    block, data = engine.filled(1), bytearray(SMALL)
    graph = Graph(engine.type, True)
    with Capture(graph, stream):
        with pytest.raises(ValueError, match="one size"):
            block.copy_(data + b"1", non_blocking=True)
        with pytest.raises(ValueError, match="read-only"):
            block.copy_to(bytes(data), non_blocking=True)
        block[:0].copy_(b"", non_blocking=True)
        block.fill_(2)
    assert nodes_of(graph) == [("memset", SMALL)]


def test_what_pinned_memory_a_graph_keeps(cuda):
    """A graph keeps as much pinned memory as it copies pageable memory, until
    it is reset."""

    def pinned():
        cuda.settle()
        return _C.host_memory_stats(cuda.type)["allocated_bytes.current"]

    block, data = cuda.filled(1, LARGE), bytearray(LARGE)
    graph, stream = Graph(cuda.type), cuda.stream()
    before = pinned()
    with Capture(graph, stream):
        block.copy_(data, non_blocking=True)
        block.copy_to(data, non_blocking=True)
    assert pinned() == before + 2 * LARGE
    replay(graph, stream)
    graph.reset()
    wait_until(lambda: pinned() == before)


def test_no_other_graph_takes_them_over(cuda):
    """The copies are callables of the graph.  The program has submitted none,
    so the error says that they are copies of pageable memory."""
    block, data = cuda.filled(1), bytearray(SMALL)
    graph, other = Graph(cuda.type, True), Graph(cuda.type, True)
    for each in (graph, other):
        with Capture(each, cuda.stream()):
            block.copy_(data, non_blocking=True)
    with pytest.raises(RuntimeError, match="pageable"):
        graph.update(other)
    outer = Graph(cuda.type)
    with Capture(outer, cuda.stream()):
        block.fill_(2)
        with pytest.raises(RuntimeError, match="pageable"):
            outer.add_child(graph)


@pytest.mark.parametrize("copy", [_staging.copy_from, _staging.copy_to])
def test_where_callables_cannot_be_captured(cuda, monkeypatch, copy):
    """The capture goes on, so its replays may write the staging memory of the
    failed copy.  So this memory is never used again."""
    kept = []
    monkeypatch.setattr(_staging, "_written_for_ever", kept)

    class Stream(pystreams.ExternalStream):
        def submit(self, *args):
            raise NotImplementedError

    block, pageable = cuda.filled(1), pystreams.empty(64, device="cpu")
    graph, stream = Graph(cuda.type), cuda.stream()
    with Capture(graph, stream):
        with pytest.raises(NotImplementedError, match=r"pystreams\.pin\(\)"):
            copy(pageable, block, Stream(stream.native_handle, cuda.device()))
        assert len(kept) == (copy is _staging.copy_to)
        block.fill_(2)


@pytest.mark.unscheduled
def test_a_capture_that_begins_during_the_wait(cuda):
    """The wait fails, but the copy is still pending, so its memory is not used
    again."""
    stream, graph = cuda.stream(), Graph(cuda.type, True)
    block = cuda.filled(7, 64)
    host = pystreams.empty(64, device=cuda.device(), pin_memory=True)
    address = host.data_ptr()
    cuda.synchronize()

    def begin(record):
        if not stream.is_capturing():
            with stream:
                graph.capture_begin(capture_error_mode="relaxed")

    gate = cuda.gate(stream)
    with (
        trace.subscribe(begin, "stream_synchronization"),
        pytest.raises(pystreams.AcceleratorError, match="captur"),
    ):
        host.copy_(block, stream=stream)
    host.close()
    others = [
        pystreams.empty(64, device=cuda.device(), pin_memory=True)
        for _ in range(8)
    ]
    assert address not in [other.data_ptr() for other in others]
    with stream:
        block.fill_(1)
        graph.capture_end()
    graph.reset()
    others += [
        pystreams.empty(64, device=cuda.device(), pin_memory=True)
        for _ in range(8)
    ]
    assert address not in [other.data_ptr() for other in others]
    gate.open()
    stream.synchronize()


def test_memory_of_a_copy_that_raises_what_a_callable_raised(cuda):
    """The copy is done, so nothing keeps the memory."""

    def fails():
        raise ZeroDivisionError

    stream, graph = cuda.stream(), Graph(cuda.type)
    with Capture(graph, stream):
        stream.submit(fails)
    before = cuda.settled_use()
    block, host = (
        cuda.filled(1, 1 << 20),
        pystreams.empty(1 << 20, device="cpu"),
    )
    cuda.synchronize()
    replay(graph, stream)
    with pytest.raises(ZeroDivisionError):
        block.copy_to(host, stream=stream)
    assert host.tobytes() == bytes([1]) * (1 << 20)
    del block
    assert cuda.settled_use() == before
