"""Backends of installed distributions, found by their entry points.

The name of an entry point of the group is the device type, its value the
module that registers the backend, or a function that does.
"""

from __future__ import annotations

from . import _C

GROUP = "pystreams.backends"

_loaded: dict[str, int] = {}


def refuse(name: str, others: list[str]) -> None:
    """Raise RuntimeError for a device string that begins with an unknown name.

    others: the names of device types that no backend is registered for.
    """
    names = ", ".join([*dict(_C.backends()), *others])
    raise RuntimeError(
        f"Expected one of {names} device type at start of device string: "
        f"{name}"
    )


def load(name: str) -> int:
    """Load the backend that is offered under a name; return its device type.

    -1 if no distribution offers one.  Raises RuntimeError if it cannot be
    loaded.
    """
    if name in _loaded:
        return _loaded[name]
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=name):
        before = dict(_C.backends())
        try:
            registers = point.load()
            if callable(registers):
                registers()
        except Exception as error:
            raise RuntimeError(
                f"the backend {name!r} of the entry point {point.value!r} "
                f"cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        after = dict(_C.backends())
        new = [type for type in after.values() if type not in before.values()]
        if name in after:
            new = [after[name]]
        if len(new) != 1:
            raise RuntimeError(
                f"the entry point {point.value!r} of {GROUP} has registered "
                f"no backend {name!r}, only {', '.join(after)} are"
            )
        return _loaded.setdefault(name, new[0])
    return -1
