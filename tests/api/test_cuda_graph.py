"""Graphs under torch's names and with torch's messages, events that replays
record, and the end of a process that has graphs."""

import gc
import sys
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from captures import (
    SIZE,
    WRONG_THREAD,
    Capture,
    byte_of,
    code,
    filling,
    replay,
)
from deadlines import LONG

import pystreams
from pystreams import cuda as api
from pystreams import trace
from pystreams.cuda._graphs import Graph


@pytest.mark.parametrize("way", ["capture_end", "reset"])
@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_a_capture_that_another_thread_cannot_end(
    stream, graph, buffer, mode, way
):
    failures = []

    def end():
        with stream:
            failures.append(code(getattr(graph, way)))

    with stream:
        graph.capture_begin(capture_error_mode=mode)
        buffer.fill_(2)
        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
        assert failures == [WRONG_THREAD]
        assert stream.is_capturing()
        graph.capture_end()
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_a_relaxed_capture_that_another_thread_ends(stream, graph, buffer):
    def end():
        with stream:
            graph.capture_end()

    with stream:
        graph.capture_begin(capture_error_mode="relaxed")
        buffer.fill_(2)
    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert not stream.is_capturing()
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_a_check_of_liveness_has_nothing_to_find(cuda):
    """The graph keeps what its work uses."""
    stream, graph = cuda.stream(), api.CUDAGraph()
    block = cuda.empty(64, stream=stream)
    with api.graph(graph, stream=stream, check_input_liveness=True):
        block.fill_(7, stream=stream)
    del block
    with stream:
        graph.replay()
        graph.reset()
        graph.capture_begin(check_input_liveness=True)
        graph.reset()
    stream.synchronize()


RULES = {
    "an end before the begin": (
        lambda graph, stream: graph.capture_end(),
        "capture_end() called before capture_begin().",
    ),
    "a replay of nothing": (
        lambda graph, stream: graph.replay(),
        "Called CUDAGraph::replay without a preceding successful capture.",
    ),
    "the pool of nothing": (
        lambda graph, stream: graph.pool(),
        "Called CUDAGraph::pool() without a preceding successful capture.",
    ),
    "nothing to instantiate": (
        lambda graph, stream: graph.instantiate(),
        "capture_end() must have been called before calling instantiate",
    ),
    "a graph that is not kept": (
        lambda graph, stream: graph.raw_cuda_graph(),
        "You cannot access the raw cudaGraph_t instance unless CUDAGraph was "
        "initialized with keep_graph=true",
    ),
    "no executable": (
        lambda graph, stream: graph.raw_cuda_graph_exec(),
        "You cannot access the raw cudaGraphExec_t instance until "
        "instantiate() has been called",
    ),
    "a mode that is none": (
        lambda graph, stream: graph.capture_begin(capture_error_mode="strict"),
        "Unknown capture error mode. Expected `global`, `thread_local`, or "
        "`relaxed`, got strict",
    ),
    "a default stream": (
        lambda graph, stream: graph.capture_begin(),
        "CUDA graphs must be captured on a non-default stream. (However, "
        "after capture, it's ok to replay them on the default stream.)",
    ),
}


def test_a_block_captures_no_stream_of_another_device_type():
    stream = pystreams.Stream("cpu")
    with pytest.raises(
        ValueError, match=r"a CUDA device for stream, but .*cpu"
    ):
        api.graph(Graph(1), stream=stream)
    assert not stream.is_capturing()


@pytest.mark.parametrize("rule", RULES)
def test_what_is_refused(stream, graph, rule):
    call, message = RULES[rule]
    with pytest.raises(RuntimeError) as caught:
        call(graph, stream)
    assert str(caught.value) == message


def test_a_second_capture_is_refused(backend, stream, buffer):
    graph = filling(backend, buffer, 2)
    with stream, pytest.raises(RuntimeError, match="already owns a captured"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="only when keep_graph=true"):
        graph.instantiate()
    assert not stream.is_capturing()


def test_the_end_on_another_stream(backend, stream, graph, buffer):
    with Capture(graph, stream):
        buffer.fill_(2)
        with (
            backend.stream(),
            pytest.raises(RuntimeError, match="the same stream it began on"),
        ):
            graph.capture_end()
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


@pytest.mark.parametrize("pool", ["", 1, (1,), ("a", "b")], ids=repr)
def test_what_is_no_pool(stream, graph, pool):
    with stream, pytest.raises(TypeError, match="expects None or a token"):
        graph.capture_begin(pool)
    assert not stream.is_capturing()


def test_a_kept_graph(backend, stream, buffer):
    graph = Graph(backend.type, True)
    with Capture(graph, stream):
        buffer.fill_(2)
    native = graph.raw_cuda_graph()
    assert native != 0
    with pytest.raises(RuntimeError, match="cudaGraphExec_t"):
        graph.raw_cuda_graph_exec()
    replay(graph, stream)
    assert graph.raw_cuda_graph_exec() != 0
    assert graph.raw_cuda_graph() == native
    graph.instantiate()
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_pools_are_told_apart(backend, stream, buffer):
    first, second = (filling(backend, buffer, 2) for _ in range(2))
    assert first.pool() != second.pool()
    token = api.graph_pool_handle()
    assert token != api.graph_pool_handle()
    for pool in (token, first.pool()):
        graph = Graph(backend.type)
        with stream:
            graph.capture_begin(pool)
            buffer.fill_(2)
            graph.capture_end()
        assert graph.pool() == pool


def test_an_empty_capture_is_warned_of(stream, graph):
    with (
        pytest.warns(UserWarning, match="The CUDA Graph is empty"),
        Capture(graph, stream),
    ):
        pass
    replay(graph, stream)
    stream.synchronize()


def test_an_empty_capture_that_began_while_an_exception_was_handled(
    stream, graph, recwarn
):
    """That exception is freed before the next one is raised, which may get the
    same address."""
    for _ in range(20):
        with stream:
            try:
                raise ValueError("earlier")
            except ValueError:
                graph.capture_begin(capture_error_mode="relaxed")
            try:
                try:
                    raise ValueError("later")
                finally:
                    graph.capture_end()
            except ValueError as error:
                assert error.args == ("later",)
        graph.reset()
    assert not recwarn


def test_a_dropped_capture_keeps_no_exception(stream, graph):
    class Error(Exception):
        """Unlike those of C, has weak references."""

    def begin():
        try:
            raise Error
        except Error as error:
            graph.capture_begin(capture_error_mode="relaxed")
            return weakref.ref(error)

    with stream:
        error = begin()
        graph.reset()
    gc.collect()
    assert error() is None


def test_an_empty_capture_that_has_raised_is_not_warned_of(
    stream, graph, recwarn
):
    with pytest.raises(ZeroDivisionError), Capture(graph, stream):
        raise ZeroDivisionError
    graph.reset()
    with pytest.raises(ZeroDivisionError), stream:
        graph.capture_begin()
        try:
            raise ZeroDivisionError
        finally:
            graph.capture_end()
    assert not recwarn


def test_an_empty_capture_behind_an_exception_is_warned_of(stream, graph):
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        test_an_empty_capture_is_warned_of(stream, graph)


def test_a_dump_without_debug_mode(run_python, cuda):
    done = run_python(
        "import warnings; warnings.simplefilter('default')\n"
        "from pystreams import cuda\n"
        "cuda.CUDAGraph().debug_dump('graph.dot')"
    )
    assert done.returncode == 0
    assert "CUDA Graphs debug not enabled" in done.stderr


# ---- torch's context ----


def test_the_context(cuda):
    buffer = cuda.filled(1, SIZE)
    graph = api.CUDAGraph()
    before = cuda.currents()
    with api.graph(graph) as entered:
        assert entered is None
        assert api.is_current_stream_capturing()
        buffer.fill_(2)
    assert not api.is_current_stream_capturing()
    assert cuda.currents() == before
    graph.replay()
    assert byte_of(buffer, cuda.default_stream()) == 2
    assert isinstance(graph, Graph)
    assert weakref.ref(graph)() is graph


def test_a_context_whose_block_raises_tells_of_nothing_else(cuda, recwarn):
    with (
        pytest.raises(ZeroDivisionError) as caught,
        api.graph(api.CUDAGraph()),
    ):
        raise ZeroDivisionError
    assert caught.value.__context__ is None
    assert not recwarn


def test_the_context_on_a_given_stream(cuda):
    stream = cuda.stream()
    buffer = cuda.filled(1, SIZE, stream=stream)
    graph = api.CUDAGraph()
    pool = api.graph_pool_handle()
    with api.graph(
        graph, pool=pool, stream=stream, capture_error_mode="relaxed"
    ):
        assert api.current_stream() == stream
        buffer.fill_(2)
    assert graph.pool() == pool


@pytest.mark.parametrize("fills", [0, 2])
def test_a_body_that_raises(cuda, fills):
    stream = cuda.stream()
    buffer = cuda.filled(1, SIZE, stream=stream)
    before = cuda.currents()
    with (
        pytest.raises(ZeroDivisionError),
        api.graph(api.CUDAGraph(), stream=stream),
    ):
        for _ in range(fills):
            buffer.fill_(2)
        1 / 0  # noqa: B018
    assert cuda.currents() == before
    assert not stream.is_capturing()
    buffer.fill_(3, stream)
    assert byte_of(buffer, stream) == 3


def test_a_body_that_raises_where_the_capture_fails(cuda):
    stream, side = cuda.stream(), cuda.stream()
    with (
        pytest.raises(ZeroDivisionError),
        api.graph(api.CUDAGraph(), stream=stream),
    ):
        side.wait_stream(stream)
        cuda.empty(SIZE).fill_(1, side)
        1 / 0  # noqa: B018
    assert not stream.is_capturing()
    assert not side.is_capturing()


def test_a_capture_that_cannot_begin(cuda):
    buffer = cuda.filled(1, SIZE)
    graph = api.CUDAGraph()
    with api.graph(graph):
        buffer.fill_(2)
    before = cuda.currents()
    with pytest.raises(RuntimeError, match="already owns"):
        api.graph(graph).__enter__()
    assert cuda.currents() == before


@pytest.mark.parametrize("kind", ["in progress", "ended", "not a Graph"])
def test_a_block_that_is_refused_in_a_capture_changes_nothing(
    two_cuda, cuda, kind
):
    """The block of the capture makes another device current, because a block
    begins with a wait for the device."""
    stream = cuda.stream()
    buffer = cuda.filled(1, SIZE, stream=stream)
    outer = refused = given = api.CUDAGraph()
    if kind != "in progress":
        refused = given = api.CUDAGraph()
        with api.graph(refused, stream=stream):
            buffer.fill_(2)
    if kind == "not a Graph":
        # As the graph of another library.
        given = types.SimpleNamespace(
            capture_begin=refused.capture_begin,
            capture_end=refused.capture_end,
            reset=refused.reset,
        )
    with api.graph(outer, None, stream, "relaxed"):
        buffer.fill_(3)
        with (
            api.device(1),
            pytest.raises(RuntimeError, match="already owns"),
        ):
            api.graph(given, stream=stream).__enter__()
        assert stream.is_capturing()
    for graph, byte in ((outer, 3), (refused, 3 if refused is outer else 2)):
        replay(graph, stream)
        assert byte_of(buffer, stream) == byte


def test_a_block_that_is_refused_after_another_capture_keeps_the_graph(cuda):
    stream = cuda.stream()
    buffer = cuda.filled(1, SIZE, stream=stream)

    class Warm(api.CUDAGraph):
        def capture_begin(self, *arguments):
            with Capture(api.CUDAGraph(), cuda.stream()):
                buffer.fill_(3)
            super().capture_begin(*arguments)

    graph = Warm()
    with api.graph(graph, stream=stream):
        buffer.fill_(2)
    with pytest.raises(RuntimeError, match="already owns"):
        api.graph(graph, stream=stream).__enter__()
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_a_block_that_is_refused_while_a_thread_captures(cuda):
    """The other capture begins while the block waits for the device."""
    stream = cuda.stream()
    buffer = cuda.filled(1, SIZE, stream=stream)
    graph, other = api.CUDAGraph(), api.CUDAGraph()
    with api.graph(graph, stream=stream):
        buffer.fill_(2)

    class Late(api.graph):
        def _begin(self):
            waited.set()
            assert captured.wait(LONG)
            with Capture(api.CUDAGraph(), cuda.stream()):
                buffer.fill_(4)
            super()._begin()

    def enter():
        with pytest.raises(RuntimeError, match="already owns"):
            Late(graph, stream=stream).__enter__()

    waited, captured = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(enter)
        assert waited.wait(LONG)
        with stream:
            other.capture_begin(capture_error_mode="thread_local")
            buffer.fill_(3)
            captured.set()
            refused.result(LONG)
            assert stream.is_capturing()
            other.capture_end()
    for one, byte in ((other, 3), (graph, 2)):
        replay(one, stream)
        assert byte_of(buffer, stream) == byte


def test_an_interrupt_at_any_line_leaves_nothing_behind(cuda):
    """An interrupt at any line of the block or any instruction of the package
    leaves neither an open capture nor another current stream.  At the line of
    the with statement itself, once the block was entered, Python runs no
    signal handler."""
    buffer = cuda.filled(1, SIZE)
    package = str(Path(pystreams.__file__).parent)
    before = cuda.currents()

    def capture(graph, stream):
        with api.graph(graph, stream=stream):
            buffer.fill_(2)
            buffer.fill_(3)
        return True

    entry = capture.__code__.co_firstlineno + 1

    def interrupt_at(line):
        """Interrupt the block at the line of this number; return whether there
        is one."""
        seen = 0

        def trace(frame, event, _):
            nonlocal seen
            code = frame.f_code
            ours = code.co_filename.startswith(package)
            if not ours and code is not capture.__code__:
                return None
            frame.f_trace_opcodes = ours
            if event in {"line", "opcode"} and frame.f_lineno != entry:
                seen += 1
                if seen == line:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        graph, stream = api.CUDAGraph(), cuda.stream()
        traced = sys.gettrace()
        sys.settrace(trace)
        try:
            ended = capture(graph, stream)
        except KeyboardInterrupt:
            ended = False
        finally:
            sys.settrace(traced)
        assert cuda.currents() == before
        assert not stream.is_capturing()
        stream.synchronize()
        graph.reset()
        return not ended

    lines = 1
    while interrupt_at(lines):
        lines += 1
    assert lines > 3


def test_the_context_keeps_what_it_was_given(cuda):
    graph, stream, pool = api.CUDAGraph(), cuda.stream(), (1, 2)
    context = api.graph(graph, pool, stream, "relaxed")
    assert context.cuda_graph is graph
    assert context.capture_stream == stream
    assert (context.pool, context.capture_error_mode) == (pool, "relaxed")
    assert isinstance(context.stream_ctx, api.StreamContext)
    assert context.stream_ctx.stream == stream
    context = api.graph(graph)
    assert (context.pool, context.capture_error_mode) == (None, "global")
    assert isinstance(context.capture_stream, api.Stream)


def test_the_context_in_a_cycle_is_collected():
    class Named(api.graph):
        pass

    graph = api.CUDAGraph()
    seen = weakref.ref(graph)
    context = Named(graph)
    context.itself = context
    del graph, context
    gc.collect()
    assert seen() is None


def test_a_context_without_init():
    context = api.graph.__new__(api.graph)
    with pytest.raises(AttributeError):
        context.__enter__()
    context.__exit__()


def test_a_context_that_was_not_entered():
    with pytest.raises(RuntimeError, match="was not entered"):
        api.graph(api.CUDAGraph()).__exit__()


def test_methods_of_a_subclass_are_called(cuda):
    """An exception in them leaves the stream that was current."""
    called = []

    class Graph(api.CUDAGraph):
        def capture_begin(self, *args):
            called.append(args)
            super().capture_begin(*args)

        def capture_end(self):
            super().capture_end()
            called.append("end")
            raise LookupError

    buffer = cuda.filled(1, SIZE)
    before = cuda.currents()
    with pytest.raises(LookupError), api.graph(Graph()):
        buffer.fill_(2)
    assert called == [(None, "global"), "end"]
    assert cuda.currents() == before


# ---- Events that replays record ----


def external(backend, timing=True):
    return pystreams.Event(backend.name, enable_timing=timing, external=True)


def test_timing_across_replays(backend, stream, graph):
    start, end = external(backend), external(backend)
    with Capture(graph, stream):
        start.record()
        backend.sleep(stream, 5)
        end.record()
    for _ in range(2):
        replay(graph, stream)
        end.synchronize()
        assert start.elapsed_time(end) >= 4


def test_an_external_event_says_nothing_from_before(backend, stream, graph):
    event = external(backend, timing=False)
    event.record(stream)
    event.synchronize()
    with Capture(graph, stream):
        event.record()
    replay(graph, stream)
    stream.synchronize()
    for _ in range(2):
        with backend.hold(stream):
            replay(graph, stream)
            assert not event.query()
        event.synchronize()
        assert event.query()


def test_an_external_event_lives_as_long_as_the_graph(
    backend, stream, graph, buffer
):
    event = external(backend, timing=False)
    with Capture(graph, stream):
        buffer.fill_(2)
        event.record()
    del event
    replay(graph, stream)
    others = [backend.event() for _ in range(8)]
    with backend.hold(stream):
        for other in others:
            other.record(backend.stream())
        replay(graph, stream)
        for other in others:
            other.synchronize()
    assert byte_of(buffer, stream) == 2


def test_a_wait_captured_before_the_first_record(
    backend, stream, graph, buffer
):
    event, recording = external(backend, timing=False), backend.stream()
    event.wait(stream)
    with Capture(graph, stream):
        event.wait()
        buffer.fill_(2)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2
    with backend.hold(recording):
        event.record(recording)
        replay(graph, stream)
        assert not stream.query()
    stream.synchronize()


def test_an_external_event_outlives_a_reset_until_the_replay_is_done(
    backend, stream, graph
):
    event, deleted = external(backend, timing=False), []
    with Capture(graph, stream):
        event.record()
    del event
    replay(graph, stream)
    stream.synchronize()
    with trace.subscribe(deleted.append, "event_deletion"):
        with backend.hold(stream):
            replay(graph, stream)
            graph.reset()
            backend.empty(SIZE)
            assert not deleted
        stream.synchronize()
        backend.empty(SIZE)
        assert len(deleted) == 1


@pytest.mark.unscheduled
def test_an_external_event_of_several_processes(engine, stream, graph, buffer):
    event = pystreams.Event(
        engine.name, enable_timing=False, interprocess=True, external=True
    )
    event.record(stream)
    with Capture(graph, stream):
        for call in (event.record, event.wait):
            with pytest.raises(NotImplementedError, match="is interprocess"):
                call()
        buffer.fill_(2)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2
    assert event.query()


def test_the_flag_is_one_of_cuda_events(cuda):
    assert api.Event(False, False, False, True).query()
    assert api.Event(external=True).query()


# ---- The end of the process ----

PROLOGUE = """
import os, signal
import pystreams
from pystreams import _C, cuda
buffer = pystreams.empty(4096, device="cuda")
graph = cuda.CUDAGraph()
stream = cuda.Stream()
def capture():
    with cuda.graph(graph):
        buffer.fill_(2)
def begin():
    stream.__enter__()
    graph.capture_begin(capture_error_mode="relaxed")
    buffer.fill_(2)
"""

ENDS = {
    "a live graph": "capture()",
    "a replay in flight": "capture(); cuda._sleep(100_000_000); "
    "graph.replay()",
    "a capture under way": "begin()",
    "a graph that keeps the last of a buffer": "capture(); del buffer",
}


@pytest.mark.parametrize("end", ENDS)
def test_exit(cuda, run_python, end):
    done = run_python(PROLOGUE + ENDS[end])
    assert (done.returncode, done.stderr) == (0, "")


def test_fork(cuda, run_python):
    done = run_python(
        PROLOGUE
        + """
capture()
begin_graph, graph = graph, cuda.CUDAGraph()
begin()
pid = os.fork()
if pid == 0:
    signal.alarm(10)
    from pystreams.cuda import _captures
    assert _captures._captures == {}
    for call in (begin_graph.replay, begin_graph.reset, graph.capture_end):
        try:
            call()
        except RuntimeError as error:
            assert "fork" in str(error), error
        else:
            os._exit(3)
    if cuda.is_emulated():
        try:
            cuda.graph(graph, stream=cuda.Stream()).__enter__()
        except RuntimeError as error:
            assert "fork" in str(error), error
    del graph, begin_graph
    if cuda.is_emulated():
        other = pystreams.empty(4096, device="cuda")
        new = cuda.CUDAGraph()
        with cuda.graph(new, stream=cuda.Stream()):
            other.fill_(3)
        new.replay()
        cuda.synchronize()
        assert set(other.tobytes()) == {3}
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
graph.capture_end()
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_gpu_no_graph(run_python):
    done = run_python(
        """
from pystreams import _C, cuda
try:
    cuda.CUDAGraph()
except RuntimeError as error:
    print(error)
""",
        env={"PYSTREAMS_EMULATE_CUDA": None, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.stdout.startswith("No CUDA GPUs are available")


def test_a_backend_without_graphs(run_with_device):
    done = run_with_device(
        """
import fake_device
from pystreams import _C
from pystreams.cuda._graphs import Graph
try:
    Graph(dict(_C.backends())["mtia"])
except NotImplementedError as error:
    print(error)
"""
    )
    assert done.stdout == "the mtia backend does not support graphs\n"
