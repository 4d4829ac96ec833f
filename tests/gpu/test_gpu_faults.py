"""A GPU that has faulted, and one that has no memory left: every method
reports it by name, clean-up is silent, and the process ends by itself."""

import json
import re

import pytest
from places import SUPPORT

PROGRAM = SUPPORT / "faulting.py"
CAUSES = {"fault": 700, "refute": 710}
IDS = {"fault": "illegal-address", "refute": "assert"}

# These calls wait for the work that failed, or ask the device for something.
TELL = {
    "first",
    "stream.query",
    "stream.synchronize",
    "generic.query",
    "generic.synchronize",
    "external.synchronize",
    "default.synchronize",
    "event.query",
    "event.synchronize",
    "block.tobytes",
    "pystreams.cuda.synchronize",
    "pystreams.accelerator.synchronize",
    "await stream",
    "await event",
    "behind.result",
    "submit and result",
    "empty",
}


def call_all(run_python, cause):
    """Return the outcome of each call, and what was printed."""
    # If a kernel were loaded at its first launch, that would wait for all
    # work, so load all kernels at the start.
    eager = {"CUDA_MODULE_LOADING": "EAGER"}
    done = run_python([PROGRAM], cause, env=eager, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


UNSHARED = ("event", "timed", "fresh", "block", "pinned")
# These calls are refused with or without a fault, as they should be.
REFUSALS = {
    "fresh.elapsed_time": "ValueError",
    "block.memoryview": "BufferError",
    "pystreams.cuda.set_peer_access": "ValueError",
    **dict.fromkeys(
        (f"{name}.ipc_handle" for name in UNSHARED), "RuntimeError"
    ),
    **dict.fromkeys(
        (f"{name}.from_ipc_handle" for name in UNSHARED), "ValueError"
    ),
}


def faults(outcomes):
    """Return (type, code) of each exception that was raised, by call."""
    return {
        name: tuple(outcome[:2])
        for name, outcome in outcomes.items()
        if outcome is not None and outcome[0] != REFUSALS.get(name)
    }


def test_nothing_is_wrong_before(cuda, run_python):
    """Without a fault, all calls succeed.  So the fault causes the failures in
    the tests below."""
    outcomes, said = call_all(run_python, "none")
    assert faults(outcomes) == {}
    assert said == ""
    assert TELL - {"first"} <= outcomes.keys()


@pytest.mark.parametrize("cause", CAUSES, ids=IDS.get)
def test_every_method_after_a_fault(gpu, run_python, cause):
    """Each call returns, or raises the error of the first fault."""
    outcomes, said = call_all(run_python, cause)
    found = faults(outcomes)
    assert set(found.values()) == {("AcceleratorError", CAUSES[cause])}
    assert TELL - found.keys() == set()
    for name in found:
        text = outcomes[name][2]
        assert text.startswith("CUDA error: ")
        assert "cudaError" in text
        assert "only a new one can use it" in text
    lines = said.splitlines()
    if cause == "refute":
        # The driver says which assert() it was.
        lines = [line for line in lines if "Assertion" not in line]
    assert lines == []


@pytest.mark.whole_gpu
def test_every_method_without_memory(gpu, run_python):
    """Calls succeed or raise OutOfMemoryError.  They succeed again when there
    is memory."""
    outcomes, said = call_all(run_python, "memory")
    found = faults(outcomes)
    assert set(found.values()) <= {("OutOfMemoryError", 2)}
    assert not any("synchronize" in name for name in found)
    assert said == ""


UNTOLD = """
import sys
sys.path.insert(0, {tests!r})
from kernels import Kernels
from pystreams import cuda
streams = [cuda.Stream() for _ in range(40)]
events = [stream.record_event() for stream in streams]
cuda.synchronize()
Kernels().fault(streams[0].cuda_stream)
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(7)", 7),
        ("raise ValueError('the end')", 1),
        ("cuda.synchronize()", 1),
    ],
    ids=["normal", "sys.exit", "exception", "raised"],
)
def test_the_end_of_a_process_after_a_fault(gpu, run_python, end, code):
    """Nothing crashes.  If no call has raised the fault, one clean-up may
    report it."""
    tests = str(PROGRAM.parent)
    done = run_python(UNTOLD.format(tests=tests, end=end), timeout=60)
    assert done.returncode == code
    assert done.stderr.count("AcceleratorError") <= 1
    assert not re.search("Fatal|Segmentation|Aborted", done.stderr)


def test_one_device_faults_and_another_works(two_gpus, run_python):
    """The fault belongs to one device.  The runtime may treat it as one of the
    whole process, and then the other device raises the same error."""
    code = """
import sys
sys.path.insert(0, {tests!r})
import pystreams
from kernels import Kernels
from pystreams import cuda
broken, fine = cuda.Stream(0), cuda.Stream(1)
fine.synchronize()
Kernels().fault(broken.cuda_stream)
codes = []
for stream in (broken, fine, broken):
    try:
        stream.synchronize()
    except pystreams.AcceleratorError as error:
        codes.append(error.error_code)
    else:
        codes.append(0)
print(codes)
"""
    done = run_python(code.format(tests=str(PROGRAM.parent)), timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("[700, 0, 700]\n", "[700, 700, 700]\n")
