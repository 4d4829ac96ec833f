"""Callbacks for operations on streams, events and memory, of any device.

A callback runs on the thread that makes the traced call, with none of the
library's locks held.  It may use pystreams itself; its own calls are not
traced.
"""

from __future__ import annotations

from operator import itemgetter

from . import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["KINDS", "Record", "Subscription", "subscribe"]

# The kinds, in the order of core's enum ps_trace_kind, and the fields that a
# Record of each kind has.
_FIELDS = {
    "event_creation": ("event",),
    "event_deletion": ("event",),
    "event_record": ("event", "stream"),
    "event_wait": ("event", "stream"),
    "event_synchronization": ("event",),
    "memory_allocation": ("data_ptr",),
    "memory_deallocation": ("data_ptr",),
    "stream_creation": ("stream",),
    "stream_synchronization": ("stream",),
    "device_synchronization": (),
}

KINDS = tuple(_FIELDS)


class Record(tuple[object, ...]):
    """The argument of a callback: a kind, a device and raw handles.

    A callback runs after a creation, record, wait or allocation, and before a
    deletion, deallocation or synchronization.  Fields that the kind does not
    have are None; the default stream is 0.  If there is a stream, the device
    is the stream's.
    """

    __slots__ = ()

    # Not a NamedTuple, because importing typing takes longer than importing
    # this package.
    def __new__(
        cls,
        kind: str,
        device: _C.device,
        event: int | None = None,
        stream: int | None = None,
        data_ptr: int | None = None,
    ) -> Record:
        return tuple.__new__(cls, (kind, device, event, stream, data_ptr))

    kind: property = property(itemgetter(0))
    device: property = property(itemgetter(1))
    event: property = property(itemgetter(2))
    stream: property = property(itemgetter(3))
    data_ptr: property = property(itemgetter(4))

    def __repr__(self) -> str:
        return (
            f"Record(kind={self.kind!r}, device={self.device!r}, "
            f"event={self.event!r}, stream={self.stream!r}, "
            f"data_ptr={self.data_ptr!r})"
        )


class Subscription:
    """The result of subscribe(); a context manager that closes itself."""

    __slots__ = ("_fn",)

    def __init__(self, fn: Callable[[Record], object]) -> None:
        self._fn = fn

    def close(self) -> None:
        """Stop calling fn.

        A call on another thread may still be running.  Closing twice is
        harmless.
        """
        _C.set_trace(_dispatch, _subscriptions.pop(self, 0), -1)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


# Each value is a bit mask of the subscription's kinds.  No lock is needed:
# each change is a single operation, so finalizers, signal handlers and forked
# children always find a consistent dict.
_subscriptions: dict[Subscription, int] = {}

_devices: dict[tuple[int, int], _C.device] = {}


def subscribe(
    fn: Callable[[Record], object], kinds: str | Iterable[str] | None = None
) -> Subscription:
    """Call fn(record) at each operation of the given kinds, by default all.

    fn runs on the thread of the operation, before or after it as Record says,
    perhaps on several threads at once.  An Exception that it raises is logged
    to "pystreams.trace" and not propagated.  Lasts until the Subscription is
    closed.  Raises TypeError if fn is not callable, or if kinds is
    neither a str nor an iterable, ValueError for a kind that is not in KINDS.
    """
    if not callable(fn):
        raise TypeError(
            "subscribe() expects a callable for fn, but got "
            f"{type(fn).__name__}"
        )
    names = (kinds,) if isinstance(kinds, str) else kinds
    if names is not None and not hasattr(names, "__iter__"):
        raise TypeError(
            "subscribe() expects a str, an iterable of str or None for kinds, "
            f"but got {type(names).__name__}"
        )
    wanted = 0
    for name in KINDS if names is None else names:
        if name not in KINDS:
            raise ValueError(
                f"subscribe() expects kinds among {', '.join(KINDS)}, "
                f"but got {name!r}"
            )
        wanted |= 1 << KINDS.index(name)
    subscription = Subscription(fn)
    _C.set_trace(_dispatch, wanted, 1)
    _subscriptions[subscription] = wanted
    return subscription


def _device(device_type: int, index: int) -> _C.device:
    device = _devices.get((device_type, index))
    if device is None:
        names = {number: name for name, number in _C.backends()}
        device = _C.device(names[device_type], index)
        _devices[device_type, index] = device
    return device


def _dispatch(
    kind: int, device_type: int, index: int, first: int, second: int
) -> None:
    """Call the subscribers to a kind; core's trace points call this."""
    name = KINDS[kind]
    fields = dict(zip(_FIELDS[name], (first, second), strict=False))
    record = Record(name, _device(device_type, index), **fields)
    for subscription, wanted in _subscriptions.copy().items():
        # Another callback may have closed the subscription meanwhile.
        if wanted >> kind & 1 and subscription in _subscriptions:
            try:
                subscription._fn(record)
            except Exception:
                import logging

                logging.getLogger(__name__).exception(
                    "%r failed on %r", subscription._fn, record
                )
