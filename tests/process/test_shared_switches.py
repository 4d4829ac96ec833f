"""Many threads switch things on and off for the whole process.  Nothing is
counted twice or lost, and in the end all of it is off."""

import contextlib
import gc
import sys
import threading

import pytest
from gil import FREE
from together import together

import pystreams
from pystreams import _C, races, schedules, trace
from pystreams.cuda import _gpu_trace

THREADS = 64 if FREE else 8
ROUNDS = 40 if FREE else 10

pytestmark = pytest.mark.usefixtures("switch_often")


def wait_again(stream, event):
    stream.wait_event(event)


def test_every_redundant_wait_is_counted(backend):
    """The waits are at one place that all threads share, or in code that each
    thread has for itself."""
    streams = [backend.stream() for _ in range(THREADS)]
    code = "def wait(stream, event):\n    stream.wait_event(event)\n"

    def work(number):
        own = {}
        exec(compile(code, f"thread {number}", "exec"), own)
        stream = streams[number]
        event = stream.record_event()
        for _ in range(ROUNDS):
            wait_again(stream, event)
            own["wait"](stream, event)

    with races.redundant() as found:
        together(work, THREADS)
    counts = {(wait.filename, wait.function): wait.count for wait in found}
    assert counts.pop((__file__, "wait_again")) == THREADS * ROUNDS
    assert counts == {
        (f"thread {number}", "wait"): ROUNDS for number in range(THREADS)
    }


def test_detection_begins_and_ends(backend):
    """Each block finds its own thread's race, whichever block reports it."""
    found = []

    def work(number):
        for _ in range(ROUNDS // 10):
            one, other = backend.stream(), backend.stream()
            with contextlib.ExitStack() as stack:
                stack.enter_context(races.detect(found.append))
                if number % 2:
                    stack.enter_context(races.redundant(found.append))
                data = backend.empty(number + 1)
                data.fill_(1, stream=one)
                data.fill_(2, stream=other)
                other.wait_stream(one)
                other.synchronize()

    together(work, THREADS)
    assert len(found) == THREADS * (ROUNDS // 10)
    with races.redundant() as waits:
        pass
    assert waits == []


@pytest.mark.unscheduled
def test_schedules_begin_and_end(engine):
    """There is one schedule at a time, and each that begins is complete."""
    engine.synchronize()
    ran = []

    def work(number):
        for _ in range(ROUNDS):
            try:
                with schedules.run("late"):
                    # No other thread can have begun a schedule meanwhile.
                    ran.append(number)
                    assert _C.schedule_is_on()
            except RuntimeError as error:
                assert "schedule" in str(error)

    together(work, THREADS)
    assert ran
    assert not _C.schedule_is_on()
    stream, data = engine.stream(), engine.empty(8)
    data.fill_(7, stream=stream)
    stream.synchronize()
    with schedules.run("late"):
        data.fill_(1, stream=stream)
        assert not stream.query()


def test_subscriptions_begin_and_end(backend):
    """Each thread sees all its own calls, and those of others while it is
    subscribed."""

    def work(number):
        stream, me = backend.stream(), threading.get_ident()
        for turn in range(ROUNDS):
            seen = []

            def note(record, seen=seen):
                if threading.get_ident() == me:
                    seen.append(record)

            with trace.subscribe(note, "event_record"):
                for _ in range(turn % 3 + 1):
                    stream.record_event()
            stream.record_event()
            handle = stream.native_handle
            assert [r.stream for r in seen] == [handle] * (turn % 3 + 1)

    together(work, THREADS)
    seen = []
    backend.stream().record_event()
    with trace.subscribe(seen.append, "event_wait"):
        backend.stream().record_event()
    assert seen == []


def test_the_gpu_trace_begins_and_ends(cuda):
    """A callback is called once for each call while the trace is on."""
    seen = []
    mine = threading.get_ident()

    def note(event, stream):
        if threading.get_ident() == mine:
            seen.append(stream)

    def work(number):
        for _ in range(ROUNDS):
            _C._activate_gpu_trace()
            if number == 0:
                _gpu_trace.register_callback_for_event_record(note)
            _C._deactivate_gpu_trace()

    registered = len(_gpu_trace._callbacks)
    stream = cuda.stream()
    try:
        together(work, THREADS)
        stream.record_event()
        assert seen == []
        _C._activate_gpu_trace()
        stream.record_event()
        assert seen == [stream.native_handle] * ROUNDS
    finally:
        _C._deactivate_gpu_trace()
        del _gpu_trace._callbacks[registered:]


@pytest.mark.unscheduled
def test_imports_again(run_python):
    """The package is imported again while other threads use what the first
    import made."""
    code = f"""
import sys
sys.path[:0] = {[str(p) for p in sys.path]!r}
from together import together
import pystreams
first = [name for name in sys.modules if name.startswith("pystreams")]
sys.setswitchinterval(1e-6)
stream = pystreams.Stream("cpu")
def work(number):
    for _ in range(5):
        if number == 0:
            for name in first:
                del sys.modules[name]
            import pystreams as again
            assert again.Stream is pystreams.Stream
        for _ in range(50):
            future = stream.submit(int)
            assert future._state in ("PENDING", "RUNNING", "FINISHED")
            assert future.result(30) == 0
            pystreams.Event("cpu", blocking=True)
together(work, {THREADS})
print("done")
"""
    done = run_python(code, timeout=300)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_backends_are_registered_once():
    """Each backend is registered once, even if several threads ask for it."""
    before = _C.backends()

    def work(number):
        for _ in range(ROUNDS):
            _C.register_backends(1, 0, 0, False)
            assert _C.backends() == before

    together(work, THREADS)
    gc.collect()
    assert pystreams.Stream("cpu").submit(int).result(30) == 0
