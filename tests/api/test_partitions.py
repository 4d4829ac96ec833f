"""Partitions of a device, and torch's green contexts."""

import ctypes
import gc
import os
import time
import weakref
from typing import ClassVar

import pytest
from backend import Gate, libc
from captures import Capture

import pystreams
from pystreams import Partition, races, schedules
from pystreams import cuda as api
from pystreams.cuda._graphs import Graph
from pystreams.cuda.green_contexts import GreenContext

SIZE = 1 << 20


@pytest.fixture(autouse=True)
def everything_is_left(backend_or_cuda):
    """Free what earlier tests left, so that it keeps no partitions."""
    backend_or_cuda.settle()


@pytest.fixture
def backend_or_cuda(request):
    names = {"backend", "cuda"} & set(request.fixturenames)
    if not names:
        pytest.skip("needs a backend")
    return request.getfixturevalue(names.pop())


def partition(backend, count=1, index=0):
    try:
        return Partition(count, backend.device(index))
    except NotImplementedError as error:
        pytest.skip(str(error))


def whole(backend, index=0):
    name = backend.device(index)
    return pystreams._C.device_properties(backend.type, name)[
        "multi_processor_count"
    ]


class Posted:
    """A host function that tells that it has run."""

    _kept: ClassVar[list] = []

    def __init__(self, stream):
        self.semaphore = (ctypes.c_long * 4)()
        self._kept.append(self.semaphore)
        assert libc.sem_init(self.semaphore, 0, 0) == 0
        post = ctypes.cast(libc.sem_post, ctypes.c_void_p).value
        pystreams._C.launch_host_function(
            stream, post, ctypes.addressof(self.semaphore)
        )

    @property
    def over(self):
        value = ctypes.c_int()
        libc.sem_getvalue(self.semaphore, ctypes.byref(value))
        return value.value > 0

    def ends(self, seconds=10):
        end = time.monotonic() + seconds
        while not self.over and time.monotonic() < end:
            time.sleep(0.001)
        return self.over


def test_a_partition(backend):
    part = partition(backend)
    assert part.count >= 1
    assert part.device == backend.device(0)
    name = f"<pystreams.Partition device={backend.name}:0 count={part.count}>"
    assert repr(part) == name
    assert weakref.ref(part)() is part


def test_its_streams_are_streams(backend):
    part = partition(backend)
    stream = part.Stream(priority=-1, name="small")
    cuda = backend.name == "cuda"
    assert type(stream) is (api.Stream if cuda else pystreams.Stream)
    assert stream.device == backend.device(0)
    assert stream.priority == -1
    assert stream.name == "small"
    assert part.Stream(-(10**30)).priority == stream.priority_range()[1]
    other = part.Stream()
    assert other != stream
    block = backend.empty(SIZE, stream=stream)
    with backend.hold(stream):
        block.fill_(5, stream)
        event = stream.record_event()
        assert not event.query()
        assert not stream.query()
        other.wait_event(event)
        copy = backend.empty(SIZE, stream=other)
        copy.copy_(block, non_blocking=True, stream=other)
        future = other.submit(int)
        assert not other.query()
    assert future.result(30) == 0
    assert copy.tobytes() == bytes([5]) * SIZE
    with stream:
        assert backend.current_stream() == stream
    stream.synchronize(timeout=30)


@pytest.mark.parametrize("index", [0, 1])
def test_no_more_than_there_are(backend, index):
    if index >= backend.count:
        pytest.skip("needs two devices")
    count = whole(backend, index)
    part = partition(backend, count, index)
    assert part.count == count
    message = (
        rf"{backend.name}:{index} has {count} multiprocessors, of which other "
        rf"partitions have {count}, but 1 were asked for; ask for fewer, or "
        "drop another partition first, with its streams, their Buffers and "
        "their graphs"
    )
    with pytest.raises(RuntimeError, match=message):
        Partition(1, backend.device(index))
    del part
    gc.collect()
    assert partition(backend, count, index).count == count


@pytest.mark.parametrize("count", [0, -1, -(10**30)])
def test_no_fewer_than_one(backend, count):
    partition(backend)
    expected = f"expects an int of at least 1 for count, but got {count}$"
    with pytest.raises(ValueError, match=expected):
        Partition(count, backend.device())


def test_more_than_there_are(backend):
    partition(backend)
    with pytest.raises(RuntimeError, match="were asked for"):
        Partition(10**30, backend.device())
    assert partition(backend, whole(backend)).count == whole(backend)


@pytest.mark.parametrize("arguments", [(), ("1",), (1.0,), (None,)])
def test_wrong_arguments(backend, arguments):
    with pytest.raises(TypeError, match="Partition"):
        Partition(*arguments)
    with pytest.raises(TypeError, match="Stream"):
        partition(backend).Stream("high")


def test_streams_keep_it(backend):
    """And so does their work, after they are dropped."""
    count = whole(backend)
    stream = partition(backend, count).Stream()
    gc.collect()
    with pytest.raises(RuntimeError, match="were asked for"):
        Partition(1, backend.device())
    gate = Gate(stream)
    done = stream.record_event()
    del stream
    gc.collect()
    with pytest.raises(RuntimeError, match="were asked for"):
        Partition(1, backend.device())
    gate.open()
    done.synchronize()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            part = Partition(count, backend.device())
        except RuntimeError:
            continue
        break
    assert part.count == count


def test_a_wait_for_the_device_releases_it(backend):
    count = whole(backend)
    stream = partition(backend, count).Stream()
    backend.sleep(stream, 20)
    del stream
    gc.collect()
    backend.synchronize(0)
    assert Partition(count, backend.device()).count == count


@pytest.mark.parametrize("joins", [False, True])
def test_a_graph_keeps_it(backend, graph, joins):
    """Captured on a stream of the partition, or on one that joins; nothing
    else keeps the streams."""
    count = whole(backend)
    stream, side = partition(backend, count).Stream(), backend.stream()
    if joins:
        stream, side = side, stream
    with Capture(graph, stream):
        side.wait_stream(stream)
        backend.call(side)
        stream.wait_stream(side)
        backend.call(stream)
    del stream, side
    gc.collect()
    with pytest.raises(RuntimeError, match="were asked for"):
        Partition(1, backend.device())
    graph.replay()
    graph.reset()
    backend.synchronize(0)
    assert Partition(count, backend.device()).count == count


class Foreign:
    """A stream of another library, which keeps a stream of pystreams."""

    def __init__(self, stream):
        self.stream = stream

    def __cuda_stream__(self):
        return 0, self.stream.native_handle


def test_a_graph_keeps_that_of_an_external_stream(cuda):
    backend, graph, count = cuda, Graph(cuda.type), whole(cuda)
    stream = api.ExternalStream(Foreign(partition(backend, count).Stream()))
    with Capture(graph, stream):
        backend.call(stream)
    del stream
    gc.collect()
    with pytest.raises(RuntimeError, match="were asked for"):
        Partition(1, backend.device())
    graph.reset()
    backend.synchronize(0)
    assert Partition(count, backend.device()).count == count


@pytest.mark.unscheduled
def test_work_has_the_workers_of_its_partition(backend):
    """On the engine: no others, and no other partition has them."""
    if not backend.on_engine:
        pytest.skip("host functions run on no multiprocessor")
    if os.sysconf("SC_NPROCESSORS_ONLN") not in range(2, 9):
        pytest.skip("needs 2 to 8 processors, for a worker each")
    part, other = partition(backend), partition(backend)
    with backend.hold(part.Stream()):
        time.sleep(0.1)  # until a worker has come to it
        beside, elsewhere = Posted(part.Stream()), Posted(other.Stream())
        assert elsewhere.ends()
        assert not beside.ends(0.1)
    assert beside.ends()


def test_records_and_callables_need_no_worker(backend):
    if not backend.on_engine:
        pytest.skip("host functions run on no multiprocessor")
    part = partition(backend)
    first, second = part.Stream(), part.Stream()
    with backend.hold(first):
        assert second.submit(lambda: 3).result(30) == 3
        backend.empty(64, stream=second).fill_(1, second)
        second.record_event().synchronize()


@pytest.mark.unscheduled
def test_a_priority_holds_within_a_partition(backend):
    if not backend.on_engine:
        pytest.skip("host functions run on no multiprocessor")
    if os.sysconf("SC_NPROCESSORS_ONLN") > 8:
        pytest.skip("a partition has more than one worker")
    part = partition(backend)
    with backend.hold(part.Stream()):
        time.sleep(0.1)  # until a worker has come to it
        low, high = (Posted(part.Stream(priority)) for priority in (0, -1))
        assert not low.ends(0.1)
    assert low.ends()
    assert high.over


def test_races_are_found(backend):
    part = partition(backend)
    stream, other = part.Stream(), part.Stream()
    block = backend.empty(SIZE, stream=stream)
    with races.detect():
        block.fill_(1, stream)
        other.wait_stream(stream)
        block.fill_(2, other)
        with pytest.raises(races.RaceError):
            block.fill_(3, stream)
    other.synchronize()


def test_schedules_order_its_work(backend, no_gpu_is_used):

    def program():
        part = Partition(1, backend.device())
        stream, other = part.Stream(), part.Stream()
        block = backend.empty(64, stream=stream)
        block.fill_(1, stream)
        other.wait_stream(stream)
        block.fill_(2, other)
        other.synchronize()
        assert block.tobytes()[0] == 2

    schedules.explore(program, runs=20)


def test_in_a_forked_child(backend, run_python):
    code = f"""
import os, pystreams
try:
    part = pystreams.Partition(1, "{backend.name}")
except NotImplementedError:
    os._exit(0)
child = os.fork()
if child == 0:
    try:
        part.Stream()
    except RuntimeError as error:
        assert "fork" in str(error), error
        del part
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
part.Stream().submit(int).result()
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_split(cuda):
    whole = api.get_device_properties(0).multi_processor_count
    try:
        with pytest.raises(RuntimeError, match="were asked for"):
            GreenContext.split(num_sms=(1, whole))
    except NotImplementedError as error:
        pytest.skip(str(error))
    if whole < 2:
        pytest.skip("a partition takes all multiprocessors")
    first, second = GreenContext.split(num_sms=[1, 1], device_id=0)
    assert first.sm_count + second.sm_count <= whole
    assert first.device_id == second.device_id == 0


@pytest.mark.parametrize("make", [GreenContext, GreenContext.create])
def test_arguments_of_torch_that_are_not_supported(cuda, make):
    with pytest.raises(RuntimeError, match="needs num_sms"):
        make()
    with pytest.raises(NotImplementedError, match="needs num_sms: work queu"):
        make(workqueue_scope="device_ctx")
    with pytest.raises(ValueError, match="got 'half'"):
        make(num_sms=1, workqueue_scope="half")
    with pytest.raises(RuntimeError, match="requires workqueue_scope"):
        make(num_sms=1, workqueue_concurrency_limit=2)
    for name, options in (
        ("sm_partition", {"sm_partition": object()}),
        ("workqueue_scope", {"workqueue_scope": "balanced"}),
        (
            "workqueue_concurrency_limit",
            {
                "workqueue_scope": "device_ctx",
                "workqueue_concurrency_limit": 2,
            },
        ),
    ):
        with pytest.raises(NotImplementedError, match=f"not {name}="):
            make(num_sms=1, **options)


def test_arguments_of_torch_that_change_nothing(cuda):
    try:
        first, second = GreenContext.split(
            num_sms=1,
            backfill=(False, False),
            coscheduled_sm_count=0,
            locality_domain_ids=None,
            workqueue_scope="device_ctx",
        )
    except NotImplementedError as error:
        pytest.skip(str(error))
    except RuntimeError as error:
        pytest.skip(f"a device of one partition: {error}")
    assert first.sm_count == second.sm_count >= 1
    with pytest.raises(ValueError, match="the same length"):
        GreenContext.split(num_sms=(1, 1), backfill=[False])


def test_splits_of_torch_that_are_not_supported(cuda):
    with pytest.raises(NotImplementedError, match="expects a number"):
        GreenContext.split()
    for name, value in (
        ("coscheduled_sm_count", 8),
        ("preferred_coscheduled_sm_count", (8, 16)),
        ("backfill", True),
        ("locality_domain_ids", 0),
        ("workqueue_scope", "balanced"),
    ):
        with pytest.raises(NotImplementedError, match=f"not {name}="):
            GreenContext.split(num_sms=1, **{name: value})


def test_green_contexts(cuda):
    try:
        context = GreenContext.create(1)
    except NotImplementedError as error:
        pytest.skip(str(error))
    assert isinstance(context, api.GreenContext)
    assert isinstance(context, Partition)
    assert context.device_id == api.current_device()
    assert context.sm_count == context.count >= 1
    assert isinstance(context.Stream(), api.Stream)
    last = cuda.count - 1
    assert GreenContext(num_sms=1, device_id=last).device_id == last
    with pytest.raises(ValueError, match="Expected a cuda device"):
        GreenContext(1, "cpu")
    with pytest.raises(pystreams.AcceleratorError):
        GreenContext(1, 99)


def test_set_context(cuda):
    try:
        context = GreenContext(1, cuda.count - 1)
    except NotImplementedError as error:
        pytest.skip(str(error))
    before = api.current_stream()
    with pytest.raises(RuntimeError, match="without matching set_context"):
        context.pop_context()
    gate = Gate(before)
    context.set_context()
    inside = api.current_stream()
    assert inside != before
    assert api.current_device() == cuda.count - 1
    assert not inside.query()
    with pytest.raises(RuntimeError, match="called twice"):
        context.set_context()
    with api.stream(api.Stream()), pytest.raises(RuntimeError, match="expec"):
        context.pop_context()
    gate.open()
    inside.synchronize()
    gate = Gate(inside)
    context.pop_context()
    assert api.current_stream() == before
    assert api.current_device() == 0
    assert not before.query()
    gate.open()
    before.synchronize()
    context.set_context()
    context.pop_context()
