"""What trace callbacks may do, and how their errors are handled."""

import gc
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from pystreams import _C, trace
from pystreams.cuda._graphs import Graph

pytestmark = pytest.mark.usefixtures("nothing_left")

TIMEOUT = 30


def recorded(backend, stream=None):
    event = backend.event(enable_timing=False)
    event.record(stream)
    return event


def test_several_subscribers_are_called_in_order(backend):
    calls = []
    with (
        trace.subscribe(lambda record: calls.append("first")),
        trace.subscribe(lambda record: calls.append("second")),
    ):
        backend.synchronize()
    assert calls == ["first", "second"]


def test_kinds_may_be_one_name_several_or_all(backend):
    one, two, every, none = [], [], [], []
    with (
        trace.subscribe(one.append, "event_record"),
        trace.subscribe(two.append, iter(["event_wait", "event_record"])),
        trace.subscribe(every.append),
        trace.subscribe(none.append, []),
    ):
        recorded(backend).wait()
    assert [record.kind for record in one] == ["event_record"]
    assert [record.kind for record in two] == ["event_record", "event_wait"]
    assert [record.kind for record in every] == [
        "event_creation",
        "event_record",
        "event_wait",
        "event_deletion",
    ]
    assert none == []


def test_only_what_somebody_wants_reaches_python(backend, monkeypatch):
    reached = []

    def dispatch(kind, *arguments):
        reached.append(trace.KINDS[kind])

    monkeypatch.setattr(trace, "_dispatch", dispatch)

    def reach():
        del reached[:]
        recorded(backend).wait()
        return reached

    first = trace.subscribe(print, ["event_wait", "event_record"])
    second = trace.subscribe(print, "event_wait")
    assert reach() == ["event_record", "event_wait"]
    first.close()
    first.close()
    assert reach() == ["event_wait"]
    second.close()
    assert reach() == []


def test_closed_it_is_not_called(backend):
    calls = []
    subscription = trace.subscribe(calls.append)
    with subscription as entered:
        assert entered is subscription
        backend.synchronize()
    backend.synchronize()
    subscription.close()
    assert len(calls) == 1


def test_closed_by_an_exception_in_the_with_block(backend):
    calls = []
    with pytest.raises(KeyError), trace.subscribe(calls.append):
        raise KeyError
    backend.synchronize()
    assert calls == []


def test_a_callback_closes_itself(backend):
    calls = []

    def once(record):
        calls.append(record)
        subscription.close()

    subscription = trace.subscribe(once)
    backend.synchronize()
    backend.synchronize()
    assert len(calls) == 1


def test_a_callback_closes_the_next(backend):
    calls = []
    first = trace.subscribe(lambda record: second.close())
    second = trace.subscribe(calls.append)
    with first:
        backend.synchronize()
    assert calls == []


def test_a_callback_subscribes_another(backend):
    calls, more = [], []

    def subscribe(record):
        more.append(trace.subscribe(calls.append))
        first.close()

    first = trace.subscribe(subscribe)
    backend.synchronize()
    assert calls == []
    backend.synchronize()
    more[0].close()
    assert len(calls) == 1


def test_a_callback_uses_the_library(backend):
    """It may call everything, and none of its calls is traced."""
    calls = []

    def use(record):
        calls.append(record.kind)
        stream = backend.stream()
        with stream:
            event = recorded(backend)
            event.wait(backend.default_stream())
            event.synchronize()
            backend.stream().wait_stream(stream)
            assert backend.empty(8).fill_(7).tobytes() == b"\7" * 8
        stream.synchronize()
        backend.synchronize()

    with trace.subscribe(use):
        stream = backend.stream()
        event = recorded(backend, stream)
        event.wait()
        event.synchronize()
        del event
        backend.empty(8).tobytes()
        backend.synchronize()
    assert sorted(calls) == sorted(trace.KINDS)


def test_a_callback_records_the_event_it_is_told_of(backend):
    stream, event = backend.stream(), backend.event()
    with trace.subscribe(lambda record: event.record(stream)):
        event.record(stream)
        event.synchronize()
    assert event.query()


def test_an_exception_is_logged_and_the_next_is_called(backend, caplog):
    calls = []

    def fail(record):
        raise KeyError("a callback's own")

    with trace.subscribe(fail), trace.subscribe(calls.append):
        event = recorded(backend)
    assert [record.kind for record in calls] == [
        "event_creation",
        "event_record",
    ]
    assert event.event_id == calls[0].event
    first, second = caplog.records
    assert first.name == "pystreams.trace"
    assert first.levelno == logging.ERROR
    assert first.exc_info[0] is KeyError
    assert "fail" in first.getMessage()
    assert "event_creation" in first.getMessage()
    assert "event_record" in second.getMessage()


def test_after_an_exception_it_is_called_again(backend, caplog):
    calls = []

    def fail(record):
        calls.append(record)
        raise ValueError

    with trace.subscribe(fail):
        backend.synchronize()
        backend.synchronize()
    assert len(calls) == len(caplog.records) == 2


def test_a_system_exit_is_unraisable(backend, monkeypatch):
    seen = []

    def leave(record):
        sys.exit(3)

    with monkeypatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda u: seen.append(u.exc_type))
        with trace.subscribe(leave):
            backend.synchronize()
    assert seen == [SystemExit]


def test_an_exception_in_flight_is_kept(backend, caplog):
    def fail(record):
        raise ValueError

    with (
        trace.subscribe(fail, "event_deletion"),
        pytest.raises(ZeroDivisionError),
    ):
        (recorded(backend), 1 / 0)
    assert len(caplog.records) == 1


def test_what_the_collector_frees_is_told(backend):
    deletions = []
    gc.collect()
    with trace.subscribe(deletions.append, "event_deletion"):
        cycle = [recorded(backend)]
        handle = cycle[0].event_id
        cycle.append(cycle)
        del cycle
        gc.collect()
    assert [record.event for record in deletions] == [handle]


def test_what_an_ending_thread_frees_is_told(backend):
    deletions, local = [], threading.local()

    def work():
        local.event = recorded(backend)

    with trace.subscribe(deletions.append, "event_deletion"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(deletions) == 1


def test_each_thread_calls_for_itself(backend):
    calls = []

    def note(record):
        calls.append((threading.get_ident(), record.stream))

    def work(index):
        stream = backend.stream()
        for _ in range(20):
            recorded(backend, stream)
            stream.synchronize()
        return [(threading.get_ident(), stream.native_handle)] * 40

    with (
        trace.subscribe(note, ["event_record", "stream_synchronization"]),
        ThreadPoolExecutor(6) as pool,
    ):
        expected = [one for done in pool.map(work, range(6)) for one in done]
    assert sorted(calls) == sorted(expected)


def test_threads_are_in_callbacks_at_once(backend):
    barrier = threading.Barrier(3)
    together = []

    def meet(record):
        together.append(barrier.wait(TIMEOUT))

    def work(index):
        recorded(backend)

    with (
        trace.subscribe(meet, "event_record"),
        ThreadPoolExecutor(3) as pool,
    ):
        list(pool.map(work, range(3)))
    assert sorted(together) == [0, 1, 2]


def use_everything(backend):
    stream = backend.stream()
    event = recorded(backend, stream)
    event.wait()
    event.synchronize()
    stream.synchronize()
    backend.stream().wait_stream(stream)
    backend.empty(64).fill_(1).tobytes()
    backend.synchronize()


@pytest.mark.parametrize("kind", trace.KINDS)
def test_a_callback_that_blocks_holds_up_nobody(backend, kind):
    blocked, release = threading.Event(), threading.Event()

    def block(record):
        if threading.current_thread() is thread:
            blocked.set()
            assert release.wait(TIMEOUT)

    thread = threading.Thread(target=use_everything, args=[backend])
    with trace.subscribe(block, kind):
        thread.start()
        assert blocked.wait(TIMEOUT)
        use_everything(backend)
        release.set()
        thread.join()


def test_threads_subscribe_and_close_while_others_trace(backend):
    stop = threading.Event()

    def work(index):
        while not stop.is_set():
            recorded(backend)

    def come_and_go(index):
        seen = []
        for _ in range(100):
            with trace.subscribe(seen.append, "event_record"):
                event = recorded(backend)
            assert event.event_id in {record.event for record in seen}
            del seen[:]

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, i) for i in range(2)]
        try:
            list(pool.map(come_and_go, range(2)))
        finally:
            stop.set()
    for worker in workers:
        worker.result()
    assert trace._subscriptions == {}


BAD = {
    "no function": ((None,), TypeError, "callable for fn, but got NoneType"),
    "no function but a kind": (
        ("event_wait", "event_wait"),
        TypeError,
        "callable for fn",
    ),
    "an unknown kind": ((print, "nothing"), ValueError, "got 'nothing'"),
    "an unknown kind among others": (
        (print, ["event_wait", "event"]),
        ValueError,
        "got 'event'",
    ),
    "no name": ((print, [3]), ValueError, "got 3"),
    "nothing iterable": ((print, 3), TypeError, "for kinds, but got int"),
}


@pytest.mark.parametrize(
    ("arguments", "error", "message"), BAD.values(), ids=BAD
)
def test_bad_input_changes_nothing(arguments, error, message):
    with pytest.raises(error, match=message):
        trace.subscribe(*arguments)
    assert trace._subscriptions == {}


def test_an_unknown_kind_is_told_those_that_there_are():
    with pytest.raises(ValueError, match="expects kinds") as caught:
        trace.subscribe(print, "event")
    for kind in trace.KINDS:
        assert kind in str(caught.value)


INTERRUPT = """
import signal, sys, pystreams
from pystreams import _C, trace
signal.signal(signal.SIGINT, signal.default_int_handler)
stream = pystreams.Stream(sys.argv[1])
event = pystreams.Event(sys.argv[1])
def interrupt(record):
    signal.raise_signal(signal.SIGINT)
subscription = trace.subscribe(interrupt, "event_record")
try:
    event.record(stream)
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    subscription.close()
    event.record(stream)
    event.synchronize()
    print("interrupted")
"""


def test_an_interrupt_in_a_callback_is_raised_after_it(backend, run_python):
    done = run_python(INTERRUPT, backend.name)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "interrupted\n",
        "",
    )


EXITS = """
import sys, threading, pystreams
from pystreams import _C, trace
name, how = sys.argv[1:]
stream = pystreams.Stream(name)
event = stream.record_event()
buffer = pystreams.empty(64, device=name, stream=stream)
subscription = trace.subscribe(lambda record: stream.query())
if how == "thread":
    def work():
        while True:
            pystreams.Event(name).record(stream)
    threading.Thread(target=work, daemon=True).start()
elif how == "callback":
    inside = threading.Event()
    def stay(record):
        inside.set()
        threading.Event().wait()
    def work():
        trace.subscribe(stay)
        pystreams.Event(name).record(stream)
    threading.Thread(target=work, daemon=True).start()
    assert inside.wait(30)
elif how == "cycle":
    cycle = [event, buffer]
    cycle.append(cycle)
"""


@pytest.mark.parametrize("how", ["idle", "thread", "callback", "cycle"])
def test_exit_with_a_subscription_is_silent(backend, run_python, how):
    done = run_python(EXITS, backend.name, how)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FORK = """
import os, sys, pystreams
from pystreams import _C, trace
name = sys.argv[1]
stream = pystreams.Stream(name)
event = stream.record_event()
calls = []
subscription = trace.subscribe(lambda record: calls.append(record.kind))
if os.fork() == 0:
    del event, stream
    assert calls == [], calls
    stream = pystreams.Stream(name)
    stream.record_event()
    expected = ["stream_creation", "event_creation", "event_record"]
    assert calls == [*expected, "event_deletion"], calls
    subscription.close()
    stream.synchronize()
    assert len(calls) == 4
    os._exit(0)
_, status = os.wait()
assert os.waitstatus_to_exitcode(status) == 0
assert calls == []
event.synchronize()
assert calls == ["event_synchronization"]
"""


def test_a_forked_child_has_the_subscription(engine, run_python):
    done = run_python(FORK, engine.name)
    assert (done.returncode, done.stderr) == (0, "")


LIGHT = """
import sys
before = set(sys.modules)
import pystreams
heavy = {"collections", "functools", "logging", "typing"} - before
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


@pytest.mark.unscheduled
def test_importing_the_package_stays_light(run_python):
    done = run_python(LIGHT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("taken", ["lent", "copied", "interface"])
def test_may_make_another_stream_current(cuda, taken):
    """The work's stream stays alive, although the callback drops the last
    reference to it."""
    block = cuda.empty(64)
    block.fill_(3)
    target = cuda.empty(64)
    theirs = cuda.stream()
    producer = SimpleNamespace(
        __cuda_array_interface__={
            **block.__cuda_array_interface__,
            "stream": theirs.native_handle,
        }
    )
    changed = []

    def change(record):
        changed.append(cuda.current_stream().native_handle)
        _C.set_stream(cuda.default_stream())

    cuda.synchronize()
    _C.set_stream(cuda.stream())
    with trace.subscribe(change, "event_record"):
        if taken == "interface":
            target.copy_(producer)
        else:
            capsule = block.__dlpack__(copy=taken == "copied" or None)
            target.copy_(capsule)
    assert changed[0] != 0
    cuda.synchronize()
    assert target.tobytes() == b"\3" * 64


def test_what_orders_replays_is_not_told(backend):
    """A graph's replays are ordered by an event of its own.  Records and waits
    of this event call no callback: the graph is locked then."""
    graph, calls = Graph(backend.type, True), []
    buffer = backend.empty(64)
    with backend.stream():
        graph.capture_begin()
        buffer.fill_(3)
        graph.capture_end()
    first, second = backend.stream(), backend.stream()
    with first:
        graph.replay()
    graph.instantiate()
    with trace.subscribe(calls.append), second:
        graph.replay()
    assert calls == []
    second.synchronize()
