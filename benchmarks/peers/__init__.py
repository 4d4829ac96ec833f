"""The libraries that are compared, each in a module of its own.

A peer's module has `calls()`, which prepares it and returns a callable for
each row that it can do, and a function that waits for all that they queued;
or `rows()`, which times itself.  START and PACKAGE are for startup.py: the
import, the first stream, the first record waited for; and the folder whose
size counts.
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
    """Row names to functions of a number of calls: nanoseconds per call."""
    peer = import_module(module)
    if hasattr(peer, "rows"):
        return peer.rows()
    calls, settle = peer.calls()
    return {name: timed(call, settle) for name, call in calls.items()}


def timed(call, settle):
    """A batch of calls, less what it takes to call a lambda that does
    nothing; what the batch queued is not left to the next."""
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
