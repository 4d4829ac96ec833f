"""The programs of README.md and of the pages in docs/ work as they stand,
but for Numba beside a newer NumPy (see BEFORE).

A comment before a program says what is special about it: what it needs, that
it is only a part of a program, or that it has the race that the next block of
text reports.
"""

import functools
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest
from backend import usable
from places import ROOT

README = (ROOT / "README.md").read_text()
BLOCK = re.compile(
    r"(?:<!-- ([^\n]*) -->\n\n)?```python\n(.*?)```"
    r"(?:(?:(?!```python).)*?```text\n(.*?)```)?",
    re.DOTALL,
)


@dataclass
class Program:
    name: str
    note: str
    code: str
    report: str

    @property
    def needs(self):
        return [
            need.strip()
            for need in self.note.removeprefix("needs: ").split(",")
            if self.note.startswith("needs: ")
        ]


def programs():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        for found in BLOCK.finditer(text):
            line = text[: found.start(2)].count("\n") + 1
            note, code, report = (part or "" for part in found.groups())
            yield Program(f"{path.stem}-{line}", note, code, report)


PROGRAMS = list(programs())
WHOLE = [p for p in PROGRAMS if p.note not in ("races", "a part")]
RACING = [p for p in PROGRAMS if p.note == "races"]


def test_commands_are_in_the_readme():
    commands = re.findall(r"```sh\n(.*?)\n```", README, re.DOTALL)
    assert [command.split(" && ")[0] for command in commands[:2]] == [
        "sh bootstrap.sh",
        "sh bootstrap.sh",
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_each_program_is_python(program):
    compile(program.code, program.name, "exec", dont_inherit=True)
    notes = ("", "races", "unordered", "a part")
    assert program.note in notes or program.needs


# What has to run before a package is imported.  Numba needs numpy.row_stack,
# which newer releases of NumPy lack, and uses what these deprecate.
BEFORE = {
    "numba.cuda.cudaimpl": "import numpy, warnings\n"
    "numpy.row_stack = numpy.vstack\n"
    "warnings.simplefilter('ignore', DeprecationWarning)\n"
}


@functools.cache
def is_there(need):
    if need in ("a GPU", "the CPU engine"):
        return usable("cuda").on_engine == (need == "the CPU engine")
    # A package may be there, but lack what it needs itself.
    code = f"{BEFORE.get(need, '')}import {need}"
    return not subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.DEVNULL
    ).returncode


@pytest.mark.parametrize("races", ["", "raise"], ids=["plain", "no-races"])
@pytest.mark.parametrize("program", WHOLE, ids=lambda p: p.name)
def test_program(run_with_device, tmp_path, program, races):
    for need in program.needs:
        if not is_there(need):
            pytest.skip(f"needs {need}")
    if races and program.note == "unordered":
        pytest.skip("its accesses are not to be ordered")
    path = tmp_path / "program.py"
    before = "".join(BEFORE.get(need, "") for need in program.needs)
    path.write_text(before + program.code)
    done = run_with_device([path], env={"PYSTREAMS_RACES": races})
    assert (done.returncode, done.stderr) == (0, "")


def same_everywhere(report):
    """Return the report without addresses, handles and the accelerator's
    name."""
    text = re.sub(r"0x[0-9a-f]+", "0x", report)
    return re.sub(r'"[^"]*program.py"', '"program.py"', text).replace(
        "cuda:0", "cpu:0"
    )


@pytest.mark.parametrize("program", RACING, ids=lambda p: p.name)
def test_program_with_a_race(run_python, tmp_path, program, thread_sanitized):
    """The program runs by itself, and its report is the one that follows it in
    the page."""
    if thread_sanitized:
        pytest.skip("ThreadSanitizer finds the race, too")
    path = tmp_path / "program.py"
    path.write_text(program.code)
    done = run_python([path])
    assert (done.returncode, done.stderr) == (0, "")
    done = run_python(["-m", "pystreams", "races", path])
    assert done.returncode == 1
    found = done.stderr.partition("RaceError: ")[2]
    assert same_everywhere(found) == same_everywhere(program.report)


def test_first_program(run_python):
    (code,) = [p.code for p in PROGRAMS if "copied on" in p.code]
    done = run_python(code)
    assert re.fullmatch(r"copied on \w+:0 in \d+\.\d{3} ms\n", done.stdout)


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))],
    ids=lambda path: path.stem,
)
def test_links(path):
    """Each link leads to a file, and to a heading of the file if the link
    names one."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = [
                re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
                for title in titles
            ]
            assert anchor in anchors, link
