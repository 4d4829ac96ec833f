"""Compare pystreams with the installed torch.

    python tests/support/torch_parity.py [--to FOLDER]

writes two files, to FOLDER if one is given: docs/torch-parity.md, which has
every difference with its reason, and parity/torch.json, the record of torch
that tests use if torch is not installed.  Exits with 1 if there is a fault: a
difference without a reason, or, with two GPUs, a reason without a difference.
One GPU does not show all differences.

Without a GPU, compares only the members, their signatures and the programs of
devices, and writes to torch-parity-without-a-gpu.md and
torch-without-a-gpu.json.  So pystreams can be compared with a version of torch
that no machine with a GPU has.
"""

import argparse
import faulthandler
import json
import re
import sys
from collections import Counter
from pathlib import Path

from parity import facts, reasons
from places import ROOT, SUPPORT

RECORD = SUPPORT / "parity/torch.json"
RECORD_WITHOUT_A_GPU = SUPPORT / "parity/torch-without-a-gpu.json"
ABSENT = reasons.ABSENT
MEMBER = re.compile(r"torch(\.\w+)+")


def matches(pattern, text):
    """Return whether the text matches the pattern, in which * stands for
    anything."""
    parts = map(re.escape, pattern.split("*"))
    return re.fullmatch(".*".join(parts), text) is not None


def differences(torch, ours):
    """Yield (key, torch's text, our text) for each key whose two texts
    differ."""
    for key in torch | ours:
        if not MEMBER.fullmatch(key) and (key not in torch or key not in ours):
            continue
        pair = torch.get(key, ABSENT), ours.get(key, ABSENT)
        unknown = "(?)" in pair and ABSENT not in pair
        if pair[0] != pair[1] and not unknown:
            yield key, *pair


class Comparison:
    """The differences, grouped by their reasons; the differences without a
    reason; and the reasons and rows without a difference."""

    def __init__(self, torch, ours, meant=reasons.REASONS):
        self.torch, self.ours, self.reasons = torch, ours, meant
        self.meant = {why: [] for why in meant}
        self.faults = []
        used = set()
        for difference in differences(torch, ours):
            for why, row in self.rows():
                if all(map(matches, row, difference)):
                    self.meant[why].append(difference)
                    used.add(row)
                    break
            else:
                self.faults.append(difference)
        self.unused = [row for _, row in self.rows() if row not in used]

    def rows(self):
        for why, rows in self.reasons.items():
            for row in rows:
                yield why, row

    def summary(self):
        compared = self.torch.keys() & self.ours.keys()
        meant = sum(map(len, self.meant.values()))
        return (
            f"{len(compared)} facts compared: {meant} intended differences, "
            f"{len(self.faults)} faults, {len(self.unused)} unused reasons."
        )


def code(text):
    """Return the text as code in a cell of a table."""
    text = text.replace("|", "\\|")
    return f"``{text}``" if "`" in text else f"`{text}`"


def table(rows):
    yield "| | torch | pystreams |"
    yield "| --- | --- | --- |"
    for row in rows:
        yield "| " + " | ".join(map(code, row)) + " |"


def page(comparison, about):
    """Yield the lines of docs/torch-parity.md."""
    yield "# Parity with torch"
    yield ""
    yield about
    yield "Written by `tests/support/torch_parity.py`.  The programs are in"
    yield "`tests/support/parity/programs.txt`; torch is either library there."
    yield ""
    yield comparison.summary()
    for title, rows in (
        ("Faults", comparison.faults),
        ("Unused reasons", comparison.unused),
    ):
        if rows:
            yield from ("", f"## {title}", "", *table(rows))
    yield from ("", "## Intended differences")
    for why, rows in comparison.meant.items():
        absent = [key for key, *texts in rows if ABSENT in texts]
        both = [row for row in rows if row[0] not in absent]
        if rows:
            yield from ("", f"**{why}**", "")
        if absent:
            side = "torch" if rows[0][1] == ABSENT else "pystreams"
            yield f"Not in {side}: {', '.join(map(code, absent))}"
        if both:
            yield from table(both)
    different = {k for k, *_ in differences(comparison.torch, comparison.ours)}
    same = comparison.torch.keys() & comparison.ours.keys() - different
    members = sorted(filter(MEMBER.fullmatch, same))
    yield from ("", "## The same", "", ", ".join(map(code, members)), "")
    sections = Counter()
    for name, programs in facts.PROGRAMS.items():
        sections[name] = sum(
            key in same or f"{name}: {key}" in same for key in programs
        )
    counts = (f"{name} {count}" for name, count in sections.items() if count)
    yield f"Programs that give the same: {', '.join(counts)}."


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, help="the folder to write to")
    folder = parser.parse_args().to
    # If a program crashes, the traceback shows the program in place of a
    # filename.
    faulthandler.enable()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"torch_parity.py: torch is needed to compare with: {error}")

    import pystreams

    if pystreams.cuda.is_emulated():
        sys.exit("torch_parity.py: torch cannot emulate CUDA devices")
    devices = [
        torch.cuda.get_device_name(index)
        for index in range(torch.cuda.device_count())
    ]
    comparison = Comparison(
        facts.gather("torch"),
        facts.gather("pystreams"),
        reasons.REASONS if devices else reasons.WITHOUT_A_GPU,
    )
    if len(devices) < 2:
        comparison.unused = []
    where = f"on {len(devices)} {devices[0]}" if devices else "without a GPU"
    about = (
        f"torch {torch.__version__} and pystreams {pystreams.__version__} "
        f"{where}."
    )
    record = {
        "about": about,
        "devices": len(devices),
        "facts": comparison.torch,
    }
    text = "\n".join(page(comparison, about)) + "\n"
    recorded = RECORD if devices else RECORD_WITHOUT_A_GPU
    name = recorded.stem.replace("torch", "torch-parity")
    markdown = (folder or ROOT / "docs") / f"{name}.md"
    markdown.write_text(text)
    recorded = folder / recorded.name if folder else recorded
    recorded.write_text(json.dumps(record, indent=0) + "\n")
    print(comparison.summary())
    for fault in comparison.faults:
        print("fault: {}\n    torch: {}\n    ours:  {}".format(*fault))
    for row in comparison.unused:
        print(f"reason without a difference: {row}")
    sys.exit(bool(comparison.faults or comparison.unused))


if __name__ == "__main__":
    main()
