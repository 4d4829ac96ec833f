"""Press Ctrl-C at each line of the package's Python code that an operation
reaches, and print what is wrong afterwards, one line per fault:

    python tests/support/ctrl_c.py cpu|cuda [OPERATION...]

KeyboardInterrupt is raised where the signal's handler would raise it.  The
operation then raises it, too, unless the line is in a finalizer.  Afterwards,
the current streams and devices are what they were, no capture is open, nothing
waits for a notification, and everything is usable.
"""

import asyncio
import concurrent.futures
import contextlib
import faulthandler
import gc
import os
import re
import sys
import threading
import time
from pathlib import Path

from calls import LIMIT, World, array_interface
from short_calls import Native
from shortage import Lost, start_again

import pystreams
from pystreams import _C, accelerator, cuda, trace

PACKAGE = os.path.dirname(pystreams.__file__) + os.sep
# StreamFuture inherits methods from these files.  Their lines run between its
# own lines, and are interrupted, too.
FILES = {concurrent.futures._base.__file__, threading.__file__}
# More lines than any operation executes.
MOST = 5000
# It is a leak only if it recurs at each of this many further interrupts of the
# line.
AGAIN = 3


class Interrupt:
    """Raises KeyboardInterrupt once, at one of the package's lines."""

    def __init__(self, number):
        self.left = number
        self.where = None

    def __enter__(self):
        sys.settrace(self.enter)

    def __exit__(self, *exc_info):
        sys.settrace(None)

    def enter(self, frame, event, argument):
        name = frame.f_code.co_filename
        return self.line if name.startswith(PACKAGE) or name in FILES else None

    def line(self, frame, event, argument):
        if event == "line" and self.where is None:
            if self.left == 0:
                code = frame.f_code
                name = Path(code.co_filename).name
                self.where = f"{name}:{frame.f_lineno} ({code.co_name})"
                sys.settrace(None)
                raise KeyboardInterrupt
            self.left -= 1
        return self.line


def was_interrupted(error):
    """Return whether a call failed because of Ctrl-C.
    threading.Condition.wait may raise another error after it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def wait_in_vain(world):
    world.hold()
    world.event.record(world.stream)
    future = world.stream.submit(int)
    return lambda: pystreams.wait(
        [world.stream, world.event, future], timeout=0.002
    )


def wait_first(world):
    world.hold()
    future = world.other.submit(int)
    objects = [world.stream, world.other, future]
    return lambda: pystreams.wait(objects, return_when="FIRST_COMPLETED")


def as_completed(world):
    world.hold()
    objects = [world.other, world.stream, world.other.submit(int)]

    def call():
        for obj in pystreams.as_completed(objects):
            if obj is not world.stream:
                break

    return call


def result(world):
    def call():
        world.sleep(15)
        assert world.stream.submit(divmod, 7, 2).result(LIMIT) == (3, 1)

    return call


def cancel(world):
    world.hold()

    def call():
        future = world.stream.submit(int)
        future.add_done_callback(id)
        future.cancel()
        with contextlib.suppress(concurrent.futures.CancelledError):
            future.result(0.002)

    return call


def run_in(world, main):
    """Run main() in the world's loop, so that the loop can be run again
    afterwards."""
    task = world.loop.create_task(main())
    try:
        world.loop.run_until_complete(task)
    except KeyboardInterrupt:
        sys.settrace(None)
        task.cancel()
        # KeyboardInterrupt ends the loop once for each task that it passes
        # through.
        for _ in range(3):
            with contextlib.suppress(KeyboardInterrupt):
                ended = asyncio.wait([task], timeout=LIMIT)
                world.loop.run_until_complete(ended)
        assert task.done()
        if not task.cancelled():
            task.exception()
        raise


def await_(world):
    async def main():
        world.sleep(15)
        world.event.record(world.stream)
        await world.stream
        await world.event

    return lambda: run_in(world, main)


def await_in_vain(world):
    world.hold()

    async def main():
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(world.stream, 0.002)

    return lambda: run_in(world, main)


def async_for(world):
    async def main():
        world.sleep(15)
        objects = [world.stream, world.other, world.stream.submit(int)]
        async for _ in pystreams.as_completed(objects):
            pass

    return lambda: run_in(world, main)


def contexts(world):
    last = accelerator.device_count() - 1

    def call():
        with world.stream, accelerator.device_index(last):
            with accelerator.stream(world.other):
                accelerator.current_stream()
            accelerator.synchronize()
        with trace.subscribe(id, "event_record"):
            world.event.record(world.other)

    return call


def cuda_contexts(world):
    def call():
        with cuda.device(1), cuda.stream(world.stream):
            with cuda.device_of(world.buffer):
                cuda.current_stream()
            cuda.get_device_properties()

    return call


def cuda_graph(world):
    def call():
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=world.other):
            world.buffer.fill_(3)
            world.stream.wait_stream(world.other)
            world.other.wait_stream(world.stream)
        graph.replay()
        graph.reset()

    return call


def cuda_graph_in_vain(world):
    def call():
        with (
            contextlib.suppress(RuntimeError),
            cuda.graph(cuda.CUDAGraph(), stream=world.other),
        ):
            world.stream.wait_stream(world.other)
            world.buffer.fill_(3)
            world.other.synchronize()

    return call


OPERATIONS = {
    "wait in vain": wait_in_vain,
    "wait for the first": wait_first,
    "as_completed": as_completed,
    "result": result,
    "cancel": cancel,
    "await": await_,
    "await in vain": await_in_vain,
    "async for": async_for,
    "contexts": contexts,
}
CUDA_OPERATIONS = {
    "cuda contexts": cuda_contexts,
    "cuda.graph": cuda_graph,
    "cuda.graph in vain": cuda_graph_in_vain,
    "array interface": array_interface,
}


class Program:
    def __init__(self, name):
        self.world = World(name)
        self.world.loop.set_exception_handler(lambda loop, context: None)
        library = os.environ.get("SHORTAGE")
        self.native = Native(library).held if library else int
        self.faults = set()
        sys.unraisablehook = self.ignored

    def ignored(self, unraisable):
        # An interrupt of a finalizer, or of a generator that is closed when it
        # is freed, cannot be raised.  Since CPython 3.14, only the message
        # names the two.
        place = f"{unraisable.err_msg} {unraisable.object!r}"
        if unraisable.exc_type is KeyboardInterrupt and (
            "__del__" in place or "generator object" in place
        ):
            self.interrupts += 1
        else:
            sys.__unraisablehook__(unraisable)

    def fault(self, operation, text):
        text = re.sub(r"0x[0-9a-f]+", "0x...", text)
        line = f"{self.world.name}, {operation}: {text}"
        if line not in self.faults:
            self.faults.add(line)
            print(line, flush=True)

    def held(self):
        gc.collect()
        return self.native(), len(os.listdir("/proc/self/fd"))

    def places(self):
        return [
            (
                _C.current_device(kind),
                [
                    _C.current_stream(kind, i).native_handle
                    for i in range(_C.device_count(kind))
                ],
            )
            for _, kind in _C.backends()
        ]

    def grown(self, before, patience):
        """Return how much more is held than before.  Waits up to `patience`
        seconds for this to become zero, because a notification that was
        cancelled too late is still called, and is freed only then."""
        end = time.monotonic() + patience
        while True:
            more = [
                max(0, b - a) for a, b in zip(before, self.held(), strict=True)
            ]
            if not any(more) or time.monotonic() >= end:
                return more
            time.sleep(0.001)

    def press(self, operation, prepare, number, patience=0):
        """Interrupt the operation at its line with this number.  Return the
        line's place, or None if there are fewer lines, and how much more the
        process holds than before."""
        call = prepare(self.world)
        places, before = self.places(), self.held()
        interrupt = Interrupt(number)
        self.interrupts = 0
        try:
            with interrupt:
                call()
        except BaseException as error:
            if not was_interrupted(error):
                raise
            self.interrupts += 1
        where = interrupt.where
        if where is not None and not self.interrupts:
            self.fault(operation, f"{where}: the interrupt was lost")
        # If the interrupt came after subscribe() but before the with block,
        # nothing else closes the subscription.
        for subscription in list(trace._subscriptions):
            subscription.close()
        more = self.grown(before, patience)
        if self.places() != places:
            self.fault(operation, f"{where}: {self.places()} are current")
            for kind in (kind for _, kind in _C.backends()):
                for i in range(_C.device_count(kind)):
                    _C.set_stream(_C.default_stream(kind, i))
                _C.set_device(kind, 0)
        for stream in (self.world.stream, self.world.other):
            if stream.is_capturing():
                self.fault(operation, f"{where}: {stream} is capturing")
        del call
        lost = self.world.settle()
        try:
            for stream in (self.world.stream, self.world.other):
                stream.record_event().synchronize(LIMIT)
                assert stream.submit(int, "7").result(LIMIT) == 7
        except Exception as error:
            lost.append(f"then {error!r}")
        for text in lost:
            self.fault(operation, f"{where}: {text}")
        if lost:
            raise Lost
        return where, more

    def run(self, operation, prepare):
        # The first uses create objects that are kept forever, so make the
        # first uses now.
        for _ in range(AGAIN):
            self.press(operation, prepare, MOST)
        for number in range(MOST):
            where, more = self.press(operation, prepare, number)
            seen = [more]
            while any(more) and len(seen) <= AGAIN:
                seen.append(self.press(operation, prepare, number, LIMIT)[1])
                more = [min(counts) for counts in zip(*seen, strict=True)]
            for kind, least in zip(("blocks", "files"), more, strict=True):
                if least:
                    self.fault(operation, f"{where}: {kind} left: {seen}")
            if where is None:
                return number


def main(name, *chosen):
    gc.disable()
    program = Program(name)
    operations = OPERATIONS | (CUDA_OPERATIONS if name == "cuda" else {})
    names = [o for o in operations if not chosen or o in chosen]
    for number, operation in enumerate(names):
        print(operation, end=" ", file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(LIMIT * 8, exit=True)
        try:
            lines = program.run(operation, operations[operation])
        except Lost:
            start_again(names[number + 1 :], len(chosen))
        else:
            print(f"({lines} lines)", file=sys.stderr)
    faulthandler.cancel_dump_traceback_later()
    program.world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
