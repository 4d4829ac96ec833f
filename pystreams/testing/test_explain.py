"""The backend's reports about the work that streams wait for."""

from itertools import pairwise

from pystreams import _C, Stream
from pystreams.testing import contract
from pystreams.testing.busy import Busy
from pystreams.testing.device import Device
from pystreams.testing.limits import Background, eventually

STATES = (
    "Describe for people what the stream waits for: first the state of the "
    "stream, then the state of the stream for whose record its first "
    "operation waits, and so on."
)


def states(stream: Stream) -> list[tuple[int, int]]:
    """Return (handle, pending) of the stream and of those that it waits
    for."""
    target = _C.explain_target(stream)
    found = _C.explain_stream(target[1]) if target is not None else None
    assert found is not None
    assert {key[2] for key, *_ in found} == {stream.device_index}
    return [(key[3], pending) for key, pending, *_ in found]


@contract("stream_explain", STATES)
def test_of_an_idle_stream(device: Device) -> None:
    stream = device.stream()
    stream.synchronize()
    assert states(stream) == [(stream.native_handle, 0)]


@contract("stream_explain", STATES)
def test_of_streams_that_wait(device: Device, busy: Busy) -> None:
    streams = [device.stream() for _ in range(3)]
    gate = busy(streams[0])
    for before, after in pairwise(streams):
        after.wait_stream(before)
        device.mark(after)
    found = states(streams[-1])
    assert [handle for handle, _ in found] == [
        stream.native_handle for stream in reversed(streams)
    ]
    assert all(pending > 0 for _, pending in found)
    gate.open()
    for stream in streams:
        stream.synchronize()
        assert [pending for _, pending in states(stream)] == [0]


@contract("stream_explain", STATES)
def test_of_the_default_stream(device: Device) -> None:
    device.synchronize()
    assert states(device.default_stream()) == [(0, 0)]


@contract(
    "stream_explain",
    "Changes nothing and runs no callbacks, so that it may be called while "
    "any other member waits.",
)
def test_during_a_wait(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy(stream)
    wait = Background(stream.synchronize)
    assert not wait.over(0.03)
    assert states(stream)[0][1] > 0
    gate.open()
    eventually(lambda: states(stream)[0][1] == 0)
    wait.finish()
