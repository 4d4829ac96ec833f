"""`python -m pystreams` when its output cannot be written or a variable has a
wrong value; and the list of variables."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from pystreams import _settings

COMMANDS = [[], ["--json"], ["demo", sys.executable], ["demo", "--help"]]


@pytest.fixture
def shell(tmp_path, thread_sanitized):
    """shell(redirection, arguments) -> CompletedProcess of a command line
    that ends so."""
    if thread_sanitized:
        pytest.skip("ThreadSanitizer cannot be loaded into sh")

    def run(redirection, arguments):
        command = f'exec "$0" -m pystreams "$@" {redirection}'
        environment = {"PYTHONPATH": str(ROOT), **os.environ}
        return subprocess.run(
            ["sh", "-c", command, sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.mark.parametrize("arguments", COMMANDS)
def test_output_that_is_closed(shell, arguments):
    done = shell(">&-", arguments)
    assert done.returncode == 2
    assert done.stderr == (
        "pystreams: the output can't be written: it is closed\n"
    )


@pytest.mark.parametrize("arguments", COMMANDS)
def test_errors_that_nobody_reads(shell, arguments):
    done = shell("2>&-", arguments)
    assert done.returncode == 0
    assert done.stdout


@pytest.mark.parametrize("arguments", COMMANDS[:3])
def test_output_on_a_full_disk(shell, arguments):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    done = shell(">/dev/full", arguments)
    assert done.returncode == 2
    assert done.stderr == (
        "pystreams: the output can't be written: No space left on device\n"
    )


@pytest.mark.parametrize(
    "variable", ["PYSTREAMS_CPU_DEVICES", "PYSTREAMS_EMULATE_CUDA"]
)
@pytest.mark.parametrize("arguments", [[], ["demo", sys.executable]])
def test_a_value_that_is_none(run_python, variable, arguments):
    done = run_python(["-m", "pystreams", *arguments], env={variable: "x"})
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        f"pystreams: {variable} must be .*, got 'x'\n", done.stderr
    )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("PYSTREAMS_CPU_DEVICE", "PYSTREAMS_CPU_DEVICES"),
        ("PYSTREAMS_EMULATED_CUDA", "PYSTREAMS_EMULATE_CUDA"),
        ("PYSTREAMS_ACELERATOR", "PYSTREAMS_ACCELERATOR"),
    ],
)
def test_a_variable_that_is_misspelt(run_python, name, nearest):
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import pystreams, pystreams.trace
print(*(w.message for w in caught), sep="\\n")
"""
    done = run_python(code, env={name: "1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"{name} is set, but means nothing to pystreams; the variable with "
        f"the nearest name is {nearest}\n"
    )


def test_variables_that_are_right(run_python):
    """Nothing is said, and nothing is imported to find that out."""
    code = """
import sys, pystreams
print({"difflib", "warnings"} & sys.modules.keys() - before)
"""
    before = "import sys; before = set(sys.modules)\n"
    env = dict.fromkeys(_settings.VARIABLES, "")
    done = run_python(before + code, env=env)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_all_variables_are_known():
    """Those that a program, the build or a test of the checkout reads."""
    files = [ROOT / "setup.py", *ROOT.glob("csrc/**/*.c")]
    files += [p for p in ROOT.glob("*/**/*.py") if p != Path(__file__)]
    named = {
        name
        for path in files
        if not {".venv", "build"} & set(path.parts)
        for name in re.findall(r'"(PYSTREAMS_[A-Z_]+)"', path.read_text())
    }
    assert named <= _settings.VARIABLES
    assert "PYSTREAMS_CPU_DEVICES" in named
