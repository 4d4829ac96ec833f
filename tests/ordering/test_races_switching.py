"""pystreams.races switched on and off: at any time, from any thread, with work
in flight, more than once, and over a backend that a program registered."""

import io
import threading

import pytest
from deadlines import LONG

import pystreams
from pystreams import races

SIZE = 64


class Two:
    def __init__(self, backend):
        self.backend = backend
        self.a, self.b = backend.stream(), backend.stream()
        self.x = backend.empty(SIZE)
        backend.synchronize()

    def race(self):
        self.x.fill_(1, stream=self.a)
        self.x.fill_(2, stream=self.b)

    def order(self):
        self.a.wait_stream(self.b)
        self.b.wait_stream(self.a)


@pytest.fixture
def two(backend):
    return Two(backend)


def test_on_with_work_in_flight(two):
    """Work that was queued before the detector was on takes no part.  Work
    that is queued behind it does."""
    found = []
    with two.backend.hold(two.a):
        two.x.fill_(1, stream=two.a)
        with races.detect(found.append):
            two.x.fill_(2, stream=two.b)
            assert found == []
            two.x.fill_(3, stream=two.a)
            assert len(found) == 1


def test_off_with_work_in_flight(two):
    """A wait begins while the detector is on, and ends while it is off."""
    done, found = [], []
    gate = threading.Event()

    def wait():
        gate.set()
        done.append(two.a.synchronize(LONG))

    thread = threading.Thread(target=wait)
    with two.backend.hold(two.a):
        with races.detect(found.append):
            two.x.fill_(1, stream=two.a)
            thread.start()
            assert gate.wait(LONG)
        two.x.fill_(2, stream=two.b)
        with races.detect(found.append):
            two.x.fill_(3, stream=two.b)
    thread.join(LONG)
    assert (done, found) == ([None], [])


def test_from_another_thread(two):
    """The detector is for the whole process, whichever thread begins or ends
    it."""
    found = []
    run = races.detect(found.append)

    def on(method, *arguments):
        thread = threading.Thread(target=method, args=arguments)
        thread.start()
        thread.join(LONG)

    on(run.__enter__)
    two.race()
    assert len(found) == 1
    on(run.__exit__, None, None, None)
    two.race()
    assert len(found) == 1


def test_stacked(two):
    """The block that began last decides.  Work stays known from one block to
    the next."""
    outer, inner = [], []
    with races.detect(outer.append):
        two.x.fill_(1, stream=two.a)
        with races.detect(inner.append):
            two.x.fill_(2, stream=two.b)
        two.order()
        two.race()
    assert (len(outer), len(inner)) == (1, 1)


def test_stacked_by_threads(two):
    """Each thread ends its own block.  The detector is off after the last
    one."""
    barrier, found = threading.Barrier(4, timeout=LONG), []

    def run():
        for _ in range(20):
            with races.detect(found.append):
                barrier.wait()
        barrier.wait()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    two.race()
    assert found == []


def test_traced_meanwhile(two):
    """A program's own subscribers of trace points are called as before."""
    events = []
    with races.redundant(), pystreams.trace.subscribe(events.append):
        two.a.wait_stream(two.b)
        backend_stream = two.backend.stream()
    del backend_stream
    kinds = [event.kind for event in events]
    assert "event_wait" in kinds
    assert "stream_creation" in kinds


async def coroutine_function(race=None):
    pass


def generator_function():
    yield


async def async_generator_function():
    yield


@pytest.mark.parametrize(
    "function",
    [coroutine_function, generator_function, async_generator_function],
)
def test_functions_whose_body_runs_after_the_call(function):
    with pytest.raises(
        TypeError,
        match=r"^detect\(\) cannot decorate a coroutine or generator "
        rf"function, .* in {function.__name__}\(\)$",
    ):
        races.detect()(function)


def test_a_coroutine_function_as_the_action():
    """Nothing would await the coroutine."""
    with pytest.raises(ValueError, match="nothing awaits"):
        races.detect(coroutine_function).__enter__()


def test_a_decorated_function(two):
    @races.detect()
    def function():
        two.race()

    for _ in range(2):
        with pytest.raises(races.RaceError):
            function()
        two.backend.synchronize()
    two.race()


# ---- Errors that do not come far ----


def by_numpy(two, host):
    """If the buffer protocol raises anything, NumPy drops the error and takes
    the object for another kind."""
    numpy = pytest.importorskip("numpy", reason="needs NumPy")
    numpy.asarray(host)


def by_readinto(two, host):
    """readinto() raises another error instead."""
    io.BytesIO(bytes(SIZE)).readinto(host)


def by_a_callable(two, host):
    two.b.submit(lambda: host.memoryview().release())
    two.b.synchronize()


def by_a_thread(two, host):
    threading.excepthook, hook = lambda args: None, threading.excepthook
    try:
        thread = threading.Thread(target=host.memoryview)
        thread.start()
        thread.join(LONG)
    finally:
        threading.excepthook = hook


LOST = [by_numpy, by_readinto, by_a_callable, by_a_thread]


@pytest.mark.parametrize("lose", LOST, ids=lambda lose: lose.__name__)
def test_an_error_that_is_lost(two, lose):
    """When the block ends, it raises the error that was lost."""
    host = pystreams.Buffer(
        SIZE,
        device=two.backend.device(),
        pin_memory=two.x.device.type != "cpu",
    )
    with pytest.raises(races.RaceError), races.detect():
        host.fill_(1, stream=two.a)
        lose(two, host)
    with races.detect():
        two.order()


def test_an_error_that_is_caught(two):
    """The program has caught the error, raised by the call itself or by
    result(), so the end of the block does not raise it again."""
    host = pystreams.Buffer(
        SIZE,
        device=two.backend.device(),
        pin_memory=two.x.device.type != "cpu",
    )
    with races.detect():
        host.fill_(1, stream=two.a)
        with pytest.raises(races.RaceError):
            host.memoryview()
    with races.detect():
        host.fill_(1, stream=two.a)
        with pytest.raises(races.RaceError):
            two.b.submit(lambda: host.memoryview()).result(LONG)
    two.backend.synchronize()


FAKE = """
import threading
import fake_device, pystreams
from pystreams import races

a, b = pystreams.Stream("mtia"), pystreams.Stream("mtia")
event = pystreams.Event("mtia")
memory = [(4096, 8)]

def race(order=lambda: None):
    races.declare(a, writes=memory)
    order()
    try:
        races.declare(b, writes=memory)
    except races.RaceError:
        return True
    return False

assert not race()
for _ in range(3):
    with races.detect():
        assert race()
        assert not race(lambda: b.wait_stream(a))
    with races.detect():
        assert race()
        a.synchronize()
        with races.detect("warn"):
            assert not race(lambda: (event.record(a), b.wait_event(event)))
        b.synchronize()
        assert not race(lambda: pystreams.wait([a]))
    assert not race()

stop, errors = threading.Event(), []

def work():
    try:
        stream = pystreams.Stream("mtia")
        while not stop.is_set():
            stream.record_event().synchronize()
            pystreams.Stream("mtia").wait_stream(stream)
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(100):
    with races.redundant():
        pass
stop.set()
for thread in threads:
    thread.join()
print(errors)
"""


def test_over_a_registered_backend(run_with_device):
    done = run_with_device(FAKE)
    assert (done.stderr, done.stdout) == ("", "[]\n")
