"""Captures and graphs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pystreams import _C, AcceleratorError, Buffer, Event, Stream
from pystreams.cuda._graphs import Graph
from pystreams.testing import contract
from pystreams.testing.busy import Busy
from pystreams.testing.device import FAILURE, Device, fails
from pystreams.testing.limits import SOON, eventually, never

RESTORED = (
    "After any status except PS_ERROR_CAPTURE_UNMATCHED, the capture is "
    "over, and its streams run work again."
)
EXTERNAL = (
    "Each launch of the graph executes this record or wait on the event "
    "itself, whereas other captured records and waits only order the captured "
    "work."
)
LAUNCH = (
    "Queue the graph's work as one operation of the stream, after "
    "its pending work and after the executable's earlier "
    "launches."
)

GATE = (
    "Once the launch's work before the gate is done or has failed, "
    "reached(argument, gate, status) is called exactly once. The work that "
    "was captured after the gate starts only after gate_open(gate)."
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


def kept(device: Device, buffer: Buffer, *numbers: int) -> Graph:
    """A kept graph, with a fill of the buffer for each number."""
    graph = Graph(device.type, True)
    with captured(graph, device.stream()):
        for byte in numbers:
            buffer.fill_(byte)
    return graph


def launch_once(graph: Graph, stream: Stream) -> None:
    """Launch the graph once and wait, because a first launch may wait for all
    work."""
    launch(graph, stream)
    stream.synchronize()


def launch(graph: Graph, stream: Stream) -> None:
    with stream:
        graph.replay()


def read(buffer: Buffer, stream: Stream) -> int:
    stream.synchronize()
    (byte,) = set(buffer.tobytes())
    return byte


@contract(
    "capture_begin",
    "Begin to capture the stream's work instead of running it.",
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
    "If another stream waits for an event that was recorded in the capture, "
    "that stream joins the capture.",
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
    launch(graph, stream)
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
    "While its mode is PS_CAPTURE_RELAXED, the thread's calls disturb no "
    "capture, unless they name a captured stream or event.",
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
    launch(graph, stream)
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
    launch(graph, stream)
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
    launch(graph, stream)
    assert not stream.query()
    gate.open()
    assert read(buffer, stream) == 2


@contract(
    "graph_instantiate",
    "Make an executable from the graph. The executable may outlive the graph.",
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
    launch(graph, stream)
    assert read(buffer, stream) == 2


@contract("graph_launch", LAUNCH, "memory_fill")
def test_launch_after_what_the_stream_has(device: Device, busy: Busy) -> None:
    stream = device.stream()
    buffer = filled(device, stream, 1)
    graph = filling(device, buffer, 2)
    gate = busy(stream)
    buffer.fill_(3, stream)
    launch(graph, stream)
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
        launch(graph, one)
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
    launch(graph, stream)
    graph.reset()
    gate.open()
    assert read(buffer, stream) == 2


@contract(
    "graph_destroy", "Destroy the executable, or the graph.", "memory_fill"
)
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
    "memory_copy",
    "If the stream is being captured, each launch of the graph copies what "
    "the source contains when the launch reaches the copy.",
    "capture_begin",
    "capture_gate",
)
@pytest.mark.parametrize("nbytes", [100, 4 << 20], ids=["small", "large"])
def test_copies_of_pageable_memory(device: Device, nbytes: int) -> None:
    stream = device.stream()
    buffer, graph = device.empty(nbytes, stream), Graph(device.type)
    source, target = bytearray(nbytes), bytearray(nbytes)
    with captured(graph, stream):
        buffer.copy_(source, non_blocking=True)
        buffer.copy_to(target, non_blocking=True)
    for byte in (2, 3):
        source[:] = bytes([byte]) * nbytes
        launch(graph, stream)
        stream.synchronize()
        assert target == source


@contract(
    "graph_print",
    "Write a description of the graph to a file, for people.",
    "memory_fill",
)
def test_print(device: Device, tmp_path: Path) -> None:
    buffer = filled(device, device.stream(), 1)
    graph = kept(device, buffer, 2)
    graph.debug_dump(str(tmp_path / "graph.dot"))
    assert (tmp_path / "graph.dot").stat().st_size > 0


@contract(
    "graph_nodes",
    "its nodes, in an order in which they may run, and its edges, each once.",
    "memory_fill",
)
def test_nodes(device: Device) -> None:
    stream, side = device.stream(), device.stream()
    buffer = filled(device, stream, 1)
    graph = Graph(device.type, True)
    with captured(graph, stream):
        buffer.fill_(2)
        side.wait_event(device.mark(stream))
        buffer.fill_(3, side)
        stream.wait_event(device.mark(side))
        buffer.fill_(4)
    nodes = graph.get_graph_data()["nodes"]
    fills = [n["index"] for n in nodes if n["node_type"] == "memset"]
    assert len(fills) == 3
    before: list[set[int]] = []
    for node in nodes:
        direct = node["dependencies"]
        assert len(direct) == len(set(direct))
        before.append(set(direct).union(*(before[i] for i in direct)))
    assert fills[0] in before[fills[1]]
    assert fills[1] in before[fills[2]]


@contract(
    "graph_nodes",
    "Describe the graph: its nodes, in an order in which they may run, and "
    "its edges, each once.",
    "memory_fill",
)
def test_numbers_and_ports(device: Device) -> None:
    buffer = filled(device, device.stream(), 1)
    data = kept(device, buffer, 2, 3, 4).get_graph_data()
    numbers = [node["node_id"] for node in data["nodes"]]
    assert len(numbers) == len(set(numbers)) >= 3
    edges = data["edges"]
    ends = {(edge["from"], edge["to"]) for edge in edges}
    assert len(ends) == len(edges)
    assert ends == {
        (before, node["index"])
        for node in data["nodes"]
        for before in node["dependencies"]
    }
    for edge in edges:
        assert edge["from_port"] == edge["to_port"] == edge["type"] == 0


@contract(
    "executable_number",
    "The numbers of executables that exist at the same time differ.",
    "memory_fill",
)
def test_numbers_of_executables(device: Device) -> None:
    buffer = filled(device, device.stream(), 1)
    graphs = [kept(device, buffer, byte) for byte in (2, 3)]
    for graph in graphs:
        graph.instantiate()
    numbers = [graph._executable() for graph in graphs]
    assert numbers[0] != numbers[1] and all(number > 0 for number in numbers)


@contract(
    "graph_upload",
    "Queue on the stream an operation that makes the executable's next launch "
    "fast, such as an upload to the device.",
    "memory_fill",
)
def test_upload(device: Device) -> None:
    stream = device.stream()
    buffer = filled(device, stream, 1)
    graph = Graph(device.type)
    with captured(graph, stream):
        buffer.fill_(2)
    graph.upload(stream)
    assert read(buffer, stream) == 1
    launch(graph, stream)
    assert read(buffer, stream) == 2


@contract(
    "graph_instantiate_with",
    "Like graph_instantiate, but use only the given options of enum "
    "ps_instantiate_option. graph_instantiate uses all of these options.",
    "memory_fill",
)
def test_instantiate_without_options(device: Device) -> None:
    stream = device.stream()
    buffer = filled(device, stream, 1)
    graph = kept(device, buffer, 2)
    graph.instantiate(auto_free_on_launch=False, use_node_priority=False)
    launch(graph, stream)
    assert read(buffer, stream) == 2


@contract(
    "graph_update",
    "Make later launches of the executable do the work of the graph, which "
    "has no gates. The graph must have the same nodes and edges as the "
    "executable; only the parameters of nodes may differ.",
    "memory_fill",
)
def test_update(device: Device) -> None:
    stream = device.stream()
    buffer = filled(device, stream, 1)
    graph = kept(device, buffer, 2)
    graph.update(kept(device, buffer, 3))
    launch(graph, stream)
    assert read(buffer, stream) == 3


@contract(
    "graph_update",
    "Launches that were queued still do the earlier work.",
    "memory_fill",
)
def test_update_while_a_launch_is_queued(device: Device, busy: Busy) -> None:
    stream = device.stream()
    buffer = filled(device, stream, 1)
    graph = kept(device, buffer, 2)
    launch_once(graph, stream)
    buffer.fill_(1, stream)
    gate = busy(stream)
    launch(graph, stream)
    graph.update(kept(device, buffer, 3))
    gate.open()
    assert read(buffer, stream) == 2


@contract(
    "graph_update",
    "After a failure the executable is as it was.",
    "memory_fill",
)
def test_an_update_that_is_refused(device: Device) -> None:
    stream = device.stream()
    buffer = filled(device, stream, 1)
    graph = kept(device, buffer, 2, 3)
    with pytest.raises(AcceleratorError) as caught:
        graph.update(kept(device, buffer, 4))
    assert caught.value.error_code == 910
    launch(graph, stream)
    assert read(buffer, stream) == 3


@contract(
    "capture_graph",
    "The graph's work comes after the work that was captured on the stream "
    "before this call, and before work that is captured on it later.",
    "memory_fill",
)
def test_a_graph_in_a_capture(device: Device) -> None:
    stream = device.stream()
    buffer, copied = filled(device, stream, 1), filled(device, stream, 1)
    child = Graph(device.type, True)
    with captured(child, device.stream()):
        copied.copy_(buffer, non_blocking=True)
        buffer.fill_(3)
    graph = Graph(device.type)
    with captured(graph, stream):
        buffer.fill_(2)
        graph.add_child(child)
        buffer.fill_(4)
    child.reset()
    assert read(buffer, stream) == read(copied, stream) == 1
    launch(graph, stream)
    assert read(copied, stream) == 2
    assert read(buffer, stream) == 4


class Held:
    """A graph whose launches wait at a gate, and then fill a buffer."""

    reached: threading.Semaphore
    go: threading.Semaphore
    buffer: Buffer
    graph: Graph

    def __init__(self, device: Device, stream: Stream) -> None:
        self.reached = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.buffer = filled(device, stream, 1)
        self.graph = Graph(device.type)
        with captured(self.graph, stream):
            stream.submit(self._wait)
            self.buffer.fill_(2)

    def _wait(self) -> None:
        self.reached.release()
        assert self.go.acquire(timeout=SOON)


@contract("capture_gate", GATE)
def test_reached_by_launches_alone(device: Device) -> None:
    stream = device.stream()
    held = Held(device, stream)
    stream.synchronize()
    assert not held.reached.acquire(timeout=0.05)


@contract("capture_gate", GATE)
def test_reached_when_the_launch_is(device: Device, busy: Busy) -> None:
    stream = device.stream()
    held = Held(device, stream)
    gate = busy(stream)
    launch(held.graph, stream)
    assert not held.reached.acquire(timeout=0.05)
    gate.open()
    assert held.reached.acquire(timeout=SOON)
    held.go.release()
    stream.synchronize()


@contract("capture_gate", GATE, "memory_fill")
def test_holds_back_the_work_behind_it(device: Device) -> None:
    stream = device.stream()
    held = Held(device, stream)
    launch(held.graph, stream)
    mark = device.mark(stream)
    assert held.reached.acquire(timeout=SOON)
    never(mark.query)
    held.go.release()
    eventually(mark.query)
    assert read(held.buffer, stream) == 2


@contract("capture_gate", "The calls come in the order of the launches.")
def test_each_launch_has_a_gate(device: Device) -> None:
    stream, other = device.stream(), device.stream()
    held = Held(device, stream)
    for one in (stream, other, stream):
        launch(held.graph, one)
    marks = [device.mark(other), device.mark(stream)]
    for _ in range(3):
        assert held.reached.acquire(timeout=SOON)
        assert not held.reached.acquire(timeout=0.02)
        assert not marks[-1].query()
        held.go.release()
    for mark in marks:
        eventually(mark.query)


@contract("capture_gate", GATE, "stream_fail")
def test_reached_after_a_failure_of_the_launch(device: Device) -> None:
    stream = device.stream()
    calls: list[int] = []
    graph = Graph(device.type)
    with captured(graph, stream):
        stream.submit(calls.append, 1)
    _C.fail(stream, FAILURE)
    launch(graph, stream)
    fails(stream.synchronize)
    graph.reset()
    assert calls == []


@contract(
    "stream_capture",
    "Each capture of a process has its own number, which is above 0.",
    "capture_gate",
)
def test_two_captures(device: Device) -> None:
    streams = [device.stream(), device.stream()]
    calls: list[int] = []
    graphs = [Graph(device.type), Graph(device.type)]
    with captured(graphs[0], streams[0]), captured(graphs[1], streams[1]):
        for number, stream in enumerate(streams):
            stream.submit(calls.append, number)
    for number, (graph, stream) in enumerate(
        zip(graphs, streams, strict=True)
    ):
        with stream:
            graph.replay()
        stream.synchronize()
        assert calls == list(range(number + 1))
