"""The size of the memory of a device, how much of it is free, and which
addresses lie in it."""

import pytest

import pystreams

NBYTES = 8 << 20


def falls(cuda, more, less):
    """Return whether free memory fell by NBYTES.  On a GPU, it may have fallen
    by more, because the driver and other programs take memory, too."""
    return more - less == NBYTES or (
        not cuda.on_engine and NBYTES <= more - less < NBYTES + (64 << 20)
    )


@pytest.mark.whole_gpu
def test_free_memory_is_what_can_still_be_had(cuda):
    """This holds even while the library keeps freed memory for later
    allocations."""
    for _ in range(3):
        before, total = pystreams.cuda.mem_get_info()
        block = pystreams.empty(NBYTES, device="cuda")
        pystreams.cuda.synchronize()
        during = pystreams.cuda.mem_get_info()
        block.close()
        pystreams.cuda.synchronize()
        after = pystreams.cuda.mem_get_info()
        assert falls(cuda, before, during[0])
        assert falls(cuda, after[0], during[0])
        assert during[1] == after[1] == total


@pytest.mark.whole_gpu
def test_free_memory_is_each_devices_own(two_cuda):
    def free():
        return [pystreams.cuda.mem_get_info(i)[0] for i in range(2)]

    before = free()
    block = two_cuda.empty(NBYTES, 1)
    during = free()
    assert not falls(two_cuda, before[0], during[0])
    assert falls(two_cuda, before[1], during[1])
    block.close()
    two_cuda.synchronize(1)
    assert falls(two_cuda, free()[1], during[1])


@pytest.mark.whole_gpu
def test_dropped_memory_is_free_once_its_uses_are_over(cuda):
    stream = cuda.stream()
    before = pystreams.cuda.mem_get_info()[0]
    with cuda.hold(stream):
        block = cuda.empty(NBYTES)
        block.record_stream(stream)
        del block
        during = pystreams.cuda.mem_get_info()[0]
        assert falls(cuda, before, during)
    stream.synchronize()
    cuda.synchronize()
    assert falls(cuda, pystreams.cuda.mem_get_info()[0], during)


def test_an_address_is_of_a_device_while_it_is_allocated(two_cuda):
    target = two_cuda.empty(1)
    blocks = [two_cuda.empty(1000, i % 2) for i in range(100)]
    addresses = [block.data_ptr() + i for block in blocks for i in (0, 999)]
    for address in addresses:
        target.copy_(Claim(address))
    del blocks[::2]
    two_cuda.settle()
    for i, address in enumerate(addresses):
        if i % 4 >= 2:
            target.copy_(Claim(address))
        elif two_cuda.on_engine:
            with pytest.raises(ValueError, match="but there is none"):
                target.copy_(Claim(address))


class Claim:
    def __init__(self, address):
        self.__cuda_array_interface__ = {
            "shape": (1,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def emulate(run_python, code, **variables):
    environment = {"PYSTREAMS_EMULATE_CUDA": "2"} | variables
    return run_python(
        "import pystreams\nfrom pystreams import cuda\n" + code,
        env=environment,
    )


def test_emulated_memory_runs_out(run_python):
    done = emulate(
        run_python,
        """
for index in range(2):
    properties = cuda.get_device_properties(index)
    assert properties.total_memory == 64 << 20
    assert cuda.mem_get_info(index) == (64 << 20, 64 << 20)
with cuda.device(1):
    half = pystreams.empty(32 << 20, device="cuda")
    stream = pystreams.Stream("cuda")
    try:
        pystreams.empty((32 << 20) + 1, device="cuda")
    except pystreams.OutOfMemoryError as error:
        print(error)
    rest = pystreams.empty(32 << 20, device="cuda")
    assert cuda.mem_get_info() == (0, 64 << 20)
    # Work that is queued later may have what is freed in the same order.
    cuda._sleep(50_000_000)
    del rest
    again = pystreams.empty(32 << 20, device="cuda")
other = pystreams.empty(64 << 20, device="cuda:0")
""",
        PYSTREAMS_EMULATE_MEMORY="64MiB",
    )
    assert (done.stdout, done.stderr) == (
        "CUDA error: out of memory\nallocating 33554433 bytes of memory "
        "(cuda:1 has 33554432 free of 67108864) failed with "
        "PS_ERROR_OUT_OF_MEMORY (2).\n",
        "",
    )


def test_emulated_memory_by_default(run_python):
    done = emulate(
        run_python,
        "import os\n"
        "machine = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGESIZE')\n"
        "assert cuda.mem_get_info()[1] == machine // 2 // 2\n",
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "size"),
    [("65536", 65536), ("3KiB", 3072), ("1GiB", 1 << 30), ("2TiB", 1 << 41)],
)
def test_emulated_memory_of_a_size(run_python, text, size):
    done = emulate(
        run_python,
        "print(cuda.mem_get_info()[1])",
        PYSTREAMS_EMULATE_MEMORY=text,
    )
    assert done.stdout == f"{size}\n"


@pytest.mark.parametrize(
    "text", ["x", "0", "-1", "+1", " 1", "1.5GiB", "4GB", "4gib", "8388608TiB"]
)
def test_emulated_memory_of_no_size(run_python, text):
    done = emulate(run_python, "", PYSTREAMS_EMULATE_MEMORY=text)
    assert done.returncode == 1
    assert done.stderr.endswith(
        "ValueError: PYSTREAMS_EMULATE_MEMORY must be a number of bytes, KiB, "
        f"MiB, GiB or TiB above 0, such as '4GiB' or '65536', got '{text}'\n"
    )
