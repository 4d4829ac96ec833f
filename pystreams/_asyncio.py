"""`await` for streams and events whose work is not done.

An event loop has one file descriptor for all of them, which is written when
work ends, by a thread that never meets Python; no wait has a thread of its
own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from itertools import count
from weakref import WeakKeyDictionary, ref

from . import _C

_Awaitable = _C.Stream | _C.Event


class _Desk:
    """Where a loop's futures wait for their letters."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waiter = _C.Waiter()
        self._tokens = count()
        self._pending: dict[int, tuple[asyncio.Future[None], _Awaitable]] = {}
        self._letters: deque[tuple[int, int]] = deque()
        loop.add_reader(self._waiter.fileno(), self._deliver)

    def watch(
        self, loop: asyncio.AbstractEventLoop, obj: _Awaitable
    ) -> asyncio.Future[None]:
        future = loop.create_future()
        token = next(self._tokens)
        self._pending[token] = future, obj
        try:
            self._ask(token)
        except BaseException:
            del self._pending[token]
            raise
        return future

    def _ask(self, token: int, nap: float = 0.001) -> None:
        """Have a letter sent; later where the stream's queue is full."""
        future, obj = self._pending[token]
        if not self._waiter.watch(obj, token):
            longer = min(2 * nap, 0.1)
            future.get_loop().call_later(nap, self._ask_again, token, longer)

    def _ask_again(self, token: int, nap: float) -> None:
        # Ctrl-C may have had another try planned twice.
        watched = self._pending.get(token)
        if watched is None:
            return
        future, _ = watched
        if future.done():
            del self._pending[token]
            return
        try:
            self._ask(token, nap)
        except Exception as error:
            del self._pending[token]
            future.set_exception(error)
        except BaseException:
            # It ends the loop, which may be run again.
            future.get_loop().call_soon(self._ask_again, token, nap)
            raise

    def _deliver(self) -> None:
        self._letters.extend(self._waiter.take())
        try:
            while self._letters:
                self._settle(*self._letters.popleft())
        finally:
            # Ctrl-C ends the loop, which may be run again.
            if self._letters:
                asyncio.get_running_loop().call_soon(self._deliver)

    def _settle(self, token: int, status: int) -> None:
        # Ctrl-C may have ended watch() once the letter was on its way.
        watched = self._pending.pop(token, None)
        if watched is None or watched[0].done():
            return
        future, obj = watched
        try:
            self._waiter.check(obj, status)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)


# A desk is kept by its loop, which forgets it when it is closed, and its
# futures keep the loop: so nothing here may keep the desk.
_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[_Desk]] = (
    WeakKeyDictionary()
)


def watch(obj: _Awaitable) -> asyncio.Future[None]:
    """Return a future of the running loop for the work that obj has now."""
    loop = asyncio.get_running_loop()
    known = _desks.get(loop)
    desk = known() if known is not None else None
    if desk is None:
        desk = _Desk(loop)
        _desks[loop] = ref(desk)
    return desk.watch(loop, obj)


def pending(obj: _Awaitable) -> Generator[None, None, None]:
    """What obj.__await__() returns while its work is not done."""
    return watch(obj).__await__()
