"""No public call leaks a reference, as counted by a debug build of Python."""

import sys

import pytest
from places import SUPPORT

PROGRAM = SUPPORT / "references.py"


@pytest.fixture(params=["cpu", "cuda"])
def leaks(request, run_python):
    """leaks(argument...): what a program says that counts references."""
    if not hasattr(sys, "gettotalrefcount"):
        pytest.skip("needs a debug build of Python")

    def run(*arguments):
        variables = {
            "PYSTREAMS_ACCELERATOR": request.param,
            "PYSTREAMS_CPU_DEVICES": "2",
            "PYSTREAMS_EMULATE_CUDA": "2",
        }
        done = run_python(
            ["-W", "ignore", PROGRAM, request.param, *arguments],
            env=variables,
            timeout=300,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def test_no_call_leaves_a_reference(leaks):
    assert leaks() == ""


def test_a_leak_is_seen(leaks):
    assert "the planted leak: 2" in leaks("plant")
