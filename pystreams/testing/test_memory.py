"""Memory."""

from typing import Any

import pytest

import pystreams
from pystreams import _C, Buffer
from pystreams.testing import contract
from pystreams.testing.busy import Busy
from pystreams.testing.device import Device
from pystreams.testing.limits import Background, never

ALLOCATE = (
    "nbytes (> 0) of device memory, aligned to 256 bytes, for use by work "
    "that is queued on the stream after the call."
)
COPY = (
    "Each side is device memory of any device of this backend, pinned host "
    "memory or pageable host memory. The caller keeps both sides alive until "
    "the copy is done."
)
PATTERN = bytes(range(256)) * 16


@contract("memory_allocate", ALLOCATE)
@pytest.mark.parametrize("nbytes", [1, 255, 4097, 1 << 20])
def test_allocate(device: Device, nbytes: int) -> None:
    stream = device.stream()
    buffers = [device.empty(nbytes, stream) for _ in range(4)]
    for value, buffer in enumerate(buffers):
        assert buffer.data_ptr() % 256 == 0
        buffer.fill_(value, stream)
    stream.synchronize()
    for value, buffer in enumerate(buffers):
        assert buffer.tobytes() == bytes([value]) * nbytes


@contract(
    "memory_free",
    "Free the memory once the work queued on the stream "
    "before this call is done.",
)
def test_freed_in_the_order_of_its_stream(device: Device, busy: Busy) -> None:
    stream, other = device.stream(), device.stream()
    copy = device.empty(len(PATTERN), stream)
    first = device.empty(len(PATTERN), stream)
    first.fill_(1, stream)
    stream.synchronize()
    gate = busy(stream)
    copy.copy_(first, non_blocking=True, stream=stream)
    first.close()
    second = device.empty(len(PATTERN), other)
    second.fill_(2, other)
    other.synchronize()
    gate.open()
    stream.synchronize()
    assert copy.tobytes() == b"\1" * len(PATTERN)


@contract("memory_free", "May block, but does not wait for work.")
def test_free_does_not_wait(device: Device, busy: Busy) -> None:
    stream = device.stream()
    buffer = device.empty(100, stream)
    gate = busy(stream)
    mark = device.mark(stream)
    Background(buffer.close).finish()
    assert not mark.query()
    gate.open()


@contract(
    "pinned_allocate",
    "nbytes (> 0) of host memory that every device of the backend can access "
    "and copy asynchronously.",
)
def test_pinned(device: Device, busy: Busy) -> None:
    for index in range(device.count):
        stream = device.stream(index)
        source = device.pinned(len(PATTERN))
        target = device.pinned(len(PATTERN))
        source.memoryview()[:] = PATTERN
        buffer = device.empty(len(PATTERN), stream)
        gate = busy(stream)
        buffer.copy_(source, non_blocking=True, stream=stream)
        target.copy_(buffer, non_blocking=True, stream=stream)
        gate.open()
        stream.synchronize()
        assert bytes(target.memoryview()) == PATTERN


@contract("memory_copy", COPY)
def test_copy_from_and_to_the_host(device: Device) -> None:
    stream = device.stream()
    buffer = device.empty(len(PATTERN), stream)
    buffer.copy_(bytearray(PATTERN), stream=stream)
    stream.synchronize()
    assert buffer.tobytes() == PATTERN


@contract("memory_copy", COPY)
def test_copy_between_devices(two_devices: Device) -> None:
    device = two_devices
    here, there = device.stream(0), device.stream(1)
    source = device.empty(len(PATTERN), here)
    target = device.empty(len(PATTERN), there)
    source.copy_(bytearray(PATTERN), stream=here)
    here.synchronize()
    there.synchronize()
    target.copy_(source, stream=there)
    there.synchronize()
    assert target.tobytes() == PATTERN


@contract("memory_copy", "Queue a copy of nbytes (> 0).")
def test_copies_keep_their_order(device: Device, busy: Busy) -> None:
    stream = device.stream()
    first, second, last = (device.empty(100, stream) for _ in range(3))
    gate = busy(stream)
    first.fill_(7, stream)
    second.copy_(first, non_blocking=True, stream=stream)
    first.fill_(8, stream)
    last.copy_(second, non_blocking=True, stream=stream)
    mark = device.mark(stream)
    never(mark.query)
    gate.open()
    stream.synchronize()
    assert last.tobytes() == b"\7" * 100


@contract(
    "memory_fill",
    "Queue a fill of nbytes (> 0) of device or pinned memory with value.",
)
def test_fill(device: Device) -> None:
    stream = device.stream()
    for buffer in (device.empty(100, stream), device.pinned(100)):
        buffer.fill_(1, stream)
        buffer[10:20].fill_(255, stream)
        stream.synchronize()
        assert buffer.tobytes() == b"\1" * 10 + b"\xff" * 10 + b"\1" * 80


@contract(
    "memory_fill_items",
    "Queue a fill of nbytes (> 0) of device or pinned memory with a value of "
    "`size` bytes, 2 or 4, in the host's byte order.",
)
@pytest.mark.parametrize("value", [b"\1\2", b"\1\2\3\4"])
def test_fill_items(device: Device, busy: Busy, value: bytes) -> None:
    stream = device.stream()
    buffers = (device.empty(4100, stream), device.pinned(4100))
    gate = busy(stream)
    for buffer in buffers:
        buffer.fill_(9, stream)
        buffer[4:4096].fill_(value, stream)
    gate.open()
    stream.synchronize()
    for buffer in buffers:
        items = value * (4092 // len(value))
        assert buffer.tobytes() == b"\x09" * 4 + items + b"\x09" * 4


@contract(
    "memory_info",
    "Get the number of bytes that can still be allocated, and the size of "
    "the whole memory in bytes.",
)
def test_info(device: Device) -> None:
    for index in range(device.count):
        free, total = _C.mem_get_info(device.type, index)
        assert 0 <= free <= total
        assert total > 0


class Claim:
    """Bytes at an address, presented as memory of the device type."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (100,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


@contract(
    "memory_device",
    "Statuses: PS_ERROR_INVALID_VALUE if no device has memory there.",
)
def test_where_an_address_is(device: Device) -> None:
    if device.name != "cuda":
        pytest.skip("absent: a protocol for addresses of its memory")
    stream = device.stream()
    source, target = (device.empty(100, stream) for _ in range(2))
    source.fill_(5, stream)
    target.copy_(Claim(source.data_ptr()), stream=stream)
    stream.synchronize()
    assert target.tobytes() == b"\5" * 100
    host: Buffer = device.pinned(100)
    with pytest.raises(ValueError, match="but there is none"):
        target.copy_(Claim(host.data_ptr()), stream=stream)


@contract(
    "peer_accessible",
    "Set *accessible to 1 if `device` can access the memory of `peer` without "
    "staging, else to 0.",
)
def test_peers(two_devices: Device) -> None:
    for here, there in ((0, 1), (1, 0)):
        answer = _C.can_device_access_peer(two_devices.type, here, there)
        assert answer in (False, True)


@contract(
    "peer_access",
    "Copies work with and without access, but are staged without access.",
)
def test_peer_access(two_devices: Device) -> None:
    if not _C.can_device_access_peer(two_devices.type, 0, 1):
        pytest.skip("the devices do not reach each other's memory")
    stream = two_devices.stream(0)
    here = two_devices.empty(len(PATTERN), stream)
    there = two_devices.empty(len(PATTERN), two_devices.stream(1))
    for enabled in (True, False, True):
        _C.set_peer_access(two_devices.type, 0, 1, enabled)
        there.zero_()
        here.copy_(PATTERN)
        there.copy_(here)
        assert there.tobytes() == PATTERN
        here.zero_()
        here.copy_(there)
        assert here.tobytes() == PATTERN


@contract(
    "host_register",
    "Pin nbytes (> 0) of host memory that the program has allocated: until "
    "host_unregister, every device of the backend can access and copy it "
    "asynchronously.",
)
def test_register(device: Device, busy: Busy) -> None:
    memory = bytearray(PATTERN * 2)
    pinned = pystreams.pin(memory, device=device.name)
    source, target = pinned[: len(PATTERN)], pinned[len(PATTERN) :]
    target.memoryview()[:] = bytes(len(PATTERN))
    for index in range(device.count):
        stream = device.stream(index)
        buffer = device.empty(len(PATTERN), stream)
        gate = busy(stream)
        buffer.copy_(source, non_blocking=True, stream=stream)
        target.copy_(buffer, non_blocking=True, stream=stream)
        assert memory[len(PATTERN) :] == bytes(len(PATTERN))
        gate.open()
        stream.synchronize()
        assert memory[len(PATTERN) :] == PATTERN
        target.memoryview()[:] = bytes(len(PATTERN))


@contract(
    "host_register",
    "Statuses: PS_ERROR_ALREADY_PINNED if some of it is pinned, "
    "PS_ERROR_OUT_OF_MEMORY.",
)
def test_register_twice(device: Device) -> None:
    memory = bytearray(1 << 16)
    pinned = pystreams.pin(memory, device=device.name)
    for view in (memory, memoryview(memory)[4096:8192]):
        with pytest.raises(ValueError, match="not pinned yet"):
            pystreams.pin(view, device=device.name)
    other = device.pinned(1 << 16)
    with pytest.raises(ValueError, match="not pinned yet"):
        pystreams.pin(other, device=device.name)
    pinned.close()


@contract(
    "host_unregister",
    "Unpin memory that one call to host_register has pinned.",
)
def test_unregister(device: Device) -> None:
    memory = bytearray(1 << 16)
    for _ in range(3):
        pinned = pystreams.pin(memory, device=device.name)
        assert pinned.is_pinned()
        pinned.close()
        # This works only if no view holds the memory any more.
        memory += b"1"


def reserved(device: Device) -> tuple[int, int]:
    """The bytes that the first device's pool has now, and their peak."""
    stats = _C.memory_stats(device.type, 0)
    return (
        stats["reserved_bytes.all.current"],
        stats["reserved_bytes.all.peak"],
    )


@contract(
    "pool_usage",
    "Get the number of bytes of device memory that the backend has reserved "
    "for memory_allocate, and the peak of that number. Reserved memory is in "
    "use, or it was freed and is kept for later allocations.",
)
def test_pool_usage(device: Device) -> None:
    stream = device.stream()
    buffer = device.empty(1 << 20, stream)
    used = _C.memory_stats(device.type, 0)["allocated_bytes.all.current"]
    now, most = reserved(device)
    assert most >= now >= used >= 1 << 20
    buffer.close()
    stream.synchronize()
    assert reserved(device)[1] >= most


@contract(
    "pool_reset_peak", "Reset the peak to the bytes that are reserved now."
)
def test_pool_reset_peak(device: Device) -> None:
    stream = device.stream()
    device.empty(32 << 20, stream).close()
    stream.synchronize()
    _C.empty_cache(device.type)
    before, most = reserved(device)
    assert most - before >= 32 << 20
    _C.reset_peak_memory_stats(device.type, 0)
    assert reserved(device) == (before, before)


@contract(
    "pool_trim",
    "Return freed memory to the device, until at most nbytes are reserved or "
    "no freed memory is left.",
)
def test_pool_trim(device: Device) -> None:
    stream = device.stream()
    used = device.empty(100, stream)
    device.empty(32 << 20, stream).close()
    stream.synchronize()
    before = reserved(device)[0]
    _C.trim_pool(device.type, before)
    assert reserved(device)[0] == before
    _C.trim_pool(device.type, 0)
    assert 100 <= reserved(device)[0] <= before - (32 << 20)
    used.fill_(1, stream)
    stream.synchronize()
    assert used.tobytes() == b"\1" * 100


@contract(
    "pool_set_threshold",
    "Limit how much freed memory is kept: while more than nbytes are "
    "reserved, freed memory is returned to the device. This happens when "
    "memory is freed, or at a later call that waits for work to finish.",
)
def test_pool_set_threshold(device: Device) -> None:
    stream = device.stream()
    try:
        _C.set_pool_threshold(device.type, 0)
        before = reserved(device)[0]
        device.empty(32 << 20, stream).close()
        stream.synchronize()
        device.synchronize()
        assert reserved(device)[0] < before + (32 << 20)
    finally:
        _C.set_pool_threshold(device.type, None)
