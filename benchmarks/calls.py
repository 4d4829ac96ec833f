"""The hot calls of every library, in batches that take turns.

Each library has a process of its own.  In each round, one batch of every
library is timed, all on the same processor: one processor may be slower than
another all the time, and this must slow all libraries alike.
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
    """Return a worker for each library that can be loaded, and for each other
    library a cell with the reason."""
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
    """Return, for each library that has the row, the nanoseconds per call of
    each batch; if a batch failed, a cell with the reason instead."""
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
    """The median ratio of ours to theirs, over the pairs of batches.

    The two batches of a pair ran one after the other on the same processor, so
    a slow processor slows both, and the ratio stays the same.
    """
    pairs = zip(ours, theirs, strict=True)
    return statistics.median(a / max(b, 1e-3) for a, b in pairs)
