"""Ways to keep a stream busy for as long as a test needs.

A closed gate may delay every other gate: for example, cudart runs all host
functions on a single thread.  So no test relies on two gates being
independent.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType
from typing import Any, ClassVar, Protocol

from pystreams import _C, Stream

from .device import Device
from .limits import eventually, never


class Gate(Protocol):
    """Work that is pending until open() is called.  A second call does
    nothing."""

    def open(self) -> None: ...


class Launched:
    """Work that the plugin's launch() starts and its complete() ends."""

    def __init__(self, plugin: Any, stream: Stream) -> None:
        self._complete = plugin.complete
        self._id = plugin.launch(stream)

    def open(self) -> None:
        self._complete(self._id)


class HostFunction:
    """A host function that waits for a semaphore."""

    # Keep the semaphores for ever: the backend's thread may still be inside
    # sem_wait after open().
    _kept: ClassVar[list[object]] = []
    _libc = ctypes.CDLL(None)

    def __init__(self, stream: Stream) -> None:
        self._semaphore = (ctypes.c_long * 4)()
        self._kept.append(self._semaphore)
        self._libc.sem_init(self._semaphore, 0, 0)
        wait = ctypes.cast(self._libc.sem_wait, ctypes.c_void_p).value
        assert wait is not None
        _C.launch_host_function(
            stream, wait, ctypes.addressof(self._semaphore)
        )

    def open(self) -> None:
        self._libc.sem_post(self._semaphore)


class Submitted:
    """A submitted callable that waits.  It keeps a gate of the backend
    closed."""

    def __init__(self, stream: Stream) -> None:
        self._go = threading.Event()
        self.future: Future[bool] = stream.submit(self._go.wait)

    def reached(self) -> bool:
        return self.future.running() or self.future.done()

    def open(self) -> None:
        self._go.set()


class Asleep:
    """A sleep, which ends by itself.  It takes half a second if a cycle is a
    nanosecond."""

    def __init__(self, stream: Stream) -> None:
        _C.sleep(stream.device_type, 500_000_000, stream)

    def open(self) -> None:
        pass


Way = Callable[[Stream], Gate]


def find_way(device: Device, plugin: ModuleType | None) -> Way | None:
    """Return the best way that the plugin or the backend offers."""
    if hasattr(plugin, "launch") and hasattr(plugin, "complete"):
        return lambda stream: Launched(plugin, stream)
    if device.members["host_function"]:
        return HostFunction
    if device.members["stream_gate"]:
        return Submitted
    return Asleep if device.members["sleep"] else None


def only_once_open(gate: Gate, question: Callable[[], bool]) -> None:
    """Check that the question returns true once the gate opens, and not
    before."""
    __tracebackhide__ = True
    never(question)
    gate.open()
    eventually(question)


class Busy:
    """The gates of one test."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._gates: list[Gate] = []

    def __call__(self, stream: Stream) -> Gate:
        gate = self._way(stream)
        self._gates.append(gate)
        return gate

    def submit(self, stream: Stream) -> Submitted:
        """Keep a stream busy by a gate of the backend."""
        gate = Submitted(stream)
        self._gates.append(gate)
        return gate

    def open(self) -> None:
        """Open all gates."""
        for gate in self._gates:
            gate.open()
