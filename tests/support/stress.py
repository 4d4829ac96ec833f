"""Random waits, records, callables and allocations on many threads at once,
followed by a check of all results.

python tests/support/stress.py DEVICE SECONDS [SEED [THREADS]]

On a GPU, CuPy and Numba run at the same time, if they are installed; their
callbacks take the GIL on the driver's thread.  A hang ends the program with a
traceback of every thread.
"""

import asyncio
import contextlib
import faulthandler
import gc
import importlib
import os
import random
import sys
import threading
import time
import warnings

import pystreams
from pystreams import _C

THREADS = 8
STREAMS = 12
LONG = 60
# If no operation completes for this many seconds, the program counts as hung.
STALL = 30
FULL = 65_600


def open_files():
    return len(os.listdir("/proc/self/fd"))


class Log(list):
    """The log of one stream's callables.  It outlives the stream."""

    __hash__ = object.__hash__


class Lane:
    """A stream that all threads use, and its log."""

    def __init__(self, device):
        self.stream = pystreams.Stream(device)
        self.log = Log()


class Stress:
    def __init__(self, device, seconds, threads):
        self.threads = threads
        self.device = pystreams.device(device, 0)
        self.type = pystreams.Stream(self.device).device_type
        self.seconds = seconds
        self.lanes = [Lane(self.device) for _ in range(STREAMS)]
        self.events = [pystreams.Event(device) for _ in range(STREAMS)]
        # For each thread, how many callables it submitted to each log's
        # stream.
        self.given = []
        self.operations = dict(OPERATIONS)
        self.on_gpu = self.type == 1 and not _C.is_emulated(self.type)
        if self.on_gpu:
            self.add_theirs()
        self.done = dict.fromkeys(self.operations, 0)
        self.errors = []
        self.noted, self.noting = 0, threading.Lock()

    def add_theirs(self):
        for name, (operation, weight) in THEIRS.items():
            with warnings.catch_warnings(), contextlib.suppress(ImportError):
                warnings.simplefilter("ignore")
                setattr(self, name, importlib.import_module(f"{name}.cuda"))
                self.operations[operation] = weight

    def prepare(self, rng):
        """Do everything once, on a single thread.  While a GPU's driver loads
        a kernel, it waits for the callables of all streams, and blocks the
        calls that they make."""
        faulthandler.dump_traceback_later(2 * LONG, exit=True)
        given = {}
        self.given.append(given)
        for name in self.operations:
            getattr(self, name)(rng, given)
            _C.synchronize(self.type, self.device)
        self.files = open_files()

    def run(self, seed):
        self.prepare(random.Random(seed))
        self.end = time.monotonic() + self.seconds
        work = [
            threading.Thread(target=self.work, args=(random.Random(seed + i),))
            for i in range(self.threads)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        if self.errors:
            raise self.errors[0]
        faulthandler.dump_traceback_later(2 * LONG, exit=True)
        self.check()
        faulthandler.cancel_dump_traceback_later()

    def work(self, rng):
        given = {}
        self.given.append(given)
        names, weights = zip(*self.operations.items(), strict=True)
        try:
            while not self.is_over() and not self.errors:
                (name,) = rng.choices(names, weights)
                try:
                    getattr(self, name)(rng, given)
                except ValueError as error:
                    if "closed" not in str(error):
                        raise
                self.done[name] += 1
                self.note_progress()
        except BaseException as error:
            self.errors.append(error)

    def is_over(self):
        """Return whether the time is up and all operations have been done,
        except for the rarest ones.  On a busy machine, the time may be too
        short for a rare operation."""
        return time.monotonic() >= self.end and all(
            number > 0 or self.operations[name] < 1
            for name, number in self.done.items()
        )

    def note_progress(self):
        if time.monotonic() < self.noted + 1:
            return
        with self.noting:
            self.noted = time.monotonic()
            faulthandler.dump_traceback_later(STALL, exit=True)

    def stream(self, rng):
        return rng.choice(self.lanes).stream

    def some(self, rng):
        return [self.stream(rng), rng.choice(self.events)]

    def record(self, rng, given):
        rng.choice(self.events).record(self.stream(rng))

    def order(self, rng, given):
        self.stream(rng).wait_event(rng.choice(self.events))
        self.stream(rng).wait_stream(self.stream(rng))

    def query(self, rng, given):
        for work in self.some(rng):
            work.query()

    def synchronize(self, rng, given):
        work = rng.choice(self.some(rng))
        if rng.random() < 0.5:
            work.synchronize(rng.choice([None, LONG]))
        else:
            with contextlib.suppress(TimeoutError):
                work.synchronize(rng.choice([0, 0.001]))

    def synchronize_device(self, rng, given):
        with contextlib.suppress(TimeoutError):
            timeout = rng.choice([0, 0.001, 0.01])
            _C.synchronize(self.type, self.device, timeout)

    def pause(self, rng, given):
        _C.sleep(self.type, rng.randrange(1_000_000), self.stream(rng))

    def renew(self, rng, given):
        index = rng.randrange(STREAMS)
        old, self.lanes[index] = self.lanes[index], Lane(self.device)
        if rng.random() < 0.5:
            old.stream.close()
        self.events[rng.randrange(STREAMS)] = pystreams.Event(self.device.type)

    def submit(self, rng, given):
        lane = rng.choice(self.lanes)
        stream, log = lane.stream, lane.log
        me = threading.get_ident()

        def callable(number, nap, other):
            time.sleep(nap)
            if other is not None:
                with contextlib.suppress(ValueError):
                    other.submit(int)
            log.append((me, number))

        for _ in range(rng.randrange(8)):
            nap = rng.choice([0, 0, 0, 0.001])
            other = rng.choice([None, None, self.stream(rng)])
            if self.on_gpu:
                # Other threads create streams at the same time.  While the
                # driver creates a stream, a callable that calls the driver may
                # have to wait for it.  The driver may wait for that callable,
                # which is a deadlock.
                other = None
            number = given.get(log, 0)
            stream.submit(callable, number, nap, other)
            given[log] = number + 1

    def result(self, rng, given):
        future = self.stream(rng).submit(divmod, 7, 2)
        if rng.random() < 0.3 and future.cancel():
            return
        assert future.result(LONG) == (3, 1)

    def wait(self, rng, given):
        objects = self.some(rng) + self.some(rng)
        objects.append(self.stream(rng).submit(int))
        how = rng.choice(["ALL_COMPLETED", "FIRST_COMPLETED"])
        timeout = rng.choice([None, 0.001, LONG])
        done, not_done = pystreams.wait(objects, timeout, how)
        assert done | not_done == set(objects)
        if timeout is None:
            assert done and (how == "FIRST_COMPLETED" or not not_done)
        with contextlib.suppress(TimeoutError):
            list(pystreams.as_completed(objects, 0.005))

    def awaits(self, rng, given):
        async def waiting(work):
            await work

        async def main():
            works = [w for _ in range(20) for w in self.some(rng)]
            tasks = [asyncio.ensure_future(waiting(w)) for w in works]
            for task in tasks[:5]:
                task.cancel()
            for outcome in await asyncio.wait_for(
                asyncio.gather(*tasks, return_exceptions=True), LONG
            ):
                if isinstance(outcome, Exception):
                    raise outcome

        asyncio.run(main())

    def memory(self, rng, given):
        """Fill a buffer on one stream, and copy it on another."""
        first = pystreams.Stream(self.device)
        second = pystreams.Stream(self.device)
        nbytes, byte = rng.choice([10, 5000, 200_000]), rng.randrange(256)
        block = pystreams.empty(nbytes, device=self.device, stream=first)
        target = bytearray(nbytes)
        block.fill_(byte, stream=first)
        second.wait_stream(first)
        block.record_stream(second)
        seen = second.submit(int)
        block.copy_to(target, stream=second)
        assert seen.done() and target == bytes([byte]) * nbytes

    def fill_queue(self, rng, given):
        """Queue more than a queue can hold, while a callable keeps the queue
        from moving."""
        stream, go = pystreams.Stream(self.device), threading.Event()
        event = pystreams.Event(self.device.type)
        held = stream.submit(go.wait, LONG)
        threading.Timer(0.02, go.set).start()
        for _ in range(FULL):
            event.record(stream)
        future = stream.submit(int)
        event.synchronize(LONG)
        assert held.result(LONG) and future.result(LONG) == 0

    def cupy_callback(self, rng, given):
        called = threading.Event()
        theirs = self.cupy.Stream(non_blocking=True)
        self.mix_with(theirs, rng)
        theirs.launch_host_func(lambda _: called.set(), None)
        assert called.wait(LONG)

    def numba_done(self, rng, given):
        self.numba.current_context()
        theirs = self.numba.stream()
        if not hasattr(theirs.handle, "value"):
            theirs.handle = Handle(theirs.handle)

        async def main():
            await asyncio.wait_for(theirs.async_done(), LONG)

        self.mix_with(theirs, rng)
        asyncio.run(main())

    def mix_with(self, theirs, rng):
        """Order another library's stream after one of our streams, and one of
        our streams after it."""
        pystreams.ExternalStream(theirs).wait_stream(self.stream(rng))
        rng.choice(self.events).record(theirs)
        self.stream(rng).wait_stream(theirs)

    def check(self):
        _C.synchronize(self.type, self.device, LONG)
        wanted = {}
        for given in self.given:
            for log, number in given.items():
                wanted[log] = wanted.get(log, 0) + number
        for log, number in wanted.items():
            assert len(log) == number
            latest = {}
            for thread, turn in log:
                assert turn == latest.get(thread, -1) + 1
                latest[thread] = turn
        for event in self.events:
            event.synchronize(LONG)
            assert event.query()
        gc.collect()
        stats = _C.memory_stats(self.type, self.device)
        assert stats["allocated_bytes.all.current"] == 0, stats
        assert open_files() < self.files + 10


# How often each operation is done.
OPERATIONS = {
    "record": 20,
    "order": 20,
    "query": 20,
    "synchronize": 5,
    "synchronize_device": 2,
    "pause": 5,
    "renew": 5,
    "submit": 10,
    "result": 10,
    "wait": 5,
    "awaits": 2,
    "memory": 5,
    "fill_queue": 0.05,
}


# For each other library, its operation and how often it is done.
THEIRS = {"cupy": ("cupy_callback", 5), "numba": ("numba_done", 5)}


class Handle(int):
    """A handle with a `value`, which numba-cuda 0.30 uses.  Since Numba began
    to use cuda.bindings, its stream handles lack the `value`."""

    @property
    def value(self):
        return int(self)


def main(device, seconds, seed=None, threads=THREADS):
    seconds = float(seconds)
    seed = int(seed) if seed is not None else random.randrange(1 << 30)
    sys.setswitchinterval(1e-4)
    stress = Stress(device, seconds, int(threads))
    try:
        stress.run(seed)
    except BaseException:
        print(f"with the seed {seed}", file=sys.stderr)
        raise
    print(" ".join(f"{name}={n}" for name, n in stress.done.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
