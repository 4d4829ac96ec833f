"""Device types as tests use them: each makes streams, events and memory, and
holds a stream back.

Without a GPU, the CPU engine serves as "cuda" with two devices, and the test's
id says so.  PYSTREAMS_EMULATE_CUDA and PYSTREAMS_CPU_DEVICES in the
environment are kept.
"""

import contextlib
import ctypes
import gc
import os
import subprocess
import sys
import time
from typing import ClassVar

import pytest

COUNT_GPUS = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
assert driver.cuInit(0) == 0
assert driver.cuDeviceGetCount(ctypes.byref(count)) == 0
print(count.value)
"""


def has_gpu():
    """Return whether there is a GPU.  Asks the driver in a process of its own,
    because this process could not fork after cuInit."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT_GPUS], capture_output=True, text=True
    )
    return done.returncode == 0 and int(done.stdout) > 0


os.environ.pop("PYSTREAMS_ACCELERATOR", None)
os.environ.setdefault("PYSTREAMS_CPU_DEVICES", "2")
if "PYSTREAMS_EMULATE_CUDA" not in os.environ and not has_gpu():
    os.environ["PYSTREAMS_EMULATE_CUDA"] = "2"
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)

import pystreams  # noqa: E402
from pystreams import _C  # noqa: E402

TYPES = dict(_C.backends())
EMULATED = _C.is_emulated(TYPES["cuda"])
IDS = {"cpu": "cpu", "cuda": "cuda-emulated" if EMULATED else "cuda"}

# compute_sanitizer.sh sets SANITIZER.
COMPUTE_SANITIZER = os.environ.get("SANITIZER") == "compute-sanitizer"

libc = ctypes.CDLL(None)


class Gate:
    """Work on a stream that is not done until the gate is opened.

    It occupies one of the backend's threads, of which there are at least two.
    Opening a gate again does nothing.
    """

    # All semaphores.  They are never freed, because the backend's thread may
    # still be inside sem_wait after open().
    _kept: ClassVar[list] = []
    closed: ClassVar[set] = set()
    # The devices on which the kernel of Backend.sleep is loaded.  CUDA loads
    # no kernel while a stream is held back, so load this kernel earlier.
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
    """One device type, and the ways in which tests make its objects."""

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
        """Show compute-sanitizer, by a query, that an allocation on the stream
        is done.  Give up after 0.1 s, because a stream that is held back is
        never done."""
        end = time.monotonic() + 0.1
        while not stream.query() and time.monotonic() < end:
            pass

    def host(self, nbytes):
        """Return host memory that the backend copies without waiting."""
        return self.empty(nbytes, pin_memory=self.name != "cpu")

    def settle(self):
        """Wait for all work and free what has no references."""
        gc.collect()
        for index in range(self.count):
            self.synchronize(index)

    def filled(self, byte, nbytes=64, index=0, **options):
        """Return a block whose bytes all have this value already."""
        stream = options.get("stream") or self.current_stream(index)
        block = self.empty(nbytes, index, **options).fill_(byte, stream)
        stream.synchronize()
        return block

    def in_use(self, index=0):
        """Return the number of bytes that are allocated on the device."""
        stats = _C.memory_stats(self.type, index)
        return stats["allocated_bytes.all.current"]

    def settled_use(self):
        """Return in_use(), once earlier work is done and earlier tests'
        garbage is freed.  So only later operations can change the number."""
        self.settle()
        return self.in_use()

    def current_device(self):
        return _C.current_device(self.type)

    def current_stream(self, index=None):
        return _C.current_stream(self.type, index)

    def default_stream(self, index=None):
        return _C.default_stream(self.type, index)

    def synchronize(self, index=None):
        # With a time limit, this does not call cudaDeviceSynchronize, which
        # makes compute-sanitizer forget the order of work that it has seen.
        _C.synchronize(self.type, index, 60 if COMPUTE_SANITIZER else None)

    def sleep(self, stream, milliseconds):
        """Queue work that takes about this long.  On the engine, it never
        takes less."""
        if COMPUTE_SANITIZER and Gate.closed:
            pytest.skip(
                "compute-sanitizer starts no kernel during work that waits "
                "for the host"
            )
        per_millisecond = 1_000_000 if self.on_engine else 1_900_000
        _C.sleep(self.type, int(milliseconds * per_millisecond), stream)

    def gate(self, stream):
        """Keep the stream busy until the gate is opened."""
        return Gate(stream)

    def fill(self, stream, queued):
        """Fill the queue of a busy CPU engine stream, on which `queued`
        operations are pending already."""
        event = self.event()
        for _ in range(65_536 - queued):
            event.record(stream)

    def call(self, stream):
        """Queue something that a thread of the backend must do."""
        getpid = ctypes.cast(libc.getpid, ctypes.c_void_p).value
        _C.launch_host_function(stream, getpid)

    @contextlib.contextmanager
    def hold(self, stream):
        """Keep the stream busy during a with block."""
        gate = Gate(stream)
        del stream
        try:
            yield gate
        finally:
            gate.open()

    def wait_beside(self, stream):
        """Wait for a stream that should go on although another one is held
        back.  The wait has a time limit: on CUDA, the two streams may share a
        channel to the device, and then both are held back."""
        pystreams.wait([stream], timeout=5)

    def currents(self):
        """Return the calling thread's current device and all its current
        streams."""
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
