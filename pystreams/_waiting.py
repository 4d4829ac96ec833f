"""Waiting for several streams, events and futures at once."""

from __future__ import annotations

from math import inf, isnan
from time import monotonic

from . import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from concurrent.futures import Future
    from typing import Any, Generic, TypeVar

    _Waitable = _C.Stream | _C.Event | Future[Any]
    _W = TypeVar("_W", bound=_Waitable)
else:
    _W = None

    class Generic:
        """For typing's, which takes longer to import than this package."""

        __slots__ = ()

        def __class_getitem__(cls, item):
            return cls


class DoneAndNotDone(tuple["set[_W]", "set[_W]"], Generic[_W]):
    """What wait() returns: the sets done and not_done."""

    __slots__ = ()

    @property
    def done(self) -> set[_W]:
        return self[0]

    @property
    def not_done(self) -> set[_W]:
        return self[1]

    def __repr__(self) -> str:
        return f"DoneAndNotDone(done={self.done}, not_done={self.not_done})"


def _check(objects: Iterable[_W]) -> list[_W]:
    """The objects, each once, after a look at what they are."""
    from concurrent.futures import Future

    found = list(dict.fromkeys(objects))
    for obj in found:
        if not isinstance(obj, (_C.Stream, _C.Event, Future)):
            raise TypeError(
                "expected Streams, Events and Futures, "
                f"but got {type(obj).__name__}"
            )
    return found


def _failed(obj: _Waitable) -> bool:
    """Whether the work that is done has failed."""
    if not isinstance(obj, (_C.Stream, _C.Event)):
        return not obj.cancelled() and obj.exception() is not None
    try:
        obj.query()
    except RuntimeError:
        return True
    return False


# What is captured is never done: cudaErrorStreamCaptureUnsupported to
# cudaErrorStreamCaptureWrongThread.
_CAPTURED = range(900, 909)


def _is_done(obj: _Waitable) -> bool:
    """Whether there is nothing to wait for, without waiting to be told."""
    if not isinstance(obj, (_C.Stream, _C.Event)):
        return obj.done()
    try:
        return obj.query()
    except _C.AcceleratorError as error:
        if error.error_code in _CAPTURED:
            raise
        return True


# How long a full queue is left alone.
_NAP = 0.005


class _Box(Generic[_W]):
    """Objects, and who of them is done."""

    def __init__(self, objects: list[_W]) -> None:
        self._waiter = _C.Waiter()
        self._objects = objects
        self._unwatched = list(range(len(objects)))
        self._watch_all()

    def _watch_all(self) -> None:
        self._unwatched = [i for i in self._unwatched if not self._watch(i)]

    def _watch(self, token: int) -> bool:
        """False where a stream's queue has no room for the letter."""
        obj = self._objects[token]
        if _is_done(obj):
            self._waiter.post(token)
        elif isinstance(obj, (_C.Stream, _C.Event)):
            return self._waiter.watch(obj, token)
        else:
            post = self._waiter.post
            obj.add_done_callback(lambda _: post(token))
        return True

    def wait(self, deadline: float | None) -> list[_W]:
        """Those that are done since the last call; none at the deadline."""
        while True:
            left = inf if deadline is None else deadline - monotonic()
            nap = min(left, _NAP) if self._unwatched else left
            told = self._waiter.wait(nap)
            self._watch_all()
            if told or nap == left:
                told += self._waiter.take()
                return [self._objects[i] for i, _ in told]


def _deadline(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    try:
        deadline = monotonic() + timeout
    except TypeError:
        raise TypeError(
            "timeout must be a number of seconds or None, got "
            f"{type(timeout).__name__}"
        ) from None
    if isnan(deadline):
        raise ValueError("timeout must be a number of seconds, got nan")
    return deadline


def wait(
    objects: Iterable[_W],
    timeout: float | None = None,
    return_when: str = "ALL_COMPLETED",
) -> DoneAndNotDone[_W]:
    """Wait until work is done, as concurrent.futures.wait does.

    objects are Streams (the work they have now), Events (their latest
    records) and Futures.  Work that failed is done; synchronize() raises its
    failure.  Returns the sets (done, not_done), after timeout seconds in any
    case.  Blocks with the GIL released; Ctrl-C ends it, and the work goes on.
    """
    if return_when not in (
        "ALL_COMPLETED",
        "FIRST_COMPLETED",
        "FIRST_EXCEPTION",
    ):
        raise ValueError(f"Invalid return condition: {return_when!r}")
    found = _check(objects)
    deadline = _deadline(timeout)
    done: set[_W] = set()
    if timeout is not None and timeout <= 0:
        # A program that polls must not leave a letter to come each time.
        done.update(filter(_is_done, found))
        return DoneAndNotDone((done, set(found) - done))
    box = _Box(found)
    while len(done) < len(found):
        ended = box.wait(deadline)
        done.update(ended)
        if (
            not ended
            or return_when == "FIRST_COMPLETED"
            or (return_when == "FIRST_EXCEPTION" and any(map(_failed, ended)))
        ):
            break
    return DoneAndNotDone((done, set(found) - done))


class as_completed(Generic[_W]):
    """Iterate over objects in the order in which their work is done.

    objects are as wait() takes them.  With `for`, waiting blocks as wait()
    does; `async for` leaves the event loop free.  Raises TimeoutError once
    timeout seconds have passed since the start.
    """

    def __init__(
        self, objects: Iterable[_W], timeout: float | None = None
    ) -> None:
        self._objects = _check(objects)
        self._deadline = _deadline(timeout)

    def _late(self, left: int) -> TimeoutError:
        return TimeoutError(
            f"{left} (of {len(self._objects)}) objects unfinished"
        )

    def __iter__(self) -> Iterator[_W]:
        box = _Box(self._objects)
        left = len(self._objects)
        while left:
            ended = box.wait(self._deadline)
            if not ended:
                raise self._late(left)
            left -= len(ended)
            yield from ended

    async def __aiter__(self) -> AsyncIterator[_W]:
        import asyncio

        from ._asyncio import watch

        owners = {
            watch(obj)
            if isinstance(obj, (_C.Stream, _C.Event))
            else asyncio.wrap_future(obj): obj
            for obj in self._objects
        }
        for future in owners:
            # The failure is the object's to tell, not this future's.
            future.add_done_callback(lambda f: f.cancelled() or f.exception())
        pending = set(owners)
        while pending:
            timeout = None
            if self._deadline is not None:
                timeout = max(0, self._deadline - monotonic())
            ended, pending = await asyncio.wait(
                pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if not ended:
                raise self._late(len(pending))
            for future in ended:
                yield owners[future]
