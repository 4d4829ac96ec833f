"""Captured copies of pageable host memory, through pinned memory.

If a graph has a copy of pageable memory, CUDA accesses the memory when the
graph is launched, not when the stream reaches the copy.  It also blocks other
threads meanwhile.  So two operations are captured instead: a callable that
copies between the pageable memory and a pinned Buffer, and a copy between this
Buffer and the device.  The graph keeps the callable's arguments alive.
"""

from __future__ import annotations

from ctypes import memmove
from functools import partial

from ._C import AcceleratorError, Buffer, Stream, empty, races_declare

_written_for_ever: list[Buffer] = []


def _allocate(stream: Stream, nbytes: int) -> Buffer:
    return empty(nbytes, device=stream.device, pin_memory=True)


def _move(destination: Buffer, source: Buffer) -> None:
    # memmove() releases the GIL, and needs no memoryviews.  The race detector
    # would count views as accesses of the program.
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
        # A callable cannot be captured into a graph of another library.  The
        # copy into the pinned Buffer was captured already, and that graph may
        # be launched at any time, so keep the Buffer for ever.
        if not isinstance(error, AcceleratorError):
            _written_for_ever.append(staging)
        raise
