"""The synchronization of DLPack and of the array interface on a GPU: with it,
a consumer waits and reads the new bytes; without it, it reads the old ones."""

import contextlib
import importlib
import importlib.util

import pytest

from pystreams import from_dlpack

SIZE = 1 << 16
DELAY = 200
OLD, NEW = (0, 0), (7, 7)

# Warnings of other libraries do not matter here.
pytestmark = pytest.mark.filterwarnings("ignore")


class NoDlpackWait:
    """The same memory, without the stream that writes it."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, *, stream=None, **options):
        return self.array.__dlpack__(stream=-1, **options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class NoInterfaceWait:
    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = {
            **array.__cuda_array_interface__,
            "stream": None,
        }


LEFT_OUT = {"dlpack": NoDlpackWait, "interface": NoInterfaceWait}


class Cupy:
    """The functions of CuPy that the tests need.  The other classes are for
    other libraries."""

    def __init__(self, cupy):
        self.cupy = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.handle = self.stream.ptr

    def zeros(self):
        array = self.cupy.zeros(SIZE, self.cupy.uint8)
        self.cupy.cuda.Device(0).synchronize()
        return array

    def address(self, array):
        return array.data.ptr

    def current(self):
        return self.stream

    def take(self, way, block):
        if way == "dlpack":
            return self.cupy.from_dlpack(block)
        return self.cupy.asarray(block)


class Torch:
    def __init__(self, torch):
        self.torch = torch
        self.stream = torch.cuda.Stream()
        self.handle = self.stream.cuda_stream

    def zeros(self):
        tensor = self.torch.zeros(
            SIZE, dtype=self.torch.uint8, device="cuda:0"
        )
        self.torch.cuda.synchronize()
        return tensor

    def address(self, tensor):
        return tensor.data_ptr()

    def current(self):
        return self.torch.cuda.stream(self.stream)

    def take(self, way, block):
        return self.torch.from_dlpack(block)


class Numba:
    def __init__(self, numba):
        self.cuda = numba
        self.stream = numba.stream()
        self.handle = int(self.stream)

    def zeros(self):
        import numpy

        zeros = numpy.zeros(SIZE, numpy.uint8)
        array = self.cuda.to_device(zeros, stream=self.stream)
        self.stream.synchronize()
        return array

    def address(self, array):
        return array.__cuda_array_interface__["data"][0]

    def current(self):
        """Do nothing: Numba has no current stream, each array has its own."""
        return contextlib.nullcontext()

    def take(self, way, block):
        return self.cuda.as_cuda_array(block)


class Core:
    """cuda.core, which looks at memory for a stream of the reader's choice."""

    def __init__(self, core):
        self.view = importlib.import_module(
            f"{core.__name__}.utils"
        ).StridedMemoryView
        self.stream = core.Device(0).create_stream()
        self.handle = int(self.stream.handle)

    def address(self, view):
        return view.ptr

    def current(self):
        return contextlib.nullcontext()

    def take(self, way, block):
        take = {
            "dlpack": self.view.from_dlpack,
            "interface": self.view.from_cuda_array_interface,
        }
        return take[way](block, stream_ptr=self.handle)


LIBRARIES = {"torch": Torch, "cupy": Cupy, "numba": Numba, "core": Core}
# In torch's tensors, the array interface has no stream, and torch ignores the
# stream in that of others.  Numba's arrays have no DLPack.
BOTH = [
    ("torch", "dlpack"),
    ("cupy", "dlpack"),
    ("cupy", "interface"),
    ("numba", "interface"),
]
# The memory of cuda.core has no stream that a reader could wait for.
READERS = [*BOTH, ("core", "dlpack"), ("core", "interface")]


@pytest.fixture
def exchange(request, gpu):
    """A library, and the protocol by which memory is exchanged with it."""
    name, way = request.param
    return LIBRARIES[name](request.getfixturevalue(name)), way


def hand_shake(way, array, done):
    return array if done else LEFT_OUT[way](array)


def take(way, array, done, target, stream):
    """Copy an array of the library to our Buffer, on a stream of ours."""
    array = hand_shake(way, array, done)
    with stream:
        if way == "dlpack":
            array = from_dlpack(array)
        target.copy_(array, non_blocking=True)


def give(library, way, block, done):
    """Return an array of the library that shares the memory of our Buffer."""
    with library.current():
        return library.take(way, hand_shake(way, block, done))


DONE = pytest.mark.parametrize("done", [True, False], ids=["done", "left-out"])


@DONE
@pytest.mark.parametrize("exchange", BOTH, ids="-".join, indirect=True)
def test_they_write_and_we_read(gpu, kernels, exchange, done):
    (library, way), stream = exchange, gpu.stream()
    array, target = library.zeros(), gpu.empty(SIZE)
    with library.current():
        take(way, array, done, target, stream)  # loads what it needs
    gpu.synchronize()
    with library.current():
        kernels.fill_late(
            library.handle,
            library.address(array),
            SIZE,
            byte=7,
            milliseconds=DELAY,
        )
        take(way, array, done, target, stream)
    seen = kernels.read(stream.native_handle, target.data_ptr(), SIZE)
    assert seen == (NEW if done else OLD)


@DONE
@pytest.mark.parametrize("exchange", READERS, ids="-".join, indirect=True)
def test_we_write_and_they_read(gpu, kernels, exchange, done):
    (library, way), side = exchange, gpu.stream()
    block = gpu.empty(SIZE).zero_()
    gpu.sleep(side, 0)
    give(library, way, block, done)  # loads what it needs
    gpu.synchronize()
    with side:
        gpu.sleep(side, DELAY)
        block.fill_(7)
        array = give(library, way, block, done)
    seen = kernels.read(library.handle, library.address(array), SIZE)
    assert seen == (NEW if done else OLD)


# By default, JAX takes most of the memory and keeps it.
JAX = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

JAX_CODE = """
import warnings
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp
import pystreams
from pystreams import _C, cuda
try:
    gpu = jax.devices("cuda")[0]
except RuntimeError as error:
    print("no CUDA:", error)
    raise SystemExit
side, pause = cuda.Stream(), {pause}
def write_late(byte):
    block = pystreams.empty({size}, device="cuda:0").zero_()
    cuda.synchronize()
    _C.sleep(1, pause, side)
    block.fill_(byte, stream=side)
    return block
jax.dlpack.from_dlpack(write_late(1)).block_until_ready()  # loads its code
block = write_late(7)
array = jax.dlpack.from_dlpack(block)
print(set(jnp.asarray(array + 0).tolist()) == {{7}})
theirs = jnp.full({size}, 5, jnp.uint8, device=gpu) + jnp.uint8(1)
taken = pystreams.from_dlpack(theirs)
print(taken.tobytes() == bytes([6]) * {size}, taken.device)
theirs = theirs * jnp.uint8(2)
print(pystreams.Buffer({size}, device="cuda:0").copy_(theirs).tobytes()
      == bytes([12]) * {size})
"""


def test_jax(gpu, run_python):
    """JAX runs in a process of its own, because it takes much memory.  It
    hides its streams, so the test can show that JAX waits, but not the race
    without a wait."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("needs jax")
    code = JAX_CODE.format(size=SIZE, pause=DELAY * 1_900_000)
    done = run_python(code, env=JAX, timeout=300)
    if done.stdout.startswith("no CUDA:"):
        pytest.skip(f"needs a JAX with CUDA: {done.stdout}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\nTrue cuda:0\nTrue\n"
