"""Partitions of a GPU: the multiprocessors on which the kernels of their
streams run, and that such a stream works like any other."""

import ctypes
import gc
import statistics
import time

import pytest

import pystreams
from pystreams import cuda as api
from pystreams.cuda.green_contexts import GreenContext

BLOCKS = 1024
SIZE = 1 << 20


@pytest.fixture
def whole(gpu):
    gpu.settle()
    return api.get_device_properties().multi_processor_count


def create(num_sms):
    try:
        return GreenContext.create(num_sms)
    except NotImplementedError as error:
        pytest.skip(str(error))


def where(kernels, stream):
    """Return the multiprocessors that a kernel runs on."""
    found = pystreams.empty(BLOCKS * 4, device="cuda", stream=stream)
    kernels.place(stream.cuda_stream, found.data_ptr(), BLOCKS, 20)
    stream.synchronize()
    return set(memoryview(found.tobytes()).cast("I"))


def test_partitions_share_nothing(whole, kernels):
    small, large = create(16), create(whole // 2)
    assert small.sm_count >= 16
    assert large.sm_count >= whole // 2
    ones, others = (where(kernels, c.Stream()) for c in (small, large))
    assert len(ones) == small.sm_count
    assert len(others) == large.sm_count
    assert ones & others == set()
    assert len(where(kernels, api.Stream())) == whole


def test_all_are_handed_out_and_come_back(whole, kernels):
    for _ in range(3):
        first = create(16)
        rest = create(whole - first.sm_count)
        assert first.sm_count + rest.sm_count == whole
        assert len(where(kernels, rest.Stream())) == rest.sm_count
        with pytest.raises(RuntimeError, match=f"has {whole} multiproc"):
            create(1)
        del first, rest
        gc.collect()


def test_a_stream_keeps_its_partition(whole, kernels):
    stream = create(whole).Stream()
    gc.collect()
    with pytest.raises(RuntimeError, match="were asked for"):
        create(1)
    assert len(where(kernels, stream)) == whole
    # Make the stream busy, and then drop it.
    api._sleep(1_000_000_000)
    pystreams._C.sleep(1, 1_000_000_000, stream)
    del stream
    gc.collect()
    with pytest.raises(RuntimeError, match="were asked for"):
        create(1)
    api.synchronize()
    assert create(whole).sm_count == whole


def test_events_between_partitions(gpu, whole, kernels):
    """Each step reads what the step before wrote late."""
    first, second = create(16).Stream(), create(16).Stream()
    block = gpu.filled(1, SIZE)
    event = api.Event(enable_timing=True)
    for byte, (stream, other) in enumerate(
        [(first, second), (second, api.Stream()), (api.Stream(), first)], 2
    ):
        kernels.fill_late(stream.cuda_stream, block.data_ptr(), SIZE, byte, 5)
        event.record(stream)
        assert not event.query()
        other.wait_event(event)
        found = kernels.read(other.cuda_stream, block.data_ptr(), SIZE)
        assert found == (byte, byte)
    later = first.record_event(api.Event(enable_timing=True))
    later.synchronize()
    assert event.elapsed_time(later) >= 0


def test_memory_and_callables(gpu, whole, kernels):
    stream = create(16).Stream(priority=-1)
    assert stream.device == pystreams.device("cuda:0")
    block = pystreams.empty(SIZE, device="cuda", stream=stream)
    kernels.fill_late(stream.cuda_stream, block.data_ptr(), SIZE, 7, 5)
    found = stream.submit(lambda: 3)
    copy = pystreams.empty(SIZE, device="cuda", stream=stream)
    copy.copy_(block, stream=stream)
    block.close()
    with stream:
        assert copy.tobytes() == bytes([7]) * SIZE
    assert found.result(10) == 3
    stream.synchronize(timeout=10)


def test_a_graph_keeps_the_partition(gpu, whole, kernels):
    context = create(16)
    count = context.sm_count
    stream = context.Stream()
    found = gpu.empty(BLOCKS * 4)
    graph = api.CUDAGraph()
    with api.graph(graph, stream=stream):
        side = api.Stream()
        side.wait_stream(stream)
        kernels.place(side.cuda_stream, found.data_ptr(), 8, 20)
        stream.wait_stream(side)
        kernels.place(stream.cuda_stream, found.data_ptr(), BLOCKS, 20)
    del context, stream, side
    gc.collect()
    graph.replay()
    api.synchronize()
    assert len(set(memoryview(found.tobytes()).cast("I"))) == count
    with pytest.raises(RuntimeError, match="were asked for"):
        create(whole)
    found.close()
    graph.reset()
    api.synchronize()
    assert create(whole).sm_count == whole


def test_the_stream_of_a_handle(gpu, whole):
    stream = create(16).Stream()
    same = pystreams.ExternalStream(stream.cuda_stream, "cuda:0")
    assert same == stream
    context = ctypes.c_void_p()
    driver = ctypes.CDLL("libcuda.so.1")
    before = ctypes.c_void_p()
    driver.cuCtxGetCurrent(ctypes.byref(before))
    assert api.get_stream_from_external(stream.cuda_stream) == stream
    driver.cuCtxGetCurrent(ctypes.byref(context))
    assert context.value == before.value


def test_a_green_context_of_torch(torch, whole):
    contexts = pytest.importorskip("torch.cuda.green_contexts")
    theirs = contexts.GreenContext.create(16, 0)
    if not hasattr(theirs, "Stream"):
        pytest.skip("this torch's green contexts have no streams")
    stream = pystreams.ExternalStream(theirs.Stream().cuda_stream)
    assert stream.device == pystreams.device("cuda:0")
    event = stream.record_event()
    event.synchronize()


def test_torch_runs_in_a_partition(torch, whole):
    stream = create(16).Stream()
    theirs = torch.cuda.ExternalStream(stream.cuda_stream)
    with torch.cuda.stream(theirs):
        a = torch.ones(512, 512, device="cuda")
        found = (a @ a).sum()
    stream.synchronize()
    assert found.item() == 512**3


def test_a_small_pipeline_beside_a_heavy_one(whole, kernels):
    """The small pipeline has multiprocessors of its own, so it does not wait
    until the heavy one releases some."""

    def latencies(small, heavy):
        found = pystreams.empty(BLOCKS * 64, device="cuda")
        for _ in range(4):
            kernels.place(
                heavy.cuda_stream, found.data_ptr(), 16 * BLOCKS, 200
            )
        times = []
        while not heavy.query():
            begin = time.perf_counter()
            kernels.place(small.cuda_stream, found.data_ptr(), 8, 20)
            small.synchronize()
            times.append(time.perf_counter() - begin)
        return times

    # Without partitions, the first small kernel waits for most of the heavy
    # ones, so there are few other latencies.  So take the maximum.
    shared = max(latencies(api.Stream(), api.Stream()))
    first, second = create(16), create(whole - 16)
    alone = statistics.median(latencies(first.Stream(), second.Stream()))
    assert alone < shared / 5
