"""The CUDA array interface of other libraries, read and checked.

The caller, in C, checks whether the memory is as the interface claims.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WHAT = "the CUDA array interface"
# The same as MOST_DIMENSIONS in borrow.h.
_MOST_DIMENSIONS = 64


def _extents(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, tuple):
        # A subclass may have a length that is not the number of its items.
        value = tuple(value)
    if not isinstance(value, tuple) or len(value) > _MOST_DIMENSIONS:
        raise TypeError(
            f"{_WHAT} must have '{name}' as a tuple of at most "
            f"{_MOST_DIMENSIONS} ints, got {value!r}"
        )
    return value


def _item_size(typestr: Any) -> int:
    """Return the size of an item in bytes, from a typestr such as '<f4' or
    '|V16'."""
    if isinstance(typestr, str) and len(typestr) > 2:
        digits = typestr[2:].partition("[")[0]
        if (
            typestr[0] in "<>|="
            and typestr[1] in "biufcmMVS"
            and digits.isascii()
            and digits.isdecimal()
            and 0 < int(digits[:11]) < 1 << 31
        ):
            return int(digits)
    raise ValueError(
        f"{_WHAT} must have a 'typestr' of byte order, kind and size such as "
        f"'<f4', got {typestr!r}"
    )


def read_array_interface(
    function: str, interface: object
) -> tuple[Any, bool, int, tuple[Any, ...], tuple[Any, ...], Any]:
    """Return (address, read-only, item size, shape, strides, stream).

    The strides are () if the memory is contiguous.
    """
    if not isinstance(interface, dict):
        raise TypeError(
            f"{function}() expects {_WHAT} to be a dict, but got "
            f"{type(interface).__name__}"
        )
    # Copy: reading an entry may run code of the producer, and that code may
    # change the dict.
    entries = interface.copy()
    for name in ("version", "data", "shape", "typestr"):
        if name not in entries:
            raise ValueError(f"{_WHAT} lacks '{name}'")
    get = entries.get
    version, data = get("version"), get("data")
    if not isinstance(version, int) or not 0 <= version <= 3:
        raise ValueError(
            f"{_WHAT} has version {version!r}; versions 0 to 3 are supported"
        )
    if not isinstance(data, tuple) or len(data) != 2:
        raise TypeError(
            f"{_WHAT} must have 'data' as a tuple (address, read-only), got "
            f"{data!r}"
        )
    address, read_only = data[0], bool(data[1])
    shape = _extents("shape", get("shape"))
    item_size = _item_size(get("typestr"))
    strides = get("strides")
    if strides is None:
        strides = ()
    else:
        strides = _extents("strides", strides)
        if len(strides) != len(shape):
            raise ValueError(
                f"{_WHAT} has {len(shape)} extents and {len(strides)} strides"
            )
    if get("mask") is not None:
        raise ValueError(f"{_WHAT} has a mask, which a copy would lose")
    return address, read_only, item_size, shape, strides, get("stream")
