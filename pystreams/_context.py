"""The context manager for streams behind cuda and accelerator."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._C import Stream


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
