"""What a trace point costs on a record: where nobody wants it, and where one
callback does.

    python benchmarks/trace_cost.py [--batches 400] [--json]

The first is core's ps_event_record over a device that does nothing, built
from the checkout as it is and again without trace points, in batches that
alternate; the second is Event.record on the CPU engine, from Python, with an
empty callback.  Medians, in nanoseconds per call.  Fails where a point that
nobody wants costs over 1 ns.
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
