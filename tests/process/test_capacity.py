"""How many objects of each kind there may be, and what happens at the
limit."""

import os
import threading

import pytest

STREAMS = 10_000

SEMAPHORE = """
import ctypes
import pystreams
from pystreams import _C
libc = ctypes.CDLL(None)
semaphore = (ctypes.c_long * 4)()
libc.sem_init(semaphore, 0, 0)
sem_wait = ctypes.cast(libc.sem_wait, ctypes.c_void_p).value
getpid = ctypes.cast(libc.getpid, ctypes.c_void_p).value
"""


def test_ten_thousand_streams(run_python, sanitized):
    """No stream takes a thread, and each takes at most 2 KiB."""
    code = (
        SEMAPHORE
        + f"""
import os, resource
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
def threads():
    return len(os.listdir("/proc/self/task"))
def use(stream):
    event.record(first)
    stream.wait_event(event)
    _C.sleep(0, 1_000, stream)
    stream.synchronize()
device = pystreams.device("cpu", 0)
first = pystreams.Stream(device)
event = pystreams.Event(device)
for _ in range(200):
    use(pystreams.Stream(device))
before = resident()
streams = []
for _ in range({STREAMS}):
    streams.append(pystreams.Stream(device))
for stream in streams:
    use(stream)
grown = resident() - before
assert len({{s.native_handle for s in streams}}) == {STREAMS}
_C.launch_host_function(first, sem_wait, ctypes.addressof(semaphore))
event.record(first)
for stream in streams:
    stream.wait_event(event)
assert not any(stream.query() for stream in streams)
print(grown, threads())
libc.sem_post(semaphore)
for stream in streams:
    stream.synchronize()
"""
    )
    done = run_python(code, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    grown, threads = map(int, done.stdout.split())
    assert threads <= os.cpu_count() + 4
    if not sanitized:
        assert grown <= STREAMS * 2048 + (4 << 20)


def test_all_work_of_many_streams_is_done(backend):
    """A thousand streams wait for one event, and all of them wake up."""
    if not backend.on_engine:
        pytest.skip("a thousand streams of a GPU take half a gigabyte")
    first = backend.stream()
    streams = [backend.stream() for _ in range(1000)]
    with backend.hold(first):
        event = first.record_event()
        for stream in streams:
            stream.wait_event(event)
        assert not any(stream.query() for stream in streams)
    for stream in streams:
        stream.synchronize()
    assert all(stream.query() for stream in streams)


def test_a_full_queue_waits_for_room(engine):
    """More work is queued than a queue holds, and another thread makes
    room."""
    stream, event = engine.stream(), engine.event()
    with engine.hold(stream) as gate:
        timer = threading.Timer(0.2, gate.open)
        timer.start()
        for _ in range(70_000):
            event.record(stream)
        timer.join()
        stream.synchronize()
    assert event.query()


FULL_QUEUE = """
import os, signal, threading, time
stream = pystreams.Stream("cpu")
event = pystreams.Event("cpu")
other = pystreams.Event("cpu")
block = pystreams.empty(16, device="cpu")
_C.launch_host_function(stream, sem_wait, ctypes.addressof(semaphore))
other.record(stream)
count = 0
def interrupt():
    # Another Python thread runs while the first is blocked, which one that a
    # busy machine keeps waiting looks like.
    seen = -1
    while seen != count or count < 1000:
        seen = count
        time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    while True:
        {operation}
        count += 1
except KeyboardInterrupt:
    print("interrupted", 1000 <= count <= 1_000_000)
assert not stream.query()
libc.sem_post(semaphore)
stream.synchronize()
assert stream.query() and event.query()
{operation}
stream.synchronize()
"""


@pytest.mark.parametrize(
    "operation",
    [
        "event.record(stream)",
        "stream.wait_event(other)",
        "block.fill_(1, stream=stream)",
        "_C.sleep(0, 0, stream)",
        "_C.launch_host_function(stream, getpid)",
    ],
    ids=["record", "wait", "fill", "sleep", "host function"],
)
def test_blocked_on_a_full_queue_is_interruptible(run_python, operation):
    done = run_python(SEMAPHORE + FULL_QUEUE.format(operation=operation))
    assert (done.stdout, done.stderr) == ("interrupted True\n", "")
    assert done.returncode == 0


@pytest.mark.unscheduled
def test_events_without_end(run_python, sanitized):
    """Many events are made, recorded and dropped, and the memory in use does
    not grow."""
    code = """
import resource, pystreams
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
stream = pystreams.Stream("cpu")
def make(count):
    for _ in range(count):
        pystreams.Event("cpu").record(stream)
    stream.synchronize()
make(20_000)
before = resident()
make(100_000)
print(resident() - before)
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")
    if not sanitized:
        assert int(done.stdout) < 1 << 20


def test_many_live_events(engine):
    events = [engine.event() for _ in range(20_000)]
    stream = engine.stream()
    with engine.hold(stream):
        for event in events:
            event.record(stream)
        assert not any(event.query() for event in events)
    stream.synchronize()
    assert all(event.query() for event in events)


def test_streams_made_and_dropped(backend):
    """These are far more streams than can exist at the same time, so they must
    be reused."""
    for _ in range(3000):
        stream = backend.stream()
        stream.record_event()
    backend.synchronize()
