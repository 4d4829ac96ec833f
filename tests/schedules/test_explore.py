"""pystreams.schedules: what is explored, what is raised, and that a replay has
the same order."""

import gc
import os
import random
import re
import signal
import threading
import weakref

import pytest
import replays
from captures import Capture, replay
from deadlines import LONG
from integers import Number

import pystreams
from pystreams import _C, races, schedules
from pystreams.cuda._graphs import Graph

SIZE = 64
STRATEGIES = ["late", "random", "pct"]
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def notes(error):
    return "\n".join(getattr(error, "__notes__", []))


def name_in(error):
    """Return the name of the schedule to replay, from the note."""
    return re.search(r'replay\(fn, "(.*)"\)', notes(error))[1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_calls_before_a_schedule_change_nothing(engine, strategy):
    """A call on the default stream that queues nothing prepares its next
    work.  That work is none of the schedule's."""
    default, blocking = engine.default_stream(), engine.stream(blocking=True)

    def fn():
        one, other = engine.stream(), engine.stream()
        late = engine.stream(blocking=True)
        a, b = (engine.empty(SIZE, stream=one) for _ in "ab")
        b.fill_(1, stream=late)
        a.fill_(1, stream=one)
        a.fill_(2, stream=other)
        for stream in (one, other, late, default):
            stream.synchronize()
        return a.tobytes()[0]

    def results():
        seen = []
        for seed in range(1, 7):
            depth = ":2" if strategy == "pct" else ""
            seen.append(schedules.replay(fn, f"{strategy}{depth}:{seed}"))
            default.synchronize()
        return seen

    first = results()
    with blocking:
        engine.empty(SIZE, stream=blocking).fill_(1)
    blocking.synchronize()
    default.query()
    assert results() == first


def copied(engine, fixed=False):
    """Return a program in which a copy may come before its source was
    written."""

    def fn():
        one, other = engine.stream(), engine.stream()
        a = engine.empty(SIZE, stream=one)
        b = engine.empty(SIZE, stream=other)
        a.fill_(1, stream=one)
        if fixed:
            other.wait_stream(one)
        b.copy_(a, True, other)
        other.synchronize()
        assert b.tobytes() == bytes([1]) * SIZE

    return fn


def read(engine, fixed=False):
    """Return a program in which the host may read too early."""

    def fn():
        stream = engine.stream()
        buffer = engine.empty(SIZE, stream=stream, pin_memory=False)
        host = pystreams.Buffer(
            SIZE, device=engine.device(), pin_memory=engine.name == "cuda"
        )
        buffer.fill_(1, stream=stream)
        host.copy_(buffer, True, stream)
        if fixed:
            stream.synchronize()
        assert host.memoryview()[0] == 1
        stream.synchronize()

    return fn


programs = pytest.mark.parametrize("program", [copied, read])


@programs
@each_strategy
def test_a_missing_edge_is_found(engine, program, strategy):
    with pytest.raises(AssertionError) as caught:
        schedules.explore(program(engine), runs=200, strategy=strategy)
    name = name_in(caught.value)
    for _ in range(3):
        with pytest.raises(AssertionError):
            schedules.replay(program(engine), name)


@programs
@each_strategy
def test_a_whole_program_holds(engine, program, strategy):
    result = schedules.explore(
        program(engine, fixed=True), runs=200, strategy=strategy
    )
    assert result.runs == (1 if strategy == "late" else 200)
    assert 1 <= result.distinct <= result.runs
    assert not result.complete


@programs
def test_early_shows_nothing(engine, program):
    assert schedules.explore(program(engine), strategy="early").runs == 1


def test_the_note_says_what_was_late(engine):
    with pytest.raises(AssertionError) as caught:
        schedules.explore(copied(engine), strategy="late")
    note = notes(caught.value)
    assert name_in(caught.value) == "late:1"
    assert 'found by the schedule "late"' in note
    (late,) = [line for line in note.splitlines() if " late " in line]
    assert "fill" in late
    assert f"{os.path.relpath(__file__)}:" in late
    assert "in fn" in late
    # The note also leaves out what the failing program queued to clean up.
    assert note.split("had not run:\n")[1].splitlines()[:-2] == [late]


def labels_in(note):
    """Return the names of the streams in the lines of operations."""
    lines = re.findall(r"^ +\d+ .*", note, re.MULTILINE)
    return [re.split("  +", line.strip())[2] for line in lines]


def test_the_note_has_the_names_of_streams(engine):
    """The note has the names that the streams had when the work was queued.
    This is so even if the streams are gone and new streams have their
    handles."""
    device = str(engine.device())

    def record(name):
        stream = engine.stream(name=name)
        stream.record_event().synchronize()
        return stream.native_handle

    def fn():
        assert record("one") == record("other") == record(None)
        engine.default_stream().record_event().synchronize()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        schedules.replay(fn, "late")
    assert labels_in(notes(caught.value)) == [
        f"one ({device} 1)",
        f"other ({device} 1)",
        f"stream 1 of {device}",
        f"stream 2 of {device}",
    ]


def test_pageable_memory_of_graphs(engine):
    """The order of these copies is explored as that of any other work."""

    def explore(waits):
        def fn():
            stream, other = engine.stream(), engine.stream()
            graph, block = Graph(engine.type), engine.empty(16, stream=stream)
            data, copied = bytearray(16), bytearray(16)
            with Capture(graph, stream):
                block.copy_(data, non_blocking=True)
                block.copy_to(copied, non_blocking=True)
            data[:] = bytes([1]) * 16
            replay(graph, stream)
            if waits:
                other.wait_stream(stream)
            block.fill_(2, other)
            stream.synchronize()
            assert copied == data
            other.synchronize()

        return schedules.explore(fn, strategy="all")

    with pytest.raises(AssertionError, match="bytearray"):
        explore(waits=False)
    assert explore(waits=True).complete


def test_the_garbage_of_earlier_code_takes_no_part(engine):
    """Otherwise the buffers in the garbage would be freed at another point in
    each run."""
    first, second = engine.stream(), engine.stream()

    def leave_garbage(held):
        cycle = [engine.empty(16, stream=first)]
        cycle[0].fill_(1, second)
        second.synchronize()
        cycle.append(cycle)
        held.append(weakref.ref(cycle[0]))

    def fn():
        one, other = engine.stream(), engine.stream()
        block = engine.empty(16, stream=one)
        # Create so many containers that the garbage collector would run.
        kept = [[] for _ in range(200)]
        block.fill_(1, one)
        kept += [[] for _ in range(200)]
        block.fill_(2, other)
        one.synchronize()
        other.synchronize()

    expected = schedules.explore(fn, strategy="all")
    assert expected.complete
    held = []
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(100)
    try:
        gc.disable()
        leave_garbage(held)
        assert held[0]() is not None
        gc.enable()
        assert schedules.explore(fn, strategy="all") == expected
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(engine, enabled):
    def failing():
        assert not gc.isenabled()
        raise ZeroDivisionError

    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        schedules.replay(int, "late")
        assert gc.isenabled() == enabled
        with pytest.raises(ZeroDivisionError):
            schedules.explore(failing)
        assert gc.isenabled() == enabled
        with (
            pytest.raises(RuntimeError, match="nested"),
            schedules.run("late"),
        ):
            schedules.replay(int, "late")
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_the_name_of_a_stream_is_not_that_of_a_graphs_branches(engine):
    device = engine.device()
    graph = Graph(engine.type)

    def fn():
        one, other = engine.stream(), engine.stream()
        blocks = [engine.empty(16, stream=stream) for stream in (one, other)]
        with Capture(graph, one):
            other.wait_stream(one)
            blocks[0].fill_(1, one)
            blocks[1].fill_(1, other)
            one.wait_stream(other)
        launches = engine.stream(name="launches")
        replay(graph, launches)
        launches.synchronize()
        graph.reset()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        schedules.replay(fn, "early")
    assert set(labels_in(notes(caught.value))) == {
        f"launches ({device} 1)",
        f"stream 2 of {device}",
    }


def test_the_note_fits_a_terminal(engine, monkeypatch):
    """Paths are short in the folder where the program was started."""
    monkeypatch.chdir(os.path.dirname(__file__))
    with pytest.raises(AssertionError) as caught:
        schedules.explore(copied(engine), strategy="late")
    lines = notes(caught.value).splitlines()
    assert any(" test_explore.py:" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_only_what_matters_is_late(engine):
    """Of many late operations, one causes the failure."""

    def fn():
        streams = [engine.stream() for _ in range(6)]
        buffers = [engine.empty(SIZE, stream=s) for s in streams]
        for stream, buffer in zip(streams, buffers, strict=True):
            buffer.fill_(1, stream=stream)
        reader = engine.stream()
        out = engine.empty(SIZE, stream=reader)
        out.copy_(buffers[3], True, reader)
        reader.synchronize()
        assert out.tobytes()[0] == 1

    for strategy in STRATEGIES:
        with pytest.raises(AssertionError) as caught:
            schedules.explore(fn, strategy=strategy)
        assert name_in(caught.value) == "late:4"


def test_one_late_operation_is_enough(engine):
    """One late operation is enough even if the failing schedule delayed all
    work of a stream, or of the host."""

    def fn():
        load, work = engine.stream(), engine.stream()
        block = engine.empty(SIZE, stream=load)
        outs = [engine.empty(SIZE, stream=work) for _ in range(2)]
        for number, out in enumerate(outs):
            block.fill_(number, stream=load)
            work.wait_stream(load)
            out.copy_(block, True, work)
        work.synchronize()
        assert [out.tobytes()[0] for out in outs] == [0, 1]

    for strategy in ("random", "pct", "all"):
        for seed in range(10):
            with pytest.raises(AssertionError) as caught:
                schedules.explore(fn, strategy=strategy, seed=seed)
            assert re.fullmatch(r"late:\d+", name_in(caught.value))
            note = notes(caught.value)
            assert len(re.findall(r"^  .*  late  ", note, re.M)) == 1
            assert "found by the schedule" in note


def ordered(engine):
    """Return a program that fails in an order that no set of late operations
    gives, because the host waits for the third stream first."""
    order = []
    streams = [engine.stream() for _ in range(3)]
    futures = [
        stream.submit(order.append, number)
        for number, stream in enumerate(streams)
    ]
    for future in reversed(futures):
        future.result(LONG)
    assert order != [1, 0, 2]


def test_a_failure_that_is_not_reduced(engine):
    with pytest.raises(AssertionError) as caught:
        schedules.explore(
            lambda: ordered(engine), strategy="random", runs=5000
        )
    name, note = name_in(caught.value), notes(caught.value)
    assert name.startswith("random:")
    assert "\nnot reduced: fn did not fail in this way" in note
    rows = re.findall(r"^  (\d+)  callable  .*  (late|    )  ", note, re.M)
    assert rows == [("2", "    "), ("1", "late"), ("3", "    ")]


def test_a_failure_under_every_schedule(engine):
    def fn():
        engine.stream().record_event()
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        schedules.explore(fn)
    assert name_in(caught.value) == "early"


def replayed_late(fn):
    schedules.replay(fn, "late")


def test_a_callable_is_one_operation(engine):
    """The report has one line for a callable, at the place where it began,
    although the engine has two operations for it."""

    def fn():
        engine.stream(name="work").submit(divmod, 1, 0).result(LONG)

    with pytest.raises(ZeroDivisionError) as caught:
        schedules.explore(fn)
    text = notes(caught.value)
    assert (
        len(re.findall(rf"^  1  .* work \({engine.name}:0 1\)", text, re.M))
        == 1
    )
    assert "  1  callable  work" in text


@pytest.mark.parametrize("call", [schedules.explore, replayed_late])
def test_variables_of_a_failure_go_with_the_exception(engine, call):
    """When the exception is dropped, so are the variables of the failed run.
    Later runs find their objects released."""
    found = []

    class Variable:
        pass

    def fn():
        assert not any(ref() is not None for ref in found)
        variable = Variable()
        found.append(weakref.ref(variable))
        engine.stream().record_event()
        raise LookupError

    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(LookupError) as caught:
                call(fn)
            assert found[-1]() is not None
            del caught
            assert found[-1]() is None
    finally:
        gc.enable()


def test_an_error_that_does_not_come_again(engine):
    calls = []

    def fn():
        calls.append(1)
        engine.stream().record_event()
        assert len(calls) != 5

    with pytest.raises(AssertionError) as caught:
        schedules.explore(fn, runs=20, strategy="random")
    assert "did not fail" in notes(caught.value)
    assert "random:4" in notes(caught.value)


def test_replay_returns_the_result(engine):
    def fn():
        return engine.stream().submit(int, "7").result(LONG)

    assert schedules.replay(fn, "pct:3:17") == 7


def test_run_runs_a_block(engine):
    with schedules.run("late"):
        stream = engine.stream()
        stream.record_event()
        assert not stream.query()
    assert stream.query()


# ---- Deadlocks of callables


def ring(engine, end):
    """Return a program with a deadlock of two callables, which passes their
    Futures to `end`."""

    def fn():
        one, other = engine.stream(), engine.stream()
        futures = [one.submit(lambda: other.synchronize())]
        futures.append(other.submit(lambda: one.synchronize()))
        one.synchronize()
        other.synchronize()
        end(futures)

    return fn


def run_late(fn):
    with schedules.run("late"):
        fn()


@pytest.mark.parametrize(
    "call",
    [
        lambda fn: schedules.explore(fn, strategy="pct"),
        lambda fn: schedules.explore(fn, strategy="all"),
        replayed_late,
        run_late,
    ],
    ids=["pct", "all", "replay", "run"],
)
def test_a_deadlock_that_nobody_retrieves(engine, call, caplog):
    with pytest.raises(RuntimeError, match="wait for each other in a ring"):
        call(ring(engine, lambda futures: None))
    assert caplog.records == []


@pytest.mark.parametrize("call", [replayed_late, run_late])
def test_a_deadlock_that_is_retrieved(engine, call):
    seen = []

    def retrieve(futures):
        seen.extend(future.exception() for future in futures)

    call(ring(engine, retrieve))
    assert sum(error is not None for error in seen) == 1


def test_a_deadlock_that_its_callable_handles(engine):
    seen = []

    def fn():
        stream = engine.stream()

        def work():
            later = stream.submit(int)
            with pytest.raises(RuntimeError, match="deadlock"):
                later.result()
            seen.append(1)

        stream.submit(work)

    schedules.explore(fn, runs=10)
    assert len(seen) == 10


@pytest.mark.parametrize("call", [replayed_late, run_late])
def test_a_deadlock_of_a_program_that_fails_later(engine, call, caplog):
    """The failure is raised, and the deadlock is logged."""

    def fail(futures):
        raise AssertionError(len(futures))

    with pytest.raises(AssertionError):
        call(ring(engine, fail))
    gc.collect()
    (record,) = {record.getMessage() for record in caplog.records}
    assert "never retrieved" in record


@pytest.mark.parametrize("call", [replayed_late, run_late])
def test_a_deadlock_that_ends_another_callable(engine, call):
    """A callable retrieves the error from another one's Future, and fails."""

    def fn():
        one, other = engine.stream(), engine.stream()
        one.submit(lambda: other.submit(one.synchronize).result())
        one.synchronize()

    with pytest.raises(RuntimeError, match="the wait can never end"):
        call(fn)


@pytest.mark.parametrize("call", [replayed_late, run_late])
def test_a_deadlock_that_remaining_work_retrieves(engine, call):
    def fn():
        one, other, third = (engine.stream() for _ in range(3))
        futures = [one.submit(other.synchronize)]
        futures.append(other.submit(one.synchronize))
        third.submit(lambda: [future.exception() for future in futures])
        one.synchronize()
        other.synchronize()

    call(fn)


@pytest.mark.parametrize("handled", [False, True], ids=["lost", "handled"])
def test_a_callable_that_raises_another_error_after_a_deadlock(
    engine, handled, caplog
):
    """Unless the callable has handled the deadlock, the other error tells of
    it."""

    def work(waited):
        try:
            waited.synchronize()
        except RuntimeError:
            if not handled:
                raise KeyError("inner") from ValueError("cause")
        raise KeyError("outer")

    def fn():
        one, other = engine.stream(), engine.stream()
        one.submit(work, other)
        other.submit(work, one)
        one.synchronize()
        other.synchronize()

    if handled:
        schedules.replay(fn, "late")
        gc.collect()
        assert "outer" in caplog.text
    else:
        with pytest.raises(KeyError, match="inner"):
            schedules.replay(fn, "late")


def test_a_deadlock_after_the_function(engine):
    """The deadlock occurs in work that remains when fn returns."""

    def fn():
        one, other = engine.stream(), engine.stream()
        one.submit(lambda: other.synchronize())
        other.submit(lambda: one.synchronize())

    with pytest.raises(RuntimeError, match="wait for each other in a ring"):
        schedules.replay(fn, "late")


# ---- With the race detector


def unordered(engine, fixed=False):
    """Return a program with a copy, a callable and a query.  Unless it is
    fixed, the copy lacks its edge."""

    def fn():
        one, other = engine.stream(), engine.stream()
        a, b = engine.empty(SIZE, stream=one), engine.empty(SIZE, stream=other)
        a.fill_(1, stream=one)
        if fixed:
            other.wait_stream(one)
        b.copy_(a, True, other)
        other.submit(int, "7").result(LONG)
        assert one.query() in (True, False)
        one.synchronize()

    return fn


each_search = pytest.mark.parametrize(
    "strategy", ["early", "all", *STRATEGIES]
)


@each_search
def test_races_are_found_in_any_order(engine, strategy):
    with pytest.raises(races.RaceError) as caught:
        schedules.explore(
            unordered(engine), strategy=strategy, runs=20, races=True
        )
    note = notes(caught.value)
    name = re.search(r'replay\(fn, "(.*)", races=True\)', note)[1]
    with pytest.raises(races.RaceError):
        schedules.replay(unordered(engine), name, races=True)
    schedules.replay(unordered(engine), name)
    assert _C.schedule_is_on() == ("PYSTREAMS_SCHEDULE" in os.environ)


@each_search
def test_what_is_ordered_has_no_races(engine, strategy):
    fn = unordered(engine, fixed=True)
    for checked in (False, True):
        result = schedules.explore(
            fn, strategy=strategy, runs=20, races=checked
        )
        assert result.runs >= 1
    with races.detect():
        assert schedules.explore(fn, strategy=strategy, runs=20) == result
    with races.redundant() as waits:
        schedules.replay(fn, "late")
    assert [wait.name for wait in waits] == ["synchronize"]


def test_the_detector_may_be_switched_on_within_a_schedule(engine):
    with schedules.run("random:3"), races.detect():
        unordered(engine, fixed=True)()
    with races.detect(), schedules.run("random:3"):
        unordered(engine, fixed=True)()
    with (
        pytest.raises(races.RaceError),
        races.detect(),
        schedules.run("early"),
    ):
        unordered(engine)()


# ---- The same order again


def program_of(engine, seed):
    """Run a random program.  Returns what its buffers hold at each wait."""
    choose = random.Random(seed)
    streams = [engine.stream() for _ in range(3)]
    buffers = [engine.empty(SIZE, stream=streams[0]) for _ in range(3)]
    seen = []
    for _ in range(30):
        stream = choose.choice(streams)
        a, b = choose.sample(buffers, 2)
        step = choose.randrange(7)
        if step == 0:
            a.fill_(choose.randrange(256), stream=stream)
        elif step == 1:
            a.copy_(b, True, stream)
        elif step == 2:
            stream.wait_stream(choose.choice(streams))
        elif step == 3:
            seen.append(stream.query())
        elif step == 4:
            engine.sleep(stream, choose.randrange(3))
        elif step == 5:
            stream.submit(seen.append, choose.randrange(100))
        else:
            stream.synchronize()
            seen.append(a.tobytes())
    engine.synchronize()
    return seen + [buffer.tobytes() for buffer in buffers]


@pytest.mark.parametrize("strategy", ["late", "random:{}", "pct:3:{}:60"])
def test_the_same_name_gives_the_same_order(engine, strategy):
    orders = set()
    for seed in range(40):
        name = strategy.format(seed)
        runs = [schedules._Run(name, logged=True) for _ in range(3)]
        results = []
        for run in runs:
            with run:
                results.append(program_of(engine, seed % 4))
        assert results[0] == results[1] == results[2]
        assert runs[0].order == runs[1].order == runs[2].order
        assert runs[0].operations == runs[1].operations == runs[2].operations
        orders.add(runs[0].order)
    assert len(orders) >= (4 if strategy == "late" else 30)


@pytest.mark.parametrize("name", ["late", "pct:2:17:20", "all:0*12,2,1,3"])
def test_streams_from_the_pool(engine, name):
    """Streams that were used before come in the order of their first use."""
    runs = [schedules._Run(name, logged=True) for _ in range(3)]
    for run in runs:
        with run:
            streams = [engine.stream() for _ in range(4)]
            for stream in streams[2:] + streams[:2]:
                stream.record_event()
            engine.synchronize()
            # Close them in another order than that in which they were created.
            for i in (1, 3, 0, 2):
                streams[i].close()
    assert runs[0].operations == runs[1].operations == runs[2].operations
    numbers = sorted((o.number, o.stream) for o in runs[0].operations)
    assert numbers == [(i, i) for i in (1, 2, 3, 4)]


def test_random_programs_on_any_python():
    """The digest is the same on every other Python and machine."""
    assert replays.digest(0, 300) == (
        "4c28cc8dc43812c73d34238c6db6a17940f6dfaa6e644f7eee00f80ffd4c2c5c"
    )


def order_of(engine, name):
    run = schedules._Run(name, logged=True)
    with run:
        streams = [engine.stream() for _ in range(3)]
        for _ in range(2):
            for stream in streams:
                stream.record_event()
        engine.synchronize()
    return [operation.number for operation in run.operations]


def test_the_same_order_on_every_machine(engine):
    assert order_of(engine, "early") == [1, 2, 3, 4, 5, 6]
    assert order_of(engine, "late:1") == [2, 3, 5, 6, 1, 4]
    assert order_of(engine, "random:1") == [2, 1, 3, 4, 5, 6]
    assert order_of(engine, "pct:3:17:12") == [1, 2, 3, 5, 6, 4]


def test_a_depth_of_one_is_hit_as_often_as_it_must(engine):
    """The host or one of n streams reads too early.  This must be found in at
    least every (n + 1)th run."""
    fn, hits, runs, streams = copied(engine), 0, 300, 2
    for seed in range(runs):
        try:
            with schedules.run(f"pct:1:{seed}"):
                fn()
        except AssertionError:
            hits += 1
    # Chance hardly reduces the number of hits by more than 4 standard
    # deviations.
    expected = runs / (streams + 1)
    assert hits > expected - 4 * (expected * (1 - 1 / (streams + 1))) ** 0.5


# ---- What is refused


def replayed(name):
    schedules.replay(int, name)


def entered(name):
    with schedules.run(name):
        pass


@pytest.mark.parametrize("use", [replayed, entered])
@pytest.mark.parametrize(
    "name",
    [
        "",
        "latest",
        "late\n",
        "late:",
        "late:x",
        "late:-1",
        "late:0",
        "late:3,1",
        "late:1,1",
        "late:01",
        "late:+1",
        "late: 1",
        "late:1_0",
        "late:\u0663",
        "late:18446744073709551616",
        "early:",
        "early:1",
        "random",
        "random:-1",
        "random:01",
        "random:1:2",
        "random:18446744073709551616",
        "pct:2",
        "pct:0:1",
        "pct:65:1",
        "pct:2:17:0",
        "pct:1:2:3:4",
        "all:",
        "all:x",
        "all:-1",
        "all:1*1",
        "all:1*0",
        "all:1*2*3",
        "all:0*18446744073709551615",
    ],
)
def test_unknown_names(use, name):
    """A name must be written exactly as in a report.  Any other spelling is
    unknown."""
    with pytest.raises(
        ValueError, match=r"\(\) expects the name of a sched"
    ) as e:
        use(name)
    assert str(e.value).endswith(f", but got {name!r}")


@pytest.mark.parametrize("name", ["late:1,18446744073709551615", "pct:64:0:1"])
def test_the_least_and_the_most(engine, name):
    with schedules.run(name):
        engine.stream().record_event()


def test_names_and_functions_of_a_wrong_type():
    for call, parameter in (
        (lambda: schedules.replay(int, 7), "a str for name, but got int"),
        (lambda: schedules.replay("ok", int), "a str for name, but got type"),
        (lambda: schedules.replay("ok", "late"), "a callable for fn, but got"),
        (lambda: schedules.explore("ok"), "a callable for fn, but got str"),
    ):
        with pytest.raises(TypeError, match=f"expects {parameter}") as raised:
            call()
        assert not hasattr(raised.value, "__notes__")


def test_a_program_without_work():
    assert schedules.explore(int, runs=3).runs == 3


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ((10, 1, None), "10 runs passed, in 1 sequence"),
        ((1, 1, None), "1 run passed, in 1 sequence"),
        ((10, 7, None), "10 runs passed, in 7 different sequences"),
        ((1, 1, False), "1 run passed, in 1 order; there may be more"),
    ],
)
def test_the_text_of_a_result(result, text):
    assert str(schedules.Result(*result)) == text


def test_only_all_can_tell_whether_it_is_complete():
    assert schedules.explore(int, runs=3).complete is None
    assert schedules.explore(int, strategy="all").complete is True


def test_arguments_of_explore():
    for options in (
        {"strategy": "all?"},
        {"strategy": ["pct"]},
        {"runs": 0},
        {"depth": 0},
        {"depth": 65},
    ):
        with pytest.raises(ValueError, match="explore"):
            schedules.explore(int, **options)


@pytest.mark.unscheduled
def test_a_busy_device_is_named(engine):
    gate = engine.gate(engine.stream())
    try:
        with pytest.raises(RuntimeError, match=f"{engine.name}:0"):
            schedules.explore(int)
    finally:
        gate.open()
    engine.synchronize()
    assert _C.schedule_is_on() == ("PYSTREAMS_SCHEDULE" in os.environ)


async def coroutine_function():
    pass


def generator_function():
    yield


async def async_generator_function():
    yield


@pytest.mark.parametrize(
    "fn",
    [coroutine_function, generator_function, async_generator_function],
    ids=lambda fn: fn.__name__,
)
def test_functions_that_do_nothing_when_they_are_called(engine, fn):
    for call in (schedules.explore, lambda fn: schedules.replay(fn, "early")):
        with pytest.raises(TypeError, match="does its work when it is called"):
            call(fn)
    assert schedules.replay(lambda: 7, "early") == 7


@pytest.mark.parametrize("numbers", ["3", "1,900"])
def test_a_stale_name(engine, numbers):
    """The name has numbers of operations that the function does not queue."""

    def fn():
        stream = engine.stream()
        stream.record_event()
        stream.record_event().synchronize()

    schedules.replay(fn, "late:2")
    with pytest.raises(ValueError, match=r"and fn queued 2; explore it again"):
        schedules.replay(fn, f"late:{numbers}")


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("all:9", "choice 1 of 'all:9', stream 9,"),
        ("all:2,1", "choice 1 of 'all:2,1', stream 2,"),
        ("all:0,9*2", "choice 2 of 'all:0,9*2', stream 9,"),
        ("all:0*1000", "the program,"),
    ],
)
def test_a_stale_name_of_choices(engine, name, choice):
    """The name has choices that the function does not have."""

    def fn():
        buffer = engine.empty(SIZE)
        engine.synchronize()
        for value in (1, 2):
            buffer.fill_(value, stream=engine.stream())
        engine.synchronize()

    schedules.replay(fn, "all")
    with pytest.raises(ValueError, match="explore it again") as caught:
        schedules.replay(fn, name)
    assert f"{choice} was not possible; " in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("runs", 1.5, TypeError),
        ("runs", "9", TypeError),
        ("runs", None, TypeError),
        ("runs", 0, ValueError),
        ("depth", "2", TypeError),
        ("depth", 0, ValueError),
        ("depth", 65, ValueError),
        ("seed", "a", TypeError),
        ("seed", "", TypeError),
        ("seed", -1, ValueError),
        ("seed", 1 << 63, ValueError),
    ],
)
def test_a_wrong_number_is_refused(name, value, error):
    came = type(value).__name__ if error is TypeError else value
    with pytest.raises(
        error, match=rf"^explore\(\) expects .+ for {name}, but got {came}$"
    ):
        schedules.explore(int, **{name: value})


def test_numbers_of_another_type(engine):
    found = schedules.explore(
        lambda: engine.stream().synchronize(),
        runs=Number(3),
        depth=Number(2),
        seed=Number(5),
    )
    assert found.runs == 3


def of_two_threads(engine, fixed=False):
    """Return a program in which a copy on one thread's default stream reads
    what another thread's default stream writes."""

    def fn():
        own = pystreams.ExternalStream(2, engine.device())
        a, b = (engine.empty(SIZE, stream=own) for _ in range(2))
        written = []

        def write():
            own.wait_event(ready)
            a.fill_(1, stream=own)
            written.append(own.record_event())

        ready = own.record_event()
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        if fixed:
            own.wait_event(written[0])
        b.copy_(a, True, own)
        own.synchronize()
        with own:
            assert b.tobytes() == bytes([1]) * SIZE

    return fn


@each_strategy
def test_default_streams_of_threads(engine, strategy):
    with pytest.raises(AssertionError) as caught:
        schedules.explore(of_two_threads(engine), runs=200, strategy=strategy)
    with pytest.raises(AssertionError):
        schedules.replay(of_two_threads(engine), name_in(caught.value))
    fixed = of_two_threads(engine, fixed=True)
    schedules.explore(fixed, runs=100, strategy=strategy)


def test_ctrl_c_while_a_schedule_begins(engine, monkeypatch):
    begin = _C.schedule_begin

    def begin_late(*arguments):
        begin(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_C, "schedule_begin", begin_late)
        with pytest.raises(KeyboardInterrupt):
            schedules.explore(copied(engine, fixed=True), runs=1)
    assert gc.isenabled()
    schedules.explore(copied(engine, fixed=True), runs=1)


def test_ctrl_c_while_an_operation_is_noted(engine, monkeypatch):
    """It ends the run."""
    monkeypatch.setattr(
        schedules._Places,
        "note",
        lambda *_: signal.raise_signal(signal.SIGINT),
    )
    with pytest.raises(KeyboardInterrupt):
        schedules.replay(copied(engine, fixed=True), "early")
