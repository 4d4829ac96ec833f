"""Bars of characters: when something was busy, on a terminal.

Uses ASCII if the output's encoding has no block characters.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCKS = "·░▒▓█"
ASCII = ".-=*#"


def shades(encoding: str | None) -> str:
    """Return the characters for idle to busy that an encoding has."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return ASCII
    return BLOCKS


def shades_of_output() -> str:
    """Return the characters that the standard output can show."""
    return shades(getattr(sys.stdout, "encoding", None))


def bar(
    spans: Sequence[float],
    shown: tuple[float, float],
    width: int,
    marks: str,
) -> str:
    """Draw spans within the shown time, as width characters.

    spans has the begin and the end of each span, one after another.
    """
    filled = [0.0] * width
    start, scale = shown[0], width / (shown[1] - shown[0])
    for begin, end in zip(spans[::2], spans[1::2], strict=True):
        begin, end = (begin - start) * scale, (end - start) * scale
        for cell in range(int(begin), min(int(end) + 1, width)):
            filled[cell] += min(end, cell + 1) - max(begin, cell)
    top = len(marks) - 1
    return "".join(
        marks[min(top, int(part * top) + 1) if part > 0 else 0]
        for part in filled
    )


def busy(spans: Sequence[float]) -> float:
    """Return the sum of the spans."""
    return sum(spans[1::2]) - sum(spans[::2])


def ruler(
    label: str, shown: tuple[float, float], label_width: int, width: int
) -> str:
    """Return the line above bars: their subject, and the shown time in ms."""
    first, last = (milliseconds(value) if value else "0 ms" for value in shown)
    return f"{label:<{label_width}} {first}{last.rjust(width - len(first))}"


def line(
    label: str,
    spans: Sequence[float],
    shown: tuple[float, float],
    label_width: int,
    width: int,
    marks: str,
) -> str:
    """Return a bar with its label, and how much of the time it is busy."""
    begin, end = shown
    if begin == end:
        # While a schedule is explored, everything may happen at one moment of
        # virtual time.
        end += 1
    return (
        f"{shorten(label, label_width):<{label_width}} "
        f"{bar(spans, (begin, end), width, marks)} "
        f"{busy(spans) / (end - begin):>6.0%}"
    )


def shorten(text: str, width: int) -> str:
    """If a text is too long, cut out its middle."""
    if len(text) <= width:
        return text
    left = (width - 1) // 2
    return f"{text[:left]}~{text[len(text) - (width - 1 - left) :]}"


def plural(count: int, noun: str) -> str:
    """Return '1 chunk' or '2 chunks'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def extent(times: Sequence[int], duration: int) -> tuple[int, int]:
    """Return the time that is shown, from the begins and ends of what is
    shown: it leaves out the time before, in which the program imports its
    modules, and the time after.  If nothing is shown, return the block's."""
    return min(times, default=0), max(times, default=duration)


def heading(count: int, total: int) -> str:
    """Return how many operations there were in how many nanoseconds."""
    text = f"{plural(count, 'operation')} in {milliseconds(total / 1e6)}"
    if count > 0 and total == 0:
        text += " of virtual time, in which only sleeps last"
    return text


def milliseconds(value: float) -> str:
    """Format milliseconds for a person, in us, ms or s."""
    if value < 1:
        return f"{value * 1000:.3g} us"
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"
