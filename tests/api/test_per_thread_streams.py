"""Handle 2, which is the calling thread's default stream wherever it is named;
the parts of the package that keep account of this stream; and the switch that
makes it the default stream."""

import asyncio
import contextlib
import gc
import os
import re
import threading
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest
from captures import byte_of, captured, fill, filling, replay
from deadlines import LONG, wait_until
from together import together

import pystreams
from pystreams import _C, ExternalStream, races, timeline, trace
from pystreams import cuda as api

SIZE = 64


class Worker:
    """A thread that makes the calls that it is given, until it is ended."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(1)

    def __call__(self, function, *args, **kwargs):
        return self._pool.submit(function, *args, **kwargs).result(LONG)

    def end(self):
        self._pool.shutdown()


@pytest.fixture
def workers():
    with contextlib.ExitStack() as stack:

        def start():
            worker = Worker()
            stack.callback(worker.end)
            return worker

        yield start


@pytest.fixture
def worker(workers):
    return workers()


@pytest.fixture
def own(backend):
    """A Stream with handle 2: for each thread that uses it, the thread's own
    default stream."""
    yield ExternalStream(2, backend.device())
    backend.synchronize()


def mark(stream):
    """An event that is done once the stream's present work is done."""
    return stream.record_event(pystreams.Event(stream.device.type))


class Lent:
    """Memory that another owner has lent, and whether nothing uses it."""

    class Owner:
        pass

    def __init__(self, backend):
        owner = self.Owner()
        owner.block = backend.empty(SIZE)
        self.freed = weakref.finalize(owner, int)
        self.buffer = pystreams.Buffer.from_address(
            owner.block.data_ptr(), SIZE, device=backend.device(), owner=owner
        )

    def is_back(self):
        return not self.freed.alive


@contextlib.contextmanager
def held(backend, worker, own):
    """Hold the thread's stream until the block ends or the gate is opened."""
    gate = worker(backend.gate, own)
    try:
        yield gate
    finally:
        gate.open()


def settle(backend):
    """Free the memory that was closed, unless work uses it."""
    backend.empty(SIZE).close()


# ---- The handle ----


def test_it_has_one_handle_on_all_threads(backend, own, worker):
    other = worker(ExternalStream, 2, backend.device())
    assert own == other
    assert hash(own) == hash(other)
    assert own.native_handle == other.native_handle == 2
    assert own.stream_id == 2
    assert own._as_parameter_.value == 2
    assert own != backend.default_stream()
    assert not own.is_non_blocking
    assert own.priority == 0
    assert "0x2" in repr(own)


def test_it_names_the_stream_of_the_thread_that_uses_it(backend, own, worker):
    with held(backend, worker, own):
        assert own.query()
        assert not worker(own.query)
        mark(own).synchronize(LONG)
        event = worker(mark, own)
        assert not event.query()
    event.synchronize(LONG)
    worker(own.synchronize, LONG)


def test_ways_to_name_it(backend, own):
    numbers = {
        "stream_id": 2,
        "device_index": 0,
        "device_type": backend.type,
    }
    assert pystreams.Stream(**numbers) == own
    assert ExternalStream(own) == own


def test_ways_to_name_it_on_cuda(cuda, worker):
    class Numbered:
        def __cuda_stream__(self):
            return 0, 2

    own = api.ExternalStream(2)
    assert own.cuda_stream == 2
    assert own.__cuda_stream__() == (0, 2)
    assert api.ExternalStream(Numbered()) == own
    event = cuda.event()
    with held(cuda, worker, own):
        event.record(Numbered())
        event.synchronize(LONG)
        worker(event.record, Numbered())
        assert not event.query()
    event.synchronize(LONG)


def test_it_is_on_each_device(two_devices):
    for index in range(2):
        device = two_devices.device(index)
        stream = ExternalStream(2, device)
        assert stream.device == device
        mark(stream).synchronize(LONG)


def test_a_closed_one(own):
    own.close()
    with pytest.raises(ValueError, match="the Stream is closed"):
        own.query()


# ---- Order ----


@pytest.mark.unscheduled
def test_the_default_stream_waits_for_it(backend, own, worker):
    with held(backend, worker, own):
        event = mark(backend.default_stream())
        assert not event.query()
    event.synchronize(LONG)


@pytest.mark.unscheduled
def test_it_waits_for_the_default_stream(backend, own, worker):
    with backend.hold(backend.default_stream()):
        event = worker(mark, own)
        assert not event.query()
    event.synchronize(LONG)


@pytest.mark.unscheduled
def test_threads_do_not_wait_for_each_other(backend, own, workers):
    one, other = workers(), workers()
    with held(backend, one, own):
        for event in (other(mark, own), mark(own), mark(backend.stream())):
            event.synchronize(LONG)


@pytest.mark.unscheduled
def test_a_device_waits_for_all_of_them(backend, own, worker):
    with held(backend, worker, own), pytest.raises(TimeoutError):
        _C.synchronize(backend.type, 0, 0.05)
    backend.synchronize()
    assert worker(own.query)


def test_waits_by_events(backend, own, worker):
    with held(backend, worker, own):
        own.wait_event(worker(mark, own))
        event = mark(own)
        assert not event.query()
    event.synchronize(LONG)


def test_wait_stream(backend, own, stream):
    with backend.hold(stream):
        own.wait_stream(stream)
        event = mark(own)
        stream.wait_stream(own)
        assert not event.query()
    stream.synchronize(LONG)


def test_await(backend, own):
    async def main():
        await own
        return await own.submit(divmod, 7, 2)

    assert asyncio.run(main()) == (3, 1)


# ---- Callables ----


def test_a_callable_is_in_the_order_of_the_submitters(backend, own, worker):
    go = threading.Event()
    future = worker(own.submit, go.wait, LONG)
    own.synchronize(LONG)
    assert not worker(own.query)
    go.set()
    assert future.result(LONG)
    worker(own.synchronize, LONG)


def test_a_callable_may_use_that_of_its_own_thread(own):
    assert own.submit(own.synchronize, LONG).result(LONG) is None


# ---- Current streams ----


def test_it_is_current_in_a_thread(backend, own, worker):
    def enter():
        with own:
            assert backend.current_stream() == own
            event = backend.event()
            gate = backend.gate(own)
            event.record()
            assert not event.query()
            gate.open()
        assert backend.current_stream() == backend.default_stream()

    worker(enter)
    _C.set_stream(own)
    assert backend.current_stream() == own
    assert worker(backend.current_stream) == backend.default_stream()


def test_it_is_current_in_tasks(backend, own):
    async def task():
        with own:
            await asyncio.sleep(0)
            return backend.current_stream()

    async def main():
        return await asyncio.gather(task(), task())

    assert asyncio.run(main()) == [own, own]


# ---- Memory ----


def test_memory(backend, own, worker):
    def work():
        block = backend.empty(SIZE, stream=own)
        block.fill_(7, stream=own)
        assert block.stream == own
        with own:
            return block.tobytes()

    assert work() == worker(work) == bytes([7]) * SIZE


@pytest.mark.unscheduled
def test_another_thread_reads_what_its_work_writes(backend, own, worker):
    """The consumer's stream waits for the producer's, although only the
    producer's thread can name that stream."""
    block = worker(backend.empty, SIZE, stream=own)
    worker(own.synchronize)
    copy = backend.empty(SIZE, stream=own)
    with held(backend, worker, own) as gate:
        worker(block.fill_, 7, own)
        # A CPU's memory is waited for here.
        threading.Timer(0.1, gate.open).start()
        copy.copy_(pystreams.from_dlpack(block), True, own)
    with own:
        assert copy.tobytes() == bytes([7]) * SIZE


@pytest.mark.unscheduled
def test_work_that_no_event_covers(engine, own, worker):
    """The work took the last room in the thread's queue, so no event could be
    recorded after it.  Waits of other threads for it fail, instead of ending
    early."""
    with engine.stream() as stream:
        block = engine.empty(SIZE, stream=stream)
        graph = filling(engine, block, 7)
    graph.register_destroy_callback(int, synchronize_before_release=True)
    worker(replay, graph, own)
    with held(engine, worker, own):
        worker(engine.fill, own, queued=2)
        worker(block.fill_, 8, own)
        # The default stream waits for the thread's stream itself.
        with engine.stream(), pytest.raises(RuntimeError, match="was full, o"):
            pystreams.from_dlpack(block)
        with pytest.raises(RuntimeError, match="nothing can wait for the la"):
            graph.reset()
    worker(own.synchronize)
    worker(replay, graph, own)
    assert set(block.tobytes()) == {7}
    graph.reset()


@pytest.mark.unscheduled
def test_a_replay_after_a_thread_that_ended_with_a_full_queue(
    engine, own, worker
):
    """The thread's end waits for room to record the work that it leaves."""
    block = engine.filled(0)
    graph = captured(engine, fill(block, 7), keep=True)
    worker(replay, graph, own)
    end = threading.Thread(target=worker.end)
    with held(engine, worker, own):
        worker(engine.fill, own, queued=1)
        end.start()
        end.join(0.1)
        assert end.is_alive()
    end.join(LONG)
    assert not end.is_alive()
    graph.instantiate()
    with engine.stream() as stream:
        graph.replay()
        stream.synchronize(LONG)
    assert set(block.tobytes()) == {7}


@pytest.mark.unscheduled
def test_what_another_thread_gives_up_waits_for_its_work(backend, own, worker):
    lent = Lent(backend)
    with held(backend, worker, own):
        worker(lent.buffer.record_stream, own)
        lent.buffer.close()
        settle(backend)
        assert not lent.is_back()
    worker(own.synchronize, LONG)
    worker(settle, backend)
    wait_until(lent.is_back)


@pytest.mark.unscheduled
def test_what_it_gives_up_itself(backend, own):
    lent = Lent(backend)
    with backend.hold(own):
        lent.buffer.record_stream(own)
        lent.buffer.close()
        assert not lent.is_back()
    own.synchronize(LONG)
    settle(backend)
    assert lent.is_back()


# ---- The end of a thread ----


@pytest.fixture
def ends_first(backend):
    if not backend.on_engine:
        pytest.skip(f"{backend}: the end of a thread waits for its work")


ENDS = """
import sys, threading
import pystreams
from pystreams import _C
kind, name = int(sys.argv[1]), sys.argv[2]
own = pystreams.ExternalStream(2, name)
def work():
    block = pystreams.empty(1 << 20, device=name, stream=own)
    block.fill_(7, stream=own)
    _C.sleep(kind, 100_000_000, own)
    events.append(own.record_event(pystreams.Event(name)))
    blocks.append(block)
events, blocks = [], []
for _ in range(3):
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del blocks[8:]
_C.synchronize(kind)
print(len(events), all(event.query() for event in events))
"""


def test_threads_end_behind_kernels_and_memory(backend, run_python):
    """The driver does not end such a thread before its work is done."""
    done = run_python(ENDS, str(backend.type), backend.name, timeout=LONG)
    assert (done.stdout, done.stderr) == ("24 True\n", "")


@pytest.mark.unscheduled
def test_a_thread_ends_while_its_work_is_pending(
    ends_first, backend, own, worker
):
    with held(backend, worker, own):
        event = worker(mark, own)
        worker.end()
        assert not event.query()
        own.synchronize(LONG)
    event.synchronize(LONG)


@pytest.mark.unscheduled
def test_the_end_of_a_thread_waits_for_its_work(backend, own, worker):
    """On CUDA, the end of a thread waits, because otherwise the driver might
    never end the thread."""
    if backend.on_engine:
        pytest.skip(f"{backend}: a thread ends before its work is done")
    end = threading.Thread(target=worker.end)
    with held(backend, worker, own):
        event = worker(mark, own)
        end.start()
        end.join(0.1)
        assert end.is_alive()
    end.join(LONG)
    assert not end.is_alive()
    assert event.query()


def test_a_thread_that_ends_in_a_capture_leaves_it_to_replays(
    backend, own, worker, stream, graph, buffer
):
    """A wait of another thread would invalidate a global capture."""
    worker(mark, own)
    with stream:
        graph.capture_begin()
        buffer.fill_(2)
        worker.end()
        graph.capture_end()
        graph.replay()
    assert byte_of(buffer, stream) == 2


@pytest.mark.unscheduled
@pytest.mark.parametrize("first", ["the thread", "the memory"])
def test_memory_outlives_a_thread_as_long_as_its_work(
    ends_first, backend, own, worker, first
):
    lent = Lent(backend)
    with held(backend, worker, own):
        worker(lent.buffer.record_stream, own)
        if first == "the memory":
            lent.buffer.close()
        worker.end()
        lent.buffer.close()
        settle(backend)
        assert not lent.is_back()
    backend.synchronize()
    settle(backend)
    assert lent.is_back()


@pytest.mark.unscheduled
@pytest.mark.parametrize("first", ["the thread", "the memory"])
def test_memory_of_a_thread_that_has_ended_is_freed(
    backend, own, worker, first
):
    """The memory is freed after the thread's work, by a stream that still
    exists."""
    if not (backend.on_engine and backend.name == "cuda"):
        pytest.skip(f"{backend}: counts no memory, or keeps it in a pool")
    before = api.mem_get_info()
    block = worker(backend.empty, 1 << 20, stream=own)
    with held(backend, worker, own):
        worker(block.fill_, 1, own)
        if first == "the memory":
            block.close()
        worker.end()
        block.close()
        settle(backend)
        # When the thread ends, it frees what it finds, in its stream's order.
        assert (api.mem_get_info() == before) is (first == "the memory")
    backend.synchronize()
    settle(backend)
    backend.synchronize()
    assert api.mem_get_info() == before


@pytest.mark.unscheduled
def test_a_later_thread_has_an_idle_one(ends_first, backend, own, workers):
    first = workers()
    with held(backend, first, own):
        first.end()
        for _ in range(3):
            later = workers()
            assert later(own.query)
            later.end()


def test_threads_that_come_and_go(backend, own):
    """Each thread hands memory to the next one, and ends before its work
    does."""
    shared = deque([backend.filled(0)], maxlen=4)

    def work(number):
        for _ in range(5):
            block = backend.empty(SIZE, stream=own)
            block.fill_(number % 256, stream=own)
            other = backend.empty(SIZE, stream=own)
            # Not shared[-1]: while an append removes the first item, another
            # thread may see a length that is too large.
            other.copy_(pystreams.from_dlpack(shared[0]), True, own)
            shared.append(block)
        mark(own)

    for _ in range(3):
        together(work, threads=16)
    shared.clear()
    backend.settle()


def test_a_forked_child_has_its_own(engine, own):
    block = engine.empty(SIZE, stream=own)
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            stream = ExternalStream(2, engine.device())
            engine.filled(3, stream=stream)
            status = not stream.query()
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    block.fill_(1, stream=own)
    own.synchronize(LONG)


# ---- What is reported ----


def test_trace(backend, own, worker):
    records = []
    event = backend.event()
    with trace.subscribe(records.append, "event_record"):
        event.record(own)
        worker(event.record, own)
    assert [record.stream for record in records] == [2, 2]


def race_of(worker, work, other):
    found = []
    with races.detect(lambda race: found.append(race)):
        work()
        worker(other)
    return found


def test_a_race_between_two_threads(backend, own, worker):
    x, y = backend.empty(SIZE), backend.empty(SIZE)
    backend.synchronize()
    (race,) = race_of(
        worker,
        lambda: x.fill_(1, stream=own),
        lambda: y.copy_(x, True, own),
    )
    assert race.first.stream != race.second.stream
    assert "the default stream of MainThread" in str(race)
    assert "0x2)" in str(race)
    assert "wait_event(" in race.missing


def test_no_race_after_an_event(backend, own, worker):
    x, y = backend.empty(SIZE), backend.empty(SIZE)
    backend.synchronize()

    def other():
        own.wait_event(event)
        y.copy_(x, True, own)

    def work():
        nonlocal event
        x.fill_(1, stream=own)
        event = mark(own)

    event = None
    assert race_of(worker, work, other) == []


def test_no_race_on_one_thread(backend, own, worker):
    x, y = backend.empty(SIZE), backend.empty(SIZE)
    backend.synchronize()

    def work():
        x.fill_(1, stream=own)
        y.copy_(x, True, own)

    assert race_of(worker, work, lambda: None) == []


def test_no_race_with_the_default_stream(backend, own, worker):
    """The default stream serializes with the thread's stream."""
    x, y = backend.empty(SIZE), backend.empty(SIZE)
    default = backend.default_stream()
    backend.synchronize()
    assert (
        race_of(
            worker,
            lambda: x.fill_(1, stream=default),
            lambda: y.copy_(x, True, own),
        )
        == []
    )


def test_no_race_through_the_legacy_stream(backend, own, worker):
    """Both threads' streams serialize with the legacy stream."""
    x, y = backend.empty(SIZE), backend.empty(SIZE)
    default = backend.default_stream()
    backend.synchronize()

    def work():
        x.fill_(1, stream=own)
        y.fill_(1, stream=default)

    assert race_of(worker, work, lambda: x.fill_(2, stream=own)) == []


def test_timeline_has_a_track_for_each_thread(backend, own, worker):
    block = backend.empty(SIZE)
    backend.synchronize()
    with timeline.record() as recorded:
        block.fill_(1, stream=own)
        own.synchronize()
        worker(block.fill_, 2, own)
        worker(own.synchronize)
    one, other = (row[3] for row in recorded.rows if row[0] == "fill")
    assert one == "the default stream of MainThread (0x2)"
    assert re.fullmatch(r"the default stream of Thread\S+ \(0x2\)", other)


def test_explain(engine, own, worker):
    with held(engine, worker, own):
        text = str(worker(pystreams.explain, own))
        assert "the default stream of ThreadPoolExecutor" in text
        assert "0x2)" in text
        assert str(pystreams.explain(own)) != text
        assert "ThreadPoolExecutor" in str(pystreams.explain())


# ---- The switch ----


SWITCH = """
import sys, threading
import pystreams
from pystreams import _C

name = sys.argv[1]
kind = dict(_C.backends())[name]


def default():
    return _C.default_stream(kind), _C.current_stream(kind)


def work():
    own, current = default()
    assert own == current, (own, current)
    assert own.native_handle == 2, own
    block = pystreams.empty(64, device=name)
    assert block.stream == own
    block.fill_(7)
    event = pystreams.Event(name)
    event.record()
    event.synchronize()
    assert block.tobytes() == bytes([7]) * 64
    with pystreams.Stream(name) as stream:
        assert _C.current_stream(kind) == stream
    assert _C.current_stream(kind) == own
    with pystreams.ExternalStream(0, name) as legacy:
        assert _C.current_stream(kind) == legacy
    if name == "cuda":
        assert pystreams.cuda.default_stream().cuda_stream == 2
        assert pystreams.cuda.current_stream().cuda_stream == 2
        assert block.__cuda_array_interface__["stream"] == 2
    assert legacy.native_handle == 0


work()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
held, go = pystreams.Stream(name), threading.Event()
held.submit(go.wait, 30)


def hold():
    _C.current_stream(kind).wait_stream(held)
    assert not _C.current_stream(kind).query()


thread = threading.Thread(target=hold)
thread.start()
thread.join()
assert _C.current_stream(kind).query()
go.set()
assert held.submit(default).result(30)[0].native_handle == 2
assert pystreams.accelerator.default_stream().native_handle == 2
print("done")
"""

VARIABLE = "PYSTREAMS_PER_THREAD_DEFAULT_STREAM"


def test_the_switch(backend, run_python):
    done = run_python(SWITCH, backend.name, env={VARIABLE: "1"})
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.parametrize("value", ["", "0", None])
def test_without_the_switch(backend, run_python, value):
    code = (
        "import sys; from pystreams import _C;"
        "print(_C.default_stream(int(sys.argv[1])).native_handle)"
    )
    done = run_python(code, str(backend.type), env={VARIABLE: value})
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize("value", ["2", "yes", "-1", " 1"])
def test_other_values_are_refused(run_python, value):
    done = run_python("import pystreams", env={VARIABLE: value})
    assert done.returncode == 1
    assert f"{VARIABLE} must be '0' or '1', got '{value}'" in done.stderr


def test_collecting_leaves_nothing(backend, own):
    together(lambda _: mark(own), threads=8)
    gc.collect()
    backend.synchronize()


REPLAYS = """
import gc, sys, threading, weakref
import pystreams
from pystreams import _C
from pystreams.cuda._graphs import Graph
kind, name = int(sys.argv[1]), sys.argv[2]
class Kept:
    pass
kept = Kept()
dropped = weakref.ref(kept)
block, graph = pystreams.empty(64, device=name), Graph(kind)
with pystreams.Stream(name):
    graph.capture_begin()
    block.fill_(7)
    graph.retain_object(kept)
    graph.capture_end()
del kept
ready, go = threading.Event(), threading.Event()
def work():
    own = pystreams.ExternalStream(2, name)
    own.submit(go.wait, 30)
    graph.replay()
    ready.set()
    own.synchronize()
thread = threading.Thread(target=work)
thread.start()
ready.wait(30)
graph.reset()
pystreams.empty(64, device=name).close()
gc.collect()
early = dropped() is None
go.set()
thread.join()
_C.synchronize(kind)
for _ in range(100):
    if dropped() is not None:
        pystreams.empty(64, device=name).close()
print(early, dropped() is None, block.tobytes() == bytes([7]) * 64)
"""


def test_what_a_thread_replays_is_kept(backend, run_python):
    """What a thread replays is kept even if another thread resets the graph
    while the switch is on."""
    done = run_python(
        REPLAYS, str(backend.type), backend.name, env={VARIABLE: "1"}
    )
    assert (done.stdout, done.stderr) == ("False True True\n", "")


# ---- Programs with the switch on ----


@pytest.fixture
def switched(run_python):
    """Runs a program whose "cuda" is emulated, with the switch on."""

    def run(code, devices="2"):
        env = {VARIABLE: "1", "PYSTREAMS_EMULATE_CUDA": devices}
        return run_python(START + code, env=env, timeout=LONG)

    return run


START = """
import contextvars, gc, sys, threading
import pystreams
from pystreams import cuda, races
from pystreams.testing import emulated_cuda

def on_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

def captured(**options):
    graph, stream = cuda.CUDAGraph(**options), cuda.Stream("cuda:0")
    with cuda.stream(stream):
        graph.capture_begin()
        pystreams.empty(64, device="cuda:0", stream=stream).fill_(1)
        graph.capture_end()
    return graph
"""


def test_a_dropped_graph_leaves_no_thread_captured(switched):
    done = switched("""
box, dropped = [], threading.Event()
def work():
    box.append(cuda.CUDAGraph())
    box[0].capture_begin()
    begun.set()
    dropped.wait()
    stream = cuda.current_stream()
    data = pystreams.empty(16, device="cuda:0").fill_(3)
    print(stream.is_capturing(), data.tobytes() == bytes([3]) * 16)
begun = threading.Event()
thread = threading.Thread(target=work)
thread.start()
begun.wait()
box.clear()
gc.collect()
dropped.set()
thread.join()
""")
    assert done.stdout == "False True\n"
    # This is as for any capture that another thread drops.
    assert "Exception ignored while dropping a graph" in done.stderr


@pytest.mark.parametrize("where", ["this thread", "a thread that goes on"])
def test_they_use_up_no_emulations(switched, where):
    done = switched(f"""
from concurrent.futures import ThreadPoolExecutor
def work():
    pystreams.empty(64, device="cuda:0").fill_(1)
    cuda.set_stream(cuda.Stream())
    cuda.set_stream(cuda.default_stream())
    cuda.synchronize()
with ThreadPoolExecutor(1) as pool:
    for _ in range(20):
        with emulated_cuda():
            if {where == "this thread"}:
                work()
                cuda.set_stream(cuda.Stream())
            else:
                pool.submit(work).result()
print("done")
""")
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_finalizer_uses_it_while_its_thread_ends(switched):
    """The thread's local values are dropped after its streams have ended."""
    done = switched("""
local, blocks = threading.local(), []
class Late:
    def __del__(self):
        blocks.append(pystreams.empty(1 << 20, device="cuda:0").fill_(1))
def work():
    cuda.current_stream().query()
    local.late = Late()
before = cuda.mem_get_info()
for _ in range(5):
    on_thread(work)
count = len(blocks)
blocks.clear()
cuda.synchronize()
pystreams.empty(64, device="cuda:0").close()
cuda.synchronize()
print(count, cuda.mem_get_info() == before)
""")
    assert (done.stdout, done.stderr) == ("5 True\n", "")


def test_a_finalizer_replays_a_graph_while_its_thread_ends(switched):
    done = switched("""
local, count = threading.local(), []
stream, graph = cuda.Stream(), cuda.CUDAGraph()
memory = pystreams.empty(64, device="cuda:0", stream=stream)
with cuda.graph(graph, stream=stream):
    memory.fill_(1)
class Late:
    def __del__(self):
        graph.replay()
        count.append(1)
def work():
    cuda.current_stream().query()
    local.late = Late()
on_thread(work)
cuda.synchronize()
print(len(count), memory.tobytes() == bytes([1]) * 64)
""")
    assert (done.stdout, done.stderr) == ("1 True\n", "")


def test_no_race_with_an_event_of_another_stream(switched):
    """The event that the library uses for a thread was an event of the program
    before."""
    done = switched("""
box, filled, read = [], threading.Event(), threading.Event()
def work():
    box.append(pystreams.empty(1 << 20, device="cuda:0").fill_(1))
    filled.set()
    read.wait()
with races.detect():
    cuda.Event().record(cuda.Stream())
    thread = threading.Thread(target=work)
    thread.start()
    filled.wait()
    stream = cuda.Stream()
    with cuda.stream(stream):
        copy = pystreams.empty(1 << 20, device="cuda:0")
        copy.copy_(pystreams.from_dlpack(box[0]))
        stream.synchronize()
    read.set()
    thread.join()
print("done")
""")
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_replay_while_python_replaces_the_current_streams(switched):
    """A signal handler or a finalizer may replace them."""
    done = switched("""
from pystreams import _names
real = _names.default_stream_name
def replace():
    cuda.set_stream(cuda.Stream("cuda:1"))
    cuda.set_device(0)
def name(thread):
    for _ in range(100):
        replace()
    return real(thread)
def work():
    replace()
    _names.default_stream_name = name
    graph.replay()
    cuda.synchronize()
    print("done")
graph = captured()
on_thread(lambda: contextvars.copy_context().run(work))
""")
    assert (done.stdout, done.stderr) == ("done\n", "")
