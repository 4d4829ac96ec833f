"""The commands and code for a new device work as written, in docs/guide.md, in
docs/bring-up.md and with the example."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

import pystreams

GUIDE = (ROOT / "docs/guide.md").read_text()
BRING_UP = (ROOT / "docs/bring-up.md").read_text()
EXAMPLE = (ROOT / "examples/fake_device/README.md").read_text()


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def shell(tmp_path):
    """Run commands in a folder with the examples, as in a checkout.  What they
    install goes to another folder."""
    pytest.importorskip("pip", reason="no pip")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "bin").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(tmp_path / "bin")
    python = tmp_path / "bin/python"
    # A sanitizer is meant for Python, not for the shell.
    environment = dict(os.environ)
    preload = environment.pop("LD_PRELOAD", "")
    python.write_text(
        f'#!/bin/sh\nLD_PRELOAD="{preload}" exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    path = [str(tmp_path / "installed")]
    if Path(pystreams.__file__).resolve().parent.parent == ROOT:
        path.append(str(ROOT))
    environment.update(
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        PYTHONPATH=":".join(path),
        PIP_TARGET=path[0],
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_NO_INDEX="1",
        CC="env -u LD_PRELOAD cc",
    )

    def run(commands):
        return subprocess.run(
            ["sh", "-e", "-c", commands],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


def test_commands_of_the_guide(shell):
    (commands,) = [c for c in blocks(GUIDE, "sh") if "fake_device" in c]
    done = shell(commands)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the contract on mtia: 2 devices" in done.stdout
    assert "<pystreams.Stream device=mtia:1" in done.stdout.splitlines()[-1]


def test_commands_of_bring_up(shell):
    (commands,) = blocks(BRING_UP, "sh")
    done = shell(commands)
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = blocks(BRING_UP, "text")
    assert report in done.stdout


@pytest.mark.parametrize(
    "page", [BRING_UP, EXAMPLE], ids=["bring-up", "fake_device"]
)
def test_example(run_with_device, page):
    (example,) = blocks(page, "python")
    done = run_with_device(example)
    assert (done.returncode, done.stderr) == (0, "")
