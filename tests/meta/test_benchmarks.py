"""The benchmarks run; what they measure is not checked."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from places import ROOT

import pystreams

BENCHMARKS = ROOT / "benchmarks"
OURS = {
    "calls": {"pystreams", "raw"},
    "scaling": {"1"},
    "memory": {"host"},
    "startup": {"pystreams"},
    "engine": {"engine"},
}


@pytest.fixture
def benchmarks(sanitized):
    """run(*arguments) -> CompletedProcess of python -m benchmarks."""
    if sanitized:
        pytest.skip("the compiler runs without sanitizers")
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    if Path(pystreams.__file__).resolve().parent.parent != ROOT:
        pytest.skip("what is installed is not the checkout")

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "benchmarks", "--quick", *arguments],
            cwd=ROOT,
            env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"),
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.mark.parametrize("group", OURS)
def test_group_of_benchmarks(benchmarks, tmp_path, group):
    written = tmp_path / "figures.json"
    done = benchmarks("--device", "cpu", "--only", group, "--json", written)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(written.read_text())
    assert result["machine"]["device"] == "cpu"
    for table in result["tables"]:
        assert table["title"] in done.stdout
        measured = {
            column
            for row in table["rows"]
            for column, cell in row["cells"].items()
            if cell["median"] is not None
        }
        assert measured >= OURS[group]
        whys = [c["why"] for r in table["rows"] for c in r["cells"].values()]
        assert set(whys) == {None}


FAULTY = """
import os

def fail():
    raise ValueError("no such thing")

def calls():
    return {"record": fail, "event_query": lambda: os._exit(7)}, int
"""
WITH_FAULTY = """
from benchmarks import calls, peers, show

peers.CPU |= {"absent": "no_such_peer", "faulty": "faulty_peer"}
print(show.markdown(calls.tables("cpu", quick=True)))
"""


def test_benchmarks_go_on_without_a_peer(benchmarks, run_python, tmp_path):
    (tmp_path / "faulty_peer.py").write_text(FAULTY)
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    done = run_python(WITH_FAULTY, env={"PYTHONPATH": path})
    assert (done.returncode, done.stderr) == (0, "")
    reasons = [line for line in done.stdout.splitlines() if line[:2] == "- "]
    assert reasons == [
        "- absent: ModuleNotFoundError: No module named 'no_such_peer'",
        "- faulty event.record(stream): ValueError: no such thing",
        "- faulty event.query(), done: the process ended with 7",
    ]


def test_no_gpu_for_benchmarks(benchmarks):
    if pystreams.cuda.is_available() and not pystreams.cuda.is_emulated():
        pytest.skip("there is a GPU")
    done = benchmarks("--device", "cuda")
    assert done.returncode == 2
    assert "no usable GPU" in done.stderr


def test_unknown_group_of_benchmarks(benchmarks):
    done = benchmarks("--only", "calls,speed")
    assert done.returncode == 2
    assert "got speed" in done.stderr


def test_chart(benchmarks, tmp_path):
    chart = tmp_path / "chart.png"
    if find_spec("matplotlib") is None:
        done = benchmarks("--chart", chart)
        assert done.returncode == 2 and "matplotlib" in done.stderr
        return
    done = benchmarks("--device", "cpu", "--only", "calls", "--chart", chart)
    assert done.returncode == 0, done.stderr
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_races_cost(run_python, sanitized):
    """Whatever the ratios: others use the machine."""
    done = run_python([BENCHMARKS / "races_cost.py"], "--json")
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert len(found["calls"]) == 8
    assert all(off > 0 and on > 0 for off, on in found["calls"].values())
    if not sanitized:
        assert all(0 < each < 4096 for each in found["bytes"].values())


def test_schedules_rate(run_python):
    done = run_python(
        [BENCHMARKS / "schedules_rate.py"], "--runs", "200", "--json"
    )
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["schedules a second, from Python"] > 0
    assert found["virtual seconds a second"] > 1000
    for depth in "123":
        hit, least = found["hits"][depth]
        assert hit >= least - 3 * (least * (1 - least) / 200) ** 0.5


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
