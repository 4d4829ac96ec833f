"""Waiting for several streams, events and futures at once."""

from __future__ import annotations

from itertools import count
from math import isnan
from time import monotonic

from . import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from concurrent.futures import Future
    from typing import Any, Generic, TypeVar

    from typing_extensions import Self

    _Waitable = _C.Stream | _C.Event | Future[Any]
    _W = TypeVar("_W", bound=_Waitable)
else:
    _W = None

    class Generic:
        """A substitute for typing.Generic: importing typing takes longer than
        importing this package."""

        __slots__ = ()

        def __class_getitem__(cls, item):
            return cls


class DoneAndNotDone(tuple["set[_W]", "set[_W]"], Generic[_W]):
    """The result of wait(): the sets done and not_done."""

    __slots__ = ()

    @property
    def done(self) -> set[_W]:
        return self[0]

    @property
    def not_done(self) -> set[_W]:
        return self[1]

    def __repr__(self) -> str:
        return f"DoneAndNotDone(done={self.done}, not_done={self.not_done})"


def drop_callback(future: Any, callback: Callable[[Any], object]) -> None:
    """Remove a callback from a Future that is not done."""
    with future._condition:
        # Do not change the list of a done Future: another thread may be
        # calling its callbacks.
        if not future.done() and callback in future._done_callbacks:
            future._done_callbacks.remove(callback)


def _check(function: str, objects: Iterable[_W]) -> list[_W]:
    """Return the objects without duplicates.  Raises TypeError for an object
    of another type."""
    from concurrent.futures import Future

    expected = (
        f"{function}() expects an iterable of Streams, Events and Futures for "
        "objects, but "
    )
    if not hasattr(objects, "__iter__"):
        raise TypeError(f"{expected}got {type(objects).__name__}")
    found = list(objects)
    for obj in found:
        if not isinstance(obj, (_C.Stream, _C.Event, Future)):
            raise TypeError(f"{expected}it has {type(obj).__name__}")
    return list(dict.fromkeys(found))


def _failed(obj: _Waitable) -> bool:
    """Return whether completed work has failed."""
    if not isinstance(obj, (_C.Stream, _C.Event)):
        return not obj.cancelled() and obj.exception() is not None
    try:
        obj.query()
    except RuntimeError:
        return True
    return False


# The statuses cudaErrorStreamCaptureUnsupported to
# cudaErrorStreamCaptureWrongThread.  Captured work never completes.
_CAPTURED = range(900, 909)


def _is_done(obj: _Waitable) -> bool:
    """Return whether the work has completed, without blocking."""
    if not isinstance(obj, (_C.Stream, _C.Event)):
        return obj.done()
    try:
        return obj.query()
    except _C.AcceleratorError as error:
        if error.error_code in _CAPTURED:
            raise
        return True


class Registered(Generic[_W]):
    """Objects that are registered with a Waiter, each under a token.

    When this is closed or deleted, the registrations end.  A Future that is
    done keeps its callback, which then does nothing.
    """

    _callbacks: Any = ()

    def __init__(
        self, waiter: _C.Waiter, tokens: Iterator[int], objects: list[_W]
    ) -> None:
        self._waiter = waiter
        self._callbacks = []
        self._objects: dict[int, _W] = {}
        self._moments: dict[_W, object] = {}
        for obj in objects:
            self._register(next(tokens), obj)

    def register_unaware(
        self, tokens: Iterator[int], objects: list[_W]
    ) -> None:
        """Register objects.

        The race detector treats an object's completion as known to the
        program only after know().
        """
        for obj in objects:
            if isinstance(obj, (_C.Stream, _C.Event)):
                self._moments[obj] = _C.races_moment(obj)
        try:
            _C.races_ignore(True)
            for obj in objects:
                self._register(next(tokens), obj)
        finally:
            _C.races_ignore(False)

    def know(self, obj: _W) -> None:
        if not isinstance(obj, (_C.Stream, _C.Event)):
            obj.done()
        elif self._moments[obj] is not None:
            _C.races_reached(self._moments[obj])

    def _register(self, token: int, obj: _W) -> None:
        self._objects[token] = obj
        if _is_done(obj):
            self._waiter.post(token)
        elif isinstance(obj, (_C.Stream, _C.Event)):
            self._waiter.register(obj, token)
        else:
            # This import costs nothing: a Future exists, so its module has
            # imported functools already.
            from functools import partial

            self._waiter.expect(token)
            callback = partial(self._waiter.post, token)
            self._callbacks.append((obj, callback))
            obj.add_done_callback(callback)

    def take(self, messages: list[tuple[int, int]]) -> list[_W]:
        """Return the objects that the messages report as done."""
        left = self._objects
        return [left.pop(token) for token, _ in messages if token in left]

    def close(self) -> None:
        while self._callbacks:
            future, callback = self._callbacks[-1]
            drop_callback(future, callback)
            self._callbacks.pop()
        for token in self._objects:
            self._waiter.cancel(token)
        # A done Future keeps its callback, which refers to the Waiter.
        self._objects.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Ctrl-C may have interrupted close(), or prevented its call.
        if self._callbacks:
            self.close()


def _deadline(function: str, timeout: float | None) -> float | None:
    if timeout is None:
        return None
    try:
        deadline = monotonic() + timeout
    except TypeError:
        raise TypeError(
            f"{function}() expects a number of seconds or None for timeout, "
            f"but got {type(timeout).__name__}"
        ) from None
    if isnan(deadline):
        raise ValueError(
            f"{function}() expects a number of seconds for timeout, "
            "but got nan"
        )
    return deadline


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - monotonic()


_CONDITIONS = ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION")


def wait(
    objects: Iterable[_W],
    timeout: float | None = None,
    return_when: str = "ALL_COMPLETED",
) -> DoneAndNotDone[_W]:
    """Wait until work is done, as concurrent.futures.wait does.

    objects are Streams (the work they have now), Events (their latest
    records) and Futures.  Failed work counts as done; synchronize() raises
    its error.  Returns the sets (done, not_done), after timeout seconds at
    the latest.  Blocks with the GIL released.  Ctrl-C ends the wait, not the
    work.
    """
    if return_when not in _CONDITIONS:
        raise ValueError(
            f"wait() expects one of {', '.join(_CONDITIONS)} for return_when, "
            f"but got {return_when!r}"
        )
    found = _check("wait", objects)
    deadline = _deadline("wait", timeout)
    done: set[_W] = set()
    if timeout is not None and timeout <= 0:
        done.update(filter(_is_done, found))
        return DoneAndNotDone((done, set(found) - done))
    waiter = _C.Waiter()
    with Registered(waiter, count(), found) as registered:
        waiter._objects = registered._objects
        while len(done) < len(found):
            ended = registered.take(waiter.wait(_left(deadline)))
            done.update(ended)
            if (
                not ended
                or return_when == "FIRST_COMPLETED"
                or (
                    return_when == "FIRST_EXCEPTION"
                    and any(map(_failed, ended))
                )
            ):
                break
    return DoneAndNotDone((done, set(found) - done))


class as_completed(Generic[_W]):
    """Iterate over objects in the order in which their work completes.

    objects are those that wait() takes.  With `for`, waiting blocks as wait()
    does; `async for` leaves the event loop free.  Raises TimeoutError if
    timeout seconds have passed since the call to as_completed().
    """

    def __init__(
        self, objects: Iterable[_W], timeout: float | None = None
    ) -> None:
        self._objects = _check("as_completed", objects)
        self._deadline = _deadline("as_completed", timeout)

    def _completed(
        self, registered: Registered[_W], messages: list[tuple[int, int]]
    ) -> Iterator[_W]:
        """Yield the objects that the messages report as done."""
        ended = registered.take(messages)
        if not ended:
            from ._explain import explain_timeout

            raise TimeoutError(
                f"{len(registered._objects)} (of {len(self._objects)}) "
                "objects unfinished\n"
                f"{explain_timeout(('object', registered))}"
            )
        for obj in ended:
            registered.know(obj)
            yield obj

    def __iter__(self) -> Iterator[_W]:
        waiter = _C.Waiter()
        registered: Registered[_W] = Registered(waiter, count(), [])
        waiter._objects = registered._objects
        with registered:
            registered.register_unaware(count(), self._objects)
            while registered._objects:
                messages = waiter.wait(_left(self._deadline))
                yield from self._completed(registered, messages)

    async def __aiter__(self) -> AsyncIterator[_W]:
        from ._asyncio import Inbox

        inbox = Inbox()
        registered: Registered[_W] = Registered(inbox.waiter, inbox, [])
        with inbox, registered:
            registered.register_unaware(inbox, self._objects)
            while registered._objects:
                messages = await inbox.wait(_left(self._deadline))
                for obj in self._completed(registered, messages):
                    yield obj
