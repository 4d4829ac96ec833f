"""PYSTREAMS_EXPLAIN_SIGNAL: a live process says what it waits for."""

import re
import signal
import subprocess
import sys
from textwrap import dedent

import pytest

PROGRAM = """
    import os, signal, threading, time
    import pystreams

    def wait():
        while not go:
            time.sleep(0.01)

    go = []
    stream = pystreams.Stream("cpu", name="load")
    stream.submit(wait)
    {fork}
    print("ready", flush=True)
    stream.synchronize()
    """


def program(tmp_path, name, fork=""):
    return subprocess.Popen(
        [sys.executable, "-c", dedent(PROGRAM.format(fork=fork))],
        env={"PYSTREAMS_EXPLAIN_SIGNAL": name},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("name", ["SIGUSR2", "USR2", "12"])
def test_while_the_main_thread_is_blocked(tmp_path, name):
    with program(tmp_path, name) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGUSR2)
        lines = [running.stderr.readline() for _ in range(2)]
        assert lines[0] == f"pystreams, process {running.pid}:\n"
        assert re.match(
            r"load \(cpu:0 0x\w+\) has 1 operation; the first is callable "
            r"wait \(<string>:\d+\), which has run for ",
            lines[1],
        )
        assert running.poll() is None
        running.kill()


def test_in_a_forked_child(tmp_path):
    fork = dedent(
        """
    child = os.fork()
    if child == 0:
        mine = pystreams.Stream("cpu", name="mine")
        mine.submit(wait)
        while "callable wait" not in pystreams.explain(mine):
            pass
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(60)
    """
    ).replace("\n", "\n    ")
    with program(tmp_path, "SIGUSR2", fork) as running:
        first, second = (running.stderr.readline() for _ in range(2))
        assert re.fullmatch(r"pystreams, process \d+:\n", first)
        child = int(re.search(r"\d+", first)[0])
        assert child != running.pid
        assert second.startswith("mine (cpu:0 ")
        subprocess.run(["kill", "-KILL", str(child)], check=True)
        running.kill()


@pytest.mark.parametrize("wrong", ["9", "SIGKILL", "usr2", "0", "SIG_DFL"])
def test_what_is_no_such_signal_is_refused(run_python, wrong):
    done = run_python(
        "import pystreams", env={"PYSTREAMS_EXPLAIN_SIGNAL": wrong}
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ValueError: PYSTREAMS_EXPLAIN_SIGNAL must be a signal that can be "
        f"caught, such as 'SIGUSR2' or '12', got {wrong!r}"
    )


def test_a_handler_that_was_there_is_called_too(run_python):
    code = """
        import signal
        calls = []
        signal.signal(signal.SIGUSR2, lambda *_: calls.append(1))
        import pystreams, os, time
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(0.2)
        print(calls)
        """
    done = run_python(
        dedent(code), env={"PYSTREAMS_EXPLAIN_SIGNAL": "SIGUSR2"}
    )
    assert done.stdout == "[1]\n"
    assert done.stderr.endswith("no work is known to be pending\n")
