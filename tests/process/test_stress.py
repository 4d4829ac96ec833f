"""Runs stress.py for a few seconds, or for as many as PYSTREAMS_STRESS
says."""

import os
import random

from gil import FREE
from places import SUPPORT

PROGRAM = SUPPORT / "stress.py"
SECONDS = os.environ.get("PYSTREAMS_STRESS", "1.5")
# Without the GIL, the threads really run at the same time.
THREADS = "64" if FREE else "8"


def test_stress(backend, run_python):
    seed = str(random.randrange(1 << 30))
    done = run_python(
        [PROGRAM],
        backend.name,
        SECONDS,
        seed,
        THREADS,
        timeout=float(SECONDS) + 150,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    counts = dict(word.split("=") for word in done.stdout.split())
    never = [name for name, count in counts.items() if count == "0"]
    assert never in ([], ["fill_queue"])
