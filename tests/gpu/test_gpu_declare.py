"""Kernels of other libraries, whose accesses declare() names.  The detector
follows their memory, and orders them by our streams and events."""

import pytest

from pystreams import races
from pystreams.cuda import ExternalStream

COUNT = 1 << 12

pytestmark = pytest.mark.filterwarnings("ignore")


class Cupy:
    """The functions of CuPy that the programs below need.  The other classes
    are for other libraries."""

    def __init__(self, cupy):
        self.cupy = cupy
        self.kernel = cupy.ElementwiseKernel(
            "float32 x", "float32 y", "y = 2 * x + 1", "twice_and_one"
        )

    def array(self):
        with self.cupy.cuda.Stream.null:
            return self.cupy.zeros(COUNT, self.cupy.float32)

    def launch(self, stream, x, y):
        with self.cupy.cuda.ExternalStream(stream.native_handle):
            self.kernel(x, y)

    def own_stream(self):
        self.mine = self.cupy.cuda.Stream(non_blocking=True)
        return self.mine.ptr


class Numba:
    def __init__(self, numba):
        import numpy

        self.numba = numba
        # Numba needs numpy.row_stack, which newer releases of NumPy lack.
        if not hasattr(numpy, "row_stack"):
            numpy.row_stack = numpy.vstack

        @numba.jit
        def kernel(x, y):
            i = numba.grid(1)
            if i < x.size:
                y[i] = 2 * x[i] + 1

        self.kernel = kernel

    def array(self):
        import numpy

        return self.numba.to_device(numpy.zeros(COUNT, numpy.float32))

    def launch(self, stream, x, y):
        theirs = self.numba.external_stream(stream.native_handle)
        self.kernel[COUNT // 256, 256, theirs](x, y)

    def own_stream(self):
        self.mine = self.numba.stream()
        return int(self.mine)


class Torch:
    def __init__(self, torch):
        self.torch = torch

    def array(self):
        return self.torch.zeros(COUNT, device="cuda:0")

    def launch(self, stream, x, y):
        theirs = self.torch.cuda.ExternalStream(stream.native_handle)
        with self.torch.cuda.stream(theirs):
            self.torch.add(self.torch.ones_like(x), x, alpha=2, out=y)

    def own_stream(self):
        self.mine = self.torch.cuda.Stream()
        return self.mine.cuda_stream


LIBRARIES = {"cupy": Cupy, "numba": Numba, "torch": Torch}


@pytest.fixture(params=LIBRARIES)
def library(request, gpu):
    return LIBRARIES[request.param](request.getfixturevalue(request.param))


def run(library, stream, x, y):
    """Run a kernel of the library, after declaring its accesses."""
    races.declare(stream, reads=[x], writes=[y], name="kernel")
    library.launch(stream, x, y)


def kernel_after_kernel(gpu, library, fixed):
    x, y, z = (library.array() for _ in range(3))
    a, b = gpu.stream(), gpu.stream()
    run(library, a, x, y)
    if fixed:
        b.wait_event(a.record_event())
    run(library, b, y, z)
    return a, b


def input_overwritten(gpu, library, fixed):
    """The next input is copied into memory that the kernel may still read."""
    x, y, source = library.array(), library.array(), gpu.empty(4 * COUNT)
    a, b = gpu.stream(), gpu.stream()
    run(library, a, x, y)
    if fixed:
        b.wait_stream(a)
    with b:
        source.copy_to(x, True)
    return a, b


def result_read_too_early(gpu, library, fixed):
    x, y, a = library.array(), library.array(), gpu.stream()
    host = gpu.empty(4 * COUNT, pin_memory=True)
    run(library, a, x, y)
    with a:
        host.copy_(y, True)
    if fixed:
        a.synchronize()
    host.memoryview(readonly=True)
    return a, a


def on_their_stream(gpu, library, fixed):
    """The kernel runs on a stream of theirs, which we know by its handle."""
    x, y, copied = library.array(), library.array(), gpu.empty(4 * COUNT)
    theirs, b = ExternalStream(library.own_stream()), gpu.stream()
    run(library, theirs, x, y)
    if fixed:
        b.wait_stream(theirs)
    with b:
        copied.copy_(y, True)
    return theirs, b


def half_of_an_array(gpu, library, fixed):
    """Both halves are written at once.  In the fault, they overlap by one
    item."""
    x, y = library.array(), library.array()
    a, b = gpu.stream(), gpu.stream()
    half = COUNT // 2
    source = gpu.empty(4 * half)
    races.declare(a, reads=[x], writes=[y[: half + (not fixed)]])
    with b:
        source.copy_to(y[half:], True)
    return a, b


PROGRAMS = [
    kernel_after_kernel,
    input_overwritten,
    result_read_too_early,
    on_their_stream,
    half_of_an_array,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_the_missing_edge_is_found(gpu, library, program):
    found = []
    with races.detect(found.append):
        first, second = program(gpu, library, False)
    gpu.synchronize()
    assert len(found) == 1
    one, two = (found[0].first.stream, found[0].second.stream)
    assert one == ("cuda", 0, first.native_handle)
    assert two in (("cuda", 0, second.native_handle), None)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_the_repaired_program_is_not_blamed(gpu, library, program):
    with races.detect():
        program(gpu, library, True)
        gpu.synchronize()
