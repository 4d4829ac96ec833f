"""What the README says can be done, done."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_commands_are_in_the_readme():
    commands = re.findall(r"```sh\n(.*?)\n```", README, re.DOTALL)
    assert [command.split(" && ")[0] for command in commands] == [
        "sh bootstrap.sh",
        "sh bootstrap.sh",
    ]


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_run(run_python, example):
    done = run_python(example)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_example_says_how_long_it_took(run_python):
    done = run_python(EXAMPLES[0])
    assert re.fullmatch(r"copied on \w+:0 in \d+\.\d{3} ms\n", done.stdout)
