"""Notifications, tested with the messages that a Waiter receives."""

from pystreams import _C
from pystreams.testing import contract
from pystreams.testing.busy import Busy
from pystreams.testing.device import FAILURE, Device
from pystreams.testing.limits import SOON, eventually, never

OF_STREAM = (
    "Call notification->reached once, when the work that the stream has now "
    "is done or has failed. Neither later work nor the stream's destruction "
    "changes that."
)
NO_PLACE = (
    "The notification takes no place in the stream's queue, so this "
    "call succeeds even if the queue is full. The call disturbs no capture on "
    "any thread."
)
OF_EVENT = (
    "Like stream_notify, but call reached when the event's latest record is "
    "done, or at once if the event was never recorded. Later records, the "
    "event's destruction, and the state of streams other than the one of that "
    "record do not affect when reached is called."
)
CANCELLED = (
    "Cancel the notification: after PS_SUCCESS, reached never runs, and the "
    "backend does not use the memory any more."
)


def receive(waiter: _C.Waiter, count: int) -> list[tuple[int, int]]:
    """Wait for so many messages, and return them."""
    messages: list[tuple[int, int]] = []
    while len(messages) < count:
        messages += waiter.wait(SOON)
    return messages


@contract("stream_notify", OF_STREAM)
def test_notified_when_work_ends(device: Device, busy: Busy) -> None:
    stream, waiter = device.stream(), _C.Waiter()
    gate, later = busy(stream), device.stream()
    waiter.register(stream, 1)
    mark = device.mark(stream)
    waiter.register(later, 2)
    assert waiter.wait(SOON) == [(2, 0)]
    never(lambda: bool(waiter.take()))
    gate.open()
    eventually(mark.query)
    assert waiter.wait(SOON) == [(1, 0)]
    never(lambda: bool(waiter.take()))


@contract("stream_notify", OF_STREAM, "stream_fail")
def test_notified_of_a_failure(device: Device, busy: Busy) -> None:
    stream, waiter = device.stream(), _C.Waiter()
    gate = busy(stream)
    waiter.register(stream, 0)
    _C.fail(stream, FAILURE)
    waiter.register(stream, 1)
    gate.open()
    messages = receive(waiter, 2)
    assert sorted(messages) == [(0, 0), (1, FAILURE)]
    waiter.register(stream, 2)
    assert waiter.wait(SOON) == [(2, FAILURE)]


@contract("stream_notify", NO_PLACE)
def test_notified_past_a_queue(device: Device, busy: Busy) -> None:
    many = 10_000
    stream, waiter = device.stream(), _C.Waiter()
    gate = busy(stream)
    for token in range(many):
        waiter.register(stream, token)
    assert waiter.take() == []
    gate.open()
    messages = receive(waiter, many)
    assert sorted(messages) == [(token, 0) for token in range(many)]


@contract("event_notify", OF_EVENT)
def test_notified_of_an_event(device: Device, busy: Busy) -> None:
    stream, waiter = device.stream(), _C.Waiter()
    gate = busy(stream)
    event = device.mark(stream)
    waiter.register(event, 1)
    second = busy(stream)
    event.record(stream)
    never(lambda: bool(waiter.take()))
    gate.open()
    assert waiter.wait(SOON) == [(1, 0)]
    second.open()


@contract("event_notify", OF_EVENT)
def test_notified_though_the_event_is_gone(device: Device, busy: Busy) -> None:
    first, second, waiter = device.stream(), device.stream(), _C.Waiter()
    gate = busy(first)
    events = [device.mark(first) for _ in range(3)]
    for token, event in enumerate(events):
        waiter.register(event, token)
    events[0].record(second)
    del events, event
    never(lambda: bool(waiter.take()))
    gate.open()
    messages = receive(waiter, 3)
    assert sorted(messages) == [(0, 0), (1, 0), (2, 0)]


@contract("notify_cancel", CANCELLED)
def test_cancelled(device: Device, busy: Busy) -> None:
    stream, waiter = device.stream(), _C.Waiter()
    gate = busy(stream)
    event = device.mark(stream)
    for token in range(3):
        waiter.register(stream, token)
        waiter.register(event, token)
    waiter.cancel(1)
    event.record(stream)
    waiter.cancel(0)
    gate.open()
    messages = receive(waiter, 2)
    assert messages == [(2, 0), (2, 0)]
    never(lambda: bool(waiter.take()))


@contract("notify_cancel", CANCELLED)
def test_polls_leave_nothing(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy(stream)
    event = device.mark(stream)
    for _ in range(10_000):
        waiter = _C.Waiter()
        waiter.register(stream, 1)
        waiter.register(event, 1)
        del waiter
    event.record(stream)
    gate.open()
    eventually(event.query)
