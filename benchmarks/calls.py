"""The hot calls of every library, in batches that take turns.

Each library has a process of its own.  A batch of every library is timed
before the next batch of any, and on the same processor, so that all meet the
machine alike: one processor can be slower than the next all along.
"""

import os
import statistics
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle, islice

from benchmarks.peers import FLOORS, OURS, of
from benchmarks.processes import Missing, Worker
from benchmarks.rows import CALLS
from benchmarks.tables import Cell, Row, Table

BATCH = 500


def tables(device, quick):
    with ExitStack() as stack:
        workers, missing = start(stack, device)
        samples = {
            row: measure(workers, row, 3 if quick else 150) for row in CALLS
        }
    rows = [
        judged(device, name, {**missing, **samples[name]}, samples)
        for name in CALLS
        if samples[name] or missing
    ]
    yield Table("calls", "Calls: ns each", list(of(device)), rows)


def start(stack, device):
    """A worker for each library, and a cell for each that has none."""
    workers, missing = {}, {}
    for library, peer in of(device).items():
        try:
            worker = Worker(peer)
        except Missing as error:
            missing[library] = Cell(why=str(error))
        else:
            stack.callback(worker.close)
            workers[library] = worker
    return workers, missing


def measure(workers, row, batches):
    """Nanoseconds of each batch, or a cell that says why not, of the
    libraries that can do it."""
    samples = {n: [] for n, worker in workers.items() if row in worker.rows}
    failed = {}
    for processor in islice(cycle(os.sched_getaffinity(0)), batches):
        for library in samples.keys() - failed.keys():
            try:
                took = workers[library].batch(row, BATCH, processor)
                samples[library].append(took)
            except Missing as error:
                failed[library] = Cell(why=str(error))
    return samples | failed


def judged(device, name, found, samples):
    call = CALLS[name]
    raw = batches_of(samples, name, "raw")
    made = Row(call.title, {n: cell(b, raw) for n, b in found.items()})
    target = getattr(call, device)
    made.target = str(target or "")
    ours = batches_of(samples, name, OURS)
    if ours is None:
        return made
    if raw:
        made.ratios["of raw"] = times(ours, raw)
    peers = [
        times(ours, batches)
        for library in found
        if library not in (*FLOORS, OURS)
        and (batches := batches_of(samples, name, library))
    ]
    if peers:
        made.ratios["of best peer"] = max(peers)
    if target is None:
        return made
    if target.of == "ns":
        made.met = made.cells[OURS].median <= target.most
    elif other := (
        batches_of(samples, name, target.of)
        or batches_of(samples, target.of, OURS)
    ):
        made.met = times(ours, other) <= target.most
    return made


def cell(batches, raw):
    if isinstance(batches, Cell):
        return batches
    made = Cell.of(batches)
    return replace(made, of_raw=times(batches, raw)) if raw else made


def batches_of(samples, row, library):
    batches = samples.get(row, {}).get(library)
    return None if isinstance(batches, Cell) else batches


def times(ours, theirs):
    """The ratio of batches that were next to each other, of which one pair in
    two has a greater one: what slows a processor slows both."""
    pairs = zip(ours, theirs, strict=True)
    return statistics.median(a / max(b, 1e-3) for a, b in pairs)
