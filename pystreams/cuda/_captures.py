"""Notes on captures in progress: how streams joined them, and which calls
failed.  If a capture fails, the error then names the missing join, or the call
that made the capture invalid.

C code calls these functions on any thread, and only while work is being
captured.  A dict that other threads may change is copied before a loop over
it.
"""

from __future__ import annotations

import os
import sys

from .._names import PER_THREAD, is_thread_stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    # A device's name with its index, a handle, and the stream's own name.
    _Stream = tuple[str, int, str | None]
    # The program's innermost line, "file:line".
    _Place = str

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_UNJOINED, _INVALIDATED = 904, 901
# What to do after a call was refused, by its status.
_ADVICE = {
    900: "Make such a call before a capture or after it.",
    906: "Work on the default stream waits for the blocking streams of its "
    "device, and a capture has one of these. Use another stream than the "
    "default one, or capture a stream that is not blocking.",
}
# How many failed calls are noted for a capture: the earliest ones.
_MOST = 4

# What is noted for a capture: the place of each joined stream's first wait,
# the place of the latest wait for each stream, and the texts of failed calls
# by place.  Captures are identified by device type and number.
_Capture = tuple[
    "dict[_Stream, _Place]", "dict[_Stream, _Place]", "dict[_Place, str]"
]
_captures: dict[tuple[int, int], _Capture] = {}


def _place() -> _Place:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(
        _PACKAGE
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _name(stream: _Stream) -> str:
    device, handle, name = stream
    if is_thread_stream(handle):
        handle = PER_THREAD
    place = f"{device} 0x{handle:x}"
    return place if name is None else f"'{name}' ({place})"


def _failed(capture: tuple[int, int], place: _Place, text: str) -> None:
    """Note a failed call for the capture.  If its number is 0, note the call
    for all captures of the device type."""
    device_type, number = capture
    for found, (_, _, failures) in _captures.copy().items():
        concerned = found == capture or (
            number == 0 and found[0] == device_type
        )
        if concerned and len(failures) < _MOST:
            failures.setdefault(place, text)


def begun(capture: tuple[int, int], origin: _Stream) -> None:
    """Note that a capture has begun on the stream, at the program's current
    line."""
    _captures[capture] = ({origin: _place()}, {}, {})


def waited(
    capture: tuple[int, int], stream: _Stream, source: _Stream, failure: str
) -> None:
    """Note that the stream was made to wait for the source, or that this
    failed.

    After a failure, the capture's number may be 0, which means unknown.
    """
    place = _place()
    if failure:
        call = f"a wait of the stream {_name(stream)} for {_name(source)}"
        _failed(capture, place, f"{call}, at {place}, failed: {failure}")
        return
    joined, waits, _ = _captures.get(capture, ({}, {}, {}))
    joined.setdefault(stream, place)
    waits[source] = place


def where(capture: tuple[int, int]) -> str:
    """Return the place where a capture in progress began, or ""."""
    joined, *_ = _captures.get(capture, ({},))
    for origin, place in joined.copy().items():
        return f"begun on the stream {_name(origin)} at {place}"
    return ""


def explained(capture: tuple[int, int], text: str) -> str:
    """Return the text with the place where a capture in progress began; "" if
    the capture is not known."""
    begin = where(capture)
    return text.format(begin) if begin else ""


def refused(
    device_type: int,
    operation: str,
    failure: str,
    status: int,
    stream: _Stream | None = None,
) -> str:
    """Note a call that failed during captures of the device type.

    It may have made any of them invalid; a driver does not report which one.
    Return a text with the captures in progress and the remedy, or "".
    """
    place = _place()
    call = (
        operation
        if stream is None
        else f"{operation} on the stream {_name(stream)}"
    )
    _failed((device_type, 0), place, f"{call}, at {place}, failed: {failure}")
    found = [
        capture for capture in _captures.copy() if capture[0] == device_type
    ]
    lines = [
        f"A capture is in progress, {where(capture)}."
        for capture in found[:_MOST]
    ]
    if lines and status in _ADVICE:
        lines.append(_ADVICE[status])
    return "".join(f"\n{line}" for line in lines)


def ended(capture: tuple[int, int], status: int) -> str:
    """Forget the capture; return an explanation of the status, or ""."""
    joined, waits, failures = _captures.pop(capture, ({}, {}, {}))
    joined, waits, failures = joined.copy(), waits.copy(), failures.copy()
    if status == _INVALIDATED and joined:
        return "".join(f"\n{failure}." for failure in failures.values()) or (
            "\nNo call of this package failed since the capture began, at "
            f"{next(iter(joined.values()))}: look for one of another library "
            "that waits, allocates memory or uses the legacy default stream."
        )
    if status != _UNJOINED or not joined:
        return ""
    origin, *others = joined
    missing = [stream for stream in others if stream not in waits]
    lines = [
        f"The stream {_name(stream)} joined the capture at {joined[stream]}, "
        "and no stream of the capture waits for it. Before the capture ends, "
        f"have {_name(origin)}, on which it began, wait for that stream "
        "(wait_stream)."
        for stream in missing
    ]
    if not missing:
        lines = [
            f"The latest wait for the stream {_name(stream)}, which joined "
            f"the capture at {joined[stream]}, is at {waits[stream]}: have "
            "another one come after all its work."
            for stream in others
        ]
    return "".join(f"\n{line}" for line in lines)
