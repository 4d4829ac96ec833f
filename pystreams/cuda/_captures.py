"""How streams joined the captures in progress, so that the error of a failed
capture names the missing join, and the call that made it invalid.

C code calls these functions, and only while something is being captured, on
any thread: a dict that others may change is copied before it is read through.
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
# As many failed calls are kept in mind, the earliest ones.
_MOST = 4

# By device type and number of a capture: the first wait of each stream that
# joined it, the latest wait for each stream, and the calls that failed, by
# their lines.
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
    """Note the failure for the capture, or for all of the type if it is 0."""
    device_type, number = capture
    for found, (_, _, failures) in _captures.copy().items():
        concerned = found == capture or (
            number == 0 and found[0] == device_type
        )
        if concerned and len(failures) < _MOST:
            failures.setdefault(place, text)


def begun(capture: tuple[int, int], origin: _Stream) -> None:
    """A capture has begun on the stream, at the program's current line."""
    _captures[capture] = ({origin: _place()}, {}, {})


def waited(
    capture: tuple[int, int], stream: _Stream, source: _Stream, failure: str
) -> None:
    """Note that the stream waits for the source, or that this failed.

    After a failure the number may be unknown, 0.
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
    """Return where a capture in progress began, or ""."""
    joined, *_ = _captures.get(capture, ({},))
    for origin, place in joined.copy().items():
        return f"begun on the stream {_name(origin)} at {place}"
    return ""


def explained(capture: tuple[int, int], text: str) -> str:
    """Return the text with where a capture in progress began, or ""."""
    begin = where(capture)
    return text.format(begin) if begin else ""


def refused(
    device_type: int,
    operation: str,
    failure: str,
    status: int,
    stream: _Stream | None = None,
) -> str:
    """Note a failed call.  It may have made any capture of the device type
    invalid: a driver does not say which.

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
