"""Tools for the tests of any program that uses streams: emulated CUDA devices,
streams that stay busy, and work that fails."""

from __future__ import annotations

import threading
from contextlib import ContextDecorator, ExitStack

from .. import _C, _settings
from .._arguments import integer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import SupportsIndex

    from .._C import _StreamLike

_CUDA = 1


class emulated_cuda(ContextDecorator):
    """Emulate CUDA devices by the CPU engine within a with block.

    In the whole process, "cuda" then means the emulated devices, whatever
    CUDA_VISIBLE_DEVICES says.  memory is that of each device, in bytes or as a
    text such as "512MiB".  "cuda" is the accelerator unless
    PYSTREAMS_ACCELERATOR says otherwise.  On exit, "cuda" means again what it
    meant before, with its current devices and streams, its memory and its
    statistics; in another emulation, all of these begin anew.  Objects made
    inside may be used afterwards; end captures inside.

    Emulations may be nested.  Raises ValueError for a number of devices not
    from 1 to 16 or for no size of memory; entering one raises RuntimeError
    while a schedule is explored.  It is a decorator, too.
    """

    def __init__(
        self, devices: SupportsIndex = 2, memory: int | str = "1GiB"
    ) -> None:
        name = "memory of emulated_cuda()"
        self._devices = integer("emulated_cuda", "devices", devices)
        self._memory = _settings.parse_memory(name, str(memory))
        self._entered: list[tuple[int, int, int]] = []

    def __enter__(self) -> None:
        # Append a placeholder first, because append() may raise MemoryError.
        # Nothing after emulation_enter() can, so that what was entered can
        # always be left.
        self._entered.append((-1, -1, -1))
        try:
            entered = _C.emulation_enter(self._devices, self._memory)
        except BaseException:
            self._entered.pop()
            raise
        self._entered[-1] = entered

    def __exit__(self, *exc_info: object) -> None:
        entered = self._entered[-1]
        try:
            if _C.emulation_current() == entered[0]:
                _reset_currents(self._devices)
        finally:
            # This raises if an emulation that was entered later is still
            # active.  Then self._entered keeps the entry for another try.
            _C.emulation_leave(*entered)
            self._entered.pop()


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


def _reset_currents(devices: int) -> None:
    """Leave the streams and the device that are current in this thread."""
    if not _C.is_initialized(_CUDA):
        return
    for index in range(devices):
        default = _C.default_stream(_CUDA, index)
        if _C.current_stream(_CUDA, index) != default:
            _C.set_stream(default)
    _C.set_device(_CUDA, 0)


def _wait_for(released: threading.Event) -> bool:
    while _C.schedule_is_on() and not released.is_set():
        _C.schedule_hold()
    return released.wait()


class hold:
    """hold(stream)

    Keep a stream busy within a with block.

    Work that is queued on the stream meanwhile starts at the end of the block,
    or at a call of release() of the object that `with` returns.  Works on
    every backend that has Stream.submit(); the work takes one of the package's
    threads.  A schedule that is explored runs no such work before the
    release, either.
    """

    def __init__(self, stream: _StreamLike) -> None:
        self._stream = _C.as_stream("hold", stream)
        self._released = threading.Event()
        self._released.set()

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
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    @property
    def released(self) -> bool:
        """Whether the stream may go on."""
        return self._released.is_set()

    def release(self) -> None:
        """Let the stream go on.  Releasing it again does nothing."""
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
    injection, such as a GPU; ValueError for a status that is no failure.
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
