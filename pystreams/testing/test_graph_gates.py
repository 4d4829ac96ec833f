"""Gates that are captured: each launch of the graph has its own."""

import threading

from pystreams import _C, Stream
from pystreams.cuda._graphs import Graph
from pystreams.testing import contract
from pystreams.testing.busy import Busy
from pystreams.testing.device import FAILURE, Device, fails
from pystreams.testing.test_graphs import captured, filled, read
from pystreams.testing.watch import SOON, eventually, never

GATE = (
    "once the launch's work before it is done or has failed, "
    "reached(argument, gate, status) is called, exactly once, and the work "
    "captured behind it starts only after gate_open(gate)."
)


class Held:
    """A graph whose launches wait at a gate, and then fill a buffer."""

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

    def launch(self, stream: Stream) -> None:
        with stream:
            self.graph.replay()


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
    held.launch(stream)
    assert not held.reached.acquire(timeout=0.05)
    gate.open()
    assert held.reached.acquire(timeout=SOON)
    held.go.release()
    stream.synchronize()


@contract("capture_gate", GATE, "memory_fill")
def test_holds_back_the_work_behind_it(device: Device) -> None:
    stream = device.stream()
    held = Held(device, stream)
    held.launch(stream)
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
        held.launch(one)
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
    with stream:
        graph.replay()
    fails(stream.synchronize)
    graph.reset()
    assert calls == []


@contract(
    "stream_capture",
    "The numbers of the captures of a process are above 0 and differ.",
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
