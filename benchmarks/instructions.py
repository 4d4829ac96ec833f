"""How many instructions a hot call takes on the CPU engine.

    python benchmarks/instructions.py [--check | --record] [--plant]

valgrind counts them, so a busy machine does not change the result.  A count is
the difference between a loop and one twice as long, divided by the number of
calls.  The count of a loop that does nothing is subtracted from it.  The
engine's workers are idle.  Prints each count next to the one recorded for this
Python in instructions.json.

--check exits with 1 if a count is more than 10% above its record, or if the
check is impossible, in which case it prints the reason.  --record writes the
record.  --plant adds the read of an attribute to each call, so that --check
must fail.
"""

import argparse
import glob
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import repeat
from pathlib import Path

RECORDS = Path(__file__).with_suffix(".json")
BUILD = f"{sys.implementation.cache_tag}{sys.abiflags}-{platform.machine()}"
ALLOWED = 1.10
CALLS = 300
REPEATS = 3
# Queries come before records: a query of an event that has been recorded anew
# runs different instructions.
STATEMENTS = {
    "nothing": "pass",
    "event.query(), done": "done.query()",
    "event.query(), not done": "pending.query()",
    "event.synchronize(), done": "done.synchronize()",
    "event.elapsed_time(other)": "start.elapsed_time(end)",
    "stream.query()": "stream.query()",
    "stream.synchronize(), idle": "stream.synchronize()",
    "stream.wait_event(done)": "stream.wait_event(done)",
    "stream.wait_event(not done)": "waiting.wait_event(pending)",
    "stream.wait_stream(idle)": "other.wait_stream(stream)",
    "event.record(idle)": "done.record(stream)",
    "event.record(busy)": "pending.record(busy)",
    "event.record(), current stream": "done.record()",
    "Event()": "Event()",
    "Event(enable_timing=True)": "Event(enable_timing=True)",
    "Event().record(stream)": "Event().record(stream)",
    "Stream()": "Stream()",
    "current_stream()": "current_stream()",
    "with stream": "with stream: pass",
    "with cuda.stream(stream)": "with use(stream): pass",
    "with device(current)": "with device(0): pass",
    "with device(other)": "with device(1): pass",
    "stream == other": "stream == other",
    "hash(stream)": "hash(stream)",
    "stream.submit(fn)": "busy.submit(nothing)",
}


def names():
    """The names that the statements use."""
    from pystreams import cuda

    stream, busy = cuda.Stream(), cuda.Stream()
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    done, pending = cuda.Event(), cuda.Event()
    for event in (start, end, done):
        event.record(stream)
        event.synchronize()
    with busy:
        cuda._sleep(3_600_000_000_000)
    pending.record(busy)
    return {
        "repeat": repeat,
        "stream": stream,
        "other": cuda.Stream(),
        "busy": busy,
        "waiting": cuda.Stream(),
        "start": start,
        "end": end,
        "done": done,
        "pending": pending,
        "nothing": lambda: None,
        "Event": cuda.Event,
        "Stream": cuda.Stream,
        "current_stream": cuda.current_stream,
        "use": cuda.stream,
        "device": cuda.device,
    }


def run_loops(plant):
    """Run the loops.  At each os.getppid(), valgrind writes the count so far
    to a file of its own and starts a new one."""
    import gc

    known = names()
    loops = []
    for name, statement in STATEMENTS.items():
        if plant and name != "nothing":
            statement += "; stream.device_index"
        source = f"def loop(n):\n for _ in repeat(None, n):\n  {statement}"
        exec(source, known)
        loops.append(known["loop"])
    gc.disable()
    for loop in loops:
        loop(CALLS)
    for loop in loops:
        for _ in range(REPEATS):
            os.getppid()
            loop(CALLS)
            os.getppid()
            loop(2 * CALLS)
    os.getppid()
    os._exit(0)


def counted(plant):
    """Instructions for a call, by the name of the row."""
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "PYSTREAMS_EMULATE_CUDA": "2",
    }
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/counts"
        command = ["setarch", "-R", "valgrind", "--tool=callgrind"]
        command += [f"--callgrind-out-file={out}", "--dump-before=getppid"]
        command += [sys.executable, __file__, "--loops"]
        subprocess.run(
            command + ["--plant"] * plant,
            env=environment,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        totals = []
        # Each getppid() ends a part.  Part 1 has the instructions before the
        # first measured loop.
        for part in range(2, len(glob.glob(f"{out}.*")) + 1):
            text = Path(f"{out}.{part}").read_text()
            totals.append(int(re.search(r"^totals: (\d+)", text, re.M)[1]))
    pairs = zip(totals[::2], totals[1::2], strict=True)
    costs = [(double - single) / CALLS for single, double in pairs]
    rows = {
        name: statistics.median(costs[REPEATS * i : REPEATS * (i + 1)])
        for i, name in enumerate(STATEMENTS)
    }
    nothing = rows.pop("nothing")
    return {name: round(row - nothing) for name, row in rows.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true")
    action.add_argument("--record", action="store_true")
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--loops", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loops:
        run_loops(options.plant)

    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    record = records.get(BUILD, {})
    reason = None
    if options.check and not record:
        reason = f"{RECORDS.name} has no record for {BUILD}"
    for tool in ("valgrind", "setarch"):
        if shutil.which(tool) is None:
            reason = f"there is no {tool}"
    if reason is not None:
        print(f"instructions are not counted: {reason}")
        return not options.check

    rows = counted(options.plant)
    for name, row in rows.items():
        print(f"{name:32} {row:>8} {record.get(name, '-'):>8}")
    if options.record:
        records[BUILD] = rows
        RECORDS.write_text(json.dumps(records, indent=2) + "\n")
    if not options.check:
        return False
    # A row without a record is compared with itself, and so passes.
    above = [n for n in rows if rows[n] > ALLOWED * record.get(n, rows[n])]
    for name in above:
        print(f"{name}: more than {ALLOWED - 1:.0%} above its record")
    return bool(above)


if __name__ == "__main__":
    sys.exit(main())
