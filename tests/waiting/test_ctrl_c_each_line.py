"""Ctrl-C at each line of the package's Python code; ctrl_c.py sends it."""

import pytest
from places import SUPPORT

PROGRAM = SUPPORT / "ctrl_c.py"


# Do not run this under a schedule.  There, an await polls for as many lines as
# a thread needs to notify the loop.
@pytest.mark.unscheduled
@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_at_each_line(run_python, short_library, name):
    pytest.importorskip("_testcapi", reason="needs _testcapi")
    variables = {
        "PYSTREAMS_ACCELERATOR": name,
        "PYSTREAMS_CPU_DEVICES": "2",
        "PYSTREAMS_EMULATE_CUDA": "2",
    }
    done = run_python(
        ["-W", "ignore", PROGRAM, name],
        env=variables | short_library,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


EXIT = """
import atexit, faulthandler, signal, sys, threading
import pystreams
faulthandler.dump_traceback_later(30, exit=True)
left = int(sys.argv[1])
def enter(frame, event, argument):
    return line if frame.f_code.co_name == "_shutdown" else None
def line(frame, event, argument):
    global left
    if event == "line":
        left -= 1
        if left < 0:
            sys.settrace(None)
            print("interrupted", flush=True)
            raise KeyboardInterrupt
    return line
stream = pystreams.Stream("cpu")
future = stream.submit(int)
threading.Timer(0.01, stream.submit, (int,)).start()
# What is registered last comes first.
atexit.register(sys.settrace, enter)
"""


def test_at_exit(run_python):
    """The program ends, and says that it was interrupted."""
    for number in range(100):
        done = run_python(EXIT, str(number))
        assert done.returncode == 0, done.stderr
        if not done.stdout:
            assert done.stderr == ""
            break
        assert done.stderr.count("Traceback") == 1
        assert "KeyboardInterrupt" in done.stderr
    assert number > 0
