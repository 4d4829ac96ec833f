"""The programs of docs/timeline.md run as written."""

import re

import pytest
from places import ROOT

PAGE = (ROOT / "docs/timeline.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program(run_python, tmp_path, monkeypatch, number):
    if "import nvtx" in PROGRAMS[number]:
        pytest.importorskip("nvtx", reason="needs the nvtx package")
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[number])
    done = run_python([program])
    assert (done.returncode, done.stderr) == (0, "")


def test_columns():
    from pystreams import timeline

    table = re.findall(r"^\| (`.*?) \|", PAGE, re.M)
    names = [name for cell in table for name in re.findall(r"`(\w+)`", cell)]
    assert tuple(names) == timeline.COLUMNS


def test_the_commands_work(run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[0])
    for arguments in (["-o", tmp_path / "t.pftrace"], []):
        done = run_python(
            ["-m", "pystreams", "timeline", *arguments, program, "argument"]
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "t.pftrace").stat().st_size > 1000
    # The program's own chart, and that of the command.
    assert len(re.findall(r"^\d+ operations in ", done.stdout, re.M)) == 2


@pytest.mark.unscheduled
def test_the_command_prints_the_critical_path(run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import time\n"
        "import pystreams\n"
        "pystreams.Stream().submit(time.sleep, 0.2)\n"
        "pystreams.accelerator.synchronize()\n"
    )
    command = ["-m", "pystreams", "timeline", "--critical-path"]
    for arguments in ([], ["-o", tmp_path / "t.json"]):
        done = run_python([*command, *arguments, program])
        assert (done.returncode, done.stderr) == (0, "")
        assert re.search(r"^ *[\d.]+ .*  sleep on ", done.stdout, re.M)
        assert "operations in" not in done.stdout
    assert (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-o", "t.txt", "program.py"], "argument -o/--output: a timeline's"),
        (["-o", "none/t.json", "program.py"], "there is no folder none for"),
        (["none.py"], "none.py is not a file"),
        (["-m", "no_such.module"], "there is no module no_such.module"),
        (["-m", "json.no_such"], "No module named json.no_such"),
        (["-m", "concurrent"], "No module named concurrent.__main__; "),
    ],
    ids=["suffix", "folder", "file", "module", "in a package", "package"],
)
def test_refused_commands(
    run_python, tmp_path, monkeypatch, arguments, reason
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text("1 / 0")
    done = run_python(["-m", "pystreams", "timeline", *arguments])
    assert done.returncode == 2
    assert done.stderr.startswith(f"pystreams: {reason}")


@pytest.mark.parametrize("command", ["races", "timeline"])
@pytest.mark.parametrize("module", [True, False], ids=["module", "file"])
@pytest.mark.parametrize("text", ["1 / 0", "1 /"], ids=["runs", "does not"])
def test_the_exception_of_a_program(
    run_python, tmp_path, monkeypatch, command, module, text
):
    """Python shows the program's error without frames of the command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(text)
    program = ["-m", "program"] if module else ["program.py"]
    done = run_python(["-m", "pystreams", command, *program])
    assert done.returncode == 1
    error = "ZeroDivisionError" if text == "1 / 0" else "SyntaxError"
    assert done.stderr.splitlines()[-1].startswith(error)
    assert 'program.py", line 1' in done.stderr
    assert "runpy" not in done.stderr
    assert "_cli" not in done.stderr


def test_a_program_that_fails(run_python, tmp_path):
    """The program's timeline is written in spite of the failure."""
    (tmp_path / "program.py").write_text("1 / 0")
    command = ["-m", "pystreams", "timeline", "-o", tmp_path / "t.json"]
    done = run_python([*command, tmp_path / "program.py"])
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert (tmp_path / "t.json").exists()


@pytest.mark.parametrize("output", ["chart", "t.json"])
def test_a_program_with_a_forked_child(run_python, tmp_path, output):
    """Only the parent prints or writes the timeline, also if the child ends as
    programs do."""
    (tmp_path / "program.py").write_text(
        "import os, sys, pystreams\n"
        'pystreams.Stream("cpu").submit(int).result()\n'
        "pid = os.fork()\n"
        "if pid == 0:\n    sys.exit(0)\n"
        'print(os.waitpid(pid, 0)[1], os.path.exists("t.json"))\n'
    )
    option = [] if output == "chart" else ["-o", output]
    command = ["-m", "pystreams", "timeline", *option, "program.py"]
    done = run_python(command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("0 False\n")
    charts = re.findall(r"^1 operation in ", done.stdout, re.M)
    assert len(charts) == (output == "chart")
    assert (tmp_path / "t.json").exists() == (output != "chart")
