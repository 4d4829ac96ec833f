"""Whether a call of pystreams costs the same with many streams, events,
threads and devices as with one."""

import threading
import time
from collections import deque
from functools import partial
from importlib import import_module

from benchmarks.peers import FLOORS, OURS, of
from benchmarks.processes import Missing, fresh
from benchmarks.tables import Cell, Row, Table

SIZES = {
    "streams": [1, 10, 100, 1000, 10_000],
    "events": [1, 100, 10_000, 1_000_000],
    "threads": [1, 2, 4, 8, 16, 32, 64],
    "devices": [1, 2, 3, 4],
}
ROUNDS = 5
LEAST = 5000  # calls in each measurement


def tables(device, quick):
    for name, sizes in SIZES.items():
        if name == "devices":
            sizes = range(1, min(count(device), 4) + 1)
        columns = [f"{size:,}" for size in (sizes[:2] if quick else sizes)]
        rows = {}
        for size, column in zip(sizes, columns, strict=False):
            rounds = 1 if quick or size > 10_000 else ROUNDS
            for library in libraries(name, device):
                call = name, device, size, rounds, library
                for title, cell in cells(call).items():
                    row = rows.setdefault(title, Row(title, {}))
                    row.cells[column] = cell
        title = f"pystreams by the number of {name}: ns per call"
        yield Table(name, title, columns, list(rows.values()))


def libraries(name, device):
    """The libraries to measure: pystreams alone or, for threads on a GPU, also
    its peers: there, the GIL shapes the curve of any library."""
    if name == "threads" and device == "cuda":
        return [peer for peer in of(device) if peer not in FLOORS]
    return [OURS]


def cells(call):
    """Measure in a process of its own; return a cell for each row's title."""
    library = call[-1]
    try:
        found = fresh(
            "benchmarks.scaling", "sample", *call, PYSTREAMS_CPU_DEVICES="4"
        )
    except Missing as error:
        return {"all" if library == OURS else library: Cell(why=str(error))}
    return {title: Cell.of(samples) for title, samples in found.items()}


def count(device):
    from pystreams import cuda

    return cuda.device_count() if device == "cuda" else 4


def sample(name, device, size, rounds, library):
    """Return {title: samples}, in nanoseconds per call."""
    measure = {
        "streams": streams,
        "events": events,
        "threads": partial(threads, library),
        "devices": devices,
    }[name]
    calls, settle = measure(device, size)
    for call in calls.values():
        call()
        settle()
    found = {title: [] for title in calls}
    for _ in range(rounds):
        for title, call in calls.items():
            found[title].append(call())
            settle()
    return found


def timed(function, calls):
    """Return a function that runs the given one, which makes so many calls,
    and returns the nanoseconds for each of them."""

    def call():
        start = time.perf_counter()
        function()
        return (time.perf_counter() - start) / calls * 1e9

    return call


def spread(items):
    """All items, again and again, so that there are about LEAST of them or
    more."""
    return list(items) * max(LEAST // len(items), 1)


def recorded(stream):
    """A recorded event.  It has no timing, because a GPU takes longer to write
    a timestamp than a call takes: the GPU would be measured, not the call."""
    import pystreams

    event = pystreams.Event(stream.device.type, enable_timing=False)
    event.record(stream)
    return event


def streams(device, size):
    import pystreams

    live = deque((pystreams.Stream(device) for _ in range(size)), size)
    event = recorded(live[0])
    calls = len(spread(live))

    def record():
        for stream in spread(live):
            event.record(stream)

    def replace():
        for _ in range(LEAST):
            live.append(pystreams.Stream(device))

    def settle():
        for stream in live:
            stream.synchronize()

    return {
        "record on each": timed(record, calls),
        "create one, drop one": timed(replace, LEAST),
    }, settle


def events(device, size):
    import pystreams

    stream = pystreams.Stream(device)
    live = deque((recorded(stream) for _ in range(size)), size)
    calls = len(spread(live))

    def record():
        for event in spread(live):
            event.record(stream)

    def query():
        for event in spread(live):
            event.query()

    def replace():
        for _ in range(LEAST):
            live.append(recorded(stream))

    return {
        "record each": timed(record, calls),
        "query each, done": timed(query, calls),
        "create and record one, drop one": timed(replace, LEAST),
    }, stream.synchronize


def threads(library, device, size):
    peer = import_module(of(device)[library])
    made = [peer.calls() for _ in range(size)]
    turns = LEAST // 2

    def record():
        ready = threading.Barrier(size)
        begun, ended = [], []

        def work(record_one):
            ready.wait()
            begun.append(time.perf_counter())
            for _ in range(turns):
                record_one()
            ended.append(time.perf_counter())

        running = [
            threading.Thread(target=work, args=[calls["record"]])
            for calls, _ in made
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return (max(ended) - min(begun)) / turns / size * 1e9

    def settle():
        for _, wait in made:
            wait()

    title = "record, all threads"
    if library != OURS:
        title += f", {library}"
    return {title: record}, settle


def devices(device, size):
    import pystreams

    made = [pystreams.Stream(f"{device}:{i}") for i in range(size)]
    event_of = {stream: recorded(stream) for stream in made}
    last = event_of[made[-1]]
    pairs = spread(event_of.items())

    def record():
        for stream, event in pairs:
            event.record(stream)

    def wait():
        for stream, _ in pairs:
            stream.wait_event(last)

    def settle():
        for stream in made:
            stream.synchronize()

    return {
        "record, in turn": timed(record, len(pairs)),
        "wait for the last": timed(wait, len(pairs)),
    }, settle
