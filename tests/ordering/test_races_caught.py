"""A RaceError that the program catches, or that another error hides, is
reported by what looks for races in a whole program or test."""

import pytest

RACE = """
import sys
import threading

import pystreams
from pystreams import races

def race():
    a, b = pystreams.Stream("cpu"), pystreams.Stream("cpu")
    x = pystreams.Buffer(64, device="cpu")
    x.fill_(1, stream=a)
    x.fill_(2, stream=b)

def other_race():
    a, b = pystreams.Stream("cpu"), pystreams.Stream("cpu")
    x = pystreams.Buffer(64, device="cpu")
    x.fill_(3, stream=a)
    x.fill_(4, stream=b)

def caught(function=race):
    try:
        function()
    except races.RaceError:
        return "caught"

def in_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

"""

MAIN = "import sys, pystreams._cli as cli; sys.exit(cli.main())"
FOUND = "nothing orders two accesses"


@pytest.fixture(params=["command", "environment"])
def run(request, run_python, tmp_path):
    path = tmp_path / "script.py"

    def run(code):
        path.write_text(RACE + code)
        if request.param == "command":
            return run_python(MAIN, "races", path)
        return run_python([path], env={"PYSTREAMS_RACES": "raise"})

    return run


@pytest.mark.parametrize(
    "code",
    [
        "caught()",
        "caught(); caught()",
        "in_a_thread(caught)",
        "caught(); sys.exit(3)",
        "import atexit; atexit.register(caught)",
    ],
)
def test_it_is_caught(run, code):
    done = run(code)
    assert done.returncode == 1
    assert "a race did not end the program" in done.stderr
    assert done.stderr.count(FOUND) == 1
    assert "b.wait_stream(a)" in done.stderr


def test_several_are_caught(run):
    done = run("caught(); caught(other_race)")
    assert done.returncode == 1
    assert "2 races did not end the program" in done.stderr
    assert done.stderr.count(FOUND) == 2


def test_the_program_ends_with_another_error(run):
    done = run("caught(); 1 / 0")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert done.stderr.count(FOUND) == 1


def test_it_ends_the_program(run):
    """The error is in the traceback, and nowhere else."""
    for code in ("race()", "try:\n race()\nexcept ValueError: pass"):
        done = run(code)
        assert done.returncode == 1
        assert done.stderr.count(FOUND) == 1
    done = run("try:\n race()\nfinally:\n 1 / 0")
    assert done.stderr.count(FOUND) == 1


def test_it_ends_a_thread(run):
    done = run("in_a_thread(race)")
    assert done.returncode == 1
    assert "a race did not end the program" in done.stderr


def test_there_is_none(run):
    done = run("print('done')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_block_of_the_program_expects_it(run):
    """A race that is reported by the program's own detect() is the program's
    matter."""
    done = run("with races.detect(): caught()")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_of_the_program(run):
    """The child does not report what its parent caught."""
    done = run(
        "caught()\nimport os\npid = os.fork()\n"
        "if pid:\n print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert (done.returncode, done.stdout) == (1, "0\n")
    assert done.stderr.count(FOUND) == 1


# ---- Under pytest ----


@pytest.fixture
def suite(run_python, tmp_path):
    """Return a function that runs tests under pytest.  It returns the output
    up to the summary, because in CI the summary repeats messages."""

    def run(tests, *options):
        path = tmp_path / "test_it.py"
        path.write_text(RACE + "import pytest\n" + tests)
        program = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
        # Leave out a plugin that other users have, and that warns of
        # processes.
        without = ("-p", "no:cacheprovider", "-p", "no:benchmark")
        done = run_python(program, *without, *options, str(path))
        assert "INTERNALERROR" not in done.stdout + done.stderr
        text, _, summary = done.stdout.partition("short test summary info")
        return text, summary.splitlines()[-1] if summary else text

    return run


CATCHES = {
    "caught": "caught()",
    "thread": "in_a_thread(caught)",
    "callable": """
    future = pystreams.Stream("cpu").submit(
        lambda: pystreams.Stream("cpu").submit(caught).result())
    assert future.result() == "caught\"""",
    "skip": "caught(); pytest.skip('so')",
    "xfail": "caught(); pytest.xfail('so')",
}


@pytest.mark.parametrize("code", CATCHES.values(), ids=CATCHES)
@pytest.mark.parametrize("looks", ["option", "marker", "fixture"])
def test_a_test_that_catches_it(suite, code, looks):
    marker = "@pytest.mark.races\n" if looks == "marker" else ""
    fixture = "no_races" if looks == "fixture" else ""
    options = ["--pystreams-races"] if looks == "option" else []
    text, result = suite(
        f"{marker}def test_it({fixture}):\n    {code.strip()}\n"
        "def test_next(): pass\n",
        *options,
    )
    assert "1 failed, 1 passed" in result
    heading = "a RaceError was raised, but did not end the test"
    assert f"{heading}:\n{FOUND}" in text


def test_a_test_whose_thread_raises_it(suite):
    text, result = suite(
        "@pytest.mark.races\n"
        "@pytest.mark.filterwarnings('ignore::pytest."
        "PytestUnhandledThreadExceptionWarning')\n"
        "def test_it(): in_a_thread(race)\n",
    )
    assert "1 failed" in result
    assert FOUND in text


def test_a_test_that_fails_otherwise(suite):
    text, result = suite(
        "def test_it():\n    caught()\n    caught(other_race)\n    1 / 0\n",
        "--pystreams-races",
    )
    assert "1 failed" in result
    assert "ZeroDivisionError" in text
    assert text.count(FOUND) == 2


def test_a_test_that_catches_several(suite):
    text, result = suite(
        "def test_it():\n    caught()\n    caught(other_race)\n",
        "--pystreams-races",
    )
    assert "1 failed" in result
    assert text.count("x.fill_(2, stream=b)\n") >= 1
    assert "one more race" in text
    assert "x.fill_(4, stream=b)" in text.partition("one more race")[2]


def test_fixtures_that_catch_it(suite):
    text, result = suite(
        "@pytest.fixture\n"
        "def before(): caught()\n"
        "@pytest.fixture\n"
        "def after():\n    yield\n    caught()\n"
        "def test_before(before): pass\n"
        "def test_after(after): pass\n",
        "--pystreams-races",
    )
    assert "1 passed, 2 errors" in result
    assert "ERROR at setup of test_before" in text
    assert "ERROR at teardown of test_after" in text


def test_a_test_that_expects_it(suite):
    """The test's own detect() decides what happens."""
    _, result = suite(
        "def test_it():\n"
        "    with races.detect(), pytest.raises(races.RaceError):\n"
        "        race()\n",
        "--pystreams-races",
    )
    assert "1 passed" in result


def test_on_several_processes(suite):
    pytest.importorskip("xdist", reason="needs pytest-xdist")
    text, result = suite(
        "def test_it(): caught()\n"
        "def test_other(): race()\n"
        "def test_thread(): in_a_thread(caught)\n"
        "def test_good(): pass\n",
        "--pystreams-races",
        "-n2",
    )
    assert "3 failed, 1 passed" in result
    assert text.count(FOUND) == 3
