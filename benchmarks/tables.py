"""The results: tables of rows of cells; a row may have a target.

Every group of benchmarks yields Tables, and all output is made from them.
"""

import statistics
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    """A figure: the median of its samples, their quartiles, and the ratio to
    the raw call.  If there is no figure, `why` is the reason."""

    median: float | None = None
    low: float | None = None
    high: float | None = None
    why: str | None = None
    of_raw: float | None = None

    @classmethod
    def of(cls, samples):
        if len(samples) < 2:
            return cls(*samples * 3)
        low, middle, high = statistics.quantiles(
            samples, n=4, method="inclusive"
        )
        return cls(middle, low, high)

    def __str__(self):
        if self.median is None:
            return "failed"
        spread = (self.high - self.low) / 2
        text = figure(self.median)
        return f"{text} ±{figure(spread)}" if spread else text


def figure(value):
    """The value with three significant digits; a whole number if it is one,
    or from 100 on."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


@dataclass
class Row:
    title: str
    cells: dict[str, Cell]
    target: str = ""
    met: bool | None = None
    ratios: dict[str, float] = field(default_factory=dict)


@dataclass
class Table:
    name: str
    title: str
    columns: list[str]
    rows: list[Row]

    def header(self):
        """The titles of all columns.  There is a column for a ratio, or for
        the targets, only if some row has one."""
        header = ["", *self.columns, *self._ratios()]
        return [*header, *(["target", "met"] if self._targets() else [])]

    def lines(self):
        """The texts of each row, one for each title."""
        for row in self.rows:
            line = [row.title]
            for column in self.columns:
                line.append(str(row.cells.get(column, "")))
            for name in self._ratios():
                ratio = row.ratios.get(name)
                line.append("" if ratio is None else f"{ratio:.2f}")
            if self._targets():
                met = {None: "", True: "yes", False: "no"}[row.met]
                line += [row.target, met]
            yield line

    def failures(self):
        """Yield (columns and rows, reason) for the cells without a figure,
        each reason once."""
        found = {}
        for row in self.rows:
            for column, cell in row.cells.items():
                if cell.why is not None:
                    where = found.setdefault(cell.why, ({}, {}))
                    where[0][column] = where[1][row.title] = None
        for why, (columns, titles) in found.items():
            which = "" if len(titles) == len(self.rows) else ", ".join(titles)
            yield " ".join(filter(None, [", ".join(columns), which])), why

    def _ratios(self):
        return list(dict.fromkeys(n for r in self.rows for n in r.ratios))

    def _targets(self):
        return any(row.target for row in self.rows)
