"""The context managers behind cuda and accelerator.

What to restore is kept per object and per thread, so that one object can be
entered again while it is entered, and by several threads at once.
"""

from __future__ import annotations

from _thread import get_ident

from ._C import exchange_device, restore_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._C import Stream


class DeviceContext:
    """Make a device of one type current within a with block."""

    __slots__ = ("_entered", "_type", "idx", "prev_idx")

    def __init__(self, type: int, idx: int | None) -> None:
        self._type = type
        self.idx = idx
        self.prev_idx = -1
        # A thread's latest entry, linked to its earlier ones.
        self._entered: dict[int, tuple[int, Any]] = {}

    def __enter__(self) -> None:
        idx = -1 if self.idx is None else max(self.idx, -1)
        self.prev_idx = previous = exchange_device(self._type, idx)
        entered = self._entered
        thread = get_ident()
        entered[thread] = (previous, entered.get(thread))

    def __exit__(self, *exc_info: object) -> None:
        entered = self._entered
        thread = get_ident()
        if thread not in entered:
            raise RuntimeError("This thread did not enter the device context")
        previous, outer = entered.pop(thread)
        if outer is not None:
            entered[thread] = outer
        restore_device(self._type, previous)


class StreamContext:
    """Make a stream and its device current within a with block."""

    __slots__ = ("stream",)

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exc_info)
