"""Waits with a limit, so that no test hangs if the device does.

A call that may hang runs in a thread of its own.  If the call hangs with the
GIL held, faulthandler prints the traceback and ends the process.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

# Limits in seconds: for a condition, for a test, and for a stuck process.
SOON = 5.0
LONG = 10.0
GIVE_UP = 60.0


class Hung(Exception):
    """A wait reached its limit."""


class Stuck(Hung):
    """A call still hangs after rescue()."""


def place_of(thread: threading.Thread) -> str:
    """Return the thread's place in the suite, such as "test_streams.py:57"."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        name = frame.f_code.co_filename.rpartition("/")[2]
        if name.startswith("test_"):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "a call of pystreams"


class Background:
    """A call in a thread of its own."""

    def __init__(
        self, function: Callable[..., object], **arguments: Any
    ) -> None:
        self._error: BaseException | None = None
        self._call = partial(function, **arguments)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            # The frames must not keep the streams of a failed test alive.
            traceback.clear_frames(error.__traceback__)
            self._error = error

    def over(self, seconds: float = 0.0) -> bool:
        """Wait that long for the call; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def finish(self, seconds: float = SOON) -> None:
        """Wait for the call and raise its exception, or Hung."""
        __tracebackhide__ = True
        if not self.over(seconds):
            place = place_of(self._thread)
            raise Hung(f"still waiting after {seconds:g} s, at {place}")
        if self._error is not None:
            raise self._error


def call_within_limit(
    function: Callable[..., object],
    rescue: Callable[[], None] | None = None,
    **arguments: Any,
) -> None:
    """Call a function that may hang, from another thread.

    Raises the function's exception, Hung if the call hangs, or Stuck if it
    still hangs after rescue().
    """
    __tracebackhide__ = True
    call = Background(function, **arguments)
    try:
        call.finish(LONG)
    except Hung as hung:
        if rescue is not None:
            rescue()
        if not call.over(1.0):
            raise Stuck(*hung.args) from None
        raise


def last_resort(stderr: int) -> None:
    """End the process with a traceback in GIVE_UP seconds, unless this is
    called again before."""
    faulthandler.dump_traceback_later(GIVE_UP, exit=True, file=stderr)


def eventually(question: Callable[[], bool]) -> None:
    """Wait until the question returns true."""
    __tracebackhide__ = True
    deadline = time.monotonic() + SOON
    while not question():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come within {SOON:g} s")
        time.sleep(0.0005)


def never(question: Callable[[], bool]) -> None:
    """Check for a while that the question returns false."""
    __tracebackhide__ = True
    deadline = time.monotonic() + 0.02
    while time.monotonic() < deadline:
        if question():
            raise AssertionError("came too early")
        time.sleep(0.0005)
