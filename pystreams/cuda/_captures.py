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
_INVALIDATED, _UNJOINED, _ISOLATION = 901, 904, 905
_OF_CAPTURES = range(900, 909)
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
# Forget a capture that has ended.
forget = _captures.pop
# A forked child has none of its parent's captures.
os.register_at_fork(after_in_child=_captures.clear)


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


def _causes(capture: _Capture) -> str:
    """Return which calls may have made the capture invalid."""
    joined, _, failures = capture
    begin, *_ = joined.copy().values()
    texts = failures.copy().values()
    return "".join(f"\n{text}." for text in texts) or (
        "\nNo call of this package failed since the capture began, at "
        f"{begin}: look for one of another library that waits, allocates "
        "memory or uses the legacy default stream."
    )


def _isolation(
    joined: dict[_Stream, _Place], stream: _Stream, source: _Stream | None
) -> str:
    """Return why the captured stream cannot wait for the source, and what to
    do; source: None if it is not known."""
    if source is None:
        return (
            "The event was not recorded in the capture: record it on a stream "
            "of the capture, or make this call before the capture begins."
        )
    if source in joined:
        return (
            f"The event was recorded on the stream {_name(source)} before "
            f"that joined the capture, at {joined[source]}: record it after "
            "that, or make this call before the capture begins."
        )
    return (
        f"The stream {_name(source)} has not joined the capture: have it wait "
        f"for {_name(stream)} first (wait_stream), and record an event, if "
        "this call waits for one, after that. Or make this call before the "
        "capture begins."
    )


def begun(capture: tuple[int, int], origin: _Stream) -> None:
    """Note that a capture has begun on the stream, at the program's current
    line."""
    _captures[capture] = ({origin: _place()}, {}, {})


def waited(capture: tuple[int, int], stream: _Stream, source: _Stream) -> None:
    """Note that the stream was made to wait for the source."""
    place = _place()
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
    source: _Stream | None = None,
) -> str:
    """Note a call that failed during captures of the device type.

    It may have made any of them invalid; a driver does not report which one.
    Return a text with the captures in progress and the remedy, or "".  If the
    call failed because a capture of its streams was invalid already, do not
    note it, and return what may have made that capture invalid.

    source: the stream that the call would have made its stream wait for.
    """
    found = {
        number: capture
        for number, capture in _captures.copy().items()
        if number[0] == device_type
    }
    own = {
        number: capture
        for number, capture in found.items()
        if stream in capture[0] or source in capture[0]
    }
    if status == _INVALIDATED:
        return "".join(map(_causes, own.values()))
    if status not in _OF_CAPTURES:
        # The wait failed for another reason.  Only a missing join in one of
        # the two streams' captures can explain it.
        found = own
    place = _place()
    call = operation
    if stream is not None:
        call += f" on the stream {_name(stream)}"
    if source is not None:
        call += f" for work of {_name(source)}"
    for _, _, failures in found.values():
        if len(failures) < _MOST:
            failures.setdefault(
                place, f"{call}, at {place}, failed: {failure}"
            )
    lines = [
        f"A capture is in progress, {where(number)}."
        for number in list(found)[:_MOST]
    ]
    if lines and status in _ADVICE:
        lines.append(_ADVICE[status])
    if stream is not None and status == _ISOLATION:
        lines += [
            _isolation(joined, stream, source)
            for joined, *_ in found.values()
            if stream in joined
        ]
    return "".join(f"\n{line}" for line in lines)


def ended(capture: _Capture | None, status: int) -> str:
    """Return an explanation of the status of the capture's end, or ""."""
    if capture is None:
        return ""
    joined, waits, failures = capture
    joined, waits = joined.copy(), waits.copy()
    if status == _INVALIDATED and joined:
        return _causes((joined, waits, failures))
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
