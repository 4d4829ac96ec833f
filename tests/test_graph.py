"""Captures and graphs: torch's names and words for them, and what a graph
keeps.  What the contract says of them is in the conformance suite."""

import gc
import threading
import weakref

import pytest

import pystreams
from pystreams import _C, AcceleratorError
from pystreams import cuda as api

SIZE = 4096

UNSUPPORTED = 900
MERGE = 902
UNJOINED = 904
ISOLATION = 905
CAPTURED_EVENT = 907
WRONG_THREAD = 908


class Capture:
    """Capture what a with block queues on a stream."""

    def __init__(self, graph, stream, mode="relaxed"):
        self.graph, self.stream, self.mode = graph, stream, mode

    def __enter__(self):
        self.stream.__enter__()
        self.graph.capture_begin(capture_error_mode=self.mode)

    def __exit__(self, *exc_info):
        try:
            self.graph.capture_end()
        finally:
            self.stream.__exit__(*exc_info)


@pytest.fixture
def stream(backend):
    return backend.stream()


@pytest.fixture
def graph(backend):
    return _C.Graph(backend.type)


@pytest.fixture
def buffer(backend, stream):
    return filled(backend, stream, 1)


def filled(backend, stream, byte):
    buffer = backend.empty(SIZE, stream=stream)
    buffer.fill_(byte, stream)
    stream.synchronize()
    return buffer


def filling(backend, buffer, byte):
    graph = _C.Graph(backend.type)
    with Capture(graph, backend.stream()):
        buffer.fill_(byte)
    return graph


def replay(graph, stream):
    with stream:
        graph.replay()


def byte_of(buffer, stream):
    stream.synchronize()
    (byte,) = set(buffer.tobytes())
    return byte


def code(call, *arguments, **options):
    """The status of a call that fails."""
    with pytest.raises(AcceleratorError) as caught:
        call(*arguments, **options)
    return caught.value.error_code


def test_replays_do_the_work_again(backend, stream, graph, buffer):
    other = filled(backend, stream, 2)
    with Capture(graph, stream):
        other.copy_(buffer, non_blocking=True)
        buffer.fill_(9)
    assert byte_of(buffer, stream) == 1
    for byte in (3, 4):
        buffer.fill_(byte, stream)
        replay(graph, stream)
        assert byte_of(other, stream) == byte
        assert byte_of(buffer, stream) == 9


def test_replays_on_the_default_stream(backend, stream, graph, buffer):
    with Capture(graph, stream):
        buffer.fill_(2)
    graph.replay()
    assert byte_of(buffer, backend.default_stream()) == 2


def test_streams_fork_and_join(backend, stream, graph):
    sides = [backend.stream() for _ in range(3)]
    buffers = [filled(backend, stream, 0) for _ in sides]
    total = filled(backend, stream, 0)
    with Capture(graph, stream):
        for byte, (side, buffer) in enumerate(
            zip(sides, buffers, strict=True)
        ):
            side.wait_stream(stream)
            buffer.fill_(byte + 1, side)
        sides[1].wait_stream(sides[2])
        stream.wait_stream(sides[0])
        stream.wait_stream(sides[1])
        total.copy_(buffers[2], non_blocking=True)
    assert not any(side.is_capturing() for side in sides)
    replay(graph, stream)
    assert [byte_of(b, stream) for b in buffers] == [1, 2, 3]
    assert byte_of(total, stream) == 3


@pytest.mark.parametrize("work", [True, False], ids=["last", "before"])
def test_work_after_the_join_is_unjoined(backend, stream, graph, buffer, work):
    side = backend.stream()
    with stream:
        graph.capture_begin()
        side.wait_stream(stream)
        buffer.fill_(2, side)
        stream.wait_stream(side)
        if work:
            buffer.fill_(3, side)
            assert code(graph.capture_end) == UNJOINED
        else:
            graph.capture_end()
    assert not side.is_capturing()
    side.synchronize()


def test_two_captures_do_not_mix(backend, stream, graph, buffer):
    other, second = backend.stream(), _C.Graph(backend.type)
    with stream:
        graph.capture_begin()
    with other:
        second.capture_begin()
    event = stream.record_event()
    assert code(other.wait_event, event) == MERGE
    for captured, one in ((graph, stream), (second, other)):
        with one:
            code(captured.capture_end)
        assert not one.is_capturing()
    buffer.fill_(2, other)
    assert byte_of(buffer, other) == 2


def test_uncaptured_work_cannot_be_waited_for(backend, stream, graph):
    other = backend.stream()
    with backend.hold(other), stream:
        graph.capture_begin()
        assert code(stream.wait_stream, other) == ISOLATION
        code(graph.capture_end)
    assert not stream.is_capturing()


def test_an_event_that_is_done_orders_nothing(backend, stream, graph, buffer):
    event = backend.stream().record_event()
    event.synchronize()
    with Capture(graph, stream):
        event.wait()
        buffer.fill_(2)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


WAITS = {
    "Stream.query": lambda stream, event: stream.query(),
    "Stream.synchronize": lambda stream, event: stream.synchronize(),
    "Event.query": lambda stream, event: event.query(),
    "Event.synchronize": lambda stream, event: event.synchronize(),
    "a device's synchronize": lambda stream, event: _C.synchronize(
        stream.device_type, stream.device_index
    ),
}


@pytest.mark.parametrize("wait", WAITS)
def test_what_waits_is_refused_and_the_capture_goes_on(
    backend, stream, graph, buffer, wait
):
    event = backend.event()
    event.record(stream)
    event.synchronize()
    with Capture(graph, stream):
        buffer.fill_(2)
        event.record()
        assert code(WAITS[wait], stream, event) == (
            CAPTURED_EVENT if wait.startswith("Event") else UNSUPPORTED
        )
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_a_captured_event_until_it_is_recorded_again(
    backend, stream, graph, buffer
):
    event = backend.event()
    with Capture(graph, stream):
        buffer.fill_(2)
        event.record()
    assert code(event.query) == CAPTURED_EVENT
    replay(graph, stream)
    assert code(event.synchronize) == CAPTURED_EVENT
    event.record(stream)
    event.synchronize()
    assert event.query()


def test_a_copy_that_waits_is_refused(backend, stream, graph, buffer):
    with Capture(graph, stream):
        buffer.fill_(2)
        assert code(buffer.copy_, bytes(SIZE)) == UNSUPPORTED
        if backend.name != "cpu":
            assert code(buffer.tobytes) == UNSUPPORTED
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_a_callable_is_refused(stream, graph, buffer):
    with Capture(graph, stream):
        buffer.fill_(2)
        with pytest.raises(RuntimeError, match="cannot be captured"):
            stream.submit(print)
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def allocated(backend):
    return _C.memory_stats(backend.type, 0)["allocated_bytes.all.current"]


def test_the_graph_keeps_what_its_work_uses(backend, stream, graph, buffer):
    before = allocated(backend)
    source = filled(backend, stream, 5)
    address = source.data_ptr()
    with Capture(graph, stream):
        buffer.copy_(source, non_blocking=True)
        del source
    gc.collect()
    others = [filled(backend, stream, 6) for _ in range(8)]
    assert address not in [other.data_ptr() for other in others]
    del others
    replay(graph, stream)
    assert byte_of(buffer, stream) == 5
    assert allocated(backend) == before + SIZE
    graph.reset()
    assert allocated(backend) == before


def test_reset_while_a_replay_waits_for_its_turn(
    backend, stream, graph, buffer
):
    source = filled(backend, stream, 5)
    with Capture(graph, stream):
        buffer.copy_(source, non_blocking=True)
    with backend.hold(stream):
        replay(graph, stream)
        del source
        graph.reset()
        others = [backend.empty(SIZE) for _ in range(8)]
        for other in others:
            other.fill_(6)
        backend.default_stream().synchronize()
    assert byte_of(buffer, stream) == 5


def test_memory_that_is_asked_for_in_a_capture(backend, stream, graph, buffer):
    before = allocated(backend)
    with Capture(graph, stream):
        made = backend.empty(SIZE)
        made.fill_(5)
        buffer.copy_(made, non_blocking=True)
    assert allocated(backend) == before + SIZE
    for _ in range(2):
        replay(graph, stream)
        assert byte_of(buffer, stream) == byte_of(made, stream) == 5
        buffer.zero_(stream)
        made.zero_(stream)
    stream.synchronize()
    graph.reset()
    made.fill_(7, stream)
    assert byte_of(made, stream) == 7
    del made
    assert allocated(backend) == before


def test_memory_of_a_captured_stream_is_not_freed_in_the_graph(
    backend, stream, graph, buffer
):
    """It would be freed by each replay."""
    unused = filled(backend, stream, 5)
    with Capture(graph, stream):
        buffer.fill_(2)
        del unused
    for _ in range(3):
        replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_a_stream_that_is_dropped_in_a_capture(backend, stream, graph, buffer):
    with Capture(graph, stream):
        side = backend.stream()
        handle = side.native_handle
        side.wait_stream(stream)
        buffer.fill_(2, side)
        stream.wait_stream(side)
        del side
        gc.collect()
        made = [backend.stream() for _ in range(4)]
        assert handle not in [one.native_handle for one in made]
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2
    # It is of use again.
    made += [backend.stream() for _ in range(40)]
    assert len({one.native_handle for one in made}) == len(made)


def test_a_graph_that_is_dropped_in_its_capture(backend, stream, buffer):
    graph = _C.Graph(backend.type)
    with stream:
        graph.capture_begin()
        buffer.fill_(2)
        del graph
    assert not stream.is_capturing()
    assert byte_of(buffer, stream) == 1


def test_collections_disturb_no_capture(backend, stream, graph, buffer):
    with Capture(graph, stream, "global"):
        for byte in range(50):
            # What was dropped is asked whether it is done.
            cycle = [backend.stream(), backend.event()]
            cycle.append(cycle)
            memory = backend.empty(SIZE, stream=cycle[0])
            memory.fill_(byte, cycle[0])
            memory.record_stream(backend.stream())
            cycle[1].record(cycle[0])
            buffer.fill_(byte)
            del cycle, memory
            gc.collect()
    replay(graph, stream)
    assert byte_of(buffer, stream) == 49


def test_a_replay_that_is_captured(backend, stream, graph, buffer):
    inner = filling(backend, buffer, 2)
    with Capture(graph, stream):
        inner.replay()
    del inner
    gc.collect()
    assert byte_of(buffer, stream) == 1
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


def test_replays_from_several_threads(backend, buffer):
    graph = filling(backend, buffer, 2)

    def run():
        with backend.stream() as stream:
            for _ in range(50):
                graph.replay()
            stream.synchronize()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    backend.synchronize(0)
    assert set(buffer.tobytes()) == {2}


# ---- The end of a capture ----


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_capture_that_another_thread_ends(stream, graph, buffer, mode):
    failures = []

    def end():
        with stream:
            try:
                graph.capture_end()
            except AcceleratorError as error:
                failures.append(error.error_code)

    with stream:
        graph.capture_begin(capture_error_mode=mode)
        buffer.fill_(2)
        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
        if mode != "relaxed":
            assert failures == [WRONG_THREAD]
            graph.capture_end()
    replay(graph, stream)
    assert byte_of(buffer, stream) == 2


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
    with stream, pytest.raises(TypeError, match="pool must be None or"):
        graph.capture_begin(pool)
    assert not stream.is_capturing()


def test_a_kept_graph(backend, stream, buffer):
    graph = _C.Graph(backend.type, True)
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
        graph = _C.Graph(backend.type)
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
    buffer = filled(cuda, cuda.default_stream(), 1)
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
    assert isinstance(graph, _C.Graph)
    assert weakref.ref(graph)() is graph


def test_the_context_on_a_given_stream(cuda):
    stream = cuda.stream()
    buffer = filled(cuda, stream, 1)
    graph = api.CUDAGraph()
    pool = api.graph_pool_handle()
    with api.graph(
        graph, pool=pool, stream=stream, capture_error_mode="relaxed"
    ):
        assert api.current_stream() == stream
        buffer.fill_(2)
    assert graph.pool() == pool


def test_a_body_that_raises(cuda):
    stream = cuda.stream()
    buffer = filled(cuda, stream, 1)
    before = cuda.currents()
    with (
        pytest.raises(ZeroDivisionError),
        api.graph(api.CUDAGraph(), stream=stream),
    ):
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
    buffer = filled(cuda, cuda.default_stream(), 1)
    graph = api.CUDAGraph()
    with api.graph(graph):
        buffer.fill_(2)
    before = cuda.currents()
    with pytest.raises(RuntimeError, match="already owns"):
        api.graph(graph).__enter__()
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
    others = [backend.event() for _ in range(8)]
    with backend.hold(stream):
        for other in others:
            other.record(backend.stream())
        replay(graph, stream)
        for other in others:
            other.synchronize()
    assert byte_of(buffer, stream) == 2


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
    for call in (begin_graph.replay, begin_graph.reset, graph.capture_end):
        try:
            call()
        except RuntimeError as error:
            assert "fork" in str(error), error
        else:
            os._exit(3)
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
try:
    _C.Graph(dict(_C.backends())["mtia"])
except NotImplementedError as error:
    print(error)
"""
    )
    assert done.stdout == "the mtia backend does not support graphs\n"
