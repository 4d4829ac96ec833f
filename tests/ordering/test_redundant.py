"""races.redundant: the waits that order nothing new are listed, and no other
one is."""

import inspect
import signal

import pytest
from captures import Capture, replay
from deadlines import LONG

import pystreams
from pystreams import races, schedules
from pystreams.cuda._graphs import Graph

SIZE = 64


class Two:
    """Two streams of a device; the first has work."""

    def __init__(self, backend):
        self.backend = backend
        self.a, self.b = backend.stream(), backend.stream()
        self.x = backend.empty(SIZE)
        backend.synchronize()

    def work(self, stream=None):
        self.x.fill_(1, stream=stream or self.a)


@pytest.fixture
def two(backend):
    return Two(backend)


WAITS = {
    "wait_stream": lambda two, event: two.b.wait_stream(two.a),
    "wait_event": lambda two, event: two.b.wait_event(event),
    "Event.wait": lambda two, event: event.wait(two.b),
    "Stream.synchronize": lambda two, event: two.a.synchronize(),
    "Stream.synchronize(timeout)": lambda two, event: two.a.synchronize(LONG),
    "Event.synchronize": lambda two, event: event.synchronize(),
    "device": lambda two, event: two.backend.synchronize(),
}
BY_STREAMS = {"wait_stream", "wait_event", "Event.wait"}


def listed(found):
    return [(wait.name, wait.count) for wait in found]


def test_the_stream_of_a_thread(two):
    """Its handle means another stream on each thread."""
    own = pystreams.ExternalStream(2, two.backend.device())
    with races.redundant() as found:
        two.work(own)
        own.synchronize()
    assert listed(found) == []


def test_waits_under_all_schedules(engine):
    seen = []

    def fn():
        two = Two(engine)
        with races.redundant() as found:
            two.work()
            two.a.synchronize()  # needed
            two.a.synchronize()
            two.work()
            two.a.synchronize()  # needed
        first = fn.__code__.co_firstlineno
        seen.append([wait.line - first for wait in found])

    fn()
    schedules.explore(fn, strategy="all")
    assert len(seen) > 1
    assert all(lines == [5] for lines in seen), seen


def test_a_wait_after_a_query_under_all_schedules(engine):
    seen = []

    def fn():
        two = Two(engine)
        with races.redundant() as found:
            two.work()
            while not two.a.query():
                pass
            two.a.synchronize()
        seen.append(listed(found))

    fn()
    schedules.explore(fn, strategy="all")
    assert len(seen) > 1
    assert all(names == [("synchronize", 1)] for names in seen), seen


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_wait_that_is_needed(two, wait):
    with races.redundant() as found:
        for _ in range(3):
            two.work()
            event = two.a.record_event()
            wait(two, event)
            two.work()
    assert listed(found) == []


@pytest.mark.parametrize(
    ("first", "second"), [(a, b) for a in WAITS for b in WAITS if a != b]
)
def test_a_wait_after_another(two, first, second):
    """The second wait is redundant if a stream makes both, or if the host has
    made the first and so knows that the work is done.  After a stream's wait,
    a wait of the host is needed: the first tells the host nothing."""
    with races.redundant() as found:
        for _ in range(3):
            two.work()
            event = two.a.record_event()
            WAITS[first](two, event)
            WAITS[second](two, event)
    if first in BY_STREAMS and second not in BY_STREAMS:
        assert listed(found) == []
    elif second in BY_STREAMS:
        assert listed(found) == [("wait", 3)]
    else:
        assert listed(found) == [("synchronize", 3)]


def test_twice_from_one_place(two):
    """The first of each pair is needed."""
    with races.redundant() as found:
        two.work()
        for _ in range(2):
            two.b.wait_stream(two.a)
            two.a.synchronize()
    assert listed(found) == []


def test_needed_once(two):
    with races.redundant() as found:
        two.work()
        two.a.synchronize()
        for again in range(5):
            if again == 3:
                two.work()
            two.b.wait_stream(two.a)
    assert listed(found) == []


def test_its_place(two):
    with races.redundant() as found:
        two.b.wait_stream(two.a)
        line = inspect.currentframe().f_lineno - 1
    (wait,) = found
    assert (wait.filename, wait.line) == (__file__, line)
    assert wait.function == "test_its_place"
    assert str(wait).splitlines() == [
        "wait, once",
        f'  File "{__file__}", line {line}, in test_its_place',
        "    two.b.wait_stream(two.a)",
    ]


def test_by_a_third_stream(two):
    third = two.backend.stream()
    with races.redundant() as found:
        two.work()
        third.wait_stream(two.a)
        two.b.wait_stream(third)
        two.b.wait_stream(two.a)
    assert [wait.line for wait in found] == [
        inspect.currentframe().f_lineno - 2
    ]


def test_its_own_stream(two):
    with races.redundant() as found:
        two.work()
        two.a.wait_event(two.a.record_event())
    assert listed(found) == [("wait", 1)]


def test_what_the_library_waits_for(two):
    """Copies that block, and exports, wait themselves."""
    host = pystreams.Buffer(SIZE, device="cpu")
    with races.redundant() as found, two.a:
        two.x.tobytes()
        two.x.copy_(bytes(SIZE))
        host.__dlpack__()
        if two.backend.name == "cuda":
            with two.b:
                assert two.x.__cuda_array_interface__
    assert listed(found) == []


def test_copies_between_devices(two_cuda):
    one, other = two_cuda.empty(SIZE, 0), two_cuda.empty(SIZE, 1)
    two_cuda.synchronize()
    with races.redundant() as found:
        other.copy_(one)
        other.copy_(one)
    assert listed(found) == []


def test_work_of_before(two):
    """For an event that was recorded before the block, it is not known which
    work it covers, so a wait for it is never redundant."""
    two.work()
    with two.backend.hold(two.a):
        event = two.a.record_event()
        with races.redundant() as found:
            two.b.wait_event(event)
    assert listed(found) == []


def test_a_query_tells(two):
    with races.redundant() as found:
        two.work()
        while not two.a.query():
            pass
        two.a.synchronize()
    assert listed(found) == [("synchronize", 1)]


def test_a_callable(two):
    """A callable knows the work that was known as done when it was queued, and
    the work for which it has waited."""

    def run():
        two.b.synchronize()
        two.b.synchronize()

    with races.redundant() as found:
        two.work(two.b)
        two.a.submit(run).result(LONG)
    assert listed(found) == [("synchronize", 1)]


def test_a_capture(cuda):
    """Waits that fork and join a capture make its graph."""
    two, graph = Two(cuda), Graph(cuda.type)
    with races.redundant() as found:
        with Capture(graph, two.a):
            two.b.wait_stream(two.a)
            two.work(two.b)
            two.a.wait_stream(two.b)
        replay(graph, two.a)
        two.a.synchronize()
    assert listed(found) == []


def test_a_capture_waits_for_the_device(cuda):
    """The with statement makes this wait, so the program cannot remove it."""
    two, graph = Two(cuda), pystreams.cuda.CUDAGraph()
    with (
        races.redundant() as found,
        pystreams.cuda.graph(graph, stream=two.a),
    ):
        two.work()
    assert listed(found) == []


def test_a_capture_waits_for_the_accelerator():
    stream, memory = pystreams.Stream(), pystreams.empty(SIZE)
    with races.redundant() as found, stream, pystreams.accelerator.Graph():
        memory.fill_(1)
    assert listed(found) == []


def test_a_wait_that_raises(cuda):
    """The program may rely on the exception, even if other waits from the same
    line are redundant."""
    two, graph = Two(cuda), Graph(cuda.type)

    def wait():
        cuda.synchronize()

    with races.redundant() as found:
        wait()
        with Capture(graph, two.a):
            two.work()
            with pytest.raises(RuntimeError):
                wait()
        wait()
    assert listed(found) == []


def test_what_races_is_reported(two):
    with pytest.raises(races.RaceError), races.redundant() as found:
        two.b.synchronize()
        two.work()
        two.work(two.b)
    assert listed(found) == [("synchronize", 1)]


def test_overlapping_blocks(two):
    with races.redundant() as outer:
        two.b.synchronize()
        with races.redundant() as inner:
            two.a.synchronize()
        two.a.synchronize()
    assert (len(outer), len(inner)) == (3, 2)
    with races.redundant() as found:
        pass
    assert listed(found) == []


def test_outside_of_it_nothing_is_counted(two):
    with races.detect():
        two.b.synchronize()
        with races.redundant() as found:
            pass
    assert listed(found) == []


def test_code_that_is_made_anew(two):
    """It is one place, however often it is compiled."""
    with races.redundant() as found:
        for _ in range(1000):
            exec(compile("two.b.synchronize()", "made", "exec"), {"two": two})
    assert listed(found) == [("synchronize", 1000)]


@pytest.mark.parametrize(
    ("end", "code"), [("pass", 0), ("sys.exit(0)", 0), ("sys.exit(3)", 3)]
)
def test_the_command(run_python, tmp_path, end, code):
    path = tmp_path / "script.py"
    path.write_text(
        "import pystreams, sys\n"
        'a, b = pystreams.Stream("cpu"), pystreams.Stream("cpu")\n'
        f"b.wait_stream(a)\n{end}\n"
    )
    program = "import sys, pystreams._cli as cli; sys.exit(cli.main())"
    done = run_python(program, "races", "--redundant", path)
    assert done.returncode == code
    assert done.stdout.splitlines() == [
        "waits that ordered nothing new:",
        "wait, once",
        f'  File "{path}", line 3, in <module>',
        "    b.wait_stream(a)",
    ]


def test_the_command_finds_none(run_python, tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import pystreams")
    program = "import sys, pystreams._cli as cli; sys.exit(cli.main())"
    done = run_python(program, "races", "--redundant", path)
    assert (done.returncode, done.stdout) == (0, "no redundant waits\n")


def test_the_command_and_a_forked_child(run_python, tmp_path):
    """The child does not list the waits of its parent."""
    path = tmp_path / "script.py"
    path.write_text(
        "import os, sys\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    sys.exit(0)\n"
        "print(os.waitpid(pid, 0)[1])"
    )
    program = "import sys, pystreams._cli as cli; sys.exit(cli.main())"
    done = run_python(program, "races", "--redundant", path)
    assert (done.stdout, done.stderr) == ("0\nno redundant waits\n", "")


def test_a_handler_during_a_wait_that_was_not_asked_for(engine, full):
    """A copy waits for room; what a signal's handler waits for meanwhile is
    the program's."""
    stream, _, gate = full
    other, buffer = engine.stream(), engine.empty(SIZE)

    def handler(number, frame):
        other.synchronize()
        gate.open()

    old = signal.signal(signal.SIGALRM, handler)
    try:
        with races.redundant() as found:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            buffer.copy_(bytes(SIZE), stream=stream)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert listed(found) == [("synchronize", 1)]
