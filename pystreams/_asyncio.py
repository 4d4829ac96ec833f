"""`await` for streams and events whose work is not done.

An event loop monitors one file descriptor for all of them.  A thread that
runs no Python code writes to it when work completes, so that no wait needs a
thread of its own.  A wait that is cancelled leaves no registration behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from functools import partial
from itertools import count
from weakref import WeakKeyDictionary, ref

from . import _C

_Awaitable = _C.Stream | _C.Event


class _LoopState:
    """The Waiter of a loop, and the callables that receive its messages."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.waiter = _C.Waiter()
        self._tokens = count()
        self._receivers: dict[int, Callable[[int, int], None]] = {}
        # Do not use the context of the first task that awaits: the loop would
        # keep that context.
        Context().run(loop.add_reader, self.waiter.fileno(), self._deliver)

    def new_token(self, receive: Callable[[int, int], None]) -> int:
        """Return a token; receive(token, status) will get its message."""
        token = next(self._tokens)
        self._receivers[token] = receive
        return token

    def forget(self, token: int) -> None:
        """Drop the message of a token, if it has not been received."""
        if self._receivers.pop(token, None) is not None:
            self.waiter.cancel(token)

    def _deliver(self) -> None:
        # A message is removed only after its receiver has been called.  If
        # Ctrl-C or a MemoryError ends this early, the descriptor stays
        # readable, so the loop calls this again.
        while (message := self.waiter.first()) is not None:
            token, status = message
            receive = self._receivers.get(token)
            if receive is not None:
                receive(token, status)
                self._receivers.pop(token, None)
            self.waiter.cancel(token)


# Weak references only.  A loop keeps its state alive until the loop is closed.
# So do the waits on the loop, which also keep the loop itself alive.
_states: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[_LoopState]] = (
    WeakKeyDictionary()
)


def _state_of(loop: asyncio.AbstractEventLoop) -> _LoopState:
    known = _states.get(loop)
    state = known() if known is not None else None
    if state is None:
        state = _LoopState(loop)
        _states[loop] = ref(state)
    return state


def _converted(error: StopIteration) -> RuntimeError:
    converted = RuntimeError("a callable raised StopIteration")
    converted.__cause__ = error
    return converted


def _settle(
    waiter: _C.Waiter,
    future: asyncio.Future[None],
    obj: _Awaitable,
    begun: tuple[int, int, int, int] | None,
    token: int,
    status: int,
) -> None:
    if future.done():
        return
    _C.timeline_await_end(begun)
    try:
        waiter.check(obj, status)
    except StopIteration as error:
        # A Future refuses StopIteration, so convert it as a coroutine does.
        future.set_exception(_converted(error))
    except (KeyboardInterrupt, SystemExit) as error:
        future.set_exception(error)
        raise
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)


def _poll(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]
) -> None:
    """Let the explored schedule run work until the future is done, in turn
    with the loop's other tasks."""
    if not future.done() and _C.schedule_is_on():
        _C.schedule_poll()
        loop.call_soon(_poll, loop, future)


def pending(obj: _Awaitable) -> Generator[None, None, None]:
    """Return the iterator of obj.__await__() if its work is pending."""
    loop = asyncio.get_running_loop()
    state, future = _state_of(loop), loop.create_future()
    begun = _C.timeline_await_begin(obj)
    token = state.new_token(partial(_settle, state.waiter, future, obj, begun))
    try:
        state.waiter.register(obj, token)
        if _C.schedule_is_on():
            loop.call_soon(_poll, loop, future)
        yield from future.__await__()
    finally:
        state.forget(token)
        if future.cancelled() or not future.done():
            _C.timeline_await_end(begun)


class Inbox:
    """Tokens for the running loop, and a queue of the messages for them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._state = _state_of(self._loop)
        self._tokens: list[int] = []
        self._messages: list[tuple[int, int]] = []
        self._arrival: asyncio.Future[None] | None = None
        self.waiter = self._state.waiter

    def __iter__(self) -> Inbox:
        return self

    def __next__(self) -> int:
        token = self._state.new_token(self._receive)
        self._tokens.append(token)
        return token

    def _receive(self, token: int, status: int) -> None:
        self._messages.append((token, status))
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def wait(self, timeout: float | None) -> list[tuple[int, int]]:
        """Return the messages since the last call, or [] if timeout seconds
        pass without one."""
        if not self._messages:
            self._arrival = self._loop.create_future()
            if _C.schedule_is_on():
                self._loop.call_soon(_poll, self._loop, self._arrival)
            begun = _C.timeline_await_begin(None)
            try:
                await asyncio.wait([self._arrival], timeout=timeout)
            finally:
                _C.timeline_await_end(begun)
        messages, self._messages = self._messages, []
        return messages

    def __enter__(self) -> None: ...

    def __exit__(self, *exc_info: object) -> None:
        for token in self._tokens:
            self._state.forget(token)
