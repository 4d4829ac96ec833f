"""Streams.

Tests check a stream's progress with recorded events, so that a fault of
stream_query fails only the tests of stream_query.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

import pystreams
from pystreams import _C, ExternalStream, Stream
from pystreams.cuda._graphs import Graph
from pystreams.testing import contract
from pystreams.testing.busy import Busy, only_once_open
from pystreams.testing.device import Device, fails
from pystreams.testing.limits import Background, eventually, never

_T = TypeVar("_T")

LATEST = (
    "Make all work that is queued on the stream after this call wait until "
    "the event's latest record is done. If the event was never recorded, "
    "nothing waits."
)
LATER = "A later record of the event changes nothing."
DEFAULT = (
    "Stream 0 is the default stream of the device; no event, graph or "
    "executable has the handle 0."
)
ALONE = (
    "Create a stream that serializes with no other stream, not even with the "
    "default stream."
)
SERIALIZES = (
    "Like stream_create, but create a blocking stream, which serializes with "
    "the default stream of its device. Work that is queued on the default "
    "stream starts when all earlier work of the device's blocking streams is "
    "done. Work that is queued on a blocking stream starts when all earlier "
    "work of the default stream is done. It is as if the one stream waited "
    "for an event recorded on the other."
)
COUNTS = (
    "A record, a wait, a query, a synchronization and a notification of the "
    "default stream count as work of the default stream."
)
IMPLICIT = (
    "While a blocking stream is being captured, members that use the default "
    "stream return PS_ERROR_CAPTURE_IMPLICIT, and all of them except "
    "stream_query and stream_capturing invalidate the capture."
)
BLOCKING = (
    "Set *blocking to 1 if the stream serializes with the default stream, "
    "else to 0. For stream 0 it is 1. Another library may have created the "
    "stream."
)
QUERY = (
    "Returns PS_SUCCESS when all work queued so far is done, "
    "PS_ERROR_NOT_READY when some of it is not done, and the stream's failure "
    "if its work has failed. The failure stays with the stream, so later "
    "calls return it again."
)


THREADS = (
    "If this member is present, each thread has its own default stream on "
    "each device: in every member, the handle PS_STREAM_PER_THREAD means the "
    "default stream of the calling thread. Such a stream serializes with "
    "stream 0, as the streams of blocking_create do."
)
THREAD_ENDS = (
    "It begins idle when its thread first uses it, and is never destroyed: "
    "when the thread ends, work that is queued still runs."
)
THREAD_NAMES = (
    "Write a name for the calling thread's stream. The name is a number that "
    "no other stream of the device ever has, and ps_is_thread_stream_name "
    "returns 1 for it."
)


@contract(
    "stream_priority_range",
    "*least is 0, and *greatest is 0 or negative. Streams with lower numbers "
    "are served first.",
)
def test_priority_range(device: Device) -> None:
    for index in range(device.count):
        name = f"{device.name}:{index}"
        least, greatest = Stream.priority_range(name)
        assert least == 0
        assert greatest <= 0


@contract(
    "stream_create",
    "`priority` is in the range that stream_priority_range returns.",
)
def test_priorities(device: Device) -> None:
    least, greatest = Stream.priority_range(device.name)
    for priority in range(greatest, least + 1):
        stream = device.stream(priority=priority)
        assert stream.priority == priority
        eventually(device.mark(stream).query)


@contract("every member", "Handles are integers that the backend chooses.")
def test_handles_differ(device: Device) -> None:
    streams = [device.stream() for _ in range(50)]
    handles = {stream.native_handle for stream in streams}
    assert len(handles) == 50
    assert 0 not in handles


@contract("stream_create", ALONE)
def test_streams_are_independent(device: Device, busy: Busy) -> None:
    streams = [device.stream() for _ in range(4)]
    busy(streams[0])
    for stream in streams[1:]:
        eventually(device.mark(stream).query)


@contract("stream_create", ALONE)
def test_the_default_stream_is_independent(device: Device, busy: Busy) -> None:
    stream, default = device.stream(), device.default_stream()
    gate = busy(stream)
    eventually(device.mark(default).query)
    gate.open()
    busy(default)
    eventually(device.mark(stream).query)


def on_a_thread(call: Callable[[], _T]) -> _T:
    """Return what the call returns on a thread that has ended."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@contract("thread_stream", THREADS)
def test_threads_have_default_streams(device: Device, busy: Busy) -> None:
    own = ExternalStream(2, device.name)
    gate = busy(own)
    eventually(on_a_thread(lambda: device.mark(own)).query)
    only_once_open(gate, device.mark(own).query)


@contract("thread_stream", THREADS)
def test_the_default_stream_waits_for_that_of_a_thread(
    device: Device, busy: Busy
) -> None:
    gate = busy(ExternalStream(2, device.name))
    only_once_open(gate, device.mark(device.default_stream()).query)


@contract("thread_stream", THREADS)
def test_that_of_a_thread_waits_for_the_default_stream(
    device: Device, busy: Busy
) -> None:
    own = ExternalStream(2, device.name)
    gate = busy(device.default_stream())
    only_once_open(gate, on_a_thread(lambda: device.mark(own)).query)


@contract("thread_stream", THREAD_ENDS)
def test_a_thread_ends_before_its_work(device: Device, busy: Busy) -> None:
    own = ExternalStream(2, device.name)
    # Do not wait for the thread: its end may wait for its work.
    with ThreadPoolExecutor(1) as pool:
        queued = pool.submit(lambda: (busy(own), device.mark(own)))
        gate, held = queued.result()
        pool.shutdown(wait=False)
        eventually(on_a_thread(lambda: device.mark(own)).query)
        only_once_open(gate, held.query)


@contract("thread_stream", THREAD_NAMES)
def test_default_streams_of_threads_differ(device: Device) -> None:
    own = ExternalStream(2, device.name)

    def name() -> object:
        return _C.explain_target(own)

    names = {repr(name())} | {repr(on_a_thread(name)) for _ in range(4)}
    assert len(names) == 5


@contract("blocking_create", SERIALIZES)
@pytest.mark.parametrize("waits", ["default", "blocking"])
def test_default_and_blocking_streams_wait_for_each_other(
    device: Device, busy: Busy, waits: str
) -> None:
    first, second = device.stream(blocking=True), device.default_stream()
    if waits == "blocking":
        first, second = second, first
    gate = busy(first)
    held = device.mark(second)
    only_once_open(gate, held.query)


@contract("blocking_create", SERIALIZES)
def test_blocking_streams_are_independent(device: Device, busy: Busy) -> None:
    streams = [device.stream(blocking=True) for _ in range(3)]
    busy(streams[0])
    for stream in streams[1:]:
        eventually(device.mark(stream).query)


@contract("blocking_create", SERIALIZES)
def test_a_later_blocking_stream_waits(device: Device, busy: Busy) -> None:
    gate = busy(device.default_stream())
    held = device.mark(device.stream(blocking=True))
    only_once_open(gate, held.query)


@contract("blocking_create", COUNTS)
def test_a_record_between_blocking_streams(device: Device, busy: Busy) -> None:
    one, other = (device.stream(blocking=True) for _ in range(2))
    gate = busy(one)
    device.mark(device.default_stream())
    held = device.mark(other)
    only_once_open(gate, held.query)


@contract("blocking_create", COUNTS)
def test_a_query_of_the_default_stream(device: Device, busy: Busy) -> None:
    stream, default = device.stream(blocking=True), device.default_stream()
    gate = busy(stream)
    only_once_open(gate, default.query)


@contract("blocking_create", IMPLICIT, "capture_begin")
def test_the_default_stream_during_a_capture(device: Device) -> None:
    stream, default = device.stream(blocking=True), device.default_stream()
    graph = Graph(device.type)
    with stream:
        graph.capture_begin()
        fails(lambda: device.mark(default), 906)
        fails(graph.capture_end, 901)
    eventually(default.query)


@contract("stream_blocking", BLOCKING)
def test_which_streams_are_blocking(device: Device) -> None:
    for blocking in (False, True):
        status, handle = _C.raw_stream_create(device.type, 0, blocking)
        assert status == 0
        stream = pystreams.ExternalStream(handle, device.name)
        assert stream.is_non_blocking is not blocking
        assert _C.raw_stream_destroy(device.type, handle) == 0
    assert not device.default_stream().is_non_blocking


@contract("every member", DEFAULT)
def test_the_default_stream(device: Device) -> None:
    for index in range(device.count):
        default = device.default_stream(index)
        assert default.native_handle == 0
        eventually(device.mark(default).query)
        eventually(default.query)
        default.wait_event(device.mark(device.stream(index)))
        default.synchronize()


@contract("every member", DEFAULT)
def test_each_device_has_a_default_stream(
    two_devices: Device, busy: Busy
) -> None:
    device = two_devices
    gate = busy(device.default_stream(1))
    held = device.mark(device.default_stream(1))
    eventually(device.mark(device.default_stream(0)).query)
    only_once_open(gate, held.query)


@contract(
    "stream_destroy",
    "Queued work still runs; the call does not wait for it.",
)
def test_destroyed_while_busy(device: Device, busy: Busy) -> None:
    stream, destroy = device.raw_stream()
    gate = busy(stream)
    mark = device.mark(stream)
    destroy()
    only_once_open(gate, mark.query)


@contract("stream_query", QUERY)
def test_query_of_an_idle_stream(device: Device) -> None:
    stream = device.stream()
    assert stream.query()
    eventually(device.mark(stream).query)
    eventually(stream.query)


@contract("stream_query", QUERY)
def test_query_of_a_busy_stream(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy(stream)
    only_once_open(gate, stream.query)


@contract(
    "stream_synchronize",
    "Wait until all work queued before the call is done.",
)
def test_synchronize_waits(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy(stream)
    mark = device.mark(stream)
    call = Background(stream.synchronize)
    assert not call.over(0.05)
    gate.open()
    call.finish()
    assert mark.query()


@contract("stream_wait_event", LATEST)
def test_wait(device: Device, busy: Busy) -> None:
    first, second, third = (device.stream() for _ in range(3))
    gate = busy(first)
    marks = [device.mark(first)]
    for stream in (second, third):
        stream.wait_event(marks[-1])
        marks.append(device.mark(stream))
    for mark in marks:
        never(mark.query)
    gate.open()
    for mark in marks:
        eventually(mark.query)


@contract("stream_wait_event", LATEST)
def test_wait_holds_nothing_earlier(device: Device, busy: Busy) -> None:
    first, second = device.stream(), device.stream()
    gate = busy(first)
    event = device.mark(first)
    before = device.mark(second)
    second.wait_event(event)
    after = device.mark(second)
    eventually(before.query)
    only_once_open(gate, after.query)


@contract("stream_wait_event", LATEST)
def test_wait_for_several(device: Device, busy: Busy) -> None:
    first, second, waiting = (device.stream() for _ in range(3))
    gate = busy(first)
    events = [device.mark(first), device.mark(second)]
    for event in events:
        waiting.wait_event(event)
    mark = device.mark(waiting)
    only_once_open(gate, mark.query)


@contract("stream_wait_event", LATEST)
def test_wait_for_an_event_never_recorded(device: Device) -> None:
    stream = device.stream()
    stream.wait_event(device.event())
    eventually(device.mark(stream).query)


@contract("stream_wait_event", LATEST)
def test_wait_for_itself(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy(stream)
    event = device.mark(stream)
    stream.wait_event(event)
    mark = device.mark(stream)
    gate.open()
    eventually(mark.query)


@contract("stream_wait_event", LATER)
def test_a_later_record_that_takes_longer(device: Device, busy: Busy) -> None:
    first, second = device.stream(), device.stream()
    gate = busy(first)
    event = device.mark(first)
    second.wait_event(event)
    mark = device.mark(second)
    busy(first)
    event.record(first)
    gate.open()
    eventually(mark.query)


@contract("stream_wait_event", LATER)
def test_a_later_record_that_is_done_first(device: Device, busy: Busy) -> None:
    first, second = device.stream(), device.stream()
    gate = busy(first)
    event = device.mark(first)
    second.wait_event(event)
    mark = device.mark(second)
    event.record(device.stream())
    only_once_open(gate, mark.query)


@contract("stream_wait_event", "The event may belong to another device.")
def test_wait_for_another_device(two_devices: Device, busy: Busy) -> None:
    device = two_devices
    for here, there in ((0, 1), (1, 0)):
        first, second = device.stream(there), device.stream(here)
        gate = busy(first)
        event = device.mark(first)
        second.wait_event(event)
        mark = device.mark(second)
        never(mark.query)
        gate.open()
        eventually(mark.query)


@contract(
    "stream_wait_room",
    "When the queue of the stream is full, each member that queues an "
    "operation, except memory_free, queues nothing and returns "
    "PS_ERROR_QUEUE_FULL.",
)
def test_a_full_queue(device: Device, busy: Busy) -> None:
    stream = device.stream()
    event = device.event()
    gate = busy(stream)

    def fill() -> None:
        for _ in range(100_000):
            event.record(stream)

    call = Background(fill)
    call.over(0.1)
    gate.open()
    call.finish()
    eventually(event.query)


@contract(
    "stream_device",
    "Get the device of a stream that another library has made; never called "
    "for stream 0.",
)
def test_the_device_of_a_stream(device: Device) -> None:
    for index in range(device.count):
        status, handle = _C.raw_stream_create(device.type, index)
        assert status == 0
        name = f"{device.name}:{index}"
        assert pystreams.ExternalStream(handle, name).device_index == index
        if device.count > 1:
            other = f"{device.name}:{(index + 1) % device.count}"
            with pytest.raises(ValueError, match="device"):
                pystreams.ExternalStream(handle, other)
        assert _C.raw_stream_destroy(device.type, handle) == 0
