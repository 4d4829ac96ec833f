"""What reports call streams and threads."""

from __future__ import annotations

import threading


def stream_label(device: str, stream: int | str, name: str | None) -> str:
    """stream is its handle, or the text of its number in a schedule."""
    if stream == 0:
        return f"the default stream of {device}"
    text = f"{stream:#x}" if isinstance(stream, int) else stream
    if name is None:
        return f"stream {text} of {device}"
    return f"{name} ({device} {text})"


def thread_name(identifier: int, unknown: str = "thread {}") -> str:
    # Not threading.enumerate(), which waits for a lock that another thread may
    # hold while it waits for this one.
    thread = threading._active.get(identifier)  # type: ignore[attr-defined]
    return thread.name if thread is not None else unknown.format(identifier)
