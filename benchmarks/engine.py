"""The CPU engine's threads, compared with the plain calls of the machine."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import native
from benchmarks.processes import Missing, fresh
from benchmarks.tables import Cell, Row, Table


def millions(ns):
    return 1e3 / ns


def microseconds(ns):
    return ns / 1e3


def milliseconds(ns):
    return ns / 1e6


@dataclass(frozen=True)
class Held:
    """A row: a measurement of the engine, and in some rows a plain call of the
    machine to compare it with.  `engine` and `machine` are their functions;
    `good` takes the two medians and says whether the target is met."""

    title: str
    engine: str
    unit: Callable[[float], float]
    target: str
    good: Callable[[float, float | None], bool]
    machine: str | None = None


HELD = [
    Held(
        "C operations queued and done, million/s",
        "queued",
        millions,
        "≥ 5",
        lambda ours, _: ours >= 5,
    ),
    Held(
        "records from Python, million/s",
        "records",
        millions,
        "≥ 2",
        lambda ours, _: ours >= 2,
    ),
    Held(
        "a parked stream runs after, µs",
        "parked",
        microseconds,
        "≤ 10",
        lambda ours, _: ours <= 10,
    ),
    Held(
        "another worker takes over, µs; a futex",
        "handed",
        microseconds,
        "≤ 2 x the machine",
        lambda ours, plain: ours <= 2 * plain,
        "futex",
    ),
    Held(
        "a large copy, ms; memcpy",
        "queued_copy",
        milliseconds,
        "≤ 1.11 x the machine",
        lambda ours, plain: plain >= 0.9 * ours,
        "plain_copy",
    ),
]


def tables(device, quick):
    if device != "cpu":
        return
    try:
        found = fresh("benchmarks.engine", "measure", quick)
        rounds = 3 if quick else 15
        found["records"] = fresh("benchmarks.engine", "records", rounds)
    except Missing as error:
        rows = [Row("all", {"engine": Cell(why=str(error))})]
    else:
        rows = [judged(held, found) for held in HELD]
    columns = ["engine", "machine"]
    yield Table("engine", "The CPU engine's threads", columns, rows)


def judged(held, found):
    ours = Cell.of(list(map(held.unit, found[held.engine])))
    row = Row(held.title, {"engine": ours}, held.target)
    plain = None
    if held.machine is not None:
        machine = Cell.of(list(map(held.unit, found[held.machine])))
        plain = machine.median
        row.cells["machine"] = machine
        row.ratios["of the machine"] = ours.median / plain
    row.met = held.good(ours.median, plain)
    return row


def measure(quick):
    """Samples from each function of threads.c, which take turns."""
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
    """Nanoseconds for each record, to queue it from Python on a busy stream
    and to do it when the stream is free."""
    import pystreams
    from pystreams import _C

    count, sleep = 60_000, 0.02
    stream = pystreams.Stream("cpu")
    event = stream.record_event()
    times = []
    for _ in range(rounds):
        _C.sleep(0, int(sleep * 1e9), stream)
        start = time.perf_counter()
        for _ in range(count):
            event.record(stream)
        queued = time.perf_counter() - start
        stream.synchronize()
        done = max(time.perf_counter() - start - sleep, 0)
        times.append((queued + done) / count * 1e9)
    return times
