"""`Stream.submit`: callables run in stream order on the package's threads, and
their results are in Futures."""

import concurrent.futures
import contextvars
import gc
import threading
import time
import weakref

import pytest
from deadlines import LONG, wait_until

import pystreams
from pystreams import _C


def test_default_streams_are_current(backend, stream):
    with stream:
        future = stream.submit(backend.current_stream)
    assert future.result(LONG) == backend.default_stream()


def test_result(stream):
    future = stream.submit(divmod, 7, 2)
    assert future.result(LONG) == (3, 1)
    assert future.done() and not future.cancelled()
    assert future.exception() is None


def test_arguments(stream):
    def function(*args, **kwargs):
        return args, kwargs

    for args, kwargs in (
        ((), {}),
        ((1, None), {}),
        ((), {"fn": 2, "self": 3}),
        (((),), {"stream": stream, "timeout": 1}),
    ):
        future = stream.submit(function, *args, **kwargs)
        assert future.result(LONG) == (args, kwargs)


def test_on_a_thread_of_the_package(stream):
    thread = stream.submit(threading.current_thread).result(LONG)
    assert thread is not threading.current_thread()
    assert thread.name.startswith("pystreams-") and thread.daemon


class Odd(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), Odd("no"), SystemExit(3), KeyboardInterrupt()],
    ids=lambda e: type(e).__name__,
)
def test_what_it_raises_goes_to_the_future(stream, error):
    def function():
        raise error

    future = stream.submit(function)
    assert future.exception(LONG) is error
    with pytest.raises(type(error)) as caught:
        future.result(LONG)
    assert caught.value is error
    assert "function" in [entry.name for entry in caught.traceback]
    # The stream goes on.
    assert stream.submit(int).result(LONG) == 0
    stream.synchronize()
    assert stream.query()


@pytest.mark.parametrize(
    "returned", [None, (), (1, 2), StopIteration], ids=repr
)
def test_any_result(stream, returned, block):
    seen = stream.submit(lambda: returned)
    unseen = stream.submit(lambda: returned)
    assert not seen.done()
    block.release()
    assert seen.result(LONG) is returned
    stream.synchronize()
    assert unseen.result() is returned


def test_in_the_order_of_the_stream(backend, stream):
    """The callable runs after the copy before it, and before the copy behind
    it."""
    first, second = backend.host(1000), backend.host(1000)
    seen = []
    backend.sleep(stream, 20)
    first.fill_(1, stream=stream)
    stream.submit(lambda: seen.append(bytes(memoryview(first))))
    stream.submit(lambda: memoryview(first).cast("B").__setitem__(0, 9))
    second.copy_(first, non_blocking=True, stream=stream)
    stream.submit(lambda: seen.append(bytes(memoryview(second))))
    first.fill_(2, stream=stream)
    stream.synchronize()
    wait_until(lambda: len(seen) == 2)
    assert seen == [b"\1" * 1000, b"\11" + b"\1" * 999]


def test_events_around_it(stream, block):
    before, after = stream.record_event(), None
    future = stream.submit(lambda: (before.query(), after.query()))
    after = stream.record_event()
    assert not stream.query() and not after.query()
    block.release()
    assert future.result(LONG) == (True, False)
    after.synchronize()
    assert stream.query()


def test_other_streams_wait_for_it_through_events(backend, stream, block):
    other = backend.stream()
    other.wait_stream(stream)
    future = other.submit(int)
    assert not future.done() and not other.query()
    block.release()
    assert future.result(LONG) == 0


@pytest.mark.unscheduled
def test_the_stream_has_gone_on_once_the_result_is_there(backend, stream):
    for _ in range(50):
        stream.submit(int).result(LONG)
        if not backend.on_engine:
            # The GPU may not have noticed yet that the callable has returned.
            stream.synchronize(timeout=LONG)
        assert stream.query()


def test_many(stream):
    seen = []
    futures = [stream.submit(seen.append, i) for i in range(5000)]
    stream.synchronize()
    assert seen == list(range(5000))
    assert all(f.result(LONG) is None for f in futures)


def test_cancelled_before_it_starts(stream, block):
    ran = []
    future = stream.submit(ran.append, 1)
    last = stream.submit(ran.append, 2)
    assert future.cancel() and future.cancelled() and future.done()
    assert future.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(LONG)
    assert not stream.query()
    block.release()
    last.result(LONG)
    assert ran == [2]


def test_too_late_to_cancel(stream, block):
    wait_until(block.future.running)
    assert not block.future.cancel()
    block.release()
    assert block.future.result(LONG) is True
    assert not block.future.cancel()


def test_context_variables_travel(stream):
    variable = contextvars.ContextVar("variable", default="none")

    def function():
        found = variable.get()
        variable.set("inside")
        return found, variable.get()

    token = variable.set("outside")
    assert stream.submit(function).result(LONG) == ("outside", "inside")
    assert variable.get() == "outside"
    variable.reset(token)
    assert stream.submit(variable.get).result(LONG) == "none"


@pytest.mark.parametrize("bad", [None, 3, "fn", (len,)], ids=repr)
def test_not_callable(stream, bad):
    with pytest.raises(TypeError, match="expects a callable for fn, but got"):
        stream.submit(bad)
    assert stream.query()


def test_no_callable(stream):
    for wrong in (stream.submit, lambda: stream.submit(fn=int)):
        with pytest.raises(TypeError, match="missing required argument 'fn'"):
            wrong()


def test_closed_stream(stream):
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.submit(int)


def test_the_stream_may_go_before_its_callables(backend):
    go, seen = threading.Event(), []
    stream = backend.stream()
    stream.submit(go.wait, LONG)
    closed = stream.submit(seen.append, 1)
    last = stream.submit(seen.append, 2)
    stream.close()
    del stream
    gc.collect()
    go.set()
    closed.result(LONG)
    last.result(LONG)
    assert seen == [1, 2]
    backend.synchronize()


def test_nothing_is_kept(stream):
    class Argument:
        def __call__(self, *others):
            return Argument()

    function, argument = Argument(), Argument()
    result = stream.submit(function, argument, argument).result(LONG)
    references = [weakref.ref(o) for o in (function, argument, result)]
    del function, argument, result
    stream.submit(int).result(LONG)
    wait_until(lambda: not any(reference() for reference in references))


def test_reentrant(backend, stream):
    """A callable submits to its own stream, and waits for work on another
    stream."""
    other = backend.stream()

    def function():
        behind = stream.submit(int)
        assert not behind.done()
        return behind, other.submit(divmod, 7, 2).result(LONG)

    behind, result = stream.submit(function).result(LONG)
    assert result == (3, 1)
    assert behind.result(LONG) == 0


def test_chain_of_streams(backend):
    """Each callable waits for the next, so there are as many threads as
    streams."""
    streams = [backend.stream() for _ in range(20)]

    def function(depth):
        if depth == len(streams):
            return depth
        return streams[depth].submit(function, depth + 1).result(LONG)

    assert function(0) == len(streams)


def test_side_by_side(backend):
    """All callables run at the same time, because otherwise none would pass
    the barrier."""
    streams = [backend.stream() for _ in range(64)]
    barrier = threading.Barrier(len(streams))
    futures = [s.submit(barrier.wait, LONG) for s in streams]
    numbers = [f.result(LONG) for f in futures]
    assert sorted(numbers) == list(range(len(streams)))


def test_one_at_a_time_on_a_stream(stream):
    inside, most = 0, 0

    def function():
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.0005)
        inside -= 1

    for _ in range(50):
        stream.submit(function)
    stream.synchronize()
    assert most == 1


def test_a_thread_is_made_for_a_stream_not_for_a_callable(run_python):
    code = """
import pystreams, threading
def threads():
    names = [thread.name for thread in threading.enumerate()]
    return sum(name.startswith("pystreams-") for name in names)
stream, other = pystreams.Stream("cpu"), pystreams.Stream("cpu")
for _ in range(3):
    for future in [stream.submit(int) for _ in range(1000)]:
        future.result()
one = threads()
for _ in range(1000):
    other.submit(int)
stream.submit(int).result()
other.synchronize()
print(one, threads() <= 2)
"""
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("1 True\n", "")


def test_submitted_from_many_threads(backend):
    streams = [backend.stream() for _ in range(4)]
    counts = [0] * len(streams)

    def advance(index):
        counts[index] += 1

    def work():
        for turn in range(200):
            index = turn % len(streams)
            streams[index].submit(advance, index)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream in streams:
        stream.synchronize()
    assert counts == [400] * len(streams)


def test_callbacks(stream, block):
    seen = []
    future = stream.submit(int)
    future.add_done_callback(lambda f: seen.append((1, f.result())))
    block.release()
    future.result(LONG)
    wait_until(lambda: seen)
    future.add_done_callback(lambda f: seen.append((2, f.result())))
    assert seen == [(1, 0), (2, 0)]


def test_a_callback_may_wait_for_anything(backend, stream, block):
    """A callback may even wait for work behind the callable, on its stream or
    on another one."""
    other, seen = backend.stream(), []

    def callback(_):
        seen.append(behind.result(LONG))
        seen.append(other.submit(int).result(LONG))
        stream.synchronize(LONG)
        seen.append("synchronized")

    behind = stream.submit(str)
    block.future.add_done_callback(callback)
    block.release()
    wait_until(lambda: len(seen) == 3)
    assert seen == ["", 0, "synchronized"]


@pytest.mark.parametrize(
    "wait",
    [
        lambda backend, stream, event: stream.synchronize(),
        lambda backend, stream, event: stream.synchronize(timeout=0.01),
        lambda backend, stream, event: event.synchronize(),
        lambda backend, stream, event: backend.synchronize(),
        lambda backend, stream, event: pystreams.wait([stream]),
        lambda backend, stream, event: next(
            iter(pystreams.as_completed([event]))
        ),
        lambda backend, stream, event: backend.empty(8).copy_(
            bytes(8), stream=stream
        ),
    ],
    ids=[
        "stream",
        "stream with a timeout",
        "event",
        "device",
        "wait",
        "as_completed",
        "copy",
    ],
)
def test_a_callable_cannot_wait_for_itself(backend, stream, block, wait):
    after = backend.event()
    future = stream.submit(lambda: wait(backend, stream, after))
    after.record(stream)
    block.release()
    error = future.exception(LONG)
    assert type(error) is RuntimeError
    assert "a callable cannot wait for the stream that it runs" in str(error)
    stream.synchronize()


def test_what_a_callable_may_wait_for(backend, stream):
    other = backend.stream()
    before = stream.record_event()

    def function():
        before.synchronize()
        assert before.query()
        other.submit(int).result(LONG)
        other.synchronize()
        other.record_event().synchronize(timeout=LONG)
        target = backend.empty(8)
        return target.copy_(bytes(range(8)), stream=other).tobytes()

    assert stream.submit(function).result(LONG) == bytes(range(8))


def test_a_callable_looks_at_what_its_stream_wrote(engine):
    """The export of a Buffer waits for all streams that use it.  In a
    callable, it does not wait for the callable's own stream."""
    stream, memory = engine.stream(), pystreams.empty(8, device="cpu")
    if engine.name != "cpu":
        pytest.skip(f"{engine}: only host memory is waited for")
    engine.sleep(stream, 10)
    memory.fill_(3, stream=stream)
    view = stream.submit(lambda: pystreams.from_dlpack(memory.__dlpack__()))
    assert view.result(LONG).tobytes() == b"\3" * 8


def test_of_a_failed_stream(faulty):
    stream, ran = faulty.stream(), []
    _C.fail(stream, 719)
    for _ in range(2):
        error = stream.submit(ran.append, 1).exception(LONG)
        assert isinstance(error, pystreams.AcceleratorError)
        assert error.error_code == 719
        assert "the work before a callable" in str(error)
    with pytest.raises(pystreams.AcceleratorError):
        stream.synchronize()
    assert ran == []


def test_work_that_fails_behind_it_is_not_its_own(faulty):
    stream = faulty.stream()
    with faulty.hold(stream):
        future = stream.submit(int)
        _C.fail(stream, 719)
    assert future.result(LONG) == 0
    with pytest.raises(pystreams.AcceleratorError):
        stream.synchronize()


def test_no_gates(run_with_device):
    code = """
import fake_device, pystreams
stream = pystreams.Stream("mtia")
try:
    stream.submit(int)
except NotImplementedError as error:
    print(error)
stream.synchronize()
"""
    done = run_with_device(code, timeout=60)
    assert done.stdout == "the mtia backend does not support Stream.submit\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_queue_waits_for_room(engine, block, stream):
    """More than 65,536 callables are submitted, and another thread makes
    room."""
    timer = threading.Timer(0.2, block.release)
    timer.start()
    futures = [stream.submit(int) for _ in range(66_000)]
    timer.join()
    stream.synchronize()
    assert all(f.result(LONG) == 0 for f in futures)


def test_a_callable_cannot_fill_its_own_queue(engine):
    stream, event = engine.stream(), engine.event()

    def function():
        while True:
            event.record(stream)

    error = stream.submit(function).exception(LONG)
    assert type(error) is RuntimeError
    assert "a callable cannot wait" in str(error)
    stream.synchronize()
    assert event.query()
