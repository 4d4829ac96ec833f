"""The CUDA backend on a machine with no GPU, over late_cuda: a CUDA that
finishes work late, at random, and knows which work is ordered after which."""

import functools
import json
import os
import shutil
import subprocess
import sys

import pytest
from places import ROOT, SUPPORT, TESTS

FIND_HEADERS = """
import runpy
toolkit = runpy.run_path("setup.py")["find_toolkit"]()
print(toolkit.include if toolkit else "")
"""


def find_headers():
    """Of the CUDA toolkit that setup.py builds with; "" if there is none."""
    done = subprocess.run(
        [sys.executable, "-c", FIND_HEADERS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


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
def headers(tools):
    """CUDA's, of the toolkit that is built with."""
    found = find_headers()
    if not found:
        pytest.skip("no CUDA toolkit to build with")
    return found


@pytest.fixture(scope="module")
def late_cuda(tmp_path_factory, headers):
    """A folder with libcuda.so.1 and with the package built over it: what is
    cudart's is looked for where libcuda's is."""
    folder = tmp_path_factory.mktemp("late")
    sources = (TESTS / "c/late_cuda").glob("*.c")
    compiled(headers, folder / "libcuda.so.1", *sources)
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
    """run_in_c(options, *sources): a program with the backend, over
    late_cuda."""
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
                # NVML, which is asked first, may count more.
                CUDA_VISIBLE_DEVICES="0",
                # The join with a time limit is none of those that it knows.
                TSAN_OPTIONS="report_thread_leaks=0",
            ),
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_notifications_raced(run_in_c, tmp_path, headers, sanitizer):
    """In C, where a sanitizer sees what the backend does."""
    empty, options = tmp_path / "empty.c", [f"-fsanitize={sanitizer}"]
    empty.write_text("int main(void) { return 0; }")
    command = [*compiler(headers), *options, empty, "-o", tmp_path / "empty"]
    if subprocess.run(command).returncode:
        pytest.skip(f"no {sanitizer} sanitizer")
    done = run_in_c(options, TESTS / "c/late/notifications.c")
    assert (done.stdout, done.stderr, done.returncode) == ("0 wrong\n", "", 0)


def test_gates_in_c(run_in_c):
    """Those tests of a GPU's that need no other device, no kernel of their own
    and no capture."""
    sources = ["late/gates.c", "cuda/check.c", "cuda/gates.c"]
    done = run_in_c([], *(TESTS / "c" / source for source in sources))
    assert (done.stdout[-9:], done.stderr) == ("0 failed\n", ""), done.stdout


def test_graph_nodes_in_c(run_in_c):
    done = run_in_c([], TESTS / "c/late/graph_nodes.c")
    assert (done.stdout, done.stderr) == ("0 wrong\n", "")


@pytest.fixture
def run_late(run_python, sanitized, request):
    """run_python, in a process whose CUDA it is."""
    if sanitized:
        pytest.skip("a sanitizer must be loaded before anything else")
    folder = str(request.getfixturevalue("late_cuda"))
    variables = {
        "LD_PRELOAD": f"{folder}/libcuda.so.1",
        "LD_LIBRARY_PATH": folder,
        "PYTHONPATH": folder,
        "PYSTREAMS_EMULATE_CUDA": None,
        "CUDA_VISIBLE_DEVICES": "0",
    }
    return functools.partial(run_python, env=variables, timeout=300)


@pytest.fixture
def run(run_late):
    """run(code, *arguments): what a program prints that has `late`, the
    library, and `backend`, which is CUDA."""
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
    """Of work that pystreams knows nothing of."""
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
    """Others may have queued work on it, of which pystreams knows nothing."""
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


def test_an_abandoned_wait_is_none_of_another_event_s(run):
    """Though that event has the handle of the one that was waited for."""
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
    waiter.watch(event, 0)
    waiter.cancel()
handles = {event.event_id for event in events}
del event, events
with other:
    pystreams.cuda._sleep(10**8)
events, told = recorded(other), 0
print(len(handles & {event.event_id for event in events}) > 0)
for token, event in enumerate(events):
    waiter.watch(event, token)
while told < len(events) and (some := waiter.wait(10)):
    told += len(some)
print(told)
done.set()
future.result()
""")
    assert printed == "True\n20\n"


def test_the_end_of_a_program_does_not_wait_for_the_device(run):
    """Its work is the driver's to abandon; the backend's threads end."""
    printed = run("""
from pathlib import Path
def polled():
    names = [p.read_text() for p in Path("/proc/self/task").glob("*/comm")]
    return "ps-cuda-events\\n" in names
stream, waiter = pystreams.cuda.Stream(), pystreams._C.Waiter()
with stream:
    pystreams.cuda._sleep(10**15)
waiter.watch(stream, 1)
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
    """A process sees one part of a divided GPU, and no other then."""
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
    """The backend is asked about the address with the GIL released."""
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
    """Of each file, the tests of cuda; not those of what a wait costs, nor of
    the memory that late_cuda itself takes."""
    options = ["-v", "-p", "no:cacheprovider", "--rootdir", ROOT]
    (file,) = TESTS.rglob(f"test_{name}.py")
    chosen = "cuda and not cpu- and not costs_little and not nothing_leaks"
    done = run_late(["-m", "pytest", *options, file, "-k", chosen])
    assert done.returncode == 0, done.stdout
    assert "[cuda" in done.stdout
    assert "[cuda-emulated" not in done.stdout


@pytest.mark.parametrize("options", [[], ["--device=cuda", "--chain"]])
def test_the_demo_orders_what_it_does(run, tmp_path, options):
    """Callables that read and check, and copies between them."""
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
    """None has another's multiprocessors, nor ends before its streams."""
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
pystreams._C.sleep(1, 10**8, stream)
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
