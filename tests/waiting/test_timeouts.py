"""Waits with a time limit: the wait ends, the work goes on, and the object
stays usable."""

import math
import resource
import threading
import time

import pytest
from deadlines import LONG

import pystreams
from pystreams import _C


def wait_for_stream(backend, stream, *timeout, **named):
    stream.synchronize(*timeout, **named)


def wait_for_event(backend, stream, *timeout, **named):
    backend.event_of_stream.synchronize(*timeout, **named)


def wait_for_device(backend, stream, *timeout, **named):
    if backend.name == "cuda":
        pystreams.cuda.synchronize(stream.device, *timeout, **named)
    else:
        _C.synchronize(backend.type, stream.device, *timeout, *named.values())


@pytest.fixture(
    params=[wait_for_stream, wait_for_event, wait_for_device],
    ids=["stream", "event", "device"],
)
def wait(request):
    return request.param


@pytest.fixture
def stream(backend):
    stream = backend.stream()
    backend.event_of_stream = stream.record_event()
    stream.synchronize()
    return stream


def hold(backend, stream):
    """Keep the stream busy, with a record behind, for a with block."""
    gate = backend.hold(stream)

    class Held:
        def __enter__(self):
            gate.__enter__()
            backend.event_of_stream.record(stream)

        def __exit__(self, *exc_info):
            gate.__exit__(*exc_info)

    return Held()


NUMBERS = [None, 0, -1, -math.inf, 0.5, LONG, math.inf, True, 1e300, 10**9]


@pytest.mark.parametrize("timeout", NUMBERS, ids=repr)
def test_nothing_to_wait_for(backend, stream, wait, timeout):
    wait(backend, stream, timeout)
    wait(backend, stream, timeout=timeout)


@pytest.mark.parametrize("timeout", [0, -1, -math.inf, 0.055], ids=repr)
def test_it_takes_longer(backend, stream, wait, timeout):
    with hold(backend, stream):
        for _ in range(2):
            with pytest.raises(TimeoutError) as caught:
                wait(backend, stream, timeout)
            text = str(caught.value).partition("\n")[0]
            assert text.endswith(
                f"ynchronize: the work was not done after {timeout} s; "
                "the work goes on"
            )
        assert not stream.query()
        assert not backend.event_of_stream.query()
    wait(backend, stream, LONG)
    assert stream.query() and backend.event_of_stream.query()
    wait(backend, stream)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize(
    ("timeout", "error", "words"),
    [
        (math.nan, ValueError, "a number of seconds for timeout, but got nan"),
        ("1", TypeError, "seconds or None for timeout, but got str"),
        ([], TypeError, "seconds or None for timeout, but got list"),
        (10**400, OverflowError, "too large"),
    ],
    ids=["nan", "str", "list", "too large"],
)
def test_bad_timeouts(backend, stream, wait, timeout, error, words, busy):
    def check():
        with pytest.raises(error, match=words):
            wait(backend, stream, timeout)

    if busy:
        with hold(backend, stream):
            check()
    else:
        check()
    wait(backend, stream, LONG)


def test_a_full_queue(engine, full, wait):
    stream, engine.event_of_stream, gate = full
    for _ in range(2):
        with pytest.raises(TimeoutError):
            wait(engine, stream, 0.01)
    assert not stream.query()
    gate.open()
    wait(engine, stream, LONG)


def test_an_event_that_was_never_recorded(backend):
    event = backend.event()
    for timeout in (None, 0, LONG):
        event.synchronize(timeout)
    with pytest.raises(ValueError, match="nan"):
        event.synchronize(timeout=math.nan)


def test_the_wait_ends_when_the_work_does(backend, stream, wait):
    for timeout in (LONG, math.inf):
        backend.sleep(stream, 80)
        backend.event_of_stream.record(stream)
        started = time.monotonic()
        wait(backend, stream, timeout)
        assert time.monotonic() - started < LONG / 2
        assert backend.event_of_stream.query() and stream.query()


def test_the_work_goes_on(backend, stream):
    block = backend.empty(100)
    block.zero_()
    backend.synchronize()
    with hold(backend, stream):
        block.fill_(1, stream=stream)
        with pytest.raises(TimeoutError):
            stream.synchronize(0.01)
    stream.synchronize(LONG)
    assert block.tobytes() == b"\1" * 100


def test_accelerator(accelerator):
    stream = accelerator.stream()
    with accelerator.hold(stream):
        with pytest.raises(TimeoutError, match="synchronize: the work"):
            pystreams.accelerator.synchronize(timeout=0.01)
        with pytest.raises(TimeoutError):
            pystreams.accelerator.synchronize(stream.device, timeout=0)
    pystreams.accelerator.synchronize(timeout=LONG)


def test_traced_once(backend, stream, wait):
    seen = []
    kinds = [
        "stream_synchronization",
        "event_synchronization",
        "device_synchronization",
    ]
    with (
        hold(backend, stream),
        pystreams.trace.subscribe(lambda *it: seen.append(it), kinds=kinds),
    ):
        with pytest.raises(TimeoutError):
            wait(backend, stream, 0.06)
        assert len(seen) == 1
        with pytest.raises(ValueError):
            wait(backend, stream, math.nan)
        assert len(seen) == 1
    wait(backend, stream, LONG)


def test_waiting_costs_little(backend, stream, wait):
    """A hundredth of a core is promised; the bound here is looser, as others
    use the machine."""
    with hold(backend, stream):
        before = resource.getrusage(resource.RUSAGE_SELF)
        with pytest.raises(TimeoutError):
            wait(backend, stream, 0.2)
        after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert spent < 0.02


def test_what_is_queued_meanwhile_is_not_waited_for(engine, stream):
    """Otherwise a stream that always gets more work would keep the wait for
    ever."""
    ends = [engine.event() for _ in range(8)]
    done = threading.Event()

    def feed():
        while not done.is_set():
            for end in ends:
                end.synchronize()
                engine.sleep(stream, 10)
                end.record(stream)

    for end in ends:
        engine.sleep(stream, 10)
        end.record(stream)
    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        for _ in range(2):
            stream.synchronize(LONG)
            _C.synchronize(engine.type, stream.device, LONG)
    finally:
        done.set()
        feeder.join()
    stream.synchronize()


@pytest.mark.parametrize("timeout", [None, LONG], ids=["plain", "timeout"])
def test_the_record_at_the_call(backend, stream, timeout):
    """A later record of the event, behind what ends after the wait, changes
    nothing."""
    event, other = backend.event_of_stream, backend.stream()
    with backend.hold(other):
        backend.sleep(stream, 150)
        event.record(stream)
        timer = threading.Timer(0.07, event.record, [other])
        timer.start()
        event.synchronize(timeout)
        timer.join()
        assert stream.query() and not event.query()
    event.synchronize(LONG)


def test_from_a_thread(backend, stream, wait):
    """Only the main thread handles signals, but a wait on any thread may time
    out."""
    errors = []

    def work():
        try:
            wait(backend, stream, 0.12)
        except TimeoutError as error:
            errors.append(error)

    with hold(backend, stream):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(errors) == 4
