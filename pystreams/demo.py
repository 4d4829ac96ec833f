"""Stream a file through devices and back, and check every byte.

A ring of slots bounds the memory: a slot has a stream on each device, a
pinned buffer at each end of the way and a buffer on each device.  A chunk of
the file takes the next slot once the chunk before it has come back out.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from array import array
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from . import _C
from ._C import Buffer, Event, Stream
from .report import size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO
    from typing import Any

    Progress = Callable[[int], None]

MAX_STREAMS = 64
MAX_CHUNK = 1 << 30
MAX_BUFFERS = 4 << 30
MIN_CHUNK = 4 << 10
DEFAULT_CHUNK = 1 << 20
# How much of a long file is timed.
TIMED_BYTES = 1 << 30


class DemoError(Exception):
    """What the user asked for can't be done; the text says why."""


class Mismatch(Exception):
    """A chunk came back different."""


def open_file(path: str) -> FileIO:
    """Open a regular file."""
    try:
        # Opening a pipe would wait for somebody to write to it.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DemoError(f"{path} is not a regular file")
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise DemoError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise DemoError(f"{path!r} is not a path: {error}") from error


class Source:
    """An open file that must stay as it is now."""

    def __init__(self, path: str, file: FileIO) -> None:
        self.path = path
        self._file = file
        self._opened = os.fstat(file.fileno())
        self.size = self._opened.st_size
        if self.size == 0:
            raise DemoError(f"{path} is empty")

    def rewind(self) -> None:
        self._file.seek(0)

    def read(self, view: memoryview) -> None:
        """Fill the view with what comes next."""
        filled = 0
        while filled < len(view):
            try:
                count = self._file.readinto(view[filled:])
            except OSError as error:
                raise DemoError(f"{self.path}: {error.strerror}") from error
            if not count:
                raise DemoError(f"{self.path} shrank while it was being read")
            filled += count

    def check_unchanged(self) -> None:
        now, then = os.fstat(self._file.fileno()), self._opened
        if now.st_nlink < then.st_nlink:
            raise DemoError(f"{self.path} vanished while it was being read")
        if (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns):
            raise DemoError(f"{self.path} changed while it was being read")


def host_buffer(nbytes: int, stream: Stream) -> Buffer:
    """Return host memory that a stream copies asynchronously."""
    device = stream.device
    # What is pinned for "cpu" is the accelerator's, where that is another.
    if device.type == "cpu" and stream.device_type != _C.default_type():
        return Buffer(nbytes, device=device, stream=stream)
    return Buffer(nbytes, device=device, pin_memory=True)


class Slot:
    """A place in the ring, for one chunk at a time."""

    def __init__(self, devices: list[_C.device], chunk: int) -> None:
        self.streams = [Stream(device) for device in devices]
        self.buffers = [
            Buffer(chunk, device=stream.device, stream=stream)
            for stream in self.streams
        ]
        self.incoming = host_buffer(chunk, self.streams[0])
        self.outgoing = host_buffer(chunk, self.streams[-1])
        self.incoming_view = self.incoming.memoryview()
        self.outgoing_view = self.outgoing.memoryview()
        self.starts = [Event(device) for device in devices]
        self.ends = [Event(device) for device in devices]
        # For each device, when its stream began and ended each chunk, in
        # milliseconds after the device's origin: begin, end, begin, end, ...
        self.spans = [array("f") for _ in devices]

    def send(self, nbytes: int) -> None:
        """Queue the way of a chunk, from incoming through to outgoing."""
        source = self.incoming[:nbytes]
        for place, stream in enumerate(self.streams):
            if place:
                stream.wait_event(self.ends[place - 1])
            self.starts[place].record(stream)
            target = self.buffers[place][:nbytes]
            target.copy_(source, non_blocking=True, stream=stream)
            if place == len(self.streams) - 1:
                back = self.outgoing[:nbytes]
                back.copy_(target, non_blocking=True, stream=stream)
            self.ends[place].record(stream)
            source = target

    def check(self, chunk: int, nbytes: int, expected: int) -> None:
        """Wait for a chunk to come out, and compare its CRC-32."""
        self.ends[-1].synchronize()
        found = zlib.crc32(self.outgoing_view[:nbytes])
        if found != expected:
            raise Mismatch(
                f"chunk {chunk} came back different: its CRC-32 is "
                f"{found:08x}, and {expected:08x} in a plain read"
            )

    def note_times(self, origins: list[Event]) -> None:
        """Wait for a chunk to come out, and add to the spans."""
        self.ends[-1].synchronize()
        for place, origin in enumerate(origins):
            begin = origin.elapsed_time(self.starts[place])
            end = origin.elapsed_time(self.ends[place])
            self.spans[place].extend((begin, end))


def send_file(
    source: Source,
    ring: list[Slot],
    limit: int,
    progress: Progress,
    watch: Callable[[Slot, int, int], Callable[[], None]],
) -> None:
    """Send the first bytes of a file around the ring.

    watch gets a slot, the number and the bytes of the chunk that was sent
    from it, and returns what to call before the slot is used again.
    """
    chunk = ring[0].incoming.nbytes
    waits: list[Callable[[], None]] = []
    source.rewind()
    for index, offset in enumerate(range(0, limit, chunk)):
        place = index % len(ring)
        slot = ring[place]
        if index >= len(ring):
            waits[place]()
        nbytes = min(chunk, limit - offset)
        source.read(slot.incoming_view[:nbytes])
        slot.send(nbytes)
        waits[place : place + 1] = [watch(slot, index, nbytes)]
        progress(nbytes)
    for wait in waits:
        wait()


def check_file(
    source: Source, ring: list[Slot], checksums: array[int], progress: Progress
) -> None:
    """Send a file around, and check that each chunk has its CRC-32."""
    with ThreadPoolExecutor(min(len(ring), os.cpu_count() or 1)) as pool:

        def watch(slot: Slot, index: int, nbytes: int) -> Callable[[], None]:
            expected = checksums[index]
            return pool.submit(slot.check, index, nbytes, expected).result

        send_file(source, ring, source.size, progress, watch)


def time_file(
    source: Source, ring: list[Slot], limit: int, progress: Progress
) -> float:
    """Send the first bytes of a file around, and return the seconds it took.

    The slots' spans tell afterwards when each stream worked.
    """
    origins = [Event(stream.device) for stream in ring[0].streams]
    for slot in ring:
        slot.spans = [array("f") for _ in origins]
    began = time.perf_counter()
    for origin, stream in zip(origins, ring[0].streams, strict=True):
        origin.record(stream)
    send_file(
        source,
        ring,
        limit,
        progress,
        lambda slot, index, nbytes: partial(slot.note_times, origins),
    )
    return time.perf_counter() - began


def read_plainly(
    source: Source, chunk: int, limit: int, progress: Progress
) -> array[int]:
    """Read the first bytes of a file; return the CRC-32 of each chunk."""
    checksums = array("I")
    view = memoryview(bytearray(chunk))
    source.rewind()
    for offset in range(0, limit, chunk):
        part = view[: limit - offset]
        source.read(part)
        checksums.append(zlib.crc32(part))
        progress(len(part))
    return checksums


def find_devices(names: list[str]) -> list[_C.device]:
    """Return the devices that were named, or the accelerator's.

    A type without an index names all devices of the type.
    """
    types = dict(_C.backends())
    if not names:
        default = _C.default_type()
        names = [name for name, kind in types.items() if kind == default]
    found = []
    for name in names:
        try:
            device = _C.device(name)
        except RuntimeError as error:
            raise DemoError(f"unknown device {name!r}") from error
        kind = types.get(device.type, 1 if device.type == "cuda" else None)
        if kind is None:
            raise DemoError(f"no backend serves the device {name!r}")
        reason = _C.unavailable_reason(kind)
        if reason is not None:
            raise DemoError(f"{name} can't be used: {reason}")
        count = _C.device_count(kind)
        if device.index is None:
            found += [_C.device(device.type, i) for i in range(count)]
        elif device.index < count:
            found.append(device)
        else:
            raise DemoError(
                f"there is no {name}: {device.type} has {count} device(s)"
            )
    if len({device.type for device in found}) > 1:
        raise DemoError("the devices must be of one type")
    return found


def pick_chunk(size: int, streams: int) -> int:
    """Return a chunk that gives every stream of a small file some work."""
    wanted = size // (4 * streams) >> 12 << 12
    return max(MIN_CHUNK, min(wanted, DEFAULT_CHUNK))


def run(
    path: str,
    devices: list[_C.device],
    streams: int,
    chunk: int | None,
    progress: Callable[[str, int], Progress],
) -> dict[str, Any]:
    """Send a file through the devices and back, and return what was measured.

    The whole file is read plainly, then streamed and checked; then its first
    bytes are streamed twice against the clock, over all streams and over one.
    progress gets a title and the bytes to come, and returns what to call with
    each number of bytes done.  Raises DemoError where the file can't be read
    or changes, and Mismatch where a byte came back different.
    """
    with open_file(path) as file:
        source = Source(path, file)
        size = source.size
        chunk = min(chunk or pick_chunk(size, streams), size)
        chunks = -(-size // chunk)
        streams = min(streams, chunks)
        total = streams * chunk * (2 + len(devices))
        if total > MAX_BUFFERS:
            raise DemoError(
                f"{streams} streams with chunks of {size_text(chunk)} need "
                f"{size_text(total)} of buffers; the limit is "
                f"{size_text(MAX_BUFFERS)}"
            )
        timed = min(size, max(1, TIMED_BYTES // chunk) * chunk)
        try:
            checksums = read_plainly(
                source, chunk, size, progress("reading", size)
            )
            ring = [Slot(devices, chunk) for _ in range(streams)]
            check_file(source, ring, checksums, progress("checking", size))
            # A long file may have pushed its own beginning out of memory.
            read_plainly(source, chunk, timed, progress("reading", timed))
            one_seconds = time_file(
                source, ring[:1], timed, progress("timing 1 stream", timed)
            )
            seconds = time_file(source, ring, timed, progress("timing", timed))
        except Mismatch:
            source.check_unchanged()
            raise
        source.check_unchanged()
    return {
        "file": path,
        "bytes": size,
        "chunk": chunk,
        "chunks": chunks,
        "streams": streams,
        "devices": [str(device) for device in devices],
        "timed_bytes": timed,
        "seconds": seconds,
        "bytes_per_second": timed / seconds,
        "one_stream_seconds": one_seconds,
        "one_stream_bytes_per_second": timed / one_seconds,
        "overlap": one_seconds / seconds if streams > 1 else None,
        "spans": [slot.spans for slot in ring],
    }
