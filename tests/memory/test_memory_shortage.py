"""Memory when its housekeeping finds none, or when freeing a block fails:
nothing is freed early, and no other call fails."""

import pytest
from places import ROOT, SUPPORT


@pytest.fixture
def run(run_python, sanitized, short_library, failing):
    """run(code): what it prints.  The code can use the module `failing`, the
    number of its device type, and `native`, which makes calls of the C library
    fail."""
    if sanitized:
        pytest.skip("a sanitizer must be loaded before anything else")
    before = """
import os, sys
import failing, pystreams
from pystreams import _C
from pystreams.cuda._graphs import Graph
from short_calls import Native
native, ALL = Native(os.environ["SHORTAGE"]), 1 << 40
sys.unraisablehook = lambda error: print("unraisable:", error.exc_value)

def empty(nbytes, stream=None):
    return pystreams.empty(nbytes, device="failing", stream=stream)

def free():
    return _C.mem_get_info(20)[0]

all = free()
first, second = pystreams.Stream("failing"), pystreams.Stream("failing")
"""
    env = {"PYTHONPATH": f"{failing}:{SUPPORT}:{ROOT}", **short_library}

    def run(code, **variables):
        done = run_python(before + code, env=env | variables)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def test_without_memory_for_its_mark_no_work_is_queued(run):
    """Without the mark, the block could be freed while the work uses it."""
    assert (
        run("""
source, target = empty(64).fill_(1), empty(64).fill_(2)
source.tobytes(), target.tobytes()
refused = 0
for after in range(50):
    for use in (
        lambda s: target.copy_(source, non_blocking=True, stream=s),
        lambda s: target.fill_(1, stream=s),
    ):
        stream = pystreams.Stream("failing")
        native.begin(after, ALL)
        try:
            use(stream)
        except MemoryError:
            refused += 1
        else:
            target.fill_(2, stream=stream)
        finally:
            native.end()
        stream.synchronize()
        assert target.tobytes() == b"\\2" * 64
assert 2 <= refused < 100
print("done")
""")
        == "done\n"
    )


USES = {
    "device": "pystreams.Stream(name)",
    "current stream": "_C.current_stream(dict(_C.backends())[name])",
    "memory": "pystreams.empty(64, device=name).close()",
    "properties": "_C.device_properties(dict(_C.backends())[name])",
    "synchronize": "_C.synchronize(dict(_C.backends())[name])",
    "event": "pystreams.Event(name).record()",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_out_of_memory_at_first_use(run, name, use):
    """It is a MemoryError, and the next use finds all as at first."""
    printed = run(
        f"""
name = {name!r}
refused = 0
for after in range(100):
    native.begin(after, ALL)
    try:
        {use}
        break
    except MemoryError:
        refused += 1
    finally:
        native.end()
assert refused == after
print(refused)
""",
        PYSTREAMS_EMULATE_CUDA="1",
    )
    assert 1 <= int(printed) < 50


HELD = """
import threading
gate = threading.Event()
second.submit(gate.wait, 30)
block = empty(1 << 20, first)
block.fill_(1, stream=second)
assert free() == all - (1 << 20)
"""


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(
    "missing",
    ["native.begin(0, ALL)", "failing.fail('event_create', 2, 99)"],
    ids=["of memory", "of events"],
)
def test_what_is_given_up_without_memory_is_not_freed_early(
    run, missing, captured
):
    assert (
        run(
            HELD
            + f"""
graph, other = Graph(20), empty(256, second)
if {captured}:
    _C.set_stream(second)
    graph.capture_begin(capture_error_mode="relaxed")
    other.fill_(1)
{missing}
block.close()
native.end()
if {captured}:
    graph.capture_end()
    _C.set_stream(_C.default_stream(20))
for _ in range(3):
    empty(8, first)
    assert free() == all - (1 << 20) - 256
gate.set()
second.synchronize()
assert free() == all - 256
print("done")
"""
        )
        == "done\n"
    )


def test_a_drop_asks_few_streams(run):
    """However many have memory that was dropped; each has its turn."""
    assert (
        run("""
import threading
gate = threading.Event()
second.submit(gate.wait, 30)
streams = [pystreams.Stream("failing") for _ in range(64)]
block, others = empty(64, first), [empty(8, first) for _ in range(5)]
for stream in streams:
    stream.wait_stream(second)
    block.fill_(1, stream=stream)
block.close()
failing.fail("event_query", 0, 0)
others.pop().close()
assert 0 < failing.called() <= 16, failing.called()
gate.set()
for stream in streams:
    while not stream.query():
        pass
asked = failing.called()
while others:
    others.pop().close()
assert failing.called() - asked == 64, failing.called()
print("done")
""")
        == "done\n"
    )


def test_a_failing_free_fails_no_other_call(run):
    """Not even of an allocation that waits for what was given up."""
    assert run(
        HELD
        + """
rest = empty(free(), first)
rest.record_stream(second)
block.close()
rest.close()
failing.fail("memory_free", 700, 1)
timer = threading.Timer(0.1, gate.set)
timer.start()
kept = empty(32 << 20, first)
print("allocated")
timer.join()
"""
    ) == (
        "unraisable: FAILING error: an illegal memory access was encountered\n"
        "releasing resources failed with cudaErrorIllegalAddress (700).\n"
        "allocated\n"
    )


def test_a_graph_that_is_not_whole_is_none(run):
    """If the capture's end fails, there is no graph: its launch would use
    memory that is freed."""
    assert run("""
graph = Graph(20)
_C.set_stream(first)
graph.capture_begin()
block = empty(64, first)
block.fill_(1, stream=first)
failing.fail("graph_instantiate", 700, 1)
try:
    graph.capture_end()
except pystreams.AcceleratorError as error:
    print(error)
del block
assert free() == all
try:
    graph.replay()
except RuntimeError as error:
    print(error)
""").splitlines()[1:] == [
        "CUDAGraph.capture_end failed with cudaErrorIllegalAddress (700).",
        "Called CUDAGraph::replay without a preceding successful capture.",
    ]


def test_a_graph_keeps_its_memory_until_its_launches_are_done(run):
    """This holds even if there is no memory to record the end of a launch."""
    assert (
        run("""
graph = Graph(20)
_C.set_stream(first)
graph.capture_begin()
block = empty(64, first)
block.fill_(1, stream=first)
graph.capture_end()
del block
import threading
gate = threading.Event()
second.submit(gate.wait, 30)
_C.set_stream(second)
graph.replay()
native.begin(0, ALL)
graph.reset()
native.end()
empty(8, first)
assert free() < all
gate.set()
second.synchronize()
assert free() == all, (free(), all)
print("done")
""")
        == "done\n"
    )
