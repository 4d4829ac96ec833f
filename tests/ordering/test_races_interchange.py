"""pystreams.races and memory that comes from another library, or goes to one:
it is followed by its addresses, and the handshakes of DLPack and of the CUDA
array interface count as order."""

import ctypes

import pytest
from producers import (
    CUDA,
    TENSOR,
    Loan,
    Producer,
    Table,
    Taken,
    Tensor,
    place,
    table_of,
)

import pystreams
from pystreams import races

SIZE = 64
FIXED = pytest.mark.parametrize("fixed", [False, True], ids=["bug", "fixed"])


@pytest.fixture
def found():
    found = []
    with races.detect(found.append):
        yield found


class Two:
    def __init__(self, backend):
        self.a, self.b = backend.stream(), backend.stream()
        self.x = backend.empty(SIZE)
        self.host = pystreams.Buffer(
            SIZE, device=backend.device(), pin_memory=backend.name == "cuda"
        )
        backend.synchronize()


@pytest.fixture
def two(backend):
    return Two(backend)


@pytest.fixture
def cuda_two(cuda):
    return Two(cuda)


class Array:
    """Of another library, on a device, with the array interface."""

    def __init__(self, block, stream):
        self.__cuda_array_interface__ = {
            "shape": (block.nbytes,),
            "typestr": "|u1",
            "data": (block.data_ptr(), False),
            "version": 3,
            "stream": stream,
        }


@FIXED
def test_an_array_of_numpy(two, found, numpy, fixed):
    """A Buffer over it, and itself as the side of a copy."""
    array, stream = numpy.zeros(SIZE, "u1"), pystreams.Stream("cpu")
    pystreams.from_dlpack(array).fill_(1, stream=stream)
    if fixed:
        stream.synchronize()
    with two.b:
        two.x.copy_(array)
    assert len(found) == (0 if fixed else 1)


@FIXED
def test_a_buffer_of_python(two, found, fixed):
    memory = bytearray(SIZE)
    races.declare(two.a, writes=[(address_of(memory), SIZE)])
    if fixed:
        two.a.synchronize()
    with two.b:
        two.x.copy_to(memory)
    assert len(found) == (0 if fixed else 1)


def address_of(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@FIXED
def test_what_is_lent_to_numpy(two, found, numpy, fixed):
    """The export waits for all work that is known to use the memory; what is
    declared is not part of that."""
    host = two.host
    host.fill_(1, stream=two.a)
    array = numpy.from_dlpack(host)
    assert found == []
    races.declare(two.b, writes=[array])
    if fixed:
        two.b.synchronize()
    numpy.from_dlpack(host)
    assert [race.second.name for race in found] == (
        [] if fixed else ["a DLPack export"]
    )


@FIXED
@pytest.mark.parametrize("view", ["asarray", "frombuffer"])
def test_a_view_of_numpy(two, found, numpy, view, fixed):
    two.host.fill_(1, stream=two.a)
    if fixed:
        two.a.synchronize()
    if view == "asarray":
        numpy.asarray(two.host)
    else:
        numpy.frombuffer(two.host, "u1")
    assert len(found) == (0 if fixed else 1)


@FIXED
def test_a_view_of_numpy_that_is_kept(two, found, numpy, fixed):
    """Its later uses are declared."""
    array = numpy.asarray(two.host)
    two.x.copy_(two.host, True, two.a)
    if fixed:
        two.a.synchronize()
    races.declare(None, writes=[array[8:16]])
    array[8:16] = 1
    assert [race.nbytes for race in found] == ([] if fixed else [8])


@FIXED
def test_an_array_that_comes_with_a_stream(cuda_two, found, fixed):
    """The copy waits for the stream that the interface names."""
    two = cuda_two
    races.declare(two.a, writes=[two.x])
    array = Array(two.x, two.a.native_handle if fixed else None)
    two.host.copy_(array, True, two.b)
    assert len(found) == (0 if fixed else 1)


@FIXED
def test_a_tensor_that_comes_by_dlpack(cuda_two, found, fixed):
    """Its producer makes it ready for the stream that the copy is on."""
    two = cuda_two

    class Ready(Producer):
        def __dlpack__(self, *, stream, **options):
            theirs = pystreams.cuda.ExternalStream(stream)
            if fixed:
                theirs.wait_stream(two.a)
            return super().__dlpack__(**options)

    races.declare(two.a, writes=[two.x])
    tensor = Ready(Loan(**place(two.x)))
    assert tensor.device[0] == CUDA
    two.host.copy_(tensor, True, two.b)
    assert len(found) == (0 if fixed else 1)


@FIXED
def test_a_tensor_that_comes_by_a_table(cuda_two, found, fixed):
    """The copy waits for its producer's current stream."""
    two = cuda_two
    races.declare(two.a, writes=[two.x])
    loan = Loan(**place(two.x))
    theirs = two.a if fixed else pystreams.cuda.Stream()
    tensor = Table(loan, theirs.native_handle).producer()
    two.host.copy_(tensor, True, two.b)
    assert len(found) == (0 if fixed else 1)


@FIXED
def test_a_buffer_that_goes_by_a_table(cuda_two, found, fixed):
    """Nothing waits: the consumer works on the current stream."""
    two = cuda_two
    two.x.fill_(1, stream=two.a)
    pointer, table = TENSOR(), table_of(pystreams.Buffer)
    with two.a if fixed else two.b as current:
        table.managed_from_object(two.x, ctypes.byref(pointer))
        races.declare(current, reads=[two.x])
    Taken(pointer=pointer).delete()
    assert len(found) == (0 if fixed else 1)


@FIXED
def test_what_is_lent_by_a_table(two, found, fixed):
    """As by __dlpack__, for memory of the CPU."""
    host = pystreams.empty(SIZE, device="cpu")
    races.declare(two.b, writes=[host])
    if fixed:
        two.b.synchronize()
    table_of(pystreams.Buffer).tensor_from_object(host, ctypes.byref(Tensor()))
    assert [race.second.name for race in found] == (
        [] if fixed else ["a DLPack export"]
    )


@FIXED
def test_a_buffer_that_goes_by_dlpack(cuda_two, found, fixed):
    """The consumer's stream waits, unless it asks for no wait."""
    two = cuda_two
    two.x.fill_(1, stream=two.a)
    capsule = two.x.__dlpack__(stream=two.b.native_handle if fixed else -1)
    races.declare(two.b, reads=[two.x])
    del capsule
    assert len(found) == (0 if fixed else 1)


@FIXED
def test_a_buffer_that_goes_by_the_array_interface(cuda_two, found, fixed):
    """It is ready on the stream that it names: a consumer on another one has
    to wait for that."""
    two = cuda_two
    two.x.fill_(1, stream=two.a)
    with two.b:
        named = two.x.__cuda_array_interface__["stream"]
    assert named == two.b.native_handle
    other = pystreams.cuda.Stream()
    if fixed:
        other.wait_stream(two.b)
    races.declare(other, reads=[two.x])
    assert len(found) == (0 if fixed else 1)


def check_extents(two, found, array, parts):
    """parts: {title: (object to declare, the first byte of the array in which
    a race must be found, and the number of these bytes)}"""
    base = array.ctypes.data
    races.declare(two.a, writes=[(base, 32)])
    for part, offset, nbytes in parts.values():
        races.declare(two.b, reads=[part])
        said = [(race.address - base, race.nbytes) for race in found]
        assert said == ([(offset, nbytes)] if nbytes else [])
        found.clear()


def test_extents_of_arrays(two, found, numpy):
    """From the first item to the last, gaps included."""
    array = numpy.zeros((4, 8), "u1")
    parts = {
        "all": (array, 0, 32),
        "rows": (array[1:3], 8, 16),
        "backwards": (array[::-1], 0, 32),
        "a column": (array[:, 3], 3, 25),
        "both backwards": (array[2:0:-1, 6:1:-2], 10, 13),
        "one item": (array[2, 5:6], 21, 1),
        "of no dimension": (array[2, 5, ...], 21, 1),
        "empty": (array[:0], 0, 0),
    }
    check_extents(two, found, array, parts)


def described(array, code=1, bits=8):
    """An object whose table describes an array of NumPy."""

    def tensor_from_object(_, tensor):
        count = array.ndim
        extents = (ctypes.c_int64 * (2 * count))(
            *array.shape, *(s // array.itemsize for s in array.strides)
        )
        kept.append(extents)
        tensor[0] = Tensor(
            array.ctypes.data, 1, 0, count, code, bits, 1, extents
        )
        steps = ctypes.addressof(extents) + 8 * count
        tensor[0].strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
        return 0

    kept = []
    table = Table(None, tensor_from_object=tensor_from_object)
    producer = table.producer()
    kept.append(table)
    producer.kept = kept
    return producer


def test_extents_by_a_table(two, found, numpy):
    """With no wait, and whether or not the array can be shared."""
    array = numpy.zeros((4, 8), "u1")
    parts = {
        "all": (described(array), 0, 32),
        "rows": (described(array[1:3]), 8, 16),
        "backwards": (described(array[::-1]), 0, 32),
        "a column": (described(array[:, 3]), 3, 25),
        "empty": (described(array[:0]), 0, 0),
        "of half bytes": (described(array[0], bits=4), 0, 4),
        "of half bytes, odd": (described(array[0, :3], bits=4), 0, 2),
        "of half bytes, backwards": (described(array[0, 2::-1], 1, 4), 1, 2),
        "of two half bytes": (described(array[0, 1::-1], bits=4), 0, 2),
    }
    check_extents(two, found, array, parts)


def test_a_table_that_describes_nothing(two, found):
    table = Table(None, tensor_from_object=lambda array, tensor: -1)
    with pytest.raises(
        BufferError, match="dltensor_from_py_object_no_sync of the"
    ):
        races.declare(two.a, reads=[table.producer()])


def test_wrong_extents(two, found):
    class Wrong:
        def __init__(self, **entries):
            self.__cuda_array_interface__ = {
                "shape": (2, 2),
                "typestr": "<f4",
                "data": (4096, False),
                "version": 3,
                **entries,
            }

    for entries, message in (
        ({"strides": (1 << 62, 1 << 62)}, "strides whose size"),
        ({"strides": (1 << 62, -(1 << 62))}, "strides whose size"),
        ({"shape": (-1, 2)}, "negative extent"),
        ({"shape": (1 << 62, 2)}, "overflows"),
    ):
        with pytest.raises(ValueError, match=message):
            races.declare(two.a, writes=[Wrong(**entries)])
    with pytest.raises(ValueError, match="a size of at least 0, but got -1"):
        races.declare(two.a, writes=[(4096, -1)])
