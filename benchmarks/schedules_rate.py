"""How fast schedules are explored, and how often they hit planted bugs.

    python benchmarks/schedules_rate.py [--runs 2000] [--json]

- Schedules a second, for a program that queues 100 operations on 4 streams and
  waits for them: from Python, and from C (c/schedules.c, which needs a
  compiler).
- Virtual seconds for each real one, for a program of sleeps.
- For bugs of depth d = 1, 2 and 3: the part of the runs of "pct" that hit the
  bug, and the least part that PCT guarantees, 1 / (n k^(d-1)).  Here, k is the
  number of steps, and n that of the streams plus one for the program.

Exits with 1 if there are fewer than 1,000 schedules a second from Python or
10,000 from C, if virtual time is less than 1,000 times as fast as real time,
or if a bug is hit more than three standard deviations less often than PCT
guarantees.
"""

import argparse
import json
import sys
import time

import native

from pystreams import _C, Buffer, Event, Stream, schedules

FROM_PYTHON = "schedules a second, from Python"
FROM_C = "schedules a second, from C"
RATIO = "virtual seconds a second"
LEAST = {FROM_PYTHON: 1000, FROM_C: 10_000, RATIO: 1000}


def fills():
    """100 operations, on 4 streams that wait for each other now and then."""
    streams = [Stream("cpu") for _ in range(4)]
    block = Buffer(64, device="cpu", stream=streams[0])
    for i in range(90):
        block.fill_(i, stream=streams[i % 4])
    for one, other in zip(streams, streams[1:] + streams[:1], strict=True):
        one.wait_stream(other)
    streams[0].record_event()
    streams[1].record_event().synchronize()


def rate(runs):
    start = time.perf_counter()
    schedules.explore(fills, runs=runs)
    return runs / (time.perf_counter() - start)


def rate_from_c(runs):
    """Return the schedules a second from C, or None if there is no
    compiler."""
    try:
        row = native.rows("schedules.c", *native.engine())["schedule"]
    except OSError:
        return None
    return 1e9 / row(10 * runs)


def ratio():
    def sleeps():
        stream = Stream("cpu")
        begin, end = (Event("cpu", enable_timing=True) for _ in range(2))
        begin.record(stream)
        for _ in range(100):
            _C.sleep(0, 1_000_000_000, stream)
        end.record(stream)
        end.synchronize()
        return begin.elapsed_time(end) / 1000

    start = time.perf_counter()
    virtual = schedules.replay(sleeps, "late")
    return virtual / (time.perf_counter() - start)


class Hit(Exception):
    """The planted bug."""


def run_in_order(depth):
    """Raise Hit if the callables of two streams ran in an order that is a bug
    of this depth: alternately, starting with the second stream's."""
    order = []
    one, other = Stream("cpu"), Stream("cpu")
    for i in range(3):
        one.submit(order.append, ("one", i))
        other.submit(order.append, ("other", i))
    one.synchronize()
    other.synchronize()
    place = {mark: i for i, mark in enumerate(order)}
    bug = [("other", 0), ("one", 0), ("other", 1), ("one", 1)][: depth + 1]
    places = [place[mark] for mark in bug]
    # The bug shows if the marks ran in the order of this list.
    if places == sorted(places):
        raise Hit


def hits(depth, runs):
    """Return the part of the runs that hit the bug, and the least part that
    is guaranteed."""
    base = schedules._Run("early")
    base.failure_of(lambda: run_in_order(depth))
    count = 0
    for seed in range(runs):
        run = schedules._Run(f"pct:{depth}:{seed}:{base.steps}")
        count += isinstance(
            run.failure_of(lambda: run_in_order(depth), keep=False), Hit
        )
    return count / runs, 1 / (3 * base.steps ** (depth - 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {
        FROM_PYTHON: rate(options.runs),
        FROM_C: rate_from_c(options.runs),
        RATIO: ratio(),
    }
    found = {name: value for name, value in found.items() if value}
    table = {depth: hits(depth, options.runs) for depth in (1, 2, 3)}
    if options.json:
        print(json.dumps({**found, "hits": table}, indent=2))
    else:
        for name, value in found.items():
            print(f"{name:32} {value:12,.0f}")
        print(f"{'depth':>5} {'hit':>8} {'guaranteed':>11}")
        for depth, (hit, least) in table.items():
            print(f"{depth:5} {hit:8.4f} {least:11.4f}")
    return any(value < LEAST[name] for name, value in found.items()) or any(
        hit < least - 3 * (least * (1 - least) / options.runs) ** 0.5
        for hit, least in table.values()
    )


if __name__ == "__main__":
    sys.exit(main())
