"""The names of streams and threads in reports."""

from __future__ import annotations

import threading

# The handle of the calling thread's default stream.
PER_THREAD = 2


def is_thread_stream(stream: int | str) -> bool:
    """Return whether the stream is the default stream of a thread.

    In reports, such a stream has a name of its own instead of its handle.
    The upper two bits mark such names.
    """
    return isinstance(stream, int) and stream >> 62 == 1


def stream_label(device: str, stream: int | str, name: str | None) -> str:
    """Return a label for a stream.

    stream is the handle, or the text of the stream's number in a schedule.
    """
    if stream == 0:
        return f"the default stream of {device}"
    if is_thread_stream(stream):
        stream, name = PER_THREAD, name or "the default stream of a thread"
    text = f"{stream:#x}" if isinstance(stream, int) else stream
    if name is None:
        return f"stream {text} of {device}"
    return f"{name} ({device} {text})"


def default_stream_name(identifier: int) -> str:
    """Return the name of a thread's default stream in reports."""
    return f"the default stream of {thread_name(identifier)}"


def thread_name(identifier: int, unknown: str = "thread {}") -> str:
    # Do not use threading.enumerate(): it waits for a lock, and another thread
    # may hold that lock while it waits for this thread.
    thread = threading._active.get(identifier)  # type: ignore[attr-defined]
    return thread.name if thread is not None else unknown.format(identifier)
