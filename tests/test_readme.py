"""What the README says can be done, done."""

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_commands_are_in_the_readme():
    commands = re.findall(r"```sh\n(.*?)\n```", README, re.DOTALL)
    assert [command.split(" && ")[0] for command in commands] == [
        "sh bootstrap.sh",
        "sh bootstrap.sh",
    ]


def test_example(run_python):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = run_python(example)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"copied on \w+:0 in \d+\.\d{3} ms\n", done.stdout)
