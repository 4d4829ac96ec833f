"""Waits that time out, again and again, leave nothing behind: not with the
stream, the event or the Future, and not in memory."""

import threading
import weakref

import pytest
from deadlines import wait_until

import pystreams
from pystreams import _C

POLL = """
import asyncio, faulthandler, resource, sys, threading
import pystreams
from pystreams import as_completed, wait

faulthandler.dump_traceback_later(60, exit=True)
name, how, which, fills = sys.argv[1:]
stream, go = pystreams.Stream(name), threading.Event()
stream.submit(go.wait)
event = stream.record_event()
future = stream.submit(int)
shared = pystreams.Event(name, interprocess=True, enable_timing=False)
shared.record(stream)
objects = {"stream": [stream], "event": [event], "future": [future],
           "shared event": [shared], "all": [stream, event, shared, future],
           }[which]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def polls_by_wait(times):
    for _ in range(times):
        assert not wait(objects, 1e-6).done

def polls_by_as_completed(times):
    for _ in range(times):
        try:
            for _ in as_completed(objects, 1e-6):
                raise AssertionError
        except TimeoutError:
            pass

def polls_by_wait_for(times):
    async def main():
        for _ in range(times):
            for work in objects:
                try:
                    await asyncio.wait_for(work, 1e-6)
                except asyncio.TimeoutError:
                    pass
    asyncio.run(main())

def polls_by_async_for(times):
    async def main():
        for _ in range(times):
            try:
                async for _ in as_completed(objects, 1e-6):
                    raise AssertionError
            except TimeoutError:
                pass
    asyncio.run(main())

poll = globals()["polls_by_" + how]
if fills == "fills":
    for _ in range(65_000):
        event.record(stream)
poll(300)
before = resident()
poll(3000)
print(resident() - before)
assert not future.__dict__.get("_done_callbacks")
stream.record_event()
go.set()
stream.synchronize()
assert wait(objects, 30).not_done == set()
"""


@pytest.mark.unscheduled
@pytest.mark.parametrize(
    ("how", "which"),
    [
        ("wait", "stream"),
        ("wait", "event"),
        ("wait", "shared event"),
        ("wait", "future"),
        ("as_completed", "all"),
        ("wait_for", "stream"),
        ("wait_for", "event"),
        ("wait_for", "shared event"),
        ("async_for", "all"),
    ],
)
def test_polling_leaves_nothing(backend, run_python, sanitized, how, which):
    """There are more polls than there are free places in the queue."""
    fills = "fills" if backend.on_engine else "leaves room"
    done = run_python(POLL, backend.name, how, which, fills, timeout=90)
    assert (done.returncode, done.stderr) == (0, "")
    # The driver's own memory for a pending record does not count.
    if backend.on_engine and not sanitized:
        assert int(done.stdout) < 300_000


@pytest.mark.parametrize("how", ["wait", "as_completed"])
def test_a_future_that_is_done_keeps_no_waiter(backend, how, monkeypatch):
    """The Future does not keep the callbacks by which it was waited for,
    either."""
    go, waiters = threading.Event(), []

    def make(type=_C.Waiter):
        waiter = type()
        waiters.append(weakref.ref(waiter))
        return waiter

    monkeypatch.setattr(_C, "Waiter", make)
    future = backend.stream().submit(go.wait, 30)
    threading.Timer(0.05, go.set).start()
    if how == "wait":
        pystreams.wait([future])
    else:
        assert list(pystreams.as_completed([future])) == [future]
    assert future._done_callbacks == []
    # The callback ends in a moment.
    (waiter,) = waiters
    wait_until(lambda: waiter() is None)


LEFT_AT_THE_END = """
import concurrent.futures
import pystreams
pending, done = (concurrent.futures.Future() for _ in range(2))
done.set_result(1)
left = iter(pystreams.as_completed([pending, done]))
next(left)
"""


def test_left_at_the_end_of_the_program(run_python):
    """The interpreter ends the generator when it can import nothing more."""
    done = run_python(LEFT_AT_THE_END)
    assert (done.returncode, done.stderr) == (0, "")
