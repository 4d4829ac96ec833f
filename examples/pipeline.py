"""A pipeline: a file is read, goes to the device, comes back and is written.

    python examples/pipeline.py [FILE]

There are two streams, inward and outward.  Reading and writing are Python
callables that run in stream order, between the copies to and from the device.
With two slots of memory, one stream can read a chunk while the other writes
the previous chunk; events keep the two from using a slot at the same time.
The program queues everything without waiting for any chunk, then waits once,
at the end, and checks what was written.
"""

import argparse
import filecmp
import os
import tempfile
import time

import pystreams

CHUNK = 256 << 10


class Slot:
    """Memory for a chunk: on the host, to read into and to write from, and on
    the device."""

    def __init__(self):
        self.source = pystreams.empty(CHUNK, pin_memory=True)
        self.data = pystreams.empty(CHUNK)
        self.result = pystreams.empty(CHUNK, pin_memory=True)
        self.loaded = pystreams.Event()
        self.stored = pystreams.Event()


def fill(file, view):
    """Read as much as the view holds; runs when the stream reaches it."""
    if file.readinto(view) != len(view):
        raise EOFError(f"{file.name} has become shorter")


def queue(source, target, size):
    """Queue everything, and return the Futures of the callables."""
    inward, outward = pystreams.Stream(), pystreams.Stream()
    slots = [Slot(), Slot()]
    futures = []
    for number, start in enumerate(range(0, size, CHUNK)):
        slot = slots[number % len(slots)]
        nbytes = min(CHUNK, size - start)
        view = slot.source.memoryview()[:nbytes]
        inward.wait_event(slot.stored)  # of the slot's previous chunk
        futures.append(inward.submit(fill, source, view))
        slot.data.copy_(slot.source, non_blocking=True, stream=inward)
        slot.loaded.record(inward)

        view = slot.result.memoryview()[:nbytes]
        outward.wait_event(slot.loaded)
        slot.data.copy_to(slot.result, non_blocking=True, stream=outward)
        futures.append(outward.submit(target.write, view))
        slot.stored.record(outward)
    return futures


def run(path, copy):
    """Send the file through the device, and write it to the path `copy`."""
    size = os.path.getsize(path)
    with open(path, "rb") as source, open(copy, "wb") as target:
        begin = time.perf_counter()
        futures = queue(source, target, size)
        queued = time.perf_counter() - begin
        pystreams.wait(futures)
        seconds = time.perf_counter() - begin
    for future in futures:
        future.result()  # raises what the callable raised
    assert filecmp.cmp(path, copy, shallow=False)
    print(
        f"{size:,} bytes in {len(futures) // 2} chunks, there and back on "
        f"{pystreams.Stream().device}: queued in {queued * 1000:.1f} ms, "
        f"done in {seconds * 1000:.1f} ms"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?", help="16 MiB of noise without it")
    path = parser.parse_args().file
    if path is not None and not os.path.isfile(path):
        parser.error(f"{path} is not a file")
    with tempfile.TemporaryDirectory() as folder:
        if path is None:
            path = os.path.join(folder, "noise")
            with open(path, "wb") as file:
                file.write(os.urandom(64 * CHUNK))
        run(path, os.path.join(folder, "copy"))


if __name__ == "__main__":
    main()
