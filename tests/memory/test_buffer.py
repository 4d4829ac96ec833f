"""Buffer: blocks of memory, and the work that streams order on them."""

import array
import gc
import weakref
from itertools import pairwise

import pytest

import pystreams
from pystreams import Buffer, empty

SIZES = [1, 2, 255, 4096, 65_536, 65_537, 1_000_003]


def pattern(nbytes, seed=1):
    return bytes((i * 7 + seed) % 251 for i in range(1024)) * (
        nbytes // 1024 + 1
    )


def some(nbytes, seed=1):
    return pattern(nbytes, seed)[:nbytes]


@pytest.mark.parametrize("nbytes", SIZES)
def test_there_and_back(backend, nbytes):
    block = backend.empty(nbytes)
    data = some(nbytes)
    assert block.copy_(data) is block
    assert block.tobytes() == data
    assert type(block.tobytes()) is bytes


def test_attributes(backend):
    block = backend.empty(1000)
    assert type(block) is Buffer
    assert block.nbytes == 1000
    assert block.device == backend.device(0)
    assert block.is_pinned() is False
    assert type(block.data_ptr()) is int
    assert block.data_ptr() % 256 == 0
    assert block.data_ptr() != 0


@pytest.mark.parametrize("name", ["nbytes", "device"])
def test_read_only(backend, name):
    block = backend.empty(16)
    with pytest.raises(AttributeError):
        setattr(block, name, getattr(block, name))


def test_device_by_default(accelerator):
    assert empty(16).device == accelerator.device(0)
    with accelerator.stream(accelerator.count - 1) as stream:
        assert empty(16).device == stream.device


def test_device_of_its_stream(two_devices):
    stream = two_devices.stream(1)
    block = two_devices.empty(16, 1, stream=stream)
    assert block.device == stream.device
    assert two_devices.current_device() == 0


def test_stream_of_another_device(two_devices):
    with pytest.raises((RuntimeError, ValueError)):
        two_devices.empty(16, 0, stream=two_devices.stream(1))


def test_live_blocks_do_not_overlap(backend):
    blocks = [backend.empty(300) for _ in range(100)]
    starts = sorted(block.data_ptr() for block in blocks)
    gaps = [b - a for a, b in pairwise(starts)]
    assert min(gaps) >= 300


def test_pinned(pinning):
    block = pinning.empty(5000, pin_memory=True)
    assert block.is_pinned() is True
    data = some(5000)
    view = memoryview(block)
    assert view.nbytes == 5000
    assert not view.readonly
    assert view.format == "B"
    view[:] = data
    assert block.tobytes() == data
    device = pinning.empty(5000)
    device.copy_(block)
    assert device.tobytes() == data


@pytest.mark.unscheduled
def test_memoryview_of_cpu_memory():
    block = empty(100, device="cpu")
    block.fill_(3)
    with memoryview(block) as view:
        assert bytes(view) == b"\3" * 100
        view[0] = 9
    assert block.tobytes()[0] == 9


def test_no_memoryview_of_device_memory(cuda):
    block = cuda.empty(100)
    with pytest.raises(BufferError):
        memoryview(block)


def test_memoryview_keeps_the_block(pinning):
    block = pinning.empty(64, pin_memory=True)
    view = memoryview(block)
    view[:] = b"k" * 64
    reference = weakref.ref(block)
    del block
    gc.collect()
    assert reference() is not None
    others = [pinning.empty(64, pin_memory=True) for _ in range(20)]
    for other in others:
        memoryview(other)[:] = b"o" * 64
    assert bytes(view) == b"k" * 64
    view.release()
    gc.collect()
    assert reference() is None


def test_close_with_a_view_is_refused(pinning):
    block = pinning.empty(64, pin_memory=True)
    with memoryview(block) as view:
        view[:] = b"x" * 64
        with pytest.raises(BufferError):
            block.close()
        assert bytes(view) == b"x" * 64
    block.close()


@pytest.mark.parametrize("byte", [0, 1, 127, 128, 255])
def test_fill(backend, byte):
    block = backend.empty(1000)
    assert block.fill_(byte) is block
    assert block.tobytes() == bytes([byte]) * 1000


def test_zero(backend):
    block = backend.empty(1000)
    block.fill_(1)
    assert block.zero_() is block
    assert block.tobytes() == bytes(1000)


def test_fill_on_a_stream(backend):
    block, stream = backend.empty(1000), backend.stream()
    block.fill_(1)
    backend.synchronize()
    with backend.hold(stream):
        block.fill_(2, stream=stream)
        other = backend.stream()
        block.zero_(stream=other)
        other.synchronize()
        assert block.tobytes() == bytes(1000)
    stream.synchronize()
    assert block.tobytes() == b"\2" * 1000


def test_works_on_the_current_stream(backend):
    block, stream = backend.empty(1000), backend.stream()
    block.fill_(1)
    backend.synchronize()
    with backend.hold(stream), stream:
        block.fill_(2)
        assert not stream.query()
    stream.synchronize()
    assert block.tobytes() == b"\2" * 1000


def test_non_blocking_copy_does_not_wait(backend):
    source, target = (backend.host(5000) for _ in range(2))
    device, stream = backend.empty(5000), backend.stream()
    data = some(5000)
    memoryview(source)[:] = data
    memoryview(target)[:] = bytes(5000)
    with backend.hold(stream):
        device.copy_(source, non_blocking=True, stream=stream)
        target.copy_(device, non_blocking=True, stream=stream)
        assert not stream.query()
        assert bytes(memoryview(target)) == bytes(5000)
    stream.synchronize()
    assert bytes(memoryview(target)) == data


def test_copy_waits_by_default(backend):
    source, target = backend.empty(5000), backend.host(5000)
    stream = backend.stream()
    source.fill_(6)
    backend.synchronize()
    backend.sleep(stream, 1)
    target.copy_(source, stream=stream)
    assert stream.query()
    assert bytes(memoryview(target)) == b"\6" * 5000


def test_copy_from_host_memory_waits(backend):
    """The source can be changed after the call, even if the copy is
    non-blocking."""
    block, stream = backend.empty(100_000), backend.stream()
    source = bytearray(b"s" * 100_000)
    backend.sleep(stream, 1)
    block.copy_(source, non_blocking=True, stream=stream)
    source[:] = b"x" * 100_000
    stream.synchronize()
    assert block.tobytes() == b"s" * 100_000


@pytest.mark.parametrize(
    "source",
    [
        bytes(range(64)),
        bytearray(range(64)),
        memoryview(bytes(range(64))),
        memoryview(bytes(range(64))).cast("I"),
        array.array(
            "Q",
            [0x0706050403020100 + 0x0808080808080808 * i for i in range(8)],
        ),
    ],
    ids=lambda source: type(source).__name__,
)
def test_copy_from_any_contiguous_buffer(backend, source):
    block = backend.empty(64)
    block.copy_(source)
    assert block.tobytes() == bytes(range(64))


def test_copy_refuses(backend):
    block = backend.empty(64)
    block.fill_(1)
    for source, error in (
        (bytes(63), (ValueError, RuntimeError)),
        (bytes(65), (ValueError, RuntimeError)),
        (backend.empty(65), (ValueError, RuntimeError)),
        (memoryview(bytes(128))[::2], (ValueError, BufferError, TypeError)),
        (5, TypeError),
        ("x" * 64, TypeError),
        (None, TypeError),
    ):
        with pytest.raises(error):
            block.copy_(source)
    assert block.tobytes() == b"\1" * 64


def test_fill_refuses(backend):
    block = backend.empty(64)
    block.fill_(1)
    for byte, error in (
        (-1, (ValueError, OverflowError)),
        (256, (ValueError, OverflowError)),
        (2**70, (ValueError, OverflowError)),
        ("1", TypeError),
        (1.5, TypeError),
        (None, TypeError),
    ):
        with pytest.raises(error):
            block.fill_(byte)
    assert block.tobytes() == b"\1" * 64


def test_empty_refuses(backend):
    for nbytes, error in (
        (-1, (ValueError, OverflowError)),
        (2**70, (ValueError, OverflowError, MemoryError)),
        ("1", TypeError),
        (1.5, TypeError),
        (None, TypeError),
    ):
        with pytest.raises(error):
            backend.empty(nbytes)
    with pytest.raises(TypeError):
        empty(16, backend.device())


def test_more_than_there_is(backend):
    before = backend.currents()
    for pin_memory in (False, True):
        with pytest.raises(MemoryError):
            backend.empty(2**60, pin_memory=pin_memory)
    assert backend.currents() == before
    assert backend.empty(16).fill_(1).tobytes() == b"\1" * 16


def test_out_of_memory_is_both_kinds_of_error(backend):
    with pytest.raises(pystreams.OutOfMemoryError) as caught:
        backend.empty(2**60)
    assert isinstance(caught.value, pystreams.AcceleratorError)
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.error_code == 2


def test_nothing(backend):
    block = backend.empty(0)
    assert block.nbytes == 0
    assert block.tobytes() == b""
    block.copy_(b"")
    block.fill_(1)
    block.zero_()
    block.close()


def test_slice(backend):
    block = backend.empty(1000)
    block.fill_(1)
    part = block[100:300]
    assert type(part) is Buffer
    assert part.nbytes == 200
    assert part.device == block.device
    assert part.data_ptr() == block.data_ptr() + 100
    part.fill_(2)
    assert block.tobytes() == b"\1" * 100 + b"\2" * 200 + b"\1" * 700
    assert block[900:].nbytes == 100
    assert block[:-900].nbytes == 100
    assert block[5000:].nbytes == 0
    assert block[100:300][50:60].data_ptr() == block.data_ptr() + 150
    block[0:10].copy_(b"0123456789")
    assert block[2:4].tobytes() == b"23"


def test_slice_refuses(backend):
    block = backend.empty(100)
    for key in (slice(None, None, 2), slice(None, None, -1)):
        with pytest.raises((ValueError, IndexError)):
            block[key]
    for key in (0, "x", None, (1, 2)):
        with pytest.raises(TypeError):
            block[key]


def test_slice_keeps_the_block(backend):
    block = backend.empty(1000)
    block.fill_(4)
    part = block[10:20]
    del block
    gc.collect()
    other = backend.empty(1000)
    other.fill_(5)
    assert part.tobytes() == b"\4" * 10


def test_slice_of_pinned_memory(pinning):
    block = pinning.empty(100, pin_memory=True)
    memoryview(block)[:] = some(100)
    part = block[10:20]
    assert part.is_pinned()
    assert bytes(memoryview(part)) == some(100)[10:20]


def test_copy_within_a_block(backend):
    block = backend.empty(100)
    block.copy_(some(100))
    block[0:50].copy_(block[50:100])
    expected = some(100)[50:] + some(100)[50:]
    assert block.tobytes() == expected
    for target in (block, block[0:100], block[25:75]):
        with pytest.raises(ValueError, match="overlap"):
            target.copy_(block[50:] if target.nbytes == 50 else block[:])
        assert block.tobytes() == expected


def test_across_devices(two_devices):
    first, second = (two_devices.empty(100_000, i) for i in range(2))
    data = some(100_000)
    first.copy_(data)
    second.copy_(first)
    assert second.tobytes() == data
    assert two_devices.current_device() == 0
    second.fill_(1)
    first.copy_(second, non_blocking=True)
    assert first.tobytes() == b"\1" * 100_000


def test_across_devices_waits_for_the_source(two_devices):
    """The copy comes after the work on the source device's current stream."""
    source, target = (two_devices.empty(1000, i) for i in range(2))
    writer, reader = two_devices.stream(0), two_devices.stream(1)
    with writer, reader:
        with two_devices.hold(writer):
            source.fill_(3, stream=writer)
            target.copy_(source, non_blocking=True)
            assert not reader.query()
        reader.synchronize()
        writer.synchronize()
        assert target.tobytes() == b"\3" * 1000


def test_across_devices_waits_for_the_destination(two_devices):
    """The copy comes after the work on the destination device's current
    stream."""
    source, target = (two_devices.empty(1000, i) for i in range(2))
    source.fill_(3)
    two_devices.synchronize(0)
    writer, reader = two_devices.stream(0), two_devices.stream(1)
    with writer, reader:
        with two_devices.hold(reader):
            target.fill_(2, stream=reader)
            target.copy_(source, non_blocking=True)
            assert not writer.query()
        reader.synchronize()
        assert target.tobytes() == b"\3" * 1000


def test_between_types(cuda):
    host = empty(1000, device="cpu")
    device = cuda.empty(1000)
    host.fill_(8)
    device.copy_(host)
    assert device.tobytes() == b"\b" * 1000
    device.fill_(9)
    host.copy_(device)
    assert host.tobytes() == b"\t" * 1000


def test_closed(backend):
    block = backend.empty(64)
    assert block.close() is None
    block.close()
    other = backend.empty(64)
    for use in (
        block.data_ptr,
        block.tobytes,
        block.zero_,
        lambda: block.fill_(1),
        lambda: block.copy_(bytes(64)),
        lambda: other.copy_(block),
        lambda: block[1:2],
        lambda: block.record_stream(backend.stream()),
        lambda: memoryview(block),
    ):
        with pytest.raises((RuntimeError, ValueError, BufferError)):
            use()
    assert "Buffer" in repr(block)


def test_close_with_work_queued(backend):
    """Freed in stream order: what is queued before may still use it."""
    source, target = backend.empty(1000), backend.empty(1000)
    stream = backend.stream()
    with stream:
        source = backend.empty(1000)
        source.fill_(7)
        with backend.hold(stream):
            target.copy_(source, non_blocking=True)
            source.close()
            other = [backend.empty(1000) for _ in range(5)]
            for block in other:
                block.fill_(1, stream=stream)
        stream.synchronize()
    assert target.tobytes() == b"\7" * 1000


def test_record_stream(backend):
    """A block used on a second stream is not handed out before that is
    done."""
    block, side = backend.empty(4096), backend.stream()
    target = backend.host(4096)
    block.fill_(7)
    backend.synchronize()
    with backend.hold(side):
        target.copy_(block, non_blocking=True, stream=side)
        block.record_stream(side)
        del block
        gc.collect()
        for _ in range(10):
            backend.empty(4096).fill_(1)
        backend.wait_beside(backend.current_stream())
    side.synchronize()
    assert bytes(memoryview(target)) == b"\7" * 4096


def test_record_stream_needs_one(backend):
    with pytest.raises(TypeError, match="None"):
        backend.empty(16).record_stream(None)


def test_repr_and_weak_reference(backend):
    block = backend.empty(1000)
    assert repr(block).startswith("<pystreams.Buffer ")
    assert str(block.device) in repr(block)
    assert "1000" in repr(block)
    assert weakref.ref(block)() is block


def test_length(backend):
    assert len(backend.empty(1000)) == 1000


def test_needs_a_size():
    with pytest.raises(TypeError):
        Buffer()
