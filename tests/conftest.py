"""What every test shares: the backends, gates that hold a stream back, and
other processes.

The rule: a test takes `backend` and runs on each device type there is.  With
no GPU, cuda is served by the CPU engine with two devices, and the id says so.
PYSTREAMS_EMULATE_CUDA and PYSTREAMS_CPU_DEVICES in the environment are kept.
"""

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import ClassVar

import pytest

ROOT = Path(__file__).resolve().parent.parent

if not list((ROOT / "pystreams").glob("_C.*.so")):
    # `python -m pytest` puts the checkout in front of what is installed, and
    # a checkout that was not built in place has no extension module.
    sys.path[:] = [p for p in sys.path if Path(p).resolve() != ROOT]

COUNT_GPUS = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
assert driver.cuInit(0) == 0
assert driver.cuDeviceGetCount(ctypes.byref(count)) == 0
print(count.value)
"""


def has_gpu():
    """Ask the driver, in a process of its own: cuInit here would make this
    one unfit to fork."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT_GPUS], capture_output=True, text=True
    )
    return done.returncode == 0 and int(done.stdout) > 0


os.environ.pop("PYSTREAMS_ACCELERATOR", None)
os.environ.setdefault("PYSTREAMS_CPU_DEVICES", "2")
if "PYSTREAMS_EMULATE_CUDA" not in os.environ and not has_gpu():
    os.environ["PYSTREAMS_EMULATE_CUDA"] = "2"

from captures import SIZE  # noqa: E402
from peers import Peer  # noqa: E402

import pystreams  # noqa: E402
from pystreams import _C  # noqa: E402

TYPES = dict(_C.backends())
EMULATED = _C.is_emulated(TYPES["cuda"])
IDS = {"cpu": "cpu", "cuda": "cuda-emulated" if EMULATED else "cuda"}

# Said by compute_sanitizer.sh.
COMPUTE_SANITIZER = os.environ.get("SANITIZER") == "compute-sanitizer"

libc = ctypes.CDLL(None)


class Gate:
    """Work on a stream that is not done until the gate is opened.

    It occupies one of the backend's threads, of which there are at least
    two.  Opening it again does nothing.
    """

    # The backend's thread may still be inside sem_wait after open().
    _kept: ClassVar[list] = []
    closed: ClassVar[set] = set()
    # Where Backend.sleep has its kernel; while a stream is held, CUDA does
    # not load any.
    ready: ClassVar[set] = set()

    def __init__(self, stream):
        if stream.device not in self.ready and not COMPUTE_SANITIZER:
            _C.sleep(stream.device_type, 0, pystreams.Stream(stream.device))
            self.ready.add(stream.device)
        self._semaphore = (ctypes.c_long * 4)()
        self._kept.append(self._semaphore)
        self.closed.add(id(self._semaphore))
        assert libc.sem_init(self._semaphore, 0, 0) == 0
        wait = ctypes.cast(libc.sem_wait, ctypes.c_void_p).value
        _C.launch_host_function(
            stream, wait, ctypes.addressof(self._semaphore)
        )

    def open(self):
        assert libc.sem_post(self._semaphore) == 0
        self.closed.discard(id(self._semaphore))


class Backend:
    """One device type, and the ways tests make things of it."""

    def __init__(self, name):
        self.name = name
        self.type = TYPES[name]
        self.on_engine = name == "cpu" or EMULATED

    def __repr__(self):
        return IDS[self.name]

    @property
    def count(self):
        return _C.device_count(self.type)

    def device(self, index=0):
        return pystreams.device(self.name, index)

    def stream(self, index=0, **options):
        return pystreams.Stream(self.device(index), **options)

    def event(self, **options):
        return pystreams.Event(self.name, **options)

    def empty(self, nbytes, index=0, **options):
        block = pystreams.empty(nbytes, device=self.device(index), **options)
        if COMPUTE_SANITIZER:
            stream = options.get("stream") or self.current_stream(index)
            self.show_done(stream)
        return block

    def show_done(self, stream):
        """Have compute-sanitizer see that what was allocated is there.  A
        stream that is held is not waited for."""
        end = time.monotonic() + 0.1
        while not stream.query() and time.monotonic() < end:
            pass

    def host(self, nbytes):
        """Host memory that the backend copies without waiting."""
        return self.empty(nbytes, pin_memory=self.name != "cpu")

    def filled(self, byte, nbytes=64, index=0, **options):
        """A block whose bytes are all this one by now."""
        stream = options.get("stream") or self.current_stream(index)
        block = self.empty(nbytes, index, **options).fill_(byte, stream)
        stream.synchronize()
        return block

    def in_use(self, index=0):
        """How many bytes are allocated on the device."""
        stats = _C.memory_stats(self.type, index)
        return stats["allocated_bytes.all.current"]

    def current_device(self):
        return _C.current_device(self.type)

    def current_stream(self, index=None):
        return _C.current_stream(self.type, index)

    def default_stream(self, index=None):
        return _C.default_stream(self.type, index)

    def synchronize(self, index=None):
        # With a limit it is no cudaDeviceSynchronize, which makes
        # compute-sanitizer forget what it has seen of the order.
        _C.synchronize(self.type, index, 60 if COMPUTE_SANITIZER else None)

    def sleep(self, stream, milliseconds):
        """Queue work that takes about so long; never less on the engine."""
        if COMPUTE_SANITIZER and Gate.closed:
            pytest.skip(
                "compute-sanitizer starts no kernel beside work that waits "
                "for the host"
            )
        per_millisecond = 1_000_000 if self.on_engine else 1_900_000
        _C.sleep(self.type, int(milliseconds * per_millisecond), stream)

    def gate(self, stream):
        """Keep the stream busy until the gate is opened."""
        return Gate(stream)

    def fill(self, stream, queued):
        """Leave no room in the queue of a busy stream of the engine's, which
        has so many operations."""
        event = self.event()
        for _ in range(65_536 - queued):
            event.record(stream)

    def call(self, stream):
        """Queue something that a thread of the backend must do."""
        getpid = ctypes.cast(libc.getpid, ctypes.c_void_p).value
        _C.launch_host_function(stream, getpid)

    @contextlib.contextmanager
    def hold(self, stream):
        """Keep the stream busy for the length of a with block."""
        gate = Gate(stream)
        del stream
        try:
            yield gate
        finally:
            gate.open()

    def wait_beside(self, stream):
        """Wait for what a held stream does not hold up; not for ever, as on
        CUDA the two may share a channel to the device."""
        pystreams.wait([stream], timeout=5)

    def currents(self):
        """The calling thread's current device and every current stream."""
        return self.current_device(), [
            self.current_stream(i).native_handle for i in range(self.count)
        ]

    def reset_currents(self):
        for index in range(self.count):
            default = self.default_stream(index)
            if self.current_stream(index) != default:
                _C.set_stream(default)
        if self.current_device() != 0:
            _C.set_device(self.type, 0)


def usable(name):
    reason = _C.unavailable_reason(TYPES[name])
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    return Backend(name)


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
    return numba


@pytest.fixture
def core(gpu):
    """cuda.core, with its device 0 current."""
    core = library("cuda.core")
    core.Device(0).set_current()
    return core


@pytest.fixture
def kernels(gpu):
    """Kernels of our own on the GPU; what a first use loads is loaded."""
    from kernels import Kernels

    kernels, block = Kernels(), gpu.empty(16)
    gpu.synchronize()
    kernels.fill_late(0, block.data_ptr(), 16, byte=1, milliseconds=0)
    assert kernels.read(0, block.data_ptr(), 16) == (1, 1)
    return kernels


@pytest.fixture
def accelerator():
    """The backend that is meant where no device is named."""
    names = {device_type: name for name, device_type in TYPES.items()}
    return usable(names[_C.default_type()])


@pytest.fixture
def pinning(backend, accelerator):
    """A backend that pins memory: "cpu" there stands for the accelerator."""
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
        # A failure nobody was told of comes from here, once.
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
    # What waits for room is to fail, not to hang.
    rescue = threading.Timer(10, gate.open)
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
    """A callable that keeps its stream until the test, or it, ends."""
    go = threading.Event()

    class Block:
        future = stream.submit(go.wait, 30)
        release = staticmethod(go.set)

    yield Block
    go.set()


@pytest.fixture
def graph(backend):
    """One that nothing was captured into."""
    return _C.Graph(backend.type)


@pytest.fixture
def buffer(backend, stream):
    """One that is full of ones."""
    return backend.filled(1, SIZE, stream=stream)


@pytest.fixture
def trio(backend):
    """A stream, an event of another and a Future of a third's, none of which
    is done, and what lets each of them go on."""
    streams = [backend.stream() for _ in range(3)]
    gates = [threading.Event() for _ in streams]
    for stream, gate in zip(streams, gates, strict=True):
        stream.submit(gate.wait, 30)
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
    """Leave the main thread's current devices and streams as they began."""
    yield
    Gate.closed.clear()
    for name, device_type in TYPES.items():
        if _C.is_initialized(device_type):
            Backend(name).reset_currents()


@pytest.fixture
def nothing_left():
    """Collect what earlier tests left, not while this one listens."""
    gc.collect()


@pytest.fixture
def sanitized():
    """Whether this process runs with a sanitizer, which keeps what was freed
    and has memory, symbols and locks of its own."""
    maps = Path("/proc/self/maps").read_text()
    return COMPUTE_SANITIZER or "libasan" in maps or "libtsan" in maps


@pytest.fixture
def thread_sanitized():
    """Whether that is ThreadSanitizer."""
    return "libtsan" in Path("/proc/self/maps").read_text()


@pytest.fixture
def run_python(tmp_path):
    """run(code or arguments, env={}, timeout=60) -> CompletedProcess of a
    fresh interpreter; a variable that is None is removed from its
    environment."""

    def run(code, *arguments, env=None, timeout=60):
        environment = dict(os.environ, **(env or {}))
        # A pytest in there is no worker of this one's.
        environment.pop("PYTEST_XDIST_WORKER", None)
        package = Path(pystreams.__file__).resolve().parent
        if package.parent == ROOT:
            environment.setdefault("PYTHONPATH", str(ROOT))
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
    """What extension modules are built with."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("no setuptools")


@pytest.fixture(scope="session")
def shortage(tmp_path_factory, tools):
    """shortage.c, compiled."""
    path = tmp_path_factory.mktemp("shortage") / "shortage.so"
    options = ["-std=c11", "-O2", "-fPIC", "-shared", "-D_GNU_SOURCE"]
    # _FORTIFY_SOURCE gives open() a body of its own.
    options += ["-U_FORTIFY_SOURCE", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        ["cc", *options, ROOT / "tests/shortage.c", "-o", path, "-ldl"],
        env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"},
        check=True,
    )
    return path


@pytest.fixture
def short_library(sanitized, request):
    """What a process needs in its environment for shortage.c; nothing where
    a sanitizer has an allocator of its own."""
    if sanitized:
        return {}
    library = str(request.getfixturevalue("shortage"))
    return {"LD_PRELOAD": library, "SHORTAGE": library}


@pytest.fixture(scope="session")
def built(tmp_path_factory, tools):
    """A folder with the modules fake_device, which is the example, and its
    variants gated_device and broken_device."""
    folder = tmp_path_factory.mktemp("built")
    environment = dict(
        os.environ,
        # What is built is not sanitized, nor is the compiler.
        CC="env -u LD_PRELOAD cc",
        CFLAGS="-std=c11 -O1 -Wall -Wextra -Werror",
    )
    if Path(pystreams.__file__).resolve().parent.parent == ROOT:
        environment.setdefault("PYTHONPATH", str(ROOT))
    for source in ("examples/fake_device", "tests/broken_device"):
        options = ["--build-lib", folder, "--build-temp", folder / "objects"]
        subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", *options],
            cwd=ROOT / source,
            env=environment,
            check=True,
        )
    return folder


@pytest.fixture
def run_with_device(run_python, built):
    """run_python, where the modules that were built can be imported."""

    def run(code, *arguments, env=None, timeout=300):
        path = [str(built), *filter(None, [os.environ.get("PYTHONPATH")])]
        if Path(pystreams.__file__).resolve().parent.parent == ROOT:
            path.append(str(ROOT))
        variables = {"PYTHONPATH": os.pathsep.join(path), **(env or {})}
        return run_python(code, *arguments, env=variables, timeout=timeout)

    return run
