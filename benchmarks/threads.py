"""What a call costs on many threads at once, each with a stream of its own.

    python benchmarks/threads.py [--device TYPE] [--peer] [--seconds S]
                                 [--runs N] [--call NAME]

The calls are record, record of an event with timing, wait and query, on 1 to
64 threads.  For each, prints the nanoseconds that the call takes its thread,
and their ratio to those on one thread.  These are medians of many short runs,
since the cost depends on the cores that the threads get.  Without the GIL, and
with a core for each thread, a ratio of 1 says that the threads share nothing;
with the GIL, the ratio is about the number of threads.  The call `nothing`, an
empty lambda, shows how much of the ratio is the processor's: its cores are
slower when all of them work.

--peer does the same with cuda.core, in turn with pystreams.  The last column
is the median of the ratios of two runs that came one after the other; each
library comes first in half of them.

Each call is measured in a process of its own, since the driver may be slower
after a million calls of another kind.
"""

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from functools import partial

import pystreams

COUNTS = (1, 2, 4, 8, 16, 32, 64)
CALLS = ("nothing", "record", "timed", "wait", "query")
# How many calls a thread makes between two readings of the clock.
BATCH = 200


def prepare(name, device):
    """The call that one thread makes again and again."""
    if name == "nothing":
        return lambda: None
    stream = pystreams.Stream(device)
    event = pystreams.Event(device.type, enable_timing=name == "timed")
    event.record(stream)
    stream.synchronize()
    if name in ("record", "timed"):
        return lambda: event.record(stream)
    if name == "wait":
        return lambda: stream.wait_event(event)
    return event.query


def prepare_peer(name, device):
    from cuda.core import Device, EventOptions

    if name == "nothing":
        return lambda: None
    theirs = Device(device.index)
    theirs.set_current()
    stream = theirs.create_stream()
    options = EventOptions(timing_enabled=name == "timed")
    event = stream.record(theirs.create_event(options))
    stream.sync()
    if name in ("record", "timed"):
        return lambda: stream.record(event)
    if name == "wait":
        return lambda: stream.wait(event)
    return lambda: event.is_done


def run(prepare, count, seconds):
    """The nanoseconds of a call: the sum of the threads' times, divided by the
    number of all their calls."""
    costs = []
    ready = threading.Barrier(count)

    def work():
        call = prepare()
        calls = 0
        ready.wait()
        start = now = time.perf_counter_ns()
        end = start + int(seconds * 1e9)
        while now < end:
            for _ in range(BATCH):
                call()
            calls += BATCH
            now = time.perf_counter_ns()
        costs.append((now - start, calls))

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times, calls = map(sum, zip(*costs, strict=True))
    return times / calls


def describe():
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    version = ".".join(map(str, sys.version_info[:3]))
    return (
        f"Python {version}, {'with' if gil else 'without'} the GIL, "
        f"{len(os.sched_getaffinity(0))} cores"
    )


def measure(name, device, libraries, options):
    alone = {}
    for count in COUNTS:
        print(f"{name:8}{count:8}", end="")
        costs = {library: [] for library in libraries}
        order = list(libraries)
        for _ in range(options.runs):
            for library in order:
                call = partial(libraries[library], name, device)
                costs[library].append(run(call, count, options.seconds))
            order.reverse()
        medians = {k: statistics.median(v) for k, v in costs.items()}
        for library, cost in medians.items():
            ratio = cost / alone.setdefault(library, cost)
            print(f"{cost:12.0f}{ratio:8.2f}", end="")
        if options.peer:
            pairs = zip(*costs.values(), strict=True)
            ratio = statistics.median(ours / theirs for ours, theirs in pairs)
            print(f"{ratio:10.3f}", end="")
        print(flush=True)


def main():
    parser = argparse.ArgumentParser(
        description="What calls cost on many threads."
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.04)
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--call", choices=CALLS)
    options = parser.parse_args()
    device = pystreams.device(options.device, 0)
    libraries = {"pystreams": prepare}
    if options.peer:
        libraries["cuda.core"] = prepare_peer
    if options.call is not None:
        measure(options.call, device, libraries, options)
        return
    print(f"{describe()}, device {device}")
    print(f"{'call':8}{'threads':>8}", end="")
    for library in libraries:
        print(f"{library:>12}{'ratio':>8}", end="")
    print(f"{'of peer':>10}" if options.peer else "", flush=True)
    for name in CALLS:
        subprocess.run([sys.executable, *sys.argv, "--call", name], check=True)


if __name__ == "__main__":
    main()
