"""Activities of devices, tested with the timelines that they make."""

import warnings

import pytest

from pystreams import timeline
from pystreams.cuda._graphs import Graph
from pystreams.testing import contract
from pystreams.testing.busy import Busy
from pystreams.testing.device import Device

KIND, STREAM, BEGIN, END = 0, 3, 6, 7


@pytest.fixture(autouse=True)
def observed(device: Device) -> None:
    """Skip if the library that observes devices is missing, or another tool
    uses it."""
    stream = device.stream()
    block = device.empty(64, stream)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with timeline.record() as t:
            block.fill_(1, stream=stream)
            stream.synchronize()
    # clock_error is 0 if the device reports times, because then no clocks are
    # compared.
    if t.clock_error > 0:
        pytest.skip("the device reports no activities here")


def fills(t: timeline.Timeline) -> list[tuple[int, int]]:
    return [(row[BEGIN], row[END]) for row in t.rows if row[KIND] == "fill"]


@contract(
    "activities_begin",
    "Observe the work that any library in the process queues on the devices, "
    "until activities_end.",
    "memory_fill",
)
def test_work_is_observed(device: Device) -> None:
    stream = device.stream()
    block = device.empty(64, stream)
    with timeline.record() as t:
        block.fill_(1, stream=stream)
        block.fill_(2, stream=stream)
        stream.synchronize()
    (first, first_end), (second, second_end) = fills(t)
    assert 0 <= first <= first_end <= second <= second_end <= t.duration


@contract(
    "activities_flush",
    "Report, before returning, the work that has ended.",
    "memory_fill",
)
def test_what_has_ended_is_reported(device: Device) -> None:
    stream = device.stream()
    block = device.empty(64, stream)
    with timeline.record() as t:
        for count in range(1, 4):
            block.fill_(1, stream=stream)
            stream.synchronize()
            ends = [end for _, end in fills(t)]
            assert len(ends) == count and None not in ends


@contract(
    "activities_end",
    "Stop observing; work that was queued before may be reported later.",
    "memory_fill",
)
def test_what_is_queued_is_reported_later(device: Device, busy: Busy) -> None:
    stream = device.stream()
    block = device.empty(64, stream)
    gate = busy(stream)
    with timeline.record() as t:
        block.fill_(1, stream=stream)
    block.fill_(2, stream=stream)
    gate.open()
    stream.synchronize()
    ((begin, end),) = fills(t)
    assert 0 <= begin <= end


@contract(
    "stream_number",
    "Get the number that identifies the stream in activities; no two streams "
    "of a device have the same number.",
    "graph_launch",
    "memory_fill",
)
def test_streams_have_numbers(device: Device) -> None:
    first, second = device.stream(), device.stream()
    block = device.empty(64, first)
    graph = Graph(device.type)
    with first:
        graph.capture_begin()
        block.fill_(1, stream=first)
        graph.capture_end()
    with timeline.record() as t:
        for stream in (first, second):
            with stream:
                graph.replay()
            stream.synchronize()
    launches = [row[STREAM] for row in t.rows if row[KIND] == "graph"]
    nodes = [row[STREAM] for row in t.rows if row[KIND] == "node"]
    assert nodes == launches and len(set(nodes)) == 2
