"""What a trace point adds to a record of an event, without a subscriber and
with one callback.

    python benchmarks/trace_cost.py [--batches 400] [--json]

Without a subscriber, the call is core's ps_event_record, on a device that does
nothing.  Core is built twice from the checkout, with trace points and without,
and batches of the two alternate.  With a callback, the call is Event.record
from Python, on the CPU engine; the callback is empty.  Prints medians, in
nanoseconds per call.  Exits with 1 if a trace point without a subscriber costs
over 1 ns.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import pystreams

CALLS = 20_000
LIMIT = 1.0
HERE = Path(__file__).resolve().parent
CORE = sorted((HERE.parent / "csrc" / "core").glob("*.c"))
FLAGS = ["-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
FLAGS += ["-D_GNU_SOURCE", f"-I{HERE.parent / 'csrc' / 'include'}"]


def build(library, *options):
    source = HERE / "trace_cost.c"
    subprocess.run(
        ["cc", *FLAGS, *options, source, *CORE, "-o", library, "-pthread"],
        check=True,
    )
    built = ctypes.CDLL(str(library))
    if built.prepare():
        raise SystemExit("core does not take the device")
    built.record.restype = ctypes.c_double
    built.record(CALLS)
    return built


def core_rows(batches):
    with tempfile.TemporaryDirectory() as folder:
        without = build(
            Path(folder, "without.so"), "-include", HERE / "no_trace.h"
        )
        present = build(Path(folder, "present.so"))
    pairs = [
        (without.record(CALLS), present.record(CALLS)) for _ in range(batches)
    ]
    return {
        "without": statistics.median(pair[0] for pair in pairs),
        "present": statistics.median(pair[1] for pair in pairs),
        "difference": statistics.median(b - a for a, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
    }


def python_rows(batches):
    stream = pystreams.Stream("cpu")
    event = pystreams.Event("cpu", enable_timing=False)
    calls = CALLS // 20

    def record():
        start = time.perf_counter_ns()
        for _ in range(calls):
            event.record(stream)
        return (time.perf_counter_ns() - start) / calls

    untraced, traced = [], []
    for _ in range(batches):
        untraced.append(record())
        with pystreams.trace.subscribe(lambda record: None, "event_record"):
            traced.append(record())
    return {
        "untraced": statistics.median(untraced),
        "traced": statistics.median(traced),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    core = core_rows(options.batches)
    python = python_rows(max(options.batches // 10, 1))
    if options.json:
        print(json.dumps({"core": core, "python": python}, indent=2))
    else:
        print("ns per record")
        print(f"  in core, without trace points  {core['without']:8.2f}")
        print(f"  in core, nobody wants it       {core['present']:8.2f}")
        print(f"    difference                   {core['difference']:8.2f}")
        print(f"    ratio                        {core['ratio']:8.3f}")
        print(f"  in Python, nobody wants it     {python['untraced']:8.0f}")
        print(f"  in Python, one empty callback  {python['traced']:8.0f}")
    raise SystemExit(core["difference"] > LIMIT)


if __name__ == "__main__":
    main()
