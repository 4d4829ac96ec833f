"""The analysis of a timeline: which operations overlapped, and which chain of
work and waits determined how long the program took."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from typing import NamedTuple

from . import _OPERATIONS, _chart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import Row, Timeline

# What a kind of row keeps busy.
CLASSES = {
    kind: "copy" if kind in ("copy", "fill") else "work"
    for kind in _OPERATIONS
}


def overlap(timeline: Timeline) -> dict[tuple[str, ...], int]:
    """See Timeline.overlap."""
    changes: list[tuple[int, int, str]] = []
    total = timeline.duration
    hosts: dict[str, list[int]] = {}
    for chunk in timeline._chunks():
        for row in chunk:
            kind, _, device, _, thread, queued, begin, end = row[:8]
            if begin is None or end is None or kind == "node":
                continue
            if kind in CLASSES:
                changes.append((begin, 1, CLASSES[kind]))
                changes.append((end, -1, CLASSES[kind]))
            elif kind == "synchronize":
                changes.append((begin, -1, "host"))
                changes.append((end, 1, "host"))
            # A thread takes part from its first row to its last.
            last = end if device is None else queued
            first = queued if device is not None else begin
            seen = hosts.setdefault(thread, [first, last])
            seen[0] = min(seen[0], first)
            seen[1] = max(seen[1], last)
    hosts.setdefault(timeline._thread, [0, total])
    for thread, (first, last) in hosts.items():
        if thread == timeline._thread:
            first, last = 0, max(total, last)
        changes.append((first, 1, "host"))
        changes.append((last, -1, "host"))
    return sums(changes)


def sums(changes: list[tuple[int, int, str]]) -> dict[tuple[str, ...], int]:
    """Return, for each set of classes, how long exactly these were busy."""
    changes.sort(key=lambda change: change[0])
    busy = dict.fromkeys(("copy", "host", "work"), 0)
    found: dict[tuple[str, ...], int] = {}
    before = changes[0][0] if changes else 0
    for time, change, name in changes:
        if time > before:
            key = tuple(n for n, count in busy.items() if count > 0)
            found[key] = found.get(key, 0) + time - before
            before = time
        busy[name] += change
    return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True)
class Step:
    """A part of the critical path; times are in nanoseconds since the
    recording began."""

    #: The row in Timeline.rows; None for a thread between its waits.
    row: int | None
    begin: int
    end: int
    #: What the step came after.  For an operation: "stream" if this was the
    #: operation before it on its stream, "wait" if it was an operation that
    #: its stream waited for, "host" if it was the call that queued it.  For a
    #: thread: "synchronize" if it was an operation that the thread waited for,
    #: "" if the thread never waited.
    after: str
    #: The row of that wait or synchronize; None if `after` is neither.
    wait: int | None
    #: How much earlier the operation could have begun without that wait, if
    #: all else stayed the same.  For a thread's step, "the operation" is that
    #: of the next step.
    gain: int


@dataclass(frozen=True)
class CriticalPath:
    """The chain of steps that determined the duration, the first one first."""

    steps: tuple[Step, ...]
    #: The waits in the chain as (row, gain), with the greatest gain first.
    #: The first one is the one to shorten first.
    waits: tuple[tuple[int, int], ...]
    _text: str

    def __str__(self) -> str:
        """A line for each step, and the wait to shorten first."""
        return self._text


class Cause(NamedTuple):
    """An operation that had to end before another one could begin."""

    end: int
    row: int
    # The row of the wait that required this; None if stream order did.
    wait: int | None


class Program:
    """The order of operations, derived from the rows, which are in call
    order."""

    def __init__(
        self, rows: list[Row], recorder: str, clock_error: int = 0
    ) -> None:
        self.rows = rows
        self.recorder = recorder
        self.clock_error = clock_error
        #: For each operation, the operations that it directly came after.
        self.causes: dict[int, list[Cause]] = {}
        #: For each row of a stream, the operation that ended last among those
        #: that had to end before the stream was done with this row.
        self.reached: dict[int, Cause] = {}
        #: For each row, the last synchronize of its thread before it.  `waits`
        #: has the last one of each thread so far.
        self.last_wait: dict[int, int] = {}
        self.waits: dict[str, int] = {}
        #: The ends of operations, in order.
        self.ends: list[tuple[int, int]] = []
        streams: dict[tuple[str, str], list[Cause]] = {}
        for index, row in enumerate(rows):
            if row[6] is not None and row[7] is not None:
                self._add(index, row, streams)
        self.ends.sort()

    def _add(
        self,
        index: int,
        row: Row,
        streams: dict[tuple[str, str], list[Cause]],
    ) -> None:
        kind, _, device, stream, thread, _, _, end = row[:8]
        if thread in self.waits:
            self.last_wait[index] = self.waits[thread]
        if kind == "synchronize":
            self.waits[thread] = index
            return
        if kind not in CLASSES and kind not in ("record", "wait"):
            return
        causes = streams.setdefault((device, stream), [])
        if kind in CLASSES:
            self.causes[index] = causes
            self.ends.append((end, index))
            streams[device, stream] = [Cause(end, index, None)]
            self.reached[index] = Cause(end, index, None)
            return
        # A stream need not wait for its own records: it is behind them anyway.
        own = row[12] is not None and self.rows[row[12]][2:4] == row[2:4]
        if kind == "wait" and row[12] in self.reached and not own:
            source = self.reached[row[12]]
            causes.append(Cause(source.end, source.row, index))
        if causes:
            self.reached[index] = max(causes, key=lambda c: c[:2])

    def waited_for(self, index: int) -> int | None:
        """Return the operation that a synchronize waited for; None if the work
        was already done, or was not done when the wait timed out."""
        row = self.rows[index]
        if row[12] is not None:
            known = self.reached.get(row[12])
            latest = row[7] + self.clock_error
            within = known is not None and row[6] < known.end <= latest
            return known.row if known and within else None
        # While virtual time stands still, operations of later calls may end at
        # the same moment, so look only at those of earlier calls.
        at = bisect(self.ends, (row[7], index)) - 1
        if at >= 0 and self.ends[at][0] > row[6]:
            return self.ends[at][1]
        return None

    def path(self, duration: int) -> list[Step]:
        """Return the steps, the last one first."""
        steps: list[Step] = []
        index: int | None = None
        if self.ends and self.ends[-1][0] > duration:
            index = self.ends[-1][1]
        else:
            last = self.waits.get(self.recorder)
            floor = self.ends[-1][0] if self.ends else 0
            index = self._host(steps, duration, last, floor)
        while index is not None:
            index = self._operation(steps, index)
        return steps

    def _operation(self, steps: list[Step], index: int) -> int | None:
        """Add the step of an operation.  If all its causes ended before it was
        queued, also add the step of the thread that queued it.  Return the
        operation that these steps came after, or None."""
        row = self.rows[index]
        queued, begin, end = row[5:8]
        # Among causes with the same end, put the stream's order first.
        causes = sorted(
            self.causes[index],
            key=lambda c: (-c.end, c.wait is not None, c.row),
        )
        if not causes or causes[0].end < queued:
            steps.append(Step(index, begin, end, "host", None, 0))
            floor = causes[0].end if causes else 0
            last = self.last_wait.get(index)
            return self._host(steps, queued, last, floor)
        cause, *others = causes
        if cause.wait is None:
            steps.append(Step(index, begin, end, "stream", None, 0))
        else:
            without = max([queued, *(c.end for c in others)])
            gain = cause.end - without
            steps.append(Step(index, begin, end, "wait", cause.wait, gain))
        return cause.row

    def _host(
        self, steps: list[Step], end: int, wait: int | None, floor: int
    ) -> int | None:
        """Add the step of a thread, from the end of its last wait to `end`.
        Return the operation that it waited for; None if it never waited.
        wait: the row of the thread's last synchronize before `end`, or None.
        floor: the earliest time at which the next step could have begun,
        whatever the thread did."""
        while wait is not None and self.waited_for(wait) is None:
            # This synchronize found the work done, so look at the one before.
            wait = self.last_wait.get(wait)
        if wait is None:
            steps.append(Step(None, 0, end, "", None, 0))
            return None
        begin, done = self.rows[wait][6:8]
        gain = min(done - begin, end - floor)
        steps.append(Step(None, done, end, "synchronize", wait, gain))
        return self.waited_for(wait)


def place(row: Row) -> str:
    return f" ({row[9]}:{row[10]})" if row[9] is not None else ""


def describe(rows: list[Row], step: Step) -> str:
    """Return a line of text about the step."""
    took = _chart.milliseconds((step.end - step.begin) / 1e6)
    at = _chart.milliseconds(step.begin / 1e6)
    if step.row is None:
        return f"{took:>8} at {at:<8} the host"
    row = rows[step.row]
    # Names of template kernels may fill pages.
    name = _chart.shorten(row[1], 60)
    why = {
        "stream": "after the work before it",
        "host": "as soon as it was queued",
        "wait": "after a wait",
    }[step.after]
    if step.wait is not None:
        why += place(rows[step.wait])
    return f"{took:>8} at {at:<8} {name} on {row[2]} {row[3]}, {why}"


def shorten(rows: list[Row], gains: dict[int, int]) -> list[str]:
    """Return a line that names the place where shorter waits would gain most;
    no line if none would gain anything."""
    places: dict[str, list[int]] = {}
    for row, gain in gains.items():
        places.setdefault(rows[row][1] + place(rows[row]), []).append(gain)
    if not any(gains.values()):
        return []
    text, found = max(places.items(), key=lambda item: sum(item[1]))
    took = _chart.milliseconds(sum(found) / 1e6)
    times = "" if len(found) == 1 else f" {len(found)} times,"
    return [f"wait to shorten first: {text},{times} up to {took}"]


def critical_path(timeline: Timeline) -> CriticalPath:
    """See Timeline.critical_path."""
    rows = timeline.rows
    program = Program(rows, timeline._thread, timeline.clock_error)
    steps = program.path(timeline.duration)[::-1]
    gains: dict[int, int] = {}
    for step in steps:
        if step.wait is not None:
            gains[step.wait] = gains.get(step.wait, 0) + step.gain
    waits = sorted(gains.items(), key=lambda item: (-item[1], item[0]))
    lines = [describe(rows, step) for step in steps]
    lines += shorten(rows, gains)
    return CriticalPath(tuple(steps), tuple(waits), "\n".join(lines))
