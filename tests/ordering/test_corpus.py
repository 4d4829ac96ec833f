"""Ordering bugs from public trackers, reduced to the calls that matter, each
with the repaired program: the detector finds every bug in one run, and blames
no repair."""

import pytest

import pystreams
from pystreams import races
from pystreams.cuda._graphs import Graph

SIZE = 256


class Machine:
    """Streams and memory of a device, with the default stream as `main`."""

    def __init__(self, backend):
        self.backend = backend
        self.main = backend.default_stream()
        self.side, self.other = backend.stream(), backend.stream()
        self.a, self.b, self.c = (backend.empty(SIZE) for _ in range(3))
        self.pinned = pystreams.Buffer(
            SIZE, device=backend.device(), pin_memory=backend.name == "cuda"
        )
        backend.synchronize()

    def kernel(self, stream, reads=(), writes=()):
        """Queue work of another library."""
        races.declare(stream, reads=reads, writes=writes, name="kernel")

    def copy(self, stream, to, source):
        to.copy_(source, True, stream)

    def capture(self, stream, work):
        graph = Graph(self.backend.type)
        with stream:
            graph.capture_begin()
            work()
            graph.capture_end()
        return graph


def one_event_for_several_streams(m, fixed):
    """https://github.com/torch/cutorch/pull/222"""
    event = m.backend.event()
    m.kernel(m.side, writes=[m.a])
    event.record(m.side)
    if fixed:
        m.main.wait_event(event)
    m.kernel(m.other, writes=[m.b])
    event.record(m.other)
    m.main.wait_event(event)
    m.kernel(m.main, reads=[m.a, m.b])


def block_reused_while_it_is_copied(m, fixed):
    """https://github.com/meta-pytorch/torchrec/pull/4231"""
    m.kernel(m.main, writes=[m.a])
    m.side.wait_stream(m.main)
    m.copy(m.side, m.pinned, m.a)
    # A pool hands the block out again for work of the main stream.
    if fixed:
        m.main.wait_stream(m.side)
    m.a.fill_(255, stream=m.main)


def output_consumed_on_the_caller_stream(m, fixed):
    """https://github.com/NVIDIA/TensorRT-LLM/pull/15265"""
    m.kernel(m.side, writes=[m.a])
    m.main.wait_event(m.side.record_event())
    m.kernel(m.main, reads=[m.a])
    if fixed:
        m.side.wait_stream(m.main)
    m.kernel(m.side, writes=[m.a])


def merged_free_list_without_a_record(m, fixed):
    """https://github.com/rapidsai/rmm/pull/2490"""
    of_list = m.backend.event()
    m.kernel(m.other, writes=[m.a])
    donor = m.other.record_event()
    of_list.record(m.side)
    m.side.wait_event(donor)
    if fixed:
        of_list.record(m.side)
    m.main.wait_event(of_list)
    m.kernel(m.main, writes=[m.a])


def prefetch_over_a_batch_that_is_read(m, fixed):
    """https://github.com/BVLC/caffe/pull/2998"""
    m.copy(m.side, m.a, m.pinned)
    m.side.synchronize()
    m.copy(m.main, m.b, m.a)
    if fixed:
        m.main.synchronize()
    m.copy(m.side, m.a, m.pinned)


def loader_ahead_of_its_consumer(m, fixed):
    """https://github.com/huggingface/pytorch-image-models/pull/2784"""
    for _ in range(2):
        if fixed:
            m.side.wait_stream(m.main)
        m.copy(m.side, m.a, m.pinned)
        m.main.wait_stream(m.side)
        m.kernel(m.main, reads=[m.a])


def two_stages_without_a_fence(m, fixed):
    """https://github.com/meta-pytorch/torchrec/pull/4191"""
    m.kernel(m.side, writes=[m.a])
    if fixed:
        m.other.wait_stream(m.side)
    m.kernel(m.other, reads=[m.a], writes=[m.b])


def host_reads_before_the_copy(m, fixed):
    """https://github.com/pytorch/pytorch/issues/86264"""
    m.kernel(m.main, writes=[m.a])
    m.copy(m.main, m.pinned, m.a)
    if fixed:
        m.main.synchronize()
    m.pinned.memoryview(readonly=True)


def host_writes_what_is_being_sent(m, fixed):
    """https://github.com/pytorch/pytorch/issues/127612"""
    m.copy(m.side, m.a, m.pinned)
    if fixed:
        m.side.synchronize()
    m.pinned.memoryview()[-1] = 255


def event_before_the_copy(m, fixed):
    """https://github.com/sgl-project/sglang/pull/16493"""
    event = m.backend.event()
    if not fixed:
        event.record(m.side)
    m.copy(m.side, m.pinned, m.a)
    if fixed:
        event.record(m.side)
    event.synchronize()
    m.pinned.memoryview(readonly=True)


def value_used_at_once(m, fixed):
    """https://github.com/NVIDIA/cudf/pull/2794"""
    m.copy(m.main, m.pinned[:4], m.a[4:8])
    if fixed:
        m.main.synchronize()
    races.declare(None, reads=[m.pinned[:4]])


def copy_on_the_default_stream(m, fixed):
    """https://github.com/cupy/cupy/issues/4988"""
    with m.side:
        m.copy(m.side if fixed else m.main, m.b, m.a)
        m.kernel(m.side, reads=[m.b])


def transfer_without_the_wait_before_it(m, fixed):
    """https://github.com/ROCm/pytorch/issues/3194"""
    m.kernel(m.main, writes=[m.a])
    if fixed:
        m.side.wait_stream(m.main)
    m.copy(m.side, m.b, m.a)
    m.main.wait_stream(m.side)
    m.kernel(m.main, reads=[m.b])


def blocking_copy_beside_a_stream(m, fixed):
    """https://github.com/bheisler/RustaCUDA/issues/59"""
    m.kernel(m.side, writes=[m.a])
    if fixed:
        m.side.synchronize()
    m.copy(m.main, m.pinned, m.a)
    m.main.synchronize()
    m.pinned.memoryview(readonly=True)


def set_up_on_the_default_stream(m, fixed):
    """https://github.com/NVIDIA-BioNeMo/nvMolKit/pull/55"""
    m.a.fill_(0, stream=m.side if fixed else m.main)
    m.kernel(m.side, reads=[m.a])


def synchronizes_the_stream_of_the_capture(m, fixed):
    """https://github.com/XPU-Forces/xpu_graph/pull/491"""
    graph = m.capture(m.side, lambda: m.copy(m.side, m.pinned, m.a))
    with m.other:
        graph.replay()
    (m.other if fixed else m.side).synchronize()
    m.pinned.memoryview(readonly=True)


def staging_reused_between_replays(m, fixed):
    """https://github.com/microsoft/onnxruntime/pull/32121"""
    graph = m.capture(m.side, lambda: m.copy(m.side, m.a, m.pinned))
    for _ in range(2):
        m.pinned.memoryview()[:] = bytes(SIZE)
        with m.side:
            graph.replay()
        if fixed:
            m.side.synchronize()


def input_overwritten_under_a_graph(m, fixed):
    """https://github.com/ggml-org/llama.cpp/issues/27572"""
    graph = m.capture(m.side, lambda: m.copy(m.side, m.b, m.a))
    for _ in range(2):
        m.copy(m.other, m.a, m.pinned)
        m.side.wait_stream(m.other)
        with m.side:
            graph.replay()
        if fixed:
            m.other.wait_stream(m.side)


def one_eviction_buffer(m, fixed):
    """https://github.com/pytorch/FBGEMM/pull/5512"""
    evicted = None
    for _ in range(2):
        if fixed and evicted is not None:
            m.main.wait_event(evicted)
        m.kernel(m.main, writes=[m.a])
        m.side.wait_event(m.main.record_event())
        m.copy(m.side, m.pinned, m.a)
        evicted = m.side.record_event()


def write_that_waits_for_writes_alone(m, fixed):
    """https://github.com/Theano/libgpuarray/pull/222"""
    m.kernel(m.main, writes=[m.a])
    written = m.main.record_event()
    m.side.wait_event(written)
    m.kernel(m.side, reads=[m.a])
    read = m.side.record_event()
    m.other.wait_event(written)
    if fixed:
        m.other.wait_event(read)
    m.kernel(m.other, writes=[m.a])


def framework_copy_on_some_stream(m, fixed):
    """https://github.com/NVIDIA/DALI/pull/5364"""
    m.copy(m.backend.stream() if not fixed else m.main, m.b, m.a)
    m.kernel(m.main, reads=[m.b])


def plan_overwritten_before_it_was_sent(m, fixed):
    """https://github.com/mstar-project/mstar/pull/236"""
    done = None
    for step in range(2):
        if fixed and done is not None:
            done.synchronize()
        m.pinned.memoryview()[:4] = bytes([step] * 4)
        m.copy(m.side, m.a[:4], m.pinned[:4])
        m.kernel(m.side, reads=[m.a])
        done = m.side.record_event()


PROGRAMS = [
    value
    for value in list(globals().values())
    if (getattr(value, "__doc__", None) or "").startswith("https://")
]


def test_there_are_enough():
    assert len(PROGRAMS) >= 20
    assert len({program.__doc__ for program in PROGRAMS}) == len(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_bug_is_found(backend, program):
    machine = Machine(backend)
    with races.detect(), pytest.raises(races.RaceError):
        program(machine, False)
    backend.synchronize()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_repair_is_not_blamed(backend, program):
    machine = Machine(backend)
    with races.detect():
        program(machine, True)
    backend.synchronize()
