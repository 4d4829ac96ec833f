"""Timelines of a GPU, whose operations CUPTI reports or events time."""

import ctypes
import os
import threading

import pytest
from deadlines import LONG, until_steady

from pystreams import timeline

# The driver makes the caller wait before a stream has this many operations.
MANY = 100_000


def of_kind(t, kind):
    rows = (dict(zip(timeline.COLUMNS, row, strict=True)) for row in t.rows)
    return [row for row in rows if row["kind"] == kind]


@pytest.fixture(params=["cupti", "events"])
def clock(request, gpu, monkeypatch):
    """How operations are timed."""
    monkeypatch.setattr(timeline, "_by_events", request.param == "events")
    if request.param == "cupti":
        request.getfixturevalue("cupti")
    return request.param


@pytest.fixture
def cupti(gpu):
    with timeline.record():
        pass
    for version in (13, 12):
        try:
            return ctypes.CDLL(f"libcupti.so.{version}", os.RTLD_NOLOAD)
        except OSError:
            pass
    pytest.skip("needs CUPTI")


def test_as_long_as_by_the_programs_events(gpu, clock):
    stream = gpu.stream()
    begin, end = (gpu.event(enable_timing=True) for _ in range(2))
    block = gpu.empty(256 << 20)
    gpu.synchronize()
    with timeline.record() as t:
        for _ in range(2):
            begin.record(stream)
            block.fill_(1, stream=stream)
            end.record(stream)
            stream.synchronize()
    assert clock == "cupti" or t.clock_error > 0
    *_, last = of_kind(t, "fill")
    took = (last["end"] - last["begin"]) / 1e6
    assert 0.5 * took < begin.elapsed_time(end) < 2 * took + 0.1


def test_nobody_waits_behind_a_full_stream(gpu, clock):
    """If a stream is full, the driver makes the calling thread wait.
    Meanwhile, the thread must hold no lock, because other threads may need the
    lock to make room."""
    go = threading.Event()
    full = gpu.stream()
    block = gpu.empty(64)
    gpu.synchronize()
    filled = 0

    def fill():
        nonlocal filled
        while filled < MANY and not go.is_set():
            block.fill_(1, stream=full)
            filled += 1

    with timeline.record() as t:
        future = full.submit(go.wait, LONG)
        filler = threading.Thread(target=fill)
        filler.start()
        until_steady(lambda: filled)
        assert filler.is_alive()
        assert [row["end"] for row in of_kind(t, "fill")] == [None] * filled
        assert clock == "cupti" or t.clock_error > 0
        go.set()
        filler.join(LONG)
        assert future.result(LONG)
        full.synchronize()
    fills = of_kind(t, "fill")
    assert len(fills) == filled
    assert all(row["end"] is not None for row in fills)


def of_cupy(cupy, stream):
    """CuPy's stream for one of ours."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(stream)
    return cupy.cuda.ExternalStream(stream.native_handle)


def inside(t, rows):
    """Check that the times of each row are in order and within the recording,
    except for the difference between the clocks of host and device."""
    slack = t.clock_error
    for row in rows:
        assert 0 <= row["queued"] <= row["begin"] <= row["end"]
        assert row["end"] <= t.duration + slack + 1000
    ends = [0, *(row["end"] for row in rows)]
    for row, before in zip(rows, ends, strict=False):
        assert before <= row["begin"] + slack
    return True


def test_cupy_on_its_streams(gpu, cupti, cupy):
    stream = gpu.stream(name="mine")
    theirs = cupy.cuda.Stream(non_blocking=True)
    array = cupy.zeros(1 << 20, dtype=cupy.float32)
    double = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x * 2", "d")
    double(array)
    gpu.synchronize()
    with timeline.record() as t:
        with of_cupy(cupy, stream):
            double(array)
            array.data.memset_async(0, array.nbytes, cupy.cuda.Stream())
            array.get()
        with theirs:
            double(array)
        double(array)
        stream.synchronize()
        gpu.synchronize()
    mine = [
        row
        for kind in ("kernel", "copy")
        for row in of_kind(t, kind)
        if row["stream"] and row["stream"].startswith("mine (")
    ]
    assert [row["name"] for row in mine] == ["d", "copy device to host"]
    assert mine[1]["nbytes"] == array.nbytes
    assert inside(t, mine)
    others = [r["stream"] for r in of_kind(t, "kernel") if r not in mine]
    assert others[0].startswith("stream #") and others[1] == "default stream"
    (fill,) = of_kind(t, "fill")
    assert fill["nbytes"] == array.nbytes
    assert {row["thread"] for row in mine} == {threading.current_thread().name}
    assert t.overlap().keys() & {("copy", "host"), ("host", "work")}


def test_torch_by_name(gpu, cupti, torch):
    stream = gpu.stream()
    theirs = torch.cuda.ExternalStream(stream.native_handle)
    with torch.cuda.stream(theirs):
        a = torch.randn(512, 512, device="cuda")
        a @ a
        a.zero_()
    gpu.synchronize()
    with timeline.record() as t:
        with torch.cuda.stream(theirs):
            a @ a
            a.zero_()
        stream.synchronize()
    kernels = of_kind(t, "kernel")
    assert len(kernels) >= 2 and inside(t, kernels)
    assert "at::native" in kernels[-1]["name"]
    (label,) = {row["stream"] for row in kernels}
    assert label == f"stream {stream.native_handle:#x}"


def test_work_of_others_orders_streams(gpu, cupti, cupy):
    """A record behind a kernel is done when the kernel is done, and the
    critical path leads through both."""
    first, second = gpu.stream(), gpu.stream()
    block = gpu.empty(1 << 20)
    spin = cupy.RawKernel(
        'extern "C" __global__ void spin(long long n) {'
        "long long t = clock64(); while (clock64() - t < n); }",
        "spin",
    )
    theirs = of_cupy(cupy, first)
    spin((1,), (1,), (1000,), stream=theirs)
    gpu.synchronize()
    with timeline.record() as t:
        spin((1,), (1,), (20_000_000,), stream=theirs)
        second.wait_stream(first)
        block.fill_(1, stream=second)
        second.synchronize()
    (kernel,), (fill,) = of_kind(t, "kernel"), of_kind(t, "fill")
    (wait,) = of_kind(t, "wait")
    assert kernel["end"] - kernel["begin"] > 5_000_000
    assert t.rows[wait["source"]][7] >= kernel["end"]
    assert wait["end"] >= kernel["end"]
    assert fill["begin"] + t.clock_error >= kernel["end"]
    steps = [s for s in t.critical_path().steps if s.row is not None]
    assert [t.rows[s.row][1] for s in steps] == ["spin", "fill"]
    assert steps[1].after == "wait"


def test_nodes_of_graphs(gpu, cupti, cupy):
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    array = cupy.zeros(1 << 20, dtype=cupy.float32)
    out = [cupy.empty_like(array) for _ in range(2)]
    cupy.multiply(array, 2, out=out[0])
    with streams[0]:
        streams[0].begin_capture()
        event = cupy.cuda.Event(disable_timing=True)
        event.record(streams[0])
        streams[1].wait_event(event)
        cupy.multiply(array, 2, out=out[0])
        with streams[1]:
            cupy.multiply(array, 3, out=out[1])
        event.record(streams[1])
        streams[0].wait_event(event)
        graph = streams[0].end_capture()
    graph.launch(streams[0])
    gpu.synchronize()
    with timeline.record() as t:
        graph.launch(streams[0])
        gpu.synchronize()
    (launch,) = of_kind(t, "graph")
    nodes = of_kind(t, "node")
    assert len(nodes) == 2
    assert all(row["name"].startswith("cupy_multiply") for row in nodes)
    assert min(row["begin"] for row in nodes) == launch["begin"]
    assert max(row["end"] for row in nodes) == launch["end"]


def test_what_ends_later_is_seen_later(gpu, cupti, cupy):
    stream = gpu.stream()
    theirs = of_cupy(cupy, stream)
    array = cupy.zeros(1 << 10, dtype=cupy.float32)
    go = threading.Event()
    gpu.synchronize()
    with timeline.record() as t:
        future = stream.submit(go.wait, LONG)
        array.data.memset_async(0, 64, theirs)
    assert of_kind(t, "fill") == []
    go.set()
    future.result(LONG)
    stream.synchronize()
    (fill,) = of_kind(t, "fill")
    assert fill["end"] > t.duration


def test_waits_of_other_libraries(gpu, cupti, torch, cupy):
    """Each wait of theirs and of ours has one row, during which the work that
    it waits for ends."""
    mine = gpu.stream()
    theirs = torch.cuda.ExternalStream(mine.native_handle)
    event = torch.cuda.Event()
    torch.cuda._sleep(1000)
    gpu.synchronize()
    waits = [
        ("cuCtxSynchronize", torch.cuda.synchronize),
        ("cuStreamSynchronize", theirs.synchronize),
        ("cuStreamSynchronize", of_cupy(cupy, mine).synchronize),
        ("cuEventSynchronize", event.synchronize),
        ("Stream.synchronize", mine.synchronize),
    ]
    with timeline.record() as t:
        for _, wait in waits:
            with torch.cuda.stream(theirs):
                torch.cuda._sleep(10_000_000)
            event.record(theirs)
            wait()
    kernels, found = of_kind(t, "kernel"), of_kind(t, "synchronize")
    assert [row["name"] for row in found] == [name for name, _ in waits]
    slack = t.clock_error + 1000
    for kernel, wait in zip(kernels, found, strict=True):
        assert wait["begin"] <= kernel["end"] <= wait["end"] + slack
        assert wait["end"] - wait["begin"] > 1_000_000
        assert wait["thread"] == threading.current_thread().name
    rows = t.rows
    steps = [s for s in t.critical_path().steps if s.row is not None]
    assert [rows[s.row][0] for s in steps] == ["kernel"] * 5
    assert t.overlap()["work",] > 0.8 * sum(
        row["end"] - row["begin"] for row in kernels
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_ranges_around_kernels(gpu, cupti, torch, cupy):
    """The ranges are those of torch and of CuPy, each with its own copy of
    NVTX."""
    nvtx = pytest.importorskip("cupy.cuda.nvtx", reason="CuPy has no NVTX")
    a = torch.ones(1 << 20, device="cuda")
    b = cupy.ones(1 << 20)
    torch.add(a, a, out=a), cupy.add(b, b, out=b)
    gpu.synchronize()
    with timeline.record() as t:
        with torch.cuda.nvtx.range("of torch"):
            torch.add(a, a, out=a)
        nvtx.RangePush("of CuPy")
        cupy.add(b, b, out=b)
        nvtx.RangePop()
        torch.cuda.synchronize()
    spans = of_kind(t, "span")
    assert [row["name"] for row in spans] == ["of torch", "of CuPy"]
    for span, kernel in zip(spans, of_kind(t, "kernel"), strict=True):
        assert span["begin"] <= kernel["queued"] <= span["end"]
        assert span["domain"] == "NVTX"
        assert span["thread"] == threading.current_thread().name


def test_streams_of_partitions(gpu, cupti):
    """The streams' numbers are those of a green context."""
    from pystreams.cuda.green_contexts import GreenContext

    try:
        partition = GreenContext.create(16)
    except NotImplementedError as error:
        pytest.skip(str(error))
    stream, plain = partition.Stream(), gpu.stream(name="plain")
    blocks = [gpu.empty(1 << 12, stream=s) for s in (stream, plain)]
    gpu.synchronize()
    kernels = ctypes.CDLL("libcuda.so.1")
    with timeline.record() as t:
        for block, of in zip(blocks, (stream, plain), strict=True):
            # Call the driver directly, as another library does.
            kernels.cuMemsetD8Async(
                ctypes.c_void_p(block.data_ptr()),
                1,
                ctypes.c_size_t(1 << 12),
                ctypes.c_void_p(of.native_handle),
            )
            block.fill_(1, stream=of)
        gpu.synchronize()
    fills = of_kind(t, "fill")
    labels = [row["stream"] for row in fills]
    assert labels[0] == labels[1] == f"stream {stream.native_handle:#x}"
    assert labels[2] == labels[3] and labels[2].startswith("plain (")


def test_another_profiler(gpu, cupti, torch, run_python):
    """Another profiler keeps CUPTI after its first use.  A warning says so
    once."""
    done = run_python("""
import warnings
warnings.simplefilter("ignore")
import torch
from pystreams import Buffer, Stream, timeline
with torch.profiler.profile() as p:
    torch.zeros(3, device="cuda")
stream, block = Stream("cuda"), Buffer(64, device="cuda")
for _ in range(2):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with timeline.record() as t:
            block.fill_(1, stream=stream)
            stream.synchronize()
    print([str(w.message) for w in found], t.clock_error > 0)
    print([row[0] for row in t.rows if row[0] != "synchronize"])
""")
    first, rows, second, again = done.stdout.splitlines()
    assert "another profiler has CUPTI" in first and first.endswith("True")
    assert second == "[] True"
    assert rows == again == "['fill']"
