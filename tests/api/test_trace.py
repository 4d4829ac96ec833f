"""The ten kinds of trace points: what each reports, when it fires, and when it
does not."""

import pytest

import pystreams
from pystreams import trace
from pystreams.trace import Record

pytestmark = pytest.mark.usefixtures("nothing_left")

NBYTES = 1000


@pytest.fixture
def traced():
    """traced(kinds, when=None) -> the list of records from here to the end of
    the test; when(record) is called with each."""
    opened = []

    def start(kinds=None, when=lambda record: None):
        records = []

        def note(record):
            records.append(record)
            when(record)

        opened.append(trace.subscribe(note, kinds))
        return records

    yield start
    for subscription in opened:
        subscription.close()


def recorded(backend, stream, **options):
    """An event that was recorded, and is seen to be done."""
    event = backend.event(enable_timing=False, **options)
    event.record(stream)
    event.synchronize()
    return event


def test_kinds():
    assert len(trace.KINDS) == len(set(trace.KINDS)) == 10


def test_record_names_what_it_has(backend, traced):
    stream, event = backend.stream(), backend.event()
    records = traced("event_record")
    event.record(stream)
    (record,) = records
    assert record.kind == "event_record"
    assert record.device == stream.device
    assert record.event == event.event_id
    assert record.stream == stream.native_handle
    assert record.data_ptr is None


def test_event_creation_comes_between_creation_and_record(backend, traced):
    stream, event = backend.stream(), backend.event()
    with backend.hold(stream):
        seen = []
        records = traced(
            "event_creation",
            lambda record: seen.append((event.event_id, event.query())),
        )
        event.record(stream)
        event.record(stream)
    assert seen == [(0, True)]
    assert records == [
        Record("event_creation", stream.device, event=event.event_id)
    ]


def test_event_creation_of_a_pooled_event(backend, traced):
    stream = backend.stream()
    handle = recorded(backend, stream).event_id
    records = traced("event_creation")
    event = recorded(backend, stream)
    assert event.event_id == handle
    assert records == [Record("event_creation", stream.device, event=handle)]


def test_event_creation_is_once_however_many_threads_record(backend, traced):
    from concurrent.futures import ThreadPoolExecutor

    stream = backend.stream()
    events = [backend.event(enable_timing=False) for _ in range(50)]
    records = traced("event_creation")
    with ThreadPoolExecutor(4) as pool:
        for event in events:
            list(pool.map(event.record, [stream] * 4))
    assert [record.event for record in records] == [
        event.event_id for event in events
    ]


def test_event_record_comes_after_the_record(backend, traced):
    stream, event = backend.stream(), backend.event()
    queries = []
    with backend.hold(stream):
        records = traced(
            "event_record", lambda record: queries.append(event.query())
        )
        event.record(stream)
    assert queries == [False]
    assert records == [
        Record(
            "event_record", stream.device, event.event_id, stream.native_handle
        )
    ]


def test_event_record_on_the_current_stream(backend, traced):
    records = traced("event_record")
    event, stream = backend.event(), backend.stream()
    event.record()
    with stream:
        event.record()
    assert [record.stream for record in records] == [0, stream.native_handle]


def test_event_record_by_a_stream(backend, traced):
    records = traced(["event_creation", "event_record"])
    stream = backend.stream()
    event = stream.record_event()
    stream.record_event(event)
    handles = event.event_id, stream.native_handle
    assert records == [
        Record("event_creation", stream.device, event.event_id),
        Record("event_record", stream.device, *handles),
        Record("event_record", stream.device, *handles),
    ]


def test_event_record_on_another_device_is_not_one(two_devices, traced):
    event = recorded(two_devices, two_devices.stream(0))
    other = two_devices.stream(1)
    records = traced("event_record")
    with pytest.raises(RuntimeError, match="does not match"):
        event.record(other)
    assert records == []


def test_event_wait_comes_after_the_wait(backend, traced):
    held, waiting = backend.stream(), backend.stream()
    queries = []
    with backend.hold(held):
        event = held.record_event()
        records = traced(
            "event_wait", lambda record: queries.append(waiting.query())
        )
        event.wait(waiting)
        waiting.wait_event(event)
        handles = event.event_id, waiting.native_handle
    assert queries == [False, False]
    assert records == [Record("event_wait", waiting.device, *handles)] * 2


def test_event_wait_for_what_is_known_done(backend, traced):
    event = recorded(backend, backend.stream())
    records = traced("event_wait")
    event.wait()
    assert records == [
        Record("event_wait", backend.device(), event.event_id, 0)
    ]


def test_event_wait_is_on_the_device_of_the_stream(two_devices, traced):
    event = recorded(two_devices, two_devices.stream(0))
    waiting = two_devices.stream(1)
    records = traced("event_wait")
    waiting.wait_event(event)
    assert [record.device for record in records] == [waiting.device]


def test_event_synchronization_comes_before_the_wait(backend, traced):
    stream = backend.stream()
    gate = backend.gate(stream)
    event = stream.record_event()
    records = traced("event_synchronization", lambda record: gate.open())
    event.synchronize()
    assert records == [
        Record("event_synchronization", stream.device, event=event.event_id)
    ]


def test_event_synchronization_of_what_is_known_done(backend, traced):
    """The event was done at the call, so the call returns, although a callback
    meanwhile records the event behind held work."""
    stream, held = backend.stream(), backend.stream()
    event = recorded(backend, stream)
    with backend.hold(held):
        records = traced(
            "event_synchronization", lambda record: event.record(held)
        )
        event.synchronize()
        assert not event.query()
    assert [record.event for record in records] == [event.event_id]


def test_event_never_recorded(backend, traced):
    records = traced()
    event = backend.event()
    event.wait()
    event.synchronize()
    assert event.query()
    del event
    assert records == []


def test_event_deletion_comes_before_the_handle_is_free(backend, traced):
    stream = backend.stream()
    event = recorded(backend, stream)
    handle = event.event_id
    made = []
    records = traced(
        "event_deletion",
        lambda record: made.append(recorded(backend, stream)),
    )
    del event
    assert records == [Record("event_deletion", stream.device, event=handle)]
    assert made[0].event_id != handle
    assert recorded(backend, stream).event_id == handle


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("enable_timing", [False, True])
def test_event_of_each_kind_is_created_and_deleted(
    backend, traced, blocking, enable_timing
):
    records = traced(["event_creation", "event_deletion"])
    event = backend.event(blocking=blocking, enable_timing=enable_timing)
    event.record(backend.stream())
    handle = event.event_id
    del event
    assert records == [
        Record("event_creation", backend.device(), handle),
        Record("event_deletion", backend.device(), handle),
    ]


def test_wait_stream_is_four_operations(backend, traced):
    first, second = backend.stream(), backend.stream()
    records = traced()
    second.wait_stream(first)
    event = records[0].event
    assert records == [
        Record("event_creation", first.device, event),
        Record("event_record", first.device, event, first.native_handle),
        Record("event_wait", second.device, event, second.native_handle),
        Record("event_deletion", first.device, event),
    ]


def test_stream_creation_comes_after_the_creation(backend, traced):
    found = []
    records = traced(
        "stream_creation",
        lambda record: found.append(
            pystreams.Stream(
                stream_id=record.stream,
                device_index=record.device.index,
                device_type=backend.type,
            )
        ),
    )
    stream = backend.stream()
    assert found == [stream]
    assert records == [
        Record("stream_creation", stream.device, stream=stream.native_handle)
    ]


def test_stream_creation_of_a_pooled_stream(backend, traced):
    records = traced("stream_creation")
    handles = []
    for _ in range(3):
        stream = backend.stream()
        handles.append(stream.native_handle)
        stream.close()
    assert len(set(handles)) == 1
    assert [record.stream for record in records] == handles


def test_stream_creation_is_none_of_what_wraps(backend, traced):
    stream = backend.stream()
    records = traced("stream_creation")
    handle = stream.native_handle
    pystreams.ExternalStream(handle, backend.device())
    pystreams.Stream(
        stream_id=handle, device_index=0, device_type=backend.type
    )
    backend.current_stream()
    backend.default_stream()
    with stream:
        backend.current_stream()
    assert records == []


def test_stream_synchronization_comes_before_the_wait(backend, traced):
    stream = backend.stream()
    gate = backend.gate(stream)
    records = traced("stream_synchronization", lambda record: gate.open())
    stream.synchronize()
    assert records == [
        Record(
            "stream_synchronization",
            stream.device,
            stream=stream.native_handle,
        )
    ]


def test_stream_query_is_no_synchronization(backend, traced):
    stream = backend.stream()
    records = traced()
    stream.query()
    assert records == []


COPIES = {
    "tobytes": lambda device, host: device.tobytes(),
    "from bytes": lambda device, host: device.copy_(bytes(NBYTES)),
    "to host": lambda device, host: host.copy_(device),
    "from host": lambda device, host: device.copy_(host),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_stream_synchronization_by_a_blocking_copy(backend, traced, copy):
    device, host = backend.empty(NBYTES), backend.host(NBYTES)
    stream = backend.stream()
    with stream:
        records = traced()
        copy(device, host)
    assert records == [
        Record(
            "stream_synchronization",
            stream.device,
            stream=stream.native_handle,
        )
    ]


def test_other_copies_and_fills_are_none(backend, traced):
    device, host = backend.empty(NBYTES), backend.host(NBYTES)
    records = traced()
    device.copy_(host, non_blocking=True)
    device.fill_(1)
    assert records == []
    backend.synchronize()


def test_device_synchronization_comes_before_the_wait(two_devices, traced):
    gate = two_devices.gate(two_devices.stream(1))
    records = traced("device_synchronization", lambda record: gate.open())
    two_devices.synchronize(1)
    assert records == [Record("device_synchronization", two_devices.device(1))]


def test_memory_allocation_comes_after_the_allocation(backend, traced):
    before, seen = backend.in_use(), []
    records = traced(
        "memory_allocation", lambda record: seen.append(backend.in_use())
    )
    buffer = backend.empty(NBYTES)
    assert seen == [before + NBYTES]
    assert records == [
        Record("memory_allocation", buffer.device, data_ptr=buffer.data_ptr())
    ]


@pytest.mark.parametrize("closed", [False, True], ids=["dropped", "closed"])
def test_memory_deallocation_comes_before_it(backend, traced, closed):
    buffer = backend.empty(NBYTES)
    address, before, seen = buffer.data_ptr(), backend.in_use(), []
    records = traced(
        "memory_deallocation", lambda record: seen.append(backend.in_use())
    )
    if closed:
        buffer.close()
    del buffer
    assert seen == [before]
    assert records == [
        Record("memory_deallocation", backend.device(), data_ptr=address)
    ]


def test_memory_deallocation_waits_for_the_last_part(backend, traced):
    buffer = backend.empty(NBYTES)
    part = buffer[10:20]
    records = traced()
    del buffer
    assert records == []
    del part
    assert [record.kind for record in records] == ["memory_deallocation"]


def test_memory_deallocation_waits_for_no_work(backend, traced):
    """Nor does it tell of the events that the library makes for itself."""
    buffer, stream = backend.empty(NBYTES), backend.stream()
    with backend.hold(stream):
        buffer.record_stream(stream)
        records = traced()
        del buffer
        backend.empty(1)
        assert [record.kind for record in records] == [
            "memory_deallocation",
            "memory_allocation",
            "memory_deallocation",
        ]
    stream.synchronize()
    del records[:]
    backend.empty(1)
    assert [record.kind for record in records] == [
        "memory_allocation",
        "memory_deallocation",
    ]


def test_memory_of_no_bytes_is_none(backend, traced):
    records = traced()
    backend.empty(0).close()
    assert records == []


def test_memory_of_the_host_is_none(pinning, traced):
    records = traced()
    pinning.empty(NBYTES, pin_memory=True).close()
    assert records == []


def test_a_with_scope_tells_nothing(backend, traced):
    stream = backend.stream()
    records = traced()
    with stream, stream:
        backend.current_stream()
    assert records == []


def test_a_refused_call_tells_nothing(backend, traced):
    stream, event = backend.stream(), backend.event()
    records = traced()
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        event.record(stream)
    with pytest.raises(ValueError, match="closed"):
        stream.synchronize()
    assert records == []
