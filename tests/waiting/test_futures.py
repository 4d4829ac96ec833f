"""The Futures that `Stream.submit` returns: how concurrent.futures and asyncio
use them, and that each one completes."""

import ast
import asyncio
import concurrent.futures
import contextlib
import copy
import gc
import inspect
import pickle
import threading
import time
import weakref
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION

import pytest
from deadlines import LONG, wait_until
from gil import FREE

from pystreams._futures import StreamFuture


def fail():
    raise ValueError("no")


def test_it_is_a_future(stream, block):
    future = stream.submit(int)
    assert isinstance(future, concurrent.futures.Future)
    assert isinstance(future, StreamFuture)
    assert repr(future).startswith("<StreamFuture at 0x")
    assert "state=pending" in repr(future)
    for ask in (future.result, future.exception):
        for timeout in (0.01, 0, -1):
            with pytest.raises(concurrent.futures.TimeoutError):
                ask(timeout=timeout)
    assert not future.done() and not future.running()
    block.release()
    assert future.result(LONG) == 0
    # Without the GIL, the state that repr() reads may be set only after the
    # result.
    concurrent.futures.wait([future], LONG)
    assert "state=finished returned int" in repr(future)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = future.other
    future.other = 3
    assert future.other == 3


@pytest.mark.parametrize(
    ("timeout", "error"),
    [("1", TypeError), ((1,), TypeError), (float("nan"), ValueError)],
    ids=repr,
)
def test_a_wrong_timeout(stream, timeout, error):
    future = stream.submit(int)
    for ask in (future.result, future.exception):
        with pytest.raises(error, match="expects a number of seconds"):
            ask(timeout)
    assert future.result(LONG) == 0


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, pickle.dumps],
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("done", [False, True], ids=["pending", "done"])
def test_it_is_not_copied(stream, block, copied, done):
    """A copy of the Future would never complete."""
    future = stream.submit(int)
    if done:
        block.release()
        future.result(LONG)
    with pytest.raises(TypeError, match="cannot copy or pickle a StreamFut"):
        copied(future)


def test_its_callable_alone_settles_it(stream, block):
    future = stream.submit(int)
    for settle in (
        future.set_running_or_notify_cancel,
        lambda: future.set_result("mine"),
        lambda: future.set_exception(ValueError()),
    ):
        with pytest.raises(RuntimeError, match="only its callable settles"):
            settle()
    assert not future.running() and not future.done()
    block.release()
    assert future.result(LONG) == 0


def test_what_it_relies_on():
    """StreamFuture has all attributes of Future.  If a new Python adds one,
    this test fails: find out what it is for."""
    theirs = concurrent.futures.Future
    ours = set().union(*map(vars, StreamFuture.__mro__[:2]))
    assert set(vars(theirs())) < ours
    inherited = {
        name for name, value in vars(theirs).items() if callable(value)
    } - ours
    assert inherited - {"_get_snapshot"} == {
        "__repr__",
        "_Future__get_result",
        "_invoke_callbacks",
    }


def test_with_what_takes_futures(backend, block, stream):
    futures = [stream.submit(divmod, i, 2) for i in range(5)]
    done, pending = concurrent.futures.wait(futures, timeout=0.01)
    assert (done, pending) == (set(), set(futures))
    block.release()
    done, pending = concurrent.futures.wait(futures, LONG)
    assert (done, pending) == (set(futures), set())
    others = [backend.stream().submit(int) for _ in range(5)]
    assert set(concurrent.futures.as_completed(others, LONG)) == set(others)


@pytest.mark.parametrize(
    "when", [ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION]
)
def test_waits_while_they_become_done(backend, when):
    """No Future is counted twice, and none is missed."""
    streams = [backend.stream() for _ in range(4)]
    for turn in range(200):
        futures = [
            stream.submit(fail if turn % 5 == number else int)
            for number, stream in enumerate(streams)
        ]
        done, pending = concurrent.futures.wait(futures, LONG, when)
        assert done | pending == set(futures) and not done & pending
        assert all(future.done() for future in done)
        if when == ALL_COMPLETED or (when != FIRST_COMPLETED and turn % 5 > 3):
            assert done == set(futures)
        else:
            assert done
        assert set(concurrent.futures.as_completed(futures, LONG)) == set(
            futures
        )


def test_one_that_is_cancelled_is_done_at_once(stream, block):
    """The Future is done although its turn has not come."""
    seen = []
    future, other = stream.submit(seen.append, 1), stream.submit(int)
    future.add_done_callback(seen.append)

    def result():
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(LONG)
        seen.append("cancelled")

    def wait():
        seen.append(concurrent.futures.wait([future], LONG))

    def as_completed():
        both = concurrent.futures.as_completed([future, other], LONG)
        seen.append(next(both))

    waits = (result, wait, as_completed)
    threads = [threading.Thread(target=function) for function in waits]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(future._waiters) == 2)
    assert future.cancel()
    for thread in threads:
        thread.join()
    assert not other.done()
    assert len(seen) == 4 and seen.count(future) == 2
    assert ({future}, set()) in seen and "cancelled" in seen
    assert "state=cancelled" in repr(future)
    block.release()
    assert other.result(LONG) == 0
    assert len(seen) == 4


# ---- Who holds its _condition ----


def left_held(future):
    """Leave the Future's condition locked, as Ctrl-C in wait() of
    concurrent.futures may."""
    thread = threading.Thread(target=future._condition.acquire)
    thread.start()
    thread.join()


def test_a_condition_that_is_left_held(backend, stream, block):
    """Neither the Future's stream nor other callables wait, and the Future
    becomes done."""
    futures = [stream.submit(int), stream.submit(fail), stream.submit(str)]
    cancelled, behind = futures[2], stream.submit(int)
    for future in futures:
        left_held(future)
    block.release()
    assert cancelled.cancel()
    assert behind.result(LONG) == 0
    stream.synchronize(timeout=LONG)
    assert futures[0].result(LONG) == 0
    assert isinstance(futures[1].exception(LONG), ValueError)
    done, pending = concurrent.futures.wait(futures, LONG)
    assert (done, pending) == (set(futures), set())


def test_what_holds_its_condition_sees_no_change(stream, block):
    future = stream.submit(int)
    states, called = [], []
    future.add_done_callback(lambda f: called.append(f._state))
    with future._condition:
        block.release()
        # A thread that does not hold the condition does not wait for it
        # either.
        assert future.result(LONG) == 0 and future.done()
        for _ in range(10):
            states.append(future._state)
            time.sleep(0.001)
    assert set(states) <= {"PENDING", "RUNNING"}
    done, _ = concurrent.futures.wait([future], LONG)
    assert done == {future} and future._state == "FINISHED"
    wait_until(lambda: called)
    assert called == ["FINISHED"]


def test_a_condition_that_nobody_holds(stream):
    future = stream.submit(int)
    with pytest.raises(RuntimeError, match="that nothing holds"):
        future._condition.release()
    assert future.result(LONG) == 0


@pytest.mark.parametrize("count", [1, 16, 17, 100])
def test_many_waiters_and_callbacks(stream, block, count):
    class Waiter:
        def __init__(self):
            self.got = []

        def add_result(self, future):
            self.got.append(future)
            # Remove the waiter, as wait() does when it ends.
            future._waiters.remove(self)

    future, called = stream.submit(int), []
    waiters = [Waiter() for _ in range(count)]
    future._waiters.extend(waiters)
    for number in range(count):
        future.add_done_callback(
            lambda f, number=number: called.append(number)
        )
    block.release()
    wait_until(lambda: len(called) == count)
    assert called == list(range(count))
    assert all(waiter.got == [future] for waiter in waiters)
    assert future._waiters == []


# ---- Callbacks ----


def test_a_callback_that_raises(stream, block, caplog):
    """The exception is logged as for any Future, and the callbacks behind it
    are called."""
    future, called = stream.submit(int), []
    future.add_done_callback(lambda f: 1 / 0)
    future.add_done_callback(called.append)
    block.release()
    wait_until(lambda: called)
    future.add_done_callback(lambda f: 1 / 0)
    assert called == [future]
    assert [record.name for record in caplog.records] == [
        "concurrent.futures"
    ] * 2
    for record in caplog.records:
        assert "exception calling callback for <Str" in record.getMessage()
        assert record.exc_info[0] is ZeroDivisionError


def test_a_callback_that_exits(stream, block):
    """cancel() raises the callback's exception, once all callbacks were
    called."""
    future, called = stream.submit(int), []

    def interrupt(future):
        raise KeyboardInterrupt

    future.add_done_callback(interrupt)
    future.add_done_callback(called.append)
    with pytest.raises(KeyboardInterrupt):
        future.cancel()
    assert called == [future] and future.cancelled()


def test_run_in_executor(backend, stream):
    async def main():
        loop = asyncio.get_running_loop()
        results = await asyncio.gather(
            loop.run_in_executor(stream, divmod, 7, 2),
            loop.run_in_executor(backend.stream(), int),
            asyncio.wrap_future(stream.submit(str)),
        )
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(stream, divmod, 7, 0)
        return results

    assert asyncio.run(main()) == [(3, 1), 0, ""]


def test_await(stream, block):
    """Awaiting gives a result or an exception, also when the Future is done
    already."""

    async def main():
        good, bad = stream.submit(divmod, 7, 2), stream.submit(divmod, 7, 0)
        asyncio.get_running_loop().call_soon(block.release)
        for _ in range(2):
            assert await good == (3, 1)
            with pytest.raises(ZeroDivisionError):
                await bad

    asyncio.run(main())


def test_await_of_an_exhausted_iterator(stream, block):
    """StopIteration cannot leave a coroutine, so RuntimeError does."""

    async def main():
        future = stream.submit(next, iter(()))
        asyncio.get_running_loop().call_soon(block.release)
        for _ in range(2):
            with pytest.raises(RuntimeError) as caught:
                await asyncio.wait_for(future, LONG)
            assert isinstance(caught.value.__cause__, StopIteration)

    asyncio.run(main())


@pytest.mark.parametrize("early", [False, True], ids=["meanwhile", "before"])
def test_await_of_what_is_cancelled(stream, block, early):
    async def main():
        future = stream.submit(int)
        if early:
            future.cancel()
        else:
            asyncio.get_running_loop().call_soon(future.cancel)
        with pytest.raises(asyncio.CancelledError):
            await future

    asyncio.run(main())


def test_an_await_that_is_cancelled_leaves_no_callback(stream, block):
    async def main():
        running = block.future
        wait_until(running.running)
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(running, 0.01)
        return running._done_callbacks

    assert asyncio.run(main()) == []


@pytest.mark.skipif(
    FREE,
    reason="without the GIL, objects of another thread are freed later",
)
def test_an_awaited_exception_is_in_no_cycle(stream, block):
    class Local:
        pass

    async def main():
        local = Local()
        asyncio.get_running_loop().call_soon(block.release)
        with contextlib.suppress(ValueError):
            await stream.submit(int, "x")
        return weakref.ref(local)

    gc.collect()
    gc.disable()
    try:
        local = asyncio.run(main())
        # The callable's thread may have the exception a little longer.
        wait_until(lambda: local() is None)
    finally:
        gc.enable()


@pytest.mark.parametrize("shielded", [False, True])
def test_an_await_that_is_cancelled(stream, block, shielded):
    async def main():
        future = stream.submit(int)
        work = asyncio.shield(future) if shielded else future
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(work, 0.01)
        block.release()
        await stream
        return future

    assert asyncio.run(main()).cancelled() is not shielded


def test_an_await_that_is_cancelled_cancels_the_callable(stream, block):
    ran = []

    async def main():
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(stream, ran.append, 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future, 0.01)

    asyncio.run(main())
    block.release()
    stream.synchronize()
    assert ran == []


def unguarded(tree):
    """Return where functions use a Future's list of waiters or its state, or
    call a function that does, outside of `with` on its _condition."""
    found = []

    def visit(node, function, held):
        if isinstance(node, ast.With):
            contexts = " ".join(map(ast.unparse, node.items))
            held = held or "_condition" in contexts or "Acquire" in contexts
        if isinstance(node, ast.Attribute) and not held:
            found.extend([function] * (node.attr in ("_waiters", "_state")))
        if isinstance(node, ast.Call) and not held:
            found.extend([function] * (ast.unparse(node.func) in INSIDE))
        for child in ast.iter_child_nodes(node):
            visit(child, function, held)

    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            visit(node, node.name, node.name in INSIDE)
    return found


# Functions that are called within `with` on the _condition of each Future.
INSIDE = {"_create_and_install_waiters"}


def test_this_python_uses_futures_within_their_condition():
    """wait() and as_completed() rely on the condition, and so does
    FutureLock."""
    source = inspect.getsource(concurrent.futures._base)
    assert "_create_and_install_waiters(" in source
    assert unguarded(ast.parse(source)) == []
    bare = source.replace("with _AcquireFutures(fs):", "if fs:")
    assert set(unguarded(ast.parse(bare))) == {"as_completed", "wait"}


@pytest.mark.skipif(
    FREE,
    reason="without the GIL, objects of another thread are freed later",
)
def test_the_result_of_one_that_is_being_collected(backend, stream):
    """A weak reference's callback may find a Future whose references the
    garbage collector has cleared already."""
    found, kept, ours = [], [], set()

    def look(_):
        for future in gc.get_objects():
            # A freed Future's address may be another object's.
            if id(future) in ours and isinstance(future, StreamFuture):
                found.append(future.result())

    def make():
        # The collector does not know Buffers, so they die while it clears.
        result = backend.empty(8)
        kept.append(weakref.ref(result, look))
        return result

    gc.disable()
    try:
        futures = [stream.submit(make) for _ in range(6)]
        stream.synchronize()
        ours.update(map(id, futures))
        cycle = list(futures)
        for future in futures:
            # The collector clears a Future before its list.
            future.cycle = [cycle]
        del future, futures, cycle
        gc.collect()
    finally:
        gc.enable()
    assert None in found
