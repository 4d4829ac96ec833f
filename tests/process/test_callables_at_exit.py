"""Processes that end or fork while callables run, are queued, or are waited
for: the exit code is right, only documented messages appear, and a child never
runs what its parent submitted."""

import re

import pytest

PROLOGUE = """
import asyncio, atexit, os, signal, sys, threading, time
from concurrent.futures import CancelledError
import pystreams
from pystreams import _C
stream, other = pystreams.Stream({name!r}), pystreams.Stream({name!r})
type = stream.device_type
started, go = threading.Event(), threading.Event()
def run():
    started.set()
    go.wait(60)
ending = threading.Event()
atexit.register(ending.set)
def until_the_end():
    started.set()
    ending.wait(60)
    time.sleep(0.3)
def child(work):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            work()
        except BaseException as error:
            os.write(1, repr(error).encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

# The code that makes work go on at the end of the program.
HELD = {
    "pending callables": """
_C.sleep(type, 60_000_000_000, stream)
futures = [stream.submit(print, "never") for _ in range(100)]
""",
    "pending callables of a stream that is gone": """
_C.sleep(type, 60_000_000_000, stream)
for _ in range(100):
    stream.submit(print, "never")
del stream
""",
    "many streams with callables": """
streams = [pystreams.Stream(stream.device) for _ in range(50)]
futures = [s.submit(time.sleep, 0.1) for s in streams for _ in range(2)]
""",
    "a running callable": """
stream.submit(until_the_end)
behind = stream.submit(print, "never")
""",
    "a callable that exits": """
stream.submit(sys.exit, 5).exception()
future = stream.submit(sys.exit, 5)
""",
    "a callable that was cancelled": """
stream.submit(until_the_end)
future = stream.submit(print, "never")
future.cancel()
""",
    "callables without end": """
def again():
    if stream.query() is None:
        return
    stream.submit(again)
    other.submit(int)
again()
""",
    "a thread in result()": """
_C.sleep(type, 60_000_000_000, stream)
future = stream.submit(int)
def wait():
    try:
        future.result()
    except CancelledError:
        pass
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.02)
""",
    "a thread in wait()": """
_C.sleep(type, 60_000_000_000, stream)
def wait():
    pystreams.wait([stream])
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.02)
""",
    "a thread in synchronize(timeout=)": """
_C.sleep(type, 60_000_000_000, stream)
def wait():
    stream.synchronize(timeout=25)
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.02)
""",
    "pending awaits": """
_C.sleep(type, 60_000_000_000, stream)
event = stream.record_event()
async def waiting(work):
    await work
async def main():
    tasks = [asyncio.create_task(waiting(w)) for w in (stream, event) * 10]
    await asyncio.sleep(0.01)
asyncio.run(main())
""",
    "a loop in a daemon thread": """
_C.sleep(type, 60_000_000_000, stream)
async def main():
    await stream
threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
time.sleep(0.05)
""",
}

ENDS = {
    "normal": "",
    "exception": "raise ValueError('the end')",
    "sys.exit": "sys.exit(7)",
}

CODES = {"exception": 1, "sys.exit": 7}


@pytest.mark.unscheduled
@pytest.mark.parametrize(
    ("held", "end"),
    [
        *[(held, "normal") for held in HELD],
        *[
            (held, end)
            for held in ("pending callables", "a running callable")
            for end in ("exception", "sys.exit")
        ],
    ],
)
def test_exit(run_python, held, end):
    code = PROLOGUE.format(name="cpu") + HELD[held] + ENDS[end]
    done = run_python(code)
    assert done.returncode == CODES.get(end, 0)
    assert done.stdout == ""
    said = "" if end != "exception" else r"Traceback .*\nValueError: the end\n"
    assert re.fullmatch(said, done.stderr, re.S)
    assert done.stderr.count("Traceback") == (end == "exception")


@pytest.mark.unscheduled
def test_exit_waits_for_a_running_callable(run_python):
    code = (
        """
import atexit
atexit.register(lambda: print(ran))
"""
        + PROLOGUE.format(name="cpu")
        + """
ran = []
def work():
    until_the_end()
    ran.append("done")
stream.submit(work)
behind = stream.submit(ran.append, "never")
started.wait()
"""
    )
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("['done']\n", "")


@pytest.mark.unscheduled
def test_a_stuck_callable(run_python):
    """The exit waits for the callable for five seconds, which are shortened
    here.  One line says that the callable was abandoned."""
    code = PROLOGUE.format(name="cpu") + (
        """
assert pystreams._EXIT_DEADLINE == 5.0
pystreams._EXIT_DEADLINE = 0.3
stream.submit(run)
started.wait()
began = time.monotonic()
atexit.register(sys.stdout.flush)
sys.exit(3)
"""
    )
    done = run_python(code)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "pystreams: queued work or a callback was still running 0.3 s after "
        "the program ended; it was abandoned\n"
    )


def test_threads_keep_no_lock_at_the_end(run_python):
    """If Python stopped a thread that was ending, the thread would keep locks
    of threading that Python itself takes at its end, which would be a
    deadlock."""
    code = """
import os, threading, time
import pystreams
lock, local = threading.Lock(), threading.local()
class Slow:
    def __del__(self, lock=lock, sleep=time.sleep):
        with lock:
            sleep(0.5)
class Last:
    def __del__(self, lock=lock, write=os.write):
        write(1, b"free" if lock.acquire(timeout=5) else b"kept")
last = Last()
def run():
    local.slow = Slow()
pystreams.Stream("cpu").submit(run).result()
"""
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("free", "")


def test_submit_at_the_end(run_python):
    """Submitting works before the package's own exit function, and is refused
    after it."""
    code = (
        """
import atexit
def last():
    try:
        stream.submit(int)
    except RuntimeError as error:
        print(error)
atexit.register(last)
"""
        + PROLOGUE.format(name="cpu")
        + """
atexit.register(lambda: print(stream.submit(int).result(30)))
"""
    )
    done = run_python(code)
    assert done.stdout.splitlines() == [
        "0",
        "cannot submit a callable after the program ended",
    ]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def forking(sanitized):
    if sanitized:
        pytest.skip("a sanitizer's allocator may stay locked in a child")
    return PROLOGUE.format(name="cpu")


FORKS = {
    "with callables pending": """
stream.submit(run)
futures = [stream.submit(ran.append, os.getpid()) for _ in range(100)]
started.wait()
for _ in range(5):
    codes.append(child(fresh))
go.set()
stream.synchronize()
""",
    "from within a callable": """
def forks():
    codes.append(child(fresh))
futures = [stream.submit(ran.append, os.getpid()) for _ in range(50)]
futures.append(stream.submit(forks))
futures += [stream.submit(ran.append, os.getpid()) for _ in range(50)]
stream.synchronize()
""",
    "from within a callable that the child returns from": """
def forks(how=int):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        fresh()
        how()
        return
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
stream.submit(forks, lambda: sys.exit(9)).result(30)
assert codes.pop() == 9
futures = [stream.submit(ran.append, os.getpid()) for _ in range(50)]
futures += [stream.submit(forks), other.submit(forks)]
futures += [stream.submit(ran.append, os.getpid()) for _ in range(50)]
stream.synchronize()
other.synchronize()
""",
    "from within a callback": """
def forks(future):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        return fresh()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
stream.submit(run)
futures = [stream.submit(ran.append, os.getpid()) for _ in range(100)]
futures[50].add_done_callback(forks)
go.set()
stream.synchronize()
while not codes: time.sleep(0.001)
""",
    "with threads in waits": """
_C.sleep(type, 300_000_000, other)
def wait(work):
    try:
        work()
    except RuntimeError:
        pass
event = other.record_event()
waits = [other.synchronize, event.synchronize,
         lambda: pystreams.wait([other, event])]
threads = [threading.Thread(target=wait, args=(w,)) for w in waits]
for t in threads: t.start()
futures = [stream.submit(ran.append, os.getpid()) for _ in range(100)]
for _ in range(3):
    codes.append(child(fresh))
for t in threads: t.join()
stream.synchronize()
""",
    "with awaits pending": """
async def waiting():
    await event
    await stream
async def main():
    global event
    stream.submit(run)
    event = stream.record_event()
    for _ in range(100):
        futures.append(stream.submit(ran.append, os.getpid()))
    tasks = [asyncio.create_task(waiting()) for _ in range(10)]
    await asyncio.sleep(0)
    codes.append(child(fresh))
    go.set()
    await asyncio.gather(*tasks)
futures = []
asyncio.run(main())
""",
}

FRESH = """
ran, codes, parent = [], [], os.getpid()
def fresh():
    before = list(ran)
    mine = pystreams.Stream("cpu")
    futures = [mine.submit(ran.append, os.getpid()) for _ in range(20)]
    mine.synchronize()
    event = mine.record_event()
    async def main():
        mine.submit(time.sleep, 0.01)
        await mine
        await event
    if threading.current_thread() is threading.main_thread():
        assert pystreams.wait([mine, event, *futures], 30).not_done == set()
    _C.synchronize(0, None, 30)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    for use in (lambda: stream.submit(int), stream.synchronize,
                lambda: pystreams.wait([stream])):
        try:
            use()
        except RuntimeError as error:
            assert "spawn" in str(error), error
        else:
            raise AssertionError(use)
    assert ran == before + [os.getpid()] * 20, ran
"""


@pytest.mark.unscheduled
@pytest.mark.parametrize("case", FORKS)
def test_fork(run_python, forking, case):
    code = (
        forking
        + FRESH
        + FORKS[case]
        + """
assert ran == [parent] * 100, ran
for future in futures:
    future.result(30)
print(set(codes))
"""
    )
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("{0}\n", "")
    assert done.returncode == 0


@pytest.mark.unscheduled
def test_a_callback_forks_when_the_program_ends(run_python, forking):
    """The child does not wait for its parent's callables, nor report them."""
    code = (
        forking
        + """
import time
stream.submit(run)
started.wait()
pending = stream.submit(print, "never")

@pending.add_done_callback
def fork(pending):
    begin = time.monotonic()
    if os.fork() != 0:
        _, status = os.wait()
        print(status, time.monotonic() - begin < 2, flush=True)
        go.set()
"""
    )
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("0 True\n", "")


@pytest.mark.unscheduled
def test_a_child_that_ends_as_programs_do(run_python, forking):
    """Both the parent's callables and its own are pending."""
    code = (
        forking
        + """
stream.submit(run)
futures = [stream.submit(print, "the parent's") for _ in range(3)]
started.wait()
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    mine = pystreams.Stream("cpu")
    mine.submit(int).result(30)
    _C.sleep(0, 60_000_000_000, mine)
    pending = mine.submit(print, "never")
    sys.exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
go.set()
stream.synchronize()
"""
    )
    done = run_python(code)
    assert done.stdout.splitlines() == ["4"] + ["the parent's"] * 3
    assert done.stderr == ""
