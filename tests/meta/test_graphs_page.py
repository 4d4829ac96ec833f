"""The programs of docs/graphs.md run, each by itself."""

import re

import pytest
from places import ROOT

TEXT = (ROOT / "docs/graphs.md").read_text()
PROGRAMS = re.findall(
    r"^## (.*?)$|```python\n(.*?)```", TEXT, re.M | re.DOTALL
)


def named():
    title, count = "", 0
    for heading, program in PROGRAMS:
        title, count = (heading, 0) if heading else (title, count + 1)
        if program:
            yield pytest.param(program, id=f"{title} {count}")


@pytest.mark.parametrize("program", list(named()))
@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_it_runs(run_python, program, name):
    environment = {
        "PYSTREAMS_ACCELERATOR": name,
        "PYSTREAMS_EMULATE_CUDA": "1",
    }
    done = run_python(program, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
