"""The demo's result as text: figures, and a chart of each stream's copies."""

from __future__ import annotations

import textwrap

from ..timeline._chart import busy, line, milliseconds, plural, ruler
from .report import size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# If the demo took fewer seconds than this, a gain is noise.
SHORT = 0.01
# A ratio of at least this is a gain.
GAIN = 1.05
LABEL = 10
TAIL = 14


def rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the timetable as values for JSON, a row for each stream."""
    return [
        {
            "device": device,
            "stream": index,
            "chunks": len(spans) // 2,
            "begin_ms": spans[0],
            "end_ms": spans[-1],
            "busy_ms": busy(spans),
        }
        for device, rows in zip(
            result["devices"], result["spans"], strict=True
        )
        for index, spans in enumerate(rows)
    ]


def figures(result: dict[str, Any], title: str, columns: int) -> str:
    """Return the lines above the timetable."""
    way = (" -> " if result["chain"] else " or ").join(result["devices"])
    names = ", ".join(dict.fromkeys(result["device_names"]))
    chunks = plural(result["chunks"], "chunk")
    lines = [
        ("device", f"{names}, because {result['why']}"),
        ("way", f"file -> pinned -> {way} -> pinned"),
        ("bytes", f"{result['bytes']:,}"),
        (
            "check",
            f"{chunks} of {size_text(result['chunk'])} came back right, at "
            f"{size_text(result['checked_bytes_per_second'])}/s",
        ),
        ("1 stream", speed(result, result["one_stream_seconds"])),
    ]
    if result["streams"] > 1:
        label = plural(result["streams"], "stream")
        lines.append((label, speed(result, result["seconds"])))
        lines.append(("overlap", gain(result)))
    wrapped = (
        textwrap.fill(
            f"{label:<{LABEL}} {text}",
            max(40, columns),
            subsequent_indent=" " * (LABEL + 1),
            break_on_hyphens=False,
        )
        for label, text in lines
    )
    # The path stays on one line, whatever its length.
    return "\n".join((f"{'file':<{LABEL}} {title}", *wrapped))


def gain(result: dict[str, Any]) -> str:
    """Return how much faster several streams were than one."""
    if result["seconds"] < SHORT:
        return "the file is too short to tell"
    text = f"{result['overlap']:.2f} times as fast"
    ratios = sorted(
        run["one_stream_seconds"] / run["seconds"] for run in result["runs"]
    )
    # Ignore the lowest and the highest ratio, which may be outliers.
    least, most = (ratios[1:-1] or ratios)[0], (ratios[1:-1] or ratios)[-1]
    if least < GAIN <= most or most > 2 * least:
        return (
            f"unclear: {least:.2f} to {most:.2f} times as fast in "
            f"{plural(len(ratios), 'run')}; is the machine busy?"
        )
    if result["overlap"] < GAIN:
        return f"{text}: no gain on this machine, as busy as it is now"
    return f"{text}: reading the next chunk and copying go on together"


def speed(result: dict[str, Any], seconds: float) -> str:
    """Return the rate and the time of the timed bytes."""
    timed = result["timed_bytes"]
    rate = f"{size_text(timed / seconds)}/s"
    text = f"{rate:<12} {milliseconds(seconds * 1000)}"
    if timed < result["bytes"]:
        text += f" for the first {size_text(timed)}"
    return text


def draw(result: dict[str, Any], columns: int, marks: str) -> str:
    """Return the timetable: a bar for each stream on each device."""
    width = max(10, columns - LABEL - TAIL - 2)
    lines = [f"When each stream copied: {marks[0]} idle to {marks[-1]} busy"]
    for device, rows in zip(result["devices"], result["spans"], strict=True):
        shown = 0, max((spans[-1] for spans in rows), default=0) or 1.0
        top = ruler(device, shown, LABEL, width)
        lines += ["", f"{top}   busy  chunks"]
        for index, spans in enumerate(rows):
            drawn = line(f"stream {index}", spans, shown, LABEL, width, marks)
            lines.append(f"{drawn} {len(spans) // 2:>7}")
    return "\n".join(lines)
