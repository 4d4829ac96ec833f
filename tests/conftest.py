"""What every test shares: the backends, streams that are held back, and other
processes.

A test that takes `backend` runs on each available device type; see backend.py.
"""

import contextlib
import gc
import importlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import warnings
from collections import Counter
from pathlib import Path

import pytest
from places import ROOT, TESTS

if not list((ROOT / "pystreams").glob("_C.*.so")):
    # `python -m pytest` puts the checkout ahead of the installed packages on
    # sys.path, and a checkout that was not built in place has no extension
    # module.
    sys.path[:] = [p for p in sys.path if Path(p).resolve() != ROOT]

from backend import (
    COMPUTE_SANITIZER,
    IDS,
    TYPES,
    Backend,
    Gate,
    usable,
)
from captures import SIZE
from deadlines import LONG
from peers import Peer

import pystreams
from pystreams import _C, schedules
from pystreams.cuda._graphs import Graph


def pytest_collection_finish():
    # Many tests collect garbage.  pytest's own objects stay alive, so let the
    # collector skip them, which makes the tests faster.
    gc.collect()
    gc.freeze()


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs with SIGINT ignored.  The programs
        # that the tests start and interrupt would inherit this.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers",
        "unscheduled: needs work that runs by itself, an order that no wait "
        "asks for, real time, memory that keeps its bytes, a process without "
        "a schedule, or another process's events or memory; skipped under "
        "PYSTREAMS_SCHEDULE",
    )
    config.addinivalue_line(
        "markers",
        "whole_gpu: counts the memory of a whole GPU, or takes all of it; in "
        "parallel runs on GPUs, run the others first and these alone",
    )


def pytest_collection_modifyitems(items):
    if "PYSTREAMS_SCHEDULE" in os.environ:
        skip = pytest.mark.skip(reason="a schedule runs the work")
        for item in items:
            if item.get_closest_marker("unscheduled") is not None:
                item.add_marker(skip)


def device_of(test):
    """The device that the test's id names, or None."""
    names = "|".join(sorted(IDS.values(), key=len, reverse=True))
    found = re.search(rf"[\[-]({names})[\]-]", test)
    return found and found[1]


def pytest_terminal_summary(terminalreporter):
    counts = Counter(
        device_of(report.nodeid) or "no device"
        for report in terminalreporter.stats.get("passed", ())
    )
    if counts:
        shown = (f"{count} {name}" for name, count in sorted(counts.items()))
        terminalreporter.write_line(f"passed on: {', '.join(shown)}")


@pytest.fixture
def switch_often():
    """Threads take turns every few bytecodes."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(params=["cpu", "cuda"], ids=IDS.get)
def backend(request):
    return usable(request.param)


@pytest.fixture(params=["cuda"], ids=IDS.get)
def cuda(request):
    """The backend that pystreams.cuda stands for."""
    return usable(request.param)


@pytest.fixture
def two_cuda(cuda):
    if cuda.count < 2:
        pytest.skip(f"{cuda}: needs two devices, has {cuda.count}")
    return cuda


def wait_for_earlier_tests():
    for name, kind in _C.backends():
        if name == "cpu" or _C.is_emulated(kind):
            for index in range(_C.device_count(kind)):
                # A failure that an earlier test left is not the failure of
                # this test.
                with contextlib.suppress(pystreams.AcceleratorError):
                    _C.synchronize(kind, index, LONG)


@pytest.fixture
def no_gpu_is_used():
    """Skip the test if this process uses a GPU, because then it can explore no
    schedules."""
    wait_for_earlier_tests()
    try:
        with schedules.run("early"):
            pass
    except RuntimeError as error:
        if "this process uses the" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture
def gpu(cuda):
    """The backend that is a real GPU."""
    if cuda.on_engine:
        pytest.skip(f"{cuda}: needs a GPU")
    return cuda


@pytest.fixture
def two_gpus(gpu):
    if gpu.count < 2:
        pytest.skip(f"{gpu}: needs two GPUs, has {gpu.count}")
    return gpu


def library(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"needs {name}: {error}")


@pytest.fixture
def numpy():
    return pytest.importorskip("numpy", reason="needs NumPy")


@pytest.fixture
def cupy(gpu):
    return library("cupy")


@pytest.fixture
def torch(gpu):
    torch = library("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a torch with CUDA")
    return torch


@pytest.fixture
def numba(gpu):
    numba = library("numba.cuda")
    if not numba.is_available():
        pytest.skip("needs a Numba with CUDA")
    yield numba
    # Numba frees memory later, which would invalidate a capture of a later
    # test.
    gc.collect()
    numba.current_context().deallocations.clear()


@pytest.fixture
def core(gpu):
    """cuda.core, with its device 0 current."""
    core = library("cuda.core")
    core.Device(0).set_current()
    return core


@pytest.fixture
def kernels(gpu):
    """The tests' own kernels on the GPU.  One kernel has run already, so no
    test's launch has to load the kernels, which could wait for other work."""
    from kernels import Kernels

    kernels, block = Kernels(), gpu.empty(16)
    gpu.synchronize()
    kernels.fill_late(0, block.data_ptr(), 16, byte=1, milliseconds=0)
    assert kernels.read(0, block.data_ptr(), 16) == (1, 1)
    return kernels


@pytest.fixture
def accelerator():
    """The backend that calls use if they name no device."""
    names = {device_type: name for name, device_type in TYPES.items()}
    return usable(names[_C.default_type()])


@pytest.fixture
def pinning(backend, accelerator):
    """A backend that pins memory.  On "cpu", the accelerator pins it, so
    "cpu" is skipped if the accelerator is another backend."""
    if backend.name == "cpu" != accelerator.name:
        pytest.skip(f"cpu: pinned memory is {accelerator}'s")
    return backend


@pytest.fixture
def engine(backend):
    """A backend that is the CPU engine, whatever it is called."""
    if not backend.on_engine:
        pytest.skip(f"{backend}: what is tested is the CPU engine's")
    return backend


@pytest.fixture
def faulty(engine):
    """A backend whose work can be made to fail."""
    yield engine
    gc.collect()
    for index in range(engine.count):
        # If no call has raised the failure yet, it is raised here, once.
        with contextlib.suppress(pystreams.AcceleratorError):
            engine.synchronize(index)
        engine.synchronize(index)


@pytest.fixture
def full(engine):
    """A stream whose queue is full, an event that it recorded, and the gate
    that both wait for."""
    stream = engine.stream()
    gate = engine.gate(stream)
    event = stream.record_event()
    engine.fill(stream, queued=2)
    # If a test waits for room forever, it must fail and not hang.
    rescue = threading.Timer(LONG, gate.open)
    rescue.start()
    yield stream, event, gate
    rescue.cancel()
    gate.open()
    stream.synchronize()


@pytest.fixture
def stream(backend):
    return backend.stream()


@pytest.fixture
def block(stream):
    """A callable that keeps the stream busy until release() or the test's
    end."""
    go = threading.Event()

    class Block:
        future = stream.submit(go.wait, 4 * LONG)
        release = staticmethod(go.set)

    yield Block
    go.set()


@pytest.fixture
def graph(backend):
    """A graph without a capture."""
    return Graph(backend.type)


@pytest.fixture
def buffer(backend, stream):
    """A buffer whose bytes are all 1."""
    return backend.filled(1, SIZE, stream=stream)


@pytest.fixture
def trio(backend):
    """A stream, an event on a second stream and a Future of a third stream,
    none of them done, and for each, a function that lets it go on."""
    streams = [backend.stream() for _ in range(3)]
    gates = [threading.Event() for _ in streams]
    for stream, gate in zip(streams, gates, strict=True):
        stream.submit(gate.wait, 4 * LONG)
    event = streams[1].record_event()
    future = streams[2].submit(divmod, 7, 2)
    yield [streams[0], event, future], gates
    for gate in gates:
        gate.set()


@pytest.fixture
def peers(backend):
    """peers(): another process, see peers.py."""
    with contextlib.ExitStack() as stack:

        def start():
            peer = Peer(backend)
            stack.callback(peer.kill)
            return peer

        yield start


@pytest.fixture
def peer(peers):
    return peers()


@pytest.fixture
def two_devices(backend):
    if backend.count < 2:
        pytest.skip(f"{backend}: needs two devices, has {backend.count}")
    return backend


@pytest.fixture(autouse=True)
def as_at_the_start():
    """Reset the main thread's current devices and streams to their initial
    state."""
    yield
    Gate.closed.clear()
    for name, device_type in TYPES.items():
        if _C.is_initialized(device_type):
            Backend(name).reset_currents()


@pytest.fixture
def nothing_left():
    """Free what earlier tests left behind, since otherwise it would be freed
    during this test."""
    gc.collect()
    wait_for_earlier_tests()


@pytest.fixture
def sanitized():
    """Whether this process runs with a sanitizer.  A sanitizer keeps freed
    memory, and has memory, symbols and locks of its own."""
    maps = Path("/proc/self/maps").read_text()
    return COMPUTE_SANITIZER or "libasan" in maps or "libtsan" in maps


@pytest.fixture
def thread_sanitized():
    """Whether this process runs with ThreadSanitizer."""
    return "libtsan" in Path("/proc/self/maps").read_text()


@pytest.fixture
def run_python(tmp_path):
    """run(code or arguments, env={}, timeout=60) -> CompletedProcess of a
    fresh interpreter.  Variables in `env` that are None are removed from its
    environment.  If the package is imported from the checkout, PYTHONPATH
    includes the checkout."""

    def run(code, *arguments, env=None, timeout=60):
        env = env or {}
        environment = dict(os.environ)
        if env.get("PYSTREAMS_EMULATE_CUDA") not in (None, "", "0"):
            # CUDA_VISIBLE_DEVICES would hide emulated devices, too.
            environment.pop("CUDA_VISIBLE_DEVICES", None)
        environment.update(env)
        # If the child process runs pytest, that pytest is not a worker of the
        # one that runs this test, and prints what it prints by default.
        for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS", "CI"):
            environment.pop(name, None)
        package = Path(pystreams.__file__).resolve().parent
        if package.parent == ROOT:
            path = [environment.get("PYTHONPATH"), str(ROOT)]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        environment = {k: v for k, v in environment.items() if v is not None}
        command = ["-c", code] if isinstance(code, str) else list(code)
        return subprocess.run(
            [sys.executable, "-W", "error", *command, *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture(scope="session")
def tools():
    """Require the tools that build extension modules."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("no setuptools")


FIND_HEADERS = """
import runpy
toolkit = runpy.run_path("setup.py")["find_toolkit"]()
print(toolkit.include if toolkit else "")
"""


@pytest.fixture(scope="session")
def headers(tools):
    """The folder with the headers of the CUDA toolkit that builds
    pystreams."""
    done = subprocess.run(
        [sys.executable, "-c", FIND_HEADERS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    if not done.stdout.strip():
        pytest.skip("no CUDA toolkit to build with")
    return done.stdout.strip()


@pytest.fixture(scope="session")
def shortage(tmp_path_factory, tools):
    """shortage.c, compiled."""
    path = tmp_path_factory.mktemp("shortage") / "shortage.so"
    options = ["-std=c11", "-O2", "-fPIC", "-shared", "-D_GNU_SOURCE"]
    # _FORTIFY_SOURCE gives open() a body of its own.
    options += ["-U_FORTIFY_SOURCE", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        ["cc", *options, TESTS / "c/shortage.c", "-o", path, "-ldl"],
        env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"},
        check=True,
    )
    return path


@pytest.fixture
def short_library(sanitized, request):
    """The environment variables that load shortage.c in a process.  Under a
    sanitizer, which has an allocator of its own, there are none."""
    if sanitized:
        return {}
    library = str(request.getfixturevalue("shortage"))
    return {"LD_PRELOAD": library, "SHORTAGE": library}


@pytest.fixture(scope="session")
def failing(tmp_path_factory, tools):
    """A folder with the module `failing`, see tests/c/failing."""
    folder = tmp_path_factory.mktemp("failing")
    subprocess.run(
        [
            *("cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fPIC"),
            *("-shared", "-pthread", "-Wall", "-Wextra", "-Werror"),
            f"-I{ROOT}/csrc/include",
            f"-I{sysconfig.get_path('include')}",
            *(ROOT / "csrc/backends/cpu").glob("*.c"),
            TESTS / "c/failing/failing.c",
            *("-o", folder / "failing.so"),
        ],
        check=True,
    )
    return folder


@pytest.fixture(scope="session")
def built(tmp_path_factory, tools):
    """A folder with the modules fake_device, which is the example, and its
    variants gated_device and broken_device."""
    folder = tmp_path_factory.mktemp("built")
    environment = dict(
        os.environ,
        # The modules are built without sanitizers, by a compiler that runs
        # without them.
        CC="env -u LD_PRELOAD cc",
        CFLAGS="-std=c11 -O1 -Wall -Wextra -Werror",
    )
    if Path(pystreams.__file__).resolve().parent.parent == ROOT:
        environment.setdefault("PYTHONPATH", str(ROOT))
    for source in (ROOT / "examples/fake_device", TESTS / "c/broken_device"):
        options = ["--build-lib", folder, "--build-temp", folder / "objects"]
        subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", *options],
            cwd=source,
            env=environment,
            check=True,
        )
    return folder


@pytest.fixture
def run_with_device(run_python, built):
    """Like run_python, but the modules from `built` can be imported."""

    def run(code, *arguments, env=None, timeout=300):
        path = [str(built), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {"PYTHONPATH": os.pathsep.join(path), **(env or {})}
        return run_python(code, *arguments, env=variables, timeout=timeout)

    return run
