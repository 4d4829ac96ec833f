"""Failures of queued work, by fault injection."""

from collections.abc import Callable

import pystreams
from pystreams import _C
from pystreams.testing import ORDER, contract
from pystreams.testing.busy import Busy, only_once_open
from pystreams.testing.device import FAILURE, Device, fails
from pystreams.testing.limits import Background, eventually

PASSED_ON = (
    "If the work before that record fails, this stream fails with "
    "the same status."
)


def over(function: Callable[[], bool]) -> bool:
    """Return whether the work has ended, in success or failure."""
    try:
        return function()
    except pystreams.AcceleratorError:
        return True


@contract(
    "stream_fail",
    "Queue an operation that fails with the status when its turn comes.",
)
def test_when_its_turn_comes(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy(stream)
    _C.fail(stream, FAILURE)
    mark = device.mark(stream)
    only_once_open(gate, lambda: over(mark.query))
    fails(mark.query)


@contract(
    "stream_query",
    "Returns PS_SUCCESS when all work queued so far is done, "
    "PS_ERROR_NOT_READY when some of it is not done, and the stream's "
    "failure if its work has failed. The failure stays with the stream, so "
    "later calls return it again.",
    "stream_fail",
)
def test_stream_query(device: Device) -> None:
    stream = device.stream()
    _C.fail(stream, FAILURE)
    for _ in range(3):
        # Wait, because the work of a failed stream takes time, too.
        eventually(lambda: over(stream.query))
        fails(stream.query)
        device.mark(stream)


@contract(
    "stream_synchronize",
    "Statuses: the first failure of the stream's work, at every call.",
    "stream_fail",
)
def test_stream_synchronize(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy(stream)
    _C.fail(stream, FAILURE)
    _C.fail(stream, FAILURE + 1)
    gate.open()
    for _ in range(3):
        fails(stream.synchronize)


@contract(
    "event_query",
    "Returns PS_SUCCESS when the latest record is done or the event was never "
    "recorded, PS_ERROR_NOT_READY when the record is not done, and otherwise "
    "the failure of the work before it.",
    "stream_fail",
)
def test_event_query(device: Device) -> None:
    stream = device.stream()
    before = device.mark(stream)
    _C.fail(stream, FAILURE)
    after = device.mark(stream)
    eventually(lambda: over(after.query))
    assert before.query()
    fails(after.query)
    fails(after.query)


@contract(
    "event_synchronize",
    "Statuses: the failure of the work before the latest record.",
    "stream_fail",
)
def test_event_synchronize(device: Device) -> None:
    stream = device.stream()
    before = device.mark(stream)
    _C.fail(stream, FAILURE)
    after = device.mark(stream)
    before.synchronize()
    fails(after.synchronize)
    fails(after.synchronize)


@contract("stream_wait_event", PASSED_ON, "stream_fail")
def test_travels_through_events(device: Device, busy: Busy) -> None:
    first, second, third = (device.stream() for _ in range(3))
    gate = busy(first)
    _C.fail(first, FAILURE)
    event, other = device.mark(first), device.event()
    second.wait_event(event)
    other.record(second)
    third.wait_event(other)
    mark = device.mark(third)
    gate.open()
    eventually(lambda: over(mark.query))
    fails(mark.query)


@contract("stream_wait_event", PASSED_ON, "stream_fail")
def test_only_of_the_work_before_the_record(
    device: Device, busy: Busy
) -> None:
    first, second = device.stream(), device.stream()
    gate = busy(first)
    event = device.mark(first)
    second.wait_event(event)
    _C.fail(first, FAILURE)
    mark = device.mark(second)
    gate.open()
    eventually(lambda: over(mark.query))
    assert mark.query()


@contract(
    "device_synchronize",
    "Statuses: the failure of any of that work.",
    "stream_fail",
)
def test_device_synchronize(device: Device, busy: Busy) -> None:
    stream, other = device.stream(), device.stream()
    _C.fail(stream, FAILURE)
    gate = busy(other)
    call = Background(device.synchronize)
    assert not call.over(0.05)
    gate.open()
    fails(call.finish)


@contract(
    "stream_destroy",
    "If the stream's work fails, and no call to stream_synchronize or "
    "device_synchronize has returned the failure, the next "
    "device_synchronize returns it.",
    "stream_fail",
)
def test_of_a_destroyed_stream(device: Device, busy: Busy) -> None:
    stream, destroy = device.raw_stream()
    gate = busy(stream)
    _C.fail(stream, FAILURE)
    destroy()
    gate.open()
    fails(device.synchronize)
    Background(device.synchronize).finish()


@contract("every member", ORDER, "stream_fail")
def test_other_streams_go_on(device: Device) -> None:
    stream, other = device.stream(), device.stream()
    _C.fail(stream, FAILURE)
    failed = device.mark(stream)
    eventually(lambda: over(failed.query))
    mark = device.mark(other)
    eventually(mark.query)
    other.synchronize()
