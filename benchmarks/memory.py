"""What a stream, an event and a queued operation of pystreams take."""

import os

from benchmarks.processes import Missing, fresh
from benchmarks.tables import Cell, Row, Table

TITLES = {
    "streams": "a stream",
    "events": "an event, recorded",
    "operations": "a record in a stream's queue",
}


COUNTS = {
    "cpu": {"streams": 10_000, "events": 50_000, "operations": 50_000},
    "cuda": {"streams": 1000, "events": 50_000, "operations": 50_000},
}


def tables(device, quick):
    rows = []
    for name, title in TITLES.items():
        count = COUNTS[device][name] // (10 if quick else 1)
        try:
            found = fresh("benchmarks.memory", "measure", name, device, count)
            cells = {k: Cell.of([v]) for k, v in found.items()}
        except Missing as error:
            cells = {"host": Cell(why=str(error))}
        rows.append(Row(title, cells))
    columns = ["host", "device"] if device == "cuda" else ["host"]
    yield Table("memory", "Memory of pystreams: bytes each", columns, rows)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(name, device, count):
    import pystreams

    # The CPU engine has no memory of its own, only the host's.
    def used():
        if device == "cpu":
            return resident(), 0
        free, total = pystreams.cuda.mem_get_info()
        return resident(), total - free

    stream = pystreams.Stream(device)
    event = stream.record_event()
    # On a GPU, a sleep is a kernel, and the first kernel also takes memory for
    # its code.  So run one before the measurement.
    pystreams._C.sleep(stream.device_type, 1, stream)
    stream.synchronize()
    kept = [None] * count
    before = used()
    if name == "streams":
        for i in range(count):
            kept[i] = pystreams.Stream(device)
    elif name == "events":
        for i in range(count):
            kept[i] = pystreams.Event(device, enable_timing=False)
            kept[i].record(stream)
        stream.synchronize()
    else:
        # Sleep for at least 0.1 s, so that all records stay queued.  The
        # argument counts nanoseconds, or cycles of a GPU.
        busy = 100_000_000 if device == "cpu" else 500_000_000
        pystreams._C.sleep(stream.device_type, busy, stream)
        for _ in range(count):
            event.record(stream)
    after = used()
    stream.synchronize()
    host, card = ((b - a) / count for a, b in zip(before, after, strict=True))
    return (
        {"host": host} if device == "cpu" else {"host": host, "device": card}
    )
