"""What backend.h says, sentence by sentence, and which sentences the
conformance suite tests."""

import importlib
import pkgutil
import re
from pathlib import Path

import pystreams
import pystreams.testing

HEADERS = Path(pystreams.get_include()) / "pystreams"
EVERY = "every member"


def plain(comment):
    """Return the text of a comment, on one line."""
    lines = re.sub(r"^\s*\*? ?", "", comment, flags=re.M).split()
    return " ".join(lines)


def comments():
    """Return the comment of each member, or the comment that it shares with
    the members before it."""
    text = (HEADERS / "backend.h").read_text()
    found = {EVERY: plain(text[2 : text.index("*/")])}
    comment = None
    # Leave out core's functions that backends call; they come first.
    table = text[text.index("struct ps_limit {") :]
    table += (HEADERS / "faults.h").read_text()
    for match in re.finditer(r"/\*(.*?)\*/|\(\*(\w+)\)\(", table, re.S):
        if match[2]:
            found[match[2]] = comment
        elif not match[1].startswith(" ----"):
            comment = plain(match[1])
    return found


def claims():
    """Yield (test, member, sentence) for every test in the suite."""
    for module in pkgutil.iter_modules(pystreams.testing.__path__):
        if not module.name.startswith("test_"):
            continue
        tests = importlib.import_module(f"pystreams.testing.{module.name}")
        for name, value in vars(tests).items():
            if name.startswith("test_"):
                marks = [
                    mark
                    for mark in getattr(value, "pytestmark", [])
                    if mark.name == "pystreams_contract"
                ]
                (mark,) = marks
                yield f"{module.name}.{name}", *mark.args[:2]
