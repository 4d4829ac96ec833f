"""The device type under test, and the objects that tests create on it."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

import pystreams
from pystreams import _C, Buffer, Event, Stream

# The suffix of a key of Device.members that says whether the member supports
# limits.
LIMIT = " with a limit"
# The status of injected failures.
FAILURE = 719


def fails(function: Callable[[], object], status: int = FAILURE) -> None:
    """Check that the call raises the failure."""
    __tracebackhide__ = True
    try:
        function()
    except pystreams.AcceleratorError as error:
        assert error.error_code == status
    else:
        pytest.fail("no failure was returned")


class Device:
    """A device type by name, with one or more devices."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.type: int = dict(_C.backends())[name]
        self.members: dict[str, bool] = _C.backend_members(self.type)
        for member, limited in _C.takes_limits(self.type).items():
            self.members[member + LIMIT] = limited
        self.count: int = _C.device_count(self.type)

    @property
    def current(self) -> int:
        """The calling thread's current device."""
        return _C.current_device(self.type)

    def stream(
        self, index: int = 0, priority: int = 0, blocking: bool = False
    ) -> Stream:
        place = f"{self.name}:{index}"
        return Stream(place, priority=priority, blocking=blocking)

    def raw_stream(self) -> tuple[Stream, Callable[[], None]]:
        """A native stream that core does not keep for reuse, and a function
        that destroys it."""
        status, handle = _C.raw_stream_create(self.type)
        assert status == 0

        def destroy() -> None:
            assert _C.raw_stream_destroy(self.type, handle) == 0

        return pystreams.ExternalStream(handle, self.name), destroy

    def default_stream(self, index: int = 0) -> Stream:
        return _C.default_stream(self.type, index)

    def event(self, timed: bool = False, blocking: bool = False) -> Event:
        return Event(self.name, enable_timing=timed, blocking=blocking)

    def mark(self, stream: Stream) -> Event:
        """A new event, recorded on the stream."""
        event = self.event()
        event.record(stream)
        return event

    def empty(self, nbytes: int, stream: Stream) -> Buffer:
        return pystreams.empty(nbytes, device=stream.device, stream=stream)

    def pinned(self, nbytes: int) -> Buffer:
        return pystreams.empty(nbytes, device=self.name, pin_memory=True)

    def synchronize(
        self, index: int = 0, timeout: float | None = None
    ) -> None:
        _C.synchronize(self.type, index, timeout)

    def settle(self) -> None:
        """Wait for all work, and discard failures that were not reported."""
        gc.collect()
        for index in range(self.count):
            for _ in range(10):
                try:
                    self.synchronize(index)
                except pystreams.AcceleratorError:
                    continue
                except NotImplementedError:
                    pass
                break
