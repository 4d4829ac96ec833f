"""Says in words what streams, events, callables and threads wait for.

The facts are available at any time, and cost nothing until they are read.
They are the CPU engine's queues, the callables of Stream.submit, and the
threads that wait in a method of the package.
"""

from __future__ import annotations

import functools
import os
import threading
import types
from itertools import pairwise
from time import sleep

from . import _C
from ._names import stream_label, thread_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from typing import Any

    Key = tuple[str, int, int, int]

# The values of enum ps_obstacle in backend.h.
_NONE, _STREAM, _GATE, _TIME, _UNKNOWN = range(5)

# The largest numbers of streams that an error, and other texts, list from a
# chain of waits.
_FEW, _MANY = 3, 5
# The largest number of lines of explain().
_LINES = 40
_PACKAGE = os.path.dirname(__file__) + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep


def _seconds(seconds: float) -> str:
    return f"{max(seconds, 0):.3g} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _name(function: object) -> str:
    """Return the name of a callable, without running the callable's own
    code."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(
        function,
        (types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    ):
        return function.__name__
    if isinstance(function, type):
        # A metaclass may define another __name__.
        name: str = type.__dict__["__name__"].__get__(function)
        return name
    return type(function).__name__


def _at(place: tuple[str, int, str] | None) -> str:
    if place is None:
        return ""
    return f" ({os.path.basename(place[0])}:{place[1]})"


def _is_of_program(frame: Any) -> bool:
    file = frame.f_code.co_filename
    library = file.startswith(_LIBRARY) and "site-packages" not in file
    return not library and not file.startswith(_PACKAGE)


def _now(frame: Any) -> str:
    """Return the line of the program that a thread is executing."""
    while frame is not None and not _is_of_program(frame):
        frame = frame.f_back
    if frame is None:
        return ""
    file = os.path.basename(frame.f_code.co_filename)
    return f"at {file}:{frame.f_lineno} in {frame.f_code.co_name}"


def _left_of(obj: object) -> list[Any]:
    """If the object waits for several others, return those that are not known
    to be done."""
    objects = getattr(obj, "_objects", None) or {}
    return list(objects.values())


class _Callable:
    """A callable that has not ended."""

    def __init__(self, view: tuple[Any, ...]) -> None:
        (
            self.key,
            function,
            self.future,
            place,
            self.running,
            self.reached,
            self.thread,
            self.seconds,
            self.frame,
        ) = view
        self.label = f"callable {_name(function)}{_at(place)}"


class _Thread:
    """A thread that waits for work."""

    def __init__(self, view: tuple[Any, ...]) -> None:
        self.ident, self.operation, self.seconds, self.target, frame = view
        self.place = _now(frame)


class _Explanation:
    """The facts at one moment, and sentences about them."""

    def __init__(self, limit: int, *, scheduled: bool = False) -> None:
        self._limit = limit
        # Whether the texts are about a schedule.  They then have the numbers
        # of streams instead of handles, as the reports of schedules do, and no
        # times, because those are not virtual.
        self._scheduled = scheduled
        self.callables = [_Callable(v) for v in _C.explain_callables()]
        self.threads = [_Thread(view) for view in _C.explain_threads()]
        self._waits = {thread.ident: thread for thread in self.threads}
        # The chain of callables that the current sentence follows.  Each
        # callable in it waits for the next one.
        self._path: list[_Callable] = []
        # The callables that wait for each other, in a deadlock.
        self.ring: list[_Callable] = []
        # The streams that the sentences are about.
        self.shown: set[Key] = set()

    def add_wait(self, target: tuple[Any, ...]) -> None:
        """Add a wait of the calling thread for the target."""
        ident = threading.get_ident()
        self._waits[ident] = _Thread((ident, "this call", 0.0, target, None))

    def _label(self, key: Key) -> str:
        """Return a human-readable name for a stream."""
        backend, _, index, handle = key
        name, number = _C.explain_name(key)
        stream = str(number) if self._scheduled and number else handle
        return stream_label(f"{backend}:{index}", stream, name)

    def first_of(self, key: Key) -> _Callable | None:
        """Return the first of a stream's callables."""
        own = [c for c in self.callables if c.key == key]
        found = [c for c in own if c.running] or own
        return found[-1] if found else None

    def stream(self, key: Key) -> str:
        """Return the text that follows a stream's name, as in "has 2
        operations; ..."."""
        self.shown.add(key)
        states = _C.explain_stream(key)
        if states is None:
            return self._unseen(key)
        self.shown.update(state[0] for state in states)
        if states[0][1] == 0:
            return "is idle"
        last = states[-1]
        text, shown = "", min(self._limit, len(states)) - 1
        for state, source in pairwise(states[: shown + 1]):
            text += (
                f"has {_count(state[1], 'operation')}; the first waits for an "
                f"event recorded on {self._label(source[0])}, which "
            )
        between = len(states) - shown - 2 + last[-1]
        if shown < len(states) - 1:
            text += (
                f"waits, through {_count(between, 'more stream')}, for "
                f"{self._label(last[0])}, which "
            )
        return (
            f"{text}has {_count(last[1], 'operation')}; the first "
            f"{self._root(last)}"
        )

    def _root(self, state: tuple[Any, ...]) -> str:
        key, _, obstacle, operation, nbytes, left_ns, _ = state
        if obstacle == _GATE:
            first = self.first_of(key)
            return f"is {self.callable(first)}" if first else "is a callable"
        if obstacle == _TIME:
            return f"sleeps for {_seconds(left_ns / 1e9)} more"
        if obstacle == _UNKNOWN:
            return (
                "waits for an event that a graph or another process may record"
            )
        size = f" of {nbytes} bytes" if nbytes else ""
        return f"is a {operation}{size}, which runs or is about to"

    def _unseen(self, key: Key) -> str:
        """Like stream(), but all that is known of the stream is its
        callables."""
        count = sum(c.key == key for c in self.callables)
        first = self.first_of(key)
        if first is None:
            return "has no callables; what else it does is not known here"
        return f"has {_count(count, 'callable')}; the first is " + (
            self.callable(first)
        )

    def callable(self, one: _Callable) -> str:
        if one in self._path:
            self.ring = self._path[self._path.index(one) :]
            return f"{one.label}, which thus waits for itself"
        self._path.append(one)
        text = f"{one.label}, which {self._progress(one)}"
        self._path.pop()
        return text

    def _progress(self, one: _Callable) -> str:
        if not one.running:
            return "waits for a thread" if one.reached else "is about to begin"
        text = f"has run for {_seconds(one.seconds)}"
        if self._scheduled:
            text = "has begun"
        wait = self._waits.get(one.thread)
        if wait is not None:
            return f"{text} and waits in {self.wait(wait)}"
        now = _now(one.frame)
        return f"{text} and is {now}" if now else text

    def wait(self, thread: _Thread) -> str:
        """Return a thread's wait, as "Stream.synchronize (f.py:3) for ..."."""
        place = f" {thread.place}" if thread.place else ""
        return f"{thread.operation}{place}, for {self.target(thread.target)}"

    def subject(self, target: tuple[Any, ...]) -> str:
        """Like target(), but for the beginning of a sentence."""
        if target[0] != "stream":
            return self.target(target)
        return f"{self._label(target[1])} {self.stream(target[1])}"

    def target(self, target: tuple[Any, ...]) -> str:
        """Return the target of a wait, and what the target itself waits
        for."""
        kind, *rest = target
        if kind == "stream":
            return f"{self._label(rest[0])}, which {self.stream(rest[0])}"
        if kind == "event":
            return self.event(rest[0])
        if kind == "device":
            return self.device(*rest)
        return self.object_of(rest[0])

    def event(self, state: tuple[bool, Key | None]) -> str:
        done, key = state
        if done:
            return "an event that is done"
        if key is None:
            return "an event that a graph or another process may record"
        text = f"an event recorded on {self._label(key)}, which "
        return text + self.stream(key)

    def device(self, *place: Any) -> str:
        busy = [k for k in _C.explain_streams() if k[:3] == place]
        busy += [
            c.key
            for c in self.callables
            if c.key[:3] == place and c.key not in busy
        ]
        text = f"all work of {place[0]}:{place[2]}"
        if not busy:
            return f"{text}; which that is, is not known here"
        found = ""
        for key in busy:
            sentence = f"{text}, where {self._label(key)} {self.stream(key)}"
            found = found or sentence
            if self.ring:
                return sentence
        return found

    def object_of(self, obj: Any) -> str:
        if isinstance(obj, _C.FutureBase):
            return self.future(obj)
        left = _left_of(obj)
        if not left:
            return f"a {type(obj).__name__}"
        more = f"{_count(len(left), 'object')}, such as " if left[1:] else ""
        return more + self.any(left[0])

    def future(self, future: object) -> str:
        for one in self.callables:
            if one.future is not future:
                continue
            if one.running or one.reached or one in self._path:
                return self.callable(one)
            return (
                f"{one.label}, which is queued on {self._label(one.key)}, "
                f"which {self.stream(one.key)}"
            )
        return "a Future whose callable has ended"

    def any(self, obj: Any) -> str:
        """Return the text about what an object of the program waits for."""
        if not isinstance(obj, (_C.Stream, _C.Event)):
            return self.object_of(obj)
        target = _C.explain_target(obj)
        if target is None:
            return "an event that was never recorded"
        return self.subject(target)

    def deadlock(self) -> str:
        """Return the text about a deadlock of callables; "" if there is
        none."""
        ring = [f"{c.label} on {self._label(c.key)}" for c in self.ring]
        if not ring:
            return ""
        if len(ring) == 1:
            return f"deadlock: {ring[0]} waits for itself"
        return f"deadlock: {', '.join(ring)} wait for each other in a ring"

    def sentence(self, text: str) -> str:
        """Return the text.  If there is a deadlock, the text about the
        deadlock comes first."""
        ring = self.deadlock()
        return f"{ring}; {text}" if ring else text

    def _brief(self, target: tuple[Any, ...]) -> str:
        """Return a short text about the target of a thread's wait."""
        kind, *rest = target
        if kind == "stream":
            return self._label(rest[0])
        if kind == "event":
            _, key = rest[0]
            return (
                f"an event recorded on {self._label(key)}"
                if key
                else "an event"
            )
        if kind == "device":
            return f"all work of {rest[0]}:{rest[2]}"
        for one in self.callables:
            if one.future is rest[0]:
                return one.label
        return _count(len(_left_of(rest[0])), "object")

    def all(self) -> list[str]:
        """Return a line for each stream that has work, unless another line
        covers the stream, and a line for each waiting thread of the
        program."""
        keys = dict.fromkeys(_C.explain_streams())
        keys.update(dict.fromkeys(c.key for c in reversed(self.callables)))
        sentences: dict[Key, tuple[str, set[Key]]] = {}
        rings: dict[frozenset[int], list[_Callable]] = {}
        for key in keys:
            self.shown, self.ring = set(), []
            text = self.subject(("stream", key))
            sentences[key] = text, self.shown
            if self.ring:
                rings[frozenset(map(id, self.ring))] = self.ring
        lines, shown = [], set()
        for self.ring in rings.values():
            lines.append(self.deadlock())
        # Do not use items(): CPython 3.10 frees its iterator wrongly if memory
        # is short.
        inner = {k for key in sentences for k in sentences[key][1] - {key}}
        for key in sorted(sentences, key=inner.__contains__):
            if key not in shown:
                lines.append(sentences[key][0])
                shown |= sentences[key][1]
        running = {c.thread for c in self.callables if c.running}
        for thread in self.threads:
            if thread.ident not in running:
                lines.append(
                    f"{thread_name(thread.ident)} has waited for "
                    f"{_seconds(thread.seconds)} in {thread.operation}"
                    f"{' ' if thread.place else ''}{thread.place}, for "
                    f"{self._brief(thread.target)}"
                )
        if len(lines) > _LINES:
            lines[_LINES:] = [f"... and {len(lines) - _LINES} more lines"]
        return lines


def _surely(limit: int, say: Callable[[_Explanation], str]) -> str:
    """Return the result of `say`; report a deadlock only if it persists."""
    for pause in (0.02, 0.05):
        explanation = _Explanation(limit)
        text = say(explanation)
        if not explanation.ring:
            return text
        sleep(pause)
    return say(_Explanation(limit))


def explain_timeout(target: tuple[Any, ...]) -> str:
    """Return the end of a TimeoutError's message."""

    def say(explanation: _Explanation) -> str:
        explanation.add_wait(target)
        return explanation.sentence(explanation.subject(target))

    return _surely(_FEW, say)


def explain_deadlock(target: tuple[Any, ...]) -> str:
    """Return the end of the message of a deadlock that a schedule has
    found."""
    # Do not look a second time, as _surely() does.  The schedule knows that
    # this is a deadlock, and the deadlock may be over by then: its error,
    # raised in another thread, may have broken the ring.
    explanation = _Explanation(_FEW, scheduled=True)
    text = explanation.subject(target)
    return f"{explanation.deadlock() or 'deadlock'}; {text}"


def answer() -> None:
    """Write explain() to the process's stderr; called after a signal."""
    text = f"pystreams, process {os.getpid()}:\n{explain()}\n"
    data = text.encode(errors="backslashreplace")
    while data:
        data = data[os.write(2, data) :]


def explain(x: _C.Stream | _C.Event | Future[Any] | None = None) -> str:
    """See pystreams.explain."""
    if x is None:
        text = _surely(_MANY, lambda found: "\n".join(found.all()))
        return text or "no work is known to be pending"
    if not isinstance(x, (_C.Stream, _C.Event, _C.FutureBase)):
        raise TypeError(
            "explain() expects a Stream, an Event, a Future of Stream.submit "
            f"or None for x, but got {type(x).__name__}"
        )
    return _surely(_MANY, lambda found: found.sentence(found.any(x)))
