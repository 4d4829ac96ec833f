"""A Buffer for memory that exists, and the stream of a Buffer's memory."""

import ctypes
import gc
import weakref

import pytest

import pystreams
from pystreams import _C, Buffer


class Owner:
    """Bytes of a device, and whether they are still owned."""

    def __init__(self, backend, nbytes=64):
        self.block = backend.filled(3, nbytes)
        self.address = self.block.data_ptr()


@pytest.fixture
def owner(backend):
    return Owner(backend)


def borrow(backend, owner, nbytes=64):
    return Buffer.from_address(
        owner.address, nbytes, device=backend.device(), owner=owner
    )


def test_the_bytes_are_the_same(backend, owner):
    block = borrow(backend, owner)
    assert (block.nbytes, block.device) == (64, backend.device())
    assert block.data_ptr() == owner.address
    assert not block.readonly
    assert block.tobytes() == b"\3" * 64
    block[8:16].fill_(9)
    backend.synchronize()
    assert owner.block.tobytes() == b"\3" * 8 + b"\x09" * 8 + b"\3" * 48


def test_nothing_is_allocated_or_freed(backend, owner):
    backend.settle()
    before = _C.memory_stats(backend.type)
    block = borrow(backend, owner)
    block.close()
    gc.collect()
    assert _C.memory_stats(backend.type) == before
    assert owner.block.tobytes() == b"\3" * 64


def test_the_owner_lives_as_long_as_the_buffer(backend):
    owner = Owner(backend)
    alive = weakref.ref(owner)
    block = borrow(backend, owner)
    part = block[3:9]
    del owner, block
    gc.collect()
    assert alive() is not None
    assert part.tobytes() == b"\3" * 6
    part.close()
    gc.collect()
    assert alive() is None


def test_the_owner_lives_as_long_as_work_uses_the_memory(backend):
    owner, stream = Owner(backend), backend.stream()
    target = backend.empty(64)
    backend.synchronize()
    alive = weakref.ref(owner)
    with backend.hold(stream):
        block = borrow(backend, owner)
        target.copy_(block, non_blocking=True, stream=stream)
        del block, owner
        gc.collect()
        assert alive() is not None
    stream.synchronize()
    gc.collect()
    assert alive() is None
    assert target.tobytes() == b"\3" * 64


def test_memory_of_ctypes():
    array = (ctypes.c_char * 16)(*b"0123456789abcdef")
    block = Buffer.from_address(
        ctypes.addressof(array), 16, device="cpu", owner=array
    )
    assert block.tobytes() == b"0123456789abcdef"
    block.memoryview()[:2] = b"xy"
    assert array[:4] == b"xy23"


def test_no_bytes(backend):
    block = Buffer.from_address(0, 0, device=backend.device())
    assert (block.nbytes, block.data_ptr()) == (0, 0)
    assert block.tobytes() == b""


def test_without_a_device(accelerator):
    owner = Owner(accelerator)
    block = Buffer.from_address(owner.address, 64, owner=owner)
    assert block.device == accelerator.device()


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((0, 1), ValueError, "1 bytes at the address 0x0"),
        ((2**64 - 1, 2), ValueError, "which is impossible"),
        ((4096, -1), ValueError, "at least 0 for nbytes, but got -1"),
        (("4096", 1), TypeError, "expects an int for ptr"),
        ((4096, "1"), TypeError, "expects an int for nbytes"),
        ((4096,), TypeError, "from_address"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_refused(backend, arguments, error, match):
    with pytest.raises(error, match=match):
        Buffer.from_address(*arguments, device=backend.device())


def test_the_device_is_the_third_argument(backend, owner):
    block = Buffer.from_address(
        owner.address, 64, backend.device(), owner=owner
    )
    assert block.device == backend.device()
    with pytest.raises(TypeError, match="at most 3 positional"):
        Buffer.from_address(owner.address, 64, backend.device(), owner)


def test_memory_of_another_device(two_cuda):
    block = two_cuda.filled(1, index=1)
    with pytest.raises(ValueError, match="which is of cuda:1"):
        Buffer.from_address(block.data_ptr(), 64, device="cuda:0", owner=block)
    host = bytearray(8)
    address = ctypes.addressof(ctypes.c_char.from_buffer(host))
    with pytest.raises(ValueError, match="but there is none"):
        Buffer.from_address(address, 8, device="cuda:0", owner=host)


def test_stream_of_a_buffer(backend):
    stream = backend.stream()
    block = backend.empty(64, stream=stream)
    assert block.stream == stream
    assert block[3:9].stream == stream
    assert isinstance(block.stream, pystreams.Stream)
    assert backend.empty(64).stream == backend.current_stream()
    assert backend.empty(0, stream=stream).stream == stream


def test_the_stream_of_a_buffer_outlives_its_object(backend):
    stream = backend.stream()
    handle = stream.native_handle
    block = backend.empty(64, stream=stream)
    del stream
    gc.collect()
    assert block.stream.native_handle == handle
    block.stream.synchronize()


def test_buffers_without_a_stream(backend, owner):
    assert borrow(backend, owner).stream is None
    assert backend.empty(8, pin_memory=True).stream is None
    block = backend.empty(8)
    block.close()
    with pytest.raises(ValueError, match="closed"):
        _ = block.stream


def test_memory_of_a_capture_has_no_stream(backend, graph):
    with backend.stream():
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            block = pystreams.empty(64, device=backend.device())
            block.zero_()
        finally:
            graph.capture_end()
    assert block.stream is None
