"""The time to a program's first stream and record, compared with the start of
a bare interpreter, and the size of the package on disk.  Each library is
measured in processes of its own."""

import importlib
import subprocess
import sys
import time

from benchmarks.peers import FLOORS, OURS, of
from benchmarks.processes import PATIENCE, complaint, environment
from benchmarks.tables import Cell, Row, Table

LIMIT_MS = 20
ROUNDS = 7
STEPS = ("import", "first stream", "first record, waited for")
CLOCK = "import time; print(time.perf_counter())\n"
SIZE = """
from importlib import import_module
from pathlib import Path
files = Path(import_module({!r}).__file__).parent.rglob("*")
print(sum(f.stat().st_size for f in files
          if f.is_file() and "__pycache__" not in f.parts))
"""


def tables(device, quick):
    peers = {
        library: importlib.import_module(module)
        for library, module in of(device).items()
        if library not in FLOORS
    }
    rounds = 1 if quick else ROUNDS
    bare = Cell.of([clocks(CLOCK)[0] for _ in range(3 * rounds)])
    rows = [Row(f"{step}, ms", {}) for step in STEPS]
    size = Row("its own folder, MB", {})
    for library, peer in peers.items():
        code = "".join(f"{step}\n{CLOCK}" for step in peer.START)
        try:
            clocks(code)  # not measured: fills the page cache
            found = [clocks(code) for _ in range(rounds)]
            for row, samples in zip(
                rows, zip(*found, strict=True), strict=True
            ):
                row.cells[library] = Cell.of(samples)
            if hasattr(peer, "PACKAGE"):
                (nbytes,) = output(SIZE.format(peer.PACKAGE))
                size.cells[library] = Cell.of([nbytes / 1e6])
        except (subprocess.SubprocessError, ValueError) as error:
            why = complaint(getattr(error, "stderr", None) or str(error))
            rows[0].cells[library] = Cell(why=why)
    ours = rows[0].cells[OURS].median
    rows[0].cells["bare"] = bare
    rows[0].target = f"≤ bare + {LIMIT_MS}"
    rows[0].met = None if ours is None else ours <= bare.median + LIMIT_MS
    yield Table(
        "startup",
        "Start-up: since the process began",
        ["bare", *peers],
        [*rows, size],
    )


def output(code):
    """The numbers that a program prints.  It writes .pyc files, so that its
    imports are compiled only once, as they are for a user."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(PYTHONDONTWRITEBYTECODE=""),
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return [float(word) for word in done.stdout.split()]


def clocks(code):
    """Milliseconds from the call to each CLOCK in the code.  perf_counter() is
    the same clock in all processes."""
    start = time.perf_counter()
    return [(clock - start) * 1e3 for clock in output(code)]
