"""Whether a call of pystreams costs the same with many streams, events,
threads and devices as with one."""

import threading
import time

from benchmarks.processes import Missing, fresh
from benchmarks.tables import Cell, Row, Table

SIZES = {
    "streams": [1, 10, 100, 1000, 10_000],
    "events": [1, 100, 10_000, 1_000_000],
    "threads": [1, 2, 4, 8, 16, 32, 64],
    "devices": [1, 2, 3, 4],
}
ROUNDS = 5
LEAST = 5000  # calls, that a figure is the mean of


def tables(device, quick):
    for name, sizes in SIZES.items():
        if name == "devices":
            sizes = range(1, min(count(device), 4) + 1)
        columns = [f"{size:,}" for size in (sizes[:2] if quick else sizes)]
        rows = {}
        for size, column in zip(sizes, columns, strict=False):
            rounds = 1 if quick or size > 10_000 else ROUNDS
            try:
                found = fresh(
                    "benchmarks.scaling",
                    "sample",
                    name,
                    device,
                    size,
                    rounds,
                    PYSTREAMS_CPU_DEVICES="4",
                )
            except Missing as error:
                row = rows.setdefault("all", Row("all", {}))
                row.cells[column] = Cell(why=str(error))
                continue
            for title, samples in found.items():
                row = rows.setdefault(title, Row(title, {}))
                row.cells[column] = Cell.of(samples)
        title = f"pystreams, ns per call, by the number of {name}"
        yield Table(name, title, columns, list(rows.values()))


def count(device):
    from pystreams import cuda

    return cuda.device_count() if device == "cuda" else 4


def sample(name, device, size, rounds):
    """Lists of nanoseconds per call."""
    measure = {
        "streams": streams,
        "events": events,
        "threads": threads,
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


def timed(function, size):
    """A call that returns what each of so many calls in the function takes,
    in nanoseconds."""
    times = max(LEAST // size, 1)

    def call():
        start = time.perf_counter()
        for _ in range(times):
            function()
        return (time.perf_counter() - start) / times / size * 1e9

    return call


def streams(device, size):
    import pystreams

    made = [pystreams.Stream(device) for _ in range(size)]
    pairs = [(stream, stream.record_event()) for stream in made]

    def create():
        kept = [pystreams.Stream(device) for _ in range(size)]
        kept.clear()

    def record():
        for stream, event in pairs:
            event.record(stream)

    def settle():
        for stream in made:
            stream.synchronize()

    calls = {"record on each": record, "create, drop": create}
    return {t: timed(c, size) for t, c in calls.items()}, settle


def events(device, size):
    import pystreams

    stream = pystreams.Stream(device)
    made = [pystreams.Event(device, enable_timing=False) for _ in range(size)]

    def record():
        for event in made:
            event.record(stream)

    def query():
        for event in made:
            event.query()

    def life():
        kept = []
        for _ in range(size):
            event = pystreams.Event(device, enable_timing=False)
            event.record(stream)
            kept.append(event)

    calls = {"record": record, "query, done": query}
    calls["create, record, drop"] = life
    return {t: timed(c, size) for t, c in calls.items()}, stream.synchronize


def threads(device, size):
    import pystreams

    made = [pystreams.Stream(device) for _ in range(size)]
    pairs = [(stream, stream.record_event()) for stream in made]

    def record():
        ready = threading.Barrier(size)
        begun, ended = [], []
        each = max(10 * LEAST // size, 1)

        def work(stream, event):
            ready.wait()
            begun.append(time.perf_counter())
            for _ in range(each):
                event.record(stream)
            ended.append(time.perf_counter())

        running = [threading.Thread(target=work, args=pair) for pair in pairs]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return (max(ended) - min(begun)) / each / size * 1e9

    def settle():
        for stream in made:
            stream.synchronize()

    return {"record, all threads": record}, settle


def devices(device, size):
    import pystreams

    made = [pystreams.Stream(f"{device}:{i}") for i in range(size)]
    pairs = [(stream, stream.record_event()) for stream in made]
    last = pairs[-1][1]

    def record():
        for stream, event in pairs:
            event.record(stream)

    def wait():
        for stream in made:
            stream.wait_event(last)

    def settle():
        for stream in made:
            stream.synchronize()

    calls = {"record, in turn": record, "wait for the last": wait}
    return {t: timed(c, size) for t, c in calls.items()}, settle
