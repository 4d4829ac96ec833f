"""Captures and graphs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pystreams import AcceleratorError, Buffer, Event, Stream
from pystreams.cuda._graphs import Graph
from pystreams.testing import contract
from pystreams.testing.busy import Busy
from pystreams.testing.device import Device

RESTORED = (
    "After any status but PS_ERROR_CAPTURE_UNMATCHED, its streams are as they "
    "were before."
)
EXTERNAL = "but each launch executes it, on the event itself."
LAUNCH = (
    "Queue the graph's work as one operation of the stream, after "
    "its pending work and after the executable's earlier "
    "launches."
)


@contextmanager
def captured(graph: Graph, stream: Stream) -> Iterator[None]:
    with stream:
        graph.capture_begin()
        yield
        graph.capture_end()


def filled(device: Device, stream: Stream, byte: int) -> Buffer:
    buffer = device.empty(100, stream)
    buffer.fill_(byte, stream)
    stream.synchronize()
    return buffer


def filling(device: Device, buffer: Buffer, byte: int) -> Graph:
    """A graph that fills the buffer."""
    graph = Graph(device.type)
    stream = device.stream()
    with captured(graph, stream):
        buffer.fill_(byte)
    launch_once(graph, stream)
    return graph


def launch_once(graph: Graph, stream: Stream) -> None:
    """The first launch may wait for all work."""
    with stream:
        graph.replay()
    stream.synchronize()


def read(buffer: Buffer, stream: Stream) -> int:
    stream.synchronize()
    (byte,) = set(buffer.tobytes())
    return byte


@contract(
    "capture_begin",
    "From here on capture the stream's work, instead of running it.",
    "memory_fill",
)
def test_captured_work_is_not_done(device: Device) -> None:
    stream = device.stream()
    buffer = filled(device, stream, 1)
    graph = Graph(device.type)
    with captured(graph, stream):
        buffer.fill_(2, stream)
        assert stream.is_capturing()
    assert not stream.is_capturing()
    assert read(buffer, stream) == 1


@contract(
    "capture_begin",
    "A stream that waits for an event recorded in a capture joins it.",
    "memory_fill",
)
def test_a_stream_joins(device: Device) -> None:
    stream, side = device.stream(), device.stream()
    buffer = filled(device, stream, 1)
    graph = Graph(device.type)
    with captured(graph, stream):
        side.wait_event(device.mark(stream))
        assert side.is_capturing()
        buffer.fill_(2, side)
        stream.wait_event(device.mark(side))
    assert not side.is_capturing()
    side.synchronize()
    assert read(buffer, stream) == 1
    with stream:
        graph.replay()
    assert read(buffer, stream) == 2


@contract("capture_end", RESTORED, "memory_fill")
def test_an_unjoined_stream(device: Device) -> None:
    stream, side = device.stream(), device.stream()
    buffer = filled(device, stream, 1)
    graph = Graph(device.type)
    with stream:
        graph.capture_begin()
        side.wait_event(device.mark(stream))
        buffer.fill_(2, side)
        with pytest.raises(AcceleratorError) as caught:
            graph.capture_end()
    assert caught.value.error_code == 904
    assert not stream.is_capturing()
    assert not side.is_capturing()
    buffer.fill_(3, side)
    assert read(buffer, side) == 3


@contract(
    "capture_mode_exchange",
    "with PS_CAPTURE_RELAXED its calls disturb no capture, unless "
    "they name a captured stream or event.",
    "memory_fill",
)
def test_what_is_dropped_disturbs_no_capture(
    device: Device, busy: Busy
) -> None:
    stream, other = device.stream(), device.stream()
    buffer, lent = filled(device, stream, 1), filled(device, stream, 1)
    gate = busy(other)
    lent.fill_(2, other)
    graph = Graph(device.type)
    with captured(graph, stream):
        buffer.fill_(2)
        del lent, other
    gate.open()
    with stream:
        graph.replay()
    assert read(buffer, stream) == 2


def external(device: Device) -> Event:
    """An event that launches record and wait for."""
    return Event(device.name, enable_timing=False, external=True)


@contract("event_record_external", EXTERNAL, "memory_fill")
def test_a_launch_records_an_event(device: Device, busy: Busy) -> None:
    stream = device.stream()
    buffer = filled(device, stream, 1)
    graph, event = Graph(device.type), external(device)
    with captured(graph, stream):
        buffer.fill_(2)
        event.record()
    assert event.query()
    launch_once(graph, stream)
    gate = busy(stream)
    with stream:
        graph.replay()
    assert not event.query()
    gate.open()
    event.synchronize()
    assert event.query()


@contract("stream_wait_external", EXTERNAL, "memory_fill")
def test_a_launch_waits_for_an_event(device: Device, busy: Busy) -> None:
    stream, other = device.stream(), device.stream()
    buffer = filled(device, stream, 1)
    graph, event = Graph(device.type), external(device)
    event.record(other)
    with captured(graph, stream):
        event.wait()
        buffer.fill_(2)
    launch_once(graph, stream)
    buffer.fill_(1, stream)
    stream.synchronize()
    gate = busy(other)
    event.record(other)
    with stream:
        graph.replay()
    assert not stream.query()
    gate.open()
    assert read(buffer, stream) == 2


@contract(
    "graph_instantiate",
    "Make an executable of the graph, which may outlive it.",
    "memory_fill",
)
@pytest.mark.parametrize("keep", [False, True], ids=["alone", "kept"])
def test_instantiate(device: Device, keep: bool) -> None:
    stream = device.stream()
    buffer = filled(device, stream, 1)
    graph = Graph(device.type, keep)
    with captured(graph, stream):
        buffer.fill_(2)
    if keep:
        graph.instantiate()
        graph.instantiate()
    with stream:
        graph.replay()
    assert read(buffer, stream) == 2


@contract("graph_launch", LAUNCH, "memory_fill")
def test_launch_after_what_the_stream_has(device: Device, busy: Busy) -> None:
    stream = device.stream()
    buffer = filled(device, stream, 1)
    graph = filling(device, buffer, 2)
    gate = busy(stream)
    buffer.fill_(3, stream)
    with stream:
        graph.replay()
    assert not stream.query()
    gate.open()
    assert read(buffer, stream) == 2


@contract("graph_launch", LAUNCH, "memory_fill")
def test_launch_after_earlier_launches(device: Device, busy: Busy) -> None:
    stream, other = device.stream(), device.stream()
    buffer = filled(device, stream, 1)
    graph = filling(device, buffer, 2)
    buffer.fill_(1, stream)
    gate = busy(stream)
    for one in (stream, other):
        with one:
            graph.replay()
    assert not other.query()
    gate.open()
    assert read(buffer, other) == 2


@contract(
    "executable_destroy", "Launches that were queued still run.", "memory_fill"
)
def test_reset_while_a_launch_is_queued(device: Device, busy: Busy) -> None:
    stream = device.stream()
    buffer = filled(device, stream, 1)
    graph = filling(device, buffer, 2)
    buffer.fill_(1, stream)
    gate = busy(stream)
    with stream:
        graph.replay()
    graph.reset()
    gate.open()
    assert read(buffer, stream) == 2


@contract("graph_destroy", "Destroy it.", "memory_fill")
def test_capture_again_after_a_reset(device: Device) -> None:
    stream = device.stream()
    buffer = filled(device, stream, 1)
    graph = Graph(device.type, True)
    for byte in (2, 3):
        with captured(graph, stream):
            buffer.fill_(byte)
        with stream:
            graph.replay()
        assert read(buffer, stream) == byte
        graph.reset()


@contract(
    "graph_print", "Write the graph to a file, for people.", "memory_fill"
)
def test_print(device: Device, tmp_path: Path) -> None:
    buffer = filled(device, device.stream(), 1)
    graph = Graph(device.type, True)
    with captured(graph, device.stream()):
        buffer.fill_(2)
    graph.debug_dump(str(tmp_path / "graph.dot"))
    assert (tmp_path / "graph.dot").stat().st_size > 0
