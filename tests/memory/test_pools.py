"""What pools keep of freed memory, and how a program gets it back."""

import pytest

import pystreams
from pystreams import _C, accelerator, cuda

NBYTES = 32 << 20


@pytest.fixture
def pool(cuda):
    """A device whose pool keeps nothing, and forgets its peak."""
    cuda.settle()
    _C.empty_cache(cuda.type)
    _C.reset_peak_memory_stats(cuda.type)
    return cuda


def kept():
    return cuda.memory_reserved() - cuda.memory_allocated()


def test_freed_memory_is_kept_until_the_cache_is_emptied(pool):
    before = cuda.memory_reserved()
    block = pool.empty(NBYTES)
    pool.synchronize()
    held = cuda.memory_reserved()
    assert held >= before + NBYTES
    block.close()
    pool.synchronize()
    assert cuda.memory_reserved() == held
    stats = cuda.memory_stats()
    assert stats["reserved_bytes.all.current"] == held
    assert cuda.max_memory_reserved() >= held
    assert kept() >= NBYTES
    cuda.empty_cache()
    assert cuda.memory_reserved() < held
    assert cuda.max_memory_reserved() >= held


@pytest.mark.whole_gpu
def test_what_is_kept_is_free_all_the_same(pool):
    block = pool.empty(NBYTES)
    pool.synchronize()
    during, total = cuda.mem_get_info()
    block.close()
    pool.synchronize()
    kept_free = cuda.mem_get_info()[0]
    cuda.empty_cache()
    emptied = cuda.mem_get_info()
    assert kept_free - during >= NBYTES
    assert emptied[1] == total
    if pool.on_engine:
        assert emptied[0] == kept_free


def test_memory_in_use_stays(pool):
    stream = pool.stream()
    block = pool.filled(7, stream=stream)
    with pool.hold(stream):
        other = pool.empty(NBYTES)
        other.record_stream(stream)
        del other
        cuda.empty_cache()
        assert cuda.memory_reserved() >= 64
    stream.synchronize()
    assert block.tobytes() == b"\7" * 64
    cuda.empty_cache()


def test_each_device_has_a_pool(two_cuda):
    two_cuda.settle()
    cuda.empty_cache()
    before = [cuda.memory_reserved(i) for i in range(2)]
    two_cuda.empty(NBYTES, 1).close()
    two_cuda.settle()
    assert cuda.memory_reserved(0) == before[0]
    assert cuda.memory_reserved(1) >= before[1] + NBYTES
    cuda.trim_pool(device=1)
    assert cuda.memory_reserved(1) <= before[1]


def test_a_pool_is_trimmed_to_a_size(pool):
    for _ in range(2):
        blocks = [pool.empty(NBYTES) for _ in range(3)]
        del blocks
    pool.settle()
    assert kept() >= 3 * NBYTES
    cuda.trim_pool(cuda.memory_allocated() + 2 * NBYTES)
    assert kept() >= 2 * NBYTES
    cuda.trim_pool()
    assert kept() < NBYTES


def test_a_threshold_ends_the_keeping(pool):
    cuda.set_pool_threshold(0)
    try:
        before = cuda.memory_reserved()
        pool.empty(NBYTES).close()
        pool.synchronize()
        assert cuda.memory_reserved() < before + NBYTES
    finally:
        cuda.set_pool_threshold(None)
    pool.empty(NBYTES).close()
    pool.synchronize()
    assert kept() >= NBYTES
    cuda.empty_cache()


def test_the_largest_size_is_no_limit(pool):
    largest = 2**64 - 1
    pool.empty(NBYTES).close()
    pool.synchronize()
    cuda.set_pool_threshold(largest)
    cuda.trim_pool(largest)
    assert kept() >= NBYTES
    cuda.empty_cache()


@pytest.mark.parametrize("function", [cuda.trim_pool, cuda.set_pool_threshold])
def test_sizes_that_are_none(pool, function):
    name = function.__name__
    for nbytes in (-1, 2**64):
        with pytest.raises(ValueError) as caught:
            function(nbytes)
        assert str(caught.value) == (
            f"{name}() expects an int from 0 to {2**64 - 1} for nbytes, but "
            f"got {nbytes}"
        )
    with pytest.raises(TypeError, match=rf"{name}\(\) expects an int for"):
        function("1")
    with pytest.raises(pystreams.AcceleratorError, match=name):
        function(1, 999)
    assert pool.count > 0


def test_a_backend_without_pools():
    with pytest.raises(NotImplementedError, match="pools"):
        _C.trim_pool(0, 0)
    _C.empty_cache(0)
    block = pystreams.empty(100, device="cpu")
    stats = _C.memory_stats(0)
    assert (
        stats["reserved_bytes.all.current"]
        == stats["allocated_bytes.all.current"]
        >= block.nbytes
    )


def test_pinned_memory_is_kept_until_its_cache_is_emptied(cuda):
    cuda.settle()
    accelerator.empty_host_cache()
    _C.reset_peak_host_memory_stats(cuda.type)
    before = pystreams.cuda.host_memory_stats()
    block = cuda.empty(NBYTES, pin_memory=True)
    during = pystreams.cuda.host_memory_stats()
    address = block.data_ptr()
    block.close()
    after = pystreams.cuda.host_memory_stats()

    def grown(stats, name):
        return stats[name] - before[name]

    for kind in ("allocated_bytes", "reserved_bytes"):
        assert grown(during, f"{kind}.current") == NBYTES
        assert after[f"{kind}.peak"] == during[f"{kind}.current"]
        assert grown(after, f"{kind}.allocated") == NBYTES
    assert grown(during, "allocations.current") == 1
    assert grown(after, "allocations.freed") == 1
    assert grown(after, "allocated_bytes.freed") == NBYTES
    assert grown(after, "allocated_bytes.current") == 0
    assert grown(after, "reserved_bytes.current") == NBYTES

    again = cuda.empty(NBYTES, pin_memory=True)
    assert again.data_ptr() == address
    stats = pystreams.cuda.host_memory_stats()
    assert grown(stats, "reserved_bytes.allocated") == NBYTES
    del again
    accelerator.empty_host_cache()
    stats = pystreams.cuda.host_memory_stats()
    assert grown(stats, "reserved_bytes.current") == 0
    assert grown(stats, "reserved_bytes.freed") == NBYTES
    assert stats["reserved_bytes.peak"] >= NBYTES
    pystreams.cuda.reset_peak_host_memory_stats()
    stats = pystreams.cuda.host_memory_stats()
    assert stats["reserved_bytes.peak"] == stats["reserved_bytes.current"]


@pytest.mark.parametrize("module", [cuda, accelerator])
def test_totals_begin_anew(pool, module):
    if module is accelerator and _C.default_type() != pool.type:
        pytest.skip("another device is the accelerator")
    block = pool.empty(64)
    module.reset_accumulated_memory_stats()
    totals = ("allocated", "freed")
    stats = module.memory_stats()
    assert {stats[f"allocated_bytes.all.{kind}"] for kind in totals} == {0}
    assert {stats[f"allocation.all.{kind}"] for kind in totals} == {0}
    current = stats["allocated_bytes.all.current"]
    assert current >= 64
    del block
    stats = module.memory_stats()
    assert stats["allocated_bytes.all.freed"] == 64
    assert stats["allocation.all.freed"] == 1
    assert stats["allocated_bytes.all.current"] == current - 64


def test_totals_of_pinned_memory_begin_anew(cuda):
    block = cuda.empty(64, pin_memory=True)
    pystreams.cuda.reset_accumulated_host_memory_stats()
    stats = pystreams.cuda.host_memory_stats()
    for name in ("allocations", "allocated_bytes", "reserved_bytes"):
        assert stats[f"{name}.allocated"] == stats[f"{name}.freed"] == 0
        assert stats[f"{name}.current"] > 0
    del block
    assert pystreams.cuda.host_memory_stats()["allocations.freed"] == 1


def test_pinned_memory_in_use_outlives_an_emptied_cache(cuda):
    # While a stream is held, a GPU's driver would not free what earlier tests
    # have left.
    accelerator.empty_host_cache()
    stream = cuda.stream()
    block = cuda.empty(64, pin_memory=True)
    block.memoryview()[:] = b"\5" * 64
    target = cuda.empty(64)
    cuda.synchronize()
    with cuda.hold(stream):
        target.copy_(block, non_blocking=True, stream=stream)
        del block
        accelerator.empty_host_cache()
    stream.synchronize()
    assert target.tobytes() == b"\5" * 64
    accelerator.empty_host_cache()


NOTHING_USED = """
from pystreams import accelerator, cuda
cuda.empty_cache()
accelerator.empty_cache()
accelerator.empty_host_cache()
assert cuda.memory_reserved() == cuda.max_memory_reserved() == 0
assert cuda.host_memory_stats() == {}
assert not cuda.is_initialized()
"""


@pytest.mark.parametrize("emulated", ["2", None])
def test_emptying_initializes_nothing(run_python, emulated):
    done = run_python(NOTHING_USED, env={"PYSTREAMS_EMULATE_CUDA": emulated})
    assert (done.returncode, done.stderr) == (0, "")
