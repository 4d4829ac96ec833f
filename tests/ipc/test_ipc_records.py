"""Interprocess events: what each process sees of the other processes'
records."""

import asyncio
import os
import time

import pytest
from captures import CAPTURED_EVENT, Capture, code
from deadlines import LONG
from peers import PeerError, hold_there, shared

import pystreams
from pystreams import _C, schedules
from pystreams.cuda._graphs import Graph

pytestmark = pytest.mark.unscheduled


def test_a_record_is_seen_elsewhere(backend, peer):
    event, stream = shared(backend), backend.stream()
    peer.open(event)
    with backend.hold(stream):
        event.record(stream)
        assert peer.do("event.query()") is False
        peer.do("stream = backend.stream(); event.wait(stream)")
        assert peer.do("stream.query()") is False
        with pytest.raises(PeerError, match="TimeoutError"):
            peer.do("event.synchronize(timeout=0.01)")
    event.synchronize()
    assert peer.do("event.query()") is True
    peer.do("event.synchronize(); stream.synchronize()")


def test_a_record_made_before_it_was_opened(backend, peer):
    event, stream = shared(backend), backend.stream()
    with backend.hold(stream):
        event.record(stream)
        peer.open(event)
        assert peer.do("event.query()") is False
    peer.do("event.synchronize()")


def test_who_opened_it_may_record(backend, peer):
    event, stream = shared(backend), backend.stream()
    peer.open(event)
    hold_there(peer)
    assert event.query() is False
    event.wait(stream)
    assert stream.query() is False
    with pytest.raises(TimeoutError):
        event.synchronize(timeout=0.01)
    peer.do("gate.open()")
    event.synchronize()
    stream.synchronize()
    assert event.query() is True


def test_a_record_that_is_done_during_a_schedule(engine, peer):
    """Later records elsewhere are noticed after it."""
    event, stream = shared(engine), engine.stream()
    peer.open(event)
    hold_there(peer)
    with pytest.raises(TimeoutError):
        event.synchronize(timeout=0.01)

    def fn():
        peer.do("gate.open()")
        time.sleep(0.1)
        engine.stream().synchronize()

    schedules.explore(fn, strategy="early")
    event.synchronize(LONG)
    hold_there(peer)
    event.wait(stream)
    peer.do("gate.open()")
    stream.synchronize(LONG)


def test_done_is_not_remembered(backend, peer):
    """What was seen done may have been recorded again elsewhere."""
    event = shared(backend)
    event.record(backend.stream())
    event.synchronize()
    peer.open(event)
    hold_there(peer)
    assert event.query() is False
    peer.do("gate.open()")
    event.synchronize()


def test_a_wait_means_the_record_at_the_call(backend, peer):
    """A later record changes nothing.  (A GPU's driver holds it back until the
    first one is done.)"""
    event, stream = shared(backend), backend.stream()
    peer.open(event)
    with backend.hold(stream):
        event.record(stream)
        peer.do("first = backend.stream(); event.wait(first)")
        event.record(backend.stream())
        peer.do("second = backend.stream(); event.wait(second)")
        if backend.on_engine:
            peer.do("event.synchronize(); second.synchronize()")
        assert peer.do("event.query()") is backend.on_engine
        assert peer.do("first.query()") is False
    peer.do("first.synchronize(); second.synchronize(); event.synchronize()")
    assert peer.do("event.query()") is True


def test_a_later_record_that_takes_longer(backend, peer):
    event, first, second = shared(backend), backend.stream(), backend.stream()
    peer.open(event)
    early, late = backend.gate(first), backend.gate(second)
    try:
        event.record(first)
        peer.do("stream = backend.stream(); event.wait(stream)")
        event.record(second)
        early.open()
        peer.do("stream.synchronize()")
        assert peer.do("event.query()") is False
    finally:
        early.open()
        late.open()
    peer.do("event.synchronize()")


def test_a_wait_outlives_many_records(faulty, peer):
    """A wait for a failed record gets the failure, even if many records were
    made since."""
    event, stream = shared(faulty), faulty.stream()
    peer.open(event)
    with faulty.hold(stream):
        _C.fail(stream, 719)
        event.record(stream)
        peer.do("stream = backend.stream(); event.wait(stream)")
        for _ in range(500):
            event.record(faulty.stream())
    with pytest.raises(PeerError, match=r"\(719\)"):
        peer.do("stream.synchronize()")
    assert peer.do("event.query()") is True


def test_an_event_is_closed_before_its_record_is_done(engine, peer):
    event, stream = shared(engine), engine.stream()
    peer.open(event)
    with engine.hold(stream):
        event.record(stream)
        del event
        assert peer.do("event.query()") is False
    peer.do("event.synchronize()")
    hold_there(peer)
    peer.do("gate.open(); event.synchronize(); del event")


def test_a_failure_travels(faulty, peer):
    event, stream = shared(faulty), faulty.stream()
    peer.open(event)
    peer.do("stream = backend.stream()")
    with faulty.hold(stream):
        _C.fail(stream, 719)
        event.record(stream)
        peer.do("event.wait(stream)")
    for action in ("stream.synchronize()", "event.query()"):
        with pytest.raises(PeerError, match=r"\(719\)"):
            peer.do(action)
    peer.do("event.record(backend.stream()); event.synchronize()")
    event.synchronize()


def test_both_record_at_once(backend, peer):
    event, stream = shared(backend), backend.stream()
    peer.open(event)
    peer.do("import threading; stream = backend.stream()")
    peer.do(
        "def go():\n"
        "    for _ in range(300):\n"
        "        backend.call(stream); event.record(stream)\n"
        "        event.wait(stream); event.query()"
    )
    peer.do("thread = threading.Thread(target=go); thread.start()")
    for _ in range(300):
        backend.call(stream)
        event.record(stream)
        event.wait(stream)
        event.query()
    peer.do("thread.join(); stream.synchronize()")
    stream.synchronize()
    event.synchronize()
    peer.do("event.synchronize()")
    assert event.query()


def test_many_waits_need_no_threads(engine, peer):
    event = shared(engine)
    peer.open(event)
    hold_there(peer)
    streams = [engine.stream() for _ in range(50)]
    before = None
    for stream in streams:
        event.wait(stream)
        peer.do("event.record(stream)")
        threads = len(os.listdir("/proc/self/task"))
        before = before or threads
        assert threads <= before
    peer.do("gate.open()")
    for stream in streams:
        stream.synchronize()


def test_await_and_wait(backend, peer):
    event, other = shared(backend), shared(backend)
    peer.open(event)
    hold_there(peer)
    other.record(backend.stream())
    other.synchronize()

    async def main():
        waiting = asyncio.ensure_future(event)
        await other
        await asyncio.sleep(0.01)
        assert not waiting.done()
        peer.do("gate.open()")
        await waiting

    asyncio.run(main())
    done, pending = pystreams.wait([event, other])
    assert not pending
    assert done == {event, other}


def test_records_of_several_processes_are_told_of_apart(engine, peer):
    event = shared(engine)
    peer.open(event)
    hold_there(peer)

    async def main():
        first = asyncio.ensure_future(event)
        await asyncio.sleep(0.01)
        with engine.hold(stream := engine.stream()) as gate:
            event.record(stream)
            second = asyncio.ensure_future(event)
            await asyncio.sleep(0.01)
            gate.open()
            await asyncio.wait_for(second, 30)
        assert not first.done()
        peer.do("gate.open()")
        await first

    asyncio.run(main())


def test_a_remote_record_holds_up_no_notification(backend, peer):
    """Not even of an event with the same history here."""
    event, stream = shared(backend), backend.stream()
    event.record(stream)
    event.synchronize()
    peer.open(event)
    hold_there(peer)

    async def main():
        waiting = asyncio.ensure_future(event)
        await asyncio.sleep(0.01)
        for _ in range(3):
            await stream.record_event()
        assert not waiting.done()
        peer.do("gate.open()")
        await waiting

    asyncio.run(main())


def test_a_captured_record_is_not_told(engine, peer):
    event, stream = shared(engine), engine.stream()
    graph = Graph(engine.type)
    peer.open(event)
    with engine.hold(stream):
        event.record(stream)
        with Capture(graph, engine.stream()):
            event.record()
            engine.empty(8).fill_(1)
        assert peer.do("event.query()") is False
    peer.do("event.synchronize()")
    stream.synchronize()
    assert code(event.query) == CAPTURED_EVENT
    event.record(stream)
    assert event.query() is True
