"""Whole processes: how they start, how they end with work in flight, and what
their environment sets."""

import re
import shutil
from pathlib import Path

import pytest

import pystreams

BOTH = {
    "PYSTREAMS_CPU_DEVICES": "2",
    "PYSTREAMS_ACCELERATOR": None,
}

# Code that creates the objects that exist when the program ends.  `device` is
# defined.
HELD = {
    "event": """
event = pystreams.Event(device)
event.record()
""",
    "busy stream": """
stream = pystreams.Stream(device)
busy(stream, 0.2)
event = stream.record_event()
""",
    "parked for long": """
stream, later = pystreams.Stream(device), pystreams.Stream(device)
busy(stream, {long})
later.wait_stream(stream)
""",
    "external": """
stream = pystreams.Stream(device)
class Owner:
    def __cuda_stream__(self, stream=stream):
        return 0, stream.native_handle
owner = Owner() if device.type == "cuda" else stream.native_handle
external = pystreams.ExternalStream(owner, device)
same = pystreams.ExternalStream(stream.native_handle, device)
busy(external, 0.05)
del stream
""",
    "current on a thread": """
def work():
    pystreams.Stream(device).__enter__()
    pystreams.Event(device).record()
    entered.set()
    time.sleep(60)
entered = threading.Event()
threading.Thread(target=work, daemon=True).start()
entered.wait()
pystreams.Stream(device).__enter__()
""",
    "daemon thread in synchronize": """
def work():
    entered.set()
    stream.synchronize()
stream, entered = pystreams.Stream(device), threading.Event()
busy(stream, {long})
threading.Thread(target=work, daemon=True).start()
entered.wait()
time.sleep(0.02)
""",
    "buffers": """
block = pystreams.empty(1 << 20, device=device)
pinned = pystreams.empty(1 << 20, device=device, pin_memory=True)
view = memoryview(pinned)
stream = pystreams.Stream(device)
busy(stream, 0.05)
block.copy_(pinned, non_blocking=True, stream=stream)
""",
    "cycle": """
class Cycle: pass
cycle = Cycle()
cycle.itself = cycle
cycle.stream = pystreams.Stream(device)
cycle.event = cycle.stream.record_event()
cycle.stream.__enter__()
""",
}

ENDS = {
    "normal": "",
    "exception": "raise ValueError('the end')",
    "sys.exit in a thread": """
thread = threading.Thread(target=sys.exit, args=(3,))
thread.start()
thread.join()
""",
    "sys.exit": "sys.exit(7)",
}

CODES = {"exception": 1, "sys.exit": 7}

PROLOGUE = """
import sys, threading, time
import pystreams
from pystreams import _C
device = pystreams.device({name!r}, 0)
def busy(stream, seconds):
    _C.sleep(stream.device_type, int(seconds * {cycles}), stream)
"""


def prologue(backend):
    cycles = 1e9 if backend.on_engine else 1.9e9
    return PROLOGUE.format(name=backend.name, cycles=cycles)


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("end", ENDS)
def test_exit(backend, run_python, held, end):
    # A GPU would not let the process end before its kernel has ended.
    work = HELD[held].replace("{long}", "60" if backend.on_engine else "2")
    code = prologue(backend) + work + ENDS[end]
    done = run_python(code, env=BOTH)
    assert done.returncode == CODES.get(end, 0)
    assert done.stdout == ""
    if end != "exception":
        assert done.stderr == ""
        return
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: the end"
    assert done.stderr.count("Traceback") == 1
    assert all(line.startswith("  ") for line in lines[1:-1])


@pytest.mark.unscheduled
def test_exit_waits_for_running_work(run_python):
    """Work that a worker has begun is finished before the process ends."""
    code = """
import atexit, ctypes, time
def check():
    print(time.monotonic() - started >= 0.3)
atexit.register(check)
import pystreams
from pystreams import _C
usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
stream = pystreams.Stream("cpu")
started = time.monotonic()
_C.launch_host_function(stream, usleep, 300_000)
time.sleep(0.1)
"""
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.unscheduled
def test_stuck_work_at_exit_is_reported(run_python):
    """After the deadline, the process ends in any case, and reports the stuck
    work."""
    code = """
import ctypes, pystreams
from pystreams import _C
pystreams._EXIT_DEADLINE = 0.2
pause = ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p).value
stream = pystreams.Stream("cpu")
_C.launch_host_function(stream, pause)
event = stream.record_event()
import time
time.sleep(0.1)
"""
    done = run_python(code)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("pystreams: ")


def test_use_after_shutdown(run_python):
    """The package is used by another atexit function, after the package's own
    one."""
    code = """
import atexit
def last():
    stream = pystreams.Stream("cpu")
    event = stream.record_event()
    print(stream.query(), event.query())
    stream.close()
atexit.register(last)
import pystreams
pystreams.Stream("cpu").synchronize()
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "True True\n"


IMPORT = """
import os
import pystreams, pystreams.cuda, pystreams.accelerator
pystreams.device("cuda:1"), pystreams.cuda.device_count()
threads = len(os.listdir("/proc/self/task"))
with open("/proc/self/maps") as file:
    maps = file.read()
print(threads, "libcuda.so" in maps)
"""


def test_import_starts_no_thread_and_no_driver(run_python):
    done = run_python(
        IMPORT.replace(", pystreams.cuda.device_count()", ""),
        env={"PYSTREAMS_EMULATE_CUDA": None},
    )
    assert (done.stdout, done.stderr) == ("1 False\n", "")


def test_import_of_a_checkout_that_is_not_built(run_python, tmp_path):
    package = Path(pystreams.__file__).parent
    copied = tmp_path / "pystreams"
    shutil.copytree(package, copied, ignore=shutil.ignore_patterns("_C.*"))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    done = run_python(code + "import pystreams")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {copied} is a checkout that has not")
    assert "bootstrap.sh" in last


@pytest.mark.unscheduled
def test_import_is_lean(run_python):
    """The import loads no more of the standard library than a bare interpreter
    has loaded."""
    code = """
import sys
before = set(sys.modules)
import pystreams
heavy = {"argparse", "ctypes", "typing", "dataclasses", "enum", "contextlib",
         "importlib.metadata", "json", "threading", "logging", "rich"}
print(sorted((set(sys.modules) - before) & heavy))
"""
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.unscheduled
@pytest.mark.parametrize("name", ["races", "schedules", "timeline"])
def test_modules_that_are_imported_when_they_are_used(run_python, name):
    done = run_python(
        "import sys, pystreams\n"
        f"assert 'pystreams.{name}' not in sys.modules\n"
        f"assert '{name}' in dir(pystreams)\n"
        f"print(pystreams.{name}.__name__)\n"
        "try:\n    pystreams.nonsense\n"
        "except AttributeError as error:\n    print(error)"
    )
    assert done.stdout.splitlines() == [
        f"pystreams.{name}",
        "module 'pystreams' has no attribute 'nonsense'",
    ]


@pytest.mark.unscheduled
def test_a_second_import_finds_the_same_types(run_python):
    """Types are those of the first import, because the devices are, too:
    streams of either module are on the same devices."""
    code = """
import sys
import pystreams
first, stream = pystreams, pystreams.Stream("cpu")
for name in [name for name in sys.modules if name.startswith("pystreams")]:
    del sys.modules[name]
import pystreams
assert pystreams is not first and pystreams._C is not first._C
assert pystreams.Stream is first.Stream
assert pystreams.AcceleratorError is first.AcceleratorError
pystreams.Event("cpu").record(stream)
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_counting_devices_leaves_the_process_fit_to_fork(run_python):
    """cuInit before a fork would make CUDA unusable in the child."""
    code = """
import os, signal, pystreams
count = pystreams.cuda.device_count()
pystreams.cuda.is_available()
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    assert pystreams.cuda.device_count() == count
    if count:
        pystreams.cuda.Stream().synchronize()
    os._exit(0)
print(os.waitpid(pid, 0)[1], pystreams.cuda.is_initialized())
"""
    for emulate in ("2", None):
        done = run_python(code, env={"PYSTREAMS_EMULATE_CUDA": emulate})
        assert (done.stdout, done.stderr) == ("0 False\n", "")


@pytest.mark.parametrize("number", ["1", "2", "7", "64"])
@pytest.mark.parametrize(
    ("variable", "kind"),
    [("PYSTREAMS_CPU_DEVICES", "cpu"), ("PYSTREAMS_EMULATE_CUDA", "cuda")],
)
def test_device_counts(run_python, variable, kind, number):
    code = f"""
import pystreams
from pystreams import _C
kind = dict(_C.backends())[{kind!r}]
count = _C.device_count(kind)
last = pystreams.Stream(f"{kind}:{{count - 1}}")
last.synchronize()
print(count, _C.is_emulated(kind), last.device)
"""
    done = run_python(code, env={variable: number})
    emulated = variable == "PYSTREAMS_EMULATE_CUDA"
    assert (done.returncode, done.stderr) == (0, "")
    last = int(number) - 1
    assert done.stdout == f"{number} {emulated} {kind}:{last}\n"


def test_one_cpu_device_by_default(run_python):
    code = "from pystreams import _C; print(_C.device_count(0))"
    done = run_python(code, env={"PYSTREAMS_CPU_DEVICES": None})
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "2x", "99999999"])
@pytest.mark.parametrize(
    "variable", ["PYSTREAMS_CPU_DEVICES", "PYSTREAMS_EMULATE_CUDA"]
)
def test_bad_device_counts(run_python, variable, value):
    """The error names the variable and its value, and the value is never taken
    for another number."""
    if (variable, value) == ("PYSTREAMS_EMULATE_CUDA", "0"):
        pytest.skip("0 emulated devices is no emulation")
    code = """
import pystreams
pystreams.Stream("cpu").synchronize()
pystreams.cuda.Stream()
"""
    done = run_python(code, env={variable: value})
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert re.match(r"(\w+\.)*\w*Error: ", last)
    assert variable in last
    assert repr(value) in last or value in last


def test_no_emulation(run_python):
    code = """
import pystreams
print(pystreams.cuda.is_emulated(), pystreams.cuda.device_count())
"""
    for unset in ("", "0", None):
        env = {"PYSTREAMS_EMULATE_CUDA": unset, "CUDA_VISIBLE_DEVICES": ""}
        done = run_python(code, env=env)
        assert (done.stdout, done.stderr) == ("False 0\n", "")


def test_no_gpu(run_python):
    """Everything that needs a GPU raises the same error, and the rest
    works."""
    code = """
import pystreams
from pystreams import cuda
assert cuda.is_available() is False
assert cuda.device_count() == 0
assert cuda.is_initialized() is False
pystreams.device("cuda:1")
for use in (cuda.init, cuda.Stream, cuda.current_stream, cuda.synchronize,
            cuda.current_device, cuda.mem_get_info, cuda.get_device_name,
            lambda: cuda.set_device(0), lambda: cuda.Event().record(),
            lambda: pystreams.Stream("cuda"),
            lambda: pystreams.empty(1, device="cuda:0")):
    try:
        use()
    except RuntimeError as error:
        print(error)
"""
    env = {"PYSTREAMS_EMULATE_CUDA": None, "CUDA_VISIBLE_DEVICES": ""}
    done = run_python(code, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 11
    assert len(set(lines)) == 1
    assert re.fullmatch(
        r"No CUDA GPUs are available: \S.+; set PYSTREAMS_EMULATE_CUDA=1 to "
        "emulate one",
        lines[0],
    )


# If `quiet` is true, the streams are idle at the fork.  Otherwise, a
# sanitizer's allocator might stay locked for ever in the child, because
# another thread was in it at the fork.
FORK = """
import gc, os, signal, sys
import pystreams
from pystreams import _C
device = pystreams.device("cpu", 0)
streams = [pystreams.Stream(device) for _ in range(4)]
event = pystreams.Event(device)
blocks = [pystreams.empty(8, device=device) for _ in streams]
def load():
    for s, block in zip(streams, blocks):
        _C.sleep(0, 200_000, s)
        event.record(s)
        streams[0].wait_event(event)
        block.fill_(1, stream=s)
def child(work):
    if quiet:
        for s in streams:
            s.synchronize()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            work()
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]
"""


@pytest.fixture
def forking(sanitized):
    return f"quiet = {sanitized}{FORK}"


def test_fork_under_load(run_python, forking, sanitized):
    """A child finds an empty engine, and the parent's work goes on."""
    if sanitized:
        pytest.skip("a sanitizer's allocator may stay locked in a child")
    code = (
        forking
        + """
def work():
    s = pystreams.Stream(device)
    b = pystreams.empty(1 << 17, device=device, stream=s)
    b.fill_(3, stream=s)
    _C.sleep(0, 100_000, s)
    e = s.record_event()
    assert not s.query() or e.query()
    s.synchronize()
    assert e.query() and b.tobytes() == bytes([3]) * (1 << 17)
    _C.synchronize(0)
for _ in range(25):
    load()
    assert child(work) == 0
for s in streams:
    s.synchronize()
print(event.query())
"""
    )
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_fork_parents_objects_in_the_child(backend, run_python, forking):
    """Each use of a parent's object raises an error that says what to do
    instead.  Dropping the objects does nothing."""
    code = forking.replace('"cpu", 0)', f"{backend.name!r}, 0)").replace(
        "_C.sleep(0,", f"_C.sleep({backend.type},"
    ) + (
        """
def work():
    for use in (streams[0].query, streams[0].synchronize, event.record,
                streams[0].record_event, event.synchronize, event.query,
                lambda: streams[0].wait_stream(streams[1]),
                lambda: streams[0].wait_event(event),
                lambda: streams[0].__enter__(), event.wait,
                lambda: event.elapsed_time(event),
                lambda: _C.sleep(streams[0].device_type, 1, streams[0]),
                lambda: _C.set_stream(streams[0])):
        try:
            use()
        except RuntimeError as error:
            assert "spawn" in str(error), error
        else:
            raise AssertionError("no error")
    globals().update(streams=None, event=None, blocks=None)
    gc.collect()
load()
print(child(work))
for s in streams:
    s.synchronize()
"""
    )
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_fork_parents_memory_in_the_child(run_python, forking):
    """The parent's work may be halfway through writing the memory."""
    code = (
        forking
        + """
def work():
    for use in (blocks[0].tobytes, blocks[0].zero_,
                lambda: blocks[0].copy_(bytes(8))):
        try:
            use()
        except RuntimeError as error:
            assert "spawn" in str(error), error
        else:
            raise AssertionError("no error")
load()
print(child(work))
"""
    )
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_fork_of_a_process_that_used_cuda(cuda, run_python):
    if cuda.on_engine:
        pytest.skip("the CPU engine may be used in a forked child")
    code = """
import os, pystreams
pystreams.cuda.Stream().synchronize()
pid = os.fork()
if pid == 0:
    try:
        pystreams.cuda.Stream()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
        "multiprocessing, you must use the 'spawn' start method\n"
    )


def test_fork_child_that_exits_normally(run_python, forking):
    """The child runs its atexit functions and deallocation while the parent's
    objects exist."""
    code = (
        forking
        + """
for _ in range(5):
    load()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        mine = pystreams.Stream(device)
        mine.__enter__()
        pystreams.Event(device).record()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
print("done")
"""
    )
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_fork_from_a_thread_with_a_stream_set(run_python, forking):
    code = (
        forking
        + """
import threading
results = []
def forks():
    streams[1].__enter__()
    def work():
        assert _C.current_stream(0).native_handle == 0
        pystreams.Stream(device).synchronize()
    load()
    results.append(child(work))
    assert _C.current_stream(0) == streams[1]
thread = threading.Thread(target=forks)
thread.start()
thread.join()
print(results)
"""
    )
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("[0]\n", "")


# `name` is a module that another thread is importing, because of `call`, while
# the main thread forks.  The child then makes the same call.
FORKED_IMPORT = """
import importlib.machinery, os, signal, sys, threading
import pystreams
from pystreams.cuda._graphs import Graph
class Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        if os.getpid() == parent:
            importing.set()
            forked.wait()
        super().exec_module(module)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            spec.loader = Loader(name, spec.origin)
            return spec
parent, importing, forked = os.getpid(), threading.Event(), threading.Event()
stream = pystreams.Stream("cpu")
def submit(s):
    return s.submit(int).result(30)
def explain(s):
    return "done" in pystreams.explain(s) and 0
def fail_a_capture(s):
    graph = Graph(0)
    with s:
        graph.capture_begin()
        try:
            s.synchronize()
        except pystreams.AcceleratorError as error:
            return "A capture is in progress" not in str(error)
sys.meta_path.insert(0, Finder())
thread = threading.Thread(target={call}, args=(stream,), daemon=True)
thread.start()
assert importing.wait(30)
pid = os.fork()
if pid == 0:
    signal.alarm(15)
    os._exit({call}(pystreams.Stream("cpu")))
print(os.waitpid(pid, 0)[1])
forked.set()
thread.join()
"""


@pytest.mark.unscheduled
@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("submit", "pystreams._futures"),
        ("submit", "logging"),
        ("explain", "pystreams._explain"),
        ("fail_a_capture", "pystreams.cuda._captures"),
    ],
)
def test_fork_while_a_thread_imports(run_python, sanitized, call, name):
    if sanitized:
        pytest.skip("a sanitizer's allocator may stay locked in a child")
    done = run_python(FORKED_IMPORT.format(call=call, name=name))
    assert (done.stdout, done.stderr) == ("0\n", "")


# A thread is beginning to record, or to look for races, while the main thread
# forks.  The child then does the same.  `before` is whether the thread has not
# yet called C then.
FORKED_BEGIN = """
import os, signal, threading
import pystreams
from pystreams import _C, races, timeline
def record(s):
    with timeline.record() as t:
        s.submit(int).result(30)
    return "callable" not in [row[0] for row in t.rows]
def detect(s):
    x = pystreams.Buffer(64, device="cpu")
    with races.detect():
        x.fill_(1, stream=s)
        try:
            x.fill_(2, stream=pystreams.Stream("cpu"))
        except races.RaceError:
            return 0
def start(*arguments):
    {before} and pause()
    done = real(*arguments)
    {before} or pause()
    return done
def pause():
    if os.getpid() == parent:
        inside.set()
        forked.wait(30)
parent, inside, forked = os.getpid(), threading.Event(), threading.Event()
real, _C.{function} = _C.{function}, start
s = pystreams.Stream("cpu")
thread = threading.Thread(target={call}, args=(s,))
thread.start()
assert inside.wait(30)
pid = os.fork()
if pid == 0:
    signal.alarm(15)
    os._exit({call}(pystreams.Stream("cpu")))
print(os.waitpid(pid, 0)[1])
forked.set()
thread.join()
"""


@pytest.mark.unscheduled
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("call", "function"),
    [("record", "timeline_start"), ("detect", "races_start")],
)
def test_fork_while_a_thread_begins_to_observe(
    run_python, sanitized, call, function, before
):
    if sanitized:
        pytest.skip("a sanitizer's allocator may stay locked in a child")
    code = FORKED_BEGIN.format(call=call, function=function, before=before)
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_multiprocessing_spawn(run_python, tmp_path):
    (tmp_path / "program.py").write_text("""
import multiprocessing
import pystreams

def work(number):
    with pystreams.Stream("cpu") as stream:
        event = stream.record_event()
    event.synchronize()
    return number

if __name__ == "__main__":
    stream = pystreams.Stream("cpu")
    stream.synchronize()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(work, range(4)))
        pool.close()
        pool.join()
""")
    done = run_python(["program.py"])
    assert (done.stdout, done.stderr) == ("[0, 1, 2, 3]\n", "")


@pytest.mark.unscheduled
def test_workers_block_signals_and_have_names(engine, run_python):
    code = (
        prologue(engine)
        + """
stream = pystreams.Stream(device)
busy(stream, 0.001)
stream.synchronize()
import os
main = str(os.getpid())
for task in os.listdir("/proc/self/task"):
    if task != main:
        with open(f"/proc/self/task/{task}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        print(fields["Name"].strip(), fields["SigBlk"].strip())
"""
    )
    done = run_python(code, env=BOTH)
    assert done.stderr == ""
    workers = [
        line.split()
        for line in done.stdout.splitlines()
        if line.startswith("ps-")
    ]
    assert workers
    blockable = (1 << 31) - 1 & ~(1 << 8) & ~(1 << 18)
    for _, blocked in workers:
        assert int(blocked, 16) & blockable == blockable
