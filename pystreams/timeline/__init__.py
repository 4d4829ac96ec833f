"""Timelines of streams and of the threads that use them.

with pystreams.timeline.record() as t:
    ...
print(t)
t.save("program.json")

A timeline has the operations of every stream (copies, fills, callables, graph
launches, sleeps, and spans), waits of streams for events, waits of threads for
work, and the memory in use.  On CUDA, if CUPTI is installed, it also has the
kernels, copies and fills that other libraries queue, and their waits.
Otherwise span() can be put around them.

NVTX ranges and marks are recorded, too.  For each library that contains NVTX,
this requires that this module is imported before the library first uses NVTX.
"""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from contextlib import contextmanager
from typing import Any

from .. import _C
from . import _chart, _cupti, _nvtx

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .._C import Stream
    from ._analysis import CriticalPath

    Row = tuple[Any, ...]

__all__ = ["COLUMNS", "Timeline", "record", "span"]

_CHUNK = 4096

#: The items of a row, in order.  Times are in nanoseconds since the recording
#: began, or None if they are not known yet.
COLUMNS = (
    # For an operation of a stream, "copy", "fill", "callable", "function",
    # "graph", "sleep", "kernel", "span", "record" or "wait".  For a thread,
    # "synchronize", "span" or "mark".  For a change of the memory in use,
    # "memory".  For what the launch of a graph did, "node"; these rows come
    # last.
    "kind",
    # The name of the callable, the kernel, the span, the mark, or the call
    # that waits.  For a copy, it is "copy host to device" or another
    # direction, and for all others the kind.
    "name",
    # "cuda:0", and the stream's label; both are None for what a thread does.
    "device",
    "stream",
    # The thread that made the call.  If two threads have the same name, the
    # second one is "name (2)".
    "thread",
    # When the call queued it, when it began and when it ended.
    "queued",
    "begin",
    "end",
    # The size of a copy or fill; for "memory", how much is in use from then
    # on.
    "nbytes",
    # Where the program made the call; None for calls of other libraries.
    "filename",
    "line",
    "function",
    # The index of the row that this row waits for, or None.  For a "wait", it
    # is the record, or an operation if the wait serializes with the default
    # stream.  For a "synchronize", it is the last operation or record that it
    # waits for.
    "source",
    # The domain of an NVTX range (a "span") or an NVTX mark; None for others.
    "domain",
)

_OPERATIONS = frozenset(
    ("copy", "fill", "callable", "function", "graph", "sleep", "kernel")
)
# The kinds of rows that charts and pictures begin and end with.  Rows of other
# kinds, such as the first allocation, may be long before the work.
_SHOWN = _OPERATIONS | {"synchronize", "span", "mark"}

# Whether operations are timed by events even if their engine reports times.
_by_events = False
# Guards the variables below.  If another thread holds it at a fork, that
# thread does not exist in the child, so the child resets it.
_lock = threading.Lock()
os.register_at_fork(
    after_in_child=_lock._at_fork_reinit  # type: ignore[attr-defined]
)
_log: Any = None
_blocks = 0
_warned: set[str] = set()

_nvtx.attach()


class Timeline:
    """The result of record(); it may be read while it is recorded."""

    def __init__(self, log: object) -> None:
        self._log = log
        self._thread = _C.timeline_thread(log)
        self._first = _C.timeline_end(log)
        self._last: int | None = None
        self._begin = _C.timeline_now()
        self._end: int | None = None

    def _stop(self) -> None:
        self._last = _C.timeline_end(self._log)
        # If a schedule ended in the block, _begin may be in its virtual time,
        # which sleeps may have moved ahead of the present time.
        self._end = max(_C.timeline_now(), self._begin)

    @property
    def duration(self) -> int:
        """How long the block took, or takes, in nanoseconds."""
        end = _C.timeline_now() if self._end is None else self._end
        return end - self._begin

    @property
    def clock_error(self) -> int:
        """How far device times may be off from host times, in nanoseconds.

        It is 0 on the CPU engine.  If events are timed, it is half the time
        that a record and a query take.  If CUPTI reports times, it is the most
        by which an operation seemed to begin before its call.
        """
        return _C.timeline_error(self._log)

    def _after_last(self) -> int:
        """Return the number of the row after the last one so far."""
        return _C.timeline_end(self._log) if self._last is None else self._last

    def _chunks(self) -> Iterator[list[Row]]:
        last = self._after_last()
        _C.timeline_resolve(self._log)
        for first in range(self._first, last, _CHUNK):
            yield _C.timeline_rows(
                self._log,
                self._first,
                first,
                min(first + _CHUNK, last),
                self._begin,
            )
        nodes = _C.timeline_nodes(self._log, self._first, last, self._begin)
        if nodes:
            yield nodes

    @property
    def rows(self) -> list[Row]:
        """A tuple for everything that was recorded, in the order of the calls,
        with nodes of graphs last; COLUMNS names its items."""
        return [row for chunk in self._chunks() for row in chunk]

    def __repr__(self) -> str:
        took = _chart.milliseconds(self.duration / 1e6)
        count = self._after_last() - self._first
        return f"<pystreams Timeline of {took}, {count} rows>"

    def chart(
        self, columns: int | None = None, marks: str | None = None
    ) -> str:
        """chart(columns=None, marks=None)

        Return a chart of when each stream and each thread was busy, as text
        that is so many columns wide.  None means the columns of the terminal,
        120 at most.  The chart begins at the first operation, wait of a
        thread, span or mark, and ends at the last.  marks are the characters
        from idle to busy.  None means those that the output can show.
        """
        if columns is None:
            columns = min(120, shutil.get_terminal_size().columns)
        from ._terminal import chart

        return chart(self, columns, marks or _chart.shades_of_output())

    def __str__(self) -> str:
        return self.chart()

    def _repr_html_(self) -> str:
        from html import escape

        from . import _picture

        try:
            return _picture.svg(self)
        except ImportError:
            text = self.chart(100, _chart.BLOCKS)
            return f"<pre>{escape(text)}</pre>"

    def overlap(self) -> dict[tuple[str, ...], int]:
        """Return how long copies ("copy"), other operations ("work") and the
        host were busy, alone and together, in nanoseconds.  A key is a tuple
        of these three names in alphabetical order, and its value is the time
        in which exactly these were busy.  The value of the empty tuple is the
        time in which nothing was busy.

        Fills count as copies.  The host is busy while any thread is not
        waiting.  The thread that records counts all the time, and other
        threads count from their first call to their last.
        """
        from ._analysis import overlap

        return overlap(self)

    def critical_path(self) -> CriticalPath:
        """Return the chain of operations, waits and host time that made the
        block take so long.  The chain leads from the block's end back to its
        beginning.  If a step waited for several others, the one that ended
        last precedes it in the chain.
        """
        from ._analysis import critical_path

        return critical_path(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """save(path)

        Write the timeline to a file; its suffix selects the format: .pftrace
        for Perfetto (https://ui.perfetto.dev), .json for Chrome's trace
        events, .png or .svg for a picture, which needs Matplotlib.

        Operations that have not ended are left out.  Raises ValueError for
        another suffix, ImportError if Matplotlib is missing, and OSError.
        """
        from . import _files

        _files.save(self, os.fspath(path))


def _warn(refusal: str) -> None:
    if refusal and refusal not in _warned:
        _warned.add(refusal)
        warnings.warn(
            f"the timeline does not show the work of other libraries: "
            f"{refusal}",
            RuntimeWarning,
            # The with statement, past this module and contextlib.
            stacklevel=4,
        )


@contextmanager
def record() -> Iterator[Timeline]:
    """record()

    Record what the whole process does until the block ends, and return the
    Timeline.

    Work queued in the block is recorded, even if it ends later: its times are
    known once it has ended.  Blocks may be nested, or overlap in several
    threads; each has a Timeline of its own.

    Warns, once, if other libraries' work on CUDA is not seen because another
    profiler uses CUPTI, which serves only one at a time.  Raises MemoryError.
    """
    global _log, _blocks
    refusal = ""
    with _lock:
        if _blocks == 0:
            # In a forked child, another thread may have begun to record.
            _C.timeline_stop()
            _nvtx.attach()
            if not _by_events:
                _cupti.load()
            threads = threading._active  # type: ignore[attr-defined]
            _log, refusal = _C.timeline_start(threads, _by_events)
        _blocks += 1
        log = _log
    try:
        _warn(refusal)
        timeline = Timeline(log)
        try:
            yield timeline
        finally:
            timeline._stop()
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                _C.timeline_stop()
                _log = None


class span:
    """span(name, stream=None)

    Name the work that a with block queues on the stream or, if stream is None,
    the block's time on the calling thread.

    Does little while nothing records.  Raises TypeError if name is not a str,
    or if stream is neither a stream nor None.
    """

    def __init__(self, name: str, stream: Stream | None = None) -> None:
        if not isinstance(name, str):
            raise TypeError(
                f"span() expects a str for name, but got {type(name).__name__}"
            )
        if stream is not None and not hasattr(stream, "__cuda_stream__"):
            raise TypeError(
                "span() expects a Stream or an object with __cuda_stream__ "
                f"for stream, but got {type(stream).__name__}"
            )
        self._name = name
        self._stream = stream
        self._begun: list[object] = []

    def __enter__(self) -> None:
        begun = None
        if _blocks > 0:
            begun = _C.timeline_span_begin(self._name, self._stream)
        self._begun.append(begun)

    def __exit__(self, *exc_info: object) -> None:
        begun = self._begun.pop()
        if begun is not None:
            _C.timeline_span_end(begun)
