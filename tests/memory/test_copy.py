"""Copies between Buffers and host objects of other libraries: which are
accepted, when the call returns, and what is refused before any byte moves."""

import array
import ctypes
import gc
import mmap
import sys
import threading
import time
import weakref

import pytest

import pystreams
from pystreams import empty

DATA = bytes(range(48))


def anonymous_map():
    return mmap.mmap(-1, 48)


class Record(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int32), ("Own", ctypes.c_double * 5))


# Writable objects of 48 bytes.
WRITABLE = {
    "bytearray": lambda: bytearray(48),
    "memoryview": lambda: memoryview(bytearray(48)),
    "part": lambda: memoryview(bytearray(80))[16:64],
    "cast": lambda: memoryview(bytearray(48)).cast("d"),
    "two dimensions": lambda: memoryview(bytearray(48)).cast("H", (4, 6)),
    "no dimension": lambda: memoryview(bytearray(48)[:1]).cast("B", ()),
    "array": lambda: array.array("I", bytes(48)),
    "anonymous mmap": anonymous_map,
    "ctypes array": lambda: (ctypes.c_int16 * 24)(),
    "ctypes of arrays": lambda: ((ctypes.c_uint8 * 8) * 6)(),
    "ctypes structure": Record,
    "ctypes value": lambda: ctypes.c_double(),
}


@pytest.mark.parametrize("non_blocking", [False, True], ids=["wait", "queue"])
@pytest.mark.parametrize("kind", WRITABLE)
def test_host_objects(backend, kind, non_blocking):
    """A copy from or to pageable memory of others returns when it is done, in
    any case."""
    target = WRITABLE[kind]()
    size = memoryview(target).nbytes
    block = backend.empty(size).copy_(DATA[:size])
    assert block.copy_to(target, non_blocking) is block
    assert bytes(target) == DATA[:size]
    again = backend.empty(size)
    assert again.copy_(target, non_blocking) is again
    assert again.tobytes() == DATA[:size]


@pytest.mark.parametrize("kind", WRITABLE)
def test_pinned_memory_and_host_objects(pinning, kind):
    target = WRITABLE[kind]()
    size = memoryview(target).nbytes
    block = pinning.empty(size, pin_memory=True).copy_(DATA[:size])
    block.copy_to(target)
    assert bytes(target) == DATA[:size]
    assert block.zero_().copy_(target).tobytes() == DATA[:size]


def test_read_only_sources(backend, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for source in (DATA, memoryview(DATA), memoryview(DATA).cast("Q"), mapped):
        block = backend.empty(48)
        assert block.copy_(source).tobytes() == DATA
        with pytest.raises(ValueError, match="read-only"):
            block.copy_to(source)
    mapped.close()


def test_file_in_memory(backend, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    block = backend.empty(mmap.PAGESIZE).fill_(5)
    block.copy_to(mapped)
    mapped.close()
    assert path.read_bytes() == b"\5" * mmap.PAGESIZE


@pytest.mark.parametrize("dtype", ["u1", "?", "<f2", ">i4", "f8", "c16", "V6"])
def test_numpy_types(backend, numpy, dtype):
    source = numpy.frombuffer(DATA, dtype)
    block = backend.empty(48).copy_(source)
    assert block.tobytes() == DATA
    target = numpy.empty_like(source)
    block.copy_to(target)
    assert target.tobytes() == DATA


def test_numpy_shapes(backend, numpy):
    flat = numpy.frombuffer(DATA, "u1")
    for shape in ((48,), (6, 8), (2, 3, 8), (1, 48, 1)):
        block = backend.empty(48).copy_(flat.reshape(shape))
        assert block.tobytes() == DATA
        target = numpy.zeros(shape, "u1")
        block.copy_to(target)
        assert target.tobytes() == DATA
    assert backend.empty(8).copy_(flat[8:16]).tobytes() == DATA[8:16]
    assert backend.empty(8).copy_(numpy.float64(1)).nbytes == 8
    assert backend.empty(0).copy_(numpy.empty((0, 4))).nbytes == 0


def test_numpy_records(backend, numpy):
    """The names of fields may contain any letter."""
    dtype = numpy.dtype([("Order", "i4"), ("O", "f4", (2,))])
    source = numpy.zeros(4, dtype)
    source["Order"] = 7
    assert backend.empty(48).copy_(source).tobytes() == source.tobytes()


@pytest.mark.parametrize("of", ["columns", "every second", "backwards"])
def test_numpy_that_is_not_contiguous(backend, numpy, of):
    base = numpy.zeros((8, 12), "u1")
    other = {
        "columns": base.T[:, :4],
        "every second": base[::2],
        "backwards": base[:4][::-1],
    }[of]
    block = backend.empty(48).fill_(1)
    for copy in (block.copy_, block.copy_to):
        with pytest.raises((ValueError, BufferError), match="contiguous"):
            copy(other)
    assert block.tobytes() == b"\1" * 48
    assert not base.any()


def test_python_objects(backend, numpy):
    block = backend.empty(48).fill_(1)
    record = numpy.dtype([("name", "i8"), ("object", "O")])
    for other in (
        numpy.array([None] * 6),
        numpy.zeros(3, record),
        (ctypes.py_object * 6)(),
    ):
        for copy in (block.copy_, block.copy_to):
            with pytest.raises(TypeError, match="Python objects"):
                copy(other)
    assert block.tobytes() == b"\1" * 48


def test_bytearray_can_be_resized_afterwards(backend):
    """After the copy, no export of the bytearray is left."""
    block = backend.empty(48)
    for non_blocking in (False, True):
        other = bytearray(DATA)
        block.copy_(other, non_blocking)
        other.append(1)
        del other[48:]
        block.copy_to(other, non_blocking)
        other.clear()
        assert block.tobytes() == DATA


def test_array_and_map_are_free_afterwards(backend):
    block = backend.empty(48)
    other, mapped = array.array("B", DATA), anonymous_map()
    block.copy_(other)
    other.append(1)
    block.copy_to(mapped)
    assert mapped[:] == DATA
    mapped.close()


def test_bytearrays_of_many_threads(backend):
    """No bytearray stays exported, even while another thread cleans up."""

    def work():
        block = backend.empty(48)
        for _ in range(200):
            other = bytearray(DATA)
            block.copy_(other)
            try:
                other.append(1)
            except BufferError as error:
                errors.append(error)

    errors = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_refused_object_is_free_afterwards(backend):
    other = bytearray(47)
    for copy in (backend.empty(48).copy_, backend.empty(48).copy_to):
        with pytest.raises(ValueError, match="47"):
            copy(other)
    other.append(1)


def test_object_is_not_kept(backend):
    class Array(array.array):
        pass

    other = Array("B", DATA)
    reference = weakref.ref(other)
    backend.empty(48).copy_(other).copy_to(other)
    del other
    assert reference() is None


@pytest.mark.parametrize("non_blocking", [False, True], ids=["wait", "queue"])
def test_copy_to_waits_for_what_is_before_it(backend, non_blocking):
    block, stream = backend.empty(48), backend.stream()
    target = bytearray(48)
    backend.sleep(stream, 1)
    block.copy_(DATA, stream=stream)
    backend.sleep(stream, 1)
    block.copy_to(target, non_blocking, stream)
    assert target == DATA
    assert stream.query()


def test_copy_to_a_buffer_does_not_wait(backend):
    block, target = backend.empty(48), backend.host(48)
    stream = backend.stream()
    memoryview(target)[:] = bytes(48)
    block.copy_(DATA)
    with backend.hold(stream):
        block.copy_to(target, non_blocking=True, stream=stream)
        assert not stream.query()
        assert bytes(memoryview(target)) == bytes(48)
    stream.synchronize()
    assert bytes(memoryview(target)) == DATA


def test_copy_to_on_the_current_stream(backend):
    block, stream = backend.empty(48).copy_(DATA), backend.stream()
    target = backend.empty(48)
    backend.synchronize()
    with backend.hold(stream), stream:
        block.copy_to(target, non_blocking=True)
        assert not stream.query()
    stream.synchronize()
    assert target.tobytes() == DATA


def test_other_threads_run_meanwhile(backend):
    """The GIL is released while a copy is waited for."""
    block, stream = backend.empty(48).fill_(3), backend.stream()
    backend.synchronize()
    target = bytearray(48)
    thread = threading.Thread(
        target=block.copy_to, args=(target, False, stream)
    )
    with backend.hold(stream):
        thread.start()
        thread.join(0.02)
        assert thread.is_alive()
        block.close()
    thread.join()
    assert target == b"\3" * 48


@pytest.mark.parametrize(
    "other", [5, "x" * 48, None, [0] * 48, object()], ids=lambda o: repr(o)[:6]
)
def test_other_objects(backend, other):
    block = backend.empty(48)
    for copy in (block.copy_, block.copy_to):
        with pytest.raises(TypeError, match=type(other).__name__):
            copy(other)


def test_sizes(backend):
    block = backend.empty(48).fill_(1)
    for size in (0, 47, 49, 96):
        other = bytearray(size)
        with pytest.raises(ValueError, match=f"source has {size} bytes"):
            block.copy_(other)
        with pytest.raises(ValueError, match=f"destination {size}"):
            block.copy_to(other)
        assert other == bytes(size)
    assert block.tobytes() == b"\1" * 48


def test_nothing(backend):
    block = backend.empty(0)
    for other in (bytearray(), memoryview(bytearray()), array.array("d")):
        assert block.copy_(other) is block
        assert block.copy_to(other) is block


def test_closed(backend):
    block, other = backend.empty(48), bytearray(DATA)
    block.close()
    for use in (
        lambda: block.copy_(other),
        lambda: block.copy_to(other),
        lambda: backend.empty(48).copy_to(block),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    other.append(1)


def test_stream_of_another_backend(cuda):
    block, other = empty(48, device="cpu").fill_(1), bytearray(DATA)
    for copy in (block.copy_, block.copy_to):
        expected = f"{copy.__name__}\\(\\) expects a stream of cpu for stream"
        with pytest.raises(ValueError, match=expected):
            copy(other, stream=cuda.stream())
        with pytest.raises(TypeError, match="int"):
            copy(other, stream=5)
    assert other == DATA
    assert block.tobytes() == b"\1" * 48


def test_arguments(backend):
    block = backend.empty(48).copy_(DATA)
    target = bytearray(48)
    block.copy_to(dst=target, non_blocking=False, stream=None)
    assert target == DATA
    for wrong in (
        lambda: block.copy_to(),
        lambda: block.copy_to(target, False, None, None),
        lambda: block.copy_to(target, dst=target),
        lambda: block.copy_to(target, device="cpu"),
    ):
        with pytest.raises(TypeError):
            wrong()

    for wrong in ("x", 1.5, object()):
        with pytest.raises(TypeError, match="expects a bool for non_blocking"):
            block.copy_to(target, wrong)
    block.copy_to(target, None)


def test_onto_itself_nothing_is_done(backend):
    block = backend.empty(64).fill_(3)
    backend.synchronize()
    stream = backend.stream()
    with backend.hold(stream), stream:
        for part in (block, block[8:40], block[64:]):
            # Such a copy is neither queued nor waited for.
            assert part.copy_(part) is part
            assert part.copy_to(part) is part
            assert part.copy_(part, stream=stream) is part
    assert block.tobytes() == bytes([3]) * 64


def test_onto_itself_the_arguments_are_checked(cuda):
    block = cuda.empty(8).zero_()
    with pytest.raises(ValueError, match="expects a stream of cuda"):
        block.copy_(block, stream=pystreams.Stream("cpu"))
    block.close()
    with pytest.raises(ValueError, match="closed"):
        block.copy_(block)


def test_a_view_of_itself(pinning):
    pinned = pinning.empty(96, pin_memory=True).copy_(DATA + DATA)
    host = empty(96, device="cpu").copy_(DATA + DATA)
    for block in (pinned, host):
        with memoryview(block) as whole, whole[24:72] as part:
            for copy in (block[:48].copy_, block[:48].copy_to):
                for other in (whole[:48], part, part.cast("I")):
                    with pytest.raises(ValueError, match="overlap"):
                        copy(other)
            assert bytes(whole) == DATA + DATA
            block[:48].copy_(whole[48:])
            block[:24].zero_()
            pinning.synchronize()
            pystreams.Stream("cpu").synchronize()
            block[:48].copy_to(whole[48:])
            assert bytes(whole[48:]) == bytes(whole[:48])


def test_memory_of_one_object_by_two_ways(numpy):
    base = numpy.arange(96, dtype="u1")
    block = pystreams.from_dlpack(base)
    for other in (base, base[:], memoryview(base)):
        with pytest.raises(ValueError, match="overlap"):
            block.copy_(other)
        with pytest.raises(ValueError, match="overlap"):
            block.copy_to(other)
    block[:48].copy_(base[48:])
    gc.collect()
    assert base.tolist() == [*range(48, 96)] * 2


def test_copies_that_raise_leave_no_trace(backend):
    """After a copy to a read-only destination was refused, the Buffer can be
    closed."""
    other = memoryview(DATA)
    block = backend.empty(48).fill_(2)
    with pytest.raises(ValueError, match="read-only: memoryview"):
        block.copy_to(other)
    other.release()
    block.close()


class InNameAlone:
    """An object with the buffer protocol that refuses to export its memory, as
    arrays of CuPy and of JAX do."""

    def __init__(self, block, refusal):
        self.block = block
        self.refusal = refusal

    def __buffer__(self, flags):
        raise self.refusal("the host must not look at this")

    def __dlpack__(self, **options):
        return self.block.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.block.__dlpack_device__()


@pytest.mark.parametrize("refusal", [TypeError, BufferError])
def test_buffer_protocol_in_name_alone(backend, refusal):
    if sys.version_info < (3, 12):
        pytest.skip("classes have no __buffer__ before Python 3.12")
    source, target = backend.empty(48).copy_(DATA), backend.empty(48)
    target.copy_(InNameAlone(source, refusal))
    assert target.tobytes() == DATA
    source.zero_().copy_to(InNameAlone(target, refusal))
    assert target.tobytes() == bytes(48)


@pytest.mark.parametrize("refusal", [TypeError, MemoryError])
def test_no_view_and_no_other_way(backend, refusal):
    """The refusal is raised.  If the search for another way raises, that
    exception is raised."""
    if sys.version_info < (3, 12):
        pytest.skip("classes have no __buffer__ before Python 3.12")

    class Viewless:
        def __buffer__(self, flags):
            raise refusal("the host must not look at this")

    class Broken(Viewless):
        @property
        def __dlpack__(self):
            raise LookupError

    block = backend.empty(48)
    with pytest.raises(refusal, match="must not look"):
        block.copy_(Viewless())
    with pytest.raises(LookupError if refusal is TypeError else refusal):
        block.copy_to(Broken())


def test_a_copy_behind_a_callable_keeps_nobody_out(backend):
    """While the copy waits for the callable, it blocks neither the callable
    nor allocations of other threads."""
    stream, source = backend.stream(), backend.empty(1000)
    source.fill_(7, stream=stream)
    source.record_stream(stream)
    done, target = threading.Event(), bytearray(1000)

    def make():
        while not done.is_set():
            backend.stream().record_event().synchronize()

    def work():
        time.sleep(0.1)
        return backend.stream().record_event().wait()

    future = stream.submit(work)
    maker = threading.Thread(target=make)
    copier = threading.Thread(
        target=source.copy_to, args=[target], kwargs={"stream": stream}
    )
    maker.start()
    copier.start()
    assert future.result(30) is None
    copier.join(30)
    assert not copier.is_alive() and target == bytes([7]) * 1000
    done.set()
    maker.join()


INTERRUPTED = """
import signal
import pystreams
from pystreams import accelerator, cuda
from pystreams.testing import hold

def interrupt(*args):
    raise ZeroDivisionError

signal.signal(signal.SIGALRM, interrupt)
nbytes = 1 << 26
stream = cuda.Stream()
block = pystreams.empty(nbytes, device="cuda", stream=stream)
source = pystreams.empty(nbytes, device="cpu").fill_(7)
source.stream.synchronize()
with hold(stream):
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        block.copy_(source, stream=stream)
    except ZeroDivisionError:
        print("interrupted")
    source.close()
    pystreams.empty(nbytes, device="cpu").fill_(9).stream.synchronize()
with stream:
    print(set(block.tobytes()))
"""


def test_an_interrupted_copy_from_another_backend(run_python):
    """The copy goes on reading the memory, which is not used again."""
    env = {"PYSTREAMS_EMULATE_CUDA": "1"}
    done = run_python(INTERRUPTED, env=env)
    assert (done.stdout, done.stderr) == ("interrupted\n{7}\n", "")
