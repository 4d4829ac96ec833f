"""Timelines as pictures: a lane for each stream and each thread, an arrow for
each wait, and the memory in use.  Matplotlib draws them."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

from . import _OPERATIONS, _SHOWN, _chart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import Row, Timeline

# The colors of rows: by the row's name or, if that is not here, by its kind.
COLORS = {
    "kernel": "#54a24b",
    "copy": "#8c9fc4",
    "copy host to device": "#9ecae9",
    "copy device to host": "#4c78a8",
    "fill": "#72b7b2",
    "callable": "#f58518",
    "function": "#e45756",
    "graph": "#b279a2",
    "sleep": "#9d9da1",
    "span": "#eeca3b",
    "mark": "#333333",
    "synchronize": "#d9d9d9",
}
# More lanes and more arrows than these cannot be told apart.
LANES, ARROWS, NAMES = 60, 300, 120
# A name that is cut to fewer characters says nothing.
SHORTEST = 6


def save(timeline: Timeline, path: str, suffix: str) -> None:
    draw(timeline).savefig(path, format=suffix, dpi=150)


def svg(timeline: Timeline) -> str:
    """Return the picture as SVG, without the text before its element."""
    file = io.StringIO()
    draw(timeline).savefig(file, format="svg")
    text = file.getvalue()
    return text[text.index("<svg") :]


def figures() -> Any:
    try:
        return import_module("matplotlib.figure")
    except ImportError as error:
        raise ImportError(
            "a picture of a timeline needs Matplotlib: pip install matplotlib"
        ) from error


class Lanes:
    """The lanes in the order in which they are first needed, those of devices
    before those of the host."""

    def __init__(self, rows: list[Row]) -> None:
        keys: dict[tuple[str, str], int] = {}
        for kind, _, device, stream, thread, *_ in rows:
            if kind != "memory":
                keys.setdefault((device or "", stream or thread), 0)
        ordered = sorted(keys, key=lambda key: (key[0] == "", key[0]))
        hosts = [key for key in ordered if key[0] == ""][: LANES // 4]
        streams = [key for key in ordered if key[0] != ""]
        self.shown = streams[: LANES - len(hosts)] + hosts
        self.hidden = len(ordered) - len(self.shown)
        self.numbers = {key: i for i, key in enumerate(self.shown)}

    def of(self, row: Row) -> int | None:
        return self.numbers.get((row[2] or "", row[3] or row[4]))


def unit(duration: int) -> tuple[float, str]:
    for scale, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if duration >= 2 * scale:
            return scale, name
    return 1.0, "ns"


def draw(timeline: Timeline) -> Any:
    figure_of = figures().Figure
    # Leave out nodes of graphs: the slices of launches show when they ran.
    # Nodes come last, so the numbers of the other rows stay the same.
    rows = [row for row in timeline.rows if row[0] != "node"]
    lanes = Lanes(rows)
    done = [r for r in rows if r[6] is not None and r[7] is not None]
    times = [time for r in done if r[0] in _SHOWN for time in r[6:8]]
    begin, ended = _chart.extent(times, timeline.duration)
    end = max(begin + 1, ended)
    scale, name = unit(end)
    memory = memory_of(done)
    height = 1.2 + 0.32 * max(1, len(lanes.shown)) + (0.9 if memory else 0)
    figure = figure_of(figsize=(11, height), layout="constrained")
    if memory:
        parts = figure.subplots(
            2,
            1,
            sharex=True,
            height_ratios=(0.32 * max(2, len(lanes.shown)), 0.7),
        )
        axes = parts[0]
        draw_memory(parts[1], memory, end, scale)
    else:
        axes = figure.subplots()
    draw_slices(axes, done, lanes, scale, end - begin)
    draw_arrows(axes, rows, lanes, scale, begin)
    axes.set_xlim(begin / scale, end / scale)
    axes.set_ylim(len(lanes.shown) - 0.4, -0.6)
    axes.set_yticks(
        range(len(lanes.shown)),
        [f"{device} {label}".strip() for device, label in lanes.shown],
        fontsize=7,
    )
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.axes[-1].set_xlabel(f"time in {name}", fontsize=8)
    for part in figure.axes:
        part.tick_params(axis="x", labelsize=7)
        # Show the times that the text chart shows, not differences from one.
        part.ticklabel_format(axis="x", useOffset=False)
    count = sum(row[0] in _OPERATIONS for row in done)
    title = _chart.heading(count, ended - begin)
    if lanes.hidden:
        title += f"; {_chart.plural(lanes.hidden, 'lane')} not shown"
    axes.set_title(title, fontsize=9, loc="left")
    legend(axes, done)
    return figure


class Heights:
    """The positions of slices in their lanes.  A slice of a thread is below
    the spans that contain it."""

    def __init__(self, rows: list[Row]) -> None:
        #: For each thread, the ends of open slices, and how many were open at
        #: once.
        open_now: dict[str, list[int]] = {}
        self._deepest: dict[str, int] = {}
        self._depths: dict[int, int] = {}
        for row in rows:
            if row[2] is not None or row[0] not in ("span", "synchronize"):
                continue
            ends = [end for end in open_now.get(row[4], ()) if end > row[6]]
            self._depths[id(row)] = len(ends)
            open_now[row[4]] = [*ends, row[7]]
            deepest = self._deepest.get(row[4], 0)
            self._deepest[row[4]] = max(deepest, len(ends) + 1)

    def of(self, row: Row) -> tuple[float, float]:
        """Return the slice's top, measured from the middle of its lane, and
        its height."""
        depth = self._depths.get(id(row))
        if depth is not None:
            height = 0.84 / self._deepest[row[4]]
            return depth * height - 0.42, height
        return (-0.42, 0.84) if row[0] == "span" else (-0.34, 0.68)


def color_of(row: Row) -> str | None:
    """Return the key of the row's color; None if the row is not drawn."""
    if row[0] == "copy" and row[1] in COLORS:
        return str(row[1])
    return str(row[0]) if row[0] in COLORS else None


def draw_slices(
    axes: Any, rows: list[Row], lanes: Lanes, scale: float, extent: int
) -> None:
    Place = tuple[int, str, tuple[float, float]]
    bars: dict[Place, list[tuple[float, float]]] = {}
    named = []
    heights = Heights(rows)
    for row in rows:
        lane = lanes.of(row)
        color = color_of(row)
        if lane is None or color is None:
            continue
        top, height = heights.of(row)
        width = max(row[7] - row[6], extent // 5000) / scale
        place = lane, color, (lane + top, height)
        bars.setdefault(place, []).append((row[6] / scale, width))
        if row[1] != row[0] and row[7] - row[6] > extent / 40:
            middle = lane + top + height / 2
            named.append((row[7] - row[6], middle, row))
    for (_, color, vertical), spans in bars.items():
        thin = color in ("span", "synchronize")
        axes.broken_barh(
            spans,
            vertical,
            facecolors=COLORS[color],
            alpha=0.45 if color == "span" else 1,
            edgecolor="white",
            # On a narrow slice, nothing but the edge would be visible.
            linewidth=[
                0.3 if width * scale > extent / 400 else 0
                for _, width in spans
            ],
            zorder=1 if thin else 2,
        )
    named.sort(key=lambda item: -item[0])
    for took, middle, row in named[:NAMES]:
        # About so many characters of this size fit into the width.
        fit = int(160 * took / extent)
        if fit < SHORTEST:
            continue
        axes.text(
            (row[6] + took / 2) / scale,
            middle,
            label(row[1].rpartition(".")[2], fit),
            ha="center",
            va="center",
            fontsize=5.5,
            zorder=4,
        )


def label(name: str, width: int) -> str:
    """Return a slice's name, or as much of it as fits into the width."""
    first, *rest = name.split(" ")
    if len(name) <= width or not rest:
        return _chart.shorten(name, width)
    # The legend has the whole name.
    return first if len(first) <= width else ""


def draw_arrows(
    axes: Any, rows: list[Row], lanes: Lanes, scale: float, start: int
) -> None:
    waits = [r for r in rows if r[0] == "wait" and r[12] is not None]
    for row in waits[:ARROWS]:
        source = rows[row[12]]
        begin, end = lanes.of(source), lanes.of(row)
        if None in (begin, end, source[7], row[7]) or source[7] < start:
            continue
        axes.annotate(
            "",
            (row[7] / scale, end),
            (source[7] / scale, begin),
            arrowprops={
                "arrowstyle": "->",
                "color": "#333333",
                "linewidth": 0.6,
                "shrinkA": 0,
                "shrinkB": 0,
            },
            zorder=3,
        )


def memory_of(rows: list[Row]) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        if row[0] == "memory":
            found.setdefault(row[2], []).append((row[6], row[8]))
    return found


def draw_memory(
    axes: Any,
    memory: dict[str, list[tuple[int, int]]],
    end: int,
    scale: float,
) -> None:
    for device, points in memory.items():
        points = [*points, (max(end, points[-1][0]), points[-1][1])]
        axes.step(
            [time / scale for time, _ in points],
            [nbytes / 2**20 for _, nbytes in points],
            where="post",
            linewidth=0.8,
            label=device,
        )
    axes.set_ylabel("MiB", fontsize=7)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="y", labelsize=6)
    axes.legend(fontsize=6, frameon=False, loc="upper left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend(axes: Any, rows: list[Row]) -> None:
    patches = import_module("matplotlib.patches")
    seen = {color_of(row) for row in rows}
    labels = {"synchronize": "waiting"}
    handles = [
        patches.Patch(color=color, label=labels.get(kind, kind))
        for kind, color in COLORS.items()
        if kind in seen
    ]
    if handles:
        axes.legend(
            handles=handles,
            fontsize=6,
            frameon=False,
            ncols=len(handles),
            loc="lower right",
            bbox_to_anchor=(1, 1),
        )
