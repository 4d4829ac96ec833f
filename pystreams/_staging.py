"""Captured copies of pageable host memory, through pinned memory.

CUDA accesses pageable memory when a graph is launched, not when the stream
reaches the copy, and meanwhile blocks other threads.  So a callable of the
graph copies between that memory and a pinned Buffer, and a captured copy
between that and the device.  What the callable takes lives as long as the
graph.
"""

from __future__ import annotations

from ctypes import memmove
from functools import partial

from ._C import AcceleratorError, Buffer, Stream, empty, races_declare

_written_for_ever: list[Buffer] = []


def _allocate(stream: Stream, nbytes: int) -> Buffer:
    return empty(nbytes, device=stream.device, pin_memory=True)


def _move(destination: Buffer, source: Buffer) -> None:
    # Needs no views, which the race detector would take for the program's,
    # and releases the GIL.
    memmove(destination.data_ptr(), source.data_ptr(), source.nbytes)


def _submit(stream: Stream, destination: Buffer, source: Buffer) -> None:
    try:
        stream.submit(partial(_move, destination, source))
    except NotImplementedError as error:
        raise NotImplementedError(
            "a copy of pageable memory cannot be captured, as it needs a "
            "callable in the graph; pin the memory, as pystreams.pin() does"
        ) from error


def copy_from(pageable: Buffer, buffer: Buffer, stream: Stream) -> None:
    """Capture a copy from pageable memory to a Buffer."""
    staging = _allocate(stream, pageable.nbytes)
    races_declare(stream, "copy", [pageable], [])
    _submit(stream, staging, pageable)
    buffer.copy_(staging, non_blocking=True, stream=stream)


def copy_to(pageable: Buffer, buffer: Buffer, stream: Stream) -> None:
    """Capture a copy from a Buffer to pageable memory."""
    staging = _allocate(stream, pageable.nbytes)
    staging.copy_(buffer, non_blocking=True, stream=stream)
    races_declare(stream, "copy", [], [pageable])
    try:
        _submit(stream, pageable, staging)
    except RuntimeError as error:
        # No callable can be captured if the capture is another library's,
        # whose graph can be launched for ever.
        if not isinstance(error, AcceleratorError):
            _written_for_ever.append(staging)
        raise
