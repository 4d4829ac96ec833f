"""Two processes that share a ring of buffers: one fills, the other checks.

    python examples/shared_ring.py [--chunks N] [--slots N] [--size BYTES]

The memory belongs to the producer, and the consumer opens it: nothing is
copied between them.  Each slot has two interprocess events.  `filled` orders
the consumer's work after the producer's; `emptied` orders the producer's next
use of the slot after the consumer's.  An event must be recorded before
another process can wait for that record.  So each process sends the other a
message when it has recorded a slot's event.  The messages do not wait for the
device; the events do the rest.
"""

import argparse
import multiprocessing
import time
import zlib

import pystreams


class Slot:
    """A part of the ring: memory and events, which pickle passes to the other
    process as handles."""

    def __init__(self, device, size):
        self.data = pystreams.empty(size, device=device, interprocess=True)
        self.filled, self.emptied = (
            pystreams.Event(device, enable_timing=False, interprocess=True)
            for _ in range(2)
        )


def consume(slots, chunks, pipe):
    """Read every chunk, and send the checksum of all chunks."""
    stream = pystreams.Stream(slots[0].data.device)
    total = 0
    for i in range(chunks):
        slot = slots[pipe.recv()]
        slot.filled.wait(stream)
        with stream:
            total = zlib.crc32(slot.data.tobytes(), total)
        slot.emptied.record(stream)
        pipe.send(i)
    stream.synchronize()
    pipe.send(total)


def produce(slots, chunks, pipe):
    """Fill every chunk with its number, as soon as its slot is empty."""
    stream = pystreams.Stream(slots[0].data.device)
    for i in range(chunks):
        slot = slots[i % len(slots)]
        if i >= len(slots):
            pipe.recv()  # the consumer has recorded `emptied`
            slot.emptied.wait(stream)
        slot.data.fill_(i % 256, stream=stream)
        slot.filled.record(stream)
        pipe.send(i % len(slots))
    for _ in range(min(chunks, len(slots))):
        pipe.recv()
    stream.synchronize()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--size", type=int, default=1 << 20)
    options = parser.parse_args()
    if options.chunks < 0 or options.slots < 1 or options.size < 1:
        parser.error(
            "--slots and --size must be at least 1, and --chunks at least 0"
        )

    device = pystreams.accelerator.current_stream().device
    slots = [Slot(device, options.size) for _ in range(options.slots)]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    consumer = context.Process(
        target=consume, args=(slots, options.chunks, theirs)
    )
    consumer.start()
    # Now only the consumer has this end: if it dies, recv() raises EOFError.
    theirs.close()
    start = time.perf_counter()
    try:
        produce(slots, options.chunks, ours)
        got = ours.recv()
    except (EOFError, ConnectionError):
        consumer.join()
        raise SystemExit(
            f"the consumer ended early, with exit code {consumer.exitcode}"
        ) from None
    seconds = time.perf_counter() - start
    consumer.join()

    expected = 0
    for i in range(options.chunks):
        expected = zlib.crc32(bytes([i % 256]) * options.size, expected)
    if got != expected:
        raise SystemExit(f"the consumer read {got:08x}, not {expected:08x}")
    rate = options.chunks * options.size / seconds / 1e9
    print(
        f"{options.chunks} chunks of {options.size:,} bytes through "
        f"{options.slots} slots of {device}: right, {rate:.2f} GB/s"
    )


if __name__ == "__main__":
    main()
