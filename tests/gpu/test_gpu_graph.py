"""Captures on a GPU: what is allowed during one, in each capture mode and on
each thread; kernels of other libraries in our graphs, and our work in
theirs."""

import ctypes
import gc
import threading

import pytest
from deadlines import LONG, until_steady
from places import SUPPORT

import pystreams
from pystreams import _C, AcceleratorError
from pystreams import cuda as api

SIZE = 1 << 16
MANY = 100_000
MODES = ["global", "thread_local", "relaxed"]

# Warnings of other libraries do not matter here.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def buffer(gpu):
    return gpu.filled(1, SIZE)


def value(gpu, buffer):
    gpu.synchronize()
    (byte,) = set(buffer.tobytes())
    return byte


def on_thread(where, call):
    """Call on this thread, or on another that is waited for."""
    if where == "this":
        return call()
    results, failures = [], []

    def run():
        try:
            results.append(call())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


class Beside:
    """What was there before the capture."""

    def __init__(self, gpu):
        self.gpu = gpu
        self.stream = gpu.stream()
        self.done = gpu.event()
        self.done.record(self.stream)
        self.done.synchronize()
        self.pending = gpu.event()
        gpu.sleep(self.stream, 20)
        self.pending.record(self.stream)
        self.source = filled_later(gpu, self.stream)
        self.lent = filled_later(gpu, self.stream)
        self.lent.record_stream(gpu.stream())
        self.pinned = gpu.host(SIZE)
        self.garbage = [gpu.stream(), gpu.event()]
        self.garbage[1].record(self.garbage[0])
        self.garbage.append(self.garbage)


def filled_later(gpu, stream):
    buffer = gpu.empty(SIZE, stream=stream)
    buffer.fill_(3, stream)
    return buffer


def drop_garbage(beside):
    del beside.garbage
    gc.collect()


def drop_memory(beside):
    del beside.lent
    beside.gpu.empty(SIZE, stream=beside.stream)


def drop_a_busy_stream(beside):
    stream = beside.gpu.stream()
    beside.gpu.sleep(stream, 5)
    del stream


def drop_streams(beside):
    for stream in [beside.gpu.stream() for _ in range(40)]:
        stream.record_event()


def drop_events(beside):
    for _ in range(40):
        beside.gpu.event(enable_timing=True).record(beside.stream)


def read_pinned(beside):
    beside.pinned.copy_(beside.source, non_blocking=True, stream=beside.stream)


# Calls that no mode forbids during a capture, of users and of pystreams.
HARMLESS = {
    "make and drop streams": drop_streams,
    "drop a busy stream": drop_a_busy_stream,
    "make, record and drop events": drop_events,
    "wait for events": lambda b: b.gpu.stream().wait_event(b.pending),
    "wait for streams": lambda b: b.gpu.stream().wait_stream(b.stream),
    "allocate and free": lambda b: b.gpu.empty(SIZE, stream=b.stream),
    "allocate on a new stream": lambda b: b.gpu.empty(
        1 << 26, stream=b.gpu.stream()
    ),
    "allocate pinned memory": lambda b: b.gpu.host(1 << 22),
    "fill": lambda b: b.source.fill_(4, b.stream),
    "copy to pinned memory": read_pinned,
    "drop memory in use": drop_memory,
    "drop garbage": drop_garbage,
    "sleep": lambda b: b.gpu.sleep(b.stream, 1),
    "ask what is known": lambda b: b.done.query(),
    "ask whether it is captured": lambda b: b.stream.is_capturing(),
    "count memory": lambda b: api.memory_stats(),
    "a replay": lambda b: b.graph.replay(),
}


@pytest.mark.parametrize("where", ["this", "another"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HARMLESS)
def test_beside_a_capture(gpu, buffer, name, mode, where):
    beside = Beside(gpu)
    beside.graph = api.CUDAGraph()
    side = gpu.stream()
    with api.graph(beside.graph, stream=gpu.stream()):
        beside.source.fill_(4)
    graph, stream = api.CUDAGraph(), gpu.stream()
    with api.graph(graph, stream=stream, capture_error_mode=mode):
        buffer.fill_(2)

        def run():
            with side:
                HARMLESS[name](beside)

        on_thread(where, run)
        assert stream.is_capturing()
    assert value(gpu, buffer) == 1
    graph.replay()
    assert value(gpu, buffer) == 2


# Calls that the driver forbids in some modes.
UNSAFE = {
    "Stream.query": lambda b: b.stream.query(),
    "Stream.synchronize": lambda b: b.stream.synchronize(),
    "Event.query": lambda b: b.pending.query(),
    "Event.synchronize": lambda b: b.pending.synchronize(),
    "wait": lambda b: pystreams.wait([b.pending]),
}


@pytest.mark.parametrize("where", ["this", "another"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", UNSAFE)
def test_what_waits_beside_a_capture(gpu, buffer, name, mode, where):
    beside, graph, stream = Beside(gpu), api.CUDAGraph(), gpu.stream()
    gpu.sleep(beside.stream, 5)
    beside.pending.record(beside.stream)
    allowed = mode == "relaxed" or (
        mode == "thread_local" and where == "another"
    )
    failure = ended = None
    with stream:
        graph.capture_begin(capture_error_mode=mode)
        buffer.fill_(2)
        try:
            on_thread(where, lambda: UNSAFE[name](beside))
        except AcceleratorError as error:
            failure = error
        try:
            graph.capture_end()
        except AcceleratorError as error:
            ended = error
    if allowed:
        assert failure is None
    if failure is None:
        assert ended is None
        graph.replay()
        assert value(gpu, buffer) == 2
    else:
        assert 900 <= failure.error_code <= 908
    assert not stream.is_capturing()
    buffer.fill_(5, stream)
    stream.synchronize()
    assert value(gpu, buffer) == 5


def failure(graph):
    with pytest.raises(AcceleratorError) as caught:
        graph.capture_end()
    return caught.value.error_code, str(caught.value)


@pytest.mark.parametrize("where", ["this", "another"])
def test_it_says_which_call_made_it_invalid(gpu, buffer, where):
    graph, stream, other = api.CUDAGraph(), gpu.stream(), gpu.stream()
    gpu.sleep(other, 20)
    with stream:
        graph.capture_begin()
        buffer.fill_(2)
        with pytest.raises(AcceleratorError):
            on_thread(where, lambda: other.synchronize())
        code, text = failure(graph)
    assert code == 901
    assert "Stream.synchronize on the stream cuda:0 0x" in text
    assert f", at {__file__}:" in text


def test_it_says_which_wait_made_it_invalid(gpu, buffer):
    graph, stream, other = api.CUDAGraph(), gpu.stream(), gpu.stream()
    gpu.sleep(other, 20)
    event = gpu.event()
    event.record(other)
    with stream:
        graph.capture_begin()
        buffer.fill_(2)
        with pytest.raises(AcceleratorError):
            stream.wait_event(event)
        code, text = failure(graph)
    assert code == 901
    call = f"Stream.wait_event on the stream cuda:0 {stream.native_handle:#x}"
    assert f"\n{call} for work of cuda:0 {other.native_handle:#x}, at" in text
    assert f"at {__file__}:" in text


def test_it_says_which_join_is_missing(gpu, buffer):
    graph, stream, side = api.CUDAGraph(), gpu.stream(), gpu.stream()
    with stream:
        graph.capture_begin()
        side.wait_stream(stream)
        buffer.fill_(2, side)
        code, text = failure(graph)
    assert code == 904
    assert f"cuda:0 {side.native_handle:#x} joined the capture at" in text


def test_it_says_that_the_call_was_another_library_s(gpu, buffer, torch):
    graph, stream, other = api.CUDAGraph(), gpu.stream(), gpu.stream()
    theirs = torch.cuda.ExternalStream(other.native_handle)
    torch.zeros(1, device="cuda:0")
    gpu.sleep(other, 20)
    with stream:
        graph.capture_begin()
        buffer.fill_(2)
        with pytest.raises(RuntimeError):
            theirs.synchronize()
        code, text = failure(graph)
    assert code == 901
    assert "No call of this package failed" in text


REFUSED = {
    "Stream.query": (lambda stream, event: stream.query(), 900),
    "Stream.synchronize": (lambda stream, event: stream.synchronize(), 900),
    "Event.query": (lambda stream, event: event.query(), 907),
    "Event.synchronize": (lambda stream, event: event.synchronize(), 907),
    "cuda.synchronize": (lambda stream, event: api.synchronize(), 900),
}


@pytest.mark.parametrize("where", ["this", "another"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_waits_for_a_capture(gpu, buffer, name, mode, where):
    """pystreams refuses the call before it reaches the driver, so the capture
    goes on."""
    graph, stream = api.CUDAGraph(), gpu.stream()
    call, code = REFUSED[name]
    with api.graph(graph, stream=stream, capture_error_mode=mode):
        buffer.fill_(2)
        event = gpu.event()
        event.record(stream)
        with pytest.raises(AcceleratorError) as caught:
            on_thread(where, lambda: call(stream, event))
        assert caught.value.error_code == code
    graph.replay()
    assert value(gpu, buffer) == 2


@pytest.mark.parametrize("mode", MODES)
def test_traffic_on_eight_threads(gpu, buffer, mode):
    """In global mode, the threads do not wait, because a wait would invalidate
    the capture."""
    stop, failures = threading.Event(), []

    def traffic():
        try:
            while not stop.is_set():
                with gpu.stream() as stream:
                    other = gpu.stream()
                    memory = gpu.empty(SIZE)
                    memory.fill_(1)
                    event = stream.record_event()
                    other.wait_event(event)
                    target = gpu.empty(SIZE, stream=other)
                    target.copy_(memory, non_blocking=True, stream=other)
                    memory.record_stream(other)
                    if mode != "global":
                        event.query()
                        other.synchronize()
                    del memory, target, event, other
                gc.collect(0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=traffic) for _ in range(8)]
    graphs = []
    for thread in threads:
        thread.start()
    try:
        for byte in range(20):
            graph, stream = api.CUDAGraph(), gpu.stream()
            with stream:
                graph.capture_begin(capture_error_mode=mode)
                for _ in range(50):
                    buffer.fill_(byte)
                graph.capture_end()
            graphs.append(graph)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    for byte, graph in enumerate(graphs):
        graph.replay()
        assert value(gpu, buffer) == byte


def test_timing_across_replays(gpu):
    graph, stream = api.CUDAGraph(), gpu.stream()
    start, end = (
        api.Event(enable_timing=True, external=True) for _ in range(2)
    )
    with api.graph(graph, stream=stream):
        start.record()
        gpu.sleep(stream, 10)
        end.record()
    for _ in range(3):
        graph.replay()
        end.synchronize()
        assert start.elapsed_time(end) > 1


def test_a_dump(gpu, buffer, tmp_path):
    graph = api.CUDAGraph(keep_graph=True)
    with api.graph(graph):
        buffer.fill_(2)
    graph.debug_dump(tmp_path / "graph.dot")
    assert "digraph" in (tmp_path / "graph.dot").read_text()


def test_what_it_consists_of(gpu, buffer):
    graph, stream, side = api.CUDAGraph(True), gpu.stream(), gpu.stream()
    event = api.Event(external=True)
    with api.graph(graph, stream=stream):
        buffer.fill_(2)
        side.wait_stream(stream)
        side.submit(print, "filled")
        gpu.sleep(stream, 1)
        event.record()
        stream.wait_stream(side)
        buffer[: SIZE // 2].copy_(buffer[SIZE // 2 :], non_blocking=True)
    nodes = graph.get_graph_data()["nodes"]
    found = {node["node_type"]: node for node in nodes}
    assert sorted(node["node_type"] for node in nodes) == [
        *("event_record", "host", "kernel", "memcpy", "memset")
    ]
    assert found["host"]["host_fn_name"] == "print"
    assert found["memset"]["nbytes"] == 2 * found["memcpy"]["nbytes"] == SIZE
    assert found["kernel"]["kernel_name"]
    assert found["event_record"]["event_ptr"] == event.event_id
    index = {kind: node["index"] for kind, node in found.items()}
    assert sorted(found["memset"]["dependents"]) == sorted(
        [index["host"], index["kernel"]]
    )
    assert sorted(found["memcpy"]["dependencies"]) == sorted(
        [index["host"], index["event_record"]]
    )
    assert nodes[-1] is found["memcpy"]


def test_kernels_of_others_have_names(gpu, cupy):
    stream = gpu.stream()
    array = cupy.zeros(SIZE, dtype=cupy.int32)
    with cupy.cuda.ExternalStream(stream.native_handle):
        cupy.add(array, 1, out=array)
    gpu.synchronize()
    graph = api.CUDAGraph(True)
    with (
        api.graph(graph, stream=stream),
        cupy.cuda.ExternalStream(stream.native_handle),
    ):
        cupy.add(array, 1, out=array)
    (node,) = graph.get_graph_data()["nodes"]
    assert "add" in node["kernel_name"]
    grid, block = node["grid_dim"], node["block_dim"]
    assert grid[0] * block[0] >= SIZE // 4 and grid[1:] == block[1:] == (1, 1)
    assert node["shared_mem_bytes"] == 0


def test_numbers_are_the_drivers(gpu, buffer):
    """The driver gives the numbers since CUDA 13.1.  With older drivers, they
    are a handle and indices."""
    driver, graph = ctypes.CDLL("libcuda.so.1"), api.CUDAGraph(True)
    with api.graph(graph):
        buffer.fill_(2)
        buffer.fill_(3)
    graph.instantiate()
    data, executable = graph.get_graph_data(), graph.raw_cuda_graph_exec()
    if hasattr(driver, "cuGraphExecGetId"):
        number = ctypes.c_uint()
        assert not driver.cuGraphExecGetId(
            ctypes.c_void_p(executable), ctypes.byref(number)
        )
        executable = number.value
    assert data["exec_graph_id"] == executable
    numbers = {node["node_id"] for node in data["nodes"]}
    assert len(numbers) == 2 and max(numbers) < 1 << 32
    if not hasattr(driver, "cuGraphNodeGetToolsId"):
        assert numbers == {0, 1}


def test_a_child_is_one_node(gpu, buffer):
    child, graph, stream = (
        api.CUDAGraph(True),
        api.CUDAGraph(True),
        gpu.stream(),
    )
    with api.graph(child):
        buffer.fill_(2)
        buffer.fill_(3)
    with api.graph(graph, stream=stream):
        buffer.fill_(4)
        graph.add_child(child)
        buffer[: SIZE // 2].fill_(5)
    kinds = [n["node_type"] for n in graph.get_graph_data()["nodes"]]
    assert kinds == ["memset", "child_graph", "memset"]
    graph.replay()
    gpu.synchronize()
    assert set(buffer[SIZE // 2 :].tobytes()) == {3}
    assert set(buffer[: SIZE // 2].tobytes()) == {5}


def test_an_update_that_fails_late(gpu, buffer):
    """The update fails at a late node; the nodes before it must not stay
    updated."""
    other, stream = gpu.filled(9, SIZE), gpu.stream()
    graph, wrong = api.CUDAGraph(True), api.CUDAGraph(True)
    for made, byte in ((graph, 2), (wrong, 3)):
        with api.graph(made, stream=stream):
            buffer.fill_(byte)
            if made is graph:
                other.fill_(4)
            else:
                other.copy_(buffer, non_blocking=True)
    with pytest.raises(AcceleratorError) as caught:
        graph.update(wrong)
    assert caught.value.error_code == 910
    assert "Node 1 of the new graph, a memcpy node" in str(caught.value)
    graph.replay()
    assert value(gpu, buffer) == 2
    assert value(gpu, other) == 4


def test_two_devices_in_one_graph(two_gpus, buffer):
    gpu = two_gpus
    graph, stream, far = api.CUDAGraph(), gpu.stream(), gpu.stream(1)
    there = gpu.empty(SIZE, 1)
    there.fill_(7)
    gpu.synchronize(1)
    with api.graph(graph, stream=stream):
        far.wait_stream(stream)
        there.fill_(8, far)
        stream.wait_stream(far)
        buffer.fill_(2)
    graph.replay()
    assert value(gpu, buffer) == 2
    gpu.synchronize(1)
    assert set(there.tobytes()) == {8}


def test_a_copy_between_devices_in_a_graph(two_gpus, buffer):
    gpu = two_gpus
    graph, stream = api.CUDAGraph(), gpu.stream()
    there = gpu.empty(SIZE, 1)
    there.fill_(7)
    gpu.synchronize(1)
    with api.graph(graph, stream=stream):
        there.copy_(buffer, non_blocking=True, stream=stream)
        there.record_stream(stream)
    graph.replay()
    gpu.synchronize()
    assert set(there.tobytes()) == {1}


def test_cupy_in_a_graph(gpu, cupy):
    stream = gpu.stream()
    array = cupy.zeros(SIZE, dtype=cupy.int32)
    # Only this orders cupy.zeros() before work of a non-blocking stream.
    gpu.synchronize()
    with cupy.cuda.ExternalStream(stream.native_handle):
        cupy.add(array, 1, out=array)
    gpu.synchronize()
    graph = api.CUDAGraph()
    with (
        api.graph(graph, stream=stream),
        cupy.cuda.ExternalStream(stream.native_handle),
    ):
        cupy.add(array, 1, out=array)
    for _ in range(3):
        graph.replay()
    gpu.synchronize()
    assert int(array.min()) == int(array.max()) == 4


def test_torch_in_a_graph(gpu, torch):
    stream = gpu.stream()
    theirs = torch.cuda.ExternalStream(stream.native_handle)
    tensor = torch.zeros(SIZE, dtype=torch.int32, device="cuda:0")
    torch.cuda.synchronize()
    with torch.cuda.stream(theirs):
        tensor.add_(1)
    gpu.synchronize()
    graph = api.CUDAGraph()
    with api.graph(graph, stream=stream), torch.cuda.stream(theirs):
        tensor.add_(1)
    for _ in range(3):
        graph.replay()
    gpu.synchronize()
    assert int(tensor.min()) == int(tensor.max()) == 4


@pytest.mark.parametrize("mode", MODES)
def test_ours_in_a_graph_of_torch(gpu, torch, buffer, mode):
    """Streams and memory of ours come and go while torch captures."""
    graph = torch.cuda.CUDAGraph()
    torch.zeros(1, device="cuda:0")
    with torch.cuda.graph(graph, capture_error_mode=mode):
        handle = torch.cuda.current_stream().cuda_stream
        stream = pystreams.ExternalStream(handle, "cuda:0")
        side = gpu.stream()
        side.wait_stream(stream)
        buffer.fill_(2, side)
        stream.wait_stream(side)
        made = gpu.empty(SIZE, stream=side)
        assert side.is_capturing()
        del side
        gc.collect()
        made_and_dropped = [gpu.stream() for _ in range(40)]
        del made_and_dropped
    graph.replay()
    assert value(gpu, buffer) == 2
    made.fill_(3)
    assert value(gpu, made) == 3


def test_a_replay_cannot_be_captured_by_torch(gpu, torch, buffer):
    inner, graph = api.CUDAGraph(), torch.cuda.CUDAGraph()
    with api.graph(inner):
        buffer.fill_(2)
    tensor = torch.zeros(SIZE, dtype=torch.int32, device="cuda:0")
    with torch.cuda.graph(graph):
        tensor.add_(1)
        handle = torch.cuda.current_stream().cuda_stream
        with (
            pystreams.ExternalStream(handle, "cuda:0"),
            pytest.raises(RuntimeError, match="cannot be captured"),
        ):
            inner.replay()
    graph.replay()
    gpu.synchronize()
    assert int(tensor.min()) == int(tensor.max()) == 1
    inner.replay()
    assert value(gpu, buffer) == 2


@pytest.mark.whole_gpu
def test_no_memory_is_left(gpu, buffer):
    free, _ = api.mem_get_info()
    before = _C.memory_stats(gpu.type, 0)["allocated_bytes.all.current"]
    for byte in range(50):
        graph = api.CUDAGraph()
        with api.graph(graph):
            made = gpu.empty(1 << 20)
            made.fill_(byte)
            buffer.copy_(made[:SIZE], non_blocking=True)
        graph.replay()
        del made, graph
    gpu.synchronize()
    after = _C.memory_stats(gpu.type, 0)["allocated_bytes.all.current"]
    assert after == before
    assert free - api.mem_get_info()[0] < 64 << 20


def test_interprocess_memory_in_a_capture(backend, gpu, peer):
    """The memory is made, opened and dropped, and none of this becomes part of
    the capture."""
    if backend.on_engine:
        pytest.skip(f"{backend}: the peer is of no GPU")
    peer.do(
        "buffer = pystreams.Buffer(64, device=backend.device(), "
        "interprocess=True)\nbuffer.fill_(7); backend.synchronize()"
    )
    handle = peer.do("buffer.ipc_handle()")
    graph, stream = api.CUDAGraph(), api.Stream()
    with api.graph(graph, stream=stream):
        made = pystreams.empty(64, device=gpu.device(), interprocess=True)
        opened = pystreams.Buffer.from_ipc_handle(gpu.device(), handle)
        made.copy_(opened, True)
        pystreams.empty(64, device=gpu.device(), interprocess=True).close()
    opened.close()
    peer.do("buffer.close()")
    graph.replay()
    assert value(gpu, made) == 7


def capture(stream, buffer):
    """Capture a fill on the stream.  The graph is not instantiated, because
    this may wait for the work of other streams."""
    graph = api.CUDAGraph(keep_graph=True)
    with stream:
        graph.capture_begin(capture_error_mode="relaxed")
        buffer.fill_(2)
        graph.capture_end()


def test_captures_beside_a_full_stream(gpu, buffer):
    """While a thread waits for room in the queue of a stream, others capture
    and submit.  There is no room before a callable has done so, too."""
    go, full, origin, other = threading.Event(), *(gpu.stream() for _ in "123")
    submitted = 0

    def call():
        assert go.wait(LONG)
        capture(gpu.stream(), buffer)
        return other.submit(int).result(LONG)

    def fill():
        nonlocal submitted
        while submitted < MANY and not go.is_set():
            full.submit(int)
            submitted += 1

    future = full.submit(call)
    filler = threading.Thread(target=fill)
    filler.start()
    until_steady(lambda: submitted)
    assert filler.is_alive()
    capture(other, buffer)
    with origin:
        graph = api.CUDAGraph()
        graph.capture_begin(capture_error_mode="relaxed")
        assert other.submit(int).result(LONG) == 0
        go.set()
        assert future.result(LONG) == 0
        graph.reset()
    filler.join(LONG)
    assert not filler.is_alive()
    full.synchronize(LONG)


@pytest.mark.parametrize("threads", [1, 3])
def test_submitted_while_captures_begin_and_end(gpu, run_python, threads):
    done = run_python([SUPPORT / "capture_stress.py", "5", str(threads)])
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
