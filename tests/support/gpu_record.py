"""Describes a run of the tests on a machine with GPUs, as rows for
docs/gpu-runs.md.

python -m pytest --junitxml=run.xml
python tests/support/gpu_record.py [run.xml ...]
"""

import importlib.metadata
import os
import platform
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections import Counter

from pystreams import _C, __version__, cuda

PACKAGES = (
    "torch",
    "cupy-cuda13x",
    "cuda-core",
    "numba-cuda",
    "jax",
    "nvidia-nccl-cu13",
    "numpy",
    "pytest",
)


def commit():
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=os.path.dirname(__file__),
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "unknown"


def driver():
    """Return the version of the driver itself, of which CUDA's driver is a
    part."""
    try:
        with open("/proc/driver/nvidia/version") as file:
            words = file.readline().split()
    except OSError:
        return "none"
    return next((w for w in words if w[0].isdigit() and "." in w), "unknown")


def cuda_version(number):
    return f"{number // 1000}.{number % 1000 // 10}" if number else "none"


def gpus():
    if cuda.is_emulated() or not cuda.is_available():
        return "none"
    names = Counter(map(cuda.get_device_name, range(cuda.device_count())))
    return ", ".join(f"{count} x {name}" for name, count in names.items())


def versions():
    runtime, supported = _C.versions(1)
    yield "pystreams", f"{__version__} ({commit()})"
    yield "GPUs", gpus()
    yield "driver", driver()
    yield "CUDA of the driver", cuda_version(supported)
    yield "CUDA of the build", cuda_version(runtime)
    yield "Python", platform.python_version()
    yield "system", f"{platform.system()} {platform.machine()}"
    for package in PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed"


def outcome(case):
    for child in case:
        if child.tag in ("failure", "error", "skipped"):
            return child.tag
    return "passed"


def counts(path):
    """Return how many tests had each outcome, by file, and the reasons why
    tests were skipped."""
    files, reasons = {}, Counter()
    for case in xml.parse(path).iter("testcase"):
        # If the test is in a class, the class name comes last.
        names = case.get("classname", "").split(".")
        name = next((n for n in names if n.startswith("test_")), names[-1])
        found = outcome(case)
        files.setdefault(name, Counter())[found] += 1
        if found == "skipped":
            reasons[case.find("skipped").get("message", "")] += 1
    return files, reasons


def row(*cells):
    print(
        "|", " | ".join(str(cell).replace("|", "\\|") for cell in cells), "|"
    )


def table(*titles):
    print()
    row(*titles)
    row(*("---" for _ in titles))


def report(path):
    files, reasons = counts(path)
    columns = ("passed", "failure", "error", "skipped")
    table(f"tests ({os.path.basename(path)})", *columns)
    for name, found in sorted(files.items()):
        row(name, *(found[column] for column in columns))
    total = sum(files.values(), Counter())
    row("all", *(total[column] for column in columns))
    if reasons:
        table("skipped because", "tests")
        for reason, count in reasons.most_common():
            row(reason, count)


def main(paths):
    row("what", "version")
    row("---", "---")
    for line in versions():
        row(*line)
    for path in paths:
        report(path)


if __name__ == "__main__":
    main(sys.argv[1:])
