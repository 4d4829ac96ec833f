"""A timeline as text: a bar for each stream and each thread."""

from __future__ import annotations

from . import _OPERATIONS, _SHOWN, _chart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import Timeline

# How wide labels may be, and how many streams of a device are drawn.
LABEL = 22
MOST = 40
TAIL = 20


class Track:
    """When a stream, or a thread, was busy."""

    def __init__(self) -> None:
        #: The begin and the end of each span, one after another.  Spans do not
        #: overlap.
        self.spans: list[int] = []
        self.count = 0
        self.unfinished = 0

    def add(self, begin: int, end: int) -> None:
        self.count += 1
        if self.spans and begin <= self.spans[-1]:
            self.spans[-1] = max(end, self.spans[-1])
        else:
            self.spans += (begin, end)


def tracks(
    timeline: Timeline,
) -> tuple[dict[str, dict[str, Track]], dict[str, Track], tuple[int, int]]:
    """Return the busy times of each stream by device, the waiting times of
    each thread, and the time to show."""
    devices: dict[str, dict[str, Track]] = {}
    threads: dict[str, Track] = {}
    edges: list[int] = []
    for chunk in timeline._chunks():
        for kind, _, device, stream, thread, _, begin, end, *_ in chunk:
            if kind in _SHOWN and begin is not None and end is not None:
                edges += (begin, end)
            waiting = threads.setdefault(thread, Track())
            if kind == "synchronize":
                if end is not None:
                    waiting.add(begin, end)
            elif kind in _OPERATIONS:
                streams = devices.setdefault(device, {})
                track = streams.setdefault(stream, Track())
                if end is None or begin is None:
                    track.unfinished += 1
                else:
                    track.add(begin, end)
        edges = [min(edges), max(edges)] if edges else []
    return devices, threads, _chart.extent(edges, timeline.duration)


def inverse(spans: list[int], shown: tuple[int, int]) -> list[int]:
    """Return the times between spans, within the shown time."""
    edges = [shown[0], *spans, shown[1]]
    return [
        edge
        for pair in zip(edges[::2], edges[1::2], strict=True)
        if pair[0] < pair[1]
        for edge in pair
    ]


def chart(timeline: Timeline, columns: int, marks: str) -> str:
    devices, threads, shown = tracks(timeline)
    every = [t for streams in devices.values() for t in streams.values()]
    count = sum(track.count for track in every)
    unfinished = sum(track.unfinished for track in every)
    labels = [label for streams in devices.values() for label in streams]
    longest = max(map(len, [*labels, *devices, *threads, "host"]))
    label_width = min(LABEL, longest, max(8, columns // 4))
    width = max(10, columns - label_width - TAIL)
    heading = _chart.heading(count, shown[1] - shown[0])
    title = f"{heading}: {marks[0]} idle to {marks[-1]} busy"
    if unfinished:
        title += f"; {unfinished:,} had not ended"
    lines = [title]

    def group(label: str, rows: dict[str, Track], noun: str) -> None:
        span = (shown[0] / 1e6, shown[1] / 1e6)
        ruler = _chart.ruler(label, span, label_width, width)
        lines.extend(("", f"{ruler}   busy {noun:>10}"))
        drawn = sorted(rows, key=lambda name: -rows[name].count)[:MOST]
        for name, track in rows.items():
            if name in drawn:
                bar = _chart.line(
                    name, track.spans, shown, label_width, width, marks
                )
                lines.append(f"{bar} {track.count:>10,}")
        if len(rows) > MOST:
            lines.append(f"and {len(rows) - MOST:,} more")

    for device, streams in devices.items():
        group(device, streams, "operations")
    for track in threads.values():
        track.spans = inverse(track.spans, shown)
    if threads:
        group("host", threads, "waits")
    return "\n".join(lines)
