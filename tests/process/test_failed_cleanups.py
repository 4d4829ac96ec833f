"""A clean-up that a program did not ask for fails no call: it is reported."""

import pytest
from places import ROOT, SUPPORT

REPORT = (
    "reported: FAILING error: invalid resource handle\n"
    "releasing resources failed with PS_ERROR_INVALID_HANDLE (400).\n"
)


@pytest.fixture
def run(run_python, sanitized, failing):
    """run(before, call, member, after): run the code `before`, then `call`,
    during which the backend's function `member` fails.  Check that the call
    returns, and that this failure is reported once."""
    if sanitized:
        pytest.skip("a sanitizer must be loaded before anything else")
    program = """
import sys, threading
import failing, pystreams
from captures import Capture, replay
from pystreams import _C, trace
from pystreams.cuda._graphs import Graph

NAME, TYPE = "failing", 20
sys.unraisablehook = lambda error: print("reported:", error.exc_value)

def streams(count, **options):
    return [pystreams.Stream(NAME, **options) for _ in range(count)]

def drop_idle(count):
    for stream in streams(count):
        stream.record_event()

def drop_busy(count):
    \"\"\"Return once the dropped streams are idle.\"\"\"
    gate = threading.Event()
    first.submit(gate.wait, 30)
    for stream in streams(count):
        stream.wait_stream(first)
    first.wait_stream(stream)
    del stream
    gate.set()
    first.synchronize()

def drop_failed():
    stream = pystreams.Stream(NAME)
    _C.fail(stream, 719)
    while True:
        try:
            stream.query()
        except pystreams.AcceleratorError:
            return

first, second = streams(2)
block = pystreams.empty(4, device=NAME, stream=first).zero_()
{before}
failing.fail({member!r}, 400, 1)
{call}
failing.fail("", 0, 0)
print("called")
pystreams.empty(4, device=NAME)
{after}
print("done")
"""
    env = {"PYTHONPATH": f"{failing}:{SUPPORT}:{ROOT}"}

    def run(before, call, member, after=""):
        code = program.format(
            before=before, call=call, member=member, after=after
        )
        done = run_python(code, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count(REPORT) == 1, done.stdout
        rest = done.stdout.replace(REPORT, "")
        assert rest == "called\ndone\n"

    return run


def test_of_a_failed_stream_in_the_pool(run):
    run("drop_failed()", "pystreams.Stream(NAME)", "stream_destroy")


@pytest.mark.parametrize(
    "call", ["pystreams.Stream(NAME, priority=-1)", "_C.synchronize(TYPE)"]
)
def test_of_a_stream_for_which_the_pool_has_no_room(run, call):
    run("drop_busy(40)", call, "stream_destroy")


@pytest.mark.parametrize(
    "call",
    [
        "pystreams.Stream(NAME)",
        "_C.synchronize(TYPE)",
        "pystreams.Partition(1, NAME)",
    ],
)
def test_of_a_stream_that_was_dropped_while_it_was_busy(run, call):
    run(
        """
gate = threading.Event()
first.submit(gate.wait, 30)
stream = pystreams.Partition(1, NAME).Stream()
stream.wait_stream(first)
event = stream.record_event()
del stream
gate.set()
event.synchronize()
""",
        call,
        "stream_destroy",
    )


def test_of_the_stream_of_the_replay_before(run):
    """The replay is queued, and its callables run once."""
    run(
        """
runs = []
graph, stream = Graph(TYPE, True), pystreams.Stream(NAME)
with Capture(graph, stream):
    block.fill_(7, stream=stream)
    stream.submit(runs.append, 1)
graph.instantiate()
replay(graph, stream)
stream.synchronize()
drop_idle(40)
block.fill_(0, stream=second)
second.synchronize()
del stream
""",
        "replay(graph, second)",
        "stream_destroy",
        """
second.synchronize()
assert (block.tobytes(), runs) == (b"\\7" * 4, [1, 1])
""",
    )


CAPTURED = """
graph = Graph(TYPE, {keep})
with Capture(graph, first):
    block.fill_(7, stream=first)
"""
REPLAYED = """
replay(graph, first)
first.synchronize()
assert block.tobytes() == b"\\7" * 4
"""


def test_of_the_graph_that_was_instantiated(run):
    """It can be replayed."""
    code = CAPTURED.format(keep=False)
    run("", code, "graph_destroy", REPLAYED)


def test_of_an_executable_that_is_replaced(run):
    before = CAPTURED.format(keep=True) + "graph.instantiate()"
    run(before, "graph.instantiate()", "executable_destroy", REPLAYED)


def test_of_what_an_update_replaces(run):
    """Memory that only the graph still used."""
    before = (
        CAPTURED.format(keep=True)
        + """
graph.instantiate()
other, more = Graph(TYPE, True), pystreams.empty(4, device=NAME, stream=first)
with Capture(other, first):
    more.fill_(8, stream=first)
graph.update(other)
del more, other
third = Graph(TYPE, True)
with Capture(third, first):
    block.fill_(7, stream=first)
"""
    )
    run(before, "graph.update(third)", "memory_free", REPLAYED)


def test_of_the_event_of_a_wait(run):
    """The pool of idle events is full when the wait gives its event back, so
    the event is destroyed."""
    run(
        """
events = [pystreams.Event(NAME, enable_timing=False) for _ in range(1200)]
for event in events:
    event.record(first)
def fill_pool(record):
    second.wait_stream(first)
    events.clear()
    failing.fail("event_destroy", 400, 1)
trace.subscribe(fill_pool, kinds=["event_wait"])
""",
        "first.wait_stream(second)",
        "",
    )
