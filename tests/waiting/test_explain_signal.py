"""PYSTREAMS_EXPLAIN_SIGNAL makes a running process print what it waits for."""

import os
import re
import signal
import subprocess
import sys
from textwrap import dedent

import pytest

PROGRAM = """
    import os, signal, threading, time, warnings
    import pystreams

    def wait():
        while not go:
            time.sleep(0.01)

    go = []
    stream = pystreams.Stream("cpu", name="load")
    future = stream.submit(wait)
    while not future.running():
        pass
    {fork}
    print("ready", flush=True)
    stream.synchronize()
    """


@pytest.fixture
def program(tmp_path):
    """Return program(signal, fork), which starts a program that runs until the
    test ends."""
    running = []

    def start(name, fork=""):
        program = subprocess.Popen(
            [sys.executable, "-c", dedent(PROGRAM.format(fork=fork))],
            env=dict(os.environ, PYSTREAMS_EXPLAIN_SIGNAL=name),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(program)
        return program

    yield start
    for one in running:
        os.killpg(one.pid, signal.SIGKILL)
        one.communicate()


@pytest.mark.parametrize("name", ["SIGUSR2", "USR2", "12"])
def test_while_the_main_thread_is_blocked(program, name):
    running = program(name)
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGUSR2)
    lines = [running.stderr.readline() for _ in range(2)]
    assert lines[0] == f"pystreams, process {running.pid}:\n"
    assert re.match(
        r"load \(cpu:0 0x\w+\) has 1 operation; the first is callable wait "
        r"\(<string>:\d+\), which has run for ",
        lines[1],
    )
    assert running.poll() is None


def test_in_a_forked_child(program, thread_sanitized):
    if thread_sanitized:
        pytest.skip("ThreadSanitizer starts no threads in a forked child")
    fork = dedent(
        """
    # Newer Pythons warn of a fork with threads.
    warnings.simplefilter("ignore", DeprecationWarning)
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
    running = program("SIGUSR2", fork)
    first, second = (running.stderr.readline() for _ in range(2))
    assert re.fullmatch(r"pystreams, process \d+:\n", first)
    assert str(running.pid) not in first
    assert second.startswith("mine (cpu:0 ")


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


@pytest.mark.parametrize(
    ("handler", "told"),
    [
        # faulthandler's handler calls the handler that it has replaced, which
        # is the package's.
        ("faulthandler.register(signal.SIGUSR2, chain=True)", 1),
        ("signal.signal(signal.SIGUSR2, lambda *_: None)", 0),
    ],
    ids=["chained", "in its place"],
)
def test_a_later_handler_stays_in_a_forked_child(
    run_python, thread_sanitized, handler, told
):
    if thread_sanitized:
        pytest.skip("ThreadSanitizer starts no threads in a forked child")
    code = f"""
        import faulthandler, os, signal, time, warnings
        import pystreams
        warnings.simplefilter("ignore", DeprecationWarning)
        {handler}
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(0.5)
            os._exit(0)
        print(os.waitpid(child, 0)[1])
        """
    done = run_python(
        dedent(code), env={"PYSTREAMS_EXPLAIN_SIGNAL": "SIGUSR2"}
    )
    assert done.stdout == "0\n"
    assert done.stderr.count("pystreams, process") == told
    assert done.stderr.count("Current thread") == told


def test_a_second_signal_keeps_the_handler_of_the_first(run_python):
    code = """
        import os, signal
        calls = []
        signal.signal(signal.SIGUSR1, lambda *_: calls.append(1))
        import pystreams
        pystreams._C.explain_on_signal(signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR1)
        print(calls)
        """
    done = run_python(
        dedent(code), env={"PYSTREAMS_EXPLAIN_SIGNAL": "SIGUSR1"}
    )
    assert done.stdout == "[1]\n"
