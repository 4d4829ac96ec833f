"""Timing."""

import time

from pystreams.testing import contract
from pystreams.testing.busy import Busy
from pystreams.testing.device import Device
from pystreams.testing.limits import eventually

ELAPSED = (
    "Get the milliseconds between two events of one device. Both were created "
    "with PS_EVENT_TIMING, were recorded, and are done."
)


@contract("event_elapsed", ELAPSED)
def test_milliseconds(device: Device, busy: Busy) -> None:
    stream = device.stream()
    start, end = device.event(timed=True), device.event(timed=True)
    began = time.monotonic()
    start.record(stream)
    eventually(start.query)
    gate = busy(stream)
    end.record(stream)
    time.sleep(0.02)
    gate.open()
    end.synchronize()
    took = 1000 * (time.monotonic() - began)
    assert 15 <= start.elapsed_time(end) <= took + 5


@contract(
    "event_elapsed",
    "May be negative if end was recorded on another stream and completed "
    "first.",
)
def test_backwards(device: Device) -> None:
    first, second = device.event(timed=True), device.event(timed=True)
    first.record(device.stream())
    first.synchronize()
    time.sleep(0.002)
    second.record(device.stream())
    second.synchronize()
    assert second.elapsed_time(first) < 0 < first.elapsed_time(second)


@contract("event_elapsed", ELAPSED)
def test_on_one_stream_time_goes_forward(device: Device) -> None:
    stream = device.stream()
    events = [device.event(timed=True) for _ in range(20)]
    for event in events:
        event.record(stream)
    stream.synchronize()
    times = [events[0].elapsed_time(event) for event in events]
    assert times == sorted(times)
    assert times[0] == 0
