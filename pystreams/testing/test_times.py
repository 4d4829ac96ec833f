"""Times of operations, tested with the timelines that they make."""

import time

from pystreams import timeline
from pystreams.testing import contract
from pystreams.testing.busy import Busy
from pystreams.testing.device import Device

KIND, QUEUED, BEGIN, END = 0, 5, 6, 7


def fills(t: timeline.Timeline) -> list[tuple[int, int, int]]:
    """When each fill was queued, and when it began and ended."""
    return [
        (row[QUEUED], row[BEGIN], row[END])
        for row in t.rows
        if row[KIND] == "fill"
    ]


@contract(
    "time_now",
    "Get the present time in nanoseconds, on the clock with which operations "
    "are timed: CLOCK_MONOTONIC, unless time is virtual.",
    "operation_times",
    "memory_fill",
)
def test_times_are_those_of_the_host(device: Device) -> None:
    stream = device.stream()
    block = device.empty(64, stream)
    begin = time.monotonic_ns()
    with timeline.record() as t:
        block.fill_(1, stream=stream)
        stream.synchronize()
    took = time.monotonic_ns() - begin
    ((queued, began, ended),) = fills(t)
    assert 0 <= queued <= began <= ended <= took


@contract(
    "operation_times",
    "begin is written before end, each atomically, and *times belongs to the "
    "backend until end is written.",
    "memory_fill",
)
def test_times_come_when_their_turn_comes(device: Device, busy: Busy) -> None:
    stream = device.stream()
    block = device.empty(64, stream)
    gate = busy(stream)
    with timeline.record() as t:
        block.fill_(1, stream=stream)
        block.fill_(2, stream=stream)
        waiting = fills(t)
        opened = time.monotonic_ns() - t._begin
        gate.open()
        stream.synchronize()
    assert [ended for _, _, ended in waiting] == [None, None]
    (_, first, first_end), (_, second, second_end) = fills(t)
    assert opened <= first <= first_end <= second <= second_end
