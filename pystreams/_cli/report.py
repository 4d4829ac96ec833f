"""The report that `python -m pystreams` prints of this machine.

Gathering it initializes every device, since a device's priorities are known
only afterwards.
"""

from __future__ import annotations

import os
import platform

from .. import _C
from .._version import __version__
from ..accelerator import _name as type_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def gather() -> dict[str, Any]:
    """Return the report as values for JSON; sizes are in bytes."""
    accelerator: dict[str, str | None]
    try:
        kind = _C.default_type()
        accelerator = {"name": type_name(kind), "why": accelerator_why()}
    except RuntimeError as error:
        accelerator = {"name": None, "why": str(error)}
    # List CUDA even in builds without it, with the reason.
    kinds = {**dict(_C.backends()), "cuda": 1}
    return {
        "version": __version__,
        "python": platform.python_version(),
        "accelerator": accelerator,
        "backends": [_backend(name, kind) for name, kind in kinds.items()],
    }


def _backend(name: str, kind: int) -> dict[str, Any]:
    runtime, driver = _C.versions(kind)
    return {
        "name": name,
        "unavailable": _C.unavailable_reason(kind),
        "emulated": _C.is_emulated(kind),
        "runtime": version(runtime),
        "driver": version(driver),
        "devices": [
            _device(kind, index) for index in range(_C.device_count(kind))
        ],
    }


def _device(kind: int, index: int) -> dict[str, Any]:
    device = _C.device(type_name(kind), index)
    found: dict[str, Any] = dict.fromkeys(
        ("name", "total_memory", "priorities", "fault")
    )
    try:
        properties = _C.device_properties(kind, index)
        found["name"] = properties["name"]
        found["total_memory"] = properties["total_memory"]
        found["priorities"] = _C.Stream.priority_range(device)
    except RuntimeError as error:
        found["fault"] = str(error)
    return found


def accelerator_why() -> str:
    """Return why the accelerator was chosen."""
    if os.environ.get("PYSTREAMS_ACCELERATOR"):
        return "PYSTREAMS_ACCELERATOR asks for it"
    kind = _C.default_type()
    name = type_name(kind)
    if name == "cpu":
        reason = _C.unavailable_reason(1)
        return f"there is no usable GPU: {reason}"
    if _C.is_emulated(kind):
        return "PYSTREAMS_EMULATE_CUDA asks for it"
    return "there is a usable GPU"


def version(number: int) -> str | None:
    """Format 13000 as '13.0'; None for 0."""
    if number == 0:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"


def size_text(nbytes: float) -> str:
    """Format a number of bytes for a person."""
    for unit in UNITS:
        if nbytes < 1024 or unit == UNITS[-1]:
            break
        nbytes /= 1024
    if unit == "B":
        return f"{nbytes:.0f} B"
    return f"{nbytes:.3g} {unit}" if nbytes < 1000 else f"{nbytes:.0f} {unit}"


def text(report: dict[str, Any]) -> str:
    """Format the report for a person."""
    lines = [
        f"pystreams {report['version']} on Python {report['python']}",
        _accelerator_line(report["accelerator"]),
    ]
    for backend in report["backends"]:
        lines += ["", _backend_line(backend)]
        for index, device in enumerate(backend["devices"]):
            lines.append(
                f"  {backend['name']}:{index}  {_device_text(device)}"
            )
    return "\n".join(lines)


def _accelerator_line(accelerator: dict[str, str | None]) -> str:
    if accelerator["name"] is None:
        return "no accelerator"
    return f"accelerator {accelerator['name']}, because {accelerator['why']}"


def _device_text(device: dict[str, Any]) -> str:
    facts = []
    if device["name"] is not None:
        facts += [device["name"], size_text(device["total_memory"])]
    if device["fault"] is not None:
        fault = "; ".join(device["fault"].splitlines())
        facts.append(f"can't be used: {fault}")
    else:
        least, greatest = device["priorities"]
        facts.append(f"priorities {least} to {greatest}")
    return ", ".join(facts)


def _backend_line(backend: dict[str, Any]) -> str:
    facts = []
    if backend["emulated"]:
        facts.append("emulated by the CPU engine")
    if backend["runtime"]:
        facts.append(f"runtime {backend['runtime']}")
    if backend["driver"]:
        facts.append(f"driver for CUDA {backend['driver']}")
    if backend["unavailable"]:
        facts.append(f"unavailable: {backend['unavailable']}")
    return ", ".join([backend["name"], *facts])
