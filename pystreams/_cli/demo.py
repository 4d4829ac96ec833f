"""Stream a file through devices and back, and check every byte.

A lane has a stream on each device of its path, and buffers for one chunk of
the file.  In stream order, a callable reads a chunk, copies move the chunk
from device to device and back, and then the lane's next callable checks the
chunk and reads another.  So the main thread only queues more work on lanes
whose callables have ended.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from array import array
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from statistics import median_low
from tempfile import NamedTemporaryFile

from .. import _C, timeline
from .._C import Buffer, Event, Stream
from .report import size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from io import FileIO
    from typing import Any

    Progress = Callable[[int], None]
    # The lane, the chunk that came back, and the failure.
    Turn = tuple["Lane", "Chunk | None", "Exception | None"]

MAX_STREAMS = 64
MAX_CHUNK = 1 << 30
MAX_BUFFERS = 4 << 30
MIN_CHUNK = 4 << 10
# Chunk sizes.  On the host, the buffers of all lanes should stay in the cache.
# On a GPU, a chunk must be large compared with the 60 us or so that the main
# thread needs for it.
HOST_CHUNK = 1 << 20
DEVICE_CHUNK = 4 << 20
# Streams on a device by default: one for each core, within limits.
LEAST_STREAMS = 4
MOST_DEFAULT = 16
# A turn is one call of a lane's callable: it checks a chunk that came back,
# and reads another one.  A lane has this many turns queued at a time.
TURNS = 4
# The part of a long file that is timed.
TIMED_BYTES = 8 << 30
# How often this part is timed, unless that takes too long.
RUNS = 5
LONGEST_RUNS = 20.0
# The size of the file that the demo makes.
OWN_BYTES = 256 << 20
# How much a thread reads without streams between reports of progress.
PLAIN_BYTES = 64 << 20


class DemoError(Exception):
    """The request cannot be carried out; the text says why."""


class Mismatch(Exception):
    """A chunk came back different."""


def open_file(path: str) -> FileIO:
    """Open a regular file."""
    try:
        # Check first: opening a pipe blocks until another process opens it for
        # writing.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DemoError(f"{path} is not a regular file")
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise DemoError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise DemoError(f"{path!r} is not a path: {error}") from error


@contextmanager
def own_file(progress: Callable[[str, int], Progress]) -> Iterator[str]:
    """Make a file of random bytes for the length of a with block."""
    made = 0
    try:
        with NamedTemporaryFile(prefix="pystreams-", buffering=0) as file:
            advance = progress("making", OWN_BYTES)
            for _ in range(0, OWN_BYTES, 1 << 20):
                file.write(os.urandom(1 << 20))
                made += 1 << 20
                advance(1 << 20)
            yield file.name
    except OSError as error:
        if made == OWN_BYTES:
            raise
        raise DemoError(
            f"cannot make a file of {size_text(OWN_BYTES)}: {error.strerror}; "
            "name a FILE, or set TMPDIR to a folder with room"
        ) from error


class Source:
    """An open file that must not change; any thread may read it."""

    def __init__(self, path: str, file: FileIO) -> None:
        self.path = path
        self._file = file
        self._opened = os.fstat(file.fileno())
        self.size = self._opened.st_size
        if self.size == 0:
            raise DemoError(f"{path} is empty")

    def read(self, view: memoryview, offset: int) -> None:
        """Fill the view with the bytes of the file at an offset."""
        filled = 0
        while filled < len(view):
            try:
                count = os.preadv(
                    self._file.fileno(), [view[filled:]], offset + filled
                )
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


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Chunk:
    """A part of the file, and the events around its copies."""

    def __init__(self, index: int, offset: int, nbytes: int) -> None:
        self.index = index
        self.offset = offset
        self.nbytes = nbytes
        self.starts: list[Event] = []
        self.ends: list[Event] = []


def host_buffer(nbytes: int, stream: Stream) -> Buffer:
    """Return host memory that a stream copies asynchronously."""
    device = stream.device
    # If "cpu" is not the accelerator, memory that is pinned for "cpu" belongs
    # to the accelerator, so do not pin it.
    if device.type == "cpu" and stream.device_type != _C.default_type():
        return Buffer(nbytes, device=device, stream=stream)
    return Buffer(nbytes, device=device, pin_memory=True)


class Lane:
    """Streams and buffers that chunks pass through, one after another."""

    def __init__(
        self, way: list[_C.device], nbytes: int, name: str | None = None
    ) -> None:
        self.nbytes = nbytes
        self.streams = [Stream(device, name=name) for device in way]
        self.incoming = host_buffer(nbytes, self.streams[0])
        self.outgoing = host_buffer(nbytes, self.streams[-1])
        self._buffers = [
            self.incoming,
            *(
                Buffer(nbytes, device=stream.device, stream=stream)
                for stream in self.streams
            ),
            self.outgoing,
        ]
        self._incoming_view = self.incoming.memoryview()
        self._outgoing_view = self.outgoing.memoryview()
        self._origins = [Event(device) for device in way]
        # Events for the chunks of the queued turns, and for the chunk before
        # them.
        self._events = [
            (
                [Event(device) for device in way],
                [Event(device) for device in way],
            )
            for _ in range(TURNS + 1)
        ]

    def begin(
        self,
        source: Source,
        checksums: array[int] | None,
        done: SimpleQueue[Turn],
    ) -> None:
        """Start a run, in which each turn puts its result into the queue."""
        self._source = source
        self._checksums = checksums
        self._done = done
        self._latest: Chunk | None = None
        self._count = 0
        self.turns: deque[Future[None]] = deque()
        for origin, stream in zip(self._origins, self.streams, strict=True):
            origin.record(stream)
        # For each device, the times at which its stream began and ended each
        # chunk's copy, in milliseconds since the origin: begin, end, ...
        self.spans = [array("f") for _ in self.streams]

    def send(self, chunk: Chunk) -> None:
        """Queue a turn, which reads the chunk, and then the chunk's copies."""
        self._queue_turn(chunk)
        events = self._events[self._count % len(self._events)]
        chunk.starts, chunk.ends = events
        self._count += 1
        buffers = self._buffers
        if chunk.nbytes < self.nbytes:
            buffers = [buffer[: chunk.nbytes] for buffer in buffers]
        last = len(self.streams) - 1
        for place, stream in enumerate(self.streams):
            if place:
                stream.wait_event(chunk.ends[place - 1])
            chunk.starts[place].record(stream)
            buffers[place + 1].copy_(buffers[place], True, stream)
            if place == last:
                buffers[-1].copy_(buffers[-2], True, stream)
            chunk.ends[place].record(stream)

    def finish(self) -> None:
        """Queue the turn that checks the last chunk."""
        self._queue_turn(None)

    def _queue_turn(self, chunk: Chunk | None) -> None:
        before, self._latest = self._latest, chunk
        first = self.streams[0]
        if before is not None and len(self.streams) > 1:
            first.wait_event(before.ends[-1])
        self.turns.append(first.submit(self._turn, before, chunk))

    def _turn(self, before: Chunk | None, chunk: Chunk | None) -> None:
        """Check the chunk that came back, then read the next."""
        failure = None
        try:
            if before is not None and self._checksums is not None:
                self.check(before, self._checksums[before.index])
            if chunk is not None:
                self.read(chunk)
        except Exception as error:
            failure = error
        self._done.put((self, before, failure))

    def read(self, chunk: Chunk) -> None:
        self._source.read(self._incoming_view[: chunk.nbytes], chunk.offset)

    def check(self, chunk: Chunk, expected: int) -> None:
        """Compare the CRC-32 of a chunk that came back."""
        found = zlib.crc32(self._outgoing_view[: chunk.nbytes])
        if found != expected:
            raise Mismatch(
                f"chunk {chunk.index} came back different: its CRC-32 is "
                f"{found:08x}, and {expected:08x} in a plain read"
            )

    def note(self, chunk: Chunk) -> None:
        """Add the copies of a chunk that came back to the spans."""
        for place, origin in enumerate(self._origins):
            begin = origin.elapsed_time(chunk.starts[place])
            end = origin.elapsed_time(chunk.ends[place])
            self.spans[place].extend((begin, end))

    def raise_failure(self) -> None:
        """Raise the failure that keeps the oldest turn from running."""
        if self.turns and self.turns[0].done():
            self.turns[0].result()

    def stop(self) -> None:
        """Cancel the queued turns, and wait for those that have begun."""
        for turn in self.turns:
            turn.cancel()
        for stream in self.streams:
            # synchronize() raises a failure that was raised already.
            with suppress(RuntimeError):
                stream.synchronize()
        for turn in self.turns:
            if not turn.cancelled():
                turn.exception()


def end_turn(
    lanes: list[Lane], done: SimpleQueue[Turn], progress: Progress
) -> Lane:
    """Wait for a turn to end; return its lane."""
    while True:
        try:
            lane, chunk, failure = done.get(timeout=1)
            break
        except Empty:
            # The turn is behind failed work, so it never runs.
            for lane in lanes:
                lane.raise_failure()
    lane.turns.popleft()
    if failure is not None:
        raise failure
    if chunk is not None:
        lane.note(chunk)
        progress(chunk.nbytes)
    return lane


def stream_file(
    source: Source,
    lanes: list[Lane],
    limit: int,
    checksums: array[int] | None,
    progress: Progress,
) -> float:
    """Send the first bytes of a file over the lanes.

    Returns the seconds it took.  With checksums, each chunk is checked.
    Afterwards the lanes' spans say when each stream copied.
    """
    done: SimpleQueue[Turn] = SimpleQueue()
    nbytes = lanes[0].nbytes
    began = time.perf_counter()
    for lane in lanes:
        lane.begin(source, checksums, done)
    room = deque(lanes * TURNS)
    try:
        for index, offset in enumerate(range(0, limit, nbytes)):
            lane = room.popleft() if room else end_turn(lanes, done, progress)
            lane.send(Chunk(index, offset, min(nbytes, limit - offset)))
        for lane in lanes:
            lane.finish()
        for _ in range(sum(len(lane.turns) for lane in lanes)):
            end_turn(lanes, done, progress)
    except BaseException:
        for lane in lanes:
            lane.stop()
        raise
    return time.perf_counter() - began


def read_plainly(
    source: Source, chunk: int, limit: int, progress: Progress
) -> array[int]:
    """Read the first bytes of a file; return the CRC-32 of each chunk.

    Plain threads read it, without streams and Buffers.
    """
    block = max(1, PLAIN_BYTES // chunk) * chunk

    def read(begin: int) -> array[int]:
        end = min(begin + block, limit)
        piece = memoryview(bytearray(min(chunk, HOST_CHUNK)))
        found = array("I")
        for first in range(begin, end, chunk):
            behind = min(first + chunk, end)
            checksum = 0
            for offset in range(first, behind, len(piece)):
                part = piece[: behind - offset]
                source.read(part, offset)
                checksum = zlib.crc32(part, checksum)
            found.append(checksum)
        return found

    checksums = array("I")
    begins = range(0, limit, block)
    pool = ThreadPoolExecutor(min(len(begins), cores()))
    try:
        for begin, found in zip(begins, pool.map(read, begins), strict=True):
            checksums.extend(found)
            progress(min(block, limit - begin))
    finally:
        pool.shutdown(cancel_futures=True)
    return checksums


def find_devices(names: list[str]) -> list[_C.device]:
    """Return the devices that were named, or the accelerator's.

    A type without an index names all devices of the type.  Each device comes
    once.
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
            raise DemoError(
                f"unknown device {name!r}; expected one of "
                f"{', '.join(types)}, with or without an index"
            ) from error
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
    return list(dict.fromkeys(found))


def default_streams(devices: int) -> int:
    """Return the number of streams for each device, given how many there
    are."""
    return max(1, min(MOST_DEFAULT, max(LEAST_STREAMS, cores()) // devices))


def on_host(device: _C.device) -> bool:
    """Return whether this machine's cores do a device's copies."""
    emulated = _C.is_emulated(dict(_C.backends())[device.type])
    return emulated or device.type == "cpu"


def default_chunk(size: int, lanes: int, device: _C.device) -> int:
    """Return a chunk size that gives every lane work, even of a small file."""
    wanted = size // (4 * lanes) >> 12 << 12
    most = HOST_CHUNK if on_host(device) else DEVICE_CHUNK
    return max(MIN_CHUNK, min(wanted, most))


def make_lanes(
    ways: list[list[_C.device]], count: int, chunk: int
) -> list[Lane]:
    """Return lanes.  The paths are given out in rotation."""
    total = count * chunk * (2 + len(ways[0]))
    if total > MAX_BUFFERS:
        raise DemoError(
            f"{count} streams with chunks of {size_text(chunk)} need "
            f"{size_text(total)} of buffers; the limit is "
            f"{size_text(MAX_BUFFERS)}"
        )
    return [
        Lane(ways[i % len(ways)], chunk, f"stream {i // len(ways)}")
        for i in range(count)
    ]


def run(
    path: str,
    devices: list[_C.device],
    streams: int | None,
    chunk: int | None,
    progress: Callable[[str, int], Progress],
    chain: bool = False,
    record: bool = False,
) -> dict[str, Any]:
    """Send a file through the devices and back, and return the measurements.

    Each chunk goes through one of the devices, or in a chain through all.  The
    whole file is read by plain threads, and then streamed and checked.  After
    that, its first bytes are streamed and timed several times, alternately
    over one stream and over all streams.  The times that are returned are
    those of the run with the median time.  If record is true, the first bytes
    are streamed again, for the timeline.  progress(title, nbytes) returns a
    function to call with each number of bytes done.  Raises DemoError if the
    file can't be read or changes, and Mismatch if a byte came back different.
    """
    ways = [devices] if chain else [[device] for device in devices]
    with open_file(path) as file:
        source = Source(path, file)
        size = source.size
        count = (streams or default_streams(len(ways))) * len(ways)
        chunk = min(chunk or default_chunk(size, count, devices[0]), size)
        chunks = -(-size // chunk)
        lanes = make_lanes(ways, min(count, chunks), chunk)
        timed = min(size, max(1, TIMED_BYTES // chunk) * chunk)

        def stream(
            title: str,
            lanes: list[Lane],
            limit: int,
            checksums: array[int] | None = None,
        ) -> float:
            return stream_file(
                source, lanes, limit, checksums, progress(title, limit)
            )

        try:
            checksums = read_plainly(
                source, chunk, size, progress("reading", size)
            )
            checked_seconds = stream("checking", lanes, size, checksums)
            if timed < size:
                # Read the beginning again: reading the rest may have removed
                # it from the page cache.
                read_plainly(source, chunk, timed, progress("reading", timed))
            runs: list[tuple[float, list[list[array[float]]]]] = []
            ones: list[float] = []
            began = time.perf_counter()
            while len(runs) < RUNS and (
                not runs or time.perf_counter() - began < LONGEST_RUNS
            ):
                ones.append(stream("timing 1 stream", lanes[:1], timed))
                taken = stream("timing", lanes, timed)
                runs.append((taken, [lane.spans for lane in lanes]))
            recorded = None
            if record:
                with timeline.record() as recorded:
                    stream("recording", lanes, timed)
        except Mismatch:
            source.check_unchanged()
            raise
        source.check_unchanged()
    all_seconds = [taken for taken, _ in runs]
    one_seconds, seconds = median_low(ones), median_low(all_seconds)
    of_lanes = runs[all_seconds.index(seconds)][1]
    spans = [
        [of_lane[place] for of_lane in of_lanes[first :: len(ways)]]
        for first, way in enumerate(ways)
        for place in range(len(way))
    ]
    return {
        "file": path,
        "bytes": size,
        "chunk": chunk,
        "chunks": chunks,
        "streams": len(lanes),
        "devices": [str(device) for device in devices],
        "chain": chain,
        "checked_seconds": checked_seconds,
        "checked_bytes_per_second": size / checked_seconds,
        "timed_bytes": timed,
        "seconds": seconds,
        "bytes_per_second": timed / seconds,
        "one_stream_seconds": one_seconds,
        "one_stream_bytes_per_second": timed / one_seconds,
        "runs": [
            {"seconds": taken, "one_stream_seconds": one}
            for taken, one in zip(all_seconds, ones, strict=True)
        ],
        "overlap": one_seconds / seconds if len(lanes) > 1 else None,
        "spans": spans,
        "timeline": recorded,
    }
