"""Notifications in the less obvious cases: of events that graphs record, of
captures, and of all the work of a device."""

import os
import threading
import time

from captures import CAPTURED_EVENT, UNSUPPORTED, Capture, code, replay
from deadlines import LONG, wait_until

import pystreams
from pystreams import _C
from pystreams.cuda._graphs import Graph


def external_on(backend, graph, stream):
    """Return an event that the graph records, and whose record was captured on
    the stream.  The first launch may wait for all work of a GPU."""
    event = pystreams.Event(backend.name, enable_timing=False, external=True)
    block = backend.empty(64)
    with Capture(graph, stream):
        block.zero_()
        event.record(stream)
    replay(graph, stream)
    stream.synchronize()
    return event


def received(waiter, count):
    messages, end = [], time.monotonic() + LONG
    while len(messages) < count and time.monotonic() < end:
        messages += waiter.wait(LONG)
    return messages


def test_an_external_event_waits_for_no_stream_but_its_launch(backend, graph):
    """The event does not even wait for the stream on which it was captured."""
    captured_on, launching = backend.stream(), backend.stream()
    event = external_on(backend, graph, captured_on)
    waiter, go = _C.Waiter(), threading.Event()
    with backend.hold(launching):
        # Hold this stream by a callable, because CUDA runs the host functions
        # that hold streams one after another.
        captured_on.submit(go.wait, LONG)
        slow = captured_on.record_event()
        waiter.register(slow, 1)
        replay(graph, launching)
        waiter.register(event, 2)
        assert waiter.wait(0.02) == []
    assert received(waiter, 1) == [(2, 0)]
    assert event.query() and not slow.query()
    go.set()
    assert received(waiter, 1) == [(1, 0)]


def test_an_external_event_has_no_failure_of_another_stream(faulty):
    captured_on, launching = faulty.stream(), faulty.stream()
    graph = Graph(faulty.type)
    event = external_on(faulty, graph, captured_on)
    waiter = _C.Waiter()
    with faulty.hold(captured_on):
        _C.fail(captured_on, 719)
        waiter.register(captured_on.record_event(), 1)
        with faulty.hold(launching):
            replay(graph, launching)
            waiter.register(event, 2)
        assert received(waiter, 1) == [(2, 0)]
    assert received(waiter, 1) == [(1, 719)]


def test_a_callable_may_wait_for_an_external_event(backend, graph):
    """The event was captured on the callable's stream, and is recorded on
    another one."""
    captured_on, launching = backend.stream(), backend.stream()
    event = external_on(backend, graph, captured_on)
    with backend.hold(launching):
        replay(graph, launching)
        future = captured_on.submit(event.synchronize, LONG)
        assert not future.done()
    assert future.result(LONG) is None


def test_a_captured_event_is_refused(backend, graph, stream):
    """The refused call does not make a stream join the capture."""
    event, waiter, block = backend.event(), _C.Waiter(), backend.empty(64)
    with Capture(graph, stream):
        block.fill_(3)
        event.record(stream)
        assert code(waiter.register, event, 1) == CAPTURED_EVENT
        assert code(waiter.register, stream, 2) == UNSUPPORTED
        assert code(waiter.register, stream.device, 3) == UNSUPPORTED
    replay(graph, stream)
    stream.synchronize()
    assert block.tobytes() == bytes([3]) * 64
    waiter.register(stream.device, 4)
    assert received(waiter, 1) == [(4, 0)]


def test_an_event_that_is_captured_while_registered(backend, graph, stream):
    event, waiter, block = backend.event(), _C.Waiter(), backend.empty(64)
    other = backend.stream()
    with backend.hold(other):
        event.record(other)
        waiter.register(event, 1)
        with Capture(graph, stream):
            block.fill_(3)
            event.record(stream)
        assert waiter.take() == []
    assert received(waiter, 1) == [(1, 0)]


def test_a_device_has_one_thread_for_all_who_wait(backend):
    """When its work is done, the device has no such thread."""

    def threads():
        return len(os.listdir("/proc/self/task"))

    stream, waiter = backend.stream(), _C.Waiter()
    with backend.hold(stream):
        before = threads()
        for _ in range(20):
            _C.Waiter().register(stream.device, 1)
            waiter.register(stream.device, 2)
            waiter.cancel(2)
        waiter.register(stream.device, 3)
        assert threads() <= before + 1
        assert waiter.take() == []
    assert received(waiter, 1) == [(3, 0)]
    wait_until(lambda: threads() <= before)


def test_cancelled_while_it_ends(backend):
    """Several threads cancel waits while their work ends.  A cancelled wait is
    never reported."""
    streams = [backend.stream() for _ in range(3)]
    late = []

    def work(turn):
        waiter = _C.Waiter()
        for token in range(200):
            stream = streams[(turn + token) % 3]
            backend.sleep(stream, 0.01)
            event = stream.record_event()
            waiter.register(stream, 2 * token)
            waiter.register(event, 2 * token + 1)
            if token % 3:
                event.record(stream)
            waiter.cancel(2 * token)
            came = waiter.take()
            late.extend(m for m in came if m[0] % 2 == 0)
            waiter.cancel()
            late.extend(waiter.take())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert late == []
    for stream in streams:
        stream.synchronize()
