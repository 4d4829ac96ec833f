"""`await` for streams and events: a loop needs one descriptor, a wait needs no
thread, and nothing is left when the loop, the wait or the work has ended."""

import asyncio
import contextvars
import gc
import os
import threading
import time
import weakref
from itertools import pairwise

import pytest
from deadlines import LONG

import pystreams
from pystreams import _C, _asyncio


def loops():
    yield pytest.param(asyncio.new_event_loop, id="asyncio")
    try:
        import uvloop
    except ImportError:
        reason = pytest.mark.skip("no uvloop")
        yield pytest.param(None, id="uvloop", marks=reason)
    else:
        yield pytest.param(uvloop.new_event_loop, id="uvloop")


@pytest.fixture(params=loops())
def run(request):
    """Return run(coroutine), which runs the coroutine to its end, on a new
    loop."""

    def run(coroutine):
        loop = request.param()
        try:
            return loop.run_until_complete(asyncio.wait_for(coroutine, LONG))
        finally:
            loop.close()

    return run


@pytest.fixture
def gate(backend):
    """hold(stream) keeps the stream busy.  open() lets all held streams go
    on."""
    go = threading.Event()

    class Gates:
        open = staticmethod(go.set)

        @staticmethod
        def hold(stream):
            stream.submit(go.wait, 4 * LONG)

    yield Gates
    go.set()


def count(folder):
    return len(os.listdir(f"/proc/self/{folder}"))


def test_what_is_done(backend, run):
    """An await of finished work takes no turn of the loop and no
    descriptor."""
    stream, never = backend.stream(), backend.event()
    event = stream.record_event()
    event.synchronize()

    async def main():
        asyncio.get_running_loop().call_soon(turns.append, 1)
        before = count("fd")
        for work in (stream, never, event):
            assert await work is None
        return list(turns), count("fd") - before

    turns = []
    assert run(main()) == ([], 0)


def test_done_needs_no_loop(backend):
    for work in (backend.stream(), backend.event()):
        assert list(work.__await__()) == []


@pytest.mark.parametrize("kind", ["stream", "event"])
def test_pending(backend, run, gate, kind):
    stream = backend.stream()
    gate.hold(stream)
    event = stream.record_event()
    work = stream if kind == "stream" else event

    async def main():
        turns = 0
        task = asyncio.ensure_future(waits())
        while turns < 10:
            await asyncio.sleep(0.001)
            turns += 1
        assert not task.done() and not event.query()
        gate.open()
        assert await task is None
        assert event.query()

    async def waits():
        return await work

    run(main())


def test_outside_a_loop(backend, gate):
    stream = backend.stream()
    gate.hold(stream)
    for work in (stream, stream.record_event()):
        with pytest.raises(RuntimeError, match="no running event loop"):
            list(work.__await__())
    gate.open()
    stream.synchronize()


def test_a_closed_stream(backend, run):
    stream = backend.stream()
    stream.close()

    async def main():
        await stream

    with pytest.raises(ValueError, match="closed"):
        run(main())


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_work_that_fails(faulty, run, when):
    stream, other = faulty.stream(), faulty.stream()
    if when == "meanwhile":
        faulty.sleep(stream, 20)
    _C.fail(stream, 719)
    event = stream.record_event()
    other.wait_event(event)

    async def main():
        for work in (event, stream, other):
            with pytest.raises(pystreams.AcceleratorError) as caught:
                await work
            assert caught.value.error_code == 719
        return await asyncio.gather(stream, event, return_exceptions=True)

    assert [error.error_code for error in run(main())] == [719, 719]


@pytest.mark.unscheduled
def test_a_failure_that_the_object_forgets(faulty, run, gate):
    """The record that is awaited has failed, but the latest record has not."""
    stream, event, good = faulty.stream(), faulty.event(), faulty.stream()
    closed = faulty.stream()
    for failing in (stream, closed):
        gate.hold(failing)
        _C.fail(failing, 719)
    event.record(stream)

    async def main():
        waits = [asyncio.ensure_future(waiting(w)) for w in (event, closed)]
        await asyncio.sleep(0)
        event.record(good)
        closed.close()
        gate.open()
        return await asyncio.gather(*waits, return_exceptions=True)

    async def waiting(work):
        await work

    assert [error.error_code for error in run(main())] == [719, 719]
    assert event.query()


def test_recorded_again_meanwhile(backend, run, gate):
    """The await is for the record that was the latest when it began."""
    first, second, event = backend.stream(), backend.stream(), backend.event()
    backend.sleep(first, 20)
    event.record(first)
    gate.hold(second)

    async def main():
        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        event.record(second)
        await task
        assert not event.query()
        gate.open()
        await event
        assert event.query()

    async def waits():
        await event

    run(main())


def test_ten_thousand(backend, run, gate):
    """Ten thousand awaits need one descriptor and no thread."""
    streams = [backend.stream() for _ in range(10)]
    for stream in streams:
        gate.hold(stream)
    events = [s.record_event() for s in streams for _ in range(100)]
    for stream in streams:
        stream.record_event()

    async def waits(work):
        await work
        return 1

    async def main():
        first = asyncio.ensure_future(waits(events[0]))
        await asyncio.sleep(0)
        before = count("fd"), count("task")
        waiting = [
            asyncio.ensure_future(waits(work))
            for work in (*streams, *events) * 10
        ]
        await asyncio.sleep(0)
        fds, tasks = before
        assert count("fd") <= fds and count("task") <= tasks
        assert not any(task.done() for task in waiting)
        gate.open()
        await first
        return sum(await asyncio.gather(*waiting))

    assert run(main()) == 10_100


def test_cancelled(backend, run, gate):
    """The work, its other awaits and the loop go on."""
    stream = backend.stream()
    gate.hold(stream)
    event = stream.record_event()

    async def waits():
        await event

    async def main():
        other = asyncio.ensure_future(waits())
        for work in (stream, event):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(work, 0.01)
        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not stream.query() and not other.done()
        gate.open()
        await other
        await stream
        assert stream.query() and event.query()

    run(main())


def test_a_full_queue(full, run):
    """An await needs no room in the queue."""
    stream, event, gate = full
    run(left_pending(stream))

    async def main():
        for work in (stream, event):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(work, 0.01)
        with pytest.raises(TimeoutError):
            async for _ in pystreams.as_completed([stream, event], 0.01):
                raise AssertionError
        tasks = [
            asyncio.ensure_future(waiting(work))
            for work in (stream, event, stream)
        ]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in tasks) and not stream.query()
        gate.open()
        await asyncio.gather(*tasks)
        assert event.query()

    run(main())


def test_gather_of_two_types(cuda, run):
    streams = [pystreams.Stream("cpu"), pystreams.Stream("cuda")]

    async def main():
        for stream in streams:
            stream.submit(int)
        return await asyncio.gather(
            *streams, *[stream.record_event() for stream in streams]
        )

    assert run(main()) == [None] * 4


def test_two_loops_in_two_threads(backend, run, gate):
    stream, results = backend.stream(), []
    gate.hold(stream)
    event = stream.record_event()
    ready = threading.Barrier(3)

    async def main():
        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        ready.wait(LONG)
        await task
        await stream
        results.append(event.query())

    async def waits():
        await event

    threads = [threading.Thread(target=run, args=(main(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    ready.wait(LONG)
    gate.open()
    for thread in threads:
        thread.join()
    assert results == [True, True]


async def left_pending(work):
    task = asyncio.ensure_future(waiting(work))
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()


async def waiting(work):
    await work


def test_a_loop_that_is_closed_meanwhile(backend, run, gate):
    stream = backend.stream()
    gate.hold(stream)
    event = stream.record_event()
    for work in (stream, event) * 3:
        run(left_pending(work))
    gate.open()

    async def main():
        await event
        await stream

    run(main())


def test_closed_loops_leave_nothing(backend, run, gate):
    """This holds whether or not something was still awaited on the loop."""
    stream = backend.stream()

    async def ends():
        stream.submit(int)
        await stream

    run(ends())
    gc.collect()
    before = count("fd"), count("task")
    for _ in range(25):
        run(ends())
    gate.hold(stream)
    event = stream.record_event()
    for _ in range(25):
        run(left_pending(event))
    gate.open()
    stream.synchronize()
    gc.collect()
    waiter = _C.Waiter()
    waiter.register(event, 0)
    waiter.wait(LONG)
    fds, tasks = before
    assert count("fd") <= fds + 1
    assert count("task") <= tasks + 1


def test_a_task_that_nobody_keeps(backend, run, gate):
    """A task that waits for work is not collected before the work is done."""
    stream, seen = backend.stream(), []
    gate.hold(stream)

    async def waits():
        await stream
        seen.append(1)

    async def main():
        asyncio.get_running_loop().create_task(waits())
        await asyncio.sleep(0)
        gc.collect()
        gate.open()
        while not seen:
            await asyncio.sleep(0.001)

    run(main())


# ---- as_completed ----


def test_as_completed(trio, run):
    objects, gates = trio

    async def main():
        order, found = [2, 0, 1], []
        gates[order[0]].set()
        async for work in pystreams.as_completed(objects, LONG):
            found.append(objects.index(work))
            if len(found) < 3:
                gates[order[len(found)]].set()
        return found

    assert run(main()) == [2, 0, 1]


def test_as_completed_is_late(trio, run):
    objects, gates = trio

    async def main():
        async for _ in pystreams.as_completed(objects, 0.02):
            raise AssertionError

    with pytest.raises(TimeoutError, match=r"3 \(of 3\) objects unfinished"):
        run(main())
    assert not objects[2].cancelled()
    gates[2].set()
    assert objects[2].result(LONG) == (3, 1)


def test_as_completed_with_failures(faulty, run, gate, caplog):
    """The objects raise their failures themselves.  The loop reports none, for
    objects that were waited for or not."""
    failing, later = faulty.stream(), faulty.stream()
    gate.hold(later)
    faulty.sleep(failing, 5)
    _C.fail(failing, 719)
    _C.fail(later, 719)
    future = later.submit(int)

    async def main():
        async for work in pystreams.as_completed([later, future, failing]):
            with pytest.raises(pystreams.AcceleratorError):
                work.synchronize()
            break
        gate.open()
        await asyncio.sleep(0.05)
        return work

    assert run(main()) is failing
    assert isinstance(future.exception(LONG), pystreams.AcceleratorError)
    gc.collect()
    assert caplog.records == []


def test_as_completed_cancelled(trio, run):
    """Cancelling as_completed() does not affect the work and the callables."""
    objects, gates = trio

    async def waits():
        async for _ in pystreams.as_completed(objects):
            raise AssertionError

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waits(), 0.02)

    run(main())
    assert not objects[2].cancelled()
    gates[2].set()
    assert objects[2].result(LONG) == (3, 1)


class Interrupting(asyncio.Future):
    """When the first of these futures gets its result, Ctrl-C comes."""

    come = False

    def set_result(self, result):
        if not Interrupting.come:
            Interrupting.come = True
            raise KeyboardInterrupt
        super().set_result(result)


def test_ctrl_c_loses_no_wait(backend, gate, monkeypatch):
    """The loop may be run again, and then reports all waits."""
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(Interrupting, "come", False)
    monkeypatch.setattr(loop, "create_future", lambda: Interrupting(loop=loop))
    streams = [backend.stream() for _ in range(5)]
    for stream in streams:
        gate.hold(stream)
    waits = [loop.create_task(waiting(stream)) for stream in streams]

    async def main():
        await asyncio.sleep(0)
        gate.open()
        for stream in streams:
            stream.synchronize()
        await asyncio.gather(*waits)

    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(main())
        loop.run_until_complete(asyncio.wait(waits, timeout=LONG))
        assert all(task.done() for task in waits)
    finally:
        loop.close()


def test_a_message_for_nobody(backend, gate):
    """A message without a waiting task is ignored.  Ctrl-C leaves one if it
    comes while a wait begins."""
    stream = backend.stream()
    gate.hold(stream)

    async def main():
        task = asyncio.ensure_future(waiting(stream))
        await asyncio.sleep(0)
        state = _asyncio._states[asyncio.get_running_loop()]()
        state.waiter.post(10**6)
        gate.open()
        stream.synchronize()
        await task

    asyncio.run(asyncio.wait_for(main(), LONG))


def test_a_cancelled_wait_leaves_nothing(backend, gate):
    """Immediately after the cancellation, no registration is left, neither in
    the package nor in the backend."""
    stream = backend.stream()
    gate.hold(stream)
    event = stream.record_event()

    async def main():
        tasks = [
            asyncio.ensure_future(waiting(work)) for work in (stream, event)
        ]
        await asyncio.sleep(0)
        state = _asyncio._states[asyncio.get_running_loop()]()
        assert len(state._receivers) == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not state._receivers
        async for _ in pystreams.as_completed([backend.stream(), event]):
            break
        await asyncio.sleep(0.01)
        assert not state._receivers
        gate.open()
        await stream
        return state.waiter.wait(0.02)

    assert asyncio.run(asyncio.wait_for(main(), LONG)) == []


def test_as_completed_keeps_the_order(backend, run):
    """Work that ends while the loop is busy is also yielded in the order in
    which it ended."""
    streams = [backend.stream() for _ in range(12)]
    # On a GPU, work that ends between two polls is reported in any order.
    step = 2 if backend.on_engine else 8
    for before, stream in pairwise([None, *streams]):
        if before is not None:
            stream.wait_stream(before)
        backend.sleep(stream, step)

    async def main():
        order = []
        async for stream in pystreams.as_completed(streams):
            if not order:
                time.sleep(0.05)
            order.append(streams.index(stream))
        return order

    assert run(main()) == list(range(12))


def test_a_loop_that_is_gone_keeps_no_descriptor(backend, gate):
    """The descriptor is closed although the work that the loop waited for goes
    on."""
    stream = backend.stream()
    gate.hold(stream)

    async def main():
        task = asyncio.ensure_future(waiting(stream))
        await asyncio.sleep(0)
        del task

    gc.collect()
    before = count("fd")
    for _ in range(5):
        asyncio.run(main())
    gc.collect()
    assert count("fd") == before


def test_the_loop_keeps_no_context(run, stream):
    """The first task that awaits ends before the loop does."""
    variable = contextvars.ContextVar("variable")

    class Value:
        pass

    async def first():
        value = Value()
        variable.set(value)
        stream.submit(time.sleep, 0.02)
        await stream
        return weakref.ref(value)

    async def main():
        value, tries = await asyncio.create_task(first()), 0
        # The callable's own context lives until its thread has dropped it.
        while value() is not None and tries < 50:
            await asyncio.sleep(0.02)
            gc.collect()
            tries += 1
        return value()

    assert run(main()) is None
