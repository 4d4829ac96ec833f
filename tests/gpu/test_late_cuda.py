"""The CUDA backend on a machine without a GPU, over late_cuda.  This is a fake
CUDA that finishes work late, at random, and knows which work is ordered after
which."""

import functools
import json
import os
import shutil
import subprocess
import sys

import pytest
from places import ROOT, SUPPORT, TESTS


def compiler(headers):
    return [
        *("cc", "-std=c11", "-D_GNU_SOURCE", "-O1"),
        *("-Wall", "-Wextra", "-Werror", f"-I{headers}", "-pthread"),
    ]


def compiled(headers, library, *sources):
    options = ["-fPIC", "-shared", f"-Wl,-soname,{library.name}"]
    command = [*compiler(headers), *options, *sources, "-o", library]
    subprocess.run(command, check=True)


@pytest.fixture(scope="module")
def late_cuda(tmp_path_factory, headers):
    """A folder with late_cuda as libcuda.so.1, and with the package, built so
    that it looks there for cudart's functions, too."""
    folder = tmp_path_factory.mktemp("late")
    sources = (TESTS / "c/late_cuda").glob("*.c")
    compiled(headers, folder / "libcuda.so.1", *sources)
    source = TESTS / "c/late_cupti/cupti.c"
    compiled(headers, folder / "libcupti.so.13", source)
    toolkit = folder / "toolkit"
    (toolkit / "lib64").mkdir(parents=True)
    (toolkit / "include").symlink_to(headers)
    archive = toolkit / "lib64/libcudart_static.a"
    subprocess.run(["ar", "rcs", archive], check=True)
    options = ["--build-lib", folder, "--build-temp", folder / "objects"]
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", *options],
        cwd=ROOT,
        env=dict(os.environ, CUDA_HOME=str(toolkit), PYSTREAMS_DEBUG="1"),
        check=True,
    )
    shutil.copytree(
        ROOT / "pystreams",
        folder / "pystreams",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
        dirs_exist_ok=True,
    )
    return folder


@pytest.fixture
def run_in_c(tmp_path, headers, sanitized):
    """Return run_in_c(options, *sources), which runs a C program that contains
    the backend, over late_cuda."""
    if sanitized:
        pytest.skip("a sanitizer must be loaded before anything else")
    library, program = tmp_path / "libcuda.so.1", tmp_path / "program"
    backend = sorted((ROOT / "csrc/backends/cuda").glob("*.c"))
    include = f"-I{ROOT / 'csrc/include'}"

    def run(options, *sources):
        late = (TESTS / "c/late_cuda").glob("*.c")
        compiled(headers, library, *options, *late)
        files = [*sources, *backend, library, "-o", program]
        command = [*compiler(headers), *options, include, *files]
        subprocess.run(command, check=True)
        return subprocess.run(
            ["setarch", "-R", program],
            env=dict(
                os.environ,
                LD_LIBRARY_PATH=str(tmp_path),
                # NVML is asked first, and may count more devices.
                CUDA_VISIBLE_DEVICES="0",
                # ThreadSanitizer does not know the function that joins a
                # thread with a time limit, and would report the joined thread
                # as leaked.
                TSAN_OPTIONS="report_thread_leaks=0",
            ),
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_notifications_raced(run_in_c, tmp_path, headers, sanitizer):
    """The program is in C, so that a sanitizer sees what the backend does."""
    empty, options = tmp_path / "empty.c", [f"-fsanitize={sanitizer}"]
    empty.write_text("int main(void) { return 0; }")
    command = [*compiler(headers), *options, empty, "-o", tmp_path / "empty"]
    if subprocess.run(command).returncode:
        pytest.skip(f"no {sanitizer} sanitizer")
    done = run_in_c(options, TESTS / "c/late/notifications.c")
    assert (done.stdout, done.stderr, done.returncode) == ("0 wrong\n", "", 0)


def test_gates_in_c(run_in_c):
    """The tests of gates on a GPU that need no second device, no kernel of
    their own and no capture."""
    sources = ["late/gates.c", "cuda/check.c", "cuda/gates.c"]
    done = run_in_c([], *(TESTS / "c" / source for source in sources))
    assert (done.stdout[-9:], done.stderr) == ("0 failed\n", ""), done.stdout


@pytest.mark.parametrize(
    "name", ["captures", "graph_nodes", "launches", "waits"]
)
def test_members_in_c(run_in_c, name):
    done = run_in_c([], TESTS / f"c/late/{name}.c")
    assert (done.stdout, done.stderr) == ("0 wrong\n", "")


@pytest.fixture
def run_late(run_python, sanitized, request):
    """run_python, in a process whose CUDA is late_cuda."""
    if sanitized:
        pytest.skip("a sanitizer must be loaded before anything else")
    folder = str(request.getfixturevalue("late_cuda"))
    variables = {
        "LD_PRELOAD": f"{folder}/libcuda.so.1 {folder}/libcupti.so.13",
        "LD_LIBRARY_PATH": folder,
        "PYTHONPATH": folder,
        "PYSTREAMS_EMULATE_CUDA": None,
        "CUDA_VISIBLE_DEVICES": "0",
    }
    return functools.partial(run_python, env=variables, timeout=300)


@pytest.fixture
def run(run_late):
    """Return run(code, *arguments), which returns what a program prints.  The
    program has `late`, which is the library, and `backend`, which is CUDA."""
    before = (
        "import ctypes, sys\n"
        f"sys.path.insert(0, {str(SUPPORT)!r})\n"
        "late = ctypes.CDLL('libcuda.so.1')\n"
        "import pystreams\n"
        "from backend import Backend\n"
        "backend = Backend('cuda')\n"
        "assert not pystreams._C.is_emulated(1)\n"
    )

    def run(code, *arguments):
        done = run_late(before + code, *map(str, arguments))
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def test_a_use_before_the_allocation_is_told(run):
    printed = run("""
first, second = backend.stream(), backend.stream()
block = backend.empty(100, stream=first)
block.fill_(1, stream=second)
second.wait_stream(first)
block.fill_(1, stream=second)
print(late.late_cuda_faults())
""")
    assert printed == (
        "late CUDA: stream 2 uses before their allocation 100 bytes of "
        "stream 1\n1\n"
    )


@pytest.mark.parametrize("ordered", [False, True])
def test_a_free_that_is_too_early_is_told(run, ordered):
    """late_cuda reports a free while work uses the block, even work that
    pystreams does not know."""
    printed = run(
        """
first, second = backend.stream(), backend.stream()
block = backend.empty(100, stream=first)
second.wait_stream(first)
stream = ctypes.c_void_p(second.native_handle)
late.cudaMemsetAsync(ctypes.c_void_p(block.data_ptr()), 0, 100, stream)
if sys.argv[1] == "True":
    first.wait_stream(second)
block.close()
print(late.late_cuda_faults())
""",
        ordered,
    )
    fault = (
        "late CUDA: stream 1 frees, while another may use them, 100 bytes of "
        "stream 1\n"
    )
    assert printed == ("0\n" if ordered else f"{fault}1\n")


READERS = [
    "native_handle",
    "cuda_stream",
    "_as_parameter_",
    "__cuda_stream__()",
    "stream_id",
]


@pytest.mark.parametrize("reader", READERS)
def test_a_stream_whose_handle_was_read_is_not_taken_for_idle(run, reader):
    """Other libraries may have queued work on the stream, and pystreams does
    not know of it."""
    printed = run(
        """
gate = (ctypes.c_long * 4)()
libc = ctypes.CDLL(None)
libc.sem_init(gate, 0, 0)
stream = pystreams.cuda.Stream()
handle = stream.READER
handle = getattr(handle, "value", handle)
handle = handle[1] if isinstance(handle, tuple) else handle
late.cudaLaunchHostFunc(ctypes.c_void_p(handle), libc.sem_wait, gate)
del stream
others = [pystreams.cuda.Stream() for _ in range(3)]
print(all(other.query() for other in others))
libc.sem_post(gate)
pystreams.cuda.synchronize()
""".replace("READER", reader)
    )
    assert printed == "True\n"


def test_a_copy_does_not_wait_in_the_driver(run):
    """A copy on a blocking stream comes after the work of the default
    stream."""
    printed = run("""
import threading, time
done = threading.Event()
stream = pystreams.Stream("cuda", blocking=True)
block = backend.empty(100, stream=stream)
block.fill_(1, stream=stream)
stream.synchronize()
future = backend.default_stream().submit(done.wait)
def read():
    with stream:
        block.tobytes()
reader = threading.Thread(target=read)
reader.start()
time.sleep(0.2)
print(reader.is_alive(), late.late_cuda_waiting_copies())
done.set()
reader.join()
print(late.late_cuda_waiting_copies())
future.result()
""")
    assert printed == "True 0\n0\n"


@pytest.mark.parametrize("ends", ["itself", "a callable"])
def test_a_child_ends_at_once(run, ends):
    """A forked child may not use CUDA if its parent did, so it neither ends
    nor awaits the backend's threads, which it does not have."""
    printed = run(
        """
import os, time
stream, waiter = pystreams.cuda.Stream(), pystreams._C.Waiter()
with stream:
    pystreams.cuda._sleep(10**8)
waiter.register(stream, 1)
parent, start = os.getpid(), time.monotonic()
if sys.argv[1] == "itself":
    child = os.fork()
else:
    child = stream.submit(os.fork).result()
if os.getpid() != parent:
    sys.exit(3)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, time.monotonic() - start < 3)
""",
        ends,
    )
    assert printed == ("3 True\n" if ends == "itself" else "0 True\n")


def test_an_abandoned_wait_is_none_of_another_event_s(run):
    """A new event may get the handle of the event of the abandoned wait.  The
    abandoned wait must not be taken for a wait of the new event."""
    printed = run("""
import threading
done = threading.Event()
held, other = pystreams.cuda.Stream(), pystreams.cuda.Stream()
future = held.submit(done.wait)
def recorded(stream):
    events = [pystreams.cuda.Event(interprocess=True) for _ in range(20)]
    for event in events:
        event.record(stream)
    return events
events, waiter = recorded(held), pystreams._C.Waiter()
for event in events:
    waiter.register(event, 0)
    waiter.cancel()
handles = {event.event_id for event in events}
del event, events
with other:
    pystreams.cuda._sleep(10**8)
events, told = recorded(other), 0
print(len(handles & {event.event_id for event in events}) > 0)
for token, event in enumerate(events):
    waiter.register(event, token)
while told < len(events) and (some := waiter.wait(10)):
    told += len(some)
print(told)
done.set()
future.result()
""")
    assert printed == "True\n20\n"


def test_the_end_of_a_program_does_not_wait_for_the_device(run):
    """The driver may abandon the device's work, and the backend's threads
    end."""
    printed = run("""
from pathlib import Path
def polled():
    names = [p.read_text() for p in Path("/proc/self/task").glob("*/comm")]
    return "ps-cuda-events\\n" in names
stream, waiter = pystreams.cuda.Stream(), pystreams._C.Waiter()
with stream:
    pystreams.cuda._sleep(10**15)
waiter.register(stream, 1)
print(polled())
print(pystreams._C.shutdown(10.0), stream.query())
print(polled(), len(waiter.wait(0.1)))
try:
    stream.synchronize(timeout=10)
except pystreams.AcceleratorError as error:
    print(error.error_code)
""")
    assert printed == "True\nTrue False\nFalse 0\n4\n"


def test_a_device_that_cannot_share_memory(run):
    printed = run("""
import os
handle = pystreams.empty(8, device="cuda", interprocess=True).ipc_handle()
os.environ["LATE_CUDA_UNSHARED"] = "1"
try:
    pystreams.empty(8, device="cuda", interprocess=True)
except NotImplementedError as error:
    print(error)
print(backend.in_use())
""")
    assert printed == (
        "the cuda backend does not support allocating 8 bytes of memory\n0\n"
    )


@pytest.fixture(scope="module", params=["", "-DWITHOUT_MIG"])
def nvml(tmp_path_factory, headers, request):
    folder = tmp_path_factory.mktemp("nvml")
    options = filter(None, [request.param])
    compiled(
        headers,
        folder / "libnvidia-ml.so.1",
        TESTS / "c/nvml/nvml.c",
        *options,
    )
    return folder, request.param == ""


@pytest.mark.parametrize(
    ("gpus", "visible", "count"),
    [
        ("...", None, 3),
        ("...", "2,0", 2),
        ("...", "0,0", 0),
        ("...", "1,9,2", 1),
        ("...", "GPU-2,GPU-00", 2),
        ("....", "GPU-", 0),
        ("3", None, 1),
        ("..2", None, 1),
        ("..2", "0,1", 2),
        ("27", "1,0", 1),
        ("0", None, 0),
        (".0.", None, 2),
        (".0.", "1,0", 1),
    ],
)
def test_devices_are_counted_without_the_driver(
    run_late, nvml, gpus, visible, count
):
    """If a divided GPU (MIG) is visible, a process sees one part of it, and no
    other GPU."""
    folder, knows_mig = nvml
    environment = run_late.keywords["env"]
    done = run_late(
        "from pystreams import cuda; print(cuda.device_count())",
        env=environment
        | {
            "GPUS": gpus,
            "CUDA_VISIBLE_DEVICES": visible,
            "LD_LIBRARY_PATH": f"{folder}:{environment['LD_LIBRARY_PATH']}",
        },
    )
    if not knows_mig and set(gpus) != {"."}:
        count = {None: len(gpus)}.get(visible, len((visible or "").split(",")))
    assert (done.stdout, done.stderr) == (f"{count}\n", "")


@pytest.mark.parametrize("chance", range(4))
def test_memory_is_used_and_freed_in_order(run, chance):
    printed = run(
        """
from memory_steps import Steps
late.late_cuda_seed(int(sys.argv[1]))
for seed in range(25):
    steps = Steps(backend, seed)
    for _ in range(200):
        steps.step()
print(late.late_cuda_faults())
""",
        chance,
    )
    assert printed == "0\n"


@pytest.mark.parametrize("versioned", [False, True])
def test_a_capsule_is_consumed_by_one_of_two_threads(run, versioned):
    """The GIL is released while the backend is asked about the address."""
    printed = run(
        """
import threading
from producers import Loan, place
block = backend.empty(64)
sys.setswitchinterval(1e-6)
options = dict(place(block), versioned=sys.argv[1] == "True")
loans = [Loan(**options) for _ in range(1500)]
capsules = [loan.capsule() for loan in loans]
taken, start = [], threading.Barrier(2)
def consume(capsule):
    try:
        taken.append(pystreams.from_dlpack(capsule))
    except ValueError as error:
        assert "consumed already" in str(error)
def consume_all():
    for capsule in capsules:
        start.wait()
        consume(capsule)
thread = threading.Thread(target=consume_all)
thread.start()
consume_all()
thread.join()
print(len(taken))
taken.clear()
print({loan.deleted for loan in loans})
# Their destructor is a ctypes callback, which may be freed first at exit.
capsules.clear()
""",
        versioned,
    )
    assert printed == "1500\n{1}\n"


@pytest.mark.parametrize(
    "name",
    [
        "array_interface",
        "asyncio",
        "blocking_streams",
        "buffer",
        "copy",
        "current_stream",
        "current_tasks",
        "dlpack_import",
        "dlpack_export",
        "event",
        "deferred_free",
        "ipc_descriptors",
        "ipc_memory",
        "ctrl_c_in_waits",
        "memory_use",
        "memory_info",
        "per_thread_streams",
        "random_programs",
        "abandoned_waits",
        "stream",
        "submit",
        "submit_finalizers",
        "threads",
        "timeouts",
        "trace",
        "wait",
    ],
)
def test_what_holds_of_every_backend(run_late, name):
    """Run each file's tests of cuda.  Left out are tests of the cost of a
    wait, tests that late_cuda's own memory would disturb, and those of graphs,
    which late_cuda does not have."""
    options = ["-v", "-p", "no:cacheprovider", "--rootdir", ROOT]
    (file,) = TESTS.rglob(f"test_{name}.py")
    chosen = "cuda and not (cpu- or costs_little or nothing_leaks or replays)"
    done = run_late(["-m", "pytest", *options, file, "-k", chosen])
    assert done.returncode == 0, done.stdout
    assert "[cuda" in done.stdout
    assert "[cuda-emulated" not in done.stdout


@pytest.mark.parametrize("options", [[], ["--device=cuda", "--chain"]])
def test_the_demo_orders_what_it_does(run, tmp_path, options):
    """The demo's callables read and check chunks, and copies come between
    them."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(300_001))
    code = """
import json
from pystreams import _cli as program
assert program.main([
    "demo", *sys.argv[1:], "--streams=5", "--chunk=4K", "--json"]) == 0
assert late.late_cuda_faults() == 0
"""
    result = json.loads(run(code, path, *options))
    assert result["bytes"] == 300_001
    total = sum(row["chunks"] for row in result["timetable"])
    assert total == 74 * (len(result["devices"]) if options else 1)


def test_partitions(run):
    """No two partitions share multiprocessors, and none ends before its
    streams."""
    printed = run("""
import gc
from pystreams import Partition, cuda
def count(number):
    try:
        return Partition(number, "cuda").count
    except RuntimeError as error:
        assert "20 multiprocessors" in str(error), error
        return None
print([count(n) for n in (1, 8, 9, 16, 17, 20, 21)])
first, second = Partition(8, "cuda"), Partition(9, "cuda")
print(first.count, second.count, count(1))
stream, other = first.Stream(), second.Stream(priority=-1)
print(cuda.get_stream_from_external(stream.cuda_stream) == stream)
del first
print(count(1))
block = backend.empty(100, stream=stream)
block.fill_(1, stream=stream)
other.wait_stream(stream)
block.fill_(2, stream=other)
print(other.submit(int).result())
block.close()
cuda._sleep(10**6)
pystreams._C.sleep(1, 10**9, stream)
del stream
gc.collect()
print(count(1))
cuda.synchronize()
print(count(1), count(8), count(9))
print(late.late_cuda_faults())
""")
    assert printed == (
        "[8, 8, 16, 16, 20, 20, None]\n8 12 None\nTrue\nNone\n0\nNone\n"
        "8 8 None\n0\n"
    )


# ---- Timelines with what CUPTI reports ----

RECORDED = """
import threading, warnings
from pystreams import timeline

def rows(t, *kinds):
    found = (dict(zip(timeline.COLUMNS, row)) for row in t.rows)
    return [row for row in found if row["kind"] in kinds]

def fill(block, stream):
    '''As another library does.'''
    late.cudaMemsetAsync(
        ctypes.c_void_p(block.data_ptr()), 0, 100, ctypes.c_void_p(stream)
    )

cycles = ctypes.c_uint64(1000)

def launch(stream):
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(cycles))
    late.cuLaunchKernel(
        None, 1, 1, 1, 1, 1, 1, 0, ctypes.c_void_p(stream), arguments, None
    )

stream = backend.stream(name="mine")
block = backend.empty(100, stream=stream)
stream.synchronize()
"""


def test_operations_have_the_times_that_cupti_reports(run):
    """No event is recorded for these operations, so the clocks are not
    compared."""
    printed = run(
        RECORDED
        + """
other = backend.empty(100, stream=stream)
with timeline.record() as t:
    for _ in range(3):
        block.fill_(1, stream=stream)
        other.copy_(block, non_blocking=True, stream=stream)
        backend.sleep(stream, 1)
    stream.synchronize()
operations = rows(t, "copy", "fill", "sleep", "kernel")
print(*(row["kind"] for row in operations))
print(*{row["nbytes"] for row in operations[:2]})
ended = 0
for row in operations:
    assert row["queued"] <= row["begin"] <= row["end"] <= t.duration, row
    assert ended <= row["begin"], row
    assert row["filename"] is not None
    ended = row["end"]
print(operations[2]["end"] - operations[2]["begin"] >= 500_000)
print(t.clock_error, len({row["stream"] for row in operations}))
"""
    )
    kinds = "fill copy sleep " * 3
    assert printed == f"{kinds.strip()}\n100\nTrue\n0 1\n"


def test_work_of_other_libraries_is_on_its_stream(run):
    """The work is listed in the order of the calls, with what is known of each
    call."""
    printed = run(
        RECORDED
        + """
unknown = ctypes.c_void_p()
late.cudaStreamCreateWithPriority(ctypes.byref(unknown), 0, 0)
go = threading.Event()
def other():
    launch(stream.native_handle)
    go.wait()
with timeline.record() as t:
    fill(block, stream.native_handle)
    launch(0)
    launch(unknown.value)
    thread = threading.Thread(target=other, name="other")
    thread.start()
    while len(rows(t, "kernel")) < 3:
        pass
    go.set()
    block.fill_(1, stream=stream)
    stream.synchronize()
thread.join()
for row in rows(t, "kernel", "fill"):
    label = row["stream"].split(" (")[0]
    known = row["line"] is not None
    print(row["kind"], row["device"], label, row["nbytes"], known)
    assert 0 <= row["queued"] <= row["begin"] <= row["end"] <= t.duration
print({row["name"] for row in rows(t, "kernel")})
print(t)
"""
    )
    found, chart = printed.split("}\n")
    assert found.splitlines()[:-1] == [
        "fill cuda:0 mine 100 False",
        "kernel cuda:0 default stream 0 False",
        "kernel cuda:0 stream #9 0 False",
        "kernel cuda:0 mine 0 False",
        "fill cuda:0 mine 100 True",
    ]
    name = found.splitlines()[-1]
    assert name in ("{'_Z4spinPKfi'", "{'spin(float const*, int)'")
    assert "5 operations in" in chart


def test_streams_that_only_others_use_have_their_names(run):
    printed = run(
        RECORDED
        + """
for _ in range(2):
    with timeline.record() as t:
        fill(block, stream.native_handle)
        while not rows(t, "fill"):
            pass
    other, stream = stream, backend.stream(name="new")
    print(*(row["stream"].split(" (")[0] for row in rows(t, "fill")))
"""
    )
    assert printed == "mine\nnew\n"


@pytest.mark.parametrize("delay", [0, 3, 20])
def test_functions_are_timed_on_a_busy_gpu(run, delay):
    """An event of a busy GPU is done some milliseconds after its record."""
    printed = run(
        RECORDED
        + """
late.late_cuda_delay(int(sys.argv[1]))
with timeline.record() as t:
    for _ in range(2):
        backend.call(stream)
    stream.synchronize()
print(*(row["kind"] for row in rows(t, "function")))
print(t.clock_error >= int(sys.argv[1]) * 500_000)
""",
        delay,
    )
    assert printed == "function function\nTrue\n"


def test_threads_of_other_libraries_have_their_names(run):
    """A thread's name is known if the thread is alive when rows are read, or
    has used a stream before."""
    printed = run(
        RECORDED
        + """
go = threading.Event()
def other():
    launch(stream.native_handle)
    go.wait()
with timeline.record() as t:
    thread = threading.Thread(target=other, name="other")
    thread.start()
    while not rows(t, "kernel"):
        pass
    print(rows(t, "kernel")[0]["thread"])
    go.set()
    thread.join()
    block.fill_(1, stream=stream)
    fill(block, stream.native_handle)
    stream.synchronize()
print(*(row["thread"] for row in rows(t, "fill")))
print(rows(t, "kernel")[0]["thread"].startswith("thread "))
"""
    )
    assert printed == "other\nMainThread MainThread\nTrue\n"


def test_work_of_other_libraries_orders_streams(run):
    """A record behind a kernel, and a wait for the record, are done when the
    kernel is done."""
    printed = run(
        RECORDED
        + """
second = backend.stream()
cycles.value = 1900 * 20_000
for wait in (second.wait_stream, lambda other: other.synchronize()):
    with timeline.record() as t:
        launch(stream.native_handle)
        wait(stream)
        block.fill_(1, stream=second)
        second.synchronize()
    (kernel,), (fill,) = rows(t, "kernel"), rows(t, "fill")
    assert kernel["end"] - kernel["begin"] > 15_000_000
    assert fill["begin"] >= kernel["end"]
    for row in rows(t, "wait", "record"):
        assert row["end"] >= kernel["end"], row
    # The host may come to its last wait when the fill has ended.
    steps = t.critical_path().steps[:3]
    print([t.rows[s.row][0] if s.row != None else "" for s in steps])
    print([s.after for s in steps])
    busy = sum(time for key, time in t.overlap().items() if "work" in key)
    assert busy > 15_000_000
"""
    )
    assert printed == (
        "['', 'kernel', 'fill']\n['', 'host', 'wait']\n"
        "['', 'kernel', '']\n['', 'host', 'synchronize']\n"
    )


def test_what_ends_after_the_recording_is_reported_later(run):
    printed = run(
        RECORDED
        + """
go = threading.Event()
with timeline.record() as t:
    future = stream.submit(go.wait)
    fill(block, stream.native_handle)
    block.fill_(1, stream=stream)
print([row["end"] for row in rows(t, "fill")])
with timeline.record() as u:
    go.set()
    future.result()
    stream.synchronize()
print([row["end"] > t.duration for row in rows(t, "fill")], rows(u, "fill"))
"""
    )
    assert printed == "[None]\n[True, True] []\n"


def test_nodes_of_graphs(run):
    """The nodes' rows come after all others.  Busy times and paths do not
    count nodes a second time.  Each recording has its own nodes."""
    printed = run(
        RECORDED
        + """
import json, os
os.environ["LATE_CUPTI"] = "graph"
cycles.value = 1900 * 10_000
with timeline.record() as t:
    launch(stream.native_handle)
    block.fill_(1, stream=stream)
    with timeline.record() as inner:
        launch(stream.native_handle)
    stream.synchronize()
for row in t.rows[-4:]:
    print(row[0], row[1][:4], row[2], row[3].split(" (")[0], *row[9:13])
graph, second = rows(t, "graph")
(fill,) = rows(t, "fill")
nodes = rows(t, "node")
assert all(n["begin"] == graph["begin"] for n in nodes[:2])
assert all(n["end"] == second["end"] for n in nodes[2:])
assert graph["end"] <= fill["begin"]
print(len(rows(inner, "node")), len(rows(inner, "graph")))
steps = t.critical_path().steps
print(*(t.rows[s.row][0] for s in steps if s.row is not None))
work = sum(time for key, time in t.overlap().items() if "work" in key)
print(work == sum(r["end"] - r["begin"] for r in (graph, second)))
t.save("t.json")
with open("t.json") as file:
    events = json.load(file)["traceEvents"]
tracks = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
print(*(name.split(" (")[0] for name in tracks[-2:]))
print(sum(e.get("cat") == "node" for e in events))
t.save("t.svg")
"""
    )
    name = printed.split()[1]
    assert name in ("_Z4s", "spin")
    streams = ["mine", "stream #99"] * 2
    row = f"node {name} cuda:0"
    *rows, count, path, work, tracks, drawn = printed.splitlines()
    assert rows == [f"{row} {label} None None None None" for label in streams]
    assert (count, work, drawn) == ("2 1", "True", "4")
    assert path in ("graph", "graph fill graph")
    assert tracks.startswith("mine") and tracks.endswith("in graphs")


def test_waits_of_other_libraries(run):
    """Each wait is listed once, on the thread that waits.  pystreams' own
    waits are not listed."""
    printed = run(
        RECORDED
        + """
cycles.value = 1900 * 5_000
events = [backend.event() for _ in range(2)]
handle = ctypes.c_void_p(stream.native_handle)
def wait_for_event():
    launch(stream.native_handle)
    events[0].record(stream)
    late.cuEventSynchronize(ctypes.c_void_p(events[0].event_id))
with timeline.record() as t:
    launch(stream.native_handle)
    late.cuStreamSynchronize(handle)
    thread = threading.Thread(target=wait_for_event, name="other")
    thread.start()
    thread.join()
    launch(stream.native_handle)
    late.cudaDeviceSynchronize()
    # Each has to wait; the last one would be done at once.
    for wait in (stream.synchronize, events[1].synchronize):
        launch(stream.native_handle)
        events[1].record(stream)
        wait()
waits, kernels = rows(t, "synchronize"), rows(t, "kernel")
for wait, kernel in zip(waits, kernels, strict=True):
    print(wait["name"], wait["thread"], wait["stream"], wait["domain"])
    assert kernel["queued"] <= wait["begin"] <= kernel["end"] <= wait["end"]
steps = t.critical_path().steps
print(*(t.rows[s.row][0] for s in steps if s.row is not None))
print(sum(s.after == "synchronize" for s in steps))
host = sum(time for key, time in t.overlap().items() if "host" in key)
assert host < t.duration - 15_000_000
"""
    )
    assert printed == (
        "cuStreamSynchronize MainThread None None\n"
        "cuEventSynchronize other None None\n"
        "cuCtxSynchronize MainThread None None\n"
        "Stream.synchronize MainThread None None\n"
        "Event.synchronize MainThread None None\n"
        "kernel kernel kernel kernel\n4\n"
    )


def test_numbers_of_streams_are_those_of_their_contexts(run):
    printed = run(
        RECORDED
        + """
import os
os.environ["LATE_CUPTI"] = "contexts"
unknown = [ctypes.c_void_p() for _ in range(2)]
for handle in unknown:
    late.cudaStreamCreateWithPriority(ctypes.byref(handle), 0, 0)
with timeline.record() as t:
    for handle in (0, stream.native_handle, *(h.value for h in unknown)):
        launch(handle)
    late.cudaDeviceSynchronize()
    while len(rows(t, "kernel")) < 4:
        pass
print(*(row["stream"].split(" (")[0] for row in rows(t, "kernel")), sep=", ")
"""
    )
    assert printed in (
        "default stream, mine, stream #8, stream #8 of context 2\n",
        "default stream, mine, stream #8 of context 1, stream #8\n",
    )


def test_a_call_with_two_activities(run):
    """The call lasts from its first activity to its last, and has the bytes of
    all activities."""
    printed = run(
        RECORDED
        + """
import os
os.environ["LATE_CUPTI"] = "parts"
other = backend.empty(100, stream=stream)
with timeline.record() as t:
    other.copy_(block, non_blocking=True, stream=stream)
    late.cudaMemcpyAsync(
        ctypes.c_void_p(other.data_ptr()), ctypes.c_void_p(block.data_ptr()),
        100, 3, ctypes.c_void_p(stream.native_handle)
    )
    stream.synchronize()
for row in rows(t, "copy"):
    long = row["end"] - row["begin"] >= 10_000_000
    print(row["name"], row["nbytes"], long)
"""
    )
    name = "copy device to device"
    assert printed == f"{name} 100 True\n{name} 200 True\n"


def test_a_report_that_is_lost(run):
    """If a report is lost, work behind it that is known to be done is still
    shown as done."""
    printed = run(
        RECORDED
        + """
import os
os.environ["LATE_CUPTI"] = "lost"
second = backend.stream()
with timeline.record() as t:
    block.fill_(1, stream=stream)
    second.wait_stream(stream)
    block.fill_(2, stream=stream)
    second.wait_stream(stream)
    block.fill_(3, stream=second)
    second.synchronize()
for row in t.rows:
    print(row[0], row[7] is not None)
"""
    )
    lines = [line for line in printed.splitlines() if "memory" not in line]
    before = ["fill False", "record False", "wait False"]
    # The other stream has work that is known to be done only at its end.
    behind = ["fill True", "record True", "wait False", "fill True"]
    assert lines[:7] == before + behind
    assert lines[7:] in ([], ["synchronize True"])


def test_a_recording_that_is_gone_before_its_work_is_done(run):
    printed = run(
        RECORDED
        + """
go = threading.Event()
for _ in range(3):
    with timeline.record() as t:
        future = stream.submit(go.wait)
        for _ in range(2000):
            block.fill_(1, stream=stream)
            fill(block, stream.native_handle)
    del t
go.set()
stream.synchronize()
with timeline.record() as t:
    pass
print(t.rows)
"""
    )
    assert printed == "[]\n"


def test_calls_that_were_reported_take_no_memory(run):
    """Memory for a call is freed when CUPTI has reported it, even if an older
    recording is kept.  Calls that are not reported yet stay known as long as
    that recording."""
    printed = run(
        RECORDED
        + """
class Info(ctypes.Structure):
    _fields_ = [("of", ctypes.c_size_t * 10)]
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
def allocated():
    found = mallinfo().of
    return found[4] + found[7]  # mapped, and in arenas
held, go = backend.stream(), threading.Event()
other = backend.empty(100, stream=held)
with timeline.record() as kept:
    fill(block, stream.native_handle)
    held.submit(go.wait)
    fill(other, held.native_handle)
for i in range(30):
    with timeline.record() as t:
        for _ in range(10_000):
            fill(block, stream.native_handle)
        stream.synchronize()
        assert len(rows(t, "fill")) == 10_000
    del t
    if i == 9:
        before = allocated()
grown = allocated() - before
assert grown < 4 << 20, grown
print(*(row["end"] is not None for row in rows(kept, "fill")))
go.set()
held.synchronize()
print(*(row["end"] is not None for row in rows(kept, "fill")))
"""
    )
    assert printed == "True\nTrue True\n"


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("taken", "another profiler has CUPTI (it says: CUPTI for a test)"),
        ("broken", "CUPTI reports CUPTI_ERROR_UNKNOWN"),
    ],
)
def test_cupti_is_not_to_be_had(run, state, reason):
    """One warning says so, at the program's line that records.  Then events
    time the work of pystreams."""
    printed = run(
        RECORDED
        + """
import os
os.environ["LATE_CUPTI"] = sys.argv[1]
for _ in range(2):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with timeline.record() as t:
            block.fill_(1, stream=stream)
            fill(block, stream.native_handle)
            stream.synchronize()
    for warning in found:
        print(warning.category.__name__, warning.message, warning.filename)
    known = [row["end"] is not None for row in rows(t, "fill")]
    print(known, t.clock_error > 0)
""",
        state,
    )
    first, *others = printed.splitlines()
    shown = "the timeline does not show the work of other libraries"
    assert first == f"RuntimeWarning {shown}: {reason} <string>"
    assert others == ["[True] True"] * 2


def test_records_of_cupti(headers, tmp_path):
    """The declarations in activity.h agree with CUPTI's own headers."""
    if not os.path.exists(f"{headers}/cupti.h"):
        pytest.skip("no CUPTI to build with")
    source = TESTS / "c/late_cupti/records.c"
    include = f"-I{ROOT / 'csrc/backends/cuda'}"
    compiled(headers, tmp_path / "records.so", source, include)
