"""The current accelerator under torch.accelerator's names.

It is `cuda` if there is a usable GPU, else `cpu`, unless the environment
variable PYSTREAMS_ACCELERATOR names another device type; if that type is not
available, every function here raises RuntimeError with the reason.  A device
argument is an int, a str or a pystreams.device; None and a negative int mean
the calling thread's current device.
"""

from __future__ import annotations

from . import _C
from ._C import DeviceContext as _DeviceContext
from ._C import StreamContext as _StreamContext
from ._C import default_type as _default_type
from .cuda._graphs import Graph as _Graph
from .cuda._graphs import _keeps, _mode, _pool
from .cuda._graphs import graph_pool_handle as generate_graph_pool_handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os

    from typing_extensions import Self

    from ._C import Stream, _HasTypeAndIndex, _StreamLike, device
    from .cuda._graphs import _Pool

    _Device = int | str | device | _HasTypeAndIndex | None

__all__ = [
    "Graph",
    "current_accelerator",
    "current_device_idx",
    "current_device_index",
    "current_stream",
    "default_stream",
    "device_count",
    "device_index",
    "empty_cache",
    "empty_host_cache",
    "generate_graph_pool_handle",
    "get_memory_info",
    "is_available",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_device_idx",
    "set_device_index",
    "set_stream",
    "stream",
    "synchronize",
]


def _name(type: int) -> str:
    for name, number in _C.backends():
        if number == type:
            return name
    raise RuntimeError(f"No backend has device type {type}")


def _check(found: str, type: int) -> None:
    wanted = _name(type)
    if found != wanted:
        raise ValueError(
            f"{found} doesn't match the current accelerator {wanted}."
        )


def _place(
    function: str, device: _Device, require_index: bool = False
) -> tuple[int, int]:
    """Return the accelerator's type and the index that the argument names."""
    type = _default_type()
    named = (
        device if isinstance(device, str) else getattr(device, "type", None)
    )
    # _C.device_index() refuses any other object, and its error names the
    # function.
    if isinstance(named, str):
        _check(_C.device(named).type, type)
    return type, _C.device_index(type, device, require_index, function)


def device_count() -> int:
    """Return how many devices the accelerator has.

    Initializes nothing.
    """
    return _C.device_count(_default_type())


def is_available() -> bool:
    """Return whether the accelerator has a device to use.

    Returns False if PYSTREAMS_ACCELERATOR names an accelerator that cannot be
    used.  Initializes nothing.
    """
    try:
        return device_count() > 0
    except RuntimeError:
        return False


def current_accelerator(check_available: bool = False) -> device | None:
    """Return the accelerator as a device without an index.

    With check_available, returns None if the accelerator has no device to use.
    """
    type = _default_type()
    if check_available and _C.device_count(type) == 0:
        return None
    return _C.device(_name(type))


def current_device_index() -> int:
    """Return the index of the calling thread's current device."""
    return _C.current_device(_default_type())


def set_device_index(device: _Device, /) -> None:
    """Make a device the calling thread's current one.

    A negative index does nothing.  May block.  Raises ValueError for a device
    of another type or without an index, AcceleratorError for an index out of
    range.
    """
    if isinstance(device, int) and device < 0:
        _default_type()
    else:
        _C.set_device(*_place("set_device_index", device, True))


class device_index(_DeviceContext):
    """Make a device the calling thread's current one within a with block.

    On exit, the device that was current before is current again.  If the index
    is None or negative, does nothing.  The context is reentrant, and several
    threads can use it at once.
    """

    __slots__ = ()

    def __init__(self, device: _Device, /) -> None:
        if device is None or (isinstance(device, int) and device < 0):
            super().__init__(_default_type(), device)
        else:
            super().__init__(*_place("device_index", device, True))


def current_stream(device: _Device = None, /) -> Stream:
    """Return the current stream of a device.

    Each thread, and each asyncio task, has a current stream of its own.
    """
    if device is None:
        return _C.current_stream(_default_type())
    return _C.current_stream(*_place("current_stream", device))


def default_stream(device: _Device = None, /) -> Stream:
    """Return the default stream of a device: handle 0 or, with
    PYSTREAMS_PER_THREAD_DEFAULT_STREAM=1, the calling thread's, handle 2."""
    return _C.default_stream(*_place("default_stream", device))


def set_stream(stream: _StreamLike) -> None:
    """Make a stream current on its device, and its device current.

    Applies to the calling thread or, within an asyncio task, to that task
    only.  Raises ValueError for a stream of another device type.
    """
    _C.set_stream(_checked_stream("set_stream", stream))


def stream(stream: _StreamLike | None) -> _StreamContext:
    """Return a context manager that makes a stream and its device current.

    Both are restored on exit, for the calling thread.  If stream is None,
    changes nothing.  Raises ValueError for a stream of another device type.
    """
    if stream is not None:
        stream = _checked_stream("stream", stream)
    return _StreamContext(stream)


def _checked_stream(function: str, stream: _StreamLike) -> Stream:
    type = _default_type()
    found = _C.as_stream(function, stream)
    if found.device_type != type:
        _check(found.device.type, type)
    return found


def synchronize(
    device: _Device = None, /, timeout: float | None = None
) -> None:
    """Wait until all work queued on a device so far is done.

    Releases the GIL, leaves the current device as it is, and blocks for
    timeout seconds at most.  After that time, it raises TimeoutError, but the
    work goes on.  Raises AcceleratorError if any of the work failed.
    """
    _C.synchronize(*_place("synchronize", device), timeout)


def get_memory_info(device: _Device = None, /) -> tuple[int, int]:
    """Return a device's memory, (free, total) in bytes.

    Free is the memory that this program can still allocate.  On the CPU both
    are the system's: free memory falls when allocated memory is first written
    to, and other programs change it.
    """
    return _C.mem_get_info(*_place("get_memory_info", device))


def memory_stats(device: _Device = None, /) -> dict[str, int]:
    """Return the counts of Buffer memory on a device.

    allocation.all.* count buffers and allocated_bytes.all.* their bytes.
    .current is the present count, .peak is the greatest one, and .allocated
    and .freed are totals since the start.  reserved_bytes.all.current and
    .peak count the bytes that the device's pool holds: those of buffers, and
    freed memory that is kept for reuse.
    """
    return _C.memory_stats(*_place("memory_stats", device))


def memory_allocated(device: _Device = None, /) -> int:
    """Return the bytes that buffers hold on a device."""
    stats = _C.memory_stats(*_place("memory_allocated", device))
    return stats["allocated_bytes.all.current"]


def max_memory_allocated(device: _Device = None, /) -> int:
    """Return the peak number of bytes that buffers held on a device.

    The peak is since the start or the last reset_peak_memory_stats().
    """
    stats = _C.memory_stats(*_place("max_memory_allocated", device))
    return stats["allocated_bytes.all.peak"]


def memory_reserved(device: _Device = None, /) -> int:
    """Return the bytes that a device's pool holds.

    These are the bytes of buffers plus freed memory that is kept for reuse.
    """
    stats = _C.memory_stats(*_place("memory_reserved", device))
    return stats["reserved_bytes.all.current"]


def max_memory_reserved(device: _Device = None, /) -> int:
    """Return the peak number of bytes that a device's pool held.

    The peak is since the start or the last reset_peak_memory_stats().
    """
    stats = _C.memory_stats(*_place("max_memory_reserved", device))
    return stats["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device: _Device = None, /) -> None:
    """Reset the peaks of memory_stats() to the present values."""
    _C.reset_peak_memory_stats(*_place("reset_peak_memory_stats", device))


def reset_accumulated_memory_stats(device: _Device = None, /) -> None:
    """Reset .allocated and .freed of memory_stats() to 0."""
    _C.reset_accumulated_memory_stats(
        *_place("reset_accumulated_memory_stats", device)
    )


def empty_cache() -> None:
    """Release the unused memory of all pools to the devices.

    Pools keep memory that queued work still uses.  Does nothing if no device
    has been used, or if the backend keeps no freed memory.  May block.
    """
    _C.empty_cache(_default_type())


def empty_host_cache() -> None:
    """Free the pinned memory that is kept for reuse.

    Memory that queued work still uses is not freed.  If a callable of
    Stream.submit() calls this, nothing is freed.  On a GPU, waits for all work
    queued on it.
    """
    _C.empty_host_cache(_default_type())


def _global(mode: str) -> str:
    """Return "global" for Graph's "default", else the mode."""
    return "global" if mode == "default" else mode


class Graph(_Graph):
    """Graph(keep_graph=False, *, pool=None, capture_error_mode="default")
    --

    Work on the current accelerator that is captured once and replayed.

    As a context manager, it waits for all work on the current device, and then
    captures the work of the current stream, which must not be a default
    stream:

        with stream, graph:
            ...

    However the block ends, the capture ends.  The next capture uses two
    attributes.  graph_pool is the argument pool, a token of
    generate_graph_pool_handle() or pool().  capture_error_mode is 'global',
    'thread_local', 'relaxed' or 'default' (the same as 'global').  In all
    other ways, a Graph is like a pystreams.cuda.CUDAGraph.
    """

    def __new__(
        cls,
        keep_graph: bool = False,
        *,
        pool: _Pool | None = None,
        capture_error_mode: str = "default",
    ) -> Self:
        keeps = _keeps(keep_graph, "Graph")
        _pool(pool, "Graph")
        _mode(_global(capture_error_mode), "Graph")
        return super().__new__(cls, _C.default_type(), keeps)

    def __init__(
        self,
        keep_graph: bool = False,
        *,
        pool: _Pool | None = None,
        capture_error_mode: str = "default",
    ) -> None:
        self.graph_pool = pool
        self.capture_error_mode = capture_error_mode

    def capture_begin(self) -> None:  # type: ignore[override]
        """Begin to capture the current stream."""
        self._begin(
            _mode(_global(self.capture_error_mode)), _pool(self.graph_pool)
        )

    def debug_dump(
        self, path: str | os.PathLike[str], *, verbose: bool = True
    ) -> None:
        """Write the graph to a file, as CUDAGraph.debug_dump does."""
        super().debug_dump(path, verbose=verbose)

    def _begin_capture(self) -> None:
        _C.synchronize(_C.default_type(), None, None, True)
        self.capture_begin()

    if TYPE_CHECKING:

        def __enter__(self) -> None: ...

        def __exit__(self, *args: object) -> None: ...

    else:
        __enter__ = _C.Graph._enter
        __exit__ = _C.Graph._exit


current_device_idx = current_device_index
set_device_idx = set_device_index
