"""The tables for people: on a terminal with rich, as Markdown without."""

import sys


def terminal(tables):
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(markdown(tables))
        return
    # In a file, make lines long enough that rich cuts no text.
    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in tables:
        shown = Table()
        for number, title in enumerate(table.header()):
            shown.add_column(title, justify="right" if number else "left")
        for line in table.lines():
            style = "red" if line[-1] == "no" else None
            shown.add_row(*line, style=style)
        console.print(table.title, style="bold", highlight=False)
        console.print(shown)
        for which, why in table.failures():
            console.print(f"  {which}: {why}", markup=False, highlight=False)


def markdown(tables):
    return "\n".join(line for table in tables for line in lines(table))


def lines(table):
    header = table.header()
    yield f"### {table.title}"
    yield ""
    yield row(header)
    yield row(["---", *["---:"] * (len(header) - 1)])
    yield from map(row, table.lines())
    yield ""
    failures = [f"- {which}: {why}" for which, why in table.failures()]
    yield from [*failures, ""] if failures else []


def row(texts):
    return f"| {' | '.join(texts)} |"
