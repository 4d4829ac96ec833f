"""Timelines as files: Chrome's trace events."""

from __future__ import annotations

import heapq
import json
from functools import cache

from . import _OPERATIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from . import Row, Timeline


def save(timeline: Timeline, path: str) -> None:
    suffix = path[path.rfind(".") :].lower()
    if suffix != ".json":
        raise ValueError(
            f"save() expects a path that ends with .json, but got {path!r}"
        )
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(events(timeline))


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
        # Calls of several threads may be out of order by a little.
        queued = max(queued, self._times.get(device, queued))
        self._times[device] = queued
        yield from self._until(ends, queued)
        heapq.heappush(ends, end)
        yield queued, len(ends)

    def rest(self) -> Iterator[tuple[str, int, int]]:
        """Yield (device, time, depth) for what is left."""
        for device, ends in self._ends.items():
            for time, depth in self._until(ends, None):
                yield device, time, depth

    @staticmethod
    def _until(ends: list[int], time: int | None) -> Iterator[tuple[int, int]]:
        while ends and (time is None or ends[0] <= time):
            end = heapq.heappop(ends)
            yield end, len(ends)


class Numbers(dict[object, int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, key: object) -> int:
        self[key] = len(self) + 1
        return self[key]


def arguments(row: Row) -> dict[str, object]:
    """Return what a viewer shows of a slice, beyond its name and times."""
    kind, name, _, _, thread, queued, begin, end, nbytes, *place = row
    found: dict[str, object] = {"thread": thread}
    if name != kind:
        found["kind"] = kind
    if nbytes:
        found["bytes"] = nbytes
        if end > begin:
            found["GB/s"] = round(nbytes / (end - begin), 3)
    if kind in _OPERATIONS:
        found["queued"] = f"{(begin - queued) / 1000:.3f} us before"
    if place[0] is not None:
        found["place"] = f"{place[0]}:{place[1]}, in {place[2]}"
    return found


def events(timeline: Timeline) -> Iterator[str]:
    """Yield the parts of a JSON text."""
    quoted = cache(json.dumps)
    processes, tracks = Numbers(), Numbers()
    depths = Depths()
    recorded: dict[int, tuple[int, int, int]] = {}
    yield '{"displayTimeUnit":"ns","traceEvents":[\n'
    yield from metadata("process_name", processes["host"], 0, "host")

    def process_of(device: str) -> Iterator[str]:
        if device not in processes:
            yield from metadata("process_name", processes[device], 0, device)

    def count(device: str, time: int, depth: int) -> str:
        return (
            f'{{"name":"queue depth","ph":"C","pid":{processes[device]},'
            f'"ts":{time / 1000:.3f},"args":{{"operations":{depth}}}}},\n'
        )

    index = -1
    for chunk in timeline._chunks():
        for row in chunk:
            index += 1
            kind, name, device, stream, thread = row[:5]
            queued, begin, end, nbytes = row[5:9]
            if begin is None or end is None:
                continue
            process = device or "host"
            yield from process_of(process)
            pid = processes[process]
            if kind == "memory":
                yield (
                    f'{{"name":"memory","ph":"C","pid":{pid},'
                    f'"ts":{begin / 1000:.3f},'
                    f'"args":{{"bytes":{nbytes}}}}},\n'
                )
                continue
            track = (process, stream or thread)
            if track not in tracks:
                yield from metadata(
                    "thread_name", pid, tracks[track], track[1]
                )
            tid = tracks[track]
            yield (
                f'{{"name":{quoted(name)},"cat":"{kind}","ph":"X",'
                f'"pid":{pid},"tid":{tid},"ts":{begin / 1000:.3f},'
                f'"dur":{(end - begin) / 1000:.3f},'
                f'"args":{json.dumps(arguments(row))}}},\n'
            )
            if kind == "record":
                recorded[index] = pid, tid, begin
            elif kind == "wait" and row[12] in recorded:
                yield from flow(index, recorded[row[12]], (pid, tid, end))
            elif kind in _OPERATIONS:
                for time, depth in depths.add(device, queued, end):
                    yield count(device, time, depth)
    for device, time, depth in depths.rest():
        yield count(device, time, depth)
    # An empty event, as a comma comes before it.
    yield '{"name":"end","ph":"M","pid":1}]}\n'


def metadata(name: str, pid: int, tid: int, text: str) -> Iterator[str]:
    """Name a process or a thread."""
    yield (
        f'{{"name":"{name}","ph":"M","pid":{pid},"tid":{tid},'
        f'"args":{{"name":{json.dumps(text)}}}}},\n'
    )


def flow(
    number: int, source: tuple[int, int, int], target: tuple[int, int, int]
) -> Iterator[str]:
    """Draw an arrow."""
    for phase, (pid, tid, time) in (("s", source), ("f", target)):
        yield (
            f'{{"name":"wait","cat":"wait","ph":"{phase}","id":{number},'
            f'"bp":"e","pid":{pid},"tid":{tid},"ts":{time / 1000:.3f}}},\n'
        )
