"""Waits on a backend that has gates but cannot end a wait, like the CUDA
backend.  It is the example's device with gates.  Each test uses it in a
process of its own."""

import pytest

HEAD = """
import threading
import time
import gated_device
import pystreams
from gated_device import complete, launch
from pystreams import Event, Stream, _C

MTIA = 13
stream = Stream("mtia")
work = launch(stream)
event = stream.record_event()

def device_synchronize(timeout=None):
    _C.synchronize(MTIA, 0, timeout)

WAITS = [stream.synchronize, event.synchronize, device_synchronize]

def raises(error, words, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except error as raised:
        assert words in str(raised), str(raised)
    else:
        raise AssertionError(f"no {error.__name__}")

def soon(function, *args):
    timer = threading.Timer(0.05, function, args)
    timer.start()
    return timer
"""

CASES = {
    "a limit that is passed": """
for wait in WAITS:
    for timeout in (-1, 0, 0.0001, 0.02):
        raises(TimeoutError,
               f"was not done after {timeout} s; the work goes on",
               wait, timeout=timeout)
complete(work)
for wait in WAITS:
    wait(timeout=0.5)
    wait()
""",
    "a failure that is found after a wait has given up": """
failing = Stream("mtia")
failing.wait_event(event)
_C.fail(failing, 719)
del failing
raises(TimeoutError, "the work goes on", device_synchronize, timeout=0.01)
complete(work)
# The thread that waited on its behalf has nobody to report it to.
time.sleep(0.2)
raises(pystreams.AcceleratorError, "(719)", device_synchronize)
device_synchronize()
""",
    "asking again and again": """
import os
threads = len(os.listdir("/proc/self/task"))
for _ in range(100):
    raises(TimeoutError, "0 s", stream.synchronize, timeout=0)
    raises(TimeoutError, "-1 s", event.synchronize, timeout=-1)
    assert not pystreams.wait([stream, event], timeout=0).done
assert len(os.listdir("/proc/self/task")) == threads
complete(work)
""",
    "a full queue": """
rest = [work] + [launch(stream) for _ in range(99)]
for timeout in (0.0001, 0.02):
    raises(TimeoutError, f"was not done after {timeout} s; the work goes on",
           stream.synchronize, timeout=timeout)
    assert pystreams.wait([stream], timeout).not_done == {stream}
soon(list, map(complete, rest))
stream.synchronize(timeout=30)
assert stream.query()
""",
    "work that ends in time": """
for wait in WAITS:
    soon(complete, work)
    wait(timeout=30)
    assert event.query()
    work = launch(stream)
    event.record(stream)
complete(work)
""",
    "a record after the one that is waited for": """
def end_and_record():
    global work
    complete(work)
    work = launch(stream)
    event.record(stream)

timer = soon(end_and_record)
event.synchronize(timeout=30)
timer.join()
complete(work)
event.synchronize()
""",
    "a record elsewhere, done before the one that is waited for": """
def record_elsewhere():
    event.record(Stream("mtia"))
    soon(complete, work)

soon(record_elsewhere)
event.synchronize(timeout=30)
assert stream.query()
""",
    "failures": """
_C.fail(stream, 719)
event.record(stream)
complete(work)
for wait in WAITS:
    raises(pystreams.AcceleratorError, "719", wait, timeout=30)
""",
    "Ctrl-C": """
import os, signal
for wait in WAITS:
    soon(os.kill, os.getpid(), signal.SIGINT)
    raises(KeyboardInterrupt, "", wait, timeout=30)
assert not stream.query()
complete(work)
stream.synchronize(timeout=30)
""",
    "several at once": """
other = Stream("mtia:1")
assert pystreams.wait([stream, other], 0.02) == ({other}, {stream})
soon(complete, work)
order = list(pystreams.as_completed([stream, other, event], 30))
assert order[0] is other and set(order[1:]) == {stream, event}
""",
    "await": """
import asyncio

async def main():
    asyncio.get_running_loop().call_later(0.05, complete, work)
    await event
    await stream

asyncio.run(main())
""",
    "a callable that waits for its own stream": """
other = Stream("mtia")
errors = [
    other.submit(other.synchronize, timeout=1).exception(30),
    other.submit(device_synchronize, timeout=1).exception(30),
]
assert all("cannot wait for the stream" in str(e) for e in errors), errors
complete(work)
""",
}


@pytest.mark.parametrize("case", CASES)
def test_gated_device(run_with_device, case):
    done = run_with_device(HEAD + CASES[case], timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
