"""Ctrl-C during a wait: the wait of the main thread ends with
KeyboardInterrupt, the work goes on, and everything stays usable.  A handler
that returns ends no wait."""

import signal
import threading
import time

import pytest

PROLOGUE = """
import os, signal, sys, threading, time
import pystreams
from pystreams import _C, as_completed, wait
device = pystreams.device({name!r}, 0)
stream, other = pystreams.Stream(device), pystreams.Stream(device)
event, waiter = pystreams.Event(device), _C.Waiter()
go = threading.Event()
buffer = pystreams.empty(4096, device=device)
target, source = bytearray(4096), bytes([7]) * 4096
buffer.fill_(5, stream=stream)
stream.synchronize()
def hold():
    stream.submit(go.wait, 60)
    event.record(stream)
def interrupt():
    ready.wait()
    time.sleep(0.07)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
sent, ready = [], threading.Event()
signals = threading.Thread(target=interrupt, daemon=True)
def after():
    soon = time.monotonic() - sent[0] < 2
    assert not stream.query() and not event.query()
    go.set()
    stream.synchronize()
    event.synchronize(timeout=30)
    _C.synchronize(stream.device_type)
    assert stream.query() and event.query()
    stream.submit(int).result(30)
    print("soon" if soon else "late")
"""

CASE = """
hold()
signals.start()
ready.set()
try:
    {wait}
except KeyboardInterrupt:
    after()
else:
    print("no interrupt")
{check}
"""

WAITS = {
    "stream": ("stream.synchronize()", ""),
    "stream with a timeout": ("stream.synchronize(timeout=60)", ""),
    "event": ("event.synchronize()", ""),
    "event with a timeout": ("event.synchronize(60)", ""),
    "device": ("_C.synchronize(stream.device_type)", ""),
    "device with a timeout": (
        "_C.synchronize(stream.device_type, None, 60)",
        "",
    ),
    "copy in": (
        "buffer.copy_(source, stream=stream)",
        "assert buffer.tobytes() == source",
    ),
    "copy in of a temporary": (
        "buffer.copy_(bytearray(b'z') * 4096, stream=stream)",
        "assert buffer.tobytes() == b'z' * 4096",
    ),
    "copy out": (
        "buffer.copy_to(target, stream=stream)",
        "assert bytes(target) == bytes([5]) * 4096",
    ),
    "tobytes": (
        "stream.__enter__(), buffer.tobytes()",
        "assert buffer.tobytes() == bytes([5]) * 4096",
    ),
    "export": (
        "stream.__enter__(); host.__dlpack__()",
        "pystreams.from_dlpack(host.__dlpack__()).tobytes()",
    ),
    "wait": ("wait([stream])", "assert wait([stream]).done"),
    "wait with a timeout": ("wait([event, stream], 60)", ""),
    "wait for a future": ("wait([stream.submit(int)])", ""),
    "as_completed": ("list(as_completed([stream, event]))", ""),
    "waiter": (
        "waiter.register(event, 3), waiter.wait()",
        "assert waiter.wait(30) == [(3, 0)]",
    ),
    "result": ("stream.submit(int).result()", ""),
    "memory": (
        "retired.close(), pystreams.empty(40 << 20, device=device)",
        "pystreams.empty(40 << 20, device=device)",
    ),
    "full queue, submit": (
        "[stream.submit(int) for _ in range(70_000)]",
        "",
    ),
    "full queue, record": (
        "[event.record(stream) for _ in range(70_000)]",
        "",
    ),
    "full queue, wait_stream": (
        "[stream.wait_stream(other) for _ in range(70_000)]",
        "",
    ),
}


# Use more than half of the device's memory, so that a second allocation of
# this size has to wait.
USES_MEMORY = """
retired = pystreams.empty(40 << 20, device=device)
held = hold
def hold():
    held()
    retired.fill_(1, stream=stream)
"""

EMULATED = {
    "PYSTREAMS_EMULATE_CUDA": "1",
    "PYSTREAMS_EMULATE_MEMORY": "64MiB",
}


@pytest.mark.parametrize(
    ("name", "case"),
    [
        *[("cpu", case) for case in WAITS if case != "memory"],
        *[
            ("cuda", case)
            for case in ("stream", "event", "device", "wait", "memory")
        ],
    ],
)
def test_interrupted(run_python, name, case):
    wait, check = WAITS[case]
    prologue = PROLOGUE.format(name=name)
    if case == "export":
        prologue += "host = pystreams.empty(8, device='cpu')\n"
    if case == "memory":
        prologue += USES_MEMORY
    if case == "full queue, wait_stream":
        # Queue something to wait for each time.
        prologue += "other.submit(go.wait, 60)\n"
    code = prologue + CASE.format(wait=wait, check=check)
    done = run_python(code, env=EMULATED, timeout=60)
    assert (done.stdout, done.stderr) == ("soon\n", "")
    assert done.returncode == 0


@pytest.mark.parametrize("case", ["stream", "wait"])
def test_uncaught(run_python, case):
    """The program ends like any interrupted program, even if work is still
    going on."""
    prologue = PROLOGUE.format(name="cpu")
    code = f"""
{prologue}
pystreams._EXIT_DEADLINE = 0.1
hold()
signals.start()
ready.set()
{WAITS[case][0]}
"""
    done = run_python(code, timeout=60)
    assert done.returncode in (-signal.SIGINT, 130)
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert done.stderr.count("Traceback") == 1
    assert "KeyboardInterrupt" in lines
    assert len([line for line in lines if "abandoned" in line]) == 1


@pytest.fixture
def storm():
    """Signals at every millisecond, with a handler that returns."""
    count = 0

    def handler(number, frame):
        nonlocal count
        count += 1

    old = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    yield lambda: count
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


@pytest.mark.unscheduled
def test_a_signal_storm(engine, storm):
    """No wait ends early, no call fails, and nothing is lost."""
    import pystreams

    stream, event = engine.stream(), engine.event()
    buffer = engine.empty(100)
    for wait in (
        stream.synchronize,
        lambda: stream.synchronize(timeout=30),
        event.synchronize,
        engine.synchronize,
        lambda: pystreams.wait([stream, event]),
        lambda: list(pystreams.as_completed([event, stream])),
        lambda: stream.submit(int).result(),
        lambda: buffer.copy_(bytes(100), stream=stream),
    ):
        before = storm()
        engine.sleep(stream, 60)
        event.record(stream)
        wait()
        assert event.query()
        assert storm() > before


def test_a_signal_storm_on_callables(engine, storm):
    stream, seen = engine.stream(), []
    for turn in range(2000):
        stream.submit(seen.append, turn)
    stream.synchronize()
    assert seen == list(range(2000))


@pytest.mark.unscheduled
def test_a_handler_may_use_the_package(engine):
    """The handler runs in the middle of the wait, on the thread that waits."""
    stream, event = engine.stream(), engine.event()
    seen = []

    def handler(number, frame):
        seen.append(threading.current_thread())
        assert not event.query()
        other = engine.stream()
        other.submit(int).result(30)
        other.synchronize()
        stream.synchronize(timeout=30)

    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        engine.sleep(stream, 150)
        event.record(stream)
        event.synchronize()
    finally:
        signal.signal(signal.SIGALRM, old)
    assert seen == [threading.main_thread()]


def test_other_threads_are_left_alone(engine):
    """Only the main thread's wait ends."""
    stream, ended = engine.stream(), []

    def work():
        stream.synchronize()
        ended.append(stream.query())

    with engine.hold(stream):
        thread = threading.Thread(target=work)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            old = signal.signal(signal.SIGALRM, signal.default_int_handler)
            try:
                stream.synchronize()
            finally:
                signal.signal(signal.SIGALRM, old)
        time.sleep(0.06)
        assert ended == []
    thread.join()
    assert ended == [True]


def test_a_handler_that_forks_in_an_allocation(run_python):
    """The child has all the memory of its own devices."""
    code = (
        PROLOGUE.format(name="cuda")
        + USES_MEMORY
        + """
def handler(number, frame):
    children.append(os.fork())
    go.set()
children = []
signal.signal(signal.SIGALRM, handler)
hold()
retired.close()
signal.setitimer(signal.ITIMER_REAL, 0.07)
try:
    taken = pystreams.empty(40 << 20, device=device)
except RuntimeError as error:
    free, total = pystreams.cuda.mem_get_info()
    os._exit("made before a fork" not in str(error) or free < total)
print(os.waitpid(children[0], 0)[1])
"""
    )
    done = run_python(code, env=EMULATED, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)


def test_a_handler_that_forks(run_python):
    """In the child, the wait is for work that the child does not have."""
    code = (
        PROLOGUE.format(name="cpu")
        + """
def handler(number, frame):
    children.append(os.fork())
children = []
signal.signal(signal.SIGALRM, handler)
pid = os.getpid()
for wait in (stream.synchronize, event.synchronize,
             lambda: _C.synchronize(stream.device_type),
             lambda: pystreams.wait([stream]),
             lambda: [event.record(stream) for _ in range(70_000)]):
    go.clear()
    hold()
    threading.Timer(0.2, go.set).start()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        wait()
    except RuntimeError as error:
        assert os.getpid() != pid
        pystreams.Stream(device).submit(int).result(30)
        os._exit("made before a fork" not in str(error))
    assert os.getpid() == pid
print([os.waitpid(child, 0)[1] for child in children])
"""
    )
    done = run_python(code, timeout=60)
    assert (done.stdout, done.stderr) == ("[0, 0, 0, 0, 0]\n", "")


def test_a_handler_that_forks_under_a_schedule(run_python):
    code = (
        PROLOGUE.format(name="cpu")
        + """
from concurrent.futures import Future
from pystreams import schedules
def handler(number, frame):
    children.append(os.fork())
    if children[0] == 0:
        # A child that waited on would be waited for.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
    else:
        future.set_result(None)
children, future = [], Future()
signal.signal(signal.SIGALRM, handler)
with schedules.run("late"):
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        wait([future])
    except RuntimeError as error:
        os._exit("made before a fork" not in str(error))
print(os.waitpid(children[0], 0)[1])
"""
    )
    done = run_python(code, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")
