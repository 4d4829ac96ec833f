"""Waits let other Python threads run."""

import sys
import sysconfig
import threading
import time

import pytest
from places import SUPPORT

MILLISECONDS = 150


def wait_for_stream(backend, stream):
    stream.synchronize()


def wait_for_event(backend, stream):
    stream.record_event().synchronize()


def wait_for_device(backend, stream):
    backend.synchronize(stream.device_index)


def wait_for_copy(backend, stream):
    target = backend.empty(8, stream.device_index)
    target.copy_(bytes(8), stream=stream)


def wait_for_bytes(backend, stream):
    with stream:
        backend.empty(8, stream.device_index).tobytes()


WAITS = [
    wait_for_stream,
    wait_for_event,
    wait_for_device,
    wait_for_copy,
    wait_for_bytes,
]


@pytest.fixture(params=WAITS, ids=lambda w: w.__name__.removeprefix("wait_"))
def wait(request):
    return request.param


def warm_up(backend):
    for index in range(backend.count):
        stream = backend.stream(index)
        backend.sleep(stream, 0.01)
        wait_for_bytes(backend, stream)


@pytest.mark.unscheduled
def test_a_counter_proceeds(backend, wait):
    warm_up(backend)
    count, stop = 0, False

    def advance():
        nonlocal count
        while not stop:
            count += 1
            time.sleep(0.001)

    thread = threading.Thread(target=advance)
    stream = backend.stream()
    thread.start()
    try:
        backend.sleep(stream, MILLISECONDS)
        before = count
        wait(backend, stream)
        during = count - before
    finally:
        stop = True
        thread.join()
    assert during >= 10


def busy_for(backend, stream, wait):
    """Return how many milliseconds the stream was busy, measured by its own
    events."""
    start, end = backend.event(), backend.event()
    start.record(stream)
    backend.sleep(stream, MILLISECONDS)
    end.record(stream)
    wait(backend, stream)
    end.synchronize()
    return start.elapsed_time(end)


def overlap(two_devices, wait):
    """Return the sum of the times of two threads' work, divided by the elapsed
    time."""
    barrier = threading.Barrier(2)
    summed = []

    def work(index):
        stream = two_devices.stream(index)
        barrier.wait(30)
        summed.append(busy_for(two_devices, stream, wait))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = (time.perf_counter() - started) * 1000
    assert len(summed) == 2
    return sum(summed) / elapsed


def test_two_threads_wait_for_two_devices_at_once(two_devices, wait):
    """If a wait kept the GIL, the second thread's work would always start
    after the first's.  Then the sum would be equal to the elapsed time.  On a
    busy machine, a thread may start late, too, so try several times."""
    warm_up(two_devices)
    assert any(overlap(two_devices, wait) > 1.4 for _ in range(5))


KEPT = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
from backend import Backend

backend = Backend(sys.argv[2])
stream, block = backend.stream(), backend.empty(1000)
count, last = 0, 99_999

def fill():
    global count
    for count in range(last + 1):
        block.fill_(1, stream)

block.fill_(1, stream)
stream.synchronize()
with backend.hold(stream):
    event = stream.record_event()
    filler = threading.Thread(target=fill)
    filler.start()
    seen = None
    while seen != count:
        seen = count
        time.sleep(0.2)
    assert seen < last
    for _ in range(1000):
        assert not event.query()
filler.join()
stream.synchronize()
assert event.query()
"""


@pytest.mark.parametrize("ask", ["event", "stream"])
def test_who_polls_lets_the_callable_run(backend, ask):
    """A poll itself lets other threads run.  Here, Python itself would switch
    threads only once a second."""
    stream = backend.stream()
    stream.submit(int).result()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1)
    try:
        started = time.perf_counter()
        for _ in range(5):
            stream.submit(int)
            polled = stream if ask == "stream" else stream.record_event()
            while not polled.query():
                pass
        assert time.perf_counter() - started < 1
    finally:
        sys.setswitchinterval(interval)


def test_an_event_is_asked_while_a_thread_waits_for_room(backend, run_python):
    """The query keeps the GIL, but returns at once."""
    done = run_python(KEPT, str(SUPPORT), backend.name)
    assert (done.returncode, done.stderr) == (0, "")


def test_sanitizers_see_what_cuda_lets_happen(backend, sanitized):
    """A build with a sanitizer releases the GIL when it calls emulated CUDA,
    so that the sanitizer sees the races of these calls.  Nothing else would
    make the threads switch here."""
    if not (sanitized and backend.on_engine):
        pytest.skip("not a build with a sanitizer")
    stream, event = backend.stream(), backend.event()
    switches, stop = 0, False

    def switch():
        nonlocal switches
        while not stop:
            switches += 1
            time.sleep(0)

    thread = threading.Thread(target=switch)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        thread.start()
        before = switches
        # Each call releases the GIL only for an instant.  On a busy machine,
        # the other thread needs many calls until it gets the GIL.
        for _ in range(2_000_000 if backend.name == "cuda" else 2000):
            event.record(stream)
            if switches != before:
                break
        during = switches - before
    finally:
        stop = True
        sys.setswitchinterval(interval)
    thread.join()
    assert (during > 0) is (backend.name == "cuda")


def test_a_free_threaded_interpreter(run_python):
    """Neither importing nor using the package turns the GIL on."""
    if sysconfig.get_config_var("Py_GIL_DISABLED") != 1:
        pytest.skip("this interpreter is not free-threaded")
    done = run_python(
        "import sys\n"
        "import pystreams, pystreams.races, pystreams.schedules\n"
        "imported = sys._is_gil_enabled()\n"
        "with pystreams.races.detect():\n"
        "    stream = pystreams.Stream('cpu')\n"
        "    pystreams.empty(8, device='cpu', stream=stream).close()\n"
        "    stream.submit(int).result()\n"
        "print(imported, sys._is_gil_enabled())",
        env={"PYTHON_GIL": ""},
    )
    assert (done.stdout, done.stderr) == ("False False\n", "")
