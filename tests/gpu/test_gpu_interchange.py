"""Memory that is exchanged with CuPy, torch, Numba and cuda.core on a GPU.

Before each exchange, the writer queues slow work on a stream of its own, so
that a reader that does not wait sees the old bytes.  The work is held back by
a kernel that sleeps, not by a gate: a library may meanwhile load code or ask
for memory, which waits for all work, and would wait for a gate for ever.
"""

import ctypes
import gc
import importlib

import pytest
from producers import CUDA, TENSOR, drop, table_of

import pystreams
from pystreams import from_dlpack, races

SIZE = 1 << 20
DELAY = 50

# Warnings of other libraries do not matter here.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=["default", "own"])
def ours(gpu, request):
    """The current stream of the test."""
    if request.param == "default":
        yield gpu.default_stream()
    else:
        with gpu.stream() as stream:
            yield stream


def in_use(gpu):
    gc.collect()
    gpu.synchronize()
    return gpu.in_use()


def bytes_of(byte, nbytes=SIZE):
    return bytes([byte]) * nbytes


class Cupy:
    """The functions of CuPy that the tests need."""

    def __init__(self, gpu, cupy):
        self.gpu, self.cupy = gpu, cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.external = pystreams.ExternalStream(
            self.stream.ptr, gpu.device(0)
        )

    def new(self, byte):
        array = self.cupy.full(SIZE, byte, self.cupy.uint8)
        self.cupy.cuda.Device(0).synchronize()
        return array

    def fill(self, array, byte):
        array[...] = byte

    def bytes(self, array):
        return array.get().tobytes()

    def address(self, array):
        return array.data.ptr

    def from_dlpack(self, block):
        return self.cupy.from_dlpack(block)

    def by_interface(self, block):
        return self.cupy.asarray(block)

    def current(self):
        return self.stream

    def late(self):
        self.gpu.sleep(self.external, DELAY)


class Torch:
    def __init__(self, gpu, torch):
        self.gpu, self.torch = gpu, torch
        self.stream = torch.cuda.Stream()
        self.external = pystreams.ExternalStream(
            self.stream.cuda_stream, gpu.device(0)
        )

    def new(self, byte):
        tensor = self.torch.full(
            (SIZE,), byte, dtype=self.torch.uint8, device="cuda:0"
        )
        self.torch.cuda.synchronize()
        return tensor

    def fill(self, tensor, byte):
        tensor.fill_(byte)

    def bytes(self, tensor):
        return tensor.cpu().numpy().tobytes()

    def address(self, tensor):
        return tensor.data_ptr()

    def from_dlpack(self, block):
        return self.torch.from_dlpack(block)

    def current(self):
        return self.torch.cuda.stream(self.stream)

    def late(self):
        self.gpu.sleep(self.external, DELAY)


@pytest.fixture(params=[Cupy, Torch], ids=["cupy", "torch"])
def arrays(request, gpu):
    """A library that was used once, so that it loads nothing in the tests."""
    name = request.param.__name__.lower()
    arrays = request.param(gpu, request.getfixturevalue(name))
    with arrays.current():
        array = arrays.new(0)
        arrays.fill(array, 1)
        assert arrays.bytes(array) == bytes_of(1)
    return arrays


def test_copy_from_an_array(gpu, arrays, ours):
    block, array = gpu.filled(0, SIZE), arrays.new(1)
    with arrays.current():
        arrays.late()
        arrays.fill(array, 2)
        assert block.copy_(array) is block
    assert block.tobytes() == bytes_of(2)


def test_copy_to_an_array(gpu, arrays, ours):
    """The copy waits for the work that still writes the array, and is done
    when the call returns."""
    block, array = gpu.filled(0, SIZE), arrays.new(1)
    with arrays.current():
        arrays.late()
        arrays.fill(array, 2)
        gpu.sleep(ours, DELAY)
        block.fill_(3)
        assert block.copy_to(array) is block
        assert arrays.bytes(array) == bytes_of(3)


def test_copy_on_a_stream_given(gpu, arrays):
    block, array, stream = gpu.filled(0, SIZE), arrays.new(1), gpu.stream()
    with arrays.current():
        arrays.late()
        arrays.fill(array, 2)
        block.copy_(array, stream=stream)
    stream.synchronize()
    assert block.tobytes() == bytes_of(2)


def test_copy_between_the_host_and_an_array(gpu, arrays):
    array = arrays.new(1)
    for host in (
        gpu.empty(SIZE, pin_memory=True),
        pystreams.empty(SIZE, device="cpu"),
    ):
        with arrays.current():
            arrays.late()
            arrays.fill(array, 2)
            host.copy_(array)
            assert bytes(memoryview(host)) == bytes_of(2)
            memoryview(host)[:] = bytes_of(3)
            host.copy_to(array)
            assert arrays.bytes(array) == bytes_of(3)


def test_copy_of_a_dropped_array(gpu, arrays, ours):
    """The array's memory is not handed out again while the copy is queued."""
    block, array = gpu.filled(0, SIZE), arrays.new(1)
    with arrays.current():
        arrays.fill(array, 2)
        gpu.sleep(ours, DELAY)
        block.copy_(array, non_blocking=True)
        del array
        others = [arrays.new(9) for _ in range(4)]
    ours.synchronize()
    assert block.tobytes() == bytes_of(2)
    del others


def test_take_an_array(gpu, arrays, ours):
    array = arrays.new(1)
    with arrays.current():
        arrays.late()
        arrays.fill(array, 2)
        block = from_dlpack(array)
    assert block.data_ptr() == arrays.address(array)
    assert block.nbytes == SIZE
    assert block.device == gpu.device(0)
    del array
    gc.collect()
    others = [arrays.new(9) for _ in range(4)]
    assert block.tobytes() == bytes_of(2)
    del others


def test_give_to_a_library(gpu, arrays, ours):
    before = in_use(gpu)
    block = gpu.filled(1, SIZE)
    gpu.sleep(ours, DELAY)
    block.fill_(2)
    with arrays.current():
        array = arrays.from_dlpack(block)
        assert arrays.address(array) == block.data_ptr()
        assert arrays.bytes(array) == bytes_of(2)
        arrays.fill(array, 3)
    gpu.synchronize()
    assert block.tobytes() == bytes_of(3)
    block.close()
    with arrays.current():
        assert arrays.bytes(array) == bytes_of(3)
    assert in_use(gpu) == before + SIZE
    del array
    assert in_use(gpu) == before


def test_give_what_a_side_stream_writes(gpu, arrays):
    """The reader waits for all streams that use the memory, not for the
    current one alone."""
    block, side = gpu.filled(1, SIZE), gpu.stream()
    gpu.sleep(side, DELAY)
    block.fill_(2, stream=side)
    with arrays.current():
        assert arrays.bytes(arrays.from_dlpack(block)) == bytes_of(2)


def test_cupy_asarray(gpu, cupy, ours):
    arrays = Cupy(gpu, cupy)
    block = gpu.filled(1, SIZE)
    gpu.sleep(ours, DELAY)
    block.fill_(2)
    with arrays.current():
        array = arrays.by_interface(block)
        assert arrays.address(array) == block.data_ptr()
        assert arrays.bytes(array) == bytes_of(2)
    del block
    gc.collect()
    others = [gpu.filled(9, SIZE) for _ in range(4)]
    assert arrays.bytes(array) == bytes_of(2)
    del others


def test_cupy_types_and_layouts(gpu, cupy):
    for dtype in ("?", "i2", "f2", "f4", "f8", "c16"):
        array = cupy.ones((3, 5), dtype)
        block = gpu.empty(array.nbytes).copy_(array)
        assert block.tobytes() == array.get().tobytes()
    array = cupy.ones((4, 4), "f4")
    for wrong in (array.T[1:], array[:, ::2], array[::-1]):
        with pytest.raises(ValueError, match="contiguous"):
            gpu.empty(wrong.nbytes).copy_(wrong)
    assert gpu.empty(0).copy_(cupy.empty((0, 3))).nbytes == 0


def test_torch_as_tensor(gpu, torch):
    block = gpu.filled(4, SIZE)
    tensor = torch.as_tensor(block, device="cuda:0")
    assert tensor.dtype == torch.uint8
    assert tensor.data_ptr() == block.data_ptr()
    assert tensor.cpu().numpy().tobytes() == bytes_of(4)


def raw_bytes(tensor):
    return bytes(tensor.cpu().untyped_storage().tolist())


def test_torch_types_and_layouts(gpu, torch):
    for dtype in (torch.bool, torch.int16, torch.bfloat16, torch.complex64):
        for device in ("cpu", "cuda:0"):
            tensor = torch.ones((3, 5), dtype=dtype, device=device)
            block = gpu.empty(tensor.nbytes).copy_(tensor)
            raw = raw_bytes(tensor)
            assert block.tobytes() == raw
            tensor.zero_()
            torch.cuda.synchronize()
            block.copy_to(tensor)
            assert raw_bytes(tensor) == raw
    tensor = torch.ones((4, 4), device="cuda:0")
    for wrong in (tensor.T, tensor[:, ::2]):
        with pytest.raises(ValueError, match="contiguous"):
            gpu.empty(wrong.nbytes).copy_(wrong)
    with pytest.raises(BufferError, match="gradient"):
        gpu.empty(64).copy_(tensor.requires_grad_())


def test_torch_pinned_memory(gpu, torch):
    tensor = torch.full((SIZE,), 1, dtype=torch.uint8, pin_memory=True)
    block = gpu.filled(2, SIZE)
    block.copy_to(tensor)
    assert tensor.numpy().tobytes() == bytes_of(2)
    tensor.fill_(3)
    assert block.copy_(tensor).tobytes() == bytes_of(3)
    taken = from_dlpack(tensor)
    assert taken.data_ptr() == tensor.data_ptr()
    pinned = gpu.empty(SIZE, pin_memory=True).fill_(5)
    again = torch.from_dlpack(pinned.__dlpack__(dl_device=(1, 0)))
    assert again.data_ptr() == pinned.data_ptr()
    assert again.numpy().tobytes() == bytes_of(5)


def exchanged(source, target, value):
    """Pass a tensor from the source's table to the target's, and return what
    the target makes of it."""
    tensor, made = TENSOR(), ctypes.c_void_p()
    assert source.managed_from_object(value, ctypes.byref(tensor)) == 0
    assert target.managed_to_object(tensor, ctypes.byref(made)) == 0
    taken = ctypes.cast(made, ctypes.py_object).value
    drop(made)
    return taken


@pytest.fixture
def tables(torch):
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("needs a torch with DLPack's C exchange API, as 2.11")
    return table_of(pystreams.Buffer), table_of(torch.Tensor)


def test_tables_of_functions(gpu, torch, tables, ours):
    """Memory is exchanged both ways on one stream, so nothing waits or needs
    to wait."""
    before = in_use(gpu)
    here, there = tables
    block = gpu.filled(1, SIZE)
    handle = ours.native_handle
    theirs = (
        torch.cuda.ExternalStream(handle)
        if handle
        else torch.cuda.default_stream()
    )
    with torch.cuda.stream(theirs):
        gpu.sleep(ours, DELAY)
        block.fill_(2)
        tensor = exchanged(here, there, block)
        assert not ours.query()
        assert tensor.data_ptr() == block.data_ptr()
        assert tensor.dtype == torch.uint8
        tensor.add_(1)
        again = exchanged(there, here, tensor)
        assert again.data_ptr() == block.data_ptr()
        assert again.tobytes() == bytes_of(3)
    block.close()
    del tensor
    gc.collect()
    assert in_use(gpu) == before + SIZE
    again.close()
    assert in_use(gpu) == before


def test_current_work_streams(gpu, torch, tables):
    here, there = tables
    handle = ctypes.c_void_p()
    stream, theirs = gpu.stream(), torch.cuda.Stream()
    with stream, torch.cuda.stream(theirs):
        for table, native in (
            (here, stream.native_handle),
            (there, theirs.cuda_stream),
        ):
            assert table.current_work_stream(CUDA, 0, handle) == 0
            assert handle.value == native


def test_torch_tensors_that_need_gradients_are_declared(gpu, torch, tables):
    """declare() only needs the address of a tensor, so it also takes tensors
    that cannot be exported."""
    found = []
    tensor = torch.zeros(SIZE, device="cuda:0", requires_grad=True)
    a, b = gpu.stream(), gpu.stream()
    with races.detect(found.append):
        races.declare(a, writes=[tensor])
        races.declare(b, reads=[tensor])
    assert [race.nbytes for race in found] == [tensor.nbytes]


def test_torch_tensors_that_are_not_what_their_memory_is(gpu, torch):
    tensor = torch.ones(4, dtype=torch.complex64, device="cuda:0").conj()
    with pytest.raises(BufferError, match="conjugate"):
        gpu.empty(32).copy_(tensor)


def test_managed_memory_of_cupy(gpu, cupy):
    """Managed memory counts as memory of its device."""
    memory = cupy.cuda.malloc_managed(SIZE)
    array = cupy.ndarray(SIZE, cupy.uint8, memory)
    array.fill(1)
    cupy.cuda.Device(0).synchronize()
    address = array.data.ptr
    for block in (
        from_dlpack(array),
        pystreams.Buffer.from_address(
            address, SIZE, device=gpu.device(0), owner=array
        ),
    ):
        assert block.data_ptr() == address
        assert block.device == gpu.device(0)
        block.fill_(2)
        gpu.synchronize()
        assert ctypes.string_at(address, 4) == b"\2" * 4
        ctypes.memset(address, 3, SIZE)
        assert block.tobytes() == bytes_of(3)
    assert gpu.empty(SIZE).copy_(array).tobytes() == bytes_of(3)


def test_torch_on_a_second_gpu(gpu, torch):
    if gpu.count < 2:
        pytest.skip(f"{gpu}: needs two devices, has {gpu.count}")
    with torch.cuda.device(1):
        tensor = torch.full((SIZE,), 1, dtype=torch.uint8, device="cuda:1")
        stream = torch.cuda.Stream()
        external = pystreams.ExternalStream(stream.cuda_stream, gpu.device(1))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            gpu.sleep(external, DELAY)
            tensor.fill_(2)
            taken = from_dlpack(tensor)
            block = gpu.empty(SIZE, 0).copy_(tensor)
    assert taken.device == gpu.device(1)
    assert taken.tobytes() == bytes_of(2)
    assert block.tobytes() == bytes_of(2)


def test_numba(gpu, numba, ours):
    import numpy

    theirs = numba.stream()
    external = pystreams.ExternalStream(int(theirs), gpu.device(0))
    array = numba.to_device(numpy.ones(SIZE, numpy.uint8), stream=theirs)
    source = numba.to_device(numpy.full(SIZE, 2, numpy.uint8))
    theirs.synchronize()
    gpu.sleep(external, DELAY)
    array.copy_to_device(source, stream=theirs)
    assert array.__cuda_array_interface__["stream"] == int(theirs)
    block = gpu.empty(SIZE).copy_(array)
    assert block.tobytes() == bytes_of(2)

    gpu.sleep(ours, DELAY)
    block.fill_(3)
    taken = numba.as_cuda_array(block)
    assert taken.copy_to_host().tobytes() == bytes_of(3)
    block.copy_to(array)
    assert array.copy_to_host().tobytes() == bytes_of(3)


def test_cuda_core(gpu, core):
    """cuda.core ignores streams in the exchange, so the test waits on the host
    for the work of either side."""
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    buffer = device.memory_resource.allocate(SIZE, stream=stream)
    stream.sync()
    block = from_dlpack(buffer)
    assert block.nbytes == SIZE
    assert block.data_ptr() == int(buffer.handle)
    block.fill_(6)
    block.copy_to(gpu.empty(SIZE))
    assert gpu.empty(SIZE).copy_(buffer).tobytes() == bytes_of(6)
    gpu.synchronize()
    block.close()
    buffer.close(stream)
    stream.sync()


def test_cuda_core_stream(gpu, core):
    """cuda.core's streams are accepted wherever a stream is."""
    device = core.Device(0)
    device.set_current()
    block = gpu.filled(1, SIZE)
    stream = device.create_stream()
    block.fill_(7, stream=stream)
    stream.sync()
    assert block.tobytes() == bytes_of(7)


def test_cuda_core_view(gpu, core):
    utils = importlib.import_module(f"{core.__name__}.utils")
    block, stream = gpu.filled(1, SIZE), gpu.stream()
    make = utils.StridedMemoryView
    make = getattr(make, "from_dlpack", make)
    view = make(block, stream_ptr=stream.native_handle)
    assert view.ptr == block.data_ptr()
    assert tuple(view.shape) == (SIZE,)
    assert view.is_device_accessible
    assert not view.readonly
