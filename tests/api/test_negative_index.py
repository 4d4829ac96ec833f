"""A negative device index: the current device in the calls that have it in
torch, which name a device by index alone; refused by calls that take a device
of any type."""

import pytest

import pystreams
from pystreams import _C, accelerator, cuda

NEGATIVE = [-1, -7, -(2**31), -(2**63), -(2**64)]

negative = pytest.mark.parametrize("index", NEGATIVE)


@pytest.fixture
def second(two_devices):
    """A backend whose second device is current, and has memory in use, and
    had more before."""
    block = two_devices.empty(1 << 12, 1)
    two_devices.empty(1 << 13, 1).close()
    _C.set_device(two_devices.type, 1)
    yield two_devices
    block.close()


@pytest.fixture
def cuda_second(second):
    if second.name != "cuda":
        pytest.skip(f"{second}: asked through pystreams.cuda")
    return second


@pytest.fixture
def accelerator_second(second, accelerator):
    if second.name != accelerator.name:
        pytest.skip(f"{second}: the accelerator is {accelerator}")
    return second


def answers(calls, index):
    return {name: call(index) for name, call in calls.items()}


ASKED_OF_CUDA = {
    "Stream": lambda i: cuda.Stream(i).device,
    "ExternalStream": lambda i: cuda.ExternalStream(0, i).device,
    "external": lambda i: cuda.get_stream_from_external(0, i).device,
    "current_stream": cuda.current_stream,
    "default_stream": cuda.default_stream,
    "synchronize": cuda.synchronize,
    "name": cuda.get_device_name,
    "capability": cuda.get_device_capability,
    "attributes": cuda.get_device_attributes,
    "pci_bus_id": cuda.get_device_pci_bus_id,
    "uuid": lambda i: str(cuda.get_device_properties(i).uuid),
    "reaches": lambda i: cuda.can_device_access_peer(i, 0),
    "reached": lambda i: cuda.can_device_access_peer(0, i),
    "mem_get_info": lambda i: cuda.mem_get_info(i)[1],
    "reset_peak_memory_stats": cuda.reset_peak_memory_stats,
    "memory_stats": cuda.memory_stats,
    "memory_allocated": cuda.memory_allocated,
    "memory_reserved": cuda.memory_reserved,
    "max_memory_allocated": cuda.max_memory_allocated,
    "max_memory_reserved": cuda.max_memory_reserved,
    "cudaMemGetInfo": lambda i: cuda.cudart().cudaMemGetInfo(i)[1],
}

ASKED_OF_ACCELERATOR = {
    "current_stream": accelerator.current_stream,
    "default_stream": accelerator.default_stream,
    "synchronize": accelerator.synchronize,
    "get_memory_info": lambda i: accelerator.get_memory_info(i)[1],
    "reset_peak_memory_stats": accelerator.reset_peak_memory_stats,
    "memory_stats": accelerator.memory_stats,
    "memory_allocated": accelerator.memory_allocated,
    "memory_reserved": accelerator.memory_reserved,
    "max_memory_allocated": accelerator.max_memory_allocated,
    "max_memory_reserved": accelerator.max_memory_reserved,
}


@negative
@pytest.mark.usefixtures("cuda_second")
def test_cuda_asks_the_current_device(index):
    found = answers(ASKED_OF_CUDA, index)
    assert found == answers(ASKED_OF_CUDA, 1)
    assert found["Stream"].index == 1
    assert found["max_memory_allocated"] == found["memory_allocated"]
    assert found["memory_allocated"] != cuda.memory_allocated(0)


@negative
@pytest.mark.usefixtures("accelerator_second")
def test_accelerator_asks_the_current_device(index):
    found = answers(ASKED_OF_ACCELERATOR, index)
    assert found == answers(ASKED_OF_ACCELERATOR, 1)
    assert found["current_stream"].device_index == 1
    assert found["max_memory_allocated"] == found["memory_allocated"]
    assert found["memory_allocated"] != accelerator.memory_allocated(0)


@negative
def test_every_backend_asks_the_current_device(second, index):
    kind = second.type
    calls = {
        "current_stream": lambda i: _C.current_stream(kind, i),
        "default_stream": lambda i: _C.default_stream(kind, i),
        "device_index": lambda i: _C.device_index(kind, i),
        "device_properties": lambda i: _C.device_properties(kind, i),
        "mem_get_info": lambda i: _C.mem_get_info(kind, i)[1],
        "memory_stats": lambda i: _C.memory_stats(kind, i),
    }
    found = answers(calls, index)
    assert found == answers(calls, 1)
    assert found["device_index"] == 1


@negative
def test_the_current_device_is_waited_for(second, index):
    elsewhere, here = second.stream(0), second.stream(1)
    with second.hold(elsewhere):
        second.sleep(here, 20)
        _C.synchronize(second.type, index)
        assert here.query()
        assert not elsewhere.query()


class OnNoDevice:
    is_cuda = True

    def __init__(self, index):
        self.index = index

    def get_device(self):
        return self.index


@negative
@pytest.mark.usefixtures("cuda_second")
def test_cuda_switches_to_no_device(index):
    assert cuda.set_device(index) is None
    assert cuda.current_device() == 1
    for context in (cuda.device(index), cuda.device_of(OnNoDevice(index))):
        assert context.idx == index
        with context:
            assert cuda.current_device() == 1
        assert cuda.current_device() == 1
        assert context.prev_idx == -1


@negative
@pytest.mark.usefixtures("accelerator_second")
def test_accelerator_switches_to_no_device(index):
    assert accelerator.set_device_index(index) is None
    assert accelerator.current_device_index() == 1
    with accelerator.device_index(index):
        assert accelerator.current_device_index() == 1
    assert accelerator.current_device_index() == 1


@negative
@pytest.mark.usefixtures("cuda")
def test_an_imported_event_is_of_the_current_device(index):
    """The index is taken, and only the handle is refused."""
    with pytest.raises(ValueError, match="expects the 64 bytes"):
        cuda.Event.from_ipc_handle(index, b"short")


@negative
def test_no_device_has_a_negative_index(backend, index):
    name, kind = backend.name, backend.type
    before = backend.currents()
    refusal = pytest.raises(RuntimeError, match="must not be negative")
    if index < -(2**63):
        refusal = pytest.raises(OverflowError)
    for use in (
        lambda: pystreams.device(index),
        lambda: pystreams.device(name, index),
        lambda: pystreams.Stream(index),
        lambda: pystreams.Stream(
            stream_id=0, device_index=index, device_type=kind
        ),
        lambda: pystreams.ExternalStream(0, index),
        lambda: pystreams.Event(index),
        lambda: pystreams.Event.from_ipc_handle(index, bytes(64)),
        lambda: pystreams.empty(16, device=index),
    ):
        with refusal:
            use()
    with pytest.raises(RuntimeError, match="Invalid device string"):
        pystreams.Stream(f"{name}:{index}")
    assert backend.currents() == before
