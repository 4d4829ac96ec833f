"""pystreams.cuda._gpu_trace, used as in torch."""

from unittest.mock import Mock

import pytest

import pystreams as torch
import pystreams.cuda._gpu_trace as gpu_trace
from pystreams import trace

pytestmark = pytest.mark.usefixtures("cuda", "nothing_left")


@pytest.fixture(autouse=True)
def active(monkeypatch):
    """The GPU trace, on and with nothing registered."""
    monkeypatch.setattr(gpu_trace, "_callbacks", [])
    torch._C._activate_gpu_trace()
    yield
    torch._C._deactivate_gpu_trace()
    assert trace._subscriptions == {}


@pytest.fixture
def mock():
    return Mock()


def recorded():
    event = torch.cuda.Event()
    event.record()
    return event


def test_event_creation(mock):
    gpu_trace.register_callback_for_event_creation(mock)
    event = torch.cuda.Event()
    event.record()
    mock.assert_called_once_with(event._as_parameter_.value)


def test_event_deletion(mock):
    gpu_trace.register_callback_for_event_deletion(mock)
    event = recorded()
    handle = event._as_parameter_.value
    mock.assert_not_called()
    del event
    mock.assert_called_once_with(handle)


def test_event_record(mock):
    gpu_trace.register_callback_for_event_record(mock)
    event = recorded()
    mock.assert_called_once_with(
        event._as_parameter_.value, torch.cuda.default_stream().cuda_stream
    )


def test_event_wait(mock):
    gpu_trace.register_callback_for_event_wait(mock)
    event = recorded()
    event.wait()
    mock.assert_called_once_with(
        event.cuda_event, torch.cuda.default_stream().cuda_stream
    )


def test_event_synchronization(mock):
    gpu_trace.register_callback_for_event_synchronization(mock)
    event = recorded()
    event.synchronize()
    mock.assert_called_once_with(event.cuda_event)


def test_memory_allocation(mock):
    gpu_trace.register_callback_for_memory_allocation(mock)
    buffer = torch.empty(40, device="cuda")
    mock.assert_called_once_with(buffer.data_ptr())


def test_memory_deallocation(mock):
    gpu_trace.register_callback_for_memory_deallocation(mock)
    buffer = torch.empty(40, device="cuda")
    address = buffer.data_ptr()
    mock.assert_not_called()
    del buffer
    mock.assert_called_once_with(address)


def test_stream_creation(mock):
    gpu_trace.register_callback_for_stream_creation(mock)
    stream = torch.cuda.Stream()
    mock.assert_called_once_with(stream.cuda_stream)


def test_device_synchronization(mock):
    gpu_trace.register_callback_for_device_synchronization(mock)
    torch.cuda.synchronize()
    mock.assert_called_once_with()


def test_stream_synchronization(mock):
    gpu_trace.register_callback_for_stream_synchronization(mock)
    stream = torch.cuda.Stream()
    stream.synchronize()
    mock.assert_called_once_with(stream.cuda_stream)


def test_copy_synchronization(mock):
    gpu_trace.register_callback_for_stream_synchronization(mock)
    torch.empty(8, device="cuda").tobytes()
    mock.assert_called_once_with(torch.cuda.default_stream().cuda_stream)


def test_all_callbacks_are_called(mock):
    other = Mock()
    gpu_trace.register_callback_for_memory_allocation(mock)
    gpu_trace.register_callback_for_memory_allocation(other)
    buffer = torch.empty(40, device="cuda")
    mock.assert_called_once_with(buffer.data_ptr())
    other.assert_called_once_with(buffer.data_ptr())


def test_all_callbacks_are_called_after_one_fails(mock, caplog):
    failing = Mock(side_effect=ValueError("a callback's own"))
    gpu_trace.register_callback_for_stream_creation(failing)
    gpu_trace.register_callback_for_stream_creation(mock)
    torch.cuda.Stream()
    mock.assert_called_once()
    (record,) = caplog.records
    assert record.exc_info[0] is ValueError


def test_a_callback_registered_twice_is_called_twice(mock):
    gpu_trace.register_callback_for_stream_creation(mock)
    gpu_trace.register_callback_for_stream_creation(mock)
    torch.cuda.Stream()
    assert mock.call_count == 2


def test_off_until_activated_and_after_deactivated(mock):
    torch._C._deactivate_gpu_trace()
    gpu_trace.register_callback_for_device_synchronization(mock)
    torch.cuda.synchronize()
    mock.assert_not_called()
    torch._C._activate_gpu_trace()
    torch.cuda.synchronize()
    mock.assert_called_once_with()
    torch._C._deactivate_gpu_trace()
    torch.cuda.synchronize()
    mock.assert_called_once_with()


def test_activating_and_deactivating_twice_is_as_once(mock):
    gpu_trace.register_callback_for_device_synchronization(mock)
    torch._C._activate_gpu_trace()
    torch.cuda.synchronize()
    mock.assert_called_once_with()
    torch._C._deactivate_gpu_trace()
    torch._C._deactivate_gpu_trace()
    torch.cuda.synchronize()
    mock.assert_called_once_with()


def test_of_other_device_types_it_tells_nothing(mock):
    gpu_trace.register_callback_for_stream_creation(mock)
    torch.Stream("cpu")
    mock.assert_not_called()
    torch.Stream("cuda")
    mock.assert_called_once()


def test_a_callback_that_is_none():
    with pytest.raises(
        TypeError,
        match=r"register_callback_for_event_wait\(\) expects a callable, "
        "but got 3",
    ):
        gpu_trace.register_callback_for_event_wait(3)
    assert gpu_trace._callbacks == []


def test_there_is_one_for_each_kind():
    prefix = "register_callback_for_"
    assert {
        name.removeprefix(prefix)
        for name in vars(gpu_trace)
        if name.startswith(prefix)
    } == set(trace.KINDS)


def test_activating_needs_nothing_imported(run_python):
    done = run_python("import pystreams; pystreams._C._activate_gpu_trace()")
    assert (done.returncode, done.stderr) == (0, "")
