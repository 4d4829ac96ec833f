"""Callbacks for operations on CUDA devices, under torch's names.

A callback gets raw handles as ints.  It runs like a callback of
pystreams.trace, but only between pystreams._C._activate_gpu_trace() and
_deactivate_gpu_trace().
"""

from __future__ import annotations

from _thread import RLock
from functools import partial

from ..trace import Record, Subscription, subscribe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_lock = RLock()
_callbacks: list[tuple[partial[None], str]] = []
# A Subscription for each callback while the trace is on; None while it is off.
_subscriptions: list[Subscription] | None = None


def _call(cb: Callable[..., object], record: Record) -> None:
    if record.device.type == "cuda":
        cb(*(handle for handle in record[2:] if handle is not None))


def _register(cb: Callable[..., object], kind: str) -> None:
    if not callable(cb):
        raise TypeError(
            f"register_callback_for_{kind}() expects a callable, "
            f"but got {cb!r}"
        )
    entry = partial(_call, cb), kind
    with _lock:
        _callbacks.append(entry)
        if _subscriptions is not None:
            _subscriptions.append(subscribe(*entry))


def _activate() -> None:
    global _subscriptions
    with _lock:
        if _subscriptions is None:
            _subscriptions = [subscribe(*entry) for entry in _callbacks]


def _deactivate() -> None:
    global _subscriptions
    with _lock:
        for subscription in _subscriptions or ():
            subscription.close()
        _subscriptions = None


def register_callback_for_event_creation(cb: Callable[[int], object]) -> None:
    """Call cb(event) after an event is created."""
    _register(cb, "event_creation")


def register_callback_for_event_deletion(cb: Callable[[int], object]) -> None:
    """Call cb(event) before an event is destroyed."""
    _register(cb, "event_deletion")


def register_callback_for_event_record(
    cb: Callable[[int, int], object],
) -> None:
    """Call cb(event, stream) after an event is recorded."""
    _register(cb, "event_record")


def register_callback_for_event_wait(
    cb: Callable[[int, int], object],
) -> None:
    """Call cb(event, stream) after a stream is made to wait for an event."""
    _register(cb, "event_wait")


def register_callback_for_event_synchronization(
    cb: Callable[[int], object],
) -> None:
    """Call cb(event) before a thread waits for an event."""
    _register(cb, "event_synchronization")


def register_callback_for_memory_allocation(
    cb: Callable[[int], object],
) -> None:
    """Call cb(data_ptr) after device memory is allocated."""
    _register(cb, "memory_allocation")


def register_callback_for_memory_deallocation(
    cb: Callable[[int], object],
) -> None:
    """Call cb(data_ptr) before device memory is freed."""
    _register(cb, "memory_deallocation")


def register_callback_for_stream_creation(cb: Callable[[int], object]) -> None:
    """Call cb(stream) after a stream is created."""
    _register(cb, "stream_creation")


def register_callback_for_stream_synchronization(
    cb: Callable[[int], object],
) -> None:
    """Call cb(stream) before a thread waits for a stream."""
    _register(cb, "stream_synchronization")


def register_callback_for_device_synchronization(
    cb: Callable[[], object],
) -> None:
    """Call cb() before a thread waits for a device."""
    _register(cb, "device_synchronization")
