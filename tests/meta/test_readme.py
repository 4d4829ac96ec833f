"""What the README shows works."""

import re

import pytest
from places import ROOT

README = (ROOT / "README.md").read_text()
FIRST, *OTHERS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_commands_are_in_the_readme():
    commands = re.findall(r"```sh\n(.*?)\n```", README, re.DOTALL)
    assert [command.split(" && ")[0] for command in commands[:2]] == [
        "sh bootstrap.sh",
        "sh bootstrap.sh",
    ]


def test_example(run_python):
    done = run_python(FIRST)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"copied on \w+:0 in \d+\.\d{3} ms\n", done.stdout)


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_other_examples(run_with_device, tmp_path, number):
    program = tmp_path / "program.py"
    program.write_text(OTHERS[number])
    done = run_with_device([program])
    assert (done.returncode, done.stderr) == (0, "")
