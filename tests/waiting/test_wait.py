"""`wait` and `as_completed`: several streams, events and Futures at once."""

import concurrent.futures
import contextlib
import functools
import gc
import linecache
import os
import select
import sys
import threading
import weakref

import pytest
from deadlines import LONG

import pystreams
from pystreams import _C, as_completed, wait


def listed(objects):
    return sorted(map(id, objects))


def test_all(trio):
    objects, gates = trio
    for gate in gates:
        gate.set()
    done, not_done = wait(objects)
    assert listed(done) == listed(objects)
    assert not_done == set()


def test_the_result_has_names(trio):
    objects, gates = trio
    gates[1].set()
    result = wait(objects, return_when="FIRST_COMPLETED")
    assert result.done == result[0] == {objects[1]}
    assert result.not_done == result[1] == {objects[0], objects[2]}
    assert repr(result).startswith("DoneAndNotDone(done={<pystreams.")


@pytest.mark.parametrize("first", [0, 1, 2], ids=["stream", "event", "future"])
def test_first(trio, first):
    objects, gates = trio
    gates[first].set()
    done, not_done = wait(objects, return_when="FIRST_COMPLETED")
    assert done == {objects[first]}
    assert listed(not_done | done) == listed(objects)


@pytest.mark.parametrize("timeout", [0, -1, 0.01, 0.06], ids=repr)
def test_timeout(trio, timeout):
    objects, gates = trio
    done, not_done = wait(objects, timeout)
    assert (done, listed(not_done)) == (set(), listed(objects))
    gates[0].set()
    gates[2].set()
    done, not_done = wait(objects, LONG, "FIRST_COMPLETED")
    assert done and objects[1] in not_done
    gates[1].set()
    assert wait(objects, timeout=LONG).not_done == set()


def test_polling_leaves_nothing_behind(trio):
    """There are more polls than a stream's queue has places."""
    objects, _ = trio
    for _ in range(70_000):
        assert not wait(objects, 0).done
    assert not objects[2]._done_callbacks
    assert objects[0].record_event()


def test_nothing():
    assert wait([]) == (set(), set())
    assert list(as_completed([])) == []


def test_what_is_done_already(backend):
    stream = backend.stream()
    never, event = backend.event(), stream.record_event()
    stream.synchronize()
    future = concurrent.futures.Future()
    future.set_result(1)
    objects = [stream, never, event, future]
    for how in ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"):
        assert len(wait(objects, 0, how).done) >= 1
    assert wait(objects, 0) == (set(objects), set())
    assert set(as_completed(objects, timeout=0)) == set(objects)


def test_each_once(trio):
    objects, gates = trio
    for gate in gates:
        gate.set()
    assert len(wait(objects * 3).done) == 3
    assert listed(as_completed(iter(objects * 3))) == listed(objects)


@pytest.mark.parametrize("bad", [None, 3, "cpu", object], ids=repr)
def test_what_cannot_be_waited_for(backend, bad):
    for use in (wait, as_completed):
        with pytest.raises(TypeError, match="Streams, Events and Futures for"):
            use([backend.stream(), bad])
    with pytest.raises(TypeError):
        wait(backend.stream())


def test_bad_arguments(backend):
    with pytest.raises(ValueError, match="for return_when, but got 'ONE'"):
        wait([], return_when="ONE")
    closed = backend.stream()
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        wait([closed])
    for use in (wait, as_completed):
        with pytest.raises(TypeError, match="None for timeout, but got str"):
            use([backend.stream()], timeout="1")
        with pytest.raises(ValueError, match="for timeout, but got nan"):
            use([backend.stream()], timeout=float("nan"))


def test_first_exception(backend, trio):
    objects, gates = trio

    def fails():
        raise ValueError

    failing = backend.stream().submit(fails)
    done, not_done = wait([*objects, failing], LONG, "FIRST_EXCEPTION")
    assert (done, len(not_done)) == ({failing}, 3)
    for gate in gates:
        gate.set()
    assert wait(objects, LONG, "FIRST_EXCEPTION").not_done == set()


def test_cancelled_is_done_and_no_exception(trio):
    objects, _ = trio
    assert objects[2].cancel()
    done, not_done = wait(objects, 0.01, "FIRST_EXCEPTION")
    assert (done, len(not_done)) == ({objects[2]}, 2)


def test_work_that_failed_is_done(faulty, trio):
    objects, _ = trio
    stream = faulty.stream()
    _C.fail(stream, 719)
    event = stream.record_event()
    failed = [stream, event]
    assert listed(wait(failed, LONG).done) == listed(failed)
    done, not_done = wait([*objects, *failed], LONG, "FIRST_EXCEPTION")
    assert done and done <= set(failed)
    assert set(objects) <= not_done
    for work in failed:
        with pytest.raises(pystreams.AcceleratorError):
            work.synchronize()


def test_the_work_at_the_call(backend):
    """wait() does not wait for work that a stream gets later, or for later
    records."""
    stream, other, event = backend.stream(), backend.stream(), backend.event()
    first, second = threading.Event(), threading.Event()
    stream.submit(first.wait, LONG)
    event.record(stream)

    class More(concurrent.futures.Future):
        """A Future that gives the stream more work when the wait has begun for
        the objects before it."""

        def add_done_callback(self, function):
            super().add_done_callback(function)
            stream.submit(second.wait, 4 * LONG)
            event.record(stream)
            first.set()
            self.set_result(None)

    try:
        assert wait([stream, event, More()], LONG).not_done == set()
        assert not stream.query() and not event.query()
    finally:
        second.set()
    other.wait_event(event)
    other.synchronize()


def test_as_completed(trio):
    objects, gates = trio
    iterator = iter(as_completed(objects, timeout=LONG))
    for index in (1, 2, 0):
        gates[index].set()
        assert next(iterator) is objects[index]
    assert list(iterator) == []


def test_a_future_that_was_not_taken_is_freed():
    """It is done when the loop ends, and keeps its callback."""

    class Result:
        pass

    one, other = concurrent.futures.Future(), concurrent.futures.Future()
    result = weakref.ref(other)
    iterator = iter(as_completed([one, other]))
    one.set_result(1)
    assert next(iterator) is one
    other.set_result(Result())
    iterator.close()
    del one, other, iterator
    gc.collect()
    assert result() is None


def test_as_completed_is_late(trio):
    objects, gates = trio
    gates[0].set()
    objects[0].synchronize()
    iterator = iter(as_completed(objects, timeout=0.05))
    assert next(iterator) is objects[0]
    with pytest.raises(TimeoutError, match=r"2 \(of 3\) objects unfinished"):
        next(iterator)


def test_many_at_once(backend):
    streams = [backend.stream() for _ in range(20)]
    events = [s.record_event() for s in streams for _ in range(20)]
    futures = [s.submit(int) for s in streams]
    objects = [*streams, *events, *futures]
    assert listed(as_completed(objects, LONG)) == listed(objects)
    assert wait(objects, LONG).not_done == set()


def test_two_types_at_once(cuda):
    objects = [pystreams.Stream(kind) for kind in ("cpu", "cuda")]
    objects += [stream.record_event() for stream in objects]
    assert listed(wait(objects, LONG).done) == listed(objects)


def test_more_notifications_than_a_queue_holds(engine):
    """The notifications are for one stream, and for an event that it
    recorded."""
    stream, event = engine.stream(), engine.event()
    waiter = _C.Waiter()
    with engine.hold(stream):
        event.record(stream)
        for token in range(40_000):
            waiter.register(event, token)
            waiter.register(stream, token + 40_000)
        assert waiter.take() == []
    messages = []
    while len(messages) < 80_000:
        messages += waiter.wait(LONG)
    assert sorted(messages) == [(token, 0) for token in range(80_000)]


def test_a_full_queue(full, trio):
    """A full queue holds up neither the time limit nor the other objects."""
    stream, event, gate = full
    objects, gates = trio
    for timeout in (0, 0.001, 0.01, 0.01):
        done, not_done = wait([stream, event], timeout)
        assert (done, not_done) == (set(), {stream, event})
    with pytest.raises(TimeoutError):
        list(as_completed([stream], 0.01))
    gates[2].set()
    done, not_done = wait([stream, *objects], LONG, "FIRST_COMPLETED")
    assert done == {objects[2]} and stream in not_done
    assert not stream.query()
    opener = threading.Timer(0.05, gate.open)
    opener.start()
    assert wait([stream, event], LONG).not_done == set()
    opener.join()
    assert event.query()
    assert set(as_completed([stream, event], LONG)) == {stream, event}


# ---- The box below ----


def test_waiter(backend):
    waiter, stream = _C.Waiter(), backend.stream()
    assert waiter.take() == [] == waiter.wait(0) == waiter.wait(timeout=0.01)
    waiter.register(stream, 7)
    waiter.post(2**64 - 1)
    messages = waiter.wait(LONG)
    if len(messages) == 1:
        messages += waiter.wait(LONG)
    assert sorted(messages) == [(7, 0), (2**64 - 1, 0)]
    waiter.register(stream.device, 9)
    assert waiter.wait(LONG) == [(9, 0)]
    for wrong in (-1, 2**64, "7"):
        with pytest.raises((TypeError, OverflowError)):
            waiter.post(wrong)
        with pytest.raises((TypeError, OverflowError)):
            waiter.expect(wrong)
        with pytest.raises((TypeError, OverflowError)):
            waiter.cancel(wrong)
    for wrong in [(), (1, None, None)]:
        with pytest.raises(TypeError, match="1 or 2 arguments"):
            waiter.post(*wrong)
    with pytest.raises(TypeError, match="at most 1 argument"):
        waiter.cancel(1, 2)
    with pytest.raises(TypeError):
        waiter.register(3, 1)


def test_a_waiter_of_a_full_queue(full):
    stream, event, gate = full
    waiter = _C.Waiter()
    waiter.register(stream, 1)
    waiter.register(event, 2)
    assert waiter.take() == []
    gate.open()
    messages = waiter.wait(LONG)
    while len(messages) < 2:
        messages += waiter.wait(LONG)
    assert messages == [(2, 0), (1, 0)]


def test_a_waiter_takes_back(backend):
    """cancel() drops messages that have come and those that are still to come,
    of one token or of all tokens."""
    waiter, stream, done = _C.Waiter(), backend.stream(), backend.stream()
    with backend.hold(stream):
        event = stream.record_event()
        for token in (1, 2, 3):
            waiter.register(stream, token)
            waiter.register(event, token)
            waiter.expect(token)
            waiter.post(token)
            waiter.register(done, token)
            waiter.expect(token)
        waiter.cancel(2)
        waiter.cancel(4)
        came = waiter.wait(LONG)
        assert sorted(came) == [(1, 0)] * 2 + [(3, 0)] * 2
        waiter.cancel(1)
    messages = []
    while len(messages) < 2:
        messages += waiter.wait(LONG)
    assert messages == [(3, 0)] * 2
    waiter.post(3)
    waiter.register(stream, 5)
    waiter.cancel()
    assert waiter.wait(0.02) == []
    waiter.post(3)
    assert waiter.wait(LONG) == [(3, 0)]


def take_with_one_failure(waiter, start):
    """Take the messages while one allocation fails; return None if it did."""
    memory = pytest.importorskip("_testcapi", reason="needs _testcapi")
    try:
        memory.set_nomemory(start, start + 1)
        return waiter.take()
    except MemoryError:
        return None
    finally:
        memory.remove_mem_hooks()


def test_a_waiter_that_runs_out_of_memory():
    """The Waiter loses no message, and its descriptor stays readable."""
    waiter, messages = _C.Waiter(), None
    fd, start = waiter.fileno(), 0
    while messages is None:
        for token in range(1000, 1005):
            waiter.post(token)
        messages = take_with_one_failure(waiter, start)
        if messages is None:
            assert select.select([fd], [], [], 0)[0] == [fd]
            waiter.post(1005)
            again = waiter.take()
            assert again == [(token, 0) for token in range(1000, 1006)]
            start += 1
    assert messages == again[:-1]
    # CPython 3.14 keeps freed ints and tuples.
    assert start > 1


def test_a_token_that_is_expected_needs_no_memory():
    """This holds even for more tokens than there was room for at first."""
    memory = pytest.importorskip("_testcapi", reason="needs _testcapi")
    waiter, posts = _C.Waiter(), []
    for token in range(1000, 1100):
        waiter.expect(token)
        posts.append(functools.partial(waiter.post, token))
    future, left = concurrent.futures.Future(), iter(posts)
    memory.set_nomemory(0)
    try:
        for post in left:
            post(future)
    finally:
        memory.remove_mem_hooks()
    assert waiter.take() == [(token, 0) for token in range(1000, 1100)]


def test_a_waiters_descriptor(backend):
    def readable():
        return select.select([fd], [], [], 0)[0] == [fd]

    waiter = _C.Waiter()
    waiter.post(1)
    fd = waiter.fileno()
    assert fd == waiter.fileno() and not os.get_inheritable(fd)
    assert readable()
    assert waiter.take() == [(1, 0)]
    assert not readable()
    for _ in range(100):
        waiter.post(2)
    assert readable()
    assert len(waiter.take()) == 100
    assert not readable()
    del waiter
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_waiter_may_go_before_its_messages(backend):
    stream = backend.stream()
    with backend.hold(stream):
        waiter = _C.Waiter()
        waiter.fileno()
        waiter.register(stream, 1)
        waiter.register(stream.record_event(), 2)
        del waiter
    stream.synchronize()


def test_a_failure_is_its_own_streams(faulty):
    """The end of one stream's work is never reported as another's."""
    waiter = _C.Waiter()
    for turn in range(30):
        good, bad = faulty.stream(), faulty.stream()
        gates = [faulty.gate(bad)]
        _C.fail(bad, 719)
        waiter.register(bad.record_event(), 1)
        gates[0].open()
        gates = [faulty.gate(good)]
        waiter.register(good.record_event(), 0)
        gates[0].open()
        messages = []
        while len(messages) < 2:
            messages += waiter.wait(LONG)
        assert sorted(messages) == [(0, 0), (1, 719)], turn
        with pytest.raises(pystreams.AcceleratorError):
            bad.synchronize()


def interrupted_at(line, function):
    """Return whether Ctrl-C came, at the line of the package with this number
    among those that are run."""
    left = line

    def trace(frame, event, _):
        nonlocal left
        callers = frame.f_code.co_name, frame.f_back.f_code.co_name
        if (
            frame.f_code.co_filename != pystreams._waiting.__file__
            # What a finalizer raises is only reported, so the test could not
            # catch it.
            or "__del__" in callers
        ):
            return None
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        # Python handles no signal between a with block and its __exit__.
        if event == "line" and not text.lstrip().startswith("with "):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("how", ["wait", "as_completed", "left early"])
def test_ctrl_c_anywhere_leaves_nothing(trio, how):
    """One of the objects is a Future, whose callbacks show whether something
    is left."""
    objects, gates = trio
    gates[0].set()
    objects[0].synchronize()

    def use():
        if how == "wait":
            wait(objects, 0.001)
        elif how == "left early":
            iterator = iter(as_completed(objects))
            next(iterator)
            iterator.close()
        else:
            with contextlib.suppress(TimeoutError):
                list(as_completed(objects, 0.001))

    line = 1
    while interrupted_at(line, use):
        if objects[2]._done_callbacks:
            gc.collect()
        assert not objects[2]._done_callbacks, line
        line += 1
    assert line > 20
    assert not objects[2]._done_callbacks
