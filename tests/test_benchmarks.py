"""The benchmark that the README quotes for trace points: that it runs, not
what it measures."""

import json
import shutil
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def test_trace_cost(run_python, sanitized):
    if sanitized:
        pytest.skip("the compiler runs without sanitizers")
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    done = run_python(
        [BENCHMARKS / "trace_cost.py"], "--batches", "1", "--json"
    )
    rows = json.loads(done.stdout)
    assert rows["core"].keys() == {"without", "present", "difference", "ratio"}
    assert min(rows["core"]["present"], *rows["python"].values()) > 0
