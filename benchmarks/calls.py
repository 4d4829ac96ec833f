"""What the hot calls cost: raw cudart, pystreams and torch, side by side.

    python benchmarks/calls.py [--batches 60] [--json]

Nanoseconds per call, the median of batches of 500 in a process for each
library, less what an empty lambda costs.  On a machine without a GPU the
CPU engine is measured, and there is neither raw cudart nor torch.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

CALLS = 500
ROWS = {
    "record": "event.record(stream)",
    "record_current": "event.record(), current stream",
    "record_timed": "event.record(stream), timing on",
    "event_query": "event.query(), done",
    "event_synchronize": "event.synchronize(), done",
    "record_query": "event.record(stream) + stream.query()",
    "stream_query": "stream.query()",
    "stream_synchronize": "stream.synchronize(), idle",
    "record_wait": "record + wait on another stream",
    "wait_stream": "stream.wait_stream(other)",
    "elapsed": "event.elapsed_time(other)",
    "event": "Event()",
    "event_life": "create + record + destroy an event",
    "stream_life": "create + destroy a stream",
    "current_stream": "current_stream()",
    "with_stream": "with stream: pass",
    "equal": "stream == other",
    "hash": "hash(stream)",
}
RAW_ROWS = {
    "record",
    "record_timed",
    "event_query",
    "event_synchronize",
    "stream_query",
    "stream_synchronize",
    "record_wait",
    "elapsed",
    "event_life",
    "stream_life",
}


def toolkit():
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    for layout in (home, f"{home}/targets/x86_64-linux"):
        for libraries in (f"{layout}/lib64", f"{layout}/lib"):
            if os.path.exists(f"{libraries}/libcudart_static.a"):
                return f"{layout}/include", libraries
    raise SystemExit(f"no libcudart_static.a under {home}; set CUDA_HOME")


def raw_rows(batches):
    include, libraries = toolkit()
    source = os.path.join(os.path.dirname(__file__), "raw_calls.c")
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/raw.so"
        command = ["cc", "-O2", "-fPIC", "-shared", source, "-o", library]
        command += [f"-I{include}", f"-L{libraries}", "-lcudart_static"]
        command += ["-ldl", "-lrt", "-lpthread"]
        subprocess.run(command, check=True)
        raw = ctypes.CDLL(library)
    if raw.prepare():
        raise SystemExit("raw cudart has no usable device")
    rows = {}
    for name in RAW_ROWS:
        row = getattr(raw, name)
        row.restype = ctypes.c_double
        row(CALLS)
        times = [row(CALLS) for _ in range(batches)]
        if min(times) < 0:
            raise SystemExit(f"raw {name} failed")
        rows[name] = statistics.median(times)
    return rows


def measure(call, batches, settle):
    """Nanoseconds a call; what a batch queued is not left to the next."""
    times = []
    for _ in range(batches + 3):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter_ns() - start) / CALLS)
        settle()
    return statistics.median(times[3:])


def python_rows(cuda, batches):
    """The rows of anything with torch.cuda's Stream and Event."""
    stream, other = cuda.Stream(), cuda.Stream()
    event = cuda.Event()
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    for recorded in (event, start, end):
        recorded.record(stream)
    stream.synchronize()
    assert event.query()

    def record_wait():
        event.record(stream)
        other.wait_event(event)

    def record_query():
        event.record(stream)
        stream.query()

    def event_life():
        cuda.Event().record(stream)

    def with_stream():
        with stream:
            pass

    # What asks about finished work comes before what records anew.
    calls = {
        "event_query": lambda: event.query(),
        "event_synchronize": lambda: event.synchronize(),
        "elapsed": lambda: start.elapsed_time(end),
        "record": lambda: event.record(stream),
        "record_current": lambda: event.record(),
        "record_timed": lambda: start.record(stream),
        "record_query": record_query,
        "stream_query": lambda: stream.query(),
        "stream_synchronize": lambda: stream.synchronize(),
        "record_wait": record_wait,
        "wait_stream": lambda: other.wait_stream(stream),
        "event": lambda: cuda.Event(),
        "event_life": event_life,
        "stream_life": lambda: cuda.Stream(),
        "current_stream": lambda: cuda.current_stream(),
        "with_stream": with_stream,
        "equal": lambda: stream == other,
        "hash": lambda: hash(stream),
    }
    settle = cuda.synchronize
    nothing = measure(lambda: None, batches, settle)
    return {
        name: max(measure(call, batches, settle) - nothing, 0.0)
        for name, call in calls.items()
    }


class CpuStreams:
    """torch.cuda's names for the CPU engine."""

    def __init__(self):
        import pystreams
        from pystreams import _C

        self.Stream = lambda: pystreams.Stream("cpu")
        self.Event = lambda enable_timing=False: pystreams.Event(
            "cpu", enable_timing=enable_timing
        )
        self.current_stream = lambda: _C.current_stream(0)
        self.synchronize = lambda: _C.synchronize(0)


def library_rows(library, batches):
    if library == "raw":
        return raw_rows(batches)
    if library == "torch":
        import torch

        return python_rows(torch.cuda, batches)
    if library == "cpu":
        return python_rows(CpuStreams(), batches)
    import pystreams

    return python_rows(pystreams.cuda, batches)


def run(library, batches):
    command = [sys.executable, __file__, "--library", library]
    done = subprocess.run(
        [*command, "--batches", str(batches), "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        print(json.dumps(library_rows(options.library, options.batches)))
        return

    import pystreams

    libraries = ["cpu"]
    if pystreams.cuda.is_available() and not pystreams.cuda.is_emulated():
        libraries = ["raw", "pystreams"]
        if importlib.util.find_spec("torch") is not None:
            libraries.append("torch")
    results = {name: run(name, options.batches) for name in libraries}
    if options.json:
        print(json.dumps(results, indent=2))
        return
    width = max(map(len, ROWS.values()))
    print("ns per call".ljust(width), *(f"{n:>10}" for n in libraries))
    for row, title in ROWS.items():
        cells = [results[name].get(row) for name in libraries]
        texts = ["-" if cell is None else f"{cell:.0f}" for cell in cells]
        print(title.ljust(width), *(f"{text:>10}" for text in texts))


if __name__ == "__main__":
    main()
