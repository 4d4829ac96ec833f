"""Hooks of graphs, what a graph retains, its nodes and edges, and
accelerator.Graph."""

import gc
import logging
import os
import pickle
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from captures import SIZE, Capture, byte_of, replay
from deadlines import LONG

import pystreams
from pystreams import accelerator
from pystreams import cuda as namespace
from pystreams.cuda import graphs
from pystreams.cuda._graphs import Graph

KINDS = (
    "capture_start",
    "capture_end",
    "post_instantiate",
    "replay_start",
    "replay_end",
)
GLOBAL = {
    "capture_start": graphs.register_graph_capture_start_hook,
    "capture_end": graphs.register_graph_capture_end_hook,
    "post_instantiate": graphs.register_graph_instantiate_hook,
    "replay_start": graphs.register_graph_replay_start_hook,
    "replay_end": graphs.register_graph_replay_end_hook,
}


def register(graph, kind, hook):
    return getattr(graph, f"register_{kind}_hook")(hook)


@pytest.fixture
def everywhere():
    """register(kind, hook) for all graphs, until the test ends."""
    handles = []
    yield lambda kind, hook: handles.append(GLOBAL[kind](hook))
    for handle in handles:
        handle.remove()


def test_the_module_is_there_without_an_import(run_python):
    """The module is there without an import, as torch.cuda.graphs is."""
    code = """
import pystreams as torch
torch.cuda.graphs.register_graph_capture_end_hook(print).remove()
assert torch.cuda.graphs.graph is torch.cuda.graph
assert not torch.cuda.graphs.is_current_stream_capturing()
assert torch.cuda.green_contexts.GreenContext is torch.cuda.GreenContext
"""
    assert run_python(code).returncode == 0


def test_each_point_once_those_of_all_graphs_first(
    stream, graph, buffer, everywhere
):
    log = []
    for kind in KINDS:
        everywhere(kind, lambda g, kind=kind: log.append((kind, 1)))
        register(graph, kind, lambda g, kind=kind: log.append((kind, 2)))
        everywhere(kind, lambda g, kind=kind: log.append((kind, 3)))
    with Capture(graph, stream):
        buffer.fill_(2)
    assert log == [(kind, n) for kind in KINDS[:3] for n in (1, 3, 2)]
    log.clear()
    for _ in range(2):
        replay(graph, stream)
    assert log == [(kind, n) for kind in KINDS[3:] for n in (1, 3, 2)] * 2
    assert byte_of(buffer, stream) == 2


def test_hooks_of_a_kept_graph(backend, stream, buffer):
    graph, log = Graph(backend.type, True), []
    for kind in KINDS:
        register(graph, kind, lambda g, kind=kind: log.append(kind))
    with Capture(graph, stream):
        buffer.fill_(2)
    assert log == ["capture_start", "capture_end"]
    replay(graph, stream)
    assert log[2:] == ["post_instantiate", "replay_start", "replay_end"]
    graph.instantiate()
    assert log[5:] == ["post_instantiate"]


def test_what_hooks_find(stream, graph, buffer):
    seen = {}

    def look(kind):
        def hook(found):
            assert found is graph
            handles = found._state()[1:3]
            seen[kind] = (
                stream.is_capturing(),
                *map(bool, handles),
            )

        return hook

    for kind in KINDS:
        register(graph, kind, look(kind))
    with Capture(graph, stream):
        buffer.fill_(2)
    replay(graph, stream)
    assert seen == {
        "capture_start": (True, False, False),
        "capture_end": (False, True, False),
        "post_instantiate": (False, True, True),
        "replay_start": (False, False, True),
        "replay_end": (False, False, True),
    }


def test_a_handle_stops_its_hook(stream, graph, buffer):
    log = []
    first = graph.register_replay_start_hook(lambda g: log.append(1))
    with graph.register_replay_start_hook(lambda g: log.append(2)) as second:
        assert second.id > first.id
        with Capture(graph, stream):
            buffer.fill_(2)
        replay(graph, stream)
    replay(graph, stream)
    first.close()
    first.remove()
    replay(graph, stream)
    assert log == [1, 2, 1]


def test_a_hook_must_be_callable(graph):
    calls = [(getattr(graph, f"register_{k}_hook"), "hook") for k in KINDS]
    calls += [(function, "fn") for function in GLOBAL.values()]
    calls += [
        (graphs.register_graph_destroy_hook, "fn"),
        (graph.register_destroy_callback, "cb"),
    ]
    for call, name in calls:
        with pytest.raises(TypeError) as caught:
            call(1)
        assert str(caught.value) == (
            f"{call.__name__}() expects a callable for {name}, but got int"
        )


def failing(log):
    def hook(*args):
        log.append(args)
        raise LookupError("from the hook")

    return hook


@pytest.mark.parametrize("kind", KINDS)
def test_a_hook_of_all_graphs_that_raises_is_logged(
    stream, graph, buffer, everywhere, caplog, kind
):
    """The call goes on, and the other hooks run."""
    log, after = [], []
    everywhere(kind, failing(log))
    everywhere(kind, after.append)
    register(graph, kind, after.append)
    with caplog.at_level(logging.ERROR), Capture(graph, stream):
        buffer.fill_(2)
    with caplog.at_level(logging.ERROR):
        replay(graph, stream)
    assert byte_of(buffer, stream) == 2
    assert (log, after) == ([(graph,)], [graph, graph])
    assert "from the hook" in caplog.text


def test_a_start_hook_that_raises_drops_the_capture(stream, graph, buffer):
    log = []
    with graph.register_capture_start_hook(failing(log)):
        with stream, pytest.raises(LookupError, match="from the hook"):
            graph.capture_begin()
        assert not stream.is_capturing()
    with Capture(graph, stream):
        buffer.fill_(2)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2
    assert len(log) == 1


def test_an_end_hook_that_raises_leaves_the_graph(stream, graph, buffer):
    log = []
    graph.register_capture_end_hook(failing(log))
    graph.register_capture_end_hook(failing(log))
    with (
        pytest.raises(LookupError, match="from the hook"),
        Capture(graph, stream),
    ):
        buffer.fill_(2)
    assert not stream.is_capturing()
    assert len(log) == 1
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


@pytest.mark.parametrize(
    ("kind", "queued"),
    [("post_instantiate", 1), ("replay_start", 1), ("replay_end", 2)],
)
def test_replay_hooks_that_raise(backend, stream, buffer, kind, queued):
    graph, log, ended = Graph(backend.type, True), [], []
    register(graph, kind, failing(log))
    if kind != "replay_end":
        graph.register_replay_end_hook(ended.append)
    with Capture(graph, stream):
        buffer.fill_(2)
    with pytest.raises(LookupError, match="from the hook"):
        replay(graph, stream)
    assert byte_of(buffer, stream) == queued
    assert (len(log), ended) == (1, [])


def test_an_end_hook_balances_a_launch_that_fails(stream, graph, buffer):
    """Within a capture, a replay is refused, but the hook at its end still
    runs."""
    other, ended = Graph(stream.device_type), []
    with Capture(graph, stream):
        buffer.fill_(2)
    graph.register_replay_end_hook(ended.append)
    with (
        pytest.raises(RuntimeError, match="a replay cannot be captured"),
        Capture(other, stream),
    ):
        buffer.fill_(3)
        graph.replay()
    assert ended == [graph]


def test_hooks_may_use_the_graph(stream, graph, buffer):
    def end(found):
        found.reset()

    handle = graph.register_capture_end_hook(end)
    with Capture(graph, stream):
        buffer.fill_(2)
    with pytest.raises(RuntimeError, match="without a preceding"):
        replay(graph, stream)
    handle.remove()
    with Capture(graph, stream):
        buffer.fill_(3)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 3


@pytest.mark.parametrize(
    ("use", "count"),
    [(Graph.replay, 1), (Graph.reset, 0)],
    ids=["replay", "reset"],
)
def test_instantiations_if_a_capture_end_hook_uses_the_graph(
    stream, graph, buffer, use, count
):
    """A replay in the hook instantiates the graph, and a reset drops it."""
    made = []
    graph.register_capture_end_hook(use)
    graph.register_post_instantiate_hook(made.append)
    with Capture(graph, stream):
        buffer.fill_(2)
    assert made == [graph] * count


def test_instantiations_if_a_replay_start_hook_captures_again(
    stream, graph, buffer
):
    made = []

    def capture_again(found):
        found.reset()
        with Capture(found, stream):
            buffer.fill_(3)

    graph = Graph(stream.device_type, keep_graph=True)
    graph.register_post_instantiate_hook(
        lambda found: made.append(found.raw_cuda_graph_exec())
    )
    graph.register_replay_start_hook(capture_again)
    with Capture(graph, stream):
        buffer.fill_(2)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 3
    assert len(made) == 2
    assert made[1] == graph.raw_cuda_graph_exec()


def test_a_failed_update_is_raised_before_the_failure_of_a_hook(
    backend, stream, buffer, monkeypatch
):
    def fail(_):
        raise ZeroDivisionError

    graph, other = (Graph(backend.type, keep_graph=True) for _ in range(2))
    with Capture(graph, stream):
        buffer.fill_(2)
    with Capture(other, stream):
        buffer.fill_(2)
        buffer.fill_(3)
    graph.register_post_instantiate_hook(fail)
    reported = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda found: reported.append(found.exc_type)
    )
    with pytest.raises(pystreams.AcceleratorError, match="differ"):
        graph.update(other)
    assert reported == [ZeroDivisionError]
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_a_capture_end_hook_that_begins_a_capture(stream, graph, buffer):
    """The error does not say that the capture is in progress."""
    graph.register_capture_end_hook(lambda found: found.capture_begin())
    with (
        pytest.raises(RuntimeError, match="already owns") as caught,
        Capture(graph, stream),
    ):
        buffer.fill_(2)
    assert "has not ended" not in str(caught.value)


@pytest.mark.parametrize("name", ["replay", "upload", "update"])
def test_each_call_that_instantiates_runs_the_hooks(
    backend, stream, buffer, name
):
    graph, made = Graph(backend.type, keep_graph=True), []
    other = Graph(backend.type, keep_graph=True)
    for captured in (graph, other):
        with Capture(captured, stream):
            buffer.fill_(2)
    graph.register_post_instantiate_hook(
        lambda found: made.append(found.raw_cuda_graph_exec())
    )
    calls = {
        "replay": lambda: replay(graph, stream),
        "upload": lambda: graph.upload(stream),
        "update": lambda: graph.update(other),
    }
    for _ in range(2):
        calls[name]()
    assert made == [graph.raw_cuda_graph_exec()]


# ---- The end of a graph ----


@pytest.mark.unscheduled
@pytest.mark.parametrize("keep", [False, True], ids=["ready", "kept"])
def test_threads_that_replay_at_once_instantiate_once(
    backend, stream, buffer, keep, switch_often
):
    """Here, a graph that is not kept has no executable yet either."""
    made, failures = [], []

    def launch(graph, start):
        start.wait(LONG)
        try:
            graph.replay()
        except RuntimeError as error:
            failures.append(error)

    def launch_thrice(graph):
        start = threading.Barrier(3)
        threads = [
            threading.Thread(target=launch, args=(graph, start))
            for _ in range(3)
        ]
        with graph.register_post_instantiate_hook(made.append):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    for _ in range(500):
        graph = Graph(backend.type, keep)
        graph.register_capture_end_hook(launch_thrice)
        with Capture(graph, stream):
            buffer.fill_(2)
    assert failures == []
    assert len(made) == 500
    assert byte_of(buffer, backend.default_stream()) == 2


def test_destroy_callbacks(stream, graph, buffer):
    gc.collect()  # Graphs of earlier tests.
    log = []
    handle = graphs.register_graph_destroy_hook(
        lambda e: log.append((type(e), len(e)))
    )
    graph.register_destroy_callback(lambda: log.append("first"))
    graph.register_destroy_callback(lambda: log.append("second"))
    graph.register_destroy_callback(lambda: log.append("no")).remove()
    graph.reset()  # There is nothing to reset.
    assert log == []
    with Capture(graph, stream):
        buffer.fill_(2)
    graph.reset()
    assert log == [(set, 1), "first", "second"]
    graph.reset()
    with Capture(graph, stream):
        buffer.fill_(2)
    graph.reset()
    assert log == [(set, 1), "first", "second", (set, 1)]
    handle.remove()


def test_a_destroy_hook_of_all_graphs_gets_each_executable(
    backend, stream, buffer, everywhere
):
    """The hook also gets the executables that instantiate() has replaced."""
    gc.collect()
    seen, destroyed = [], []
    everywhere("post_instantiate", lambda g: seen.append(g._executable()))
    handle = graphs.register_graph_destroy_hook(destroyed.append)
    for _ in range(2):
        graph = Graph(backend.type, True)
        with Capture(graph, stream):
            buffer.fill_(2)
        graph.instantiate()
        graph.instantiate()
        graph.reset()
    handle.remove()
    assert all(seen) and len(seen) == 4
    assert destroyed == [set(seen[:2]), set(seen[2:])]


def test_a_destroyed_graph_that_a_callback_stores(backend, stream, buffer):
    """Its executable is destroyed once, and then a new one."""
    gc.collect()
    destroyed, stored = [], []
    handle = graphs.register_graph_destroy_hook(destroyed.append)
    graph = Graph(backend.type)
    with Capture(graph, stream):
        buffer.fill_(2)
    first = graph._executable()
    graph.register_destroy_callback(lambda graph=graph: stored.append(graph))
    del graph
    gc.collect()
    (graph,) = stored
    graph.register_destroy_callback(lambda: stored.append("reset"))
    graph.reset()
    assert destroyed == [{first}]
    assert stored == [graph, "reset"]
    with Capture(graph, stream):
        buffer.fill_(3)
    second = graph._executable()
    graph.reset()
    handle.remove()
    assert destroyed == [{first}, {second}]


def test_destroyed_with_the_object(backend, stream, buffer):
    graph, log = Graph(backend.type), []
    graph.register_destroy_callback(lambda: log.append("gone"))
    with Capture(graph, stream):
        buffer.fill_(2)
    replay(graph, stream)
    graph.cycle = graph
    del graph
    gc.collect()
    assert log == ["gone"]
    assert byte_of(buffer, stream) == 2


AT_EXIT = """
import atexit, logging, weakref
import pystreams
from pystreams import accelerator
from pystreams.cuda import graphs

logging.basicConfig(format="%(message)s")
stream, data = pystreams.Stream(), pystreams.empty(4)
first, second, empty = (accelerator.Graph() for _ in range(3))
proxy = weakref.proxy(type("Gone", (), {{}})())

def replay():
    with stream:
        first.replay()
        stream.synchronize()
    print("replayed")

@atexit.register
def last():
    global second
    replay()
    del second

graphs.register_graph_destroy_hook(lambda found: print(len(found)))
with stream:
    for graph in (first, second):
        with graph:
            data.fill_(1)
{own}
del graph
print("end")
"""
OWN = """
first.register_destroy_callback(lambda: 1 / 0)
first.register_destroy_callback(
    lambda: print("gone", stream.query()), synchronize_before_release=True
)
empty.register_destroy_callback(lambda: print("empty"))
atexit.register(replay)
"""


def test_destroy_hooks_run_when_the_program_ends(run_python):
    """The hooks run once for each graph that captured something, and the graph
    can still be used."""
    done = run_python(AT_EXIT.format(own=""))
    assert (done.stdout, done.stderr) == ("end\n1\n1\nreplayed\n", "")
    done = run_python(AT_EXIT.format(own=OWN))
    lines = done.stdout.split("\n")
    assert lines[:2] == ["end", "replayed"]
    assert sorted(lines[2:-2]) == ["1", "1", "gone True"]
    assert lines[-2:] == ["replayed", ""]
    assert "ZeroDivisionError" in done.stderr


def test_destroy_callbacks_that_raise_are_logged(
    stream, graph, buffer, caplog
):
    log = []
    graph.register_destroy_callback(failing(log))
    graph.register_destroy_callback(lambda: log.append("second"))
    with Capture(graph, stream):
        buffer.fill_(2)
    with caplog.at_level(logging.ERROR):
        graph.reset()
    assert log == [(), "second"]
    assert "from the hook" in caplog.text


def test_destroy_callbacks_may_wait_for_the_replays(
    backend, stream, graph, buffer
):
    log = []
    with Capture(graph, stream):
        buffer.fill_(2)
    graph.register_destroy_callback(
        lambda: log.append(stream.query()), synchronize_before_release=True
    )
    gate = backend.gate(stream)
    replay(graph, stream)
    threading.Timer(0.1, gate.open).start()
    graph.reset()
    assert log == [True]


def test_a_refused_reset_calls_no_hook(stream, graph, buffer):
    log, errors = [], []
    graph.register_destroy_callback(lambda: log.append("gone"))

    def reset():
        try:
            graph.reset()
        except pystreams.AcceleratorError as error:
            errors.append(error)

    with Capture(graph, stream, "thread_local"):
        thread = threading.Thread(target=reset)
        thread.start()
        thread.join()
        buffer.fill_(2)
    assert (len(errors), log) == (1, [])
    graph.reset()
    assert log == ["gone"]


class Kept:
    pass


def test_retained_until_the_replays_are_done(backend, stream, graph, buffer):
    kept, early = Kept(), Kept()
    dropped, left = weakref.ref(kept), weakref.ref(early)
    with Capture(graph, stream):
        buffer.fill_(2)
        graph.retain_object(kept)
        handle = graph.retain_object(early, synchronize_before_release=True)
    del kept, early
    handle.remove()
    assert left() is None
    gate = backend.gate(stream)
    replay(graph, stream)
    graph.reset()
    gc.collect()
    assert dropped() is not None
    gate.open()
    stream.synchronize()
    backend.filled(1, SIZE, stream=stream).close()
    for _ in range(100):
        if dropped() is not None:
            stream.synchronize()
    assert dropped() is None


def test_a_handle_keeps_nothing(stream, graph, buffer):
    kept = Kept()
    dropped = weakref.ref(kept)
    handle = graph.retain_object(kept)
    del kept
    with Capture(graph, stream):
        buffer.fill_(2)
    graph.reset()
    gc.collect()
    assert dropped() is None
    handle.remove()


def test_retained_before_the_capture(stream, graph, buffer):
    kept = Kept()
    dropped = weakref.ref(kept)
    graph.retain_object(kept)
    del kept
    with Capture(graph, stream):
        buffer.fill_(2)
    assert dropped() is not None
    graph.reset()
    assert dropped() is None


def test_nothing_of_it_in_a_forked_child(
    backend, stream, graph, buffer, everywhere
):
    if not backend.on_engine:
        pytest.skip(f"{backend}: a child may not use it")
    log = []
    everywhere("capture_end", log.append)
    graph.register_destroy_callback(lambda: log.append("gone"))
    with Capture(graph, stream):
        buffer.fill_(2)
    del log[:]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            graph.__dict__.pop("unknown", None)
            mine = backend.stream()
            other = Graph(backend.type)
            with mine:
                other.capture_begin()
                other.capture_end()
            other.reset()
        except UserWarning:
            pass
        finally:
            status = 0 if log == [] else 2
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


# ---- Nodes ----


def nodes_of(graph):
    return graph.get_graph_data()["nodes"]


def test_nodes_and_edges(engine, stream, buffer):
    graph, side = Graph(engine.type, True), engine.stream()
    source = engine.filled(3, SIZE, stream=stream)
    event = pystreams.Event(engine.name, enable_timing=False, external=True)
    with Capture(graph, stream):
        buffer.fill_(2)
        side.wait_stream(stream)
        buffer.copy_(source, non_blocking=True)
        engine.sleep(side, 1)
        event.record(side)
        side.submit(len, "x")
        stream.wait_stream(side)
    data = graph.get_graph_data()
    assert data["exec_graph_id"] == 0
    kinds = [n["node_type"] for n in data["nodes"]]
    assert sorted(kinds) == sorted(
        ["memset", "memcpy", "kernel", "event_record", "host"] + ["empty"] * 4
    )
    by_kind = {n["node_type"]: n for n in data["nodes"]}
    assert by_kind["memset"]["nbytes"] == SIZE
    assert by_kind["kernel"]["kernel_name"] == "sleep"
    assert by_kind["host"]["host_fn_name"] == "len"
    assert by_kind["event_record"]["event_ptr"] == event.event_id
    for node in data["nodes"]:
        for index in node["dependencies"]:
            assert node["index"] in data["nodes"][index]["dependents"]
            assert index < node["index"]
        assert node["tools_id"] == node["node_id"]
        assert node["grid_dim"] is node["block_dim"] is None
        assert node["shared_mem_bytes"] is None
    edges = [(edge.pop("from"), edge.pop("to")) for edge in data["edges"]]
    assert sorted(edges) == sorted(
        (index, node["index"])
        for node in data["nodes"]
        for index in node["dependencies"]
    )
    assert all(
        edge == {"from_port": 0, "to_port": 0, "type": 0}
        for edge in data["edges"]
    )
    reached = {by_kind["host"]["index"]}
    for node in data["nodes"]:
        if reached & set(node["dependencies"]):
            reached.add(node["index"])
    assert len(data["nodes"]) - 1 in reached
    graph.instantiate()
    data = graph.get_graph_data()
    assert (number := data["exec_graph_id"]) != 0
    for node in data["nodes"]:
        assert node["graph_id"] == number
        assert node["tools_id"] == number << 32 | node["node_id"]


def test_no_nodes_without_the_graph(engine, stream, graph, buffer):
    with pytest.raises(RuntimeError, match="needs the captured graph"):
        graph.get_graph_data()
    with Capture(graph, stream):
        buffer.fill_(2)
    with pytest.raises(RuntimeError, match="keep_graph=True"):
        graph.get_graph_data()


@pytest.mark.parametrize("verbose", [False, True], ids=["brief", "verbose"])
def test_export_dot(engine, stream, graph, buffer, tmp_path, verbose):
    path = tmp_path / "graph.dot"
    graph.register_capture_end_hook(graphs.export_dot(path, verbose=verbose))
    with Capture(graph, stream):
        buffer.fill_(2)
    text = path.read_text()
    assert text.startswith("digraph")
    assert (f"{SIZE} bytes" in text) == verbose


def test_names_in_a_dump(engine, stream, graph, tmp_path):
    def function():
        pass

    function.__qualname__ = 'a"b\\'
    path = tmp_path / "graph.dot"
    graph.register_capture_end_hook(graphs.export_dot(path, verbose=False))
    with Capture(graph, stream):
        stream.submit(function)
    assert '[label="host\\na\'b\\\\"];' in path.read_text()


@pytest.mark.parametrize("keep_graph", [False, True])
def test_export_graph_data(backend, stream, buffer, tmp_path, keep_graph):
    """The data is written when the graph is instantiated, even if the graph is
    not kept."""
    path = tmp_path / "graph.pickle"
    graph = Graph(backend.type, keep_graph)
    handle = graph.register_post_instantiate_hook(
        graphs.export_graph_data(path)
    )
    with Capture(graph, stream):
        buffer.fill_(2)
    if keep_graph:
        assert not path.exists()
        graph.instantiate()
    handle.remove()
    data = pickle.loads(path.read_bytes())
    assert data["exec_graph_id"] == graph._executable()
    assert [node["node_type"] for node in data["nodes"]] == ["memset"]
    if keep_graph:
        assert graph.get_graph_data() == data
        return
    with pytest.raises(RuntimeError, match="cudaGraph_t instance unless"):
        graph.raw_cuda_graph()
    with pytest.raises(RuntimeError):
        graph.get_graph_data()


def test_a_hook_that_raises_leaves_no_graph_behind(stream, graph, buffer):
    def fail(graph):
        raise KeyError

    handle = graph.register_post_instantiate_hook(fail)
    with stream:
        graph.capture_begin()
        buffer.fill_(2)
        with pytest.raises(KeyError):
            graph.capture_end()
    handle.remove()
    assert graph._state()[1] == 0
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_pools(stream, graph, buffer):
    with Capture(graph, stream):
        buffer.fill_(2)
    assert graph.pools() == [graph.pool()]


# ---- upload ----


def test_upload(backend, stream, buffer):
    graph = Graph(backend.type, True)
    with pytest.raises(RuntimeError, match="without a preceding"):
        graph.upload(stream)
    with Capture(graph, stream):
        buffer.fill_(2)
    graph.upload(stream)
    assert graph.raw_cuda_graph_exec() != 0
    with stream:
        graph.upload()
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_upload_to_another_device(two_cuda, stream, buffer):
    graph, stream = Graph(two_cuda.type), two_cuda.stream()
    other = two_cuda.stream(1)
    block = two_cuda.filled(1, SIZE, stream=stream)
    with Capture(graph, stream):
        block.fill_(2)
    with pytest.raises(ValueError, match="stream of the device"):
        graph.upload(other)


def test_an_upload_cannot_be_captured(backend, stream, graph, buffer):
    """The message names upload(), and the capture goes on."""
    other = Graph(backend.type)
    with Capture(other, backend.stream()):
        buffer.fill_(3)
    with Capture(graph, stream):
        buffer.fill_(2)
        with pytest.raises(RuntimeError, match=r"^upload\(\) cannot be capt"):
            other.upload(stream)
        other.upload(backend.stream())
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


@pytest.mark.parametrize("call", ["replay", "upload"])
def test_the_default_stream_while_a_blocking_one_is_captured(
    engine, graph, buffer, call
):
    """The call is refused, as the default stream would have to wait for the
    captured one.  The message names that dependency."""
    other, stream = Graph(engine.type), engine.stream(blocking=True)
    with Capture(other, engine.stream()):
        buffer.fill_(3)
    with Capture(graph, stream):
        buffer.fill_(2)
        refused = rf"legacy stream depend[^\n]*\nCUDAGraph.{call} failed"
        with (
            engine.default_stream(),
            pytest.raises(pystreams.AcceleratorError, match=refused),
        ):
            getattr(other, call)()
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


# ---- accelerator.Graph ----


@pytest.fixture
def side():
    return pystreams.Stream()


@pytest.fixture
def block(side):
    buffer = pystreams.empty(SIZE, device=side.device, stream=side)
    buffer.fill_(1, stream=side)
    side.synchronize()
    return buffer


def test_a_graph_is_a_context(side, block):
    graph = accelerator.Graph(pool=accelerator.generate_graph_pool_handle())
    with side, graph as entered:
        assert entered is None
        assert side.is_capturing()
        block.fill_(2)
    assert not side.is_capturing()
    assert byte_of(block, side) == 1
    replay(graph, side)
    assert byte_of(block, side) == 2
    assert graph.pool() == graph.graph_pool
    graph.reset()
    graph.capture_error_mode = "relaxed"
    with side:
        graph.capture_begin()
        block.fill_(3)
        graph.capture_end()
    replay(graph, side)
    assert byte_of(block, side) == 3


def test_a_block_that_raises_ends_the_capture(side, block):
    graph, other = accelerator.Graph(), pystreams.Stream()
    with pytest.raises(LookupError), side, graph:
        other.wait_stream(side)
        block.fill_(2, stream=other)
        raise LookupError
    assert not side.is_capturing()
    assert not other.is_capturing()


def test_an_empty_block_that_raises_is_not_warned_of(side, recwarn):
    with (
        pytest.raises(LookupError) as caught,
        side,
        accelerator.Graph(),
    ):
        raise LookupError
    assert caught.value.__context__ is None
    assert not recwarn


def test_a_capture_that_does_not_begin(side):
    graph = accelerator.Graph()
    graph.capture_error_mode = "strict"
    with (
        pytest.raises(RuntimeError, match="Unknown capture error mode"),
        side,
        graph,
    ):
        pass
    assert not side.is_capturing()
    with (
        pytest.raises(RuntimeError, match="non-default stream"),
        accelerator.Graph(),
    ):
        pass


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_a_block_that_is_refused_leaves_the_capture(side, block, mode):
    """Another thread's capture begins while the block waits for the device.
    The block's thread may have captured another graph."""

    class Late(accelerator.Graph):
        def _begin_capture(self):
            waited.set()
            assert captured.wait(LONG)
            with Capture(Graph(side.device_type), pystreams.Stream()):
                other.fill_(3)
            super().capture_begin()

    def enter():
        with (
            pystreams.Stream(),
            pytest.raises(RuntimeError, match="already owns"),
        ):
            graph.__enter__()

    graph = Late(capture_error_mode=mode)
    other = pystreams.empty(SIZE, device=side.device)
    waited, captured = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(enter)
        assert waited.wait(LONG)
        with side:
            graph.capture_begin()
            block.fill_(2)
            captured.set()
            refused.result(LONG)
            assert side.is_capturing()
            graph.capture_end()
    replay(graph, side)
    assert byte_of(block, side) == 2


def test_a_block_that_is_refused_after_another_capture(side, block):
    class Warm(accelerator.Graph):
        def _begin_capture(self):
            with Capture(Graph(side.device_type), pystreams.Stream()):
                block.fill_(3)
            super()._begin_capture()

    graph = Warm()
    with side, graph:
        block.fill_(2)
    with side, pytest.raises(RuntimeError, match="already owns"):
        graph.__enter__()
    replay(graph, side)
    assert byte_of(block, side) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"keep_graph": "x"},
            TypeError,
            "Graph() expects a bool for keep_graph, but got str",
        ),
        (
            {"pool": "x"},
            TypeError,
            "Graph() expects None or a token of graph_pool_handle() or "
            "CUDAGraph.pool() for pool, but got 'x'",
        ),
        (
            {"capture_error_mode": 1},
            TypeError,
            "Graph() expects a str for capture_error_mode, but got int",
        ),
        (
            {"capture_error_mode": "strict"},
            RuntimeError,
            "Unknown capture error mode. Expected `global`, `thread_local`, "
            "or `relaxed`, got strict",
        ),
    ],
    ids=str,
)
def test_arguments_of_the_graph_of_the_accelerator(arguments, error, text):
    with pytest.raises(error) as caught:
        accelerator.Graph(**arguments)
    assert str(caught.value) == text


def test_the_graph_of_the_accelerator():
    graph = accelerator.Graph(True)
    assert isinstance(graph, Graph)
    assert repr(type(graph)) == "<class 'pystreams.accelerator.Graph'>"
    with pytest.raises(TypeError):
        accelerator.Graph(False, None)


def test_names_of_torch(cuda):
    assert graphs.CUDAGraph is namespace.CUDAGraph
    assert namespace.export_dot is graphs.export_dot
    assert namespace.export_graph_data is graphs.export_graph_data
