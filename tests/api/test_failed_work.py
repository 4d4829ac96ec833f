"""Work that fails: the first failure stays with its stream, travels through
events, and is raised by each wait.  No work behind it runs."""

import gc
import time
from itertools import pairwise

import pytest

import pystreams
from pystreams import _C

STATUS = 719
OPERATIONS = 6


@pytest.fixture
def engine(faulty):
    return faulty


def plant(stream, status=STATUS):
    _C.fail(stream, status)


def raises(function, status=STATUS):
    # Do not use pytest.raises: its result would keep objects alive that the
    # function uses.
    try:
        function()
    except pystreams.AcceleratorError as error:
        assert error.error_code == status
        assert type(error) is pystreams.AcceleratorError
    else:
        pytest.fail("nothing was raised")


def failed_stream(engine):
    stream = engine.stream()
    plant(stream)
    raises(stream.synchronize)
    return stream


@pytest.mark.parametrize("position", range(OPERATIONS + 1))
@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_at_every_position(engine, position, held):
    stream = engine.stream()
    block = engine.empty(100 * OPERATIONS)
    block.zero_()
    engine.synchronize()
    events = [engine.event() for _ in range(OPERATIONS)]

    def program():
        for i, event in enumerate(events):
            if i == position:
                plant(stream)
            block[100 * i : 100 * (i + 1)].fill_(1, stream=stream)
            event.record(stream)
        if position == OPERATIONS:
            plant(stream)

    if held:
        with engine.hold(stream):
            program()
    else:
        program()
    raises(stream.synchronize)
    done = block.tobytes()
    assert done == b"\1" * 100 * position + bytes(
        100 * (OPERATIONS - position)
    )
    for i, event in enumerate(events):
        if i < position:
            assert event.query() is True
            event.synchronize()
        else:
            raises(event.query)
            raises(event.synchronize)


def test_stays_with_the_stream(engine):
    stream = failed_stream(engine)
    for _ in range(3):
        raises(stream.query)
        raises(stream.synchronize)
    block = engine.empty(10)
    block.zero_()
    event = engine.event()
    block.fill_(1, stream=stream)
    event.record(stream)
    raises(stream.synchronize)
    raises(event.synchronize)
    assert block.tobytes() == bytes(10)


def test_the_first_is_kept(engine):
    stream = engine.stream()
    with engine.hold(stream):
        plant(stream, 700)
        plant(stream, 719)
    raises(stream.synchronize, 700)
    raises(stream.query, 700)


@pytest.mark.parametrize("length", [1, 2, 10])
def test_travels_through_events(engine, length):
    streams = [engine.stream() for _ in range(length + 1)]
    block = engine.empty(10)
    block.zero_()
    engine.synchronize()
    bystander = engine.stream()
    with engine.hold(streams[0]):
        plant(streams[0])
        for earlier, later in pairwise(streams):
            later.wait_event(earlier.record_event())
        block.fill_(1, stream=streams[-1])
    raises(streams[-1].synchronize)
    for stream in streams:
        raises(stream.query)
    assert bystander.query()
    bystander.synchronize()
    assert block.tobytes() == bytes(10)


def test_travels_through_an_event_that_already_failed(engine):
    event, later = engine.event(), engine.stream()
    event.record(failed_stream(engine))
    raises(event.synchronize)
    later.wait_event(event)
    raises(later.synchronize)


def test_travels_across_devices(engine):
    if engine.count < 2:
        pytest.skip(f"{engine}: has one device")
    first, second = engine.stream(0), engine.stream(1)
    plant(first)
    second.wait_stream(first)
    raises(second.synchronize)
    assert engine.current_device() == 0


def test_does_not_travel_through_a_record_before_it(engine):
    stream, later = engine.stream(), engine.stream()
    event = engine.event()
    with engine.hold(stream):
        event.record(stream)
        plant(stream)
        later.wait_event(event)
    later.synchronize()
    raises(stream.synchronize)


@pytest.mark.unscheduled
def test_event_recovers_with_its_next_record(engine):
    """An event stands for its latest record, and that record did not fail."""
    event = engine.event()
    event.record(failed_stream(engine))
    raises(event.query)
    event.record(engine.stream())
    event.synchronize()
    assert event.query()


def test_elapsed_time_with_a_failed_end(engine):
    start, end = engine.event(), engine.event()
    stream = engine.stream()
    start.record(stream)
    plant(stream)
    end.record(stream)
    raises(stream.synchronize)
    with pytest.raises(RuntimeError):
        start.elapsed_time(end)


def test_device_synchronize_raises_it(engine):
    stream = engine.stream()
    plant(stream)
    raises(engine.synchronize)
    raises(stream.query)


@pytest.mark.parametrize("close", ["before", "after"])
def test_told_of_by_the_device_when_its_stream_is_gone(engine, close):
    """A failure that no call has raised is raised once, later, whether its
    stream was closed before the work failed or after."""
    stream = engine.stream()
    with engine.hold(stream):
        plant(stream)
        if close == "before":
            stream.close()
    time.sleep(0.05)
    stream.close()
    raises(engine.synchronize)
    engine.synchronize()


def test_seen_and_gone(engine):
    stream = failed_stream(engine)
    del stream
    gc.collect()
    engine.synchronize()


def test_a_new_stream_is_healthy(engine):
    """A failed stream is not recycled for the next user."""
    for _ in range(20):
        stream = failed_stream(engine)
        del stream
        fresh = engine.stream()
        assert fresh.query()
        fresh.synchronize()


def test_failed_while_dropped(engine):
    """A stream that fails after it was given back is not recycled either."""
    stream = engine.stream()
    with engine.hold(stream):
        plant(stream)
        del stream
        gc.collect()
    raises(engine.synchronize)
    engine.synchronize()
    for _ in range(20):
        engine.stream().synchronize()


def test_with_block_on_a_failed_stream(engine):
    stream = failed_stream(engine)
    before = engine.currents()
    with stream:
        raises(engine.current_stream().query)
    assert engine.currents() == before


@pytest.mark.unscheduled
def test_memory_is_given_back(engine):
    before = _C.memory_stats(engine.type, 0)["allocated_bytes.all.current"]
    stream = failed_stream(engine)
    for _ in range(5):
        block = engine.empty(1000, stream=stream)
        block.fill_(1, stream=stream)
        block.record_stream(stream)
        block.close()
    del block, stream
    gc.collect()
    engine.synchronize()
    now = _C.memory_stats(engine.type, 0)["allocated_bytes.all.current"]
    assert now == before


def test_blocking_copy_raises_it(engine):
    stream = failed_stream(engine)
    block = engine.empty(10)
    block.zero_()
    raises(lambda: block.copy_(bytes(10), stream=stream))
    with stream:
        raises(block.tobytes)
    assert block.tobytes() == bytes(10)


@pytest.mark.parametrize("status", [1, 3, 400, 700, 719, 999])
def test_any_status(engine, status):
    stream = engine.stream()
    plant(stream, status)
    with pytest.raises(pystreams.AcceleratorError) as caught:
        stream.synchronize()
    assert caught.value.error_code == status
    assert _C.status_text(engine.type, status) in str(caught.value)


@pytest.mark.parametrize("status", [0, 600])
def test_success_and_not_ready_are_no_failures(engine, status):
    stream = engine.stream()
    with pytest.raises((RuntimeError, ValueError)):
        plant(stream, status)
    stream.synchronize()
