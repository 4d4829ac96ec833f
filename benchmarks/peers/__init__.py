"""The libraries that are compared, each in a module of its own.

A peer's module has either `calls()` or `rows()`.  `calls()` prepares the
library and returns two things: {row: callable} for the rows that the library
can do, and a function that waits for all work that the callables queued.
`rows()` returns {row: function} in which each function times itself: it takes
a number of calls and returns the nanoseconds per call.

START and PACKAGE are for startup.py.  START has three pieces of code: the
import, the first stream, and the first record with the wait for it.  PACKAGE
is the package whose folder's size is measured.
"""

import time
from importlib import import_module

# In the order in which they are shown.
CUDA = {
    "raw": "benchmarks.peers.raw_cudart",
    "driver": "benchmarks.peers.raw_driver",
    "bare": "benchmarks.peers.bare",
    "pystreams": "benchmarks.peers.pystreams_cuda",
    "cuda.core": "benchmarks.peers.cuda_core",
    "CuPy": "benchmarks.peers.cupy",
    "torch": "benchmarks.peers.torch",
    "Numba": "benchmarks.peers.numba",
}
CPU = {
    "raw": "benchmarks.peers.raw_engine",
    "pystreams": "benchmarks.peers.pystreams_cpu",
    "queue.Queue": "benchmarks.peers.queue",
    "executor": "benchmarks.peers.executor",
    "asyncio": "benchmarks.peers.asyncio",
}
OURS = "pystreams"
FLOORS = ("raw", "driver", "bare")


def nothing():
    pass


def of(device):
    return CUDA if device == "cuda" else CPU


def load(module):
    """Return {row: function}; the function takes a number of calls, and
    returns the nanoseconds per call."""
    peer = import_module(module)
    if hasattr(peer, "rows"):
        return peer.rows()
    calls, settle = peer.calls()
    return {name: timed(call, settle) for name, call in calls.items()}


def timed(call, settle):
    """Return a function that times a batch of calls.

    It subtracts the time to call a lambda that does nothing, and waits for
    the work of the batch, so that the next batch finds the queues empty.
    """
    empty = lambda: None  # noqa: E731

    def batch(count):
        least = seconds(empty, count)
        took = seconds(call, count)
        settle()
        return max(took - least, 0) / count * 1e9

    return batch


def seconds(call, count):
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start
