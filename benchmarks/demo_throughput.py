"""The demo's speed, compared with the limits of the machine it runs on.

The stages of the demo are measured first.  Plain threads read from the page
cache into the demo's kind of memory, with and without a CRC-32 of each chunk.
The devices copy up, down, and both ways at once.  Stages share memory and
caches, so together they are slower than the slowest stage alone.

On a GPU, the limit is the rate of readers and copies that run at the same
time, without any order between them.  On the CPU engine, the stages share the
cores, too.  There, the limit is a loop in C that does a read and two memcpy
for each chunk, on one thread or on one thread for each core, whichever is
faster.  Every round measures all of these.  Ratios are computed within a
round, and the medians of the rounds are printed.

For comparison, plain threads do the demo's work.  There are as many of them as
the demo has streams.  Each thread has a stream of its own.  It reads a chunk,
copies it to the device and back, waits, and checks it, without callables.
"""

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from array import array
from concurrent.futures import ThreadPoolExecutor

from pystreams import _C, Buffer, Event, Stream
from pystreams._cli import demo

READERS = (1, 2, 4, 8, 16, 32)
# At most so many bytes go through the CPU engine, and at most so many are
# copied in each direction.
HOST_BYTES = 1 << 30
COPY_BYTES = 4 << 30
SOURCE = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void
copy_part(int file, size_t chunk, long begin, long end)
{
    char *in = malloc(chunk), *device = malloc(chunk), *out = malloc(chunk);
    ssize_t count = 1;
    for (long at = begin; at < end && count > 0; at += count) {
        count = pread(file, in, chunk, at);
        memcpy(device, in, (size_t)count);
        memcpy(out, device, (size_t)count);
        /* Keeps the compiler from dropping the copies. */
        __asm__ volatile("" : : "r"(out), "r"(device) : "memory");
    }
    free(in), free(device), free(out);
}
"""


def compile_copy(folder: str) -> ctypes.CDLL:
    source = os.path.join(folder, "copy.c")
    library = os.path.join(folder, "copy.so")
    with open(source, "w") as file:
        file.write(SOURCE)
    command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", library, source], check=True)
    loaded = ctypes.CDLL(library)
    loaded.copy_part.restype = None
    loaded.copy_part.argtypes = [
        ctypes.c_int,
        ctypes.c_size_t,
        ctypes.c_long,
        ctypes.c_long,
    ]
    return loaded


def rate_in_c(
    loaded: ctypes.CDLL, file: int, chunk: int, limit: int, threads: int
) -> float:
    """Return the bytes a second of the loop in C.  Each thread has a part of
    the file."""
    part = -(-limit // threads)

    def copy(begin: int) -> None:
        loaded.copy_part(file, chunk, begin, min(begin + part, limit))

    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        for _ in pool.map(copy, range(0, limit, part)):
            pass
        return limit / (time.perf_counter() - began)


def write_file(path: str, nbytes: int) -> None:
    block = os.urandom(16 << 20)
    with open(path, "wb") as file:
        for left in range(nbytes, 0, -len(block)):
            file.write(block[:left])


def silent(nbytes: int) -> None:
    pass


class Readers:
    """Plain threads that read a file into host memory of a device's kind.

    Each thread has two buffers, like a lane of the demo: it reads a chunk into
    one and computes the CRC-32 of the other, which it filled before.
    """

    def __init__(self, source: demo.Source, device: _C.device, chunk: int):
        self._source = source
        self._stream = Stream(device)
        self._chunk = chunk
        self._pairs: list[list[Buffer]] = []

    def rate(self, threads: int, limit: int, check: bool) -> float:
        """Return the bytes a second that some threads read."""
        while len(self._pairs) < threads:
            self._pairs.append(
                [demo.host_buffer(self._chunk, self._stream) for _ in "12"]
            )
        offsets = iter(range(0, limit, self._chunk))

        def read(pair: list[Buffer]) -> None:
            views = [buffer.memoryview() for buffer in pair]
            for offset in offsets:
                views.reverse()
                view = views[0][: limit - offset]
                self._source.read(view, offset)
                if check:
                    zlib.crc32(views[1][: len(view)])

        with ThreadPoolExecutor(threads) as pool:
            began = time.perf_counter()
            for _ in pool.map(read, self._pairs[:threads]):
                pass
            return limit / (time.perf_counter() - began)


class Copies:
    """Copies between the host and each of some devices at once."""

    def __init__(self, devices: list[_C.device], chunk: int):
        self._chunk = chunk
        # Each item has a stream that copies up (to the device) and one that
        # copies down, each with a buffer of the device and one of the host.
        self._pairs = []
        for device in devices * (4 if demo.on_host(devices[0]) else 2):
            up, down = Stream(device), Stream(device)
            self._pairs.append(
                [
                    (
                        stream,
                        Buffer(chunk, device=device, stream=stream),
                        demo.host_buffer(chunk, stream),
                    )
                    for stream in (up, down)
                ]
            )

    def rate(self, up: bool, down: bool, limit: int) -> float:
        """Return the bytes a second one way, or each way at once."""
        turns = max(1, limit // self._chunk // len(self._pairs))
        began = time.perf_counter()
        for _ in range(turns):
            for upward, downward in self._pairs:
                if up:
                    stream, device, host = upward
                    device.copy_(host, non_blocking=True, stream=stream)
                if down:
                    stream, device, host = downward
                    host.copy_(device, non_blocking=True, stream=stream)
        for pair in self._pairs:
            for stream, _, _ in pair:
                stream.synchronize()
        seconds = time.perf_counter() - began
        return turns * len(self._pairs) * self._chunk / seconds


class Threads:
    """Plain threads that do what the demo does, without callables."""

    def __init__(self, source: demo.Source):
        self._source = source
        self._places: list[tuple] = []

    def add(self, device: _C.device, chunk: int) -> None:
        stream = Stream(device)
        self._places.append(
            (
                stream,
                Buffer(chunk, device=device, stream=stream),
                demo.host_buffer(chunk, stream),
                demo.host_buffer(chunk, stream),
                Event(device, enable_timing=False, blocking=True),
            )
        )

    def rate(self, threads: int, limit: int, checksums: array | None) -> float:
        """Return the bytes a second of this many of the threads together."""
        chunk = self._places[0][1].nbytes
        indices = iter(range(-(-limit // chunk)))

        def work(place: tuple) -> None:
            stream, buffer, incoming, outgoing, done = place
            views = incoming.memoryview(), outgoing.memoryview()
            for index in indices:
                length = min(chunk, limit - index * chunk)
                self._source.read(views[0][:length], index * chunk)
                buffer.copy_(incoming, True, stream)
                outgoing.copy_(buffer, True, stream)
                done.record(stream)
                done.synchronize()
                if checksums is not None:
                    found = zlib.crc32(views[1][:length])
                    if found != checksums[index]:
                        raise RuntimeError(f"chunk {index} came back wrong")

        with ThreadPoolExecutor(threads) as pool:
            began = time.perf_counter()
            for _ in pool.map(work, self._places[:threads]):
                pass
            return limit / (time.perf_counter() - began)


class Section:
    """The demo on some devices, over some numbers of streams."""

    def __init__(self, devices, source, file, in_c, options, counts):
        self.devices = devices
        self.host = demo.on_host(devices[0])
        self.size = min(source.size, HOST_BYTES) if self.host else source.size
        self.name = ", ".join(map(str, devices))
        self._source = source
        ways = [[device] for device in devices]
        self.streams = options.streams or [demo.default_streams(len(devices))]
        most = max(self.streams) * len(ways)
        self.chunk = (options.chunk_kib or 0) << 10 or demo.default_chunk(
            self.size, most, devices[0]
        )
        self._file = file
        self._in_c = in_c
        self._ways = ways
        self._counts = counts
        self._readers = Readers(source, devices[0], self.chunk)
        self._copies = Copies(devices, self.chunk)
        self._checksums = demo.read_plainly(
            source, self.chunk, self.size, silent
        )
        self._lanes: list[demo.Lane] = []
        self._threads = Threads(source)
        for index in range(most):
            self._threads.add(ways[index % len(ways)][0], self.chunk)

    def _demo(self, streams: int, checksums: array | None) -> float:
        count = streams * len(self._ways)
        while len(self._lanes) < count:
            way = self._ways[len(self._lanes) % len(self._ways)]
            self._lanes.append(demo.Lane(way, self.chunk))
        lanes = self._lanes[:count]
        arguments = self._source, lanes
        # Begin with a short run, so that the demo's threads exist before the
        # measurement.
        demo.stream_file(*arguments, min(self.size, 1 << 28), None, silent)
        seconds = demo.stream_file(*arguments, self.size, checksums, silent)
        return self.size / seconds

    def _both(self, checksums: array | None) -> tuple[dict, dict]:
        """Return the rates of the demo and of plain threads."""
        runs, plain = {}, {}
        for streams in self.streams:
            runs[str(streams)] = self._demo(streams, checksums)
            threads = streams * len(self._ways)
            plain[str(streams)] = self._threads.rate(
                threads, self.size, checksums
            )
        return runs, plain

    def _at_once(self, read: dict[str, float], check: bool) -> float:
        """Return the rate of readers and copies that run at once, without an
        order between them.  It is the smaller of their two rates."""
        threads = int(max(read, key=read.__getitem__))
        with ThreadPoolExecutor(1) as pool:
            copied = pool.submit(self._copies.rate, True, True, self.size)
            rate = self._readers.rate(threads, self.size, check)
            return min(rate, copied.result())

    def round(self) -> dict:
        """Measure the limits and the demo once; rates in GB/s."""
        read = {
            str(n): self._readers.rate(n, self.size, False)
            for n in self._counts
        }
        copies = {
            name: self._copies.rate(up, down, min(self.size, COPY_BYTES))
            for name, up, down in (
                ("up", True, False),
                ("down", False, True),
                ("each way at once", True, True),
            )
        }
        runs, plain = self._both(None)
        # With CRC-32, reading is much slower, most of all on few threads, so
        # leave out the small numbers of threads.
        checked_read = {
            str(n): self._readers.rate(n, self.size, True)
            for n in self._counts
            if n >= max(self._counts) // 4
        }
        checked, plain_checked = self._both(self._checksums)
        if self.host:
            threads = demo.cores()
            in_c = {
                str(n): rate_in_c(
                    self._in_c, self._file, self.chunk, self.size, n
                )
                for n in sorted({1, threads})
            }
            limit = max(in_c.values())
            # The seconds per byte that a CRC-32 adds to reading.
            added = 1 / max(checked_read.values()) - 1 / max(read.values())
            checked_limit = 1 / (1 / limit + added)
        else:
            in_c = {}
            limit = self._at_once(read, False)
            checked_limit = self._at_once(checked_read, True)
        return {
            "readers": giga(read),
            "readers with CRC-32": giga(checked_read),
            "copies": giga(copies),
            "loop in C": giga(in_c),
            "limit": limit / 1e9,
            "limit with check": checked_limit / 1e9,
            "plain threads": giga(plain),
            "plain threads with check": giga(plain_checked),
            "demo": giga(runs),
            "demo with check": giga(checked),
            "demo / limit": {n: rate / limit for n, rate in runs.items()},
            "demo / limit with check": {
                n: rate / checked_limit for n, rate in checked.items()
            },
            "demo / plain threads": {
                n: rate / plain[n] for n, rate in runs.items()
            },
            "demo / plain threads with check": {
                n: rate / plain_checked[n] for n, rate in checked.items()
            },
            "demo / 1 thread in C": {
                n: rate / in_c["1"] for n, rate in runs.items() if in_c
            },
        }


def giga(rates: dict[str, float]) -> dict[str, float]:
    return {name: rate / 1e9 for name, rate in rates.items()}


def median(values: list):
    """Return the median of numbers, or of each member of dictionaries."""
    if isinstance(values[0], dict):
        return {
            name: median([value[name] for value in values])
            for name in values[0]
        }
    return statistics.median(values)


def show(section: Section, result: dict) -> None:
    print(
        f"\n{section.name}: {section.size / 1e9:.2f} GB in chunks of "
        f"{section.chunk >> 10} KiB; GB/s"
    )
    for name, value in result.items():
        if value == {}:
            continue
        if isinstance(value, dict):
            text = "  ".join(f"{key}: {x:.2f}" for key, x in value.items())
        else:
            text = f"{value:.2f}"
        print(f"  {name:<31} {text}")


def counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--device",
        action="append",
        help="devices of one section, with commas; repeat it for more "
        "(default: the CPU engine, each device of the accelerator, and all)",
    )
    parser.add_argument("--gib", type=float, help="size of the file")
    parser.add_argument("--file", help="a file to read in its place")
    parser.add_argument("--streams", type=counts, help="such as 8,16,24")
    parser.add_argument("--chunk-kib", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = options.device
    if names is None:
        devices = demo.find_devices([])
        names = [str(device) for device in devices]
        if len(devices) > 1:
            names.append(",".join(names))
        if "cpu:0" not in names:
            names.insert(0, "cpu:0")
    sections = [demo.find_devices(name.split(",")) for name in names]
    on_host = [demo.on_host(devices[0]) for devices in sections]
    nbytes = int((options.gib or (1 if all(on_host) else 8)) * (1 << 30))
    readers = [n for n in READERS if n <= max(2, demo.cores())]
    results = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = options.file or os.path.join(folder, "data")
        if options.file is None:
            write_file(path, nbytes)
        file = stack.enter_context(demo.open_file(path))
        source = demo.Source(path, file)
        in_c = compile_copy(folder) if any(on_host) else None
        for devices in sections:
            section = Section(
                devices, source, file.fileno(), in_c, options, readers
            )
            rounds = [section.round() for _ in range(options.rounds)]
            result = median(rounds)
            if options.json:
                results.append(
                    {
                        "devices": [str(device) for device in devices],
                        "bytes": section.size,
                        "chunk": section.chunk,
                        **result,
                    }
                )
            else:
                show(section, result)
            del section
    if options.json:
        print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
