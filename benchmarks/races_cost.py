"""What it costs to look for races: calls with the detector on, and off.

    python benchmarks/races_cost.py [--device cpu] [--json]

Prints the nanoseconds of each call on idle streams, with the detector on and
off: the least of several batches, which alternate.  Then prints the bytes that
the detector keeps, as the C library counts them: for a stream, for a block
that one stream has accessed, and for each further stream that has accessed it.
On the CPU engine, exits with 1 if a call takes more than three times as long
with the detector on.
"""

import argparse
import ctypes
import json
import sys
import timeit
from contextlib import nullcontext

from pystreams import Buffer, Event, Stream, races

CALLS = 2000
ROUNDS = 7
MOST = 3.0
STREAMS, BLOCKS = 100, 1000


def calls(device):
    """The two streams, and what is measured, by name."""
    a, b, event = Stream(device), Stream(device), Event(device)
    x, y = (Buffer(4096, device=device) for _ in range(2))

    def order():
        event.record(a)
        b.wait_event(event)

    def pipeline():
        x.fill_(1, stream=a)
        b.wait_stream(a)
        y.copy_(x, non_blocking=True, stream=b)
        a.wait_stream(b)

    return (a, b), {
        "fill": lambda: x.fill_(1, stream=a),
        "copy": lambda: y.copy_(x, non_blocking=True, stream=a),
        "record": lambda: event.record(a),
        "record + wait on another stream": order,
        "stream.wait_stream(other)": lambda: b.wait_stream(a),
        "stream.query()": a.query,
        "stream.synchronize()": a.synchronize,
        "fill, wait, copy, wait": pipeline,
    }


def measure(device):
    """Return (off, on) for each call."""
    streams, table = calls(device)
    least = {name: [float("inf")] * 2 for name in table}
    for _ in range(ROUNDS):
        for place, context in (0, nullcontext()), (1, races.detect()):
            with context:
                for name, call in table.items():
                    for stream in streams:
                        stream.synchronize()
                    time = timeit.timeit(call, number=CALLS) / CALLS * 1e9
                    least[name][place] = min(least[name][place], time)
    return least


class Usage(ctypes.Structure):
    """struct mallinfo2, of which hblkhd and uordblks are used here."""

    _fields_ = (
        ("before", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),
        ("between", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),
        ("after", ctypes.c_size_t * 2),
    )


def allocated():
    """The bytes that malloc has given out."""
    usage = ctypes.CDLL(None).mallinfo2
    usage.restype = Usage
    found = usage()
    return found.uordblks + found.hblkhd


def kept(streams, blocks):
    """The bytes kept after each stream has accessed each block.  The blocks
    are mere addresses without memory, so only the detector allocates."""
    with races.detect():
        before = allocated()
        for stream in streams:
            races.declare(stream)
            for block in range(blocks):
                races.declare(stream, reads=[(4096 * (block + 1), 64)])
        return allocated() - before


def memory(device):
    """Return {what: bytes that the detector keeps for one}, or {} if the C
    library has no mallinfo2."""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return {}
    streams = [Stream(device) for _ in range(STREAMS)]
    kept(streams, 1)
    alone, one = kept(streams, 0), kept(streams[:1], BLOCKS)
    return {
        "stream": alone / STREAMS,
        "block, by one stream": one / BLOCKS,
        "(stream, block) pair": (kept(streams, BLOCKS) - alone - one)
        / ((STREAMS - 1) * BLOCKS),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, nbytes = measure(options.device), memory(options.device)
    if options.json:
        print(json.dumps({"calls": rows, "bytes": nbytes}, indent=2))
    else:
        print(f"{options.device:32} {'off, ns':>8} {'on, ns':>8} {'ratio':>6}")
        for name, (off, on) in rows.items():
            print(f"{name:32} {off:8,.0f} {on:8,.0f} {on / off:6.2f}")
        for name, each in nbytes.items():
            print(f"{name:32} {each:8,.0f} bytes")
    worst = max(on / off for off, on in rows.values())
    return options.device.startswith("cpu") and worst > MOST


if __name__ == "__main__":
    sys.exit(main())
