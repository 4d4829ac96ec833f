"""Event: flags, versioned records, waiting, elapsed time."""

import gc
import threading
import weakref
from itertools import pairwise

import pytest

import pystreams
from pystreams import Event


def test_flags_by_default(backend):
    event = backend.event()
    assert event.enable_timing is True
    assert event.blocking is False
    assert event.interprocess is False


@pytest.mark.parametrize("enable_timing", [True, False])
@pytest.mark.parametrize("blocking", [True, False])
def test_flags(backend, enable_timing, blocking):
    event = Event(
        backend.device(), enable_timing=enable_timing, blocking=blocking
    )
    assert event.enable_timing is enable_timing
    assert event.blocking is blocking
    stream = backend.stream()
    with backend.hold(stream):
        event.record(stream)
        assert event.query() is False
    event.synchronize()
    assert event.query() is True


def test_flags_are_keywords(backend):
    with pytest.raises(TypeError):
        Event(backend.device(), True)


def test_interprocess_is_not_timed_unless_asked(backend):
    event = Event(backend.device(), interprocess=True)
    assert event.interprocess and not event.enable_timing


def test_interprocess_is_not_timed(backend):
    with pytest.raises((RuntimeError, ValueError), match="interprocess"):
        Event(backend.device(), enable_timing=True, interprocess=True)


def test_of_the_accelerator():
    accelerator = pystreams.accelerator.current_accelerator()
    assert Event().device.type == accelerator.type


def test_before_the_first_record(backend):
    event = backend.event()
    assert event.device == pystreams.device(backend.name)
    assert event.device.index is None
    assert event.event_id == 0
    assert event.query() is True
    assert event.synchronize() is None
    assert event.wait() is None
    assert event.wait(backend.stream()) is None
    assert event.event_id == 0


def test_after_the_first_record(backend):
    event = backend.event()
    stream = backend.stream()
    assert event.record(stream) is None
    assert event.device == backend.device(0)
    first = event.event_id
    assert type(first) is int
    assert first != 0
    event.record(stream)
    event.record()
    assert event.event_id == first


@pytest.mark.parametrize(
    "name", ["device", "event_id", "enable_timing", "blocking", "interprocess"]
)
def test_read_only(backend, name):
    event = backend.event()
    value = getattr(event, name)
    with pytest.raises(AttributeError):
        setattr(event, name, value)
    assert getattr(event, name) == value


def test_record_takes_the_current_stream(backend):
    event, stream = backend.event(), backend.stream()
    with backend.hold(stream):
        with stream:
            event.record()
        assert not event.query()
    event.synchronize()


def test_record_takes_the_current_device(two_devices):
    event = two_devices.event()
    with two_devices.stream(1):
        event.record()
    assert event.device == two_devices.device(1)
    assert two_devices.current_device() == 0


def test_wait_takes_the_current_stream(backend):
    event = backend.event()
    held, waits = backend.stream(), backend.stream()
    with backend.hold(held):
        event.record(held)
        with waits:
            event.wait()
        assert not waits.query()
        assert backend.stream().query()
    waits.synchronize()


def test_wait_on_a_named_stream(backend):
    event = backend.event()
    held, waits = backend.stream(), backend.stream()
    with backend.hold(held):
        event.record(held)
        event.wait(stream=waits)
        assert not waits.query()
    waits.synchronize()


def test_wait_means_the_record_at_the_call(backend):
    """A later record of the event does not release a wait made before."""
    event = backend.event()
    held, waits, idle = (backend.stream() for _ in range(3))
    with backend.hold(held):
        event.record(held)
        waits.wait_event(event)
        event.record(idle)
        event.synchronize()
        assert event.query()
        assert not waits.query()
        idle.wait_event(event)
        idle.synchronize()
    waits.synchronize()


def test_a_later_record_does_not_hold_up_a_wait(backend):
    event = backend.event()
    held, waits, idle = (backend.stream() for _ in range(3))
    event.record(idle)
    waits.wait_event(event)
    with backend.hold(held):
        event.record(held)
        waits.synchronize()
        assert waits.query()
        assert not event.query()
    event.synchronize()


def test_complete_then_recorded_again(backend):
    """After a new record, an event does not count as complete because its
    previous record was."""
    event, stream = backend.event(), backend.stream()
    for _ in range(3):
        event.record(stream)
        event.synchronize()
        assert event.query()
        with backend.hold(stream):
            event.record(stream)
            assert not event.query()
        event.synchronize()
        assert event.query()


def test_synchronize_waits_for_the_record_at_the_call(backend):
    event = backend.event()
    stream = backend.stream()
    event.record(stream)
    with backend.hold(stream):
        event.synchronize()
        assert event.query()
        assert not stream.query()
    stream.synchronize()


def test_record_covers_the_work_before_it_only(backend):
    stream = backend.stream()
    before, after = backend.event(), backend.event()
    before.record(stream)
    with backend.hold(stream):
        after.record(stream)
        before.synchronize()
        assert before.query()
        assert not after.query()
    after.synchronize()


def test_one_event_on_many_streams(backend):
    event = backend.event()
    streams = [backend.stream() for _ in range(20)]
    waits = [backend.stream() for _ in range(20)]
    for stream, waiter in zip(streams, waits, strict=True):
        event.record(stream)
        waiter.wait_event(event)
    for waiter in waits:
        waiter.synchronize()
    assert event.query()


def test_chain(backend):
    streams = [backend.stream() for _ in range(50)]
    with backend.hold(streams[0]):
        for earlier, later in pairwise(streams):
            later.wait_event(earlier.record_event())
        assert not any(s.query() for s in streams)
    streams[-1].synchronize()
    assert all(s.query() for s in streams)


def test_wait_from_another_device(two_devices):
    event = two_devices.event()
    held, waits = two_devices.stream(0), two_devices.stream(1)
    with two_devices.hold(held):
        event.record(held)
        event.wait(waits)
        assert not waits.query()
        with waits:
            event.wait()
    waits.synchronize()
    assert event.device == two_devices.device(0)


def test_query_and_synchronize_from_another_device(two_devices):
    event = two_devices.event()
    event.record(two_devices.stream(0))
    with two_devices.stream(1):
        event.synchronize()
        assert event.query()
        assert two_devices.current_device() == 1


def test_bound_to_the_device_of_its_first_record(two_devices):
    event = two_devices.event()
    event.record(two_devices.stream(0))
    event.synchronize()
    with pytest.raises(RuntimeError) as caught:
        event.record(two_devices.stream(1))
    assert str(caught.value) == (
        "Event device index 0 does not match recording stream's device "
        "index 1."
    )
    with pytest.raises(RuntimeError, match="device index 0 does not match"):
        two_devices.stream(1).record_event(event)
    assert event.device == two_devices.device(0)
    assert event.query()


@pytest.mark.parametrize(
    ("mine", "other"), [("cuda", "cpu"), ("cpu", "cuda")], ids=str
)
def test_recorded_on_another_type(cuda, mine, other):
    event = Event(mine)
    with pytest.raises(RuntimeError) as caught:
        event.record(pystreams.Stream(pystreams.device(other, 0)))
    assert str(caught.value) == (
        f"Event device type {mine.upper()} does not match recording "
        f"stream's device type {other.upper()}."
    )
    assert event.event_id == 0
    assert event.device.index is None


def test_elapsed_time(backend):
    stream = backend.stream()
    start, end = backend.event(), backend.event()
    start.record(stream)
    backend.sleep(stream, 5)
    end.record(stream)
    end.synchronize()
    elapsed = start.elapsed_time(end)
    assert type(elapsed) is float
    assert elapsed >= (4.999 if backend.on_engine else 2)
    assert end.elapsed_time(start) == -elapsed
    assert start.elapsed_time(start) == 0.0


def test_elapsed_time_is_never_negative_on_one_stream(backend):
    stream = backend.stream()
    events = [backend.event() for _ in range(100)]
    for event in events:
        event.record(stream)
    stream.synchronize()
    for earlier, later in pairwise(events):
        assert earlier.elapsed_time(later) >= 0


def test_elapsed_time_is_of_the_latest_records(backend):
    stream = backend.stream()
    start, end = backend.event(), backend.event()
    start.record(stream)
    backend.sleep(stream, 3)
    end.record(stream)
    start.record(stream)
    end.record(stream)
    end.synchronize()
    again = start.elapsed_time(end)
    backend.sleep(stream, 3)
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) > again >= 0


def test_elapsed_time_refuses_in_this_order(two_devices):
    """Each check is reached although every later check would fail, too."""
    name = two_devices.name
    timed, plain = Event(name), Event(name, enable_timing=False)

    with pytest.raises(TypeError):
        plain.elapsed_time(object())
    with pytest.raises(TypeError):
        plain.elapsed_time()

    message = "Both events must be created with argument 'enable_timing=True'."
    for first, second in ((timed, plain), (plain, timed), (plain, plain)):
        with pytest.raises(ValueError) as caught:
            first.elapsed_time(second)
        assert str(caught.value) == message

    recorded, unrecorded = Event(name), Event(name)
    message = "Both events must be recorded before calculating elapsed time."
    held, elsewhere = two_devices.stream(0), two_devices.stream(1)
    with two_devices.hold(held):
        recorded.record(held)
        for first, second in (
            (recorded, unrecorded),
            (unrecorded, recorded),
            (unrecorded, unrecorded),
        ):
            with pytest.raises(ValueError) as caught:
                first.elapsed_time(second)
            assert str(caught.value) == message

        foreign = Event(name)
        foreign.record(elsewhere)
        with pytest.raises(RuntimeError, match="device"):
            recorded.elapsed_time(foreign)

        done = Event(name)
        done.record(two_devices.stream(0))
        done.synchronize()
        message = (
            "Both events must be completed before calculating elapsed time."
        )
        for first, second in ((recorded, done), (done, recorded)):
            with pytest.raises(RuntimeError) as caught:
                first.elapsed_time(second)
            assert str(caught.value) == message
    held.synchronize()
    assert recorded.elapsed_time(done) is not None


def test_elapsed_time_of_two_types(cuda):
    """Types are compared before the flags are."""
    for flags in ({}, {"enable_timing": False}):
        mine, other = Event("cuda", **flags), Event("cpu", **flags)
        with pytest.raises(RuntimeError, match="type"):
            mine.elapsed_time(other)


def test_dropped_while_pending(backend):
    held, waits = backend.stream(), backend.stream()
    event = backend.event()
    with backend.hold(held):
        event.record(held)
        waits.wait_event(event)
        del event
        gc.collect()
        fresh = backend.event()
        fresh.record(backend.stream())
        fresh.synchronize()
        assert not waits.query()
    waits.synchronize()


def test_its_stream_may_go_first(backend):
    event = backend.event()
    event.record(backend.stream())
    gc.collect()
    event.synchronize()
    assert event.query()
    event.record(backend.stream())
    event.synchronize()


def test_recycled_event_starts_afresh(backend):
    for _ in range(20):
        event = backend.event()
        assert event.event_id == 0
        assert event.query()
        event.record(backend.default_stream())
        assert event.event_id != 0
        event.synchronize()
        del event


def test_live_events_are_distinct(backend):
    events = [backend.event() for _ in range(200)]
    for event in events:
        event.record()
    assert len({event.event_id for event in events}) == 200


def test_repr(backend):
    event = backend.event()
    assert repr(event) == "<pystreams.Event uninitialized>"
    event.record(backend.stream())
    assert repr(event) == f"<pystreams.Event {backend.device(0)} " + (
        f"{event.event_id:#x}>"
    )


def test_identity(backend):
    event, other = backend.event(), backend.event()
    assert event == event
    assert event != other
    assert len({event, event, other}) == 2
    with pytest.raises(TypeError):
        sorted([event, other])


def test_subclass_and_weak_reference(backend):
    class Mine(Event):
        pass

    event = Mine(backend.device(), enable_timing=False)
    event.note = "anything"
    assert backend.stream().record_event(event) is event
    event.synchronize()
    reference = weakref.ref(event)
    del event
    gc.collect()
    assert reference() is None


def test_synchronized_by_many_threads(backend):
    event, stream = backend.event(), backend.stream()
    done = []

    def wait():
        event.synchronize()
        done.append(event.query())

    with backend.hold(stream):
        event.record(stream)
        threads = [threading.Thread(target=wait) for _ in range(8)]
        for thread in threads:
            thread.start()
        assert done == []
    for thread in threads:
        thread.join()
    assert done == [True] * 8


def test_a_device_is_no_switch(cuda):
    for device in ("cuda:0", 0, cuda.device()):
        with pytest.raises(TypeError, match="a bool for enable_timing"):
            pystreams.cuda.Event(device)


class TestOfADevice:
    """An event that is made with the index of a device."""

    def test_it_says_so(self, two_devices):
        name = two_devices.name
        event = Event(f"{name}:1")
        assert event.device == two_devices.device(1)
        assert repr(event) == f"<pystreams.Event {name}:1 uninitialized>"
        assert event.event_id == 0
        assert event.query()
        stream = two_devices.stream(1)
        event.record(stream)
        assert event.device == stream.device
        assert repr(event) == (
            f"<pystreams.Event {name}:1 {event.event_id:#x}>"
        )
        # An event that is made with the type alone has no device index yet.
        assert Event(name).device == pystreams.device(name)
        assert repr(Event(name)) == "<pystreams.Event uninitialized>"

    @pytest.mark.parametrize("pooled", [False, True], ids=["new", "pooled"])
    def test_another_device_does_not_record_it(self, two_devices, pooled):
        here, there = two_devices.stream(0), two_devices.stream(1)
        if pooled:
            # Leave a native event for the next one on either device.
            for stream in (here, there):
                stream.record_event(two_devices.event())
        event = Event(two_devices.device(1))
        message = (
            "Event device index 1 does not match recording stream's device "
            "index 0."
        )
        for record in (
            lambda: event.record(here),
            lambda: event.record(),
            lambda: here.record_event(event),
        ):
            with pytest.raises(RuntimeError) as caught:
                record()
            assert str(caught.value) == message
        assert event.event_id == 0
        assert event.device == two_devices.device(1)
        event.record(there)
        with pytest.raises(RuntimeError) as caught:
            event.record(here)
        assert str(caught.value) == message

    def test_any_device_waits_for_it(self, two_devices):
        here, there = two_devices.stream(0), two_devices.stream(1)
        event = Event(two_devices.device(1))
        event.wait(here)
        with two_devices.hold(there):
            event.record(there)
            here.wait_event(event)
            assert not here.query()
        here.synchronize()

    @pytest.mark.unscheduled
    def test_its_handle_is_of_that_device(self, two_devices):
        event = Event(
            two_devices.device(1), interprocess=True, enable_timing=False
        )
        assert len(event.ipc_handle()) == 64
        assert event.device == two_devices.device(1)
        assert event.event_id != 0


@pytest.mark.parametrize(
    "make", [Event, pystreams.cuda.Event], ids=["Event", "cuda.Event"]
)
class TestConstructor:
    """Arguments may be positional or keywords; the constructor parses them by
    itself."""

    @pytest.mark.parametrize(
        "switch", ["enable_timing", "blocking", "interprocess", "external"]
    )
    @pytest.mark.parametrize("wrong", ["cuda:0", 0, 1, 1.0, []], ids=repr)
    def test_switches_are_bools(self, make, switch, wrong):
        expected = f"a bool for {switch}, but got {type(wrong).__name__}"
        with pytest.raises(TypeError, match=expected):
            make(**{switch: wrong})

    def test_wrong_arguments(self, make):
        with pytest.raises(TypeError, match="nonsense"):
            make(nonsense=1)
        with pytest.raises(TypeError, match="at most"):
            make(0, 0, 0, 0, 0)

    def test_as_a_subclass(self, make):
        class Named(make):
            def __init__(self, *args, **options):
                self.options = options

        event = Named(blocking=True)
        assert type(event) is Named
        assert event.options == {"blocking": True}
