"""Random programs under random schedules: the name of a schedule must produce
the same run each time, on this Python and on others.

    python tests/support/replays.py [FIRST [COUNT [JOBS]]]

Runs each of COUNT programs twice under one name, and every 100th under
explore(), which names the schedule that it found.  Prints a digest of the
names, the orders and the bytes for every 10,000 programs, and one for all
programs.  The digests are equal on every Python and every machine.  Exits with
1 if a replay differs from the first run.
"""

import hashlib
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random

PART = 10_000
CELLS, SIZE, STREAMS = 4, 8, 3
# The environment of the processes that run the programs.  It does not depend
# on that of this process.
ENVIRONMENT = {
    "PYSTREAMS_ACCELERATOR": "cpu",
    "PYSTREAMS_CPU_DEVICES": "1",
    "PYSTREAMS_EMULATE_CUDA": None,
    "PYSTREAMS_SCHEDULE": None,
}
STRATEGIES = (
    "late",
    "early",
    "late:{0},{1}",
    "random:{2}",
    "pct:1:{2}",
    "pct:2:{2}:40",
    "pct:3:{2}:40",
    "all:{0}*3,0,{1},1*2",
)


class Chooser:
    """Random numbers from a seed.  They come only from random(), because no
    other method returns the same numbers in every release of Python."""

    def __init__(self, seed):
        self._random = Random(seed).random

    def __call__(self, limit):
        return int(self._random() * limit)


def name_of(seed):
    choose = Chooser(f"schedule {seed}")
    strategy = STRATEGIES[choose(len(STRATEGIES))]
    first = 1 + choose(3)
    return strategy.format(first, first + 1 + choose(4), choose(1 << 32))


def program(seed):
    """Return everything that a program could tell about its schedule."""
    from pystreams import _C, Buffer, Event, Stream

    choose = Chooser(seed)
    streams = [Stream("cpu") for _ in range(STREAMS)]
    memory = Buffer(CELLS * SIZE, device="cpu", stream=streams[0])
    cells = [memory[SIZE * i : SIZE * (i + 1)] for i in range(CELLS)]
    begin = Event("cpu", enable_timing=True)
    begin.record(streams[0])
    seen = bytearray()
    for _ in range(4 + choose(12)):
        stream = streams[choose(STREAMS)]
        cell = cells[choose(CELLS)]
        step = choose(41)
        if step < 12:
            cell.fill_(choose(256), stream=stream)
        elif step < 20:
            cell.copy_(cells[choose(CELLS)], True, stream)
        elif step < 26:
            stream.wait_stream(streams[choose(STREAMS)])
        elif step < 32:
            seen.append(stream.query())
        elif step < 34:
            _C.sleep(0, choose(1000), stream)
        elif step < 36:
            stream.synchronize()
        elif step < 40:
            seen += bytes(cell.memoryview(readonly=True))
        else:
            stream.submit(seen.append, choose(256))
    _C.synchronize(0, 0)
    end = Event("cpu", enable_timing=True)
    end.record(streams[0])
    end.synchronize()
    return bytes(seen) + memory.tobytes() + b"%g" % begin.elapsed_time(end)


def run(seed, name):
    """Return the order and the result under the schedule."""
    from pystreams import schedules

    schedule = schedules._Run(name)
    with schedule:
        result = program(seed)
    return b"%d %d " % (schedule.order, schedule.steps) + result


def found(seed):
    """Return the name of a schedule under which the program has a different
    result than under the first schedule."""
    from pystreams import schedules

    expected = schedules.replay(lambda: program(seed), "early")

    def fn():
        assert program(seed) == expected

    try:
        schedules.explore(fn, runs=20, seed=seed)
    except AssertionError as error:
        note = "\n".join(error.__notes__)
        return re.search(r'replay\(fn, "(.*)"\)', note)[1]
    return ""


def digest(first, count):
    """Return the digest of `count` programs, of which the first has the seed
    `first`."""
    digest = hashlib.sha256()
    for seed in range(first, first + count):
        name = name_of(seed)
        one, other = run(seed, name), run(seed, name)
        if one != other:
            raise AssertionError(f"program {seed} differs under {name!r}")
        digest.update(name.encode() + one)
        if seed % 100 == 0:
            digest.update(found(seed).encode())
    return digest.hexdigest()


def main(first=0, count=500_000, jobs=1):
    for variable, value in ENVIRONMENT.items():
        os.environ.pop(variable, None)
        if value is not None:
            os.environ[variable] = value
    whole = hashlib.sha256()
    starts = range(first, first + count, PART)
    with ProcessPoolExecutor(jobs) as pool:
        for start, part in zip(
            starts,
            pool.map(partial(digest, count=min(PART, count)), starts),
            strict=True,
        ):
            print(f"{start:8} {part}", flush=True)
            whole.update(part.encode())
    print(f"all {count:,} on Python {sys.version.split()[0]}:")
    print(whole.hexdigest())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
