"""Stream: how it is made, what it reports, and what it orders."""

import ctypes
import gc
import re
import weakref
from itertools import pairwise

import pytest
from deadlines import wait_until

import pystreams
from pystreams import Stream


def test_of_a_device(two_devices):
    for index in range(2):
        device = two_devices.device(index)
        for stream in (
            Stream(device),
            Stream(str(device)),
            Stream(device=device),
        ):
            assert stream.device == device
            assert stream.device_index == index
            assert stream.device_type == two_devices.type
            assert isinstance(stream.device, pystreams.device)


def test_of_a_type_alone(two_devices):
    """Without an index, it is the device that is current on the calling
    thread."""
    with two_devices.stream(1):
        assert Stream(two_devices.name).device == two_devices.device(1)
    assert Stream(two_devices.name).device == two_devices.device(0)


def test_of_the_accelerator():
    accelerator = pystreams.accelerator.current_accelerator()
    for stream in (Stream(), Stream(None), Stream(0), Stream(device=0)):
        assert stream.device == pystreams.device(accelerator.type, 0)


def test_making_one_changes_nothing(two_devices):
    before = two_devices.currents()
    stream = two_devices.stream(1)
    assert two_devices.currents() == before
    del stream
    assert two_devices.currents() == before


def test_numbers(backend):
    stream = backend.stream()
    assert type(stream.stream_id) is int
    assert type(stream.native_handle) is int
    assert stream.native_handle > 0
    assert stream.priority == 0


@pytest.mark.parametrize(
    "name",
    [
        "stream_id",
        "device_index",
        "device_type",
        "device",
        "native_handle",
        "priority",
    ],
)
def test_read_only(backend, name):
    stream = backend.stream()
    value = getattr(stream, name)
    with pytest.raises(AttributeError):
        setattr(stream, name, value)
    with pytest.raises(AttributeError):
        delattr(stream, name)
    assert getattr(stream, name) == value


def by_numbers(stream):
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def test_wrap_by_numbers(backend):
    stream = backend.stream()
    again = by_numbers(stream)
    assert again == stream
    assert hash(again) == hash(stream)
    assert again.native_handle == stream.native_handle
    del again
    gc.collect()
    assert stream.query()


def test_wrapped_by_numbers_it_lives_on(backend):
    stream = backend.stream()
    again = by_numbers(stream)
    del stream
    gc.collect()
    assert again not in [backend.stream() for _ in range(50)]
    event = again.record_event()
    again.synchronize()
    assert event.query()


def test_wrap_the_default_stream(backend):
    default = backend.default_stream()
    again = by_numbers(default)
    assert again == default
    assert again.native_handle == 0


def test_each_is_a_stream_of_its_own(backend):
    streams = [backend.stream() for _ in range(100)]
    assert len({s.native_handle for s in streams}) == 100
    assert len(set(streams)) == 100
    assert backend.default_stream() not in streams


def test_two_do_not_serialize(backend):
    """Work on one stream does not wait for work on any other stream."""
    streams = [backend.stream() for _ in range(40)]
    with backend.hold(streams[0]):
        for stream in streams[1:]:
            backend.sleep(stream, 0.01)
            stream.synchronize()
        assert not streams[0].query()
    streams[0].synchronize()


def test_the_latest_one_dropped_is_used_again(backend):
    """The latest stream that was dropped is used again, however many others
    are idle."""
    for _ in range(10):
        stream = backend.stream()
        handle = stream.native_handle
        others = [backend.stream() for _ in range(40)]
        del others
        del stream
        assert backend.stream().native_handle == handle


def test_dropped_while_they_are_busy(engine):
    """No stream is lost, or destroyed while it has work; of the idle ones, a
    few are kept."""

    def handles(streams):
        return {s.native_handle for s in streams}

    # Streams that earlier tests dropped would be kept, too, so wait for them
    # first.
    engine.synchronize()
    gate = engine.stream()
    with engine.hold(gate):
        streams = [engine.stream() for _ in range(200)]
        first = handles(streams)
        for stream in streams:
            stream.wait_stream(gate)
        del stream, streams
        again = [engine.stream() for _ in range(10)]
        assert not first & handles(again)
    engine.synchronize()
    again = [engine.stream() for _ in range(30)]
    assert handles(again) <= first
    del again
    engine.synchronize()
    again = [engine.stream() for _ in range(200)]
    assert len(first & handles(again)) < 40


def test_default_stream_does_not_serialize(engine):
    stream = engine.stream()
    with engine.hold(stream):
        engine.sleep(engine.default_stream(), 0.01)
        engine.default_stream().synchronize()
        assert not stream.query()
    stream.synchronize()


def test_query_and_synchronize(backend):
    stream = backend.stream()
    assert stream.query() is True
    assert stream.synchronize() is None
    with backend.hold(stream):
        assert stream.query() is False
        assert stream.query() is False
    assert stream.synchronize() is None
    assert stream.query() is True


def test_in_order(backend):
    """Each operation sees what the one before it wrote."""
    stream = backend.stream()
    chain = [backend.empty(1 << 17, stream=stream) for _ in range(8)]
    for block in chain:
        block.fill_(1, stream=stream)
    chain[0].fill_(7, stream=stream)
    for source, target in pairwise(chain):
        target.copy_(source, non_blocking=True, stream=stream)
    stream.synchronize()
    assert chain[-1].tobytes() == b"\7" * (1 << 17)


def test_wait_stream(backend):
    first, second, third = (backend.stream() for _ in range(3))
    with backend.hold(first):
        assert second.wait_stream(first) is None
        third.wait_stream(second)
        assert not second.query()
        assert not third.query()
    third.synchronize()
    assert second.query()
    assert first.query()


def test_wait_stream_is_for_work_so_far(backend):
    first, second = backend.stream(), backend.stream()
    second.wait_stream(first)
    with backend.hold(first):
        second.synchronize()
        assert second.query()
    first.synchronize()


def test_wait_for_oneself(backend):
    stream = backend.stream()
    backend.sleep(stream, 0.1)
    stream.wait_stream(stream)
    stream.wait_event(stream.record_event())
    stream.synchronize()
    assert stream.query()


def test_wait_event(backend):
    first, second = backend.stream(), backend.stream()
    event = backend.event()
    with backend.hold(first):
        event.record(first)
        assert second.wait_event(event) is None
        assert not second.query()
    second.synchronize()
    assert event.query()


def test_wait_for_an_event_never_recorded(backend):
    stream = backend.stream()
    stream.wait_event(backend.event())
    assert stream.query()


def test_wait_across_devices(two_devices):
    first, second = two_devices.stream(0), two_devices.stream(1)
    with two_devices.hold(first):
        second.wait_stream(first)
        assert not second.query()
    second.synchronize()
    assert first.query()
    assert two_devices.current_device() == 0


def test_record_event(backend):
    stream = backend.stream()
    event = stream.record_event()
    assert type(event) is pystreams.Event
    assert event.enable_timing is True
    assert event.device == stream.device
    mine = backend.event()
    assert stream.record_event(mine) is mine
    assert mine.event_id != 0
    stream.synchronize()
    assert event.query()
    assert mine.query()


def test_is_not_capturing(backend):
    assert backend.stream().is_capturing() is False


def test_equality(backend):
    stream, other = backend.stream(), backend.stream()
    assert stream == stream
    assert stream != other
    assert stream != stream.native_handle
    assert stream is not None and stream != None  # noqa: E711
    assert stream.__eq__(1) is NotImplemented
    assert stream.__ne__(1) is NotImplemented
    assert stream == AlwaysEqual()
    assert len({stream, stream, other}) == 2


class AlwaysEqual:
    def __eq__(self, other):
        return True

    __hash__ = None


def test_default_streams_of_two_devices_differ(two_devices):
    first, second = (two_devices.default_stream(i) for i in range(2))
    assert first.native_handle == second.native_handle == 0
    assert first != second
    assert first == two_devices.default_stream(0)
    assert hash(first) == hash(two_devices.default_stream(0))


@pytest.mark.parametrize("operator", ["__lt__", "__le__", "__gt__", "__ge__"])
def test_no_order(backend, operator):
    stream, other = backend.stream(), backend.stream()
    assert getattr(stream, operator)(other) is NotImplemented
    with pytest.raises(TypeError):
        sorted([stream, other])


def test_repr(backend):
    stream = backend.stream()
    device, handle = stream.device, stream.native_handle
    assert repr(stream) == f"<pystreams.Stream device={device} {handle=:#x}>"
    assert re.search("handle=0x0>$", repr(backend.default_stream()))


def test_exports_its_handle(backend):
    stream = backend.stream()
    assert isinstance(stream._as_parameter_, ctypes.c_void_p)
    assert stream._as_parameter_.value == stream.native_handle
    assert not backend.default_stream()._as_parameter_.value


def test_exports_itself_as_a_cuda_stream(cuda):
    stream = cuda.stream()
    assert stream.__cuda_stream__() == (0, stream.native_handle)
    assert cuda.default_stream().__cuda_stream__() == (0, 0)


def test_another_type_is_no_cuda_stream():
    """A library that takes such a stream would pass its handle to the
    driver."""
    with pytest.raises(RuntimeError, match="cpu"):
        Stream("cpu").__cuda_stream__()


def test_subclass(backend):
    class Marked(Stream):
        def __new__(cls, *arguments, mark, **options):
            self = super().__new__(cls, *arguments, **options)
            self.mark = mark
            return self

        def __init__(self, *arguments, mark, **options):
            super().__init__()

    stream = Marked(backend.device(), mark="mine")
    assert stream.mark == "mine"
    assert isinstance(stream, Stream)
    with stream as entered:
        assert entered is stream
        assert backend.current_stream() == stream
    event = stream.record_event()
    stream.synchronize()
    assert event.query()


def test_weak_reference(backend):
    stream = backend.stream()
    reference = weakref.ref(stream)
    assert reference() is stream
    del stream
    gc.collect()
    assert reference() is None


def test_priorities(backend):
    device = backend.device()
    greatest = Stream(device, priority=-1000).priority
    assert -1000 < greatest < 0
    assert Stream(device, priority=greatest).priority == greatest
    assert Stream(device, priority=-1).priority == -1
    assert Stream(device, priority=1000).priority == 0
    assert Stream(device, priority=-(2**40)).priority == greatest
    assert Stream(device, priority=2**40).priority == 0
    assert Stream(device, priority=0).priority == 0


def test_priority_range_is_static(backend):
    assert Stream.priority_range() == backend.stream().priority_range()
    least, greatest = Stream.priority_range()
    assert (least, greatest) == (0, greatest)
    assert greatest <= 0


def test_recycled_stream_keeps_no_priority(backend):
    for _ in range(4):
        stream = Stream(backend.device(), priority=-1)
        urgent = stream.priority
        del stream
        assert backend.stream().priority == 0
        assert Stream(backend.device(), priority=-1).priority == urgent


@pytest.mark.unscheduled
def test_higher_priority_is_served_first(engine):
    """Every worker is held and more gates wait, so a worker that is let go
    serves the urgent stream and then the next gate."""
    high, low = Stream(engine.device(), priority=-1), engine.stream()
    # Recycled streams keep their priorities.
    del high, low
    high, low = Stream(engine.device(), priority=-1), engine.stream()
    gates = [engine.gate(engine.stream()) for _ in range(16)]
    try:
        engine.call(low)
        low_done = low.record_event()
        engine.call(high)
        high_done = high.record_event()
        assert not high_done.query()
        gates[0].open()
        wait_until(high_done.query)
        assert not low_done.query()
    finally:
        for gate in gates:
            gate.open()
    low_done.synchronize()


def test_dropped_with_work_queued(backend):
    """Queued work still runs after the last reference is gone."""
    stream = backend.stream()
    event, block = backend.event(), backend.empty(64)
    block.fill_(1)
    backend.synchronize()
    with backend.hold(stream):
        block.fill_(9, stream=stream)
        event.record(stream)
        del stream
        gc.collect()
        assert not event.query()
    event.synchronize()
    assert block.tobytes() == b"\t" * 64


def test_closed(backend):
    stream = backend.stream()
    other, event = backend.stream(), backend.event()
    assert stream.close() is None
    stream.close()
    for use in (
        stream.query,
        stream.synchronize,
        stream.record_event,
        stream.is_capturing,
        stream.__cuda_stream__,
        stream.__enter__,
        lambda: stream.wait_stream(other),
        lambda: other.wait_stream(stream),
        lambda: stream.wait_event(event),
        lambda: event.record(stream),
        lambda: stream.record_event(event),
    ):
        with pytest.raises((RuntimeError, ValueError), match="closed"):
            use()
    assert "Stream" in repr(stream)
    assert event.event_id == 0


@pytest.mark.parametrize(
    "name", ["native_handle", "stream_id", "cuda_stream", "_as_parameter_"]
)
def test_a_closed_stream_gives_out_no_handle(backend, name):
    """The next stream that is made may have the handle."""
    cuda = backend.name == "cuda"
    if name == "cuda_stream" and not cuda:
        pytest.skip(f"{backend}: a stream has no cuda_stream")
    kind = pystreams.cuda.Stream if cuda else pystreams.Stream
    stream = kind(backend.device())
    handle = stream.native_handle
    stream.close()
    with pytest.raises(ValueError) as by_method:
        stream.query()
    with pytest.raises(ValueError) as by_name:
        getattr(stream, name)
    assert str(by_name.value) == str(by_method.value)
    assert "closed" in repr(stream)
    assert f"{handle:#x}" not in repr(stream)


def test_closed_equals_only_itself(backend):
    """The closed stream's handle is used again for a new stream, which is not
    equal to it."""
    stream = backend.stream()
    handle = stream.native_handle
    stream.close()
    fresh = [backend.stream() for _ in range(50)]
    assert handle in [s.native_handle for s in fresh]
    assert stream not in fresh
    assert all(stream != other and other != stream for other in fresh)
    assert stream == stream
    assert (stream != stream) is False


def test_close_with_work_queued(backend):
    stream = backend.stream()
    event = backend.event()
    with backend.hold(stream):
        event.record(stream)
        stream.close()
        assert not event.query()
    event.synchronize()
    assert event.query()


def test_close_leaves_wrappers_of_it_to_their_owner(backend):
    """A wrapper does not own the stream, so closing the wrapper does not close
    the stream."""
    stream = backend.stream()
    wrapper = pystreams.ExternalStream(
        stream.native_handle, device=backend.device()
    )
    wrapper.close()
    assert stream.query()


def test_recycled_handle_is_idle(backend):
    """A new stream is never one whose work is still going on."""
    stream = backend.stream()
    with backend.hold(stream):
        del stream
        fresh = [backend.stream() for _ in range(10)]
        assert all(s.query() for s in fresh)
    backend.synchronize()


def test_a_busy_handle_is_recycled_once_it_is_idle(backend):
    """So the driver need not destroy it and create another one."""
    stream = backend.stream()
    handle = stream.native_handle
    with backend.hold(stream):
        del stream
        assert handle not in [backend.stream().native_handle for _ in range(9)]
    backend.synchronize()
    assert handle in {
        s.native_handle for s in [backend.stream() for _ in range(50)]
    }


def test_dir_has_torchs_names():
    names = set(dir(Stream))
    assert names >= {
        "query",
        "synchronize",
        "wait_event",
        "wait_stream",
        "record_event",
        "is_capturing",
        "priority_range",
        "native_handle",
    }


def test_subclass_that_dies_with_an_instance(backend):
    """The class is taken apart before its instance is deallocated."""

    class Mine(pystreams.Stream):
        pass

    Mine.instance = Mine(backend.device())
    Mine.instance.synchronize()
    died = weakref.ref(Mine)
    del Mine
    gc.collect()
    assert died() is None
