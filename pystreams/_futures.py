"""The Future of a submitted callable, and the threads that run them."""

from __future__ import annotations

from concurrent.futures import Future
from itertools import count
from threading import Condition, Thread
from typing import Any

from . import _C

_PARTS = {"_condition": Condition, "_waiters": list, "_done_callbacks": list}


class StreamFuture(Future[Any]):
    """A Future whose parts are made when they are first asked for.

    Most are never waited for, and their lock and lists would cost more than
    all else.  While there is no _condition, nobody but the thread that runs
    the callable has looked at the Future, and it settles it without one.
    """

    __init__ = object.__init__
    _state = "PENDING"
    _result = None
    _exception = None

    def result(self, timeout: float | None = None) -> Any:
        """Return what the callable gave, waiting for it if need be."""
        if _C.linger(self) and self._exception is None:
            return self._result
        return super().result(timeout)

    def __getattr__(self, name: str) -> Any:
        make = _PARTS.get(name)
        if make is None:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )
        return self.__dict__.setdefault(name, make())


_numbers = count(1)


def start_thread() -> None:
    """Start one more thread for callables.

    It is a daemon: at exit the package waits for callables, not for threads.
    """
    name = f"pystreams-{next(_numbers)}"
    Thread(target=_C.run_jobs, name=name, daemon=True).start()
