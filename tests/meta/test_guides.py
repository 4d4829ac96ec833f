"""The programs in docs/memory.md and docs/testing.md run as written."""

import re

import pytest
from places import ROOT


def programs():
    for page in ("memory", "testing"):
        text = (ROOT / f"docs/{page}.md").read_text()
        found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        for number, program in enumerate(found):
            yield pytest.param(program, id=f"{page} {number}")


@pytest.mark.parametrize("program", list(programs()))
def test_program(run_python, tmp_path, program):
    path = tmp_path / "test_program.py"
    path.write_text(program)
    tests = program.count("def test_")
    done = run_python(["-m", "pytest", "-q", path] if tests else [path])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests} passed" in done.stdout if tests else done.stderr == ""
