"""Find missing waits: accesses to the same memory that may run in any order.

with pystreams.races.detect():
    ...

Two accesses to the same bytes race if one of them writes and nothing makes the
second wait for the first.  Whether they really overlap in time does not
matter: a race is found whatever the timing of the run.

Order comes from a stream, from events that are recorded and waited for, from
synchronize() and wait() of any kind, from a query() that says that work is
done, and from the result of a Future.  Calls to this package count as ordered
by the time at which they are made, even if different threads make them.

These count as accesses: copies and fills of Buffers, views of Buffers in
memory that the host can address, Buffers among the arguments of Stream.submit,
and memory that declare() names.  Each launch of a graph makes the accesses
that were captured.  Work of other processes is not followed.
"""

from __future__ import annotations

import atexit
import linecache
import logging
import os
import sys
import textwrap
import threading
from collections import ChainMap
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass
from inspect import (
    isasyncgenfunction,
    iscoroutinefunction,
    isgeneratorfunction,
)
from itertools import chain
from traceback import walk_stack
from typing import Any

from . import _C, accelerator, cuda
from ._C import Event, Stream
from ._errors import related
from ._expressions import as_written, expressions, name_in_package
from ._names import (
    PER_THREAD,
    is_thread_stream,
    stream_label,
    thread_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Action = str | Callable[["Race"], object]
    Place = tuple[str, int, str]  # file, line and function
    Handle = tuple[str, int, int]  # device type, index, and the stream's

__all__ = [
    "Operation",
    "Race",
    "RaceError",
    "Redundant",
    "declare",
    "detect",
    "redundant",
]

_COLUMNS = 79
_PACKAGE = os.path.dirname(__file__) + os.sep
# Files in these places do not belong to the program: those of this package, of
# the standard library, and of installed packages.
_OTHERS = (_PACKAGE, os.path.dirname(os.__file__) + os.sep, "<frozen ")
_INSTALLED = ("/site-packages/", "/dist-packages/")
_log = logging.getLogger("pystreams.races")


def _with_place(text: str, place: Place | None) -> str:
    """Append the place, and its line of code, to the text."""
    if place is None:
        return text
    filename, number, function = place
    text += f'\n  File "{filename}", line {number}, in {function}'
    line = linecache.getline(filename, number).strip()
    return f"{text}\n    {line}" if line else text


@dataclass(frozen=True)
class Operation:
    """One of the two accesses of a race."""

    #: "copy", "fill", "submit", "a view", or what declare() was given.
    name: str
    #: The device type, its index and the stream's handle; None for an access
    #: by the host.
    stream: tuple[str, int, int] | None
    #: The name of the thread that made the call.
    thread: str
    writes: bool
    #: Whether a callable of Stream.submit makes the access while it runs.
    in_callable: bool
    filename: str | None
    line: int | None
    function: str | None
    #: The stream's name, if the stream still exists and has a name.
    stream_name: str | None = None
    #: If a callable made the access: the file, line and function of the call
    #: to submit().
    submitted: tuple[str, int, str] | None = None

    @property
    def _place(self) -> Place | None:
        if self.filename is None or self.line is None:
            return None
        return self.filename, self.line, self.function or ""

    def __str__(self) -> str:
        """The access, its place and the line of the program.  If a callable
        made the access, also the line of its submit()."""
        if self.stream is None:
            where = "the host"
        else:
            kind, index, handle = self.stream
            where = stream_label(f"{kind}:{index}", handle, self.stream_name)
        verb = "write" if self.writes else "read"
        name = "a submitted callable" if self.name == "submit" else self.name
        if self.in_callable:
            name += " in a callable"
        elif self.thread != threading.main_thread().name:
            where += f", thread {self.thread}"
        text = _with_place(f"{verb} by {name}, on {where}", self._place)
        if self.submitted is not None:
            text = _with_place(f"{text}\nsubmitted at", self.submitted)
        return text


@dataclass(frozen=True)
class Race:
    """Two unordered accesses to the same bytes."""

    first: Operation
    second: Operation
    #: The bytes that both access.
    address: int
    nbytes: int
    #: The wait that is missing: a line of code to add before the second access
    #: or, if a callable makes that access, before the callable's submit().
    #: Comments above the line explain names that are not visible there.
    missing: str
    #: Whether the memory was freed between the two accesses, and now belongs
    #: to another Buffer.
    freed: bool = False

    def __str__(self) -> str:
        first = textwrap.indent(str(self.first), "    ")
        second = textwrap.indent(str(self.second), "    ")
        place = "the second"
        if self.second.in_callable:
            place = "the submit() of the second's callable"
        notes = ""
        for one in (self.first, self.second):
            if one.name == "a view" and one.writes:
                notes = (
                    "  a view counts as a write; memoryview(readonly=True) "
                    "reads\n"
                )
        if self.freed:
            notes += (
                "  the memory was freed in between; record_stream() before "
                "that\n  keeps it until the first is done\n"
            )
        *comments, missing = self.missing.splitlines()
        if len(missing) > _COLUMNS - 4:
            missing = missing.replace("wait_stream(", "wait_stream(\n    ")
        missing = textwrap.indent("\n".join([*comments, missing]), "    ")
        return (
            f"nothing orders two accesses to {self.nbytes} bytes at "
            f"{hex(self.address)}:\n"
            f"  first\n{first}\n"
            f"  second\n{second}\n{notes}"
            f"  missing, before {place}\n{missing}"
        )


class RaceError(RuntimeError):
    """A race was found; the second access was not queued."""

    def __init__(self, race: Race) -> None:
        super().__init__(str(race))
        self.race = race


class _User:
    """A user of the detector, and its action for a race."""

    def __init__(self, action: Action, keeps: bool) -> None:
        self.action = action
        #: Whether it reports, at its end, races whose errors the program has
        #: caught.
        self.keeps = keeps
        # The pairs of places of the races that were found.
        self._known: set[tuple[object, ...]] = set()
        # The first race of each pair that was raised.
        self._kept: list[Race] = []

    def is_new(self, race: Race) -> bool:
        """Whether this is the first race between its two places."""
        operations = (race.first, race.second)
        key = tuple((o.name, o.filename, o.line, o.writes) for o in operations)
        with _lock:
            new = key not in self._known
            self._known.add(key)
            if new and self.keeps and self.action == "raise":
                self._kept.append(race)
        return new

    def take(self, error: BaseException | None = None) -> list[Race]:
        """Return the races that were raised since the last call, without
        those that the error reports."""
        reported = _reported_by(error)
        with _lock:
            kept, self._kept = self._kept, []
        return [race for race in kept if race not in reported]

    def forget(self) -> None:
        """Forget the races in a forked child, because they are its
        parent's."""
        self._kept = []


def _reported_by(error: BaseException | None) -> list[Race]:
    """Return the races that an error, and the errors that caused it,
    report."""
    return [e.race for e in related(error) if isinstance(e, RaceError)]


# Guards the variables below, and the fields of each user.  If another thread
# holds it at a fork, that thread does not exist in the child, so the child
# resets it.
_lock = threading.RLock()
os.register_at_fork(
    after_in_child=_lock._at_fork_reinit  # type: ignore[attr-defined]
)
_users: list[_User] = []
# An error that was raised and might get lost, the thread that raised it, and
# the frames that this thread had then.
_raised: tuple[RaceError, int, list[Any]] | None = None
# How many redundant() blocks there are.
_counting = 0


def _stacks() -> list[list[Any]]:
    """Return a list of frames for the calling thread, the innermost first.  If
    the GIL keeps other threads from running, also return one for each of
    them."""
    innermost = [sys._getframe()]
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        others = sys._current_frames()
        others.pop(threading.get_ident(), None)
        innermost += others.values()
    return [[frame for frame, _ in walk_stack(top)] for top in innermost]


# The types that f_locals of a frame has by default.  Frames with others are
# skipped: a class body, or exec(), may have a mapping of the program's own
# type, whose methods must not run.
_VARIABLES = {dict, (lambda: type(sys._getframe().f_locals))()}


def _is_of_program(filename: str) -> bool:
    return not filename.startswith(_OTHERS) and not any(
        part in filename for part in _INSTALLED
    )


def _scopes(place: Place) -> Iterator[tuple[dict[str, object], str]]:
    """Yield (variables, name) for each running function of the program, and
    for each module with such a function.  The name is that of the function or
    module, or "" if the variables are visible at the place.

    The thread that is running the place's function comes first.  If that is
    another thread, the calling thread runs a callable.  In this case, the
    variables of the callable's functions are left out, since these functions
    have not queued the operation.
    """
    filename, _, function = place

    def is_there(frame: Any) -> bool:
        code = frame.f_code
        return (code.co_filename, code.co_name) == (filename, function)

    own, *others = _stacks()
    there = next(filter(is_there, chain(own, *others)), None)
    modules: set[int] = set()
    for stack in sorted([*others, own], key=lambda stack: there not in stack):
        has_names = stack is not own or there in own
        for frame in stack:
            file, name = frame.f_code.co_filename, frame.f_code.co_name
            if frame is not there and not _is_of_program(file):
                continue
            variables, module = frame.f_locals, frame.f_globals
            if (
                has_names
                and variables is not module
                and type(variables) in _VARIABLES
            ):
                where = f"{name}(), {os.path.basename(file)}:{frame.f_lineno}"
                yield variables, "" if frame is there else where
            if type(module) is dict and id(module) not in modules:
                modules.add(id(module))
                title = module.get("__name__")
                where = f"module {title if type(title) is str else '?'}"
                yield module, "" if file == filename else where


@dataclass
class _Named:
    """The program's names for the objects that a race involves."""

    #: For each stream, an expression for it, and the name from _scopes that
    #: says where it is visible.
    streams: dict[Handle, tuple[str, str]]
    #: An expression for an event that was recorded after the first operation.
    event: str | None
    #: The variables that are visible at the place of the second operation,
    #: which is in the file `filename`.
    visible: ChainMap[str, object]
    filename: str


def _search(
    one: Operation, two: Operation, point: tuple[int, int] | None
) -> _Named:
    """Find the names; see _missing."""
    wanted = {
        _callers(stream) for stream in (one.stream, two.stream) if stream
    }
    place = two.submitted if two.in_callable else two._place
    filename = place[0] if place else two.filename or ""
    named = _Named({}, None, ChainMap(), filename)
    names = named.streams
    for variables, where in _scopes(place or (filename, 0, "")):
        # An event of another function may not be meant for this.
        if names.keys() >= wanted and (named.event or not point or where):
            break
        if not where:
            named.visible.maps.append(variables)
        for text, found in expressions(variables, (Stream, Event)):
            if isinstance(found, Stream):
                # Do not call a subclass's properties: they are the program's.
                try:
                    handle = Stream.native_handle.__get__(found)
                except ValueError:
                    # The stream is closed.
                    continue
                device = Stream.device.__get__(found)
                key = (device.type, device.index or 0, handle)
                names.setdefault(key, (text, where))
            elif (
                point
                and named.event is None
                and not where
                and _C.races_orders(found, *point)
            ):
                named.event = text
            if names.keys() >= wanted and (named.event or not point or where):
                break
    return named


def _missing(
    one: Operation, two: Operation, point: tuple[int, int] | None
) -> str:
    """Return the wait that is missing, as code.

    The code has the program's own names for streams and events, if running
    functions have such names.  A comment explains each name that is not
    visible at the place of the second operation.

    point: the arguments by which races_orders() identifies the first
    operation.  It is None if the second operation was queued already, because
    the events may have been recorded again since then.
    """
    assert one.stream is not None
    try:
        named = _search(one, two, point)
    except (MemoryError, RecursionError):
        # A race without the program's names is better than none.
        named = _Named({}, None, ChainMap(), "")
    comments: dict[str, list[str]] = {}
    needs_import = False

    def name(operation: Operation) -> str:
        nonlocal needs_import
        assert operation.stream is not None
        stream = _callers(operation.stream)
        text, where = named.streams.get(stream, ("", ""))
        if where:
            comments.setdefault(f"in {where}", []).append(text)
            return text
        if text:
            return as_written(text, named.visible, named.filename)
        path = _path(stream)
        code = name_in_package(path, named.visible)
        text = code or f"pystreams.{path}"
        if operation.stream_name is not None:
            meaning = f'the stream named "{operation.stream_name}"'
            handle = hex(stream[2])
            comments.setdefault(meaning, []).append(
                handle if handle in text else text
            )
        needs_import = needs_import or code is None
        return text

    waiting = name(two) if two.stream else None
    event = named.event
    if event:
        waited = as_written(event, named.visible, named.filename)
    else:
        waited = name(one)
    if event is None and is_thread_stream(one.stream[2]):
        # The first operation is on the default stream of another thread, and
        # only that thread can name this stream.
        event = waited = f"{waited}.record_event() of thread {one.thread}"
    if waiting is None:
        code = f"{waited}.synchronize()"
    else:
        method = "wait_event" if event else "wait_stream"
        code = f"{waiting}.{method}({waited})"
    lines = [f"# {', '.join(texts)}: {m}" for m, texts in comments.items()]
    if needs_import:
        lines.append("# needs: import pystreams")
    return "\n".join([*lines, code])


def _callers(stream: tuple[str, int, int]) -> tuple[str, int, int]:
    """Return the stream, with the handle by which its own thread refers to
    it."""
    kind, index, handle = stream
    return (kind, index, PER_THREAD) if is_thread_stream(handle) else stream


def _path(stream: Handle) -> str:
    """Return the path of a call to this package that returns the stream."""
    kind, index, handle = stream
    default: Stream
    try:
        if kind == "cuda":
            module, default = "cuda", cuda.default_stream(index)
        else:
            module = "accelerator"
            default = accelerator.default_stream(f"{kind}:{index}")
        if default.native_handle == handle:
            return f"{module}.default_stream({index})"
    except (RuntimeError, ValueError):
        # For example, the type is not that of the accelerator.
        pass
    return f'ExternalStream({hex(handle)}, "{kind}:{index}")'


def _operation(view: tuple[Any, ...]) -> Operation:
    name, stream, thread, writes, in_callable, place, *rest = view
    filename, line, function = place or (None, None, None)
    return Operation(
        name,
        stream,
        thread_name(thread, "{}"),
        bool(writes),
        bool(in_callable),
        filename,
        line,
        function,
        *rest,
    )


def _report(
    first: Any,
    second: Any,
    address: int,
    nbytes: int,
    freed: int,
    point: tuple[int, int] | None,
) -> None:
    __tracebackhide__ = True
    one, two = _operation(first), _operation(second)
    missing = _missing(one, two, point)
    race = Race(one, two, address, nbytes, missing, bool(freed))
    with _lock:
        user = _users[-1] if _users else None
    if user is None:
        return
    new = user.is_new(race)
    if user.action == "raise":
        error = RaceError(race)
        raise error if user.keeps else _noted(error)
    if callable(user.action):
        user.action(race)
    elif new:
        _log.warning("%s", race)


def _noted(error: RaceError) -> RaceError:
    """Remember the error, unless another one is still to be delivered."""
    global _raised
    frames = [frame for frame, _ in walk_stack(sys._getframe(1))]
    with _lock:
        if _undelivered(threading.get_ident()) is None:
            _raised = error, threading.get_ident(), frames
    return error


def _undelivered(thread: int) -> RaceError | None:
    """Return the error that _noted() remembers, if no function on the thread
    received it: either C code dropped the error, or it was raised on another
    thread and ended there.  Otherwise, return None."""
    if _raised is None:
        return None
    error, raiser, frames = _raised
    # A traceback begins with the outermost function that the exception has
    # reached.  Some Pythons give an exception a traceback only when a function
    # catches it.
    trace = error.__traceback__
    if trace is None or trace.tb_frame is frames[0]:
        return error
    return error if raiser != thread and trace.tb_frame in frames else None


def _deliver(cause: BaseException | None) -> None:
    """Raise a RaceError that was lost.  This is called at the end of a
    block."""
    global _raised
    with _lock:
        error = _undelivered(threading.get_ident())
        _raised = None
    if error is not None and not isinstance(cause, RaceError):
        raise error from cause


def _begin(action: Action, *, keeps: bool = False) -> _User:
    if iscoroutinefunction(action) or (
        not callable(action) and action not in ("raise", "warn")
    ):
        raise ValueError(
            "detect() expects 'raise', 'warn' or a callable for action, but "
            f"got {action!r}"
            + (", whose coroutine nothing awaits" if callable(action) else "")
        )
    user = _User(action, keeps)
    with _lock:
        _users.append(user)
        # Start the detector even if there are users: in a forked child, one of
        # them may belong to a thread of the parent that had not started it
        # yet.
        _C.races_start(_report)
    return user


def _end(user: _User) -> None:
    with _lock:
        # Blocks of several threads may end in any order.
        _users.remove(user)
        if not _users:
            _C.races_stop()


def _detect_in_program(action: Action) -> None:
    """Look for races until the program ends.  Then report those whose errors
    the program has caught.  If there are any, the exit status is 1."""
    user = _begin(action, keeps=True)
    atexit.register(_report_caught, user)
    os.register_at_fork(after_in_child=user.forget)


def _report_caught(user: _User) -> None:
    races = user.take(getattr(sys, "last_value", None))
    if not races:
        return
    _C.set_exit_status(1)
    if sys.stderr is not None:
        count = "a race" if len(races) == 1 else f"{len(races)} races"
        print(
            f"pystreams.races: {count} did not end the program:",
            *races,
            sep="\n\n",
            file=sys.stderr,
        )


class detect(ContextDecorator):
    """detect(action="raise")

    Look for races in the whole process until the block ends.

    action says what happens when a race is found.  "raise" raises RaceError
    from the call that makes the second access, and does not queue this access.
    If that error is lost, because another library drops it or because it ends
    a callable or a thread, the block raises it when it ends.  "warn" logs each
    pair of places once, to the logger "pystreams.races".  A callable is called
    with the Race, and the second access is queued if it returns.  Of nested
    blocks, the one that began last decides what happens.  Work queued before
    the outermost block began is ignored.

    A function decorated with detect() runs in such a block.

    Raises ValueError for an invalid action, and TypeError if a coroutine or
    generator function is decorated.
    """

    def __init__(self, action: Action = "raise") -> None:
        self._action = action
        self._users: list[_User] = []

    def __call__(self, func: Any) -> Any:
        if (
            iscoroutinefunction(func)
            or isgeneratorfunction(func)
            or isasyncgenfunction(func)
        ):
            raise TypeError(
                "detect() cannot decorate a coroutine or generator function, "
                "whose body runs after the call; write `with races.detect():` "
                f"in {getattr(func, '__qualname__', repr(func))}()"
            )
        return super().__call__(func)

    def __enter__(self) -> None:
        self._users.append(_begin(self._action))

    def __exit__(
        self, kind: object, error: BaseException | None, *trace: object
    ) -> None:
        _end(self._users.pop())
        _deliver(error)


@dataclass(frozen=True)
class Redundant:
    """A wait of the program that never ordered anything new."""

    #: "wait" for a wait by a stream, "synchronize" for a wait by the host.
    name: str
    #: How often it was made.
    count: int
    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        """Two or three lines: what, where, and the line of the program."""
        times = "once" if self.count == 1 else f"{self.count} times"
        place = self.filename, self.line, self.function
        return _with_place(f"{self.name}, {times}", place)


@contextmanager
def redundant(action: Action = "raise") -> Iterator[list[Redundant]]:
    """redundant(action="raise")

    Look for races like detect(action), and list redundant waits.  The block
    gets a list.  When the block ends, the list has the waits that ordered
    nothing new: calls to wait_event, wait_stream, Event.wait and synchronize
    for work that was already ordered, or known to be done.

    Calls from one line of the program count as one, and a line is left out if
    one of its calls was needed.  Work of other libraries is known only if it
    is declared; a wait for undeclared work looks redundant.  If blocks
    overlap, each lists the waits since the first one began.

    Raises as detect() does.
    """
    with detect(action), _counted_waits() as found:
        yield found


@contextmanager
def _counted_waits() -> Iterator[list[Redundant]]:
    """Do what redundant() does, for a program in which the detector is already
    on."""
    global _counting
    found: list[Redundant] = []
    with _lock:
        if _counting == 0:
            _C.races_count_waits(True)
        _counting += 1
    try:
        yield found
    finally:
        with _lock:
            found += [
                Redundant(name, count, filename, line, function)
                for (name, filename, line, function), count in (
                    _C.races_redundant()
                )
            ]
            _counting -= 1
            if _counting == 0:
                _C.races_count_waits(False)


def declare(
    stream: Stream | None,
    *,
    reads: Iterable[Any] = (),
    writes: Iterable[Any] = (),
    name: str = "declared work",
) -> None:
    """declare(stream, *, reads=(), writes=(), name="declared work")

    Declare the memory that another library's work accesses.  The library is
    about to queue that work on the stream, or has just queued it.

    With stream=None, the access is the host's own, through a view or a pointer
    that it has kept.  reads and writes hold Buffers and their slices, arrays
    with the CUDA array interface or DLPack, and (address, nbytes) pairs; the
    gaps in an array count, too.  Does nothing, and costs little, while nothing
    looks for races.

    Raises RaceError as detect() does, and TypeError for any other kind of
    memory or stream.
    """
    if _users:
        _C.races_declare(stream, name, reads, writes)
    elif stream is not None and not hasattr(stream, "__cuda_stream__"):
        _C.as_stream("declare", stream)
