"""Checks of the arguments of functions that are written in Python."""

from __future__ import annotations

from operator import index


def integer(
    function: str, name: str, value: object, expected: str = "an int"
) -> int:
    """Return an argument that is an int, or of another type that has
    __index__(), such as NumPy's; TypeError for any other."""
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{function}() expects {expected} for {name}, but got "
            f"{type(value).__name__}"
        ) from None
