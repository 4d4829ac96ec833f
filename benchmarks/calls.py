"""The hot calls of every library, in batches that take turns.

Each library has a process of its own.  A batch of every library is timed
before the next batch of any, and on the same processor, so that all meet the
machine alike: one processor can be slower than the next all along.
"""

import os
from contextlib import ExitStack
from itertools import cycle, islice

from benchmarks.peers import FLOORS, OURS, of
from benchmarks.processes import Missing, Worker
from benchmarks.rows import CALLS
from benchmarks.tables import Cell, Row, Table

BATCH = 500


def tables(device, quick):
    with ExitStack() as stack:
        workers, missing = start(stack, device)
        cells = {
            row: {**missing, **measure(workers, row, 3 if quick else 60)}
            for row in CALLS
        }
    rows = {name: made for name in CALLS if (made := cells[name])}
    medians = {
        row: {library: cell.median for library, cell in made.items()}
        for row, made in rows.items()
    }
    yield Table(
        "calls",
        "Calls: ns each",
        list(of(device)),
        [judged(device, row, rows[row], medians) for row in rows],
    )


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
    """The cells of the libraries that can do it."""
    samples = {n: [] for n, worker in workers.items() if row in worker.rows}
    failed = {}
    for processor in islice(cycle(os.sched_getaffinity(0)), batches):
        for library in samples.keys() - failed.keys():
            try:
                took = workers[library].batch(row, BATCH, processor)
                samples[library].append(took)
            except Missing as error:
                failed[library] = Cell(why=str(error))
    return {n: Cell.of(s) for n, s in samples.items() if n not in failed} | (
        failed
    )


def judged(device, row, cells, medians):
    call = CALLS[row]
    made = Row(call.title, cells)
    ours = medians[row].get(OURS)
    target = getattr(call, device)
    made.target = str(target or "")
    if ours is None:
        return made
    peers = [
        median
        for library, median in medians[row].items()
        if median is not None and library not in (*FLOORS, OURS)
    ]
    raw = medians[row].get("raw")
    if raw:
        made.ratios["of raw"] = ours / raw
    if peers and min(peers) > 0:
        made.ratios["of best peer"] = ours / min(peers)
    bound = target and target.bound(row, medians)
    if bound is not None:
        made.met = ours <= bound
    return made
