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
from pystreams._cli.demo import DemoError, find_devices

COMMANDS = [[], ["--json"], ["demo", sys.executable], ["demo", "--help"]]


@pytest.fixture
def shell(tmp_path, thread_sanitized):
    """shell(redirection, arguments) -> CompletedProcess of python -m pystreams
    with this redirection of its output."""
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


@pytest.mark.unscheduled
@pytest.mark.parametrize("arguments", COMMANDS)
def test_errors_that_nobody_reads(shell, arguments):
    done = shell("2>&-", arguments)
    assert done.returncode == 0
    assert done.stdout


@pytest.mark.unscheduled
@pytest.mark.parametrize("arguments", COMMANDS)
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


IMPORT = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import pystreams
print(*(w.message for w in caught), sep="\\n")
"""


def test_a_variable_like_no_other_gets_no_suggestion(run_python):
    for name in ("PYSTREAMS_FOO", "PYSTREAMS_WERRORS"):
        done = run_python(IMPORT, env={name: "1"})
        assert done.stdout == (
            f"{name} is set, but means nothing to pystreams\n"
        )


def test_emulated_memory_without_emulated_devices(run_python):
    memory = {"PYSTREAMS_EMULATE_MEMORY": "1GiB"}
    for devices, said in (("", True), ("0", True), ("1", False)):
        env = {**memory, "PYSTREAMS_EMULATE_CUDA": devices}
        done = run_python(IMPORT, env=env)
        assert (
            "PYSTREAMS_EMULATE_MEMORY has no effect" in done.stdout
        ) is said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["races"], "the following arguments are required: SCRIPT.PY; "),
        (["--no"], "unrecognized arguments: --no; "),
        (["demo", "--streams", "x"], "argument --streams: "),
    ],
)
def test_a_wrong_option_points_to_the_help(run_python, arguments, message):
    done = run_python(["-m", "pystreams", *arguments])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"pystreams: {message}")
    assert done.stderr.endswith(" --help`\n")


@pytest.mark.parametrize("arguments", [[], ["demo"]])
def test_an_unknown_accelerator_is_named_once(run_python, arguments):
    env = {"PYSTREAMS_ACCELERATOR": "tpu", "PYSTREAMS_EMULATE_CUDA": "1"}
    done = run_python(["-m", "pystreams", *arguments], env=env)
    assert done.returncode == 2
    assert "tpu" not in done.stdout
    assert done.stderr == (
        "pystreams: PYSTREAMS_ACCELERATOR names an unknown device type: "
        "'tpu'; expected one of cpu, cuda\n"
    )


def test_devices_of_the_demo():
    assert find_devices(["cpu:0", "cpu", "cpu:0"]) == find_devices(["cpu"])
    with pytest.raises(
        DemoError, match=r"unknown device 'tpu'; expected .*cpu"
    ):
        find_devices(["tpu"])


def test_variables_that_are_right(run_python):
    """Nothing is printed, and the check imports no module."""
    code = """
import sys, pystreams
print({"difflib", "warnings"} & sys.modules.keys() - before)
"""
    before = "import sys; before = set(sys.modules)\n"
    env = dict.fromkeys(_settings.VARIABLES, "")
    done = run_python(before + code, env=env)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_all_variables_are_known():
    """All variables that a program, the build or a test of the checkout
    reads."""
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
