"""How fast pystreams is, compared with the plain C calls and its peers.

    python -m benchmarks [--only calls,memory] [--json FILE] [--chart FILE]

Runs on a GPU if there is one, else on the CPU engine.  Figures are medians,
± half the interquartile range.
"""

import argparse
import json
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from benchmarks import (
    calls,
    chart,
    engine,
    machine,
    memory,
    scaling,
    show,
    startup,
)
from pystreams import cuda

GROUPS = {
    "calls": calls,
    "scaling": scaling,
    "memory": memory,
    "startup": startup,
    "engine": engine,
}


def groups(text):
    names = text.split(",")
    unknown = set(names) - set(GROUPS)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"expected some of {','.join(GROUPS)}, got {','.join(unknown)}"
        )
    return names


def arguments():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        type=groups,
        default=list(GROUPS),
        metavar="GROUPS",
        help=f"some of {','.join(GROUPS)}; all without it",
    )
    parser.add_argument("--device", choices=["cuda", "cpu"])
    parser.add_argument(
        "--quick", action="store_true", help="few rounds: does it run?"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--chart", type=Path, metavar="FILE")
    options = parser.parse_args()
    usable = cuda.is_available() and not cuda.is_emulated()
    if options.device == "cuda" and not usable:
        parser.error("--device cuda: there is no usable GPU")
    if options.chart and find_spec("matplotlib") is None:
        parser.error("--chart needs matplotlib: pip install -e '.[bench]'")
    options.device = options.device or ("cuda" if usable else "cpu")
    return options


def main():
    options = arguments()
    found, start = [], time.monotonic()
    for name in options.only:
        made = list(GROUPS[name].tables(options.device, options.quick))
        show.terminal(made)
        found += made
    where = machine.describe(options.device)
    facts = ", ".join(f"{name} {value}" for name, value in where.items())
    print(f"{time.monotonic() - start:.0f} s; {facts}")
    if options.json:
        result = {"machine": where, "tables": list(map(asdict, found))}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(show.markdown(found))
    if options.chart:
        chart.draw(found, where, options.chart)


if __name__ == "__main__":
    main()
