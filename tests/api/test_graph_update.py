"""How a graph is instantiated, and updated to do the work of another."""

import gc

import pytest
from captures import SIZE, Capture, byte_of, captured, copy, fill, replay

import pystreams
from pystreams import AcceleratorError
from pystreams.cuda._graphs import Graph

OPTIONS = ["auto_free_on_launch", "use_node_priority"]


@pytest.mark.parametrize("option", OPTIONS)
def test_instantiate_with_an_option(backend, stream, buffer, option):
    graph = captured(backend, fill(buffer, 2))
    graph.instantiate(**{option: False})
    for byte in (1, 3):
        buffer.fill_(byte, stream)
        replay(graph, stream)
        assert byte_of(buffer, stream) == 2


@pytest.mark.parametrize("option", [*OPTIONS, "device_launch"])
def test_an_option_that_is_none_changes_nothing(backend, buffer, option):
    graph = captured(backend, fill(buffer, 2))
    graph.instantiate()
    executable = graph.raw_cuda_graph_exec()
    with pytest.raises(TypeError, match=rf"instantiate\(\).*{option}"):
        graph.instantiate(**{option: "yes"})
    with pytest.raises(TypeError, match="takes no positional arguments"):
        graph.instantiate(True)
    assert graph.raw_cuda_graph_exec() == executable


@pytest.mark.parametrize("keep", [False, True])
def test_later_replays_do_the_other_work(backend, stream, buffer, keep):
    graph = captured(backend, fill(buffer, 2), keep=keep)
    other = captured(backend, fill(buffer, 3))
    held = backend.stream()
    with backend.hold(held):
        stream.wait_stream(held)
        replay(graph, stream)
        graph.update(other)
        event = stream.record_event()
        second = backend.empty(SIZE, stream=stream)
        second.copy_(buffer, non_blocking=True, stream=stream)
        replay(graph, stream)
        assert not event.query()
    assert byte_of(buffer, stream) == 3
    assert byte_of(second, stream) == 2


def test_it_is_captured_again_by_instantiate(backend, stream, buffer):
    graph = captured(backend, fill(buffer, 2))
    graph.update(captured(backend, fill(buffer, 3)))
    graph.instantiate()
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_it_keeps_what_the_new_work_uses(backend, stream, buffer):
    graph = captured(backend, copy(buffer, backend.filled(1, SIZE)))
    for byte in (2, 3, 4):
        source = backend.filled(byte, SIZE)
        graph.update(captured(backend, copy(buffer, source)))
        del source
        gc.collect()
        others = [backend.filled(9, SIZE) for _ in range(4)]
        replay(graph, stream)
        assert byte_of(buffer, stream) == byte
        del others


def test_it_drops_what_no_launch_uses_any_more(backend, stream, buffer):
    before = backend.in_use()
    graph = captured(backend, copy(buffer, backend.filled(1, SIZE)))
    for byte in range(2, 20):
        graph.update(
            captured(backend, copy(buffer, backend.filled(byte, SIZE)))
        )
        replay(graph, stream)
    stream.synchronize()
    gc.collect()
    assert backend.in_use() - before <= 3 * SIZE
    graph.reset()
    stream.synchronize()
    gc.collect()
    assert backend.in_use() == before


def refused(graph, other):
    with pytest.raises(AcceleratorError) as caught:
        graph.update(other)
    assert caught.value.error_code == 910
    return str(caught.value)


def test_the_first_node_that_differs_is_named(engine, stream, buffer):
    graph = captured(engine, fill(buffer, 2), fill(buffer, 3))
    other = engine.filled(1, SIZE, stream=stream)
    stream.synchronize()
    text = refused(
        graph, captured(engine, fill(buffer, 4), copy(buffer, other))
    )
    assert "Node 1 of the new graph, a memcpy node" in text
    assert "its type differs" in text
    replay(graph, stream)
    assert byte_of(buffer, stream) == 3


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_nodes(backend, stream, buffer, count):
    graph = captured(backend, fill(buffer, 2), fill(buffer, 3))
    assert "differ" in refused(
        graph, captured(backend, *[fill(buffer, 4)] * count)
    )
    replay(graph, stream)
    assert byte_of(buffer, stream) == 3


def test_the_edges(backend, stream, buffer):
    """Of a fork and a join, and of one stream."""
    side = backend.stream()
    other = backend.filled(1, SIZE)

    def fork(origin):
        side.wait_stream(origin)

    def join(origin):
        origin.wait_stream(side)

    def aside(origin):
        other.fill_(5, side)

    works = [fill(buffer, 2), aside, fill(buffer, 3)]
    graph = captured(backend, fork, *works, join)
    line = captured(backend, *works[:1], fill(other, 5), *works[2:])
    same = captured(backend, fork, *works, join)
    refused(graph, line)
    graph.update(same)
    replay(graph, stream)
    assert byte_of(other, stream) == 5


def test_what_cannot_take_its_place(backend, stream, buffer):
    graph = captured(backend, fill(buffer, 2))
    unkept = captured(backend, fill(buffer, 3), keep=False)
    callables = captured(backend, lambda stream: stream.submit(int))
    for other, error, match in [
        (None, TypeError, "expects a graph for other"),
        (graph, ValueError, "the graph itself"),
        (unkept, RuntimeError, "keep_graph=True"),
        (Graph(backend.type, True), RuntimeError, "keep_graph=True"),
        (callables, RuntimeError, "callables"),
    ]:
        with pytest.raises(error, match=match):
            graph.update(other)
    with pytest.raises(RuntimeError, match="without a preceding"):
        Graph(backend.type).update(graph)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_of_another_device(backend, stream, buffer):
    if backend.count < 2:
        pytest.skip("one device")
    graph = captured(backend, fill(buffer, 2))
    there = pystreams.Stream(f"{backend.name}:1")
    other = Graph(backend.type, True)
    far = pystreams.empty(8, device=f"{backend.name}:1", stream=there)
    with Capture(other, there):
        far.fill_(1, there)
    with pytest.raises(ValueError, match="the same device"):
        graph.update(other)
