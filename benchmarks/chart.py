"""A bar chart of the calls: each library's time divided by the raw call's.
A bar begins at 1, the raw call; if the library is faster, it goes left."""

from benchmarks.peers import FLOORS, OURS
from benchmarks.tables import figure as text


def draw(tables, machine, path):
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    bars, ticks = lay_out(next(t for t in tables if t.name == "calls"))
    end = ticks[-1][0] + 1.5
    figure, axes = pyplot.subplots(
        figsize=(9, 1 + 0.17 * end), layout="constrained"
    )
    colours = iter(pyplot.cm.tab10.colors)
    for library, found in bars.items():
        places, ratios = zip(*found, strict=True)
        drawn = axes.barh(
            places,
            [ratio - 1 for ratio in ratios],
            left=1,
            height=0.85,
            label=library,
            color=(*next(colours), 1 if library == OURS else 0.45),
        )
        axes.bar_label(drawn, map(text, ratios), padding=2, fontsize=7)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.margins(x=0.08)
    axes.xaxis.set_major_formatter("{x:g}")
    where = machine.get("gpu", machine["cpu"])
    axes.set_xlabel(f"times the raw call in C, on {where}; less is better")
    axes.set_yticks(*zip(*ticks, strict=True))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(end, -1)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=6, frameon=False)
    figure.savefig(path, dpi=110)


def lay_out(table):
    """Return the bars, {library: [(place, ratio), ...]}, and the labels of the
    rows, [(place, title), ...].  Places are counted from the top."""
    bars, ticks, place = {}, [], 0
    for row in table.rows:
        ratios = {name: cell.of_raw for name, cell in row.cells.items()}
        shown = [
            name
            for name in table.columns
            if name not in FLOORS and ratios.get(name)
        ]
        if not shown:
            continue
        ticks.append((place + (len(shown) - 1) / 2, row.title))
        for name in shown:
            bars.setdefault(name, []).append((place, ratios[name]))
            place += 1
        place += 1
    return bars, ticks
