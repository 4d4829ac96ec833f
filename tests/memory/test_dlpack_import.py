"""from_dlpack: which tensors are refused, what is checked, and how long their
memory is kept."""

import gc
import pickle
import threading
import weakref

import pytest
from producers import (
    CPU,
    CUDA,
    CUDA_HOST,
    PADDED,
    READ_ONLY,
    VERSION,
    Loan,
    Producer,
    Taken,
    place,
)

import pystreams
from pystreams import from_dlpack

forms = pytest.mark.parametrize(
    "versioned", [False, True], ids=["unversioned", "versioned"]
)


def lend(block, **options):
    """A loan of a Buffer's memory, which the caller keeps."""
    return Loan(**{**place(block), **options})


def test_there_and_back(backend):
    block = backend.filled(5)
    again = from_dlpack(block)
    assert again.data_ptr() == block.data_ptr()
    assert again.nbytes == 64
    assert again.device == block.device
    assert again.is_pinned() is False
    assert again.readonly is False
    block.fill_(6)
    assert again.tobytes() == b"\6" * 64
    again[8:16].zero_()
    assert block.tobytes() == b"\6" * 8 + bytes(8) + b"\6" * 48


def test_there_and_back_on_each_device(two_devices):
    block = two_devices.filled(3, index=1)
    two_devices.synchronize(1)
    again = from_dlpack(block)
    assert again.device == two_devices.device(1)
    assert again.tobytes() == b"\3" * 64
    assert two_devices.current_device() == 0


def test_pinned_memory_stays_pinned(pinning):
    block = pinning.empty(64, pin_memory=True).fill_(1)
    again = from_dlpack(block)
    assert again.data_ptr() == block.data_ptr()
    assert again.is_pinned() is (pinning.name == "cuda")
    assert again.tobytes() == b"\1" * 64


@forms
def test_memory_of_another_library(versioned):
    loan = Loan(b"0123456789", versioned=versioned)
    block = from_dlpack(loan.capsule())
    assert block.data_ptr() == loan.struct.tensor.data
    assert block.device == pystreams.device("cpu", 0)
    assert block.readonly is False
    assert block.tobytes() == b"0123456789"
    block[:5].copy_(b"abcde")
    assert loan.bytes == b"abcde56789"
    with memoryview(block) as view:
        view[9] = 0x21
    assert loan.bytes == b"abcde5678!"
    block.close()
    assert loan.deleted == 1


def test_by_its_producer():
    loan = Loan()
    producer = Producer(loan)
    block = from_dlpack(producer)
    assert block.tobytes() == loan.bytes
    assert producer.asked == {"max_version": VERSION}


@pytest.mark.parametrize(
    ("nbytes", "fields"),
    [
        (8, {"shape": [], "bits": 64}),
        (24, {"shape": [2, 3], "bits": 32}),
        (16, {"shape": [4], "bits": 8, "lanes": 4}),
        (2, {"shape": [4], "bits": 4}),
        (2, {"shape": [3], "bits": 4}),
        (1, {"shape": [3], "bits": 1}),
        (2, {"shape": [9], "bits": 1}),
        (3, {"shape": [3], "bits": 4, "flags": PADDED}),
        (0, {"shape": [0]}),
        (0, {"shape": [0, 5], "data": None}),
        (0, {"shape": [0], "data": None, "byte_offset": 8}),
        (0, {"shape": [2**62, 2**62, 0]}),
        (24, {"shape": [2, 3], "strides": [3, 1], "bits": 32}),
        (6, {"shape": [2, 1, 3], "strides": [3, 77, 1]}),
        (3, {"shape": [1, 3], "strides": [-9, 1]}),
        (0, {"shape": [0, 3], "strides": [7, 7]}),
    ],
    ids=str,
)
def test_size(nbytes, fields):
    loan = Loan(bytes(32), **fields)
    block = from_dlpack(loan.capsule())
    assert block.nbytes == nbytes
    assert block.tobytes() == bytes(nbytes)


def test_offset():
    loan = Loan(shape=[4], byte_offset=3)
    block = from_dlpack(loan.capsule())
    assert block.tobytes() == bytes([3, 4, 5, 6])
    assert block.data_ptr() == loan.struct.tensor.data + 3


def test_no_deleter():
    loan = Loan(deleter=0)
    block = from_dlpack(loan.capsule())
    assert block.tobytes() == loan.bytes
    block.close()


def test_read_only(backend):
    target = backend.filled(1)
    loan = lend(target, flags=READ_ONLY)
    block = from_dlpack(loan.capsule())
    assert block.readonly is True
    assert block[1:2].readonly is True
    for change in (
        lambda: block.fill_(2),
        block.zero_,
        lambda: block[3:4].zero_(),
        lambda: block.copy_(bytes(64)),
        lambda: backend.empty(64).copy_to(block),
        lambda: backend.empty(64).copy_to(lend(target, flags=READ_ONLY)),
    ):
        with pytest.raises((ValueError, TypeError), match=r"read-only|got"):
            change()
    assert target.tobytes() == b"\1" * 64
    assert backend.empty(64).copy_(block).tobytes() == b"\1" * 64
    with pytest.raises(BufferError, match="max_version"):
        block.__dlpack__()
    taken = Taken(block.__dlpack__(max_version=(1, 0)))
    assert taken.struct.flags == READ_ONLY
    taken.delete()
    taken = Taken(block.__dlpack__(copy=True))
    assert taken.tensor.data != target.data_ptr()
    taken.delete()


def test_read_only_views():
    block = from_dlpack(Loan(flags=READ_ONLY).capsule())
    with memoryview(block) as view:
        assert view.readonly
        assert bytes(view) == block.tobytes()


def test_copies_take_capsules_and_producers(backend):
    block = backend.filled(0, 16)
    for versioned in (False, True):
        loan = Loan(versioned=versioned)
        assert block.copy_(loan.capsule()).tobytes() == loan.bytes
        assert loan.deleted == 1
        block.fill_(7)
        assert block.copy_to(Producer(loan)) is block
        assert loan.bytes == b"\7" * 16
        assert loan.deleted == 2


LIES = {
    "negative extent": ({"shape": [4, -1]}, ValueError, "negative"),
    "extents overflow": ({"shape": [2**62, 2**62]}, ValueError, "overflow"),
    "overflow and -1": (
        {"shape": [2**63 - 1, 2**63 - 1, -1]},
        ValueError,
        "negative",
    ),
    "bits overflow": ({"shape": [2**60], "bits": 64}, ValueError, "overflow"),
    "no shape": ({"shape": None, "ndim": 1}, ValueError, "no shape"),
    "negative ndim": ({"ndim": -1}, ValueError, "-1 dimensions"),
    "too large ndim": ({"ndim": 2**31 - 1}, ValueError, "0 to 64"),
    "no bits": ({"bits": 0}, ValueError, "0 bits"),
    "no lanes": ({"lanes": 0}, ValueError, "0 lanes"),
    "no data": ({"data": None}, ValueError, "is impossible"),
    "no data but offset": (
        {"data": None, "byte_offset": 4096},
        ValueError,
        "is impossible",
    ),
    "offset overflow": ({"byte_offset": 2**64 - 1}, ValueError, "offset"),
    "past the end": (
        {"data": 2**64 - 8, "shape": [16]},
        ValueError,
        "is impossible",
    ),
    "every second": (
        {"shape": [8], "strides": [2]},
        ValueError,
        "contiguous",
    ),
    "backwards": ({"strides": [-1]}, ValueError, "contiguous"),
    "broadcast": ({"strides": [0]}, ValueError, "contiguous"),
    "transposed": (
        {"shape": [2, 8], "strides": [1, 2]},
        ValueError,
        "contiguous",
    ),
    "unknown device type": ({"device_type": 7}, BufferError, "type 7"),
    "no device type": ({"device_type": 0}, BufferError, "type 0"),
    "negative device type": ({"device_type": -1}, BufferError, "type -1"),
    "negative device id": ({"device_id": -1}, ValueError, "-1"),
    "cpu:1000": ({"device_id": 1000}, RuntimeError, "1000"),
    "cuda:1000": (
        {"device_type": CUDA, "device_id": 1000},
        RuntimeError,
        "1000|No CUDA",
    ),
}


@forms
@pytest.mark.parametrize("lie", LIES)
def test_lying_capsule(lie, versioned):
    """The capsule is refused, and its maker still has to clean it up."""
    fields, error, message = LIES[lie]
    loan = Loan(versioned=versioned, **fields)
    capsule = loan.capsule()
    with pytest.raises(error, match=message):
        from_dlpack(capsule)
    assert loan.deleted == 0
    del capsule
    assert loan.deleted == 1


@forms
def test_refused_capsule_can_be_taken_later(versioned):
    loan = Loan(versioned=versioned, ndim=-1)
    capsule = loan.capsule()
    with pytest.raises(ValueError, match="dimensions"):
        from_dlpack(capsule)
    loan.describe()
    assert from_dlpack(capsule).tobytes() == loan.bytes
    assert loan.deleted == 1


@pytest.mark.parametrize("lie", [lie for lie in LIES if lie != "cpu:1000"])
def test_lying_producer_of_a_copy(backend, lie):
    fields, error, message = LIES[lie]
    loan = Loan(**fields)
    producer = Producer(loan)
    block = backend.filled(1, 16)
    for copy in (block.copy_, block.copy_to):
        with pytest.raises(error, match=message):
            copy(producer)
    assert block.tobytes() == b"\1" * 16
    assert loan.bytes == bytes(range(16))


@pytest.mark.parametrize("major", [0, 2, 2**32 - 1])
def test_another_major_version(major):
    loan = Loan(major=major)
    capsule = loan.capsule()
    with pytest.raises(BufferError, match=f"version {major}"):
        from_dlpack(capsule)
    assert loan.deleted == 0
    del capsule
    assert loan.deleted == 1


@forms
def test_consumed_once(backend, versioned):
    loan = Loan(versioned=versioned)
    capsule = loan.capsule()
    block = from_dlpack(capsule)
    for again in (from_dlpack, backend.empty(16).copy_):
        with pytest.raises(ValueError, match="consumed already"):
            again(capsule)
    del capsule
    assert loan.deleted == 0
    assert block.tobytes() == loan.bytes
    block.close()
    assert loan.deleted == 1


@forms
def test_ours_is_consumed_once(backend, versioned):
    block = backend.filled(2)
    capsule = block.__dlpack__(max_version=(1, 0) if versioned else None)
    first = from_dlpack(capsule)
    with pytest.raises(ValueError, match="consumed already"):
        from_dlpack(capsule)
    assert first.tobytes() == b"\2" * 64


def test_copy_of_another_size_gives_back(backend):
    loan = Loan()
    block, capsule = backend.filled(1, 17), loan.capsule()
    with pytest.raises(ValueError, match="16 bytes"):
        block.copy_(capsule)
    assert loan.deleted == 1
    assert block.tobytes() == b"\1" * 17


class Strange:
    """A producer whose __dlpack__ returns this capsule; if that is None, it
    lacks the method."""

    def __init__(self, capsule, device=(CPU, 0)):
        if capsule is not None:
            self.__dlpack__ = lambda **_: capsule()
        if device is not None:
            self.__dlpack_device__ = lambda: device


class Failure(Exception):
    pass


def fail(*_, **__):
    raise Failure


@pytest.mark.parametrize(
    ("producer", "error", "message"),
    [
        (Strange(None), TypeError, "Strange"),
        (Strange(int, None), TypeError, "Strange"),
        (Strange(int), TypeError, "must give a capsule, but gave int"),
        (Strange(fail), Failure, None),
        (Strange(int, 5), TypeError, "must give a tuple"),
        (Strange(int, [1, 0]), TypeError, "must give a tuple"),
        (Strange(int, (1,)), TypeError, "must give a tuple"),
        (Strange(int, ("cpu", 0)), TypeError, "must give a tuple"),
        (Strange(int, (2**70, 0)), TypeError, "must give a tuple"),
        (Strange(int, (7, 0)), BufferError, "type 7"),
        (Strange(int, (CPU, -1)), ValueError, "-1"),
        (Strange(int, (CPU, 2**31)), ValueError, "2147483648"),
        (5, TypeError, "int"),
        (None, TypeError, "NoneType"),
        (bytes(16), TypeError, "bytes"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:20],
)
def test_no_producer(producer, error, message):
    with pytest.raises(error, match=message):
        from_dlpack(producer)


def test_no_such_capsule():
    import datetime

    with pytest.raises(TypeError, match="DLPack capsule"):
        from_dlpack(datetime.datetime_CAPI)


@pytest.mark.parametrize("raising", [fail, property(fail)], ids=type)
def test_device_that_raises(raising):
    class Raising(Producer):
        __dlpack_device__ = raising

    with pytest.raises(Failure):
        from_dlpack(Raising(Loan(), (CPU, 0)))


def test_producer_that_contradicts_itself(two_devices):
    """The device that __dlpack_device__ names decides the stream, so the
    capsule must name the same one."""
    if two_devices.name == "cpu":
        pytest.skip("cpu: host memory is one place, by any name")
    block = two_devices.empty(16)
    for promise in ((CUDA, 1), (CPU, 0), (CUDA_HOST, 0)):
        loan = lend(block)
        producer = Producer(loan, promise)
        with pytest.raises(BufferError, match=r"__dlpack_device__ said"):
            from_dlpack(producer)
        assert loan.deleted == 0
        del producer
        assert loan.deleted == 1
    producer = Producer(Loan(), (CUDA, 0))
    with pytest.raises(BufferError, match=r"device \(1, 0\).*said \(2, 0\)"):
        from_dlpack(producer)


def test_host_memory_by_either_name():
    """torch's pinned memory is CUDA_HOST in __dlpack_device__, but CPU in the
    capsule."""
    loan = Loan()
    assert from_dlpack(Producer(loan, (CUDA_HOST, 0))).tobytes() == loan.bytes


def test_older_producer(cuda):
    """It knows no max_version, but the stream."""

    class Older(Producer):
        def __dlpack__(self, stream=None):
            return super().__dlpack__(stream=stream)

    block = cuda.filled(3)
    loan = lend(block, versioned=False)
    producer = Older(loan)
    assert from_dlpack(producer).data_ptr() == block.data_ptr()
    assert producer.asked == {"stream": 1}


def test_type_error_of_a_producer():
    calls = []

    class Wrong(Producer):
        def __dlpack__(self, **options):
            calls.append(options)
            raise TypeError("of its own")

    with pytest.raises(TypeError, match="of its own"):
        from_dlpack(Wrong(Loan()))
    assert calls == [{"max_version": VERSION}, {}]


def test_from_dlpack_takes_one_argument():
    for arguments in ((), (Loan().capsule(), 1)):
        with pytest.raises(TypeError):
            from_dlpack(*arguments)


def test_is_not_pickled(backend):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(backend.empty(16), protocol)


def asked_stream(producer):
    return producer.asked["stream"]


def test_producer_is_asked_for_the_current_stream(cuda):
    block, stream = cuda.filled(1), cuda.stream()
    producer = Producer(lend(block))
    from_dlpack(producer)
    assert asked_stream(producer) == 1
    with stream:
        from_dlpack(producer)
    assert asked_stream(producer) == stream.native_handle


def test_producer_is_asked_for_the_stream_of_the_copy(cuda):
    block, stream, other = cuda.filled(1), cuda.stream(), cuda.stream()
    producer = Producer(lend(block))
    with other:
        for copy in (cuda.empty(64).copy_, cuda.empty(64).copy_to):
            copy(producer, stream=stream)
            assert asked_stream(producer) == stream.native_handle
            copy(producer)
            assert asked_stream(producer) == other.native_handle


def test_copy_waits_for_a_producer_of_another_device(two_devices):
    """The producer makes its own device's current stream wait; so must the
    stream of the copy, which is of another device."""
    if two_devices.name == "cpu":
        pytest.skip("cpu: a producer of host memory makes nothing wait")
    block = two_devices.filled(1)
    theirs, stream = two_devices.stream(0), two_devices.stream(1)
    target = two_devices.empty(64, 1, stream=stream)

    class Behind(Producer):
        def __dlpack__(self, *, stream, max_version):
            assert stream == 1
            block.fill_(2, stream=theirs)
            two_devices.default_stream().wait_stream(theirs)
            return super().__dlpack__()

    with two_devices.hold(theirs):
        target.copy_(Behind(lend(block)), stream=stream)
        assert not stream.query()
    stream.synchronize()
    with stream:
        assert target.tobytes() == b"\2" * 64


def test_kept_while_the_buffer_lives():
    loan = Loan()
    reference = weakref.ref(loan)
    block = from_dlpack(loan.capsule())
    part = block[4:8]
    del loan, block
    gc.collect()
    assert part.tobytes() == bytes([4, 5, 6, 7])
    assert reference() is not None
    del part
    assert reference() is None


def test_kept_while_a_view_lives():
    loan = Loan()
    view = memoryview(from_dlpack(loan.capsule()))
    assert bytes(view) == loan.bytes
    assert loan.deleted == 0
    view.release()
    del view
    assert loan.deleted == 1


@pytest.mark.parametrize("wait", ["stream", "event", "device"])
@pytest.mark.parametrize("side", ["source", "destination", "filled"])
def test_kept_while_queued_work_uses_it(backend, side, wait):
    """And given back by whatever waits for that work."""
    block, other = backend.filled(1), backend.filled(2)
    stream = backend.stream()
    loan = lend(block)
    borrowed = from_dlpack(loan.capsule())
    with backend.hold(stream):
        if side == "source":
            other.copy_(borrowed, non_blocking=True, stream=stream)
        elif side == "destination":
            borrowed.copy_(other, non_blocking=True, stream=stream)
        else:
            borrowed.fill_(2, stream=stream)
        borrowed.close()
        event = stream.record_event()
        del borrowed
        backend.empty(64).close()
        assert loan.deleted == 0
    if wait == "event":
        event.synchronize()
    elif wait == "stream":
        stream.synchronize()
    else:
        backend.synchronize()
    assert loan.deleted == 1
    if side == "source":
        assert other.tobytes() == b"\1" * 64
    else:
        assert block.tobytes() == b"\2" * 64


def test_kept_while_a_queued_copy_of_the_producer_uses_it(cuda):
    block, target = cuda.filled(1), cuda.filled(2)
    stream = cuda.stream()
    loan = lend(block)
    producer = Producer(loan)
    with cuda.hold(stream):
        target.copy_(producer, non_blocking=True, stream=stream)
        del producer
        gc.collect()
        assert loan.deleted == 0
    stream.synchronize()
    assert loan.deleted == 1
    assert target.tobytes() == b"\1" * 64


def test_given_back_from_any_thread():
    loans = [Loan() for _ in range(8)]
    blocks = [from_dlpack(loan.capsule()) for loan in loans]
    threads = [threading.Thread(target=block.close) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [loan.deleted for loan in loans] == [1] * 8


def test_borrowed_memory_is_not_counted(backend):
    block = backend.filled(1)
    before = backend.settled_use()
    borrowed = from_dlpack(block)
    parts = [borrowed[i:] for i in range(4)]
    host = from_dlpack(Loan(bytes(4096)).capsule())
    assert backend.in_use() == before
    del borrowed, parts, host
    gc.collect()
    assert backend.in_use() == before


def test_address_that_no_device_has(cuda):
    loan = Loan(device_type=CUDA)
    producer = Producer(loan)
    for take in (from_dlpack, cuda.empty(16).copy_, cuda.empty(16).copy_to):
        with pytest.raises(ValueError, match="but there is none"):
            take(producer)
