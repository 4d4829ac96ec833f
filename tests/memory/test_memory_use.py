"""Memory in use: counted exactly, freed, and not reused early."""

import gc
import resource
import time
from pathlib import Path

import pytest
from memory_steps import Steps
from producers import Loan, Producer, place

import pystreams
from pystreams import _C


def stats(backend, index=0):
    return _C.memory_stats(backend.type, index)


@pytest.fixture
def counted(backend):
    backend.settle()
    yield backend
    backend.settle()


def test_adds_up(counted):
    before = stats(counted)
    blocks = [counted.empty(n) for n in (1, 1000, 100_000)]
    during = stats(counted)
    gained = {k: during[k] - before[k] for k in during}
    assert gained["allocated_bytes.all.current"] >= 101_001
    assert gained["allocated_bytes.all.allocated"] >= 101_001
    assert gained["allocation.all.current"] == 3
    assert gained["allocation.all.allocated"] == 3
    assert gained["allocation.all.freed"] == 0
    del blocks[1]
    counted.settle()
    assert stats(counted)["allocation.all.freed"] == (
        before["allocation.all.freed"] + 1
    )
    blocks.clear()
    counted.settle()
    after = stats(counted)
    for kind in ("allocated_bytes.all", "allocation.all"):
        assert after[f"{kind}.current"] == before[f"{kind}.current"]
        assert after[f"{kind}.current"] == (
            after[f"{kind}.allocated"] - after[f"{kind}.freed"]
        )
        assert after[f"{kind}.peak"] >= during[f"{kind}.current"]


def test_peak(counted):
    _C.reset_peak_memory_stats(counted.type, 0)
    base = stats(counted)["allocated_bytes.all.current"]
    assert stats(counted)["allocated_bytes.all.peak"] == base
    for _ in range(3):
        counted.empty(1 << 20).close()
        counted.settle()
    peak = stats(counted)["allocated_bytes.all.peak"]
    assert base + (1 << 20) <= peak < base + (3 << 20)
    _C.reset_peak_memory_stats(counted.type, 0)
    assert stats(counted)["allocated_bytes.all.peak"] == base


def test_each_device_counts_its_own(two_devices):
    two_devices.settle()
    before = [stats(two_devices, i) for i in range(2)]
    block = two_devices.empty(1000, 1)
    after = [stats(two_devices, i) for i in range(2)]
    assert after[0] == before[0]
    assert after[1] != before[1]
    block.close()


def test_pinned_is_not_device_memory(counted):
    before = stats(counted)["allocated_bytes.all.current"]
    block = counted.empty(1000, pin_memory=True)
    assert stats(counted)["allocated_bytes.all.current"] == before
    block.close()


def test_a_slice_is_not_counted_twice(counted):
    block = counted.empty(1000)
    before = stats(counted)
    parts = [block[i : i + 10] for i in range(10)]
    assert stats(counted) == before
    del block
    counted.settle()
    assert stats(counted) == before
    parts.clear()
    counted.settle()
    assert stats(counted)["allocation.all.current"] == (
        before["allocation.all.current"] - 1
    )


def test_refused_allocation_is_not_counted(counted):
    before = stats(counted)
    with pytest.raises(MemoryError):
        counted.empty(2**60)
    assert stats(counted) == before


def test_torchs_names(cuda):
    cuda.settle()
    before = pystreams.cuda.memory_allocated()
    pystreams.cuda.reset_peak_memory_stats()
    block = pystreams.empty(1 << 16, device="cuda")
    assert pystreams.cuda.memory_allocated() >= before + (1 << 16)
    assert pystreams.cuda.memory_allocated("cuda:0") == (
        pystreams.cuda.memory_allocated(0)
    )
    assert pystreams.cuda.max_memory_allocated() >= before + (1 << 16)
    assert pystreams.cuda.memory_stats(0)["allocation.all.current"] > 0
    block.close()
    cuda.settle()
    assert pystreams.cuda.memory_allocated() == before


@pytest.mark.parametrize("seed", range(4))
def test_adds_up_at_every_step(counted, seed):
    devices = range(counted.count)
    for index in devices:
        _C.reset_peak_memory_stats(counted.type, index)
    before = [stats(counted, index) for index in devices]
    peaks = [now["allocated_bytes.all.current"] for now in before]
    steps = Steps(counted, seed)
    for _ in range(200):
        steps.step()
        for index in devices:
            sizes = [b.nbytes for b in steps.owned if b.index == index]
            now = stats(counted, index)
            for kind, amount in (
                ("allocated_bytes.all", sum(sizes)),
                ("allocation.all", len(sizes)),
            ):
                current = now[f"{kind}.current"]
                freed = now[f"{kind}.freed"]
                assert current == before[index][f"{kind}.current"] + amount
                assert current == now[f"{kind}.allocated"] - freed
            current = now["allocated_bytes.all.current"]
            peaks[index] = max(peaks[index], current)
            assert now["allocated_bytes.all.peak"] == peaks[index]


def fill_pinned_pool(backend):
    """Put blocks into the pool, so that tests ask the driver for none: it may
    wait for all work before it pins memory."""
    blocks = [backend.empty(4096, pin_memory=True) for _ in range(20)]
    del blocks
    backend.settle()


def test_pinned_block_is_not_reused_before_its_copy_is_done(pinning):
    """Dropped while a copy from it waits; a new block must be another."""
    fill_pinned_pool(pinning)
    stream, target = pinning.stream(), pinning.empty(4096)
    source = pinning.empty(4096, pin_memory=True)
    memoryview(source)[:] = b"a" * 4096
    with pinning.hold(stream):
        target.copy_(source, non_blocking=True, stream=stream)
        address = source.data_ptr()
        del source
        gc.collect()
        fresh = [pinning.empty(4096, pin_memory=True) for _ in range(10)]
        for block in fresh:
            assert block.data_ptr() != address
            memoryview(block)[:] = b"b" * 4096
    stream.synchronize()
    assert target.tobytes() == b"a" * 4096


@pytest.mark.unscheduled
def test_pinned_block_of_a_second_of_copies(pinning):
    """A program that drops its source at once and fills the next one."""
    fill_pinned_pool(pinning)
    stream, target = pinning.stream(), pinning.empty(4096)
    source = pinning.empty(4096, pin_memory=True)
    memoryview(source)[:] = b"a" * 4096
    pinning.sleep(stream, 1000)
    target.copy_(source, non_blocking=True, stream=stream)
    del source
    fresh = [pinning.empty(4096, pin_memory=True) for _ in range(20)]
    for block in fresh:
        memoryview(block)[:] = b"b" * 4096
    assert not stream.query()
    stream.synchronize()
    assert target.tobytes() == b"a" * 4096


def test_pinned_target_is_not_reused_before_its_copy_is_done(pinning):
    fill_pinned_pool(pinning)
    stream, source = pinning.stream(), pinning.empty(4096)
    source.fill_(1)
    pinning.synchronize()
    target = pinning.empty(4096, pin_memory=True)
    with pinning.hold(stream):
        target.copy_(source, non_blocking=True, stream=stream)
        target.close()
        fresh = [pinning.empty(4096, pin_memory=True) for _ in range(10)]
        for block in fresh:
            memoryview(block)[:] = b"f" * 4096
    stream.synchronize()
    assert all(bytes(memoryview(b)) == b"f" * 4096 for b in fresh)


def test_pinned_blocks_are_reused_afterwards(pinning):
    fill_pinned_pool(pinning)
    addresses = set()
    for _ in range(100):
        block = pinning.empty(4096, pin_memory=True)
        pinning.empty(4096).copy_(block, non_blocking=True)
        addresses.add(block.data_ptr())
        del block
        pinning.synchronize()
    assert len(addresses) <= 20


def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def cycle_events(backend):
    event = backend.event()
    event.record(backend.default_stream())
    event.wait()


def cycle_streams(backend):
    with backend.stream() as stream:
        stream.record_event()
    stream.close()


def cycle_blocks(backend):
    block = backend.empty(100_000)
    block.fill_(1)
    block[10:20].zero_()
    backend.current_stream().synchronize()


def cycle_pinned(backend):
    pinned = backend.host(10_000)
    backend.empty(10_000).copy_(pinned, non_blocking=True)
    backend.current_stream().synchronize()


def cycle_copies_out(backend):
    block, target = backend.empty(10_000), bytearray(10_000)
    block.copy_to(target).copy_(target)
    block.close()


def cycle_dlpack_out(backend):
    block = backend.empty(10_000)
    block.__dlpack__(max_version=(1, 0))
    block.__dlpack__(copy=True)
    capsule = block.__dlpack__()
    block.close()
    pystreams.from_dlpack(capsule).fill_(1)
    backend.current_stream().synchronize()


def cycle_dlpack_in(backend):
    block = backend.empty(10_000)
    lender = backend.empty(10_000)
    loan = Loan(**place(lender))
    block.copy_(Producer(loan)).copy_to(loan.capsule())
    part = pystreams.from_dlpack(loan.capsule())[1:9]
    part.zero_()
    backend.current_stream().synchronize()
    del part
    assert loan.deleted == 3


def cycle_lies(backend):
    block = backend.empty(16)
    for lie in ({"ndim": -1}, {"strides": [2]}, {"device_type": 7}):
        capsule = Loan(**lie).capsule()
        with pytest.raises((ValueError, BufferError)):
            block.copy_(capsule)


class Interface:
    def __init__(self, block):
        self.__cuda_array_interface__ = block.__cuda_array_interface__


def cycle_array_interface(backend):
    if backend.name != "cuda":
        pytest.skip(f"{backend}: the interface is of CUDA memory")
    block, lender = backend.empty(10_000), backend.empty(10_000)
    block.copy_(Interface(lender)).copy_to(Interface(lender))
    wrong = Interface(lender[1:])
    with pytest.raises(ValueError, match="9999"):
        block.copy_(wrong)
    backend.current_stream().synchronize()


def cycle_wrappers(backend):
    stream = backend.current_stream()
    pystreams.ExternalStream(stream.native_handle, backend.device())
    repr(stream), hash(stream), str(stream.device)


def cycle_errors(backend):
    for use in (
        lambda: pystreams.Stream("cuda0"),
        lambda: backend.stream(1000),
        lambda: backend.event().elapsed_time(backend.event()),
        lambda: backend.empty(10).copy_(bytes(11)),
        lambda: pystreams.ExternalStream(-1, backend.device()),
    ):
        with pytest.raises((RuntimeError, ValueError, OverflowError)):
            use()


@pytest.mark.parametrize(
    "cycle",
    [
        cycle_events,
        cycle_streams,
        cycle_blocks,
        cycle_pinned,
        cycle_copies_out,
        cycle_dlpack_out,
        cycle_dlpack_in,
        cycle_lies,
        cycle_array_interface,
        cycle_wrappers,
        cycle_errors,
    ],
    ids=lambda cycle: cycle.__name__.removeprefix("cycle_"),
)
def test_nothing_leaks(counted, cycle, sanitized):
    """Once warm, many cycles more take no more memory."""
    if sanitized:
        pytest.skip("a sanitizer keeps freed memory")
    rounds = 100 if cycle in {cycle_errors, cycle_lies} else 1000

    def run():
        for _ in range(rounds):
            cycle(counted)
        counted.settle()

    run()
    run()
    before, in_use = resident(), stats(counted)
    for _ in range(3):
        run()
    assert resident() - before < 2 << 20
    assert (
        stats(counted)["allocated_bytes.all.current"]
        == (in_use["allocated_bytes.all.current"])
    )


def test_recycled_pinned_block_is_of_the_device_that_asked(two_devices):
    """Work on it goes to that device's current stream."""
    if two_devices.name == "cpu":
        pytest.skip("cpu: pins memory for no device of its own")
    before = two_devices.empty(4096, pin_memory=True)
    address = before.data_ptr()
    before.close()
    block = two_devices.empty(4096, 1, pin_memory=True)
    if block.data_ptr() != address:
        pytest.skip("another block was recycled")
    with two_devices.hold(two_devices.current_stream(1)):
        block.fill_(7)
        mark = two_devices.event()
        mark.record(two_devices.current_stream(1))
        two_devices.synchronize(0)
        assert bytes(block.memoryview()) != b"\7" * 4096
    assert block.tobytes() == b"\7" * 4096


def test_a_drop_costs_no_more_with_many_retired(backend):
    """Each looks at the oldest block of a stream, not at all of them."""
    first, second = backend.stream(), backend.stream()

    def drop(count):
        start = time.thread_time()
        for _ in range(count):
            block = backend.empty(64, stream=first)
            block.record_stream(second)
            del block
        return (time.thread_time() - start) / count

    with backend.hold(second):
        drop(100)
        early = min(drop(100) for _ in range(5))
        drop(3000)
        late = min(drop(100) for _ in range(5))
    second.synchronize()
    assert late < 5 * early
