"""What the CPU engine does on its threads, beside what the machine does."""

import statistics
import time

from benchmarks import native
from benchmarks.processes import Missing, fresh
from benchmarks.tables import Cell, Row, Table


def tables(device, quick):
    if device != "cpu":
        return
    columns = ["engine", "machine"]
    try:
        found = fresh("benchmarks.engine", "measure", quick)
        rate = fresh("benchmarks.engine", "records", 3 if quick else 15)
    except Missing as error:
        rows = [Row("all", {"engine": Cell(why=str(error))})]
    else:
        rows = list(judged(found, rate))
    yield Table("engine", "the CPU engine's threads", columns, rows)


def judged(found, rate):
    """Rows of what was measured, in nanoseconds, and of a rate a second."""
    median = {name: statistics.median(times) for name, times in found.items()}

    def row(title, name, scale, machine=None):
        cells = {"engine": Cell.of([t * scale for t in found[name]])}
        made = Row(title, cells)
        if machine is not None:
            plain = [t * scale for t in found[machine]]
            made.cells["machine"] = Cell.of(plain)
            made.ratios["of the machine"] = median[name] / median[machine]
        return made

    speeds = {"engine": Cell.of([1e3 / t for t in found["queued"]])}
    queued = Row("C operations queued and done, million/s", speeds)
    queued.target, queued.met = "≥ 5", 1e3 / median["queued"] >= 5
    yield queued
    cells = {"engine": Cell.of([r / 1e6 for r in rate])}
    python = Row("records from Python, million/s", cells)
    python.target, python.met = "≥ 2", statistics.median(rate) >= 2e6
    yield python
    parked = row("a parked stream runs after, µs", "parked", 1e-3)
    parked.target, parked.met = "≤ 10", median["parked"] <= 1e4
    yield parked
    handed = row(
        "another worker takes over, µs; a futex", "handed", 1e-3, "futex"
    )
    handed.target = "≤ 2 x the machine"
    handed.met = median["handed"] <= 2 * median["futex"]
    yield handed
    copy = row("a large copy, ms; memcpy", "queued_copy", 1e-6, "plain_copy")
    copy.target = "≤ 1.11 x the machine"
    copy.met = median["queued_copy"] <= median["plain_copy"] / 0.9
    yield copy


def measure(quick):
    """Samples of each function of threads.c, in turns."""
    library = native.build("threads.c", *native.engine())
    turns = {
        "queued": (50_000, 3 if quick else 60),
        "parked": (1, 20 if quick else 1000),
        "handed": (1, 20 if quick else 1000),
        "futex": (1, 20 if quick else 1000),
        "plain_copy": (16 if quick else 1024, 2 if quick else 9),
        "queued_copy": (16 if quick else 1024, 2 if quick else 9),
    }
    calls = {n: native.checked(getattr(library, n)) for n in turns}
    found = {name: [] for name in turns}
    for turn in range(max(times for _, times in turns.values())):
        for name, (count, times) in turns.items():
            if turn < times:
                found[name].append(calls[name](count))
    return found


def records(rounds):
    """Records a second that a busy stream takes from Python and does."""
    import pystreams
    from pystreams import _C

    count, sleep = 60_000, 0.02
    stream = pystreams.Stream("cpu")
    event = stream.record_event()
    rates = []
    for _ in range(rounds):
        _C.sleep(0, int(sleep * 1e9), stream)
        start = time.perf_counter()
        for _ in range(count):
            event.record(stream)
        queued = time.perf_counter() - start
        stream.synchronize()
        done = max(time.perf_counter() - start - sleep, 0)
        rates.append(count / (queued + done))
    return rates
