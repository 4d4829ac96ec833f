"""Backends of installed distributions, found by their entry points.

The name of an entry point is the device type.  Its value is a module that
registers the backend when it is imported, or a function that registers it.
"""

from __future__ import annotations

import os
from _thread import RLock

from . import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "pystreams.backends"

# The device types of the backends.  _loaded has them by the names of entry
# points, and _registered by the values of entry points.  Several names may
# have the same value.
_loaded: dict[str, int] = {}
_registered: dict[str, int] = {}
# Guards the two dicts, and makes sure that each entry point is called once.
# It is held while other code is imported.  If another thread holds it at a
# fork, that thread does not exist in the child, so the child resets it.
_loading = RLock()
os.register_at_fork(
    after_in_child=_loading._at_fork_reinit  # type: ignore[attr-defined]
)


def offered(value: str | None = None) -> list[str]:
    """Return the names of all entry points, or of those with the given
    value."""
    from importlib.metadata import entry_points

    return sorted(
        {
            point.name
            for point in entry_points(group=GROUP)
            if value in (None, point.value)
        }
    )


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

    Returns -1 if no distribution offers one.  Raises RuntimeError if several
    do, or if the backend cannot be loaded.
    """
    with _loading:
        if name not in _loaded:
            from importlib.metadata import entry_points

            found = entry_points(group=GROUP, name=name)
            points = {point.value: point for point in found}
            if len(points) > 1:
                raise RuntimeError(
                    f"several entry points of {GROUP} offer a backend "
                    f"{name!r}: {', '.join(sorted(points))}; uninstall the "
                    "distributions of all but one"
                )
            for point in points.values():
                _loaded[name] = _register(point)
        return _loaded.get(name, -1)


def _register(point: EntryPoint) -> int:
    """Make the entry point register its backend; return the device type."""
    if point.value in _registered:
        return _registered[point.value]
    before = dict(_C.backends())
    try:
        registers = point.load()
        if callable(registers):
            registers()
    except Exception as error:
        raise RuntimeError(
            f"the backend {point.name!r} of the entry point {point.value!r} "
            f"cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    after = dict(_C.backends())
    # The program may have imported the module itself, so that nothing new is
    # registered now.  Then another entry point with the same value has the
    # backend's name.
    new = [after[name] for name in offered(point.value) if name in after]
    new = new or [
        type for type in after.values() if type not in before.values()
    ]
    if point.name in after:
        new = [after[point.name]]
    if len(new) != 1:
        raise RuntimeError(
            f"the entry point {point.value!r} of {GROUP} has registered "
            f"no backend {point.name!r}, only {', '.join(after)} are"
        )
    _registered[point.value] = new[0]
    return new[0]
