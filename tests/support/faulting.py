"""Calls every public name after a GPU has faulted or has run out of memory.

python tests/support/faulting.py none|fault|refute|memory

Prints the outcome of each call, as JSON: null, or the exception's type, code
and text.  If a call hangs, ends with a traceback of every thread.
"""

import asyncio
import contextlib
import faulthandler
import gc
import json
import sys

import pystreams
from pystreams import _C, accelerator, cuda

LONG = 30
PAUSE = 100_000_000
SIZE = 64


class Objects:
    """One object of each type, in use.  break_down() makes `stream` fail, but
    only after a pause, in which it queues more work behind the failure."""

    def __init__(self):
        self.stream = cuda.Stream()
        self.generic = pystreams.Stream("cuda:0")
        self.owner = cuda.Stream()
        self.external = cuda.ExternalStream(self.owner)
        self.default = cuda.default_stream()
        self.event = cuda.Event(enable_timing=True)
        self.timed = pystreams.Event("cuda:0")
        self.fresh = cuda.Event()
        self.partition = pystreams.Partition(1, "cuda:0")
        self.block = pystreams.empty(SIZE, device="cuda:0").zero_()
        self.pinned = pystreams.empty(SIZE, device="cuda:0", pin_memory=True)
        self.timed.record(self.stream)
        self.event.record(self.stream)
        # The first use of some functions creates and loads things, and may
        # wait for all work.  So use these functions now, while all work ends.
        self.generic.wait_event(self.event)
        self.stream.submit(int).result(LONG)
        cuda.synchronize()

    def break_down(self, cause):
        _C.sleep(1, PAUSE, self.stream)
        cause(self.stream.cuda_stream)
        self.event.record(self.stream)
        self.behind = self.stream.submit(int)
        self.generic.wait_event(self.event)
        self.block.fill_(1, stream=self.stream)

    def arguments(self):
        """Return arguments for the names that cannot be called without
        arguments."""
        return {
            "CudaError": (1,),
            "can_device_access_peer": (0, 0),
            "check_error": (0,),
            "copy_": (bytes(SIZE),),
            "copy_to": (bytearray(SIZE),),
            "device": (0,),
            "device_index": (0,),
            "device_of": (self.block,),
            "elapsed_time": (self.event,),
            "export_dot": ("graph.dot",),
            "export_graph_data": ("graph.pickle",),
            "ExternalStream": (self.owner,),
            "fill_": (2,),
            "from_address": (0, 0),
            "from_ipc_handle": ("cuda:0", bytes(64)),
            "GreenContext": (1,),
            "get_stream_from_external": (self.owner.cuda_stream,),
            "graph": (cuda.CUDAGraph(),),
            "record_stream": (self.external,),
            "set_device": (0,),
            "set_device_idx": (0,),
            "set_device_index": (0,),
            "set_peer_access": (0, 0, True),
            "set_pool_threshold": (None,),
            "set_stream": (self.generic,),
            "stream": (self.generic,),
            "StreamContext": (self.generic,),
            "submit": (int,),
            "wait_event": (self.event,),
            "wait_stream": (self.stream,),
        }


def outcome(function):
    try:
        function()
    except BaseException as error:
        name, code = type(error).__name__, getattr(error, "error_code", None)
        return [name, code, str(error)]


async def awaiting(work):
    await work


def with_block(context):
    with context:
        cuda.Event().record()


def every_call(objects):
    """Yield (name, function) for each public name, with close() last."""
    arguments = objects.arguments()
    names = [name for name in vars(objects) if name != "behind"]
    for name in names:
        one = getattr(objects, name)
        members = [m for m in dir(one) if not m.startswith("_")]
        for member in sorted(members, key=lambda m: m == "close"):
            if member == "close":
                continue
            yield f"{name}.{member}", call(one, member, arguments)
        yield f"{name}.__repr__", lambda one=one: repr(one)
    for module in (cuda, accelerator):
        for member in module.__all__:
            name = f"{module.__name__}.{member}"
            yield name, call(module, member, arguments)
    for name in ("stream", "generic", "external", "event"):
        one = getattr(objects, name)
        yield f"await {name}", lambda one=one: asyncio.run(awaiting(one))
        yield f"wait {name}", lambda one=one: pystreams.wait([one], LONG)
    yield "with stream", lambda: with_block(objects.stream)
    yield "with cuda.device", lambda: with_block(cuda.device(0))
    yield (
        "a new stream",
        lambda: cuda.Stream().synchronize(),
    )
    yield (
        "submit and result",
        lambda: objects.external.submit(int).result(LONG),
    )
    yield "behind.result", lambda: objects.behind.result(LONG)
    yield "block.__dlpack__", lambda: objects.block.__dlpack__(stream=-1)
    yield (
        "block.__cuda_array_interface__",
        lambda: objects.block.__cuda_array_interface__,
    )
    yield "block slice", lambda: objects.block[1:3].zero_()
    yield "empty", lambda: pystreams.empty(1 << 20, device="cuda:0").zero_()
    yield (
        "a stream of a partition",
        lambda: with_block(objects.partition.Stream()),
    )
    yield "_sleep", lambda: cuda._sleep(1)
    for name in names:
        if hasattr(getattr(objects, name), "close"):
            yield f"{name}.close", getattr(objects, name).close


def call(one, member, arguments):
    def calls():
        found = getattr(one, member)
        if callable(found):
            found(*arguments.get(member, ()))

    return calls


def fill_up():
    """Allocate all available memory, in ever smaller blocks."""
    blocks, size = [], 4 << 30
    while size >= 64 << 20:
        try:
            blocks.append(pystreams.empty(size, device="cuda:0"))
        except pystreams.OutOfMemoryError:
            size >>= 2
    cuda.synchronize()
    return blocks


def main(cause):
    faulthandler.dump_traceback_later(4 * LONG, exit=True)
    objects, hoard = Objects(), []
    if cause == "none":
        objects.behind = objects.stream.submit(int)
    elif cause == "memory":
        objects.behind = objects.stream.submit(int)
        hoard = fill_up()
    else:
        from kernels import Kernels

        objects.break_down(getattr(Kernels(), cause))
        first = outcome(objects.stream.synchronize)
    outcomes = {name: outcome(f) for name, f in every_call(objects)}
    if cause in ("fault", "refute"):
        outcomes["first"] = first
    hoard.clear()
    if cause == "memory":
        with contextlib.suppress(pystreams.AcceleratorError):
            cuda.synchronize()
        pystreams.empty(4 << 30, device="cuda:0").zero_()
        cuda.synchronize()
    del objects
    gc.collect()
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
