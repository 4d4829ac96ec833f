"""How many queued operations a second one busy stream of the CPU engine does.

    python benchmarks/queued.py

A stream that sleeps is given records, which wait in its queue; counted are
the time to queue them from Python, and the time to do them after the sleep.
"""

import statistics
import time

import pystreams
from pystreams import _C

RECORDS = 60_000
SLEEP = 0.02
ROUNDS = 9


def measure():
    stream = pystreams.Stream("cpu")
    event = pystreams.Event("cpu", enable_timing=False)
    event.record(stream)
    record = event.record
    _C.sleep(0, int(SLEEP * 1e9), stream)
    start = time.perf_counter()
    for _ in range(RECORDS):
        record(stream)
    queued = time.perf_counter() - start
    stream.synchronize()
    drained = max(time.perf_counter() - start - SLEEP, 0)
    return RECORDS / (queued + drained)


def main():
    rate = statistics.median(measure() for _ in range(ROUNDS))
    print(f"{rate / 1e6:.2f} million queued operations a second")
    raise SystemExit(rate < 2e6)


if __name__ == "__main__":
    main()
