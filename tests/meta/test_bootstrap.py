"""bootstrap.sh, run with a stand-in for Python that only creates the files
that it is asked for."""

import os
import shutil
import signal
import subprocess

import pytest
from places import ROOT

# This "python" makes a venv in steps.  At the step that STOP names, it kills
# the shell that called it, as Ctrl-C would.
PYTHON = """#!/bin/sh
case "$*" in
"-m venv .venv")
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
    [ "$STOP" != early ] || { kill -s KILL $PPID; exit; }
    : >.venv/pip
    [ "$STOP" != late ] || { kill -s KILL $PPID; exit; }
    ;;
"-m pip "*)
    folder=$(dirname "$(dirname "$0")")
    [ -e "$folder/pip" ] || exit 1
    echo "$*" >>"$folder/pip"
    ;;
esac
"""


@pytest.fixture
def bootstrap(tmp_path, thread_sanitized):
    """Return bootstrap(stop), which runs bootstrap.sh in a checkout of two
    files and returns the CompletedProcess."""
    if thread_sanitized:
        pytest.skip("ThreadSanitizer cannot be loaded into sh")
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    shutil.copy(ROOT / "bootstrap.sh", tmp_path)
    (tmp_path / "setup.py").touch()

    def run(stop=""):
        return subprocess.run(
            ["sh", "bootstrap.sh"],
            cwd=tmp_path,
            env=dict(os.environ, PYTHON=python, STOP=stop),
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.mark.parametrize("stop", ["early", "late"])
def test_after_an_interrupted_run(bootstrap, tools, tmp_path, stop):
    assert bootstrap(stop).returncode == -signal.SIGKILL
    for _ in range(2):
        done = bootstrap()
        assert (done.returncode, done.stderr) == (0, "")
        assert "done: .venv/bin/python -m pystreams" in done.stdout
    calls = (tmp_path / ".venv/pip").read_text()
    assert calls.count("install") == 2


def test_a_venv_without_pip(bootstrap, tools, tmp_path):
    """The venv may be the user's own, so bootstrap.sh removes nothing."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    shutil.copy(tmp_path / "python", tmp_path / ".venv/bin")
    done = bootstrap()
    assert done.returncode == 1
    assert done.stderr == (
        "bootstrap: .venv has no pip that works; remove .venv, and run this "
        "again\n"
    )
