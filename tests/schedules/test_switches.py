"""Schedules that an environment variable or a pytest option asks for."""

import functools
import re

import pytest

PROGRAM = """
import pystreams
stream = pystreams.Stream("cpu")
host = pystreams.Buffer(64, device="cpu", pin_memory=True)
host.memoryview()[:] = bytes(64)
host.fill_(7, stream=stream)
print(host.memoryview()[0])
stream.synchronize()
print(host.memoryview()[0])
"""


@pytest.mark.parametrize(
    ("name", "first"),
    [("late", 0), ("early", 7), ("late:1", 0), ("random:0", 0)],
)
def test_a_whole_program(run_python, name, first):
    done = run_python(
        PROGRAM,
        # The accelerator pins memory, so make "cpu" the accelerator.
        env={
            "PYSTREAMS_SCHEDULE": name,
            "PYSTREAMS_ACCELERATOR": "cpu",
            "PYSTREAMS_EMULATE_CUDA": None,
        },
    )
    assert done.stdout.split() == [str(first), "7"]


def test_a_schedule_in_a_program_that_has_one(run_python):
    done = run_python(
        "from pystreams import Stream, schedules\n"
        "def fn():\n"
        "    stream = Stream('cpu')\n"
        "    stream.record_event()\n"
        "    return stream.query()\n"
        "print(fn(), schedules.replay(fn, 'early'), fn())",
        env={"PYSTREAMS_SCHEDULE": "late"},
    )
    assert done.stdout.split() == ["False", "True", "False"]


DEADLOCK = """
import pystreams
one, other = (pystreams.Stream("cpu", name=n) for n in ("one", "other"))
futures = [one.submit(lambda: other.synchronize())]
futures.append(other.submit(lambda: one.synchronize()))
one.synchronize()
other.synchronize()
{end}
print("end")
"""
LOST = "pystreams.schedules: the error of a deadlock was never retrieved:"


@pytest.mark.parametrize("name", ["late", "all"])
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 1),
        ("del futures", 1),
        ("[future.exception() for future in futures]", 0),
    ],
)
def test_a_deadlock_in_a_whole_program(run_python, name, end, status):
    done = run_python(
        DEADLOCK.format(end=end),
        env={"PYSTREAMS_SCHEDULE": name},
    )
    assert (done.returncode, done.stdout) == (status, "end\n")
    assert (LOST in done.stderr) == (status == 1)


SIGNALS = """
import signal
import pystreams
from pystreams import accelerator, schedules

graphs, handled = [], []

def use(*signal):
    for graph in graphs:
        handled.append(graph.pool())

def fn():
    stream, memory = pystreams.Stream(), pystreams.empty(64)
    graph = accelerator.Graph()
    with stream, graph:
        memory.fill_(1)
    graphs[:] = [graph]
    with stream:
        for _ in range(200):
            graph.replay()
    stream.synchronize()

signal.signal(signal.SIGALRM, use)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
for _ in range(20):
    schedules.replay(fn, "early")
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(handled) > 0)
"""


def test_a_signal_handler_may_use_a_graph_that_is_launched(run_python):
    """replay() notes where each launch was queued, for a report."""
    done = run_python(SIGNALS)
    assert (done.stdout, done.stderr) == ("True\n", "")


FORKED = """
import gc, os, sys
from pystreams import _C, Buffer, Stream, schedules

def fill():
    stream, block = Stream("cpu"), Buffer(64, device="cpu")
    dirty = block.memoryview(readonly=True)[0]
    block.fill_(7, stream=stream)
    early = block.memoryview(readonly=True)[0]
    stream.synchronize()
    return dirty, early, block.memoryview(readonly=True)[0]

def child():
    assert not _C.schedule_is_on() and gc.isenabled()
    stream = Stream("cpu")
    stream.record_event()
    stream.synchronize()
    assert schedules.replay(fill, "late") == (0xDB, 0xDB, 7)
    assert schedules.replay(fill, "early") == (0xDB, 7, 7)
    assert not _C.schedule_is_on() and gc.isenabled()

def forks():
    stream = Stream("cpu")
    block = Buffer(64, device="cpu")
    block.fill_(1, stream=stream)
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert fill()[2] == 7
    return status
"""


@pytest.mark.parametrize(
    ("schedule", "explored"),
    [("late", False), ("random:7", False), ("late", True), (None, True)],
)
def test_a_forked_child_has_no_schedule(run_python, schedule, explored):
    call = "schedules.replay(forks, 'late')" if explored else "forks()"
    done = run_python(
        f"{FORKED}\nprint({call}, _C.schedule_is_on(), gc.isenabled())",
        env={"PYSTREAMS_SCHEDULE": schedule},
    )
    assert (done.stdout, done.stderr) == (f"0 {bool(schedule)} True\n", "")


@pytest.mark.parametrize("name", ["x", "late:-1", "late:0", "pct:2:17:0"])
def test_an_unknown_name(run_python, name):
    done = run_python("import pystreams", env={"PYSTREAMS_SCHEDULE": name})
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith(
        "ValueError: PYSTREAMS_SCHEDULE expects the name of a schedule: 'late'"
    )
    assert error.endswith(f", but got {name!r}")


TESTS = """
import pystreams
import pytest

def fill(fixed):
    stream = pystreams.Stream("cpu")
    block = pystreams.empty(64, device="cpu", stream=stream)
    block.fill_(1, stream=stream)
    if fixed:
        stream.synchronize()
    assert block.memoryview(readonly=True)[0] == 1

calls = []

@pytest.mark.schedules(runs=20)
def test_holds(tmp_path):
    calls.append(tmp_path)
    fill(fixed=True)

def test_calls():
    assert len(calls) in (0, 1, 20)
    print(len(calls), "calls")

@pytest.mark.schedules(strategy="late")
def test_fails():
    fill(fixed=False)

@pytest.mark.schedules(strategy="late")
def test_fails_by_pytest():
    try:
        fill(fixed=False)
    except AssertionError:
        pytest.fail("so")

@pytest.mark.schedules
def test_skips():
    pytest.skip("so")
"""

COROUTINES = """
import pytest

@pytest.mark.schedules
async def test_marked():
    pass

async def test_plain():
    pass
"""


@pytest.fixture
def run_tests(tmp_path, run_python):
    """Return run_tests(text, *options), which returns what pytest prints for a
    file of tests."""

    def run(text, *options):
        (tmp_path / "test_it.py").write_text(text)
        done = run_python(
            "import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            str(tmp_path / "test_it.py"),
            *options,
        )
        return done.stdout + done.stderr

    return run


@pytest.fixture
def suite(run_tests):
    return functools.partial(run_tests, TESTS, "-rA")


def test_marked_tests(suite):
    text = suite()
    assert "2 failed, 2 passed, 1 skipped" in text
    assert "20 calls" in text
    found = re.findall(r"pytest --pystreams-replay (\S+) (.*)", text)
    assert [name for name, _ in found] == ["late:1", "late:1"]
    assert {test.split("::")[1] for _, test in found} == {
        "test_fails",
        "test_fails_by_pytest",
    }


def test_a_replayed_test(suite):
    text = suite("--pystreams-replay", "late:1", "-k", "fails")
    assert "2 failed" in text
    text = suite("--pystreams-replay", "early", "-k", "fails")
    assert "2 passed" in text


def test_all_tests_under_schedules(suite):
    text = suite("--pystreams-schedules", "7", "-k", "holds")
    assert "1 passed" in text
    text = suite("--pystreams-schedules", "7", "-k", "calls")
    assert text.count("0 calls") == 7


RACE = """
import pystreams

def test_race():
    one, other = (pystreams.Stream("cpu", name=name) for name in ("a", "b"))
    block = pystreams.empty(64, device="cpu", stream=one)
    block.fill_(1, stream=one)
    block.fill_(2, stream=other)
    one.synchronize()
    other.synchronize()
"""


def test_races_under_schedules(run_tests):
    """The report has one race, and a command that shows it again."""
    text = run_tests(RACE, "--pystreams-races", "--pystreams-schedules", "20")
    assert text.count("nothing orders two accesses") == 1
    assert 'replay(fn, "early", races=True)' in text
    (command,) = re.findall(r"^pytest (.*) test_it.py::test_race$", text, re.M)
    assert command == "--pystreams-replay early --pystreams-races"
    text = run_tests(RACE, *command.split())
    assert text.count("nothing orders two accesses") == 1
    assert "1 passed" in run_tests(RACE, "--pystreams-replay", "early")


def test_coroutine_functions(run_tests):
    """Coroutine functions are not called under schedules, and the report says
    so."""
    text = run_tests(COROUTINES, "--pystreams-schedules=5")
    for name in ("test_marked", "test_plain"):
        assert f"{name} is a coroutine function, which" in text


def test_a_stale_name_under_pytest(suite):
    text = suite("--pystreams-replay", "late:900", "-k", "holds")
    assert "1 failed" in text
    assert "explore it again" in text


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--pystreams-replay", "late:-1", "expects the name of a schedule"),
        ("--pystreams-replay", "", "expects the name of a schedule"),
        ("--pystreams-schedules", "0", "expected a number of runs of 1 or"),
        ("--pystreams-schedules", "-1", "expected a number of runs of 1 or"),
    ],
)
def test_options_that_are_refused(suite, option, value, expected):
    """The option is refused once, before any test runs."""
    text = suite(f"{option}={value}")
    assert text.count(expected) == 1
    assert f"{option}" in text
    assert f"but got {value!r}" in text
    assert "passed" not in text
    assert "failed" not in text


@pytest.mark.parametrize("options", [[], ["--pystreams-schedules", "7"]])
def test_together_with_xdist(suite, options):
    pytest.importorskip("xdist", reason="needs pytest-xdist")
    # pytest-benchmark warns of xdist, and in that pytest warnings are errors.
    workers = ("-n", "2", "-p", "no:benchmark")
    text = suite(*workers, *options, "-k", "holds or fails")
    assert "2 failed, 1 passed" in text
    found = re.findall(r"pytest --pystreams-replay (\S+) (.*)", text)
    assert [name for name, _ in found] == ["late:1", "late:1"]
    text = suite(*workers, "--pystreams-replay", "early", "-k", "fails")
    assert "2 passed" in text
