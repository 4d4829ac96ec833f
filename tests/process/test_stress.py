"""A few seconds of stress.py, or as many as PYSTREAMS_STRESS says."""

import os

from places import SUPPORT

PROGRAM = SUPPORT / "stress.py"
SECONDS = os.environ.get("PYSTREAMS_STRESS", "1.5")


def test_stress(backend, run_python):
    done = run_python(
        [PROGRAM], backend.name, SECONDS, timeout=float(SECONDS) + 150
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    counts = dict(word.split("=") for word in done.stdout.split())
    never = [name for name, count in counts.items() if count == "0"]
    assert never in ([], ["fill_queue"])
