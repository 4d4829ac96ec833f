"""Blocking streams and the default stream in captures and launches."""

import pytest
from captures import Capture, code, replay
from deadlines import LONG

from pystreams import AcceleratorError
from pystreams.cuda._graphs import Graph

SIZE = 64
IMPLICIT = 906


def test_replays(backend):
    """A launch is work as any other."""
    x = backend.filled(0, SIZE)
    stream = backend.stream()
    graph = Graph(backend.type)
    with Capture(graph, stream):
        x.fill_(7, stream=stream)
    one, other = (backend.stream(blocking=True) for _ in range(2))
    gate = backend.gate(one)
    replay(graph, backend.default_stream())
    event = other.record_event()
    assert not event.query()
    gate.open()
    event.synchronize(LONG)
    assert x.tobytes() == bytes([7]) * SIZE


@pytest.fixture
def captured(backend):
    """A blocking stream that is being captured."""
    stream = backend.stream(blocking=True)
    graph = Graph(backend.type)
    capture = Capture(graph, stream)
    return stream, capture


def test_a_capture_on_a_blocking_stream(backend):
    """It is launched in the order of the stream of the launch."""
    x = backend.filled(0, SIZE)
    graph = Graph(backend.type)
    stream = backend.stream(blocking=True)
    with Capture(graph, stream):
        x.fill_(9, stream=stream)
    gate = backend.gate(backend.default_stream())
    replay(graph, stream)
    assert not stream.query()
    gate.open()
    stream.synchronize(LONG)
    assert x.tobytes() == bytes([9]) * SIZE


def test_the_default_stream_during_such_a_capture(backend, captured):
    """Its use would make it part of the capture."""
    stream, capture = captured
    default = backend.default_stream()
    with pytest.raises(AcceleratorError), capture:
        assert stream.is_capturing()
        assert code(default.record_event) == IMPLICIT
    assert default.query()
    assert not stream.is_capturing()


def test_a_query_leaves_the_capture_alone(backend, captured):
    stream, capture = captured
    default = backend.default_stream()
    x = backend.filled(0, SIZE)
    with capture:
        for use in (default.query, default.synchronize):
            with pytest.raises(AcceleratorError):
                use()
        x.fill_(3, stream=stream)
    replay(capture.graph, stream)
    stream.synchronize(LONG)
    assert x.tobytes() == bytes([3]) * SIZE


def test_the_default_stream_during_another_capture(backend):
    x, stream = backend.empty(SIZE), backend.stream()
    with Capture(Graph(backend.type), stream):
        x.fill_(1, stream=stream)
        backend.default_stream().record_event(backend.event()).synchronize(
            LONG
        )


def test_what_is_captured_waits_for_nothing(engine):
    """The order is that of the launch."""
    stream, default = engine.stream(blocking=True), engine.default_stream()
    x, graph = engine.filled(0, SIZE), Graph(engine.type)
    gate = engine.gate(default)
    with Capture(graph, stream):
        stream.record_event()
        x.fill_(1, stream=stream)
    assert stream.query()
    gate.open()
    default.synchronize(LONG)
