"""Events."""

import pytest

import pystreams
from pystreams.testing import contract
from pystreams.testing.busy import Busy, only_once_open
from pystreams.testing.device import Device
from pystreams.testing.limits import Background, eventually, never

RECORD = (
    "Record the stream's current position: the event completes "
    "when all work queued on the stream before this call is done. "
    "Replaces any earlier record."
)
QUERY = (
    "Returns PS_SUCCESS when the latest record is done or the event was never "
    "recorded, PS_ERROR_NOT_READY when the record is not done, and otherwise "
    "the failure of the work before it."
)
SYNCHRONIZE = "Wait until the event's latest record is done."
# More events than core keeps for reuse, so that some are destroyed.
MANY = 1100


@contract("event_create", "Create an event, which counts as never recorded.")
@pytest.mark.parametrize(
    "blocking", [False, True], ids=["spinning", "blocking"]
)
def test_create(device: Device, blocking: bool) -> None:
    event = device.event(blocking=blocking)
    assert event.query()
    event.record(device.stream())
    eventually(event.query)


@contract(
    "event_create",
    "Statuses: PS_ERROR_OUT_OF_MEMORY, PS_ERROR_NOT_SUPPORTED.",
)
def test_interprocess(device: Device) -> None:
    event = pystreams.Event(
        device.name, enable_timing=False, interprocess=True
    )
    try:
        event.record(device.stream())
    except NotImplementedError:
        pytest.skip("absent: interprocess events")
    eventually(event.query)


@contract(
    "every member",
    "Stream 0 is the default stream of the device; no event, graph or "
    "executable has the handle 0.",
)
def test_handles_differ(device: Device) -> None:
    stream = device.stream()
    marks = [device.mark(stream) for _ in range(50)]
    handles = {mark.event_id for mark in marks}
    assert len(handles) == 50
    assert 0 not in handles


@contract("event_destroy", "Records and waits already queued are unaffected.")
def test_destroyed_while_waited_for(device: Device, busy: Busy) -> None:
    first, second = device.stream(), device.stream()
    spare = device.stream()
    spares = [device.mark(spare) for _ in range(MANY)]
    gate = busy(first)
    event = device.mark(first)
    second.wait_event(event)
    mark = device.mark(second)
    spares.clear()
    del event
    only_once_open(gate, mark.query)


@contract("event_record", RECORD)
def test_stands_for_what_was_queued(device: Device, busy: Busy) -> None:
    stream = device.stream()
    before = device.mark(stream)
    gate = busy(stream)
    after = device.mark(stream)
    eventually(before.query)
    only_once_open(gate, after.query)
    assert before.query()


@contract("event_record", RECORD)
def test_the_earlier_record_is_done(device: Device, busy: Busy) -> None:
    stream = device.stream()
    event = device.event()
    gate = busy(stream)
    event.record(stream)
    earlier = device.mark(stream)
    second = busy(stream)
    event.record(stream)
    gate.open()
    eventually(earlier.query)
    only_once_open(second, event.query)


@contract("event_record", RECORD)
def test_the_later_record_is_done(device: Device, busy: Busy) -> None:
    first, second = device.stream(), device.stream()
    busy(first)
    event = device.mark(first)
    assert not event.query()
    event.record(second)
    eventually(event.query)


@contract("event_record", RECORD)
def test_recorded_again_once_done(device: Device, busy: Busy) -> None:
    stream = device.stream()
    event = device.mark(stream)
    for _ in range(3):
        eventually(event.query)
        gate = busy(stream)
        event.record(stream)
        never(event.query)
        gate.open()
    eventually(event.query)


@contract("event_query", QUERY)
def test_query(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy(stream)
    mark = device.mark(stream)
    only_once_open(gate, mark.query)


@contract("event_synchronize", SYNCHRONIZE)
def test_synchronize_waits(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy(stream)
    mark = device.mark(stream)
    call = Background(mark.synchronize)
    assert not call.over(0.05)
    gate.open()
    call.finish()
    assert mark.query()


@contract("event_synchronize", SYNCHRONIZE)
def test_synchronize_waits_for_no_more(device: Device, busy: Busy) -> None:
    stream = device.stream()
    mark = device.mark(stream)
    busy(stream)
    Background(mark.synchronize).finish()
