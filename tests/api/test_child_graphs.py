"""Graphs that are captured into another graph."""

import gc

import pytest
from captures import SIZE, Capture, byte_of, captured, copy, fill, replay

import pystreams
from pystreams.cuda._graphs import Graph


def test_its_work_is_in_the_middle(backend, stream, graph, buffer):
    first, last = (backend.filled(0, SIZE, stream=stream) for _ in "ab")
    child = captured(backend, copy(first, buffer), fill(buffer, 3))
    with Capture(graph, stream):
        buffer.fill_(2)
        graph.add_child(child)
        last.copy_(buffer, non_blocking=True)
        buffer.fill_(4)
    assert byte_of(buffer, stream) == 1
    for _ in range(2):
        replay(graph, stream)
        assert byte_of(first, stream) == 2
        assert byte_of(last, stream) == 3
        assert byte_of(buffer, stream) == 4
    replay(child, stream)
    assert byte_of(buffer, stream) == 3


def test_of_an_empty_graph(backend, stream, graph, buffer):
    with pytest.warns(UserWarning, match="empty"):
        child = captured(backend)
    with Capture(graph, stream):
        graph.add_child(child)
        buffer.fill_(2)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_its_forks_are_joined(backend, stream, graph, buffer):
    side, other = backend.stream(), backend.filled(0, SIZE)

    def fork(origin):
        side.wait_stream(origin)
        buffer.fill_(2, side)
        backend.sleep(side, 20)
        other.copy_(buffer, non_blocking=True, stream=side)
        origin.wait_stream(side)

    child = captured(backend, fork)
    with Capture(graph, stream):
        graph.add_child(child)
        graph.add_child(child, stream)
        buffer.fill_(5)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 5
    assert byte_of(other, stream) == 2


def test_on_a_side_stream(backend, stream, graph, buffer):
    side = backend.stream()
    other = backend.filled(0, SIZE)
    child = captured(backend, fill(buffer, 2), copy(other, buffer))
    with Capture(graph, stream):
        side.wait_stream(stream)
        graph.add_child(child, stream=side)
        stream.wait_stream(side)
        buffer.fill_(3)
    replay(graph, stream)
    assert byte_of(other, stream) == 2
    assert byte_of(buffer, stream) == 3


def test_a_child_that_is_not_joined(engine, stream, graph, buffer):
    side = engine.stream()
    child = captured(engine, fill(buffer, 2))
    with stream:
        graph.capture_begin()
        side.wait_stream(stream)
        graph.add_child(child, side)
        with pytest.raises(pystreams.AcceleratorError) as caught:
            graph.capture_end()
    assert caught.value.error_code == 904


def test_children_of_children(backend, stream, graph, buffer):
    child = captured(backend, fill(buffer, 2))
    middle = Graph(backend.type, True)
    with Capture(middle, backend.stream()):
        middle.add_child(child)
        buffer.fill_(3)
    with Capture(graph, stream):
        graph.add_child(middle)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 3


def test_it_may_be_reset(backend, stream, graph, buffer):
    child = captured(backend, copy(buffer, backend.filled(2, SIZE)))
    with Capture(graph, stream):
        graph.add_child(child)
    child.reset()
    del child
    gc.collect()
    others = [backend.filled(9, SIZE) for _ in range(4)]
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2
    del others


def test_events_that_it_records(backend, stream, graph, buffer):
    event = pystreams.Event(backend.name, enable_timing=False, external=True)
    child = captured(backend, lambda s: backend.sleep(s, 50), event.record)
    with Capture(graph, stream):
        graph.add_child(child)
        buffer.fill_(2)
    replay(graph, stream)
    event.synchronize()
    assert byte_of(buffer, stream) == 2


def test_update_with_children(backend, stream, buffer):
    graphs = []
    for byte in (2, 3):
        child = captured(backend, fill(buffer, byte))
        graphs.append(Graph(backend.type, True))
        with Capture(graphs[-1], stream):
            graphs[-1].add_child(child)
    graphs[0].update(graphs[1])
    replay(graphs[0], stream)
    assert byte_of(buffer, stream) == 3


def test_what_is_no_child(backend, stream, graph, buffer):
    child = captured(backend, fill(buffer, 2))
    unkept = Graph(backend.type)
    with Capture(unkept, stream):
        buffer.fill_(3)
    callables = captured(backend, lambda stream: stream.submit(int))
    with pytest.raises(RuntimeError, match="needs a capture"):
        graph.add_child(child)
    with Capture(graph, stream):
        for other, error, match in [
            (None, TypeError, "expects a graph for child"),
            (graph, ValueError, "the graph itself"),
            (unkept, RuntimeError, "keep_graph=True"),
            (callables, RuntimeError, "callables"),
        ]:
            with pytest.raises(error, match=match):
                graph.add_child(other)
        with pytest.raises(ValueError, match="that this graph captures"):
            graph.add_child(child, backend.stream())
        with pytest.raises(TypeError):
            graph.add_child(child, 5)
        graph.add_child(child)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2
