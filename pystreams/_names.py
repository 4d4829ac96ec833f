"""What reports call streams and threads."""

from __future__ import annotations

import threading


def thread_name(identifier: int, unknown: str = "thread {}") -> str:
    # Not threading.enumerate(), which waits for a lock that another thread may
    # hold while it waits for this one.
    thread = threading._active.get(identifier)  # type: ignore[attr-defined]
    return thread.name if thread is not None else unknown.format(identifier)
