"""__dlpack_c_exchange_api__: other libraries call the functions in Buffer's
table, and pystreams calls those in their tables.  Also tests who owns a tensor
meanwhile."""

import ctypes
import threading

import pytest
from producers import (
    CPU,
    CUDA,
    CUDA_HOST,
    EXCHANGE,
    READ_ONLY,
    SET_ERROR,
    TENSOR,
    VERSION,
    Exchange,
    Loan,
    Producer,
    Table,
    Taken,
    Tensor,
    drop,
    name_of,
    new,
    place,
    table_of,
)

import pystreams
from pystreams import Buffer, from_dlpack

TABLE = table_of(Buffer)


def export(block):
    pointer = TENSOR()
    assert TABLE.managed_from_object(block, ctypes.byref(pointer)) == 0
    return Taken(pointer=pointer)


def describe(block):
    tensor = Tensor()
    assert TABLE.tensor_from_object(block, ctypes.byref(tensor)) == 0
    return tensor


def work_stream(device_type, device_id):
    handle = ctypes.c_void_p(77)
    result = TABLE.current_work_stream(
        device_type, device_id, ctypes.byref(handle)
    )
    assert result == 0
    return handle.value


def import_(loan):
    """Return the Buffer that managed_tensor_to_py_object_no_sync makes of a
    loan."""
    address, made = loan.lend(), ctypes.c_void_p()
    pointer = ctypes.cast(address, TENSOR)
    try:
        TABLE.managed_to_object(pointer, ctypes.byref(made))
    except Exception:
        # The tensor still belongs to the caller.
        loan.take_back()
        raise
    block = ctypes.cast(made, ctypes.py_object).value
    drop(made)
    return block


def allocate(device, shape, code=1, bits=8, lanes=1, **fields):
    """Return a tensor, or the kind and the text of the error."""
    errors = []
    prototype = Tensor(
        device_type=device[0],
        device_id=device[1],
        ndim=len(shape),
        code=code,
        bits=bits,
        lanes=lanes,
        shape=(ctypes.c_int64 * len(shape))(*shape),
    )
    for name, value in fields.items():
        setattr(prototype, name, value)

    @SET_ERROR
    def set_error(context, kind, message):
        errors.append((context, kind.decode(), message.decode()))

    pointer = TENSOR()
    result = TABLE.allocate(
        ctypes.byref(prototype), ctypes.byref(pointer), 99, set_error
    )
    if result == 0:
        assert errors == []
        return Taken(pointer=pointer)
    assert result == -1
    assert not pointer
    ((context, kind, message),) = errors
    assert context == 99
    return kind, message


def device_of(backend, index=0):
    return (CPU if backend.name == "cpu" else CUDA), index


def test_the_table():
    assert name_of(Buffer.__dlpack_c_exchange_api__) == EXCHANGE
    assert (TABLE.major, TABLE.minor) == VERSION
    assert TABLE.older is None
    for name, kind in Exchange._fields_[3:]:
        assert ctypes.cast(getattr(TABLE, name), ctypes.c_void_p), (name, kind)
    block = pystreams.empty(1, device="cpu")
    assert block.__dlpack_c_exchange_api__ is Buffer.__dlpack_c_exchange_api__


@pytest.mark.parametrize("owned", [True, False], ids=["owned", "borrowed"])
def test_what_it_says(backend, owned):
    block = backend.filled(1)[8:40]
    taken = export(block) if owned else None
    tensor = taken.tensor if owned else describe(block)
    assert tensor.data == block.data_ptr()
    assert (tensor.device_type, tensor.device_id) == device_of(backend)
    assert (tensor.code, tensor.bits, tensor.lanes) == (1, 8, 1)
    assert (tensor.ndim, tensor.shape[0], tensor.strides[0]) == (1, 32, 1)
    assert tensor.byte_offset == 0
    if owned:
        assert (taken.struct.major, taken.struct.minor) == VERSION
        assert taken.struct.flags == 0
        taken.delete()


def test_of_pinned_memory(pinning):
    block = pinning.empty(16, pin_memory=True).fill_(3)
    device = (CPU if pinning.name == "cpu" else CUDA_HOST), 0
    pinning.synchronize()
    taken = export(block)
    assert taken.device == device
    assert taken.tobytes() == b"\3" * 16
    taken.delete()
    tensor = describe(block)
    assert (tensor.device_type, tensor.device_id) == device


def test_read_only_memory():
    block = from_dlpack(Loan(flags=READ_ONLY).capsule())
    taken = export(block)
    assert taken.struct.flags == READ_ONLY
    taken.delete()


@pytest.mark.parametrize("how", [export, describe])
def test_of_what_is_no_open_buffer(backend, how):
    block = backend.empty(16)
    block.close()
    with pytest.raises(ValueError, match="closed"):
        how(block)
    for other in (b"bytes", None, Buffer, backend.stream()):
        with pytest.raises(
            TypeError,
            match=r"__dlpack_c_exchange_api__\(\) expects a Buffer for "
            rf"py_object, but got (\w+\.)?{type(other).__name__}$",
        ):
            how(other)


def test_memory_outlives_its_buffer(backend):
    # Frees of earlier tests may be pending.
    backend.synchronize()
    before = backend.settled_use()
    block = backend.filled(6)
    taken = export(block)
    block.close()
    assert backend.in_use() == before + 64
    thread = threading.Thread(target=taken.delete)
    thread.start()
    thread.join()
    backend.synchronize()
    assert backend.in_use() == before


def test_no_stream_waits(cuda):
    stream, theirs = cuda.stream(), cuda.stream()
    with cuda.hold(stream):
        block = cuda.empty(64).fill_(1, stream=stream)
        with theirs:
            taken = export(block)
            describe(block)
        assert theirs.query()
    taken.delete()


@pytest.mark.parametrize("owned", [True, False], ids=["owned", "borrowed"])
def test_freed_after_the_current_stream(cuda, owned):
    """A consumer may have queued work on the current stream that uses the
    memory."""
    block, stream = cuda.filled(1, 4096), cuda.stream()
    address = block.data_ptr()
    with stream:
        taken = export(block) if owned else describe(block)
    with cuda.hold(stream):
        block.close()
        if owned:
            taken.delete()
        others = [cuda.empty(4096) for _ in range(10)]
        assert address not in {other.data_ptr() for other in others}


@pytest.mark.parametrize("owned", [True, False], ids=["owned", "borrowed"])
def test_host_memory_is_waited_for(backend, owned):
    """The export waits for the work, because a consumer of host memory need
    not use a stream."""
    stream = backend.stream()
    block = backend.host(64).fill_(1)
    backend.synchronize()
    backend.sleep(stream, 20)
    block.fill_(2, stream=stream)
    taken = export(block) if owned else describe(block)
    assert stream.query()
    tensor = taken.tensor if owned else taken
    assert ctypes.string_at(tensor.data, 64) == b"\2" * 64
    if owned:
        taken.delete()


def test_current_work_stream(backend):
    stream = backend.stream()
    kind, index = device_of(backend)
    assert work_stream(kind, index) == (
        backend.default_stream().native_handle or None
    )
    with stream:
        handle = None if kind == CPU else stream.native_handle
        assert work_stream(kind, index) == handle
        if kind == CUDA:
            assert work_stream(CUDA_HOST, 0) == handle
            assert work_stream(CPU, 0) is None


def test_current_work_stream_of_each_device(two_devices):
    if two_devices.name == "cpu":
        pytest.skip("cpu: has no stream for DLPack")
    stream = two_devices.stream(1)
    with stream:
        assert work_stream(CUDA, 1) == stream.native_handle
        assert work_stream(CUDA, 0) is None


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ((7, 0), BufferError),
        ((0, 0), BufferError),
        ((CUDA, 1000), RuntimeError),
        ((CUDA, -1), ValueError),
    ],
    ids=str,
)
def test_no_such_device(cuda, device, error):
    with pytest.raises(error):
        work_stream(*device)
    kind, message = allocate(device, [4])
    assert kind == error.__name__
    assert message


def test_tensor_becomes_a_buffer():
    loan = Loan(b"0123456789")
    block = import_(loan)
    assert type(block) is Buffer
    assert block.data_ptr() == loan.struct.tensor.data
    assert block.tobytes() == b"0123456789"
    assert loan.deleted == 0
    block.close()
    assert loan.deleted == 1


def test_tensor_without_a_deleter():
    loan = Loan(deleter=0)
    assert import_(loan).tobytes() == loan.bytes


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"major": 2}, BufferError),
        ({"major": 0}, BufferError),
        ({"device_type": 7}, BufferError),
        ({"shape": [2, 2], "strides": [1, 2]}, ValueError),
        ({"shape": [-1]}, ValueError),
    ],
    ids=str,
)
def test_refused_tensor_stays_the_callers(fields, error):
    loan = Loan(**fields)
    with pytest.raises(error):
        import_(loan)
    assert loan.deleted == 0


def test_buffer_of_a_buffer(backend):
    """A Buffer that is made of another Buffer's memory may be the last owner
    of the memory."""
    before = backend.settled_use()
    taken = export(backend.filled(9))
    made = ctypes.c_void_p()
    assert (
        TABLE.managed_to_object(
            ctypes.pointer(taken.struct), ctypes.byref(made)
        )
        == 0
    )
    block = ctypes.cast(made, ctypes.py_object).value
    drop(made)
    assert block.device == backend.device()
    assert block.tobytes() == b"\t" * 64
    assert backend.in_use() == before + 64
    block.close()
    backend.synchronize()
    assert backend.in_use() == before


@pytest.mark.parametrize(
    ("shape", "strides", "bits", "nbytes"),
    [
        ([], [], 64, 8),
        ([3], [1], 8, 3),
        ([2, 3, 4], [12, 4, 1], 32, 96),
        ([3, 1], [1, 1], 4, 2),
        ([0], [1], 8, 0),
    ],
    ids=str,
)
def test_allocated_tensor(backend, shape, strides, bits, nbytes):
    before = backend.settled_use()
    taken = allocate(device_of(backend), shape, 2, bits)
    tensor = taken.tensor
    assert taken.device == device_of(backend)
    assert (tensor.code, tensor.bits, tensor.lanes) == (2, bits, 1)
    assert tensor.ndim == len(shape)
    assert tensor.shape[: len(shape)] == shape
    assert tensor.strides[: len(shape)] == strides
    assert backend.in_use() == before + nbytes
    taken.delete()
    backend.synchronize()
    assert backend.in_use() == before


def test_extents_that_overflow_beside_a_0(backend):
    allocate(device_of(backend), [2**62, 2**62, 0]).delete()


def test_allocated_pinned_tensor(cuda):
    taken = allocate((CUDA_HOST, 0), [64])
    assert taken.device == (CUDA_HOST, 0)
    assert len(taken.tobytes()) == 64
    taken.delete()


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"shape": [-1]}, "ValueError"),
        ({"shape": [2**62, 2]}, "ValueError"),
        ({"shape": [4], "bits": 0}, "ValueError"),
        ({"shape": [4], "ndim": -1}, "ValueError"),
        ({"shape": [2**50]}, "MemoryError"),
        ({"shape": [4], "device_type": 13}, "BufferError"),
    ],
    ids=str,
)
def test_tensor_that_cannot_be_allocated(backend, fields, kind):
    before = backend.settled_use()
    found, message = allocate(device_of(backend), **fields)
    assert found == kind
    assert message
    assert backend.in_use() == before


def test_allocation_in_the_order_of_the_current_stream(cuda):
    stream = cuda.stream()
    with cuda.hold(stream):
        with stream:
            taken = allocate(device_of(cuda), [64])
        block = import_(Loan(**as_loan(taken)))
        block.fill_(1, stream=stream)
    stream.synchronize()
    assert block.tobytes() == b"\1" * 64
    taken.delete()


def as_loan(taken):
    return {
        "data": taken.tensor.data,
        "shape": [taken.nbytes],
        "device_type": taken.tensor.device_type,
        "device_id": taken.tensor.device_id,
    }


def test_allocated_on_many_threads(backend):
    before, device = backend.settled_use(), device_of(backend)
    taken = []

    def run():
        for _ in range(20):
            taken.append(allocate(device, [16]))
            taken.pop().delete()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    backend.synchronize()
    assert backend.in_use() == before


def lend(block, **options):
    return Loan(**{**place(block), **options})


def test_object_that_has_a_table_alone():
    loan = Loan()
    table = Table(loan)
    producer = table.producer()
    block = from_dlpack(producer)
    assert block.tobytes() == loan.bytes
    assert table.asked == [producer]
    block.close()
    assert loan.deleted == 1
    target = pystreams.empty(16, device="cpu")
    assert target.copy_(producer).tobytes() == loan.bytes
    target.fill_(7).copy_to(producer)
    assert loan.bytes == b"\7" * 16
    assert loan.deleted == 3


def test_the_method_comes_first():
    """__dlpack__() is called before the table, since it may refuse an export
    that the table would allow."""
    loan = Loan()
    table = Table(loan)
    producer = table.type(Producer)(loan)
    assert from_dlpack(producer).tobytes() == loan.bytes
    assert table.asked == []
    assert producer.asked == {"max_version": VERSION}


@pytest.mark.parametrize("how", ["from_dlpack", "copy_", "copy_to"])
@pytest.mark.parametrize("same", [True, False], ids=["same", "another"])
def test_waits_for_the_producers_stream(cuda, how, same):
    block, target = cuda.filled(1), cuda.filled(2)
    stream = cuda.stream()
    theirs = stream if same else cuda.stream()
    loan = lend(block)
    table = Table(loan, theirs.native_handle)
    producer = table.producer()
    with cuda.hold(theirs):
        block.fill_(3, stream=theirs)
        if how == "from_dlpack":
            with stream:
                borrowed = from_dlpack(producer)
            target.copy_(borrowed, stream=stream)
        elif how == "copy_":
            target.copy_(producer, stream=stream)
        else:
            target.copy_to(producer, True, stream)
        assert not stream.query()
    stream.synchronize()
    assert table.asked == [producer, (CUDA, 0)]
    expected = 2 if how == "copy_to" else 3
    assert (block if how == "copy_to" else target).tobytes() == (
        bytes([expected]) * 64
    )


def test_default_stream_of_the_producer(cuda):
    block, stream = cuda.filled(1), cuda.stream()
    table = Table(lend(block), None)
    default = cuda.default_stream()
    with cuda.hold(default), stream:
        borrowed = from_dlpack(table.producer())
        assert not stream.query()
    assert borrowed.data_ptr() == block.data_ptr()


def test_buffer_knows_more_than_its_table(cuda):
    """The consumer's stream waits for all work that is known to use the
    memory, not only for the work of the device's current stream."""
    stream = cuda.stream()
    with cuda.hold(stream):
        block = cuda.empty(64).fill_(1, stream=stream)
        from_dlpack(block)
        assert not cuda.current_stream().query()


@pytest.mark.parametrize(
    "fields",
    [
        {"major": 2},
        {"major": 0},
        {"managed_from_object": type(TABLE.managed_from_object)()},
        {"current_work_stream": type(TABLE.current_work_stream)()},
    ],
    ids=["newer", "older", "no tensors", "no streams"],
)
def test_table_that_is_not_understood(fields):
    table = Table(Loan(), **fields)
    with pytest.raises(TypeError, match="expects an object with __dlpack__"):
        from_dlpack(table.producer())
    assert table.asked == []


def test_table_of_an_older_version():
    loan = Loan()
    older = Table(loan)
    middle = Exchange(0, 9, ctypes.addressof(older.struct))
    newest = Table(loan, major=2, older=ctypes.addressof(middle))
    producer = newest.producer()
    assert from_dlpack(producer).tobytes() == loan.bytes
    assert (older.asked, newest.asked) == ([producer], [])


# A capsule keeps the address of its name, not the name.
NAME = b"another"


@pytest.mark.parametrize(
    "attribute",
    [None, 4096, new(4096, NAME, None)],
    ids=["None", "an int", "another capsule"],
)
def test_attribute_that_is_no_table(attribute):
    kind = type("Array", (), {"__dlpack_c_exchange_api__": attribute})
    with pytest.raises(TypeError, match="expects an object with __dlpack__"):
        from_dlpack(kind())


def test_table_is_the_types():
    table = Table(Loan())
    array = type("Array", (), {})()
    array.__dlpack_c_exchange_api__ = table.type().__dlpack_c_exchange_api__
    with pytest.raises(TypeError, match="expects an object with __dlpack__"):
        from_dlpack(array)
    assert table.asked == []


def test_table_that_cannot_be_asked_for():
    class Meta(type):
        @property
        def __dlpack_c_exchange_api__(cls):
            raise OSError("of its own")

    with pytest.raises(OSError, match="of its own"):
        from_dlpack(Meta("Array", (), {})())


@pytest.mark.parametrize("result", [-1, 0], ids=["failed", "no tensor"])
def test_table_that_gives_no_tensor(result):
    table = Table(Loan(), managed_from_object=lambda array, tensor: result)
    with pytest.raises(
        BufferError,
        match="managed_tensor_from_py_object_no_sync of the "
        "__dlpack_c_exchange_api__ of Array failed and raised nothing",
    ):
        from_dlpack(table.producer())


def test_error_of_a_table():
    """Our function refuses an object that is no Buffer."""
    table = Table(
        Loan(),
        managed_from_object=ctypes.cast(
            TABLE.managed_from_object, type(TABLE.managed_from_object)
        ),
    )
    with pytest.raises(TypeError, match="expects a Buffer"):
        from_dlpack(table.producer())


def test_table_that_gives_no_stream(cuda):
    block = cuda.filled(1)
    loan = lend(block)
    table = Table(loan, current_work_stream=lambda kind, index, handle: -1)
    with pytest.raises(BufferError, match="current_work_stream of the"):
        from_dlpack(table.producer())
    assert loan.deleted == 1


def test_table_that_names_no_live_stream(cuda):
    if not cuda.on_engine:
        pytest.skip(f"{cuda}: a wrong handle cannot be told from a live one")
    block = cuda.filled(1)
    loan = lend(block)
    with pytest.raises(RuntimeError, match="invalid resource handle"):
        from_dlpack(Table(loan, 12345678).producer())
    assert loan.deleted == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"major": 2}, BufferError),
        ({"device_type": 7}, BufferError),
        ({"shape": [2, 2], "strides": [1, 2]}, ValueError),
    ],
    ids=str,
)
def test_refused_tensor_of_a_table_is_given_back(fields, error):
    loan = Loan(**fields)
    with pytest.raises(error):
        from_dlpack(Table(loan).producer())
    assert loan.deleted == 1


def test_refused_tensor_that_has_no_deleter():
    loan = Loan(major=2, deleter=0)
    with pytest.raises(BufferError, match=r"2\.3.*versions 1\.x"):
        from_dlpack(Table(loan).producer())


@pytest.fixture
def tvm_ffi():
    return pytest.importorskip("tvm_ffi", reason="needs apache-tvm-ffi")


def test_tvm_ffi_gives_back_buffers(backend, tvm_ffi):
    """tvm_ffi takes arguments and makes results through the argument's
    table."""
    before = backend.settled_use()
    block = backend.filled(7)
    made = tvm_ffi.get_global_func("testing.echo")(block)
    assert type(made) is Buffer
    assert made.data_ptr() == block.data_ptr()
    block.close()
    assert made.tobytes() == b"\7" * 64
    made.close()
    backend.synchronize()
    assert backend.in_use() == before


def test_tvm_ffi_keeps_what_it_takes(backend, tvm_ffi):
    before = backend.settled_use()
    block = backend.filled(7)
    address = block.data_ptr()
    tensor = tvm_ffi.from_dlpack(block)
    block.close()
    again = from_dlpack(tensor)
    del tensor
    assert again.data_ptr() == address
    assert again.tobytes() == b"\7" * 64
    again.close()
    backend.synchronize()
    assert backend.in_use() == before


def test_tvm_ffi_works_on_the_current_stream(cuda, tvm_ffi):
    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    library.TVMFFIEnvGetStream.restype = ctypes.c_void_p
    stream, streams = cuda.stream(), []
    call = tvm_ffi.convert(
        lambda tensor: streams.append(library.TVMFFIEnvGetStream(CUDA, 0))
    )
    block = cuda.empty(64)
    with stream:
        call(block)
    call(block)
    assert streams == [stream.native_handle, None]


def test_tvm_ffi_allocates_by_the_table(backend, tvm_ffi):
    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    library.TVMFFIEnvGetDLPackManagedTensorAllocator.restype = ctypes.c_void_p
    found = []
    call = tvm_ffi.convert(
        lambda tensor: found.append(
            library.TVMFFIEnvGetDLPackManagedTensorAllocator()
        )
    )
    call(backend.empty(64))
    assert found == [ctypes.cast(TABLE.allocate, ctypes.c_void_p).value]


def test_tvm_ffi_reports_a_buffer_that_is_closed(tvm_ffi):
    block = pystreams.empty(1, device="cpu")
    block.close()
    with pytest.raises(ValueError, match="closed"):
        tvm_ffi.get_global_func("testing.echo")(block)


def test_table_of_tvm_ffi(backend, tvm_ffi):
    """This table has no function that allocates or describes."""
    block = backend.filled(5)
    wrapper = tvm_ffi.core.DLTensorTestWrapper(tvm_ffi.from_dlpack(block))
    assert table_of(type(wrapper)).managed_from_object
    again = from_dlpack(wrapper)
    assert again.data_ptr() == block.data_ptr()
    assert backend.empty(64).copy_(wrapper).tobytes() == b"\5" * 64
