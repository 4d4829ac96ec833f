"""Tools for the tests of any program that uses streams: emulated CUDA devices,
streams that stay busy, and work that fails."""

from __future__ import annotations

import threading
from contextlib import ContextDecorator, ExitStack
from functools import wraps
from inspect import (
    isasyncgenfunction,
    iscoroutinefunction,
    isgeneratorfunction,
)

from .. import _C, _settings
from .._arguments import integer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, SupportsIndex, TypeVar

    from .._C import _StreamLike

    _F = TypeVar("_F", bound=Callable[..., Any])


class emulated_cuda(ContextDecorator):
    """Emulate CUDA devices with the CPU engine within a with block.

    In the whole process, "cuda" then means the emulated devices, whatever
    CUDA_VISIBLE_DEVICES says.  memory is the size of each device's memory, in
    bytes or as a text such as "512MiB".  "cuda" is the accelerator unless
    PYSTREAMS_ACCELERATOR says otherwise.  On exit, "cuda" means again what it
    meant before, with its current devices and streams, its memory and its
    statistics; in another emulation, all of these begin anew.  Objects made
    inside may be used afterwards, but end captures inside.

    Emulations may be nested.  Leaving one before another that was entered
    later does end it, but raises RuntimeError: let only one thread or task at
    a time emulate.  emulated_cuda() also decorates functions and coroutine
    functions.

    Raises ValueError if devices is not from 1 to 16 or memory is not a size,
    and TypeError if a generator function is decorated; entering the block
    raises RuntimeError while a schedule is explored.
    """

    def __init__(
        self, devices: SupportsIndex = 2, memory: int | str = "1GiB"
    ) -> None:
        if callable(devices):
            raise TypeError(
                "emulated_cuda() expects an int for devices, but got "
                f"{type(devices).__name__}; as a decorator, write "
                "@emulated_cuda(), with parentheses"
            )
        name = "memory of emulated_cuda()"
        self._devices = integer("emulated_cuda", "devices", devices)
        self._memory = _settings.parse_memory(name, str(memory))
        self._entered: list[int] = []

    def _recreate_cm(self) -> emulated_cuda:
        # Give each call of a decorated function an emulation of its own.  So
        # even if calls overlap, each call ends the emulation that it has
        # begun.
        return emulated_cuda(self._devices, self._memory)

    def __call__(self, func: _F) -> _F:
        if isgeneratorfunction(func) or isasyncgenfunction(func):
            raise TypeError(
                "emulated_cuda() cannot decorate a generator function, whose "
                "body runs after the call; write `with emulated_cuda():` in "
                f"{getattr(func, '__qualname__', repr(func))}"
            )
        if not iscoroutinefunction(func):
            return super().__call__(func)

        @wraps(func)
        async def emulated(*args: Any, **kwargs: Any) -> Any:
            with self._recreate_cm():
                return await func(*args, **kwargs)

        return emulated  # type: ignore[return-value]

    def __enter__(self) -> None:
        # Append a placeholder first, because append() may raise MemoryError.
        # Nothing after emulation_enter() raises, so an emulation that was
        # entered can always be left.
        self._entered.append(-1)
        try:
            entered = _C.emulation_enter(self._devices, self._memory)
        except BaseException:
            self._entered.pop()
            raise
        self._entered[-1] = entered

    def __exit__(self, *exc_info: object) -> None:
        _C.emulation_leave(self._entered.pop())


class Emulation:
    """Emulated CUDA devices until close(), or the end of the with block."""

    def __init__(
        self, devices: SupportsIndex = 2, memory: int | str = "1GiB"
    ) -> None:
        self._block = emulated_cuda(devices, memory)
        self._block.__enter__()

    def close(self) -> None:
        """Leave the emulation.  Closing it again does nothing."""
        if self._block._entered:
            self._block.__exit__()

    def __enter__(self) -> Emulation:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _wait_for(released: threading.Event) -> bool:
    while _C.schedule_is_on() and not released.is_set():
        _C.schedule_hold()
    return released.wait()


class hold:
    """hold(stream)

    Keep a stream busy within a with block.  Without the block it does nothing,
    and release() raises RuntimeError; the fixture of this name needs no block.

    Work that is queued on the stream meanwhile starts at the end of the block,
    or at a call of release() of the object that `with` returns.  Works on
    every backend that has Stream.submit(); the work takes one of the package's
    threads.  An explored schedule does not run such work before the release,
    either.
    """

    def __init__(self, stream: _StreamLike) -> None:
        self._stream = _C.as_stream("hold", stream)
        self._released = threading.Event()
        self._released.set()
        self._entered = False

    def __enter__(self) -> hold:
        # Do nothing if this is entered already: the fixture `hold` returns an
        # entered object, which a test may use in a `with` statement.
        if self.released:
            # A release() on another thread must find the latest event.
            before, self._released = self._released, threading.Event()
            try:
                self._stream.submit(_wait_for, self._released)
            except BaseException:
                self._released = before
                raise
            self._entered = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    @property
    def released(self) -> bool:
        """Whether the stream may go on."""
        return self._released.is_set()

    def release(self) -> None:
        """Let the stream go on.  Releasing it again does nothing."""
        if not self._entered:
            raise RuntimeError(
                "release() expects a hold that has begun, but the stream was "
                "not held; write `with hold(stream) as held:`"
            )
        self._released.set()
        _C.schedule_released()


class Holds(ExitStack):
    """Streams that are busy until the end of the with block at the latest."""

    def add(self, stream: _StreamLike) -> hold:
        # Call __enter__ here, not through contextlib, so that reports show the
        # caller.
        return self.push(hold(stream).__enter__())


def fail(
    stream: _StreamLike, error: SupportsIndex | _C.AcceleratorError = 719
) -> None:
    """Queue work that fails with an error, as a kernel with a bug does.

    error is a status (cudaError_t; 719 is an unspecified launch failure), or
    an AcceleratorError with one.  The failure stays with the stream, travels
    through events to streams that wait for it, and is raised by their
    synchronize().  Raises NotImplementedError on a backend without fault
    injection, such as a GPU; ValueError for a status that is not a failure.
    """
    status = (
        error.error_code
        if isinstance(error, _C.AcceleratorError)
        else integer("fail", "error", error, "an int or an AcceleratorError")
    )
    if status is None or not 0 < status < 1000:
        raise ValueError(
            "fail() expects a status from 1 to 999, or an error with one, for "
            f"error, but got {error!r}"
        )
    _C.fail(stream, status)
