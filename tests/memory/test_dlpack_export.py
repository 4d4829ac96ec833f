"""Buffer.__dlpack__: the contents of a capsule, what its consumer's stream
waits for, and how long the memory is kept."""

import gc
import threading

import pytest
from producers import (
    CPU,
    CUDA,
    CUDA_HOST,
    IS_COPIED,
    VERSION,
    Taken,
    name_of,
)

from pystreams import from_dlpack


def expected_device(backend, index=0):
    return (CPU if backend.name == "cpu" else CUDA), index


def test_what_it_says(backend):
    block = backend.filled(1)[8:40]
    assert block.__dlpack_device__() == expected_device(backend)
    for version in (None, (1, 0)):
        taken = Taken(block.__dlpack__(max_version=version))
        tensor = taken.tensor
        assert taken.versioned is (version is not None)
        assert tensor.data == block.data_ptr()
        assert taken.device == expected_device(backend)
        assert tensor.ndim == 1
        assert tensor.shape[0] == 32
        assert tensor.strides[0] == 1
        assert (tensor.code, tensor.bits, tensor.lanes) == (1, 8, 1)
        assert tensor.byte_offset == 0
        if taken.versioned:
            assert (taken.struct.major, taken.struct.minor) == VERSION
            assert taken.struct.flags == 0
        taken.delete()


def test_of_each_device(two_devices):
    block = two_devices.empty(16, 1)
    assert block.__dlpack_device__() == expected_device(two_devices, 1)
    taken = Taken(block.__dlpack__())
    assert taken.device == expected_device(two_devices, 1)
    taken.delete()


def test_of_pinned_memory(pinning):
    block = pinning.empty(16, pin_memory=True).fill_(3)
    device = (CPU if pinning.name == "cpu" else CUDA_HOST), 0
    assert block.__dlpack_device__() == device
    for copy in (None, True):
        taken = Taken(block.__dlpack__(copy=copy))
        assert taken.device == device
        assert taken.tobytes() == b"\3" * 16
        assert (taken.tensor.data == block.data_ptr()) is (copy is None)
        taken.delete()


def test_of_nothing(backend):
    block = backend.empty(0)
    for copy in (None, True):
        taken = Taken(block.__dlpack__(copy=copy))
        assert taken.nbytes == 0
        taken.delete()
    assert from_dlpack(block).nbytes == 0


@pytest.mark.parametrize(
    ("version", "versioned"),
    [
        (None, False),
        ((0, 8), False),
        ((-1, 0), False),
        ((1, 0), True),
        ((1, 9), True),
        ((2, 0), True),
    ],
    ids=str,
)
def test_max_version(backend, version, versioned):
    capsule = backend.empty(16).__dlpack__(max_version=version)
    name = b"dltensor_versioned" if versioned else b"dltensor"
    assert name_of(capsule) == name


@pytest.mark.parametrize(
    "options",
    [
        {"max_version": 1},
        {"max_version": "1.0"},
        {"max_version": [1, 0]},
        {"max_version": (1,)},
        {"max_version": (1, 0, 0)},
        {"max_version": ("1", 0)},
        {"max_version": (2**40, 0)},
        {"dl_device": 1},
        {"dl_device": [1, 0]},
        {"dl_device": (1,)},
        {"dl_device": ("cpu", 0)},
        {"dl_device": (2**40, 0)},
        {"device": None},
    ],
    ids=str,
)
def test_arguments_of_another_type(backend, options):
    with pytest.raises(TypeError):
        backend.empty(16).__dlpack__(**options)


def test_takes_keywords_alone(backend):
    with pytest.raises(TypeError):
        backend.empty(16).__dlpack__(None)


def test_copy(backend):
    block = backend.filled(4)
    before = backend.settled_use()
    for version in (None, (1, 0)):
        capsule = block.__dlpack__(copy=True, max_version=version)
        assert backend.in_use() == before + 64
        copied = from_dlpack(capsule)
        assert copied.data_ptr() != block.data_ptr()
        assert copied.device == block.device
        block.fill_(5)
        assert copied.tobytes() == b"\4" * 64
        block.fill_(4)
        copied.close()
        del capsule
        backend.synchronize()
        assert backend.in_use() == before
    taken = Taken(block.__dlpack__(copy=True, max_version=(1, 0)))
    assert taken.struct.flags == IS_COPIED
    taken.delete()
    taken = Taken(block.__dlpack__(copy=False))
    assert taken.tensor.data == block.data_ptr()
    taken.delete()


def test_on_the_host(cuda):
    block = cuda.filled(4)
    for copy in (None, True):
        taken = Taken(block.__dlpack__(dl_device=(CPU, 0), copy=copy))
        assert taken.device == (CPU, 0)
        assert taken.tobytes() == b"\4" * 64
        taken.delete()
    with pytest.raises(BufferError, match="copy=False forbids"):
        block.__dlpack__(dl_device=(CPU, 0), copy=False)


@pytest.mark.parametrize("copy", [None, False])
def test_host_memory_is_the_hosts_already(two_devices, copy):
    pinned = two_devices.name != "cpu"
    block = two_devices.empty(64, 1, pin_memory=pinned)
    taken = Taken(block.__dlpack__(dl_device=(CPU, 0), copy=copy))
    assert taken.device == (CPU, 0)
    assert taken.tensor.data == block.data_ptr()
    taken.delete()


def test_on_its_own_device(backend):
    block = backend.empty(64)
    device = block.__dlpack_device__()
    taken = Taken(block.__dlpack__(dl_device=device, copy=False))
    assert taken.tensor.data == block.data_ptr()
    taken.delete()


@pytest.mark.parametrize("device", [(CUDA, 1000), (7, 0), (-1, 0)], ids=str)
def test_on_no_such_device(backend, device):
    with pytest.raises(BufferError, match="cannot be given"):
        backend.empty(16).__dlpack__(dl_device=device)


def test_of_a_closed_buffer(backend):
    block = backend.empty(16)
    block.close()
    for use in (
        block.__dlpack__,
        block.__dlpack_device__,
        lambda: from_dlpack(block),
        lambda: backend.empty(16).copy_(block),
        lambda: backend.empty(16).copy_to(block),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


@pytest.mark.parametrize("stream", [None, -1, 1, 2], ids=str)
def test_stream_numbers(cuda, stream):
    taken = Taken(cuda.empty(16).__dlpack__(stream=stream))
    taken.delete()


@pytest.mark.parametrize(
    ("stream", "error", "message"),
    [
        (0, ValueError, "ambiguous"),
        (-2, ValueError, "-2"),
        (2**64, ValueError, "18446744073709551616"),
        (True, TypeError, "bool"),
        (False, TypeError, "bool"),
        ("1", TypeError, "str"),
        (1.0, TypeError, "float"),
    ],
    ids=str,
)
def test_refused_stream_numbers(cuda, stream, error, message):
    block = cuda.empty(16)
    before = cuda.settled_use()
    with pytest.raises(error, match=message):
        block.__dlpack__(stream=stream)
    with pytest.raises(error, match=message):
        block.__dlpack__(stream=stream, copy=True)
    assert cuda.in_use() == before


def test_unknown_stream(cuda):
    if not cuda.on_engine:
        pytest.skip(f"{cuda}: a wrong handle cannot be told from a live one")
    with pytest.raises(RuntimeError, match="invalid resource handle"):
        cuda.empty(16).__dlpack__(stream=12345678)


@pytest.mark.parametrize("stream", [-1, 0, 1, 2, 4096, True, "1"], ids=str)
def test_host_memory_has_no_stream(backend, stream):
    block = backend.host(16)
    with pytest.raises(ValueError, match="expects None for stream"):
        block.__dlpack__(stream=stream)


def use_on(cuda, how, stream):
    """A Buffer that the stream's work uses."""
    if how == "allocation":
        return cuda.empty(64, stream=stream)
    block = cuda.empty(64)
    if how == "fill":
        block.fill_(1, stream=stream)
    elif how == "copy to it":
        block.copy_(cuda.empty(64), stream=stream)
    elif how == "copy from it":
        cuda.empty(64).copy_(block, stream=stream)
    elif how == "record_stream":
        block.record_stream(stream)
    elif how == "slice":
        block[8:16].zero_(stream=stream)
    else:
        stream.__enter__()
    return block


USES = (
    "allocation",
    "fill",
    "copy to it",
    "copy from it",
    "record_stream",
    "slice",
    "current",
)


@pytest.mark.parametrize("how", USES)
def test_consumers_stream_waits_for(cuda, how):
    stream, theirs = cuda.stream(), cuda.stream()
    with cuda.hold(stream):
        block = use_on(cuda, how, stream)
        free = Taken(block.__dlpack__(stream=-1))
        assert theirs.query()
        taken = Taken(block.__dlpack__(stream=theirs.native_handle))
        assert not theirs.query()
    theirs.synchronize()
    assert stream.query()
    free.delete()
    taken.delete()


@pytest.mark.parametrize("number", [None, 1], ids=str)
def test_default_stream_waits(cuda, number):
    stream, default = cuda.stream(), cuda.default_stream()
    with cuda.hold(stream):
        block = use_on(cuda, "fill", stream)
        taken = Taken(block.__dlpack__(stream=number))
        assert not default.query()
    default.synchronize()
    taken.delete()


def test_copy_for_a_consumer_waits(cuda):
    """The copy comes after the work on the memory, and the consumer's stream
    after the copy."""
    stream, theirs = cuda.stream(), cuda.stream()
    block = cuda.filled(1)
    with cuda.hold(stream):
        block.fill_(2, stream=stream)
        capsule = block.__dlpack__(stream=theirs.native_handle, copy=True)
        assert not theirs.query()
    copied = from_dlpack(capsule)
    theirs.synchronize()
    target = cuda.host(64)
    target.copy_(copied, stream=theirs)
    assert bytes(memoryview(target)) == b"\2" * 64


@pytest.mark.parametrize("how", ["host memory", "a copy on the host"])
def test_the_host_is_waited_for(backend, how):
    """The call blocks, with the GIL released, until the bytes are there."""
    block = backend.host(64) if how == "host memory" else backend.empty(64)
    block.fill_(1)
    backend.synchronize()
    stream, taken = backend.stream(), []

    def export():
        device = (CPU, 0) if how != "host memory" else None
        taken.append(Taken(block.__dlpack__(dl_device=device)))

    thread = threading.Thread(target=export)
    with backend.hold(stream):
        block.fill_(2, stream=stream)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    thread.join()
    assert taken[0].tobytes() == b"\2" * 64
    taken[0].delete()


@pytest.mark.parametrize("end", ["close", "del"])
def test_memory_outlives_its_buffer(backend, end):
    before = backend.settled_use()
    block = backend.filled(6)
    taken = Taken(block.__dlpack__())
    if end == "close":
        block.close()
    else:
        del block
    gc.collect()
    assert backend.in_use() == before + 64
    others = [backend.filled(7) for _ in range(10)]
    assert taken.tensor.data not in {other.data_ptr() for other in others}
    del others
    taken.delete()
    assert backend.in_use() == before


def test_capsule_that_nobody_takes(backend):
    before = backend.settled_use()
    capsule = backend.empty(4096).__dlpack__()
    assert backend.in_use() == before + 4096
    del capsule
    assert backend.in_use() == before


def test_given_back_on_another_thread(backend):
    before = backend.settled_use()
    taken = [Taken(backend.empty(64).__dlpack__()) for _ in range(8)]
    threads = [threading.Thread(target=one.delete) for one in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backend.in_use() == before


def test_given_back_while_work_uses_it(backend):
    """The memory is not handed out again before the work is done."""
    block, target = backend.filled(1, 4096), backend.host(4096)
    stream = backend.stream()
    taken = Taken(block.__dlpack__())
    with backend.hold(stream):
        target.copy_(block, non_blocking=True, stream=stream)
        block.close()
        taken.delete()
        for _ in range(10):
            backend.empty(4096).fill_(2)
        backend.wait_beside(backend.current_stream())
    stream.synchronize()
    assert bytes(memoryview(target)) == b"\1" * 4096


def test_many_owners_in_a_row(backend):
    """A Buffer of a capsule of a Buffer of a capsule ..."""
    before = backend.settled_use()
    block = backend.filled(9)
    address = block.data_ptr()
    for _ in range(50):
        block = from_dlpack(block)
    gc.collect()
    assert backend.in_use() == before + 64
    assert block.data_ptr() == address
    assert block.tobytes() == b"\t" * 64
    block.close()
    assert backend.in_use() == before


def test_numpy_takes_host_memory(backend, numpy):
    block = backend.host(64).fill_(1)
    array = numpy.from_dlpack(block)
    assert array.dtype == numpy.uint8
    assert array.ctypes.data == block.data_ptr()
    block.close()
    gc.collect()
    assert array.tolist() == [1] * 64
    array[:4] = 5
    assert array.tobytes() == b"\5" * 4 + b"\1" * 60


def test_numpy_takes_nothing(numpy):
    from pystreams import empty

    assert numpy.from_dlpack(empty(0, device="cpu")).shape == (0,)


def test_numpy_takes_a_copy_of_device_memory(cuda, numpy):
    block = cuda.filled(3)
    array = numpy.from_dlpack(block, device="cpu")
    assert array.tolist() == [3] * 64
    with pytest.raises(BufferError):
        numpy.from_dlpack(block, device="cpu", copy=False)


@pytest.mark.unscheduled
def test_numpy_gives(numpy):
    array = numpy.arange(12, dtype="f4").reshape(3, 4)
    block = from_dlpack(array)
    assert block.data_ptr() == array.ctypes.data
    assert block.tobytes() == array.tobytes()
    block.zero_()
    block.close()
    assert not array.any()


def test_numpy_gives_read_only(numpy):
    array = numpy.arange(12)
    array.flags.writeable = False
    block = from_dlpack(array)
    assert block.readonly is True
    assert numpy.from_dlpack(block).flags.writeable is False


def test_numpy_gives_what_is_not_contiguous(numpy):
    array = numpy.zeros((4, 4))
    for view in (array.T[1:], array[:, ::2], array[::-1]):
        with pytest.raises(ValueError, match="contiguous"):
            from_dlpack(view)


EXIT = """
import gc, threading
import pystreams
from pystreams import _C, from_dlpack
device = pystreams.device({name!r}, 0)
block = pystreams.empty(1 << 16, device=device)
host = pystreams.empty(64, device="cpu")
"""

ALIVE = {
    "capsule": "capsule = block.__dlpack__()",
    "borrowed": "again = from_dlpack(block); part = again[1:9]",
    "borrowed, its lender gone": "again = from_dlpack(block); del block",
    "in use": """
stream = pystreams.Stream(device)
block = pystreams.empty(1 << 16, device=device, stream=stream)
_C.sleep(stream.device_type, 50_000_000, stream)
from_dlpack(block).fill_(1, stream=stream)
again = from_dlpack(block).zero_(stream=stream)
""",
    "cycle": """
class Cycle: pass
cycle = Cycle()
cycle.itself, cycle.block = cycle, from_dlpack(block)
cycle.capsule = block.__dlpack__()
""",
    "on a thread": """
def hold():
    again = from_dlpack(block)
    ready.set()
    threading.Event().wait()
ready = threading.Event()
threading.Thread(target=hold, daemon=True).start()
ready.wait()
""",
    "numpy": """
import numpy
array = numpy.from_dlpack(host)
mine = numpy.zeros(64)
borrowed = from_dlpack(mine)
view = memoryview(borrowed)
again = numpy.from_dlpack(borrowed)
""",
}


@pytest.mark.parametrize("alive", ALIVE)
def test_exit(backend, run_python, alive):
    if alive == "numpy":
        pytest.importorskip("numpy", reason="needs NumPy")
    done = run_python(EXIT.format(name=backend.name) + ALIVE[alive])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
