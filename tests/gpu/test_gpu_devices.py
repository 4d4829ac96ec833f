"""GPUs that a process does not use stay untouched, the current device stays
current, and CUDA_VISIBLE_DEVICES hides what it should."""

import ctypes
import multiprocessing
import uuid

import pytest

import pystreams
from pystreams import _C
from pystreams import cuda as api

# used(index) returns the bytes in use on a GPU by all processes.  It asks
# NVML, which makes no context.  active(index) returns whether this process has
# a context.
PROLOGUE = """
import ctypes, gc
import pystreams
from pystreams import _C, cuda
nvml, driver = (ctypes.CDLL(f"lib{n}.so.1") for n in ("nvidia-ml", "cuda"))
assert nvml.nvmlInit_v2() == 0
def used(index):
    device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    uuid = f"GPU-{cuda.get_device_properties(index).uuid}".encode()
    assert nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
    return memory[2]
def active(index):
    flags, answer = ctypes.c_uint(), ctypes.c_int()
    assert driver.cuDevicePrimaryCtxGetState(
        index, ctypes.byref(flags), ctypes.byref(answer)) == 0
    return bool(answer.value)
"""

USES = {
    "streams and events": """
stream, other = cuda.Stream(1), pystreams.Stream("cuda:1", priority=-1)
event, end = (cuda.Event(enable_timing=True) for _ in range(2))
event.record(stream)
other.wait_event(event)
other.wait_stream(stream)
end.record(other)
end.synchronize()
event.elapsed_time(end)
assert stream.query() and event.query()
stream.synchronize()
cuda.synchronize(1)
del stream, other, event, end
gc.collect()
""",
    "memory": """
block = pystreams.empty(1 << 20, device="cuda:1").fill_(1)
host = pystreams.empty(1 << 20, device="cuda:1", pin_memory=True)
block.copy_to(host)
assert host.memoryview()[0] == 1 and block.tobytes()[-1] == 1
block.__dlpack__(stream=-1)
block.__cuda_array_interface__
assert pystreams.from_dlpack(block).copy_(bytes(1 << 20)).tobytes()[0] == 0
cuda.mem_get_info(1)
cuda.memory_stats(1)
del block, host
gc.collect()
""",
    "callables and sleeps": """
stream = cuda.Stream(1)
_C.sleep(1, 1000, stream)
assert stream.submit(int).result(60) == 0
pystreams.wait([stream, stream.record_event()])
stream.synchronize(timeout=60)
""",
    "currents": """
with cuda.device(1), cuda.stream(cuda.Stream(1)):
    cuda.Event().record()
    pystreams.Event("cuda").record()
    cuda.current_stream().synchronize()
with cuda.Stream(1):
    cuda.Event().record()
cuda.current_stream(1), cuda.default_stream(1).query()
""",
    "another library's": """
class Theirs:
    handle = cuda.Stream(1)
    def __cuda_stream__(self):
        return 0, self.handle.cuda_stream
with cuda.device(1):
    external = cuda.ExternalStream(Theirs())
assert external.device_index == 1
external.record_event().synchronize()
cuda.ExternalStream(Theirs.handle.cuda_stream, 1).synchronize()
""",
    "questions": """
assert cuda.device_count() > 1 and cuda.is_available()
cuda.get_device_name(0), cuda.get_device_capability(0)
cuda.current_device(), cuda.can_device_access_peer(1, 0)
cuda.Stream(1).synchronize()
""",
    "a thread": """
import threading
def work():
    assert cuda.current_device() == 0
    with cuda.device(1):
        cuda.Stream().synchronize()
    cuda.Stream(1).record_event().synchronize()
thread = threading.Thread(target=work)
thread.start()
thread.join()
""",
}

UNTOUCHED = """
before = used(0)
{use}
assert active(1) and not active(0)
after = used(0)
assert abs(after - before) < 1 << 20, (before, after)
cuda.Stream(0).synchronize()
assert active(0) and used(0) - before > 1 << 20
"""


@pytest.mark.whole_gpu
@pytest.mark.parametrize("use", USES)
def test_an_untouched_gpu(two_gpus, run_python, use):
    """All objects are on device 1; device 0, which is current, stays unused.
    At the end, a use of device 0 shows that a use would be noticed."""
    done = run_python(PROLOGUE + UNTOUCHED.format(use=USES[use]))
    assert (done.returncode, done.stderr) == (0, "")


def failing_calls(backend):
    """Return calls that fail, by what is wrong with them.  They are for device
    0 or for no device."""
    name, count = backend.name, backend.count
    stream, event = backend.stream(0), backend.event()
    event.record(stream)
    block, small = backend.empty(64, 0), backend.empty(32, 1)
    closed, gone = backend.stream(0), backend.empty(16, 0)
    closed.close()
    gone.close()
    return {
        "ordinal": lambda: pystreams.Stream(f"{name}:{count}"),
        "no memory": lambda: backend.empty(1 << 60, 0),
        "negative size": lambda: backend.empty(-1, 0),
        "keyword": lambda: pystreams.Stream(f"{name}:0", nonsense=1),
        "event of another device": lambda: event.record(backend.stream(1)),
        "not an event": lambda: stream.wait_event(stream),
        "not a stream": lambda: stream.wait_stream(event),
        "stream of another device": lambda: pystreams.empty(
            16, device=f"{name}:0", stream=backend.stream(1)
        ),
        "sizes": lambda: block.copy_(small),
        "a byte": lambda: block.fill_(256),
        "closed stream": closed.synchronize,
        "closed buffer": gone.tobytes,
        "device of a handle": lambda: pystreams.ExternalStream(
            stream.native_handle, f"{name}:1"
        ),
        "not a handle": lambda: pystreams.ExternalStream("1", f"{name}:0"),
        "current device": lambda: _C.set_device(backend.type, count),
        "current stream": lambda: _C.set_stream(1),
        "elapsed": lambda: event.elapsed_time(backend.event()),
        "timeout": lambda: stream.synchronize(timeout="1"),
        "properties": lambda: _C.device_properties(backend.type, count),
        "dlpack": lambda: block.__dlpack__(stream=0),
        "sleep": lambda: _C.sleep(backend.type, -1, stream),
        "priority": lambda: pystreams.Stream(f"{name}:0", priority="1"),
    }


def test_current_device_after_failures(two_devices):
    calls = failing_calls(two_devices)
    mine = two_devices.stream(1)
    with mine:
        before = two_devices.currents()
        for name, call in calls.items():
            with pytest.raises(Exception) as caught:
                call()
            assert isinstance(
                caught.value, (RuntimeError, TypeError, ValueError)
            ), name
            assert two_devices.currents() == before, name
            assert two_devices.current_stream() == mine, name


def test_current_device_after_a_failed_block(two_devices):
    """This also holds if leaving the block fails because the stream was
    closed."""
    with two_devices.stream(1) as mine:
        before = two_devices.currents()
        for use in (
            lambda: two_devices.stream(0),
            lambda: two_devices.default_stream(0),
        ):
            with pytest.raises(ZeroDivisionError), use():
                raise ZeroDivisionError
            assert two_devices.currents() == before
        with two_devices.stream(0) as inner:
            inner.close()
        assert two_devices.currents() == before
        assert two_devices.current_stream() == mine


VISIBLE = """
import ctypes
import pystreams
from pystreams import cuda
count = cuda.device_count()
assert not cuda.is_initialized()
driver, driven = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
if driver.cuInit(0) == 0:
    assert driver.cuDeviceGetCount(ctypes.byref(driven)) == 0
assert driven.value == count, (driven.value, count)
for index in range(count):
    cuda.Stream(index).synchronize()
    print(cuda.get_device_properties(index).uuid)
"""


def forms(uuids):
    """Return values of CUDA_VISIBLE_DEVICES, each with the GPUs that it
    leaves, in their order."""
    first, last = uuids[0], uuids[-1]
    end = len(uuids) - 1
    return {
        "all": (None, uuids),
        "none": ("", []),
        "minus one": ("-1", []),
        "one": (f"{end}", [last]),
        "reordered": (f"{end},0", [last, first]),
        "up to minus one": ("0,-1,1", [first]),
        "up to one that is not there": ("0,99", [first]),
        "by UUID": (f"GPU-{last}", [last]),
        "by UUIDs, reordered": (f"GPU-{last},GPU-{first}", [last, first]),
        "no number": ("nonsense", []),
    }


@pytest.mark.parametrize("form", forms([uuid.UUID(int=0)]))
def test_visible_devices(gpu, run_python, monkeypatch, form):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    everything = run_python(VISIBLE)
    assert (everything.returncode, everything.stderr) == (0, "")
    uuids = everything.stdout.split()
    if "reordered" in form and len(uuids) < 2:
        pytest.skip("needs two GPUs")
    value, left = forms(uuids)[form]
    done = run_python(VISIBLE, env={"CUDA_VISIBLE_DEVICES": value})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == left


def spawned(index):
    """Run in a child: return whether a copy between two streams of its own was
    right."""
    first, second = api.Stream(index), api.Stream(index)
    block = pystreams.empty(64, device=f"cuda:{index}", stream=first)
    block.fill_(index + 1, stream=first)
    second.wait_stream(first)
    with second:
        return block.tobytes() == bytes([index + 1]) * 64


def test_spawned_children(cuda):
    """A child that is spawned can use the devices, although its parent has
    used them."""
    cuda.synchronize()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(spawned, range(cuda.count)) == [True] * cuda.count


def test_copies_between_gpus_arrive(two_gpus):
    """Copies arrive between every two GPUs, both ways, whether or not they can
    access each other."""
    nbytes = 3 << 20
    for source in range(two_gpus.count):
        for target in range(two_gpus.count):
            block = two_gpus.empty(nbytes, source).fill_(source + 1)
            copy = two_gpus.empty(nbytes, target).copy_(block)
            assert copy.tobytes() == bytes([source + 1]) * nbytes
            assert two_gpus.current_device() == 0


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


def pool_access(block, peer):
    """Return the access that a device has to the pool of a block, as the
    driver reports it: 0 for none, 3 for reading and writing."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, pool, flags = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    index = block.device.index
    calls = (
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), index),
        driver.cuCtxSetCurrent(context),
        driver.cuPointerGetAttribute(
            ctypes.byref(pool),
            17,  # CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
            ctypes.c_uint64(block.data_ptr()),
        ),
        driver.cuMemPoolGetAccess(
            ctypes.byref(flags),
            pool,
            ctypes.byref(Location(1, peer)),  # CU_MEM_LOCATION_TYPE_DEVICE
        ),
        driver.cuDevicePrimaryCtxRelease(index),
    )
    assert calls == (0, 0, 0, 0, 0)
    return flags.value


def test_the_driver_knows_who_has_access(two_gpus):
    """A copy gives access, unless the program has denied it."""
    if not api.can_device_access_peer(0, 1):
        pytest.skip("the devices do not reach each other's memory")
    source, target = (two_gpus.filled(0, 64, index) for index in (0, 1))
    for enabled in (True, False, True):
        api.set_peer_access(1, 0, enabled)
        target.copy_(source)
        assert pool_access(source, 1) == (3 if enabled else 0)
