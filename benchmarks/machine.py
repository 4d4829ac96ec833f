"""The machine that was measured: the facts that a reader needs to judge the
figures, but no name of the machine."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = {
    "cuda.core": "cuda-core",
    "CuPy": "cupy-cuda13x",
    "torch": "torch",
    "Numba": "numba-cuda",
}


def describe(device):
    import pystreams

    found = {
        "device": device,
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "pystreams": pystreams.__version__,
    }
    if device == "cuda":
        from pystreams import cuda

        found["gpus"] = cuda.device_count()
        found["gpu"] = cuda.get_device_name(0)
        found["driver"] = driver()
        for library, package in PACKAGES.items():
            try:
                found[library] = version(package)
            except PackageNotFoundError:
                found[library] = "not installed"
    return found


def processor():
    text = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", text)
    return model[1].strip() if model else platform.machine()


def driver():
    file = Path("/proc/driver/nvidia/version")
    found = file.exists() and re.search(r" (\d+\.[\d.]+) ", file.read_text())
    return found[1] if found else "unknown"
