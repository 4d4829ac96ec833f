"""The CPU engine while a schedule is explored: what runs when, virtual time,
and each way to wait."""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import gc
import itertools
import os
import re
import threading
import time

import pytest
from captures import Capture, replay
from deadlines import LONG
from gil import FREE

import pystreams
from pystreams import _C, races, schedules, timeline
from pystreams.cuda._graphs import Graph

SIZE = 64
STRATEGIES = ["late", "early", "random:3", "pct:2:3", "late:1,2"]
each_strategy = pytest.mark.parametrize("name", STRATEGIES)


@pytest.fixture(autouse=True)
def nothing_left(engine):
    """Check that no schedule outlives a test, and that the threads serve
    streams again."""
    yield
    assert _C.schedule_is_on() == ("PYSTREAMS_SCHEDULE" in os.environ)
    stream = engine.stream()
    assert stream.submit(int, "7").result(LONG) == 7
    stream.synchronize()


def filled(engine, value=7):
    """Return a stream, and memory that it fills."""
    stream = engine.stream()
    buffer = engine.empty(SIZE, stream=stream)
    buffer.fill_(value, stream=stream)
    return stream, buffer


# ---- What runs when


def test_late_work_waits_for_the_host(engine):
    with schedules.run("late"):
        stream, _ = filled(engine)
        event = stream.record_event()
        assert not stream.query()
        assert not event.query()
        stream.synchronize()
        assert stream.query()
        assert event.query()


def test_late_runs_only_what_a_wait_needs(engine):
    with schedules.run("late"):
        (one, _), (other, _) = filled(engine), filled(engine)
        one.synchronize()
        assert one.query()
        assert not other.query()


def test_late_follows_the_edges_of_what_is_needed(engine):
    with schedules.run("late"):
        (first, a), (second, b), (third, _) = (
            filled(engine, value) for value in (1, 2, 3)
        )
        second.wait_stream(first)
        b.copy_(a, True, second)
        second.synchronize()
        assert b.tobytes() == a.tobytes() == bytes([1]) * SIZE
        assert not third.query()


def test_early_work_is_done_at_once(engine):
    with schedules.run("early"):
        stream, _ = filled(engine)
        assert stream.query()
        assert stream.record_event().query()


def test_held_work_waits_for_the_host(engine):
    with schedules.run("late:2"):
        (one, _), (other, _) = filled(engine), filled(engine)
        assert one.query()
        assert not other.query()
        other.synchronize()


@each_strategy
def test_the_order_of_a_stream_and_of_its_edges_is_kept(engine, name):
    with schedules.run(name):
        stream, a = filled(engine, 1)
        other = engine.stream()
        b = engine.empty(SIZE, stream=other)
        for value in range(20):
            a.fill_(value, stream=stream)
            other.wait_stream(stream)
            b.copy_(a, True, other)
            stream.wait_stream(other)
        other.synchronize()
        assert b.tobytes() == bytes([19]) * SIZE


def test_what_is_left_at_the_end_runs(engine):
    with schedules.run("late"):
        stream, buffer = filled(engine)
        future = stream.submit(int, "7")
        assert not stream.query()
    assert stream.query()
    assert future.result(LONG) == 7
    assert buffer.tobytes() == bytes([7]) * SIZE


def test_what_is_left_after_a_failure_is_dropped(engine):
    ran = []
    outside = engine.event()
    outside.record(engine.stream())
    with pytest.raises(ZeroDivisionError), schedules.run("late"):
        stream, buffer = filled(engine)
        future = stream.submit(ran.append, 1)
        engine.default_stream().wait_stream(stream)
        outside.record(stream)
        default = engine.default_stream().submit(ran.append, 2)
        raise ZeroDivisionError
    assert not ran
    for one in (future, default):
        with pytest.raises(pystreams.AcceleratorError):
            one.result(LONG)
    assert stream.query()
    assert engine.default_stream().query()
    assert outside.query()
    engine.synchronize()
    assert buffer.tobytes() != bytes([7]) * SIZE


@each_strategy
def test_a_failure_of_work_is_reported(faulty, name):
    with schedules.run(name):
        stream = faulty.stream()
        _C.fail(stream, 700)
        with pytest.raises(pystreams.AcceleratorError):
            stream.synchronize()


@pytest.mark.unscheduled
@pytest.mark.parametrize("kept", [False, True], ids=["gone", "kept"])
def test_failures_of_earlier_work(faulty, kept):
    """Work under a schedule does not see failures of earlier work.  The
    program sees them after the schedule."""
    stream = faulty.stream()
    _C.fail(stream, 700)
    with contextlib.suppress(pystreams.AcceleratorError):
        while not stream.query():
            pass
    if not kept:
        del stream
    for name in ("late", "early"):
        with schedules.run(name):
            faulty.default_stream().record_event()
            faulty.synchronize()
    with pytest.raises(pystreams.AcceleratorError):
        faulty.synchronize()


DEFAULT = """
import pystreams
from pystreams import _C, schedules
stream = pystreams.accelerator.default_stream()
_C.fail(stream, 700)

def check():
    try:
        stream.synchronize()
        assert stream.query()
    except pystreams.AcceleratorError:
        return "failed"
    return "works"

print(check(), schedules.replay(check, "late"), check())
"""


@pytest.mark.unscheduled
def test_a_failure_of_the_default_stream(run_python):
    done = run_python(DEFAULT, env={"PYSTREAMS_ACCELERATOR": "cpu"})
    assert (done.stderr, done.stdout) == ("", "failed works failed\n")


@pytest.mark.parametrize("default", [False, True], ids=["stream", "default"])
def test_failures_of_other_runs(faulty, default):
    """No run sees a failure of an earlier run."""
    runs = []

    def fn():
        faulty.synchronize()
        stream = faulty.default_stream() if default else faulty.stream()
        stream.record_event()
        _C.fail(stream, 700)
        runs.append(1)
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            schedules.replay(fn, "late")
    assert len(runs) == 3
    faulty.synchronize()


def test_memory_is_poisoned(engine):
    with schedules.run("early"):
        stream = engine.stream()
        buffer = engine.empty(SIZE, stream=stream)
        assert set(buffer.tobytes()) == {0xDB}


def test_freed_memory_is_poisoned(engine, sanitized):
    if sanitized:
        pytest.skip("a sanitizer lets nobody read what was freed")
    with schedules.run("late"):
        stream, buffer = filled(engine)
        stream.synchronize()
        # Leave out the first bytes, because malloc writes to them when a block
        # is free.
        address, nbytes = buffer.data_ptr() + 32, SIZE - 32
        stream.record_event()
        del buffer
        gc.collect()
        assert ctypes.string_at(address, nbytes) == bytes([7]) * nbytes
        stream.synchronize()
        assert ctypes.string_at(address, nbytes) == bytes([0xDB]) * nbytes


def test_pinned_memory_is_poisoned_however_often_it_is_used(engine):
    with schedules.run("late"):
        for _ in range(2):
            buffer = pystreams.Buffer(SIZE, pin_memory=True)
            assert set(buffer.tobytes()) == {0xDB}
            buffer.memoryview()[:] = bytes(SIZE)
            del buffer


@each_strategy
def test_graphs_with_branches(engine, name):
    stream, side = engine.stream(), engine.stream()
    a, b = (engine.empty(SIZE, stream=stream) for _ in range(2))
    a.fill_(0, stream=stream)
    stream.synchronize()
    graph = Graph(engine.type)
    with Capture(graph, stream):
        a.fill_(1, stream=stream)
        side.wait_stream(stream)
        b.copy_(a, True, side)
        stream.wait_stream(side)
        a.fill_(2, stream=stream)
    with schedules.run(name):
        for _ in range(3):
            replay(graph, stream)
        engine.synchronize()
        assert a.tobytes() == bytes([2]) * SIZE
        assert b.tobytes() == bytes([1]) * SIZE


# ---- Time


@each_strategy
def test_sleeps_cost_nothing(engine, name):
    before = time.monotonic()
    with schedules.run(name):
        start, end = (engine.event(enable_timing=True) for _ in range(2))
        stream = engine.stream()
        start.record(stream)
        engine.sleep(stream, 3_600_000)
        end.record(stream)
        end.synchronize()
        assert start.elapsed_time(end) == 3_600_000
    assert time.monotonic() - before < LONG


def test_sleeps_of_two_streams_overlap(engine):
    with schedules.run("early"):
        start, end = (engine.event(enable_timing=True) for _ in range(2))
        one, other = engine.stream(), engine.stream()
        start.record(one)
        engine.sleep(one, 3000)
        engine.sleep(other, 5000)
        one.wait_stream(other)
        end.record(one)
        one.synchronize()
        assert start.elapsed_time(end) == 5000


@pytest.mark.parametrize("name", ["late", "early"])
def test_limits_expire_in_virtual_time(engine, name):
    before = time.monotonic()
    with schedules.run(name):
        stream = engine.stream()
        engine.sleep(stream, 3_600_000)
        with pytest.raises(TimeoutError):
            stream.synchronize(timeout=1800)
        stream.synchronize(timeout=1801)
        engine.sleep(stream, 3_600_000)
        future = stream.submit(int, "7")
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(1800)
        assert future.result(1801) == 7
        engine.sleep(stream, 3_600_000)
        assert pystreams.wait([stream], 1800).done == set()
        assert pystreams.wait([stream], 1801).done == {stream}
    assert time.monotonic() - before < LONG


@pytest.mark.parametrize("name", ["late", "early"])
def test_a_limit_is_of_all_that_is_waited_for(engine, name):
    """The limit is for the whole wait.  It does not start again with each
    operation."""
    for wait in ("future", "wait", "stream"):
        with schedules.run(name):
            stream = engine.stream()
            for _ in range(3):
                engine.sleep(stream, 3_600_000)
            future = stream.submit(int, "7")
            if wait == "future":
                with pytest.raises(concurrent.futures.TimeoutError):
                    future.result(9000)
                assert future.result(1801) == 7
            elif wait == "wait":
                assert pystreams.wait([stream], 9000).done == set()
                assert pystreams.wait([stream], 1801).done == {stream}
            else:
                with pytest.raises(TimeoutError):
                    stream.synchronize(9000)
                stream.synchronize(1801)


@pytest.mark.parametrize("kinds", [("cpu", "cuda"), ("cuda", "cpu")])
def test_what_sleeps_longer_elsewhere(kinds):
    """A long sleep on one engine does not use up the limit of a wait for
    another engine's work."""
    with schedules.run("late"):
        long, short = (pystreams.Stream(kind) for kind in kinds)
        types = dict(_C.backends())
        _C.sleep(types[kinds[0]], 36_000_000_000_000, long)
        _C.sleep(types[kinds[1]], 3_600_000_000_000, short)
        future = short.submit(int, "7")
        assert future.result(7200) == 7
        assert not long.query()
        long.synchronize()


@pytest.fixture
def both():
    """Return, for each engine, a stream and a function that makes it sleep for
    some seconds."""

    def sleeper(kind):
        stream = pystreams.Stream(kind)
        number = dict(_C.backends())[kind]
        return stream, lambda s: _C.sleep(number, s * 1_000_000_000, stream)

    return [sleeper("cpu"), sleeper("cuda")]


@pytest.mark.parametrize("name", ["late", "early", "random:1"])
def test_engines_share_the_time(both, name):
    """While the host waits for one engine, sleeps on the other go on, too."""
    (one, sleep_one), (other, sleep_other) = both
    with schedules.run(name):
        sleep_one(3000)
        sleep_other(2000)
        one.synchronize()
        other.synchronize(timeout=1)


@pytest.mark.parametrize("name", ["late", "early", "random:1"])
def test_a_timeline_of_two_engines(both, name):
    with schedules.run(name):
        with timeline.record() as t:
            for (stream, sleep), seconds in zip(both, (3, 2), strict=True):
                sleep(seconds)
                stream.synchronize()
        begin, end = map(timeline.COLUMNS.index, ("begin", "end"))
        kind = timeline.COLUMNS.index("kind")
        times = [
            (row[begin] / 1e9, row[end] / 1e9)
            for row in t.rows
            if row[kind] == "sleep"
        ]
    assert times == [(0, 3), (3, 5)]
    assert t.duration == 5_000_000_000


@pytest.mark.unscheduled
def test_a_limit_goes_on_when_the_schedule_ends(engine):
    """If the schedule ends during a wait, the wait still ends at its limit."""
    waited = []

    def wait():
        before = time.monotonic()
        pystreams.wait([concurrent.futures.Future()], timeout=2)
        waited.append(time.monotonic() - before)

    thread = threading.Thread(target=wait)
    with schedules.run("late"):
        thread.start()
        time.sleep(1.8)
    thread.join()
    assert 2 <= waited[0] < 3.5


# ---- Polls


@each_strategy
def test_a_poll_ends(engine, name):
    with schedules.run(name):
        stream, buffer = filled(engine)
        engine.sleep(stream, 1000)
        event = stream.record_event()
        polls = 0
        while not event.query():
            polls += 1
        assert polls < 1000
        assert buffer.tobytes() == bytes([7]) * SIZE
        future = stream.submit(int, "7")
        while not future.done():
            pass
        while not stream.query():
            pass
        buffer.fill_(8, stream=stream)
        while True:
            try:
                stream.synchronize(timeout=0)
            except TimeoutError:
                continue
            break


@each_strategy
def test_a_poll_beside_other_polls_ends(engine, name):
    with schedules.run(name):
        stream, _ = filled(engine)
        other, buffer = filled(engine)
        events = [stream.record_event(), other.record_event()]
        while sum(event.query() for event in events) < 2:
            buffer.fill_(1, stream=other)


# ---- Callables


@each_strategy
def test_callables_run_one_at_a_time(engine, name):
    running, most = 0, 0

    def work():
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.001)
        running -= 1

    with schedules.run(name):
        futures = [engine.stream().submit(work) for _ in range(5)]
        for future in futures:
            future.result(LONG)
    assert most == 1


@each_strategy
def test_a_callable_queues_and_waits(engine, name):
    with schedules.run(name):
        stream, other = engine.stream(), engine.stream()
        buffer = engine.empty(SIZE, stream=other)

        def work():
            buffer.fill_(5, stream=other)
            inner = other.submit(int, "7")
            other.synchronize()
            return inner.result() + 1

        future = stream.submit(work)
        event = stream.record_event()
        event.synchronize()
        assert future.result() == 8
        assert buffer.tobytes() == bytes([5]) * SIZE


@each_strategy
def test_a_callable_may_wait_for_the_host(engine, name):
    with schedules.run(name):
        stream, go = engine.stream(), threading.Event()
        future = stream.submit(go.wait, LONG)
        go.set()
        assert future.result() is True


STOPPED = """
import os, signal, subprocess, sys, time
import pystreams
from pystreams import schedules
resumed = f"sleep 0.5; kill -CONT {os.getpid()}"
ended = []
def work():
    helper = subprocess.Popen(["sh", "-c", resumed])
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.02)
    helper.wait()
    ended.append(True)
with schedules.run("early"):
    pystreams.Stream(sys.argv[1]).submit(work)
    print(ended)
"""


def test_a_callable_on_a_busy_machine(engine, run_python):
    """A callable is not left behind if its thread does not get to run."""
    done = run_python(STOPPED, engine.name, env={"PYSTREAMS_SCHEDULE": None})
    assert (done.stderr, done.stdout) == ("", "[True]\n")


def test_a_callable_that_computes(engine):
    """A callable that computes for long does not count as waiting for the
    host."""
    ended = []

    def work():
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            pass
        ended.append(True)

    with schedules.run("early"):
        engine.stream().submit(work)
        assert ended == [True]


@each_strategy
def test_host_functions_that_wait_for_the_host(engine, name):
    with schedules.run(name):
        streams = [engine.stream() for _ in range(3)]
        gates = [engine.gate(stream) for stream in streams]
        for stream in streams:
            stream.record_event()
        for _ in range(40):
            assert not any(stream.query() for stream in streams)
        for gate in gates:
            gate.open()
        engine.synchronize()
        assert all(stream.query() for stream in streams)


@each_strategy
def test_other_waits_for_futures(engine, name):
    """In waits of concurrent.futures, the host calls nothing of the package
    that could run work."""
    with schedules.run(name):
        stream, go = engine.stream(), threading.Event()
        futures = [stream.submit(go.wait, LONG)]
        futures += [stream.submit(divmod, i, 2) for i in range(5)]
        done, pending = concurrent.futures.wait(futures, timeout=0.01)
        assert (done, pending) == (set(), set(futures))
        go.set()
        done, pending = concurrent.futures.wait(futures, LONG)
        assert (done, pending) == (set(futures), set())


def test_other_waits_for_futures_of_many_streams(engine):
    """Each callable's thread runs work while the next callable ends."""
    before = time.monotonic()
    with schedules.run("late"):
        streams = [engine.stream() for _ in range(12)]
        # When the first callable ends, the host sleeps.
        futures = [streams[0].submit(time.sleep, 0.3)]
        for earlier, stream in itertools.pairwise(streams):
            stream.wait_stream(earlier)
            futures.append(stream.submit(time.sleep, 0.01))
        done, _ = concurrent.futures.wait(futures, LONG)
        assert done == set(futures)
    assert time.monotonic() - before < LONG


def test_other_waits_for_futures_while_a_thread_runs_work(engine):
    """A callable ends while another one runs an operation."""
    with schedules.run("late"):
        stream, other, go = engine.stream(), engine.stream(), threading.Event()
        buffer = engine.empty(1 << 26, stream=other)
        futures = [stream.submit(go.wait, LONG), stream.submit(int, "7")]
        waiter = threading.Thread(
            target=concurrent.futures.wait, args=(futures, LONG)
        )
        waiter.start()
        time.sleep(0.3)
        for _ in range(100):
            buffer.fill_(1, stream=other)
        threading.Timer(0.05, go.set).start()
        other.synchronize()
        waiter.join(LONG / 2)
        assert not waiter.is_alive()
        assert [future.result() for future in futures] == [True, 7]


def test_a_deadlock_is_found_at_once(engine):
    before = time.monotonic()
    with schedules.run("late"):
        stream, other = engine.stream(), engine.stream()
        event = engine.event()

        def work():
            other.synchronize()

        future = stream.submit(work)
        event.record(stream)
        other.wait_event(event)
        with pytest.raises(RuntimeError, match=r"deadlock.* callable"):
            future.result()
    assert time.monotonic() - before < LONG


def test_each_thread_is_told_of_a_deadlock(engine):
    """Both the host's wait and the callable's wait raise an error, which says
    who waits for whom."""
    errors = []

    def program():
        stream, other = engine.stream(), engine.stream()
        future = stream.submit(other.synchronize)
        other.wait_stream(stream)
        for wait in (other.synchronize, future.result):
            try:
                wait()
            except RuntimeError as error:
                errors.append(str(error))

    for seed in range(20):
        with schedules.run(f"random:{seed}"):
            program()
    assert errors
    for text in errors:
        assert "deadlock: callable synchronize (test_engine.py:" in text


def test_a_deadlock_of_streams_with_names(engine):
    device = engine.device()
    one, other = (engine.stream(name=name) for name in ("one", "other"))
    with schedules.run("late"):
        future = one.submit(other.synchronize)
        other.wait_stream(one)
        with pytest.raises(RuntimeError, match="deadlock") as caught:
            future.result()
    text = re.sub(r"\.py:\d+", ".py", str(caught.value))
    work, one, other = (
        "callable synchronize (test_engine.py)",
        f"one ({device} 1)",
        f"other ({device} 2)",
    )
    chain = (
        f"has 1 operation; the first waits for an event recorded on {one}, "
        f"which has 2 operations; the first is {work}, which"
    )
    assert text == (
        "Stream.synchronize on 'other': the wait can never end\n"
        f"deadlock: {work} on {one} waits for itself; {other} {chain} has "
        f"begun and waits in Stream.synchronize, for {other}, which {chain} "
        "thus waits for itself"
    )


def ring_of_streams(one, two):
    def left():
        two.synchronize()

    def right():
        one.synchronize()

    futures = one.submit(left), two.submit(right)
    one.synchronize()
    return futures


def ring_of_futures(one, two):
    futures = []

    def left():
        futures[1].result()

    def right():
        futures[0].result()

    futures += [one.submit(left), two.submit(right)]
    return futures


@pytest.mark.parametrize("ring", [ring_of_streams, ring_of_futures])
def test_a_deadlock_of_two_callables(engine, ring):
    """The message names both callables and their streams."""
    device = engine.device()
    with schedules.run("late"):
        futures = ring(engine.stream(name="one"), engine.stream())
        with pytest.raises(RuntimeError) as caught:
            for future in futures:
                future.result()
        concurrent.futures.wait(futures)
        for future in futures:
            future.exception()
    text = re.sub(r"\.py:\d+", ".py", str(caught.value))
    sides = [
        f"callable left (test_engine.py) on one ({device} 1)",
        f"callable right (test_engine.py) on stream 2 of {device}",
    ]
    wait, _, explanation = text.partition("\n")
    assert wait.endswith(": the wait can never end")
    assert explanation.partition(";")[0] in [
        f"deadlock: {', '.join(ring)} wait for each other in a ring"
        for ring in (sides, sides[::-1])
    ]
    # Without a GIL, the frames of other threads cannot be read.
    for name in () if FREE else ("left", "right"):
        assert f" at test_engine.py in {name}, for " in text


def test_a_copy_whose_wait_is_a_deadlock(engine):
    """The copy still runs later, and its destination is not used for anything
    else until then."""
    later = []

    def work(buffer, stream):
        with stream, contextlib.suppress(RuntimeError):
            buffer.tobytes()
        later.extend(bytes([5]) * SIZE for _ in range(64))

    with schedules.run("late"):
        stream, other = filled(engine)[0], engine.stream()
        buffer = engine.empty(SIZE, stream=other)
        buffer.fill_(7, stream=other)
        future = stream.submit(work, buffer, other)
        other.wait_stream(stream)
        future.result()
        other.synchronize()
    assert later == [bytes([5]) * SIZE] * 64


def test_the_exception_of_a_callable(engine):
    with schedules.run("late"):
        future = engine.stream().submit(int, "x")
        with pytest.raises(ValueError, match="invalid literal"):
            future.result()


# ---- Waits for several, and event loops


@each_strategy
def test_each_wait_for_several(engine, name):
    with schedules.run(name):
        streams = [filled(engine)[0] for _ in range(3)]
        assert pystreams.wait(streams).done == set(streams)
        streams = [filled(engine)[0] for _ in range(3)]
        assert set(pystreams.as_completed(streams)) == set(streams)
        futures = [engine.stream().submit(int, "7") for _ in range(3)]
        done, not_done = concurrent.futures.wait(futures)
        assert len(done) == 3
        assert not not_done
        device = engine.device()
        filled(engine)
        _C.synchronize(engine.type, device)


@each_strategy
def test_event_loops(engine, name):
    async def one(value):
        stream, buffer = filled(engine, value)
        await stream
        buffer.fill_(value + 1, stream=stream)
        await stream.record_event()
        assert await asyncio.wrap_future(stream.submit(int, "7")) == 7
        return buffer.tobytes()[0]

    async def main():
        results = await asyncio.gather(*(one(value) for value in range(5)))
        async for stream in pystreams.as_completed([filled(engine)[0]]):
            assert stream.query()
        return results

    with schedules.run(name):
        assert asyncio.run(main()) == [1, 2, 3, 4, 5]


def test_threads_of_the_program(engine):
    def work(results):
        stream, buffer = filled(engine)
        stream.synchronize()
        results.append(buffer.tobytes())

    results = []
    with schedules.run("random:1"):
        threads = [
            threading.Thread(target=work, args=(results,)) for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [bytes([7]) * SIZE] * 5


# ---- What is refused


@pytest.mark.unscheduled
def test_events_of_several_processes_are_refused(engine):
    shared = engine.event(interprocess=True)
    shared.record(engine.stream())
    shared.synchronize()
    with schedules.run("late"):
        with pytest.raises(RuntimeError, match="several processes"):
            engine.event(interprocess=True).record(engine.stream())
        with pytest.raises(RuntimeError, match="several processes"):
            shared.record(engine.stream())
        with pytest.raises(RuntimeError, match="several processes"):
            engine.stream().wait_event(shared)


@pytest.mark.unscheduled
def test_a_schedule_begins_with_idle_devices(engine):
    stream = engine.stream()
    gate = engine.gate(stream)
    try:
        with (
            pytest.raises(RuntimeError, match=r"a stream with \d+ pending"),
            schedules.run("late"),
        ):
            pass
    finally:
        gate.open()
    engine.synchronize()


@pytest.mark.unscheduled
def test_a_schedule_begins_without_captures(engine):
    stream = engine.stream()
    with Capture(Graph(engine.type), stream):
        engine.sleep(stream, 1)
        with (
            pytest.raises(RuntimeError, match="captured; end the capture"),
            schedules.run("late"),
        ):
            pass


def test_a_schedule_that_could_not_end():
    """A schedule could not end because of a callable that did not return.  The
    next schedule ends it, once the callable has returned."""
    go = threading.Event()

    def fn():
        pystreams.Stream("cpu").submit(go.wait, 4 * LONG)

    is_on = _C.schedule_is_on()
    with pytest.raises(RuntimeError, match="callable still ran after 10 s"):
        schedules.replay(fn, "late")
    go.set()
    assert schedules.replay(lambda: 7, "late") == 7
    assert _C.schedule_is_on() == is_on


def test_schedules_do_not_nest(engine):
    with schedules.run("late"):
        with (
            pytest.raises(RuntimeError, match="nested"),
            schedules.run("late"),
        ):
            pass
        assert _C.schedule_is_on()


@each_strategy
def test_polls_of_a_future_that_waits_to_run(engine, name):
    go = threading.Event()
    with schedules.run(name):
        future = engine.stream().submit(go.wait, LONG)
        while not future.running():
            pass
        go.set()
        assert future.result(LONG)


def test_an_await_of_pending_work_is_an_order(engine):
    async def main():
        stream, buffer = filled(engine)
        assert not stream.query()
        await stream
        buffer.fill_(8, stream=engine.default_stream())

    with schedules.run("late"), races.detect():
        asyncio.run(main())
