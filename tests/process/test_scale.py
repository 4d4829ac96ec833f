"""Very many objects at once, on all devices, and long runs."""

import os
import threading
from itertools import repeat

import pytest

from pystreams import _C

STREAMS = 1000
EVENTS = 100_000
THREADS = 64
CYCLES = {True: "300000", False: "10000000"}


@pytest.fixture
def everywhere(backend):
    return range(backend.count)


def test_a_thousand_live_streams(backend, everywhere):
    """Of each device, none of which is another's; and all of them work."""
    streams = [backend.stream(i) for i in everywhere for _ in range(STREAMS)]
    assert len({s.native_handle for s in streams}) == len(streams)
    block = backend.empty(len(everywhere) * STREAMS, 0).zero_()
    backend.synchronize()
    for number, stream in enumerate(streams[:STREAMS]):
        block[number : number + 1].fill_(1 + number % 250, stream=stream)
    events = [stream.record_event() for stream in streams]
    last = backend.stream()
    for event in events:
        last.wait_event(event)
    last.synchronize()
    assert all(stream.query() for stream in streams)
    expected = bytes(1 + number % 250 for number in range(STREAMS))
    assert block.tobytes()[:STREAMS] == expected


def test_a_hundred_thousand_live_events(backend, everywhere):
    """Recorded and pending at once, on every device by turns."""
    events = [backend.event() for _ in range(EVENTS)]
    streams = [backend.stream(index) for index in everywhere]
    part = EVENTS // len(streams)
    for stream in streams:
        backend.sleep(stream, 200)
    for number, stream in enumerate(streams):
        for event in events[number * part : (number + 1) * part]:
            event.record(stream)
    recorded = events[: part * len(streams)]
    assert len({event.event_id for event in recorded}) == len(recorded)
    for stream in streams:
        stream.synchronize()
    assert all(event.query() for event in events)


def test_many_threads(backend, everywhere):
    """Each with a stream of its own, that waits for those of others; each
    counts to the same number, in the memory of its device."""
    rounds, failures = 50, []
    streams = [
        backend.stream(number % len(everywhere)) for number in range(THREADS)
    ]
    start = threading.Barrier(THREADS)

    def work(number):
        try:
            stream = streams[number]
            block = backend.empty(64, stream.device_index, stream=stream)
            start.wait()
            with stream:
                for turn in range(rounds):
                    block.fill_(turn)
                    event = stream.record_event()
                    streams[(number + turn) % THREADS].wait_event(event)
                    event.query()
                    if turn % 10 == 0:
                        stream.submit(int)
                stream.synchronize()
                assert block.tobytes() == bytes([rounds - 1]) * 64
                assert stream.submit(divmod, 7, 2).result(60) == (3, 1)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(n,)) for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


FLAT = """
import resource, sys
from collections import deque
from itertools import repeat
import pystreams
name, cycles = sys.argv[1], int(sys.argv[2])
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
def cycle():
    made = map(stream.record_event, repeat(None, 50_000))
    deque(map(other.wait_event, made), maxlen=0)
    other.synchronize()
stream, other = pystreams.Stream(name), pystreams.Stream(name)
for _ in range(4):
    cycle()
before = resident()
for _ in range(cycles // 50_000):
    cycle()
print(resident() - before)
"""


def test_cycles_without_end(backend, run_python, sanitized):
    """Events made, recorded, waited for and dropped, at the speed of C."""
    cycles = os.environ.get("PYSTREAMS_CYCLES", CYCLES[backend.on_engine])
    done = run_python(FLAT, backend.name, cycles, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    if not sanitized:
        assert int(done.stdout) < 2 << 20


DEVICE_MEMORY = """
from pystreams import cuda
cuda.Stream().record_event().synchronize()
def free():
    cuda.synchronize()
    return cuda.mem_get_info()[0]
def round():
    streams = [cuda.Stream() for _ in range(5000)]
    for stream in streams:
        stream.record_event()
    return free()
before = free()
during, after = round(), free()
round()
print(before - during, before - after, after - free())
"""


@pytest.mark.whole_gpu
def test_device_memory_of_streams(gpu, run_python):
    """What 5,000 took comes back, or serves the next 5,000."""
    spare = 32 << 20
    done = run_python(DEVICE_MEMORY, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    taken, kept, more = map(int, done.stdout.split())
    assert taken > 0
    assert kept <= taken + spare
    assert more < spare


def free_memory(gpu):
    gpu.synchronize()
    return _C.mem_get_info(gpu.type, 0)[0]


@pytest.mark.whole_gpu
def test_device_memory_of_events(gpu):
    """100,000 that are alive take none that shows."""
    stream = gpu.stream()
    before = free_memory(gpu)
    events = list(map(stream.record_event, repeat(None, EVENTS)))
    assert len(events) == EVENTS
    assert before - free_memory(gpu) < 64 << 20
