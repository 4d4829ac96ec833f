"""The threads that run callables: they start whatever threading's hooks do,
look like Python's own threads, and run every callable even if memory is
short.  Callables at the end of the program, in forked children and in other
interpreters."""

import threading

import pytest
from deadlines import LONG

LAST = """
import atexit
def last():
    pass
atexit.register(lambda: last())
"""

PROLOGUE = """
import asyncio, atexit, os, signal, sys, threading, time
import pystreams
stream, other = pystreams.Stream("cpu"), pystreams.Stream("cpu")
go = threading.Event()
def held(stream):
    stream.submit(go.wait, 30)
"""


@pytest.fixture
def run(run_python):
    """Return run(code), which returns what the code prints.  The code must
    print nothing on stderr.  If it defines a function `last`, that runs at
    exit, after the package's own end."""

    def run(code):
        done = run_python(LAST + PROLOGUE + code, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def test_how_threading_shows_them(stream):
    thread = stream.submit(threading.current_thread).result(LONG)
    assert thread in threading.enumerate()
    assert thread.is_alive() and thread.daemon
    assert thread.name.startswith("pystreams-")
    assert thread.ident != threading.get_ident()


def test_how_the_system_shows_them(stream):
    def name():
        with open(f"/proc/self/task/{threading.get_native_id()}/comm") as file:
            return file.read().strip(), threading.current_thread().name

    ours, theirs = stream.submit(name).result(LONG)
    assert ours == theirs


def test_one_that_ends_is_shown_no_more(run):
    code = """
assert stream.submit(int).result() == 0
assert len(threading.enumerate()) == 2
# It ends after some seconds without a callable.
while len(threading.enumerate()) > 1:
    time.sleep(0.001)
print([thread.name for thread in threading.enumerate()])
"""
    assert run(code) == "['MainThread']\n"


@pytest.mark.parametrize("hook", ["settrace", "setprofile"])
def test_hooks_of_threading(run, hook):
    """A tool that measures coverage sees callables."""
    code = f"""
def called():
    return 5
def hook(frame, event, arg):
    if frame.f_code.co_name == "called":
        seen.append(event)
    return hook
seen = []
threading.{hook}(hook)
assert stream.submit(called).result() == 5
print(seen[0])
"""
    assert run(code) == "call\n"


@pytest.mark.parametrize("hook", ["settrace", "setprofile"])
def test_a_hook_that_raises(run, hook):
    """The hook's error is reported as unraisable, or becomes the exception of
    the callable.  The other callables run."""
    code = f"""
sys.unraisablehook = lambda unraisable: None
def hook(frame, event, arg):
    raise RuntimeError("hook")
threading.{hook}(hook)
future = stream.submit(lambda: 5)
assert repr(future.exception(30)) in ("None", "RuntimeError('hook')")
threading.{hook}(None)
futures = [stream.submit(int) for _ in range(100)]
futures += [other.submit(int) for _ in range(100)]
print({{f.result(30) for f in futures}})
"""
    assert run(code) == "{0}\n"


def test_what_becomes_of_run_is_nothing_to_them(run):
    code = """
def run(self):
    raise MemoryError
threading.Thread.run = run
print(stream.submit(int).result(30))
"""
    assert run(code) == "0\n"


def test_a_context_is_left_behind_its_callable(stream, block):
    """Callbacks and the next callable run in the thread's own context.  The
    callable's context is dropped, together with the objects in it."""
    import contextvars
    import gc
    import time
    import weakref

    class Value:
        pass

    variable = contextvars.ContextVar("variable", default=None)
    seen = []

    def function():
        value = Value()
        variable.set(value)
        return weakref.ref(value)

    future = stream.submit(function)
    future.add_done_callback(lambda f: seen.append(variable.get()))
    behind = stream.submit(variable.get)
    block.release()
    assert behind.result(LONG) is None
    end = time.monotonic() + LONG
    while not seen or future.result(LONG)() is not None:
        assert time.monotonic() < end
        gc.collect()
    assert seen == [None]


# ---- Short of memory ----


@pytest.fixture
def short(run):
    """Return run(code).  The code may call nomemory(n), which makes the nth
    allocation after it fail, until remove()."""
    pytest.importorskip("_testcapi", reason="needs _testcapi")
    # If there is no memory for a function, and a thread's start makes one,
    # CPython 3.12 and 3.13 release one reference to its code too many
    # (MAKE_FUNCTION, python/cpython#122752), and later use the code after it
    # was freed.  So give each code object additional references.
    head = """
import ctypes, gc, types
from _testcapi import set_nomemory, remove_mem_hooks as remove
spare = ctypes.py_object(100 * [
    const
    for function in gc.get_objects()
    if isinstance(function, types.FunctionType)
    for const in function.__code__.co_consts
    if isinstance(const, types.CodeType)
])
ctypes.pythonapi.Py_IncRef(spare)
sys.unraisablehook = threading.excepthook = lambda args: None
def nomemory(n, result=None):
    set_nomemory(n, n + 1)
    return result
def judge(future, *allowed):
    end = time.monotonic() + 10
    while not future.done() and time.monotonic() < end:
        try:
            time.sleep(0.001)
        except MemoryError:
            # This thread's own allocation has failed.
            pass
    remove()
    assert future.done(), (n, future)
    try:
        result = future.result()
    except BaseException as error:
        result = type(error)
    assert result in allowed, (n, result)
SWEEP = range(24)
stream.submit(int).result()
"""
    return lambda code: run(head + code)


def test_settling_short_of_memory(short):
    """The Future is settled with and without a thread that waits for it."""
    code = """
def fails(n):
    error = ValueError("mine")
    nomemory(n)
    raise error
started = threading.Semaphore(0)
def late(n):
    # A thread that is starting must not be short of memory: start() hangs.
    started.acquire()
    time.sleep(0.01)
    return nomemory(n, 5)
def result(future):
    return future.result(10) == 5
def callback(future):
    # Which needs no memory.
    pending = {future}
    future.add_done_callback(pending.discard)
    end = time.monotonic() + 10
    while pending and time.monotonic() < end:
        time.sleep(0.001)
    return not pending
for n in SWEEP:
    judge(stream.submit(nomemory, n, 5), 5)
    judge(stream.submit(fails, n), ValueError, MemoryError)
for way in (result, callback):
    for n in SWEEP:
        answers = []
        def waits():
            try:
                answers.append(way(future))
            except MemoryError:
                # This thread's own allocation has failed.
                answers.append(True)
        future = stream.submit(late, n)
        thread = threading.Thread(target=waits)
        thread.start()
        started.release()
        judge(future, 5)
        thread.join(15)
        assert answers == [True], (way, n, answers)
print("none is lost")
"""
    assert short(code) == "none is lost\n"


def test_starting_short_of_memory(short):
    """This holds whether or not the next Future has been used."""
    code = """
import concurrent.futures
def until(event, n):
    event.wait()
    nomemory(n)
for look in (False, True):
    for n in SWEEP:
        event = threading.Event()
        stream.submit(until, event, n)
        future = stream.submit(str)
        if look:
            future.add_done_callback(set().discard)
            assert not concurrent.futures.wait([future], 0).done
        event.set()
        judge(future, "", MemoryError)
print("none is lost")
"""
    assert short(code) == "none is lost\n"


def test_submitting_short_of_memory(short):
    """Each submit() is to a stream that needs a new thread.  The callable is
    either refused, or it runs."""
    code = """
streams, futures, refused = [], [], 0
for n in range(60):
    streams.append(pystreams.Stream("cpu"))
    nomemory(n)
    try:
        futures.append(streams[-1].submit(time.sleep, 0.5))
    except MemoryError:
        refused += 1
    finally:
        remove()
assert refused and futures
for future in futures:
    # The one in whose start memory was short has failed by itself.
    assert type(future.exception(30)) in (type(None), MemoryError)
assert {s.submit(int).result(30) for s in streams} == {0}
print("all run")
"""
    assert short(code) == "all run\n"


# ---- The end of the program ----


def test_pending_ones_are_cancelled_at_exit(run):
    """Waits for a pending callable are woken, and result() does not wait."""
    code = """
from concurrent.futures import CancelledError
held(stream)
futures = [stream.submit(print, "never") for _ in range(3)]
called, woken = [], threading.Event()
futures[1].add_done_callback(called.append)
def wait():
    try:
        futures[2].result()
    except CancelledError:
        woken.set()
threading.Thread(target=wait, daemon=True).start()
atexit.register(go.set)
def last():
    print([future.cancelled() for future in futures])
    print(called == [futures[1]], woken.wait(30))
    try:
        futures[0].result()
    except CancelledError:
        print("cancelled")
    try:
        stream.submit(int)
    except RuntimeError as error:
        print(error)
"""
    assert run(code).splitlines() == [
        "[True, True, True]",
        "True True",
        "cancelled",
        "cannot submit a callable after the program ended",
    ]


@pytest.mark.unscheduled
@pytest.mark.parametrize("waits", ["started.wait()", "future.result()"])
def test_the_program_waits_for_callbacks(run, waits):
    code = f"""
started = threading.Event()
def short():
    started.set()
    time.sleep(0.05)
def slow(future):
    time.sleep(0.3)
    print("called back")
future = stream.submit(short)
future.add_done_callback(slow)
{waits}
"""
    assert run(code) == "called back\n"


@pytest.mark.unscheduled
def test_a_running_one_that_waits_for_a_pending_one_at_exit(run):
    """The running callable ends, because the pending one is cancelled.  So the
    program does not wait five seconds for it."""
    code = """
started = threading.Event()
held(other)
pending = other.submit(print, "never")
def waits():
    started.set()
    pending.result()
running = stream.submit(waits)
started.wait()
atexit.register(go.set)
def last():
    print(type(running.exception()).__name__)
"""
    assert run(code) == "CancelledError\n"


def test_a_closed_loop_hears_of_no_cancelling_at_exit(run):
    code = """
async def main():
    asyncio.get_running_loop().run_in_executor(stream, print, "never")
held(stream)
asyncio.run(main())
atexit.register(go.set)
"""
    assert run(code) == ""


# ---- Forks ----

FORK = """
def submit_fork(function, *args):
    def forks():
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            return function(*args)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return stream.submit(forks).result(30)
atexit.register(print, "the end")
"""


@pytest.fixture
def run_fork(run, sanitized):
    if sanitized:
        pytest.skip("a sanitizer's allocator may stay locked in a child")
    return lambda code: run(FORK + code)


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("int", 0),
        ("sys.exit", 0),
        ("sys.exit, 0", 0),
        ("sys.exit, 9", 9),
        ("sys.exit, 256 + 3", 3),
        ("sys.exit, 2**80 + 4", 4),
    ],
)
def test_a_child_that_ends_in_a_callable(run_fork, ends, status):
    """The child ends like a child of multiprocessing.  Its output is flushed,
    and the parent's atexit functions are not called."""
    code = f"""
def child(end, *args):
    print("in the child", end="; ")
    end(*args)
print(submit_fork(child, {ends}))
"""
    assert run_fork(code) == f"in the child; {status}\nthe end\n"


@pytest.mark.parametrize(
    ("raises", "said"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("sys.exit('no')", "no"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_a_child_that_fails_in_a_callable(run_fork, raises, said):
    code = f"""
def child():
    sys.stderr = sys.stdout
    {raises}
print(submit_fork(child))
"""
    lines = run_fork(code).splitlines()
    assert lines[-3:] == [said, "1", "the end"]
    assert (lines[0] == "Traceback (most recent call last):") == (
        "exit" not in raises
    )


def test_a_child_ends_what_it_has_begun(run_fork):
    """The child ends its threads, and its own callables that run."""
    code = """
def child():
    mine = pystreams.Stream("cpu")
    started, go = threading.Event(), threading.Event()
    def slow():
        started.set()
        go.wait(60)
        time.sleep(0.05)
        print("callable", end="; ")
    mine.submit(slow)
    started.wait()
    def thread():
        time.sleep(0.05)
        print("thread", end="; ")
        go.set()
    threading.Thread(target=thread).start()
print(submit_fork(child))
"""
    assert run_fork(code) == "thread; callable; 0\nthe end\n"


def test_multiprocessing_in_a_callable(run_fork):
    code = """
import logging, multiprocessing, warnings
warnings.simplefilter("ignore", DeprecationWarning)
context = multiprocessing.get_context("fork")
def process():
    logging.getLogger("x").info(threading.current_thread().name)
    process = context.Process(target=print, args=("in the child",))
    process.start()
    process.join()
    return process.exitcode
sys.stdout.flush()
print(stream.submit(process).result(30))
"""
    assert run_fork(code) == "in the child\n0\nthe end\n"


def test_a_future_of_the_parents_in_the_child(run_fork):
    """In the child, a Future that is done stays done.  A Future that is not
    done never will be."""
    code = """
held(other)
done, pending = other.submit(int), other.submit(int)
assert done.cancel()
def child():
    print(done.cancelled(), pending.done(), end="; ")
    for wait in (pending.result,
                 lambda: pending.add_done_callback(int),
                 lambda: pystreams.wait([done, pending]),
                 lambda: list(pystreams.as_completed([pending]))):
        try:
            wait()
        except RuntimeError as error:
            print("spawn" in str(error), end="; ")
    assert pending.cancel()
print(submit_fork(child))
go.set()
print(pending.result(30))
"""
    said = "True False; True; True; True; True; 0\n"
    assert run_fork(code) == f"{said}0\nthe end\n"


# ---- Other interpreters ----

# pystreams is not imported before `stream` is made.
REFUSED = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
def create(isolated):
    try:
        return interpreters.create(isolated=isolated)
    except TypeError:
        return interpreters.create("isolated" if isolated else "legacy")
attempt = (
    "try:\\n"
    "    import pystreams\\n"
    "except ImportError as error:\\n"
    "    print(error, flush=True)\\n"
)
interpreter = create(isolated)
for _ in range(2):
    interpreters.run_string(interpreter, attempt)
import pystreams
stream = pystreams.Stream("cpu")
interpreters.run_string(interpreter, attempt)
interpreters.destroy(interpreter)
print(stream.submit(int).result(30))
"""


@pytest.mark.parametrize("isolated", [False, True])
def test_other_interpreters_are_refused(run_python, isolated):
    """Other interpreters are refused before and after the main interpreter has
    imported the package.  The error says why, and nothing of the attempts
    stays behind."""
    done = run_python(f"isolated = {isolated}" + REFUSED)
    assert (done.returncode, done.stderr) == (0, "")
    *reasons, result = done.stdout.splitlines()
    assert result == "0"
    assert len(reasons) == 3 and len(set(reasons)) == 1
    assert reasons[0].startswith("pystreams can be imported in the main int")
