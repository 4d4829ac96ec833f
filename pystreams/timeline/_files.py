"""Timelines as files: Chrome's trace events, and Perfetto's protobuf.

walk() yields the contents of a file for both formats; a writer formats them.
Files are written in pieces, so that no file has to fit into memory.
"""

from __future__ import annotations

import heapq
import json
import os
from functools import cache, lru_cache
from itertools import count
from struct import pack

from . import _OPERATIONS, _picture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from . import Row, Timeline

PICTURES = (".png", ".svg")
FORMATS = (".json", ".pftrace", *PICTURES)


def check(path: str) -> str:
    """Return the suffix of a timeline's path.  Raises ValueError for a path
    with another suffix, and ImportError if Matplotlib is needed but
    missing."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in FORMATS:
        raise ValueError(
            "a timeline's file ends with .json, .pftrace, .png or .svg, but "
            f"the path is {path!r}"
        )
    if suffix in PICTURES:
        _picture.figures()
    return suffix


def save(timeline: Timeline, path: str) -> None:
    try:
        suffix = check(path)
    except ValueError as error:
        raise ValueError(f"save(): {error}") from None
    if suffix in PICTURES:
        _picture.save(timeline, path, suffix[1:])
        return
    writer = Json() if suffix == ".json" else Perfetto()
    with open(path, "wb") as file:
        file.writelines(walk(timeline, writer))


class Depths:
    """How many operations of each device are queued and have not ended."""

    def __init__(self) -> None:
        self._ends: dict[str, list[int]] = {}
        self._times: dict[str, int] = {}

    def add(
        self, device: str, queued: int, end: int
    ) -> Iterator[tuple[int, int]]:
        """Add an operation; yield (time, depth) for each change that is known
        now."""
        ends = self._ends.setdefault(device, [])
        # Calls from several threads may be slightly out of order.
        queued = max(queued, self._times.get(device, queued))
        self._times[device] = queued
        yield from self._until(ends, queued)
        heapq.heappush(ends, max(end, queued))
        yield queued, len(ends)

    def rest(self) -> Iterator[tuple[str, int, int]]:
        """Yield (device, time, depth) for the rest."""
        for device, ends in self._ends.items():
            for time, depth in self._until(ends, None):
                yield device, time, depth

    @staticmethod
    def _until(ends: list[int], time: int | None) -> Iterator[tuple[int, int]]:
        while ends and (time is None or ends[0] <= time):
            end = heapq.heappop(ends)
            yield end, len(ends)


class Nesting:
    """Spreads the slices of a thread over tracks, so that the slices of each
    track are nested.  The file formats require that, but NVTX ranges may
    overlap in other ways."""

    def __init__(self) -> None:
        #: For each track of a thread: the ends of its open slices.
        self._ends: dict[str, list[list[int]]] = {}

    def track(self, thread: str, begin: int, end: int) -> str:
        """Return the track of the next slice of the thread."""
        tracks = self._ends.setdefault(thread, [])
        for number, ends in enumerate(tracks, 1):
            while ends and ends[-1] <= begin:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return thread if number == 1 else f"{thread} ({number})"
        tracks.append([end])
        return thread if len(tracks) == 1 else f"{thread} ({len(tracks)})"


def walk(timeline: Timeline, writer: Json | Perfetto) -> Iterator[bytes]:
    """Write the timeline; yield the file in pieces.  Slices that have not
    ended are left out."""
    # Processes, tracks and counters, which are begun when first needed.
    process, track_of = cache(writer.process), cache(writer.track)
    counter_of = cache(writer.counter)
    depths, nesting = Depths(), Nesting()
    index = -1
    process("host")
    # The track and the time of each record, by its row.
    recorded: dict[int, tuple[int, int]] = {}
    for chunk in timeline._chunks():
        for row in chunk:
            index += 1
            kind, _, device, stream, thread, queued, begin, end = row[:8]
            if begin is None or end is None:
                continue
            if kind == "memory":
                counter = counter_of(process(device), "memory", "bytes")
                writer.count(counter, begin, row[8])
                continue
            if kind == "node":
                # Branches of a graph overlap each other and other work.
                stream = f"{stream}, in graphs"
            if device is None and kind != "mark":
                thread = nesting.track(thread, begin, end)
            track = track_of(process(device or "host"), stream or thread)
            if kind == "mark":
                writer.mark(track, row)
            elif kind == "record":
                recorded[index] = track, end
            elif kind == "wait":
                if end > begin:
                    writer.slice(track, row)
                source = recorded.get(row[12])
                if source is not None:
                    flow = index + 1
                    writer.point(source[0], "record", source[1], flow, False)
                    writer.point(track, "wait", end, flow, True)
            else:
                writer.slice(track, row)
            if kind in _OPERATIONS:
                counter = counter_of(
                    process(device), "queue depth", "operations"
                )
                for time, depth in depths.add(device, queued, end):
                    writer.count(counter, time, depth)
        yield writer.take()
    for device, time, depth in depths.rest():
        counter = counter_of(process(device), "queue depth", "operations")
        writer.count(counter, time, depth)
    yield writer.end()


@lru_cache(maxsize=4096)
def place_of(filename: str, line: int, function: str) -> str:
    return f"{filename}:{line}, in {function}"


class Json:
    """Chrome's trace events; https://ui.perfetto.dev reads them, too."""

    def __init__(self) -> None:
        self._parts = ['{"displayTimeUnit":"ns","traceEvents":[\n']
        self._numbers = count(1)
        #: The process of each track and counter, and a counter's name.
        self._of: dict[int, tuple[int, str, str]] = {}
        self._quoted = lru_cache(maxsize=4096)(json.dumps)

    def process(self, name: str) -> int:
        """Begin a group of tracks, and return its number."""
        number = next(self._numbers)
        self._name("process_name", number, 0, name)
        return number

    def track(self, process: int, name: str) -> int:
        """Begin a track, and return its number."""
        number = next(self._numbers)
        self._of[number] = process, name, ""
        self._name("thread_name", process, number, name)
        return number

    def counter(self, process: int, name: str, unit: str) -> int:
        """Begin a counter, and return its number."""
        number = next(self._numbers)
        self._of[number] = process, name, unit
        return number

    def _name(self, what: str, process: int, track: int, name: str) -> None:
        self._parts.append(
            f'{{"name":"{what}","ph":"M","pid":{process},"tid":{track},'
            f'"args":{{"name":{json.dumps(name)}}}}},\n'
        )

    def slice(self, track: int, row: Row) -> None:
        kind, name, _, _, thread, queued, begin, end, nbytes = row[:9]
        quoted = self._quoted
        more = f'"thread":{quoted(thread)}'
        if nbytes:
            more += f',"bytes":{nbytes}'
            if end > begin:
                more += f',"GB/s":{nbytes / (end - begin):.3f}'
        if kind in _OPERATIONS:
            more += f',"queued us before":{(begin - queued) / 1000:.3f}'
        if row[9] is not None:
            more += f',"place":{quoted(place_of(*row[9:12]))}'
        category = quoted(row[13] or kind)
        self._parts.append(
            f'{{"name":{quoted(name)},"cat":{category},"ph":"X",'
            f'"pid":{self._of[track][0]},"tid":{track},'
            f'"ts":{begin / 1000:.3f},"dur":{(end - begin) / 1000:.3f},'
            f'"args":{{{more}}}}},\n'
        )

    def mark(self, track: int, row: Row) -> None:
        quoted = self._quoted
        self._parts.append(
            f'{{"name":{quoted(row[1])},"cat":{quoted(row[13])},"ph":"i",'
            f'"s":"t","pid":{self._of[track][0]},"tid":{track},'
            f'"ts":{row[6] / 1000:.3f}}},\n'
        )

    def point(
        self, track: int, name: str, time: int, flow: int, ends: bool
    ) -> None:
        """Write a moment at which an arrow, whose number is `flow`, begins or
        ends."""
        where = (
            f'"cat":"wait","pid":{self._of[track][0]},"tid":{track},'
            f'"ts":{time / 1000:.3f}'
        )
        phase = '"f","bp":"e"' if ends else '"s"'
        self._parts.append(
            f'{{"name":"{name}","ph":"X",{where},"dur":0}},\n'
            f'{{"name":"wait","ph":{phase},{where},"id":{flow}}},\n'
        )

    def count(self, counter: int, time: int, value: int) -> None:
        process, name, unit = self._of[counter]
        self._parts.append(
            f'{{"name":"{name}","ph":"C","pid":{process},'
            f'"ts":{time / 1000:.3f},"args":{{"{unit}":{value}}}}},\n'
        )

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        parts = "".join(self._parts)
        self._parts.clear()
        return parts.encode()

    def end(self) -> bytes:
        # The last event has no comma after it.
        return self.take() + b'{"name":"end","ph":"M","pid":1}]}\n'


# ---- Protobuf: the few Perfetto messages that are needed ----


@lru_cache(maxsize=4096)
def varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def fixed(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + pack("<Q", value)


def message(field: int, body: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    return message(field, value.encode("utf-8", "replace"))


# TrackEvent.Type
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
# CounterDescriptor.Unit
UNITS = {"operations": 2, "bytes": 3}


@lru_cache(maxsize=65536)
def event(kind: int, track: int, name: str = "", category: str = "") -> bytes:
    """Return a TrackEvent without the fields that differ from event to
    event."""
    body = number(9, kind) + number(11, track)
    if name:
        body += text(22, category) + text(23, name)
    return body


def note(name: str, value: bytes) -> bytes:
    """Return a debug annotation."""
    return message(4, text(10, name) + value)


@lru_cache(maxsize=65536)
def begin_of(
    track: int,
    name: str,
    category: str,
    thread: str,
    nbytes: int,
    filename: str | None,
    line: int,
    function: str,
) -> bytes:
    """Return the beginning of a slice, without the fields that depend on its
    times."""
    body = event(BEGIN, track, name, category)
    body += note("thread", text(6, thread))
    if nbytes:
        body += note("bytes", number(3, nbytes))
    if filename is not None:
        place = place_of(filename, line, function)
        body += note("place", text(6, place))
    return body


def stamp(time: int) -> bytes:
    """Return a time as a varint.  It is often longer than necessary, because a
    varint of fixed length takes less time to make."""
    if time >> 42:
        return varint(max(time, 0))
    return bytes(
        (
            time & 127 | 128,
            time >> 7 & 127 | 128,
            time >> 14 & 127 | 128,
            time >> 21 & 127 | 128,
            time >> 28 & 127 | 128,
            time >> 35,
        )
    )


# A debug annotation of a double, without its value, and the name of another
# annotation.
RATE = b"\x22" + varint(15) + text(10, "GB/s") + b"\x29"
QUEUED = text(10, "queued ns before")


class Perfetto:
    """Perfetto's TrackEvents."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._numbers = count(1)
        # SEQ_INCREMENTAL_STATE_CLEARED
        self._packet(number(13, 1))

    def _packet(self, body: bytes) -> None:
        # The number of the sequence.  There is only one sequence.
        body += b"\x50\x01"
        self._out += b"\x0a" + varint(len(body)) + body

    def _event(self, time: int, body: bytes) -> None:
        # The packet has the time, the event, and the number of the sequence.
        at, size = stamp(time), varint(len(body))
        total = varint(len(at) + len(size) + len(body) + 4)
        self._out += b"\x0a%b\x40%b\x5a%b%b\x50\x01" % (total, at, size, body)

    def _describe(self, body: bytes) -> int:
        uuid = next(self._numbers)
        self._packet(message(60, number(1, uuid) + body))
        return uuid

    def process(self, name: str) -> int:
        if name != "host":
            return self._describe(text(2, name))
        process = number(1, os.getpid()) + text(6, name)
        return self._describe(message(3, process))

    def track(self, process: int, name: str) -> int:
        return self._describe(text(2, name) + number(5, process))

    def counter(self, process: int, name: str, unit: str) -> int:
        described = message(8, number(3, UNITS[unit]))
        return self._describe(text(2, name) + number(5, process) + described)

    def slice(self, track: int, row: Row) -> None:
        kind, name, _, _, thread, queued, begin, end, nbytes = row[:9]
        category = row[13] or kind
        body = begin_of(track, name, category, thread, nbytes, *row[9:12])
        if nbytes and end > begin:
            body += RATE + pack("<d", nbytes / (end - begin))
        if kind in _OPERATIONS:
            waited = b"\x20" + varint(begin - queued)
            body += b"\x22" + varint(len(QUEUED) + len(waited))
            body += QUEUED + waited
        self._event(begin, body)
        self._event(end, event(END, track))

    def mark(self, track: int, row: Row) -> None:
        self._event(row[6], event(INSTANT, track, row[1], row[13]))

    def point(
        self, track: int, name: str, time: int, flow: int, ends: bool
    ) -> None:
        body = event(INSTANT, track, name, "wait")
        self._event(time, body + fixed(48 if ends else 47, flow))

    def count(self, counter: int, time: int, value: int) -> None:
        self._event(
            time, event(COUNTER, counter) + b"\xf0\x01" + varint(value)
        )

    def take(self) -> bytes:
        out = bytes(self._out)
        self._out.clear()
        return out

    def end(self) -> bytes:
        return self.take()
