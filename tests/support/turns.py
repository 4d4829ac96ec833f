"""Random programs whose callables use streams themselves, under random
schedules.

    python tests/support/turns.py [FIRST [COUNT]]

Prints a digest of each program's run.  The digest is the same in every
process.
"""

import concurrent.futures
import hashlib
import sys

import replays
from replays import Chooser

STREAMS, CELLS, SIZE = 3, 3, 8
# "all:" names orders of the programs in replays.py.
STRATEGIES = [s for s in replays.STRATEGIES if not s.startswith("all:")]


def name_of(seed):
    choose = Chooser(f"turns {seed}")
    strategy = STRATEGIES[choose(len(STRATEGIES))]
    first = 1 + choose(5)
    return strategy.format(first, first + 1 + choose(5), choose(1 << 32))


class Program:
    """A program made from a seed, and everything that it could tell about its
    schedule."""

    def __init__(self, seed):
        from pystreams import Stream, empty

        choose = Chooser(f"program {seed}")
        self.seen = []
        self.futures = []
        self.streams = [Stream("cpu") for _ in range(STREAMS)]
        self.cells = [
            empty(SIZE, device="cpu", stream=self.streams[0])
            for _ in range(CELLS)
        ]
        for _ in range(4 + choose(12)):
            self.act(choose, 0)
        if choose(3) == 0:
            concurrent.futures.wait(self.futures)
        for stream in self.streams:
            self.wait(stream.synchronize)

    def wait(self, wait):
        try:
            wait()
        except RuntimeError as error:
            # A callable waits for its own stream, or two callables wait for
            # each other.
            self.seen.append("deadlock" in str(error))

    def act(self, choose, depth):
        step = choose(16)
        stream = self.streams[choose(STREAMS)]
        cell = self.cells[choose(CELLS)]
        other = self.streams[choose(STREAMS)]
        if step < 3:
            cell.fill_(choose(256), stream=stream)
        elif step < 5:
            with stream:
                self.wait(lambda: self.seen.append(cell.tobytes()[0]))
        elif step < 6:
            stream.wait_stream(other)
        elif step < 7:
            self.wait(stream.synchronize)
        elif step < 8:
            self.seen.append(stream.query())
        elif step < 9:
            self.seen.append(cell.memoryview(readonly=True)[0])
        elif step < 10:
            stream.record_event()
        elif step < 12 and self.futures:
            future = self.futures[choose(len(self.futures))]
            if step < 11:
                future.add_done_callback(
                    lambda future: cell.fill_(9, stream=other)
                )
            elif depth == 0 or future.done():
                self.wait(future.result)
        elif depth < 2:
            self.submit(choose, depth, stream)

    def submit(self, choose, depth, stream):
        from pystreams import empty

        chooser = Chooser(f"callable {choose(1 << 30)}")

        def work(argument):
            self.seen.append("begins")
            for _ in range(1 + chooser(3)):
                self.act(chooser, depth + 1)
            self.seen.append("ends")

        # If this is the only reference to the argument, it is freed when the
        # callable has ended.
        kept = choose(2)
        argument = None if kept else empty(SIZE, device="cpu", stream=stream)
        self.futures.append(stream.submit(work, argument))


def run(seed):
    """Return the order under a schedule, its report and the result."""
    from pystreams import schedules

    schedule = schedules._Run(name_of(seed), logged=True)
    # The end of the schedule runs the remaining work, which uses the cells.
    with schedule:
        program = Program(seed)
    return (
        schedule.order,
        schedule.steps,
        schedules._describe(schedule, ""),
        program.seen,
    )


def main(first=0, count=1000):
    for seed in range(first, first + count):
        digest = hashlib.sha256(repr(run(seed)).encode()).hexdigest()
        print(seed, name_of(seed), digest[:16], flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
