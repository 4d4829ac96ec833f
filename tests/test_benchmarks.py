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


def test_peer_copy(cuda, run_python):
    done = run_python(
        [BENCHMARKS / "peer_copy.py"],
        "--bytes",
        str(1 << 20),
        "--json",
        timeout=300,
    )
    if cuda.on_engine or cuda.count < 2:
        assert done.returncode == 1
        assert done.stderr.startswith("peer_copy.py needs two GPUs, and there")
        return
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bytes"] == 1 << 20
    assert result["pystreams"] > 0
