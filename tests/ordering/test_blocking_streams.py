"""Streams made with blocking=True: what serializes with the default stream of
their device and what does not, and what is reported about it."""

import asyncio
import ctypes
import gc
import random
import re

import pytest
from deadlines import LONG

import pystreams
from pystreams import (
    _C,
    ExternalStream,
    Stream,
    races,
    schedules,
    timeline,
)
from pystreams import cuda as api
from pystreams.cuda._graphs import Graph

SIZE = 64


class Sides:
    """The default stream of a device, and blocking streams."""

    def __init__(self, backend):
        self.backend = backend
        self.default = backend.default_stream()
        self.a = backend.stream(blocking=True)
        self.b = backend.stream(blocking=True)


@pytest.fixture
def sides(backend):
    yield Sides(backend)
    backend.synchronize()


def is_held(stream):
    """Return whether work that is queued on the stream now has to wait, and an
    event behind that work."""
    event = stream.record_event(pystreams.Event(stream.device.type))
    held = not event.query()
    return held, event


def check_order(backend, first, second):
    """Check that work on second waits for the work that first has."""
    gate = backend.gate(first)
    held, event = is_held(second)
    assert held
    gate.open()
    event.synchronize(LONG)


def check_no_order(backend, first, second):
    gate = backend.gate(first)
    event = second.record_event(backend.event())
    event.synchronize(LONG)
    gate.open()
    first.synchronize(LONG)


# ---- What is asked for, and what is said ----


def test_streams_are_non_blocking(backend):
    assert backend.stream().is_non_blocking
    assert backend.stream(blocking=False).is_non_blocking


def test_a_blocking_stream(backend):
    stream = backend.stream(blocking=True, priority=-1, name="copy")
    assert not stream.is_non_blocking
    assert (stream.priority, stream.name) == (-1, "copy")


def test_the_default_stream_is_a_blocking_one(backend):
    assert not backend.default_stream().is_non_blocking


def test_cuda_streams(cuda):
    assert not api.Stream(blocking=True).is_non_blocking
    assert api.Stream(None, 0).is_non_blocking


def test_it_is_read_only(backend):
    stream = backend.stream()
    with pytest.raises(AttributeError):
        stream.is_non_blocking = False
    assert stream.is_non_blocking


def test_of_a_closed_stream(backend):
    stream = backend.stream(blocking=True)
    stream.close()
    with pytest.raises(ValueError, match="the Stream is closed"):
        stream.is_non_blocking  # noqa: B018


@pytest.mark.parametrize("blocking", [False, True])
def test_of_streams_that_share(backend, blocking):
    stream = backend.stream(blocking=blocking)
    shared = ExternalStream(stream)
    assert shared.is_non_blocking is not blocking
    handle = ExternalStream(stream.native_handle, backend.device())
    assert handle.is_non_blocking is not blocking


@pytest.mark.parametrize("blocking", [False, True])
def test_of_a_stream_that_others_made(backend, blocking):
    """The stream asks the backend whether it is blocking."""
    status, handle = _C.raw_stream_create(backend.type, 0, blocking)
    assert status == 0
    external = ExternalStream(handle, backend.device())
    assert external.is_non_blocking is not blocking
    assert _C.raw_stream_destroy(backend.type, handle) == 0


@pytest.mark.parametrize("blocking", [False, True])
def test_races_of_a_stream_that_others_made(backend, blocking):
    """A declared kernel is ordered by the default stream, too."""
    status, handle = _C.raw_stream_create(backend.type, 0, blocking)
    assert status == 0
    external = ExternalStream(handle, backend.device())
    default, found = backend.default_stream(), []
    memory = backend.empty(64, stream=default)
    default.synchronize()
    with races.detect(found.append):
        memory.fill_(1, stream=default)
        races.declare(external, reads=[memory])
        memory.fill_(2, stream=default)
    assert len(found) == (0 if blocking else 2)
    external.synchronize()
    assert _C.raw_stream_destroy(backend.type, handle) == 0


@pytest.mark.parametrize("blocking", [False, True])
def test_memory_freed_on_the_default_stream(backend, blocking):
    """A kernel on a blocking stream is done before the memory is free."""
    side, other = backend.stream(blocking=blocking), backend.stream()
    default, found = backend.default_stream(), []
    place = {"device": backend.device(), "stream": default}
    with races.detect(found.append):
        for _ in range(200):
            memory = pystreams.empty(4096, **place)
            races.declare(side, reads=[memory], name="kernel")
            address = memory.data_ptr()
            del memory
            again = pystreams.empty(4096, **{**place, "stream": other})
            same = again.data_ptr() == address
            again.fill_(0, stream=other)
            if same:
                break
        else:
            pytest.skip("the allocator did not give the address again")
    assert bool(found) is not blocking


def test_streams_of_cudart(cuda):
    """cudaStreamCreate makes blocking streams."""
    place = ctypes.c_void_p()
    cudart = api.cudart()
    assert cudart.cudaStreamCreate(ctypes.addressof(place)) == 0
    assert not api.ExternalStream(place.value).is_non_blocking
    assert cudart.cudaStreamDestroy(place.value) == 0


@pytest.mark.parametrize("value", ["yes", 1.0])
def test_another_type_is_refused(backend, value):
    name = type(value).__name__
    with pytest.raises(
        TypeError, match=f"a bool for blocking, but got {name}"
    ):
        backend.stream(blocking=value)


def test_it_is_no_option_of_a_stream_that_exists(backend):
    stream = backend.stream()
    with pytest.raises(
        TypeError,
        match=r"expects either device, priority.*but got blocking and "
        "stream_id$",
    ):
        Stream(
            stream_id=stream.stream_id,
            device_index=0,
            device_type=backend.type,
            blocking=True,
        )


def test_recycled_streams_are_of_the_kind(backend):
    """The pool keeps blocking and other streams apart."""
    for _ in range(40):
        for blocking in (True, False):
            stream = backend.stream(blocking=blocking)
            assert stream.is_non_blocking is not blocking
            stream.close()


# ---- Order ----


def test_the_default_stream_waits_for_blocking_ones(backend, sides):
    check_order(backend, sides.a, sides.default)


def test_blocking_streams_wait_for_the_default_stream(backend, sides):
    check_order(backend, sides.default, sides.a)


def test_a_stream_that_is_made_while_the_default_stream_works(backend):
    default = backend.default_stream()
    gate = backend.gate(default)
    held, event = is_held(backend.stream(blocking=True))
    assert held
    gate.open()
    event.synchronize(LONG)


def test_work_of_the_default_stream_is_a_barrier(backend, sides):
    """It is a barrier between two blocking streams, which are not ordered
    without it."""
    check_no_order(backend, sides.a, sides.b)
    gate = backend.gate(sides.a)
    sides.default.record_event()
    held, event = is_held(sides.b)
    assert held
    gate.open()
    event.synchronize(LONG)


def test_what_is_queued_later_is_not_waited_for(backend, sides):
    event = sides.default.record_event(backend.event())
    gate = backend.gate(sides.a)
    event.synchronize(LONG)
    gate.open()


def test_other_streams_take_no_part(backend, sides):
    stream = backend.stream()
    check_no_order(backend, stream, sides.default)
    check_no_order(backend, sides.default, stream)
    check_no_order(backend, stream, sides.a)


def test_devices_take_no_part_in_each_other(two_devices):
    backend = two_devices
    stream = backend.stream(1, blocking=True)
    check_no_order(backend, backend.default_stream(0), stream)
    check_order(backend, backend.default_stream(1), stream)


def test_query_and_synchronize(backend, sides):
    """query() and synchronize() of the default stream also cover the work of
    blocking streams."""
    gate = backend.gate(sides.a)
    assert not sides.default.query()
    with pytest.raises(TimeoutError):
        sides.default.synchronize(0.01)
    gate.open()
    sides.default.synchronize(LONG)
    assert sides.a.query()
    assert sides.default.query()


def test_await(backend, sides):
    async def main():
        gate = backend.gate(sides.a)
        asyncio.get_running_loop().call_later(0.05, gate.open)
        await sides.default
        assert sides.a.query()

    asyncio.run(main())


def test_fills_and_copies(backend, sides):
    """Fills and copies are ordered, although the program has no waits."""
    x, y = backend.empty(SIZE), backend.empty(SIZE)
    backend.synchronize()
    gate = backend.gate(sides.a)
    for byte, (writer, reader) in enumerate(
        [
            (sides.a, sides.default),
            (sides.default, sides.b),
            (sides.b, sides.default),
            (sides.default, sides.a),
        ]
        * 10
    ):
        x.fill_(byte, stream=writer)
        y.copy_(x, True, reader)
    gate.open()
    sides.a.synchronize(LONG)
    assert y.tobytes() == bytes([39]) * SIZE


def test_callables(backend, sides):
    """Callables run in the order in which they were queued."""
    order = []
    futures = [
        stream.submit(order.append, number)
        for number, stream in enumerate(
            [sides.a, sides.default, sides.b, sides.default] * 10
        )
    ]
    for future in futures:
        future.result(LONG)
    assert order == list(range(40))


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(backend, seed):
    """When a callable runs, all callables that must come before it have run.
    Sets model which callables these are."""
    choose = random.Random(seed)
    default = backend.default_stream()
    blocking = [backend.stream(blocking=True) for _ in range(3)]
    streams = [default, *blocking, backend.stream(), backend.stream()]
    # For each stream, the callables that must run before work that is queued
    # on it now.
    behind = {stream: set() for stream in streams}
    order, before, futures = [], [], []
    for number in range(60):
        stream = choose.choice(streams)
        others = (
            blocking
            if stream is default
            else [default]
            if stream in blocking
            else []
        )
        behind[stream] |= set().union(*(behind[other] for other in others))
        if choose.random() < 0.2:
            other = choose.choice(streams)
            stream.wait_stream(other)
            if other is default:
                behind[other] |= set().union(*(behind[b] for b in blocking))
            elif other in blocking:
                behind[other] |= behind[default]
            behind[stream] |= behind[other]
        before.append(set(behind[stream]))
        futures.append(stream.submit(order.append, number))
        behind[stream].add(number)
    for future in futures:
        future.result(LONG)
    places = {number: place for place, number in enumerate(order)}
    for number, earlier in enumerate(before):
        assert all(places[other] < places[number] for other in earlier)


def test_many_blocking_streams(backend):
    """Each blocking stream is waited for, and waits."""
    default = backend.default_stream()
    streams = [backend.stream(blocking=True) for _ in range(50)]
    gates = [backend.gate(stream) for stream in streams[::49]]
    event = default.record_event(backend.event())
    later = [is_held(stream) for stream in streams]
    assert all(held for held, _ in later)
    gates[0].open()
    assert not event.query()
    gates[1].open()
    for _, each in later:
        each.synchronize(LONG)
    assert event.query()


def test_a_stream_that_is_closed_while_it_works(backend):
    """The work of the closed stream still counts."""
    stream = backend.stream(blocking=True)
    gate = backend.gate(stream)
    stream.close()
    held, event = is_held(backend.default_stream())
    assert held
    gate.open()
    event.synchronize(LONG)


# ---- What only the engine shows ----


FAIL = """
import sys
import pystreams
from pystreams import _C

streams = {
    "blocking": pystreams.Stream("cpu:0", blocking=True),
    "default": _C.default_stream(0, 0),
}
first, second, waits = sys.argv[1:]
_C.fail(streams[first], 719)
try:
    if waits == "query":
        assert streams[second].query()
    else:
        streams[second].record_event().synchronize()
except pystreams.AcceleratorError as error:
    assert error.error_code == 719
else:
    sys.exit("no failure")
"""


@pytest.mark.unscheduled
@pytest.mark.parametrize(
    "names",
    [
        ("blocking", "default", "record"),
        ("default", "blocking", "record"),
        ("blocking", "default", "query"),
    ],
    ids="-".join,
)
def test_failures_travel(run_python, names):
    """Work that waits for failed work of the other side fails, as after a wait
    for an event."""
    done = run_python(FAIL, *names)
    assert (done.returncode, done.stderr) == (0, "")


FAILED_BEFORE = """
import pystreams
from pystreams import _C

default = _C.default_stream(0, 0)
earlier = pystreams.Stream("cpu:0", blocking=True)
default.record_event()
_C.fail(default, 719)
pystreams.Stream("cpu:0", blocking=True).record_event().synchronize()
"""


@pytest.mark.unscheduled
def test_a_new_stream_has_no_earlier_failure(run_python):
    done = run_python(FAILED_BEFORE)
    assert (done.returncode, done.stderr) == (0, "")


def test_full_queues(engine, sides):
    """The waits between the default stream and blocking streams need no
    room."""
    gate = engine.gate(sides.default)
    engine.fill(sides.default, 1)
    gates = [gate, engine.gate(sides.a)]
    with pytest.raises(TimeoutError):
        sides.default.synchronize(0.01)
    held, event = is_held(sides.b)
    assert held
    for gate in gates:
        gate.open()
    event.synchronize(LONG)
    sides.default.synchronize(LONG)
    assert sides.a.query()


def test_explain(engine, sides):
    gate = engine.gate(sides.a)
    sides.default.record_event()
    try:
        text = str(pystreams.explain(sides.default))
    finally:
        gate.open()
    assert "default stream" in text
    assert f"{sides.a.native_handle:#x}" in text


def test_nothing_is_queued_in_vain(engine, sides):
    """One wait covers all work that the other side has."""
    gate = engine.gate(sides.default)
    engine.gate(sides.a).open()
    before = pending(sides.a)
    for _ in range(10):
        sides.a.record_event()
    after = pending(sides.a)
    gate.open()
    assert after == before + 10


def pending(stream):
    return int(re.search(r"has (\d+) op", str(pystreams.explain(stream)))[1])


@pytest.mark.unscheduled
def test_without_blocking_streams_nothing_is_queued(engine):
    stream, default = engine.stream(), engine.default_stream()
    gc.collect()
    gate = engine.gate(stream)
    default.synchronize(LONG)
    default.record_event()
    assert "pending" not in repr(default)
    gate.open()


# ---- Observers ----


@pytest.fixture
def found():
    found = []
    with races.detect(lambda race: found.append(race)):
        yield found


@pytest.mark.parametrize("early", [True, False])
def test_races_are_not_found_across_the_order(backend, sides, early):
    x, y = backend.empty(SIZE), backend.empty(SIZE)
    backend.synchronize()
    found = []
    with races.detect(lambda race: found.append(race)):
        a = sides.a if early else backend.stream(blocking=True)
        b = sides.b if early else backend.stream(blocking=True)
        x.fill_(1, stream=a)
        y.copy_(x, True, sides.default)
        x.fill_(2, stream=b)
        backend.synchronize()
    assert found == []


def test_races_of_blocking_streams_are_found(backend, sides, found):
    """Blocking streams order nothing among themselves."""
    x = backend.empty(SIZE)
    backend.synchronize()
    x.fill_(1, stream=sides.a)
    x.fill_(2, stream=sides.b)
    backend.synchronize()
    assert len(found) == 1


def test_races_with_other_streams_are_found(backend, sides, found):
    x, stream = backend.empty(SIZE), backend.stream()
    backend.synchronize()
    x.fill_(1, stream=sides.default)
    x.fill_(2, stream=stream)
    backend.synchronize()
    assert len(found) == 1


def test_a_barrier_orders_for_the_detector(backend, sides, found):
    x = backend.empty(SIZE)
    backend.synchronize()
    x.fill_(1, stream=sides.a)
    sides.default.record_event()
    x.fill_(2, stream=sides.b)
    backend.synchronize()
    assert found == []


def test_a_query_orders_nothing_for_the_detector(backend, sides, found):
    x = backend.empty(SIZE)
    backend.synchronize()
    gate = backend.gate(sides.a)
    x.fill_(1, stream=sides.a)
    assert not sides.default.query()
    x.fill_(2, stream=sides.b)
    gate.open()
    backend.synchronize()
    assert len(found) == 1


def test_the_host_learns_of_blocking_streams(backend, sides, found):
    """The host learns of their work when it synchronizes with the default
    stream."""
    x = backend.host(SIZE)
    backend.synchronize()
    x.fill_(1, stream=sides.a)
    sides.default.synchronize()
    assert x.memoryview()[0] == 1
    assert found == []


def test_callables_and_the_detector(backend, sides, found):
    x = backend.empty(SIZE)
    backend.synchronize()
    sides.a.submit(lambda x: x.fill_(1), x)
    x.fill_(2, stream=sides.default)
    backend.synchronize()
    assert found == []


@pytest.mark.usefixtures("no_gpu_is_used")
@pytest.mark.parametrize("strategy", ["late", "random", "pct", "all"])
@pytest.mark.parametrize("ordered", [True, False])
def test_schedules(engine, strategy, ordered):
    """No schedule breaks the order.  Without an order, a schedule is found
    that runs the work in the other order."""

    def fn():
        stream = engine.stream(blocking=ordered)
        default = engine.default_stream()
        x = engine.empty(SIZE, stream=stream)
        y = engine.empty(SIZE, stream=stream)
        stream.synchronize()
        x.fill_(1, stream=stream)
        y.copy_(x, True, default)
        default.synchronize()
        assert y.tobytes() == bytes([1]) * SIZE

    if ordered:
        schedules.explore(fn, strategy=strategy)
    else:
        with pytest.raises(AssertionError):
            schedules.explore(fn, strategy=strategy)


@pytest.mark.usefixtures("no_gpu_is_used")
def test_replay_of_a_schedule(engine):
    """The order is the same in each replay, whatever ran before."""

    def fn():
        a, b = (engine.stream(blocking=True) for _ in range(2))
        default = engine.default_stream()
        order = []
        for number, stream in enumerate([a, b, default, b, a, default]):
            stream.submit(order.append, number)
        default.synchronize()
        assert order[2] == 2, order
        assert order[5] == 5, order
        return order

    with schedules.run("late"):
        pass
    schedules.explore(fn)
    schedules.explore(fn)


def test_a_capture_says_which_call_used_the_default_stream(engine):
    stream, default = engine.stream(blocking=True), engine.default_stream()
    block = engine.empty(SIZE)
    engine.synchronize()
    graph = Graph(engine.type)
    with stream:
        graph.capture_begin()
        with pytest.raises(pystreams.AcceleratorError):
            block.fill_(1, stream=default)
        with pytest.raises(
            pystreams.AcceleratorError, match=r"a fill on the stream .*, at"
        ):
            graph.capture_end()


def test_a_wait_of_the_host_is_none_of_the_stream(backend, sides):
    with timeline.record() as t:
        backend.sleep(sides.a, 1)
        sides.default.record_event()
        backend.sleep(sides.default, 1)
        sides.a.synchronize()
        backend.synchronize()
    waits = [row[3] for row in t.rows if row[0] == "wait"]
    assert waits == ["default stream"]


def test_the_timeline_shows_what_work_waited_for(backend, sides):
    with timeline.record() as t:
        for stream in (sides.a, sides.default, sides.b):
            backend.sleep(stream, 10)
        backend.synchronize()
    waits = [row for row in t.rows if row[0] == "wait"]
    sources = [t.rows[row[12]][3] for row in waits]
    assert [row[3] for row in waits] == [
        "default stream",
        f"stream {sides.b.native_handle:#x}",
    ]
    assert sources == [
        f"stream {sides.a.native_handle:#x}",
        "default stream",
    ]
    steps = t.critical_path().steps
    assert [step.after for step in steps if step.row is not None] == [
        "host",
        "wait",
        "wait",
    ]
