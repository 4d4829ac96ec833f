"""pin(): host memory that exists, pinned for as long as anything uses it."""

import contextlib
import gc
import mmap
import threading
import weakref

import pytest
from deadlines import wait_until

import pystreams
from pystreams import _C


class Memory(bytearray):
    """Bytes with weak references."""


@pytest.fixture
def memory():
    return Memory(range(256))


@pytest.fixture
def device(pinning):
    """Memory of a device, whose allocation is done."""
    block = pinning.empty(256)
    pinning.synchronize()
    return block


def pin(backend, memory):
    return pystreams.pin(memory, device=backend.device())


def is_pinned(backend, memory):
    """Whether some of the memory is pinned: pinning it again then fails."""
    try:
        pin(backend, memory).close()
    except ValueError as error:
        assert "pin() expects memory that is not pinned yet" in str(error)
        return True
    return False


def test_a_pinned_buffer_of_the_same_bytes(pinning, memory):
    block = pin(pinning, memory)
    assert block.is_pinned()
    assert (block.nbytes, str(block.device)) == (256, "cpu")
    assert block.stream is None
    assert block.tobytes() == bytes(range(256))
    block.memoryview()[:2] = b"xy"
    assert memory[:3] == b"xy\2"
    with pytest.raises(BufferError):
        memory.append(1)


def test_copies_do_not_wait(pinning, memory):
    stream = pinning.stream()
    block = pin(pinning, memory)
    device = pinning.empty(128)
    pinning.synchronize()
    with pinning.hold(stream):
        device.copy_(block[:128], non_blocking=True, stream=stream)
        block[128:].copy_(device, non_blocking=True, stream=stream)
        assert memory[128] == 128
    stream.synchronize()
    assert memory[128:] == bytes(range(128))


def test_unpinned_when_the_buffer_is_gone(pinning, memory):
    block = pin(pinning, memory)
    part = block[10:20]
    del block
    gc.collect()
    assert is_pinned(pinning, memory)
    part.close()
    assert not is_pinned(pinning, memory)
    memory.append(1)


def test_the_exporter_lives_as_long(pinning):
    memory = Memory(64)
    alive = weakref.ref(memory)
    block = pin(pinning, memory)
    del memory
    gc.collect()
    assert alive() is not None
    block.close()
    gc.collect()
    assert alive() is None


def copy_and_drop(pinning, memory, device, stream):
    """Pin the memory, queue a copy of it, and drop the Buffer."""
    block = pin(pinning, memory)
    device.copy_(block, non_blocking=True, stream=stream)
    block.close()


def test_unpinned_after_the_work_that_uses_it(pinning, memory, device):
    stream = pinning.stream()
    with pinning.hold(stream):
        copy_and_drop(pinning, memory, device, stream)
        gc.collect()
        assert is_pinned(pinning, memory)
        with pytest.raises(BufferError):
            memory.append(1)
    stream.synchronize()
    pinning.settle()
    assert not is_pinned(pinning, memory)
    memory.append(1)
    assert device.tobytes() == bytes(range(256))


@pytest.mark.unscheduled
def test_an_allocation_unpins_nothing(pinning, memory, device):
    """CUDA unpins memory only after all work, for which the thread that
    allocates may have to do something."""
    stream, other = pinning.stream(), pinning.stream()
    with pinning.hold(stream):
        copy_and_drop(pinning, memory, device, stream)
    wait_until(stream.query)
    # Not by is_pinned(), because pin() unpins what is no longer used.
    with pinning.hold(other):
        pinning.empty(1).close()
        with pytest.raises(BufferError):
            memory.append(1)
    other.synchronize()
    memory.append(1)


@pytest.mark.unscheduled
def test_a_wait_for_a_known_event_unpins(pinning, memory, device):
    stream = pinning.stream()
    with pinning.hold(stream):
        copy_and_drop(pinning, memory, device, stream)
        event = stream.record_event()
    wait_until(event.query)
    event.synchronize()
    memory.append(1)


@pytest.mark.unscheduled
def test_unpinned_at_once_beside_many_busy_streams(pinning, memory):
    """Each busy stream has memory that was dropped."""
    streams = [pinning.stream() for _ in range(30)]
    block = pin(pinning, memory)
    with contextlib.ExitStack() as stack:
        if not pinning.on_engine:
            pytest.skip(f"{pinning}: the driver unpins only after all work")
        for stream in streams:
            stack.enter_context(pinning.hold(stream))
            part = pinning.empty(64)
            part.record_stream(stream)
            part.close()
        block.close()
        memory.append(1)


def test_unpinned_after_work_that_others_declared(pinning, memory):
    stream = pinning.stream()
    block = pin(pinning, memory)
    with pinning.hold(stream):
        block.record_stream(stream)
        del block
        assert is_pinned(pinning, memory)
    stream.synchronize()
    assert not is_pinned(pinning, memory)


def test_a_callable_unpins_nothing(pinning, memory):
    """The driver may wait for all work before it unpins, and so for the
    callable itself: deadlock."""
    stream = pinning.stream()
    blocks = [pin(pinning, memory)]
    seen = []

    def drop():
        blocks.clear()
        gc.collect()
        seen.append(is_pinned(pinning, memory))

    stream.submit(drop).result(20)
    assert seen == [True]
    stream.synchronize()
    pinning.empty(1).close()
    assert not is_pinned(pinning, memory)


def test_unpinned_during_a_capture(pinning, memory, graph):
    block = pin(pinning, memory)
    target = pinning.empty(256)
    pinning.synchronize()
    with pinning.stream():
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            target.zero_()
            block.close()
        finally:
            graph.capture_end()
    pinning.settle()
    assert not is_pinned(pinning, memory)


def test_a_graph_keeps_what_it_copies(pinning, memory, graph):
    block = pin(pinning, memory)
    target = pinning.empty(256)
    pinning.synchronize()
    with pinning.stream() as stream:
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            target.copy_(block, non_blocking=True)
        finally:
            graph.capture_end()
        block.close()
        assert is_pinned(pinning, memory)
        memory[:] = bytes(reversed(range(256)))
        graph.replay()
        stream.synchronize()
        assert target.tobytes() == bytes(reversed(range(256)))
        graph.reset()
    pinning.settle()
    assert not is_pinned(pinning, memory)


def test_pinned_once_at_a_time(pinning, memory):
    block = pin(pinning, memory)
    for view in (memory, memoryview(memory)[100:101], block):
        with pytest.raises(ValueError, match="not pinned yet, but some of"):
            pin(pinning, view)
    own = pinning.empty(64, pin_memory=True)
    with pytest.raises(ValueError, match="not pinned yet, but some of"):
        pin(pinning, own)
    block.close()
    assert not is_pinned(pinning, memory)


def test_threads_that_pin_the_same(pinning, memory):
    won, lost = [], []
    barrier = threading.Barrier(4)

    def run():
        barrier.wait()
        try:
            won.append(pin(pinning, memory))
        except ValueError:
            lost.append(1)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 3)


def test_other_exporters(pinning, numpy):
    with mmap.mmap(-1, 8192) as pages:
        block = pin(pinning, pages)
        block.memoryview()[:3] = b"abc"
        assert pages[:3] == b"abc"
        with pytest.raises(BufferError):
            pages.close()
        block.close()
    array = numpy.arange(6, dtype="int32").reshape(2, 3)
    block = pin(pinning, array)
    assert block.tobytes() == array.tobytes()
    pageable = pystreams.empty(64, device="cpu")
    assert pin(pinning, pageable).data_ptr() == pageable.data_ptr()


def test_no_bytes(pinning):
    memory = bytearray()
    blocks = [pin(pinning, memory) for _ in range(2)]
    assert [block.is_pinned() for block in blocks] == [True, True]


def test_the_cpu_is_the_accelerator(accelerator, memory):
    block = pystreams.pin(memory, device="cpu")
    assert is_pinned(accelerator, memory)
    block.close()
    assert pystreams.pin(memory).is_pinned()


@pytest.mark.parametrize(
    ("memory", "error", "match"),
    [
        (
            b"123",
            ValueError,
            "memory, but that of bytes is read-only",
        ),
        (memoryview(b"123"), ValueError, "but that of memoryview is read-onl"),
        (
            memoryview(bytearray(9))[::2],
            BufferError,
            r"pin\(\) expects C-contiguous memory, but that of memoryview",
        ),
        (5, TypeError, "expects a writable object with the buffer protocol"),
        (None, TypeError, "for memory, but got NoneType"),
    ],
    ids=["bytes", "view of bytes", "strided", "int", "None"],
)
def test_what_is_refused(pinning, memory, error, match):
    with pytest.raises(error, match=match):
        pin(pinning, memory)


def test_arrays_that_are_not_contiguous(pinning, numpy):
    array = numpy.zeros((4, 4), dtype="uint8")
    for part in (array[:, ::2], array[::-1], array[:, :2], array[:2].T):
        with pytest.raises(BufferError) as caught:
            pin(pinning, part)
        assert str(caught.value) == (
            "pin() expects C-contiguous memory, but that of numpy.ndarray is "
            "not; make a contiguous copy of it"
        )
    assert pin(pinning, array[1:3]).nbytes == 8


def test_nothing_is_counted(pinning, memory):
    before = _C.host_memory_stats(pinning.type)
    block = pin(pinning, memory)
    assert _C.host_memory_stats(pinning.type) == before
    block.close()
    assert _C.host_memory_stats(pinning.type) == before
