"""Futures of submitted callables, and the threads that run the callables."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from logging import getLogger
from typing import Any, NoReturn

from . import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator


class StreamFuture(_C.FutureBase, Future[Any]):
    """The Future of a callable that Stream.submit queued."""

    __init__ = object.__init__

    def _refuse_to_set(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise RuntimeError: only the callable settles the Future."""
        raise RuntimeError(
            f"{type(self).__name__}: only its callable settles the Future "
            "that Stream.submit returned; make a concurrent.futures.Future to "
            "settle it yourself"
        )

    set_running_or_notify_cancel = _refuse_to_set
    set_result = _refuse_to_set
    set_exception = _refuse_to_set

    def __await__(self) -> Generator[Any, None, Any]:
        """Return the callable's result without blocking the event loop.

        Cancelling the await cancels the callable if it has not begun; use
        asyncio.shield() to keep it.  Raises what the callable raised, and
        asyncio.CancelledError if the Future was cancelled.
        """
        try:
            if not self.done():
                begun = _C.timeline_await_begin(self)
                try:
                    yield from self._await_done()
                finally:
                    _C.timeline_await_end(begun)
            if self.cancelled():
                from asyncio import CancelledError

                raise CancelledError
            return self.result()
        finally:
            # The Future keeps an exception whose traceback has this frame.
            del self

    def _await_done(self) -> Generator[Any, None, None]:
        # Not by asyncio.wrap_future(): on CPython before 3.13, that wait never
        # ends if the callable raises StopIteration.
        from asyncio import CancelledError, get_running_loop

        from ._waiting import drop_callback

        loop = get_running_loop()
        done = loop.create_future()

        def settle() -> None:
            if self.cancelled():
                done.cancel()
            elif not done.done():
                done.set_result(None)

        def wake(future: Future[Any]) -> None:
            # The loop may be closed before the callable returns.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle)

        self.add_done_callback(wake)
        try:
            yield from done.__await__()
        except CancelledError:
            self.cancel()
            raise
        finally:
            drop_callback(self, wake)

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a copy would never complete."""
        raise TypeError(
            f"cannot copy or pickle a {type(self).__name__}: its callable "
            "settles the original alone; pass on the Future itself within "
            "this process, or its result()"
        )


def log_callback(future: StreamFuture, error: Exception) -> None:
    """Log the exception of a callback as concurrent.futures does."""
    getLogger("concurrent.futures").error(
        "exception calling callback for %r", future, exc_info=error
    )


def log_unretrieved(
    error: BaseException, place: tuple[str, int, str] | None
) -> None:
    """Log the exception of a Future from which no code has retrieved it."""
    text = '; it was submitted at\n  File "{}", line {}, in {}'
    where = text.format(*place) if place is not None else ""
    getLogger("pystreams").error(
        "the exception of a callable was never retrieved%s",
        where,
        exc_info=error,
    )


def enter_thread(name: str) -> None:
    """Register the calling thread, which C code started, with threading."""
    thread = threading.current_thread()
    thread.name = name
    if sys.version_info < (3, 13):
        # If a callable forks, its thread becomes the child's main thread, and
        # threading requires that a main thread has this lock.
        thread._set_tstate_lock()  # type: ignore[attr-defined]
    trace, profile = threading.gettrace(), threading.getprofile()
    if trace is not None:
        sys.settrace(trace)
    if profile is not None:
        sys.setprofile(profile)


def leave_thread() -> None:
    """Remove the calling thread from threading's list before it ends."""
    if sys.version_info < (3, 13):
        active = threading._active  # type: ignore[attr-defined]
        active.pop(threading.get_ident(), None)


def _exit_status(error: BaseException | None) -> int:
    """Return the exit status for an error, after reporting it."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def end_child(error: BaseException | None) -> NoReturn:
    """End a child process that a callable forked, when the callable has ended.

    As in multiprocessing's children, no atexit functions are called.
    """
    from . import _shutdown

    status = 1
    try:
        status = _exit_status(error)
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()
        _shutdown()
    finally:
        for file in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                file.flush()
        os._exit(status)
