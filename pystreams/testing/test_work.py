"""Host functions and sleep."""

import ctypes

from pystreams import _C, Stream
from pystreams.testing import contract
from pystreams.testing.busy import Busy
from pystreams.testing.device import Device
from pystreams.testing.limits import eventually, never

libc: ctypes.CDLL = ctypes.CDLL(None)
CALLED = "Queue a call to function(argument) on one of the backend's threads."


class Call:
    """sem_post as a host function, with a semaphore as its argument."""

    def __init__(self, stream: Stream) -> None:
        self._semaphore = (ctypes.c_long * 4)()
        libc.sem_init(self._semaphore, 0, 0)
        post = ctypes.cast(libc.sem_post, ctypes.c_void_p).value
        assert post is not None
        _C.launch_host_function(
            stream, post, ctypes.addressof(self._semaphore)
        )

    def count(self) -> int:
        """Return how often it was called."""
        value = ctypes.c_int()
        libc.sem_getvalue(self._semaphore, ctypes.byref(value))
        return value.value


@contract("host_function", CALLED)
def test_called_once_when_its_turn_comes(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy(stream)
    call = Call(stream)
    never(lambda: call.count() > 0)
    gate.open()
    stream.synchronize()
    assert call.count() == 1


@contract("host_function", CALLED)
def test_is_work_of_its_stream(device: Device) -> None:
    streams = [device.stream() for _ in range(4)]
    calls = [Call(stream) for stream in streams for _ in range(10)]
    for stream in streams:
        eventually(device.mark(stream).query)
    assert [call.count() for call in calls] == [1] * 40


@contract(
    "sleep",
    "Queue work that does nothing for a number of device clock cycles.",
)
def test_sleep(device: Device) -> None:
    stream = device.stream()
    for cycles in (0, 1, 100_000):
        _C.sleep(device.type, cycles, stream)
        eventually(device.mark(stream).query)
