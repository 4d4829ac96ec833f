"""Strategy "all" runs each order that an enumeration of all interleavings
finds, and runs each order once."""

import random
import re
from dataclasses import dataclass

import pytest
from deadlines import LONG

from pystreams import schedules

SIZE = 8
HOST = -1


@dataclass(frozen=True)
class Call:
    """A call of a program, and the operation that it queues, if any."""

    kind: str
    stream: int = HOST
    buffer: int = 0
    source: int = 0
    value: int = 0


def program_of(seed):
    """A random program of up to 8 operations on 3 streams.

    Each record has a number.  A wait is for an earlier record.
    """
    choose = random.Random(seed)
    calls, records = [], []
    for _ in range(choose.randint(2, 8)):
        stream = choose.randrange(3)
        kind = choose.choice(["fill", "fill", "copy", "record", "wait"])
        if kind == "wait" and not records:
            kind = "record"
        if kind == "record":
            records.append(len(calls))
        one, other = choose.sample(range(3), 2)
        value = choose.choice(records) if kind == "wait" else len(calls) + 1
        calls.append(Call(kind, stream, one, other, value))
        if choose.randrange(6) == 0:
            kind = choose.choice(["query", "read"])
            calls.append(Call(kind, choose.randrange(3), one))
    return calls


def run(engine, calls):
    """Make the calls; return what the host saw, and the memory at the end."""
    streams = [engine.stream() for _ in range(3)]
    memory = engine.empty(3 * SIZE, stream=streams[0])
    memory.fill_(0, stream=streams[0])
    streams[0].synchronize()
    buffers = [memory[SIZE * i : SIZE * i + SIZE] for i in range(3)]
    seen, events = [], {}
    for index, call in enumerate(calls):
        stream, buffer = streams[call.stream], buffers[call.buffer]
        if call.kind == "fill":
            buffer.fill_(call.value, stream=stream)
        elif call.kind == "copy":
            buffer.copy_(buffers[call.source], True, stream)
        elif call.kind == "record":
            events[index] = engine.event()
            events[index].record(stream)
        elif call.kind == "wait":
            stream.wait_event(events[call.value])
        elif call.kind == "query":
            seen.append(stream.query())
        else:
            seen.append(buffer.memoryview(readonly=True)[0])
    for stream in streams:
        stream.synchronize()
    return (*seen, *(bytes(b.memoryview(readonly=True))[0] for b in buffers))


class Enumeration:
    """Every interleaving of a program, and which of them are different orders.

    Two interleavings are the same order if they have all pairs of conflicting
    steps in the same order.
    """

    def __init__(self, calls):
        self.calls = calls
        self.outcomes, self.orders = set(), set()
        self._streams = [
            [i for i, c in enumerate(calls) if c.stream == s and queues(c)]
            for s in range(3)
        ]
        self._extend([], 0, [0, 0, 0])

    def _extend(self, steps, called, done):
        """steps: (host, index) of each step, in order.  called: how many calls
        were made."""
        # Nothing in a run depends on when an operation was queued, so queue
        # each one as soon as possible.
        while called < len(self.calls) and queues(self.calls[called]):
            called += 1
        complete = called == len(self.calls)
        if not complete:
            self._extend([*steps, (HOST, called)], called + 1, done)
        for stream, queue in enumerate(self._streams):
            if done[stream] < len(queue) and queue[done[stream]] < called:
                complete = False
                index = queue[done[stream]]
                call = self.calls[index]
                if call.kind == "wait" and (0, call.value) not in steps:
                    continue
                after = list(done)
                after[stream] += 1
                self._extend([*steps, (0, index)], called, after)
        if complete:
            self._end(steps)

    def _end(self, steps):
        memory, seen, done = [0, 0, 0], [], set()
        for who, index in steps:
            call = self.calls[index]
            if who != HOST:
                done.add(index)
                if call.kind == "fill":
                    memory[call.buffer] = call.value
                elif call.kind == "copy":
                    memory[call.buffer] = memory[call.source]
            elif call.kind == "query":
                seen.append(self._queried(index) <= done)
            elif call.kind == "read":
                seen.append(memory[call.buffer])
        self.outcomes.add((*seen, *memory))
        self.orders.add(
            frozenset(
                (one, other)
                for i, one in enumerate(steps)
                for other in steps[i + 1 :]
                if self._conflict(one, other)
            )
        )

    def _queried(self, index):
        """Return the operations on which the answer of a query depends.  This
        is only the last operation that was queued before it."""
        stream = self.calls[index].stream
        return set([i for i in self._streams[stream] if i < index][-1:])

    def _conflict(self, one, other):
        if one[0] == other[0] == HOST:
            return False
        for (who, a), (_, b) in ((one, other), (other, one)):
            if self.calls[a].kind == "query" and who == HOST:
                return b in self._queried(a)
        first, second = self.calls[one[1]], self.calls[other[1]]
        return bool(
            writes(first, one) & (reads(second, other) | writes(second, other))
            or reads(first, one) & writes(second, other)
        )


def queues(call):
    return call.kind not in ("query", "read")


def writes(call, step):
    is_write = step[0] != HOST and call.kind in ("fill", "copy")
    return {call.buffer} if is_write else set()


def reads(call, step):
    if step[0] == HOST:
        return {call.buffer} if call.kind == "read" else set()
    return {call.source} if call.kind == "copy" else set()


@pytest.fixture
def cpu(engine):
    if engine.name != "cpu":
        pytest.skip("the host reads memory of the cpu alone")
    return engine


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_it_equals_brute_force(cpu, first):
    for seed in range(first, first + 25):
        calls = program_of(seed)
        expected = Enumeration(calls)
        outcomes = set()
        result = schedules.explore(
            lambda calls=calls, outcomes=outcomes: outcomes.add(
                run(cpu, calls)
            ),
            strategy="all",
            runs=10_000,
        )
        assert result.complete, seed
        assert outcomes == expected.outcomes, seed
        assert result.distinct == len(expected.orders), seed
        assert result.runs == result.distinct, seed


# ---- One by one


def explore(fn, **options):
    """Return the result, and what fn returned."""
    seen = []
    result = schedules.explore(
        lambda: seen.append(fn()), strategy="all", **options
    )
    return result, seen


def filled(engine, streams, sizes=(SIZE,)):
    """Let each stream fill memory of its own, and return the memory."""
    buffers = [engine.empty(size, stream=s) for s in streams for size in sizes]
    for stream, buffer in zip(streams, buffers, strict=True):
        buffer.fill_(1, stream=stream)
    return buffers


def test_what_is_independent_runs_in_one_order(engine):
    def fn():
        streams = [engine.stream() for _ in range(5)]
        buffers = filled(engine, streams)
        for stream in streams:
            stream.synchronize()
        return len(buffers)

    result, _ = explore(fn)
    assert result == schedules.Result(1, 1, True)
    assert str(result) == "the only order holds"


def test_conflicts_of_all_streams(engine):
    def fn():
        streams = [engine.stream() for _ in range(4)]
        shared = engine.empty(SIZE)
        engine.synchronize()
        for value, stream in enumerate(streams):
            shared.fill_(value, stream=stream)
        engine.synchronize()
        return shared.tobytes()[0]

    result, seen = explore(fn)
    assert result == schedules.Result(24, 24, True)
    assert str(result) == "all 24 orders hold"
    assert set(seen) == {0, 1, 2, 3}


def test_parts_of_memory_conflict_if_they_overlap(engine):
    def fn():
        streams = [engine.stream() for _ in range(3)]
        shared = engine.empty(3 * SIZE)
        engine.synchronize()
        for start, stream in zip((0, SIZE, SIZE + 1), streams, strict=True):
            shared[start : start + SIZE].fill_(start, stream=stream)
        engine.synchronize()

    assert explore(fn)[0] == schedules.Result(2, 2, True)


def test_a_query_may_say_yes_or_no(engine):
    def fn():
        stream = engine.stream()
        filled(engine, [stream])
        event = stream.record_event()
        answers = event.query(), stream.query(), event.query()
        stream.synchronize()
        return (*answers, event.query())

    result, seen = explore(fn)
    assert result.complete
    assert len(seen) == len(set(seen))
    assert set(seen) == {
        (False, False, False, True),
        (False, False, True, True),
        (False, True, True, True),
        (True, True, True, True),
    }


def test_a_query_after_a_wait(engine):
    """When the host has waited for one stream, the other may or may not be
    done."""

    def fn():
        one, other = engine.stream(), engine.stream()
        filled(engine, [one])
        other.wait_stream(one)
        one.synchronize()
        answer = other.query()
        other.synchronize()
        return answer

    result, seen = explore(fn)
    assert result.complete
    assert sorted(seen) == [False, True]


def test_a_loop_of_queries_is_not_complete(engine):
    def fn():
        stream = engine.stream()
        filled(engine, [stream])
        while not stream.query():
            pass

    result, _ = explore(fn)
    assert result.runs > 10
    assert not result.complete
    assert str(result).endswith("; there may be more")


def test_callables_differ_in_every_order(engine):
    def fn():
        ran = []
        futures = [engine.stream().submit(ran.append, i) for i in range(3)]
        for future in futures:
            future.result(LONG)
        return tuple(ran)

    result, seen = explore(fn)
    assert result.complete
    assert len(set(seen)) == 6


def test_a_callable_touches_the_buffers_that_it_gets(engine):
    """If a callable gets no Buffer, it may access all of them."""

    def fn(given):
        streams = [engine.stream() for _ in range(3)]
        buffers = filled(engine, streams[:2])
        engine.synchronize()
        streams[2].submit(lambda *_: None, *given(buffers))
        # No step of the program follows that could make a difference.
        for buffer, stream in zip(buffers, streams, strict=False):
            buffer.fill_(2, stream=stream)
        return buffers

    counts = [
        explore(lambda given=given: fn(given))[0].distinct
        for given in (lambda b: b[:1], lambda b: b, lambda b: ())
    ]
    assert counts[0] < counts[1] == counts[2]


def test_the_order_of_freed_memory(engine):
    """A stream still uses memory that another stream has freed."""

    def fn():
        one, other = engine.stream(), engine.stream()
        memory = engine.empty(SIZE, stream=one)
        memory.fill_(7, stream=one)
        one.synchronize()
        copy = engine.empty(SIZE, stream=other)
        copy.copy_(memory, True, other)
        del memory
        other.synchronize()
        return copy.tobytes()

    result, seen = explore(fn)
    assert result.complete
    assert set(seen) == {bytes([7]) * SIZE}


def test_time_that_is_measured_counts(engine):
    def fn(timed):
        one, other = engine.stream(), engine.stream()
        start, end = (engine.event(enable_timing=timed) for _ in range(2))
        start.record(one)
        end.record(one)
        engine.sleep(other, 1)
        engine.synchronize()
        return start.elapsed_time(end) if timed else None

    result, seen = explore(lambda: fn(True))
    assert result.complete
    assert sorted(seen) == [0.0, 0.0, 1.0]
    assert explore(lambda: fn(False))[0].distinct == 1


def test_a_missing_edge_is_found_and_told(engine):
    def fn():
        one, other = engine.stream(), engine.stream()
        a, b = engine.empty(SIZE, stream=one), engine.empty(SIZE, stream=other)
        one.synchronize()
        a.fill_(1, stream=one)
        b.copy_(a, True, other)
        other.synchronize()
        assert b.tobytes() == bytes([1]) * SIZE
        one.synchronize()

    with pytest.raises(AssertionError) as caught:
        explore(fn)
    notes = "\n".join(caught.value.__notes__)
    assert " late " in notes
    found = re.search(r'found by the schedule "(all[^"]*)"', notes)[1]
    for name in (found, re.search(r'replay\(fn, "(.*)"\)', notes)[1]):
        with pytest.raises(AssertionError):
            schedules.replay(fn, name)


def test_a_failure_that_needs_early_work(engine):
    """No late operation causes this failure.  The name of the failing schedule
    itself replays it."""

    def fn():
        stream, other = engine.stream(), engine.stream()
        filled(engine, [stream, other])
        assert not (stream.query() and not other.query())
        engine.synchronize()

    with pytest.raises(AssertionError) as caught:
        explore(fn)
    notes = "\n".join(caught.value.__notes__)
    name = re.search(r'replay\(fn, "(.*)"\)', notes)[1]
    with pytest.raises(AssertionError):
        schedules.replay(fn, name)


def test_a_bound_on_the_runs(engine):
    def fn():
        shared = engine.empty(SIZE)
        engine.synchronize()
        for value in range(4):
            shared.fill_(value, stream=engine.stream())
        engine.synchronize()

    result, seen = explore(fn, runs=23)
    assert result == schedules.Result(23, 23, False)
    assert len(seen) == 23
    assert str(result) == (
        "23 runs passed, in 23 different orders; there may be more"
    )
    assert explore(fn, runs=24)[0].complete


def test_a_program_that_depends_on_more_than_its_schedule(engine):
    calls = []

    def fn():
        calls.append(0)
        shared = engine.empty(SIZE)
        engine.synchronize()
        for _ in range(len(calls) % 3 + 1):
            shared.fill_(1, stream=engine.stream())
        engine.synchronize()

    assert not explore(fn)[0].complete


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("all", ()),
        ("all:0", (0,)),
        ("all:0*3,2,0*2", (0, 0, 0, 2, 0, 0)),
        ("all:1,12*2", (1, 12, 12)),
    ],
)
def test_names(name, numbers):
    assert schedules._read(name).numbers == numbers
    assert schedules._name_of(numbers) == name


def test_a_name_need_not_count_repetitions():
    assert schedules._read("all:9,9,0").numbers == (9, 9, 0)


def test_each_name_can_be_replayed(engine, monkeypatch):
    """replay() accepts the names of all runs of explore(), although it refuses
    choices that are not possible."""
    names = []

    def run(name, create=schedules._Run, **options):
        names.append(name)
        return create(name, **options)

    def fn():
        one, other = engine.stream(), engine.stream()
        shared = engine.empty(SIZE)
        engine.synchronize()
        for value, stream in enumerate((one, other, one)):
            shared.fill_(value, stream=stream)
        other.query()
        one.submit(int, "7").result()
        engine.synchronize()

    with monkeypatch.context() as patch:
        patch.setattr(schedules, "_Run", run)
        result, _ = explore(fn)
    assert result.complete
    assert len(names) == result.runs > 10
    for name in names:
        schedules.replay(fn, name)
