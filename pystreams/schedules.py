"""Test a program under many legal schedules, and replay any of them.

result = pystreams.schedules.explore(fn)
pystreams.schedules.replay(fn, "pct:2:17:240")

On a real device, and on the CPU engine's threads, work is mostly done in the
order in which it was queued, so a missing wait rarely shows.  Here the CPU
engine has no threads: fn's own calls run the work, and a schedule decides when
each operation runs, and whether fn continues before that.  Any such order is
one that the program allows.  The same name gives the same order on every
machine.

Time is virtual: a sleep costs nothing, elapsed_time() is exact, and the
timeout of a wait expires in virtual time.  Memory is poisoned when it is
allocated and when it is freed.  A wait that can never end raises RuntimeError
at once.

fn must make its own streams.  Devices must be idle when fn is called, and are
idle after the run.  Work that other threads of the program queue takes part,
in the order in which it arrives.  Callables of Stream.submit run one at a
time, when the schedule says.  Python's garbage collector is off meanwhile:
what it frees, and when, depends on what the program did before.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, groupby, pairwise
from traceback import clear_frames, print_exception
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, NamedTuple

from . import _C
from ._arguments import integer
from ._errors import related
from ._names import stream_label
from ._orders import Orders, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import SupportsIndex, TypeVar

    from ._futures import StreamFuture

    _T = TypeVar("_T")

__all__ = ["Result", "explore", "replay", "run"]

_PACKAGE = os.path.dirname(__file__) + os.sep
_STRATEGIES = {"late": 0, "early": 1, "random": 2, "pct": 3, "all": 5}
_HELD = 4
_DELAYING = (_STRATEGIES["late"], _STRATEGIES["early"], _HELD)
_ALONE = 64  # How many operations are tried as the only late one.
_STEPS = 256  # How many steps a pct schedule has if its name does not say it.
_CHOICES = 1 << 24  # How many choices the name of an all schedule may have.
_EXPECTED = (
    "the name of a schedule: 'late', 'early', 'late:NUMBERS' with ascending "
    "numbers from 1, 'random:SEED', 'pct:DEPTH:SEED', "
    "'pct:DEPTH:SEED:STEPS', 'all' or 'all:NUMBERS', as a report has it"
)


@dataclass(frozen=True)
class Result:
    """The result of explore(), if fn raised no exception under any
    schedule."""

    #: How many schedules ran.
    runs: int
    #: How many of them were different.
    distinct: int
    #: Whether these are all the different schedules that exist; None if the
    #: strategy cannot tell.
    complete: bool | None

    def __str__(self) -> str:
        if self.complete and self.distinct == 1:
            return "the only order holds"
        if self.complete:
            return f"all {self.distinct} orders hold"
        # Sequences that the program cannot tell apart are one order, and only
        # the strategy "all" counts orders.
        runs = "run" if self.runs == 1 else "runs"
        what = "sequence" if self.complete is None else "order"
        what = what if self.distinct == 1 else f"different {what}s"
        more = "" if self.complete is None else "; there may be more"
        return f"{self.runs} {runs} passed, in {self.distinct} {what}{more}"


class _Schedule(NamedTuple):
    """What a schedule's name says."""

    strategy: int
    seed: int = 0
    changes: int = 0
    steps: int = 0
    numbers: tuple[int, ...] = ()


def _number(text: str, least: int = 0, most: int = (1 << 64) - 1) -> int:
    number = int(text)
    if str(number) != text or not least <= number <= most:
        raise ValueError
    return number


def _choices(text: str) -> tuple[int, ...]:
    """Return the numbers that the text lists: "0*3,2" means 0, 0, 0 and 2."""
    groups = []
    for group in text.split(","):
        number, *times = group.split("*")
        groups.append((_number(number), [_number(n, 2) for n in times] or [1]))
    # Count the choices before making them, as a short text may mean any number
    # of choices.
    if sum(times[0] for _, times in groups) > _CHOICES:
        raise ValueError
    return tuple(n for n, (times,) in groups for _ in range(times))


def _name_of(choices: Sequence[int]) -> str:
    """Return the name of the schedule that makes these choices."""
    texts = []
    for number, group in groupby(choices):
        times = len(list(group))
        texts.append(f"{number}*{times}" if times > 1 else str(number))
    return ":".join(["all", ",".join(texts)] if texts else ["all"])


def _late(text: str) -> tuple[int, ...]:
    numbers = tuple(_number(number, 1) for number in text.split(","))
    if any(one >= other for one, other in pairwise(numbers)):
        raise ValueError
    return numbers


def _read(name: str) -> _Schedule:
    """Return what a schedule's name means.

    Raises ValueError if no schedule has this name.
    """
    match name.split(":"):
        case ["late" | "early" | "all" as strategy]:
            return _Schedule(_STRATEGIES[strategy])
        case ["late", numbers]:
            return _Schedule(_HELD, numbers=_late(numbers))
        case ["all", numbers]:
            return _Schedule(_STRATEGIES["all"], numbers=_choices(numbers))
        case ["random", seed]:
            return _Schedule(_STRATEGIES["random"], _number(seed))
        case ["pct", depth, seed, *rest] if len(rest) < 2:
            changes = _number(depth, 1, 64) - 1
            steps = _number(rest[0], 1) if rest else _STEPS
            return _Schedule(_STRATEGIES["pct"], _number(seed), changes, steps)
    raise ValueError


def _parse(name: str, asks: str) -> _Schedule:
    """Return what a schedule's name means.

    Raises TypeError if name is not a str, and ValueError if no schedule has
    this name.  The error begins with `asks`, the name of the caller.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"{asks} expects a str for name, but got {type(name).__name__}"
        )
    try:
        return _read(name)
    except ValueError:
        raise ValueError(
            f"{asks} expects {_EXPECTED}, but got {name!r}"
        ) from None


# ---- One run


@dataclass(frozen=True)
class _Operation:
    """One operation of a run."""

    number: int
    name: str
    device_type: str
    device: int
    #: The stream's handle, which differs between runs.
    handle: int = field(compare=False)
    stream: int
    step: int
    time: int
    overtaken: bool


class _Places:
    """Where the operations of a run were queued, and on which streams."""

    def __init__(self) -> None:
        self._places: dict[int, str] = {}
        # The names of streams, by operation, device and handle.  The handle is
        # needed because a graph's operations also run on streams other than
        # that of the launch.
        self._names: dict[tuple[int, int, int], str | None] = {}
        # Whether the run has failed.  Work that is queued after that belongs
        # to the clean-up.
        self.complete = False

    def note(
        self, first: int, last: int, device: int, handle: int, name: str | None
    ) -> None:
        # Note the name now: when the run has failed, the stream may have been
        # destroyed, and another stream may have its handle.
        for number in range(first, last + 1):
            self._names[number, device, handle] = name
        frame: Any = None
        if not self.complete:
            # There is no caller at the end of a thread.  If memory is short,
            # f_back in CPython 3.12 returns with an exception pending.
            with suppress(ValueError):
                frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(
            _PACKAGE
        ):
            frame = frame.f_back
        if frame is not None:
            code = frame.f_code
            place = f"{code.co_filename}:{frame.f_lineno}, in {code.co_name}"
            self._places.update(dict.fromkeys(range(first, last + 1), place))

    def __getitem__(self, number: int) -> str:
        return self._places.get(number, "")

    def label(self, operation: _Operation) -> str:
        """Return the name of the operation's stream."""
        o = operation
        name = self._names.get((o.number, o.device, o.handle))
        return stream_label(f"{o.device_type}:{o.device}", str(o.stream), name)


class _Run:
    """A run under one schedule, and its result."""

    def __init__(
        self, name: str, *, logged: bool = False, asks: str = "explore()"
    ) -> None:
        self.name = name
        self._schedule = _parse(name, asks)
        self.places = _Places()
        self._note = self.places.note if logged else None
        self.operations: list[_Operation] = []
        self.notes: list[tuple[int, int, int, int]] = []
        self.count = self.steps = self.order = self.followed = 0
        # The Futures of callables that a deadlock's error has ended.
        self.stuck: list[StreamFuture] = []
        self._failed = self._paused = self._collects = False

    @property
    def overtaken(self) -> set[int]:
        """The numbers of the operations that could have run, but had not, when
        the program or a callable continued."""
        return {o.number for o in self.operations if o.overtaken}

    @property
    def late(self) -> set[int]:
        """The numbers of the operations that were late.

        For "late", "early" and "late:NUMBERS", these are the overtaken ones.
        For other schedules, an operation is late if it did not run, or ran
        after an operation that was queued later.  If no operation is late by
        this rule, the overtaken ones are late.
        """
        if self._schedule.strategy in _DELAYING:
            return self.overtaken
        newest, late = 0, set()
        for number, o in self.begun.items():
            if number < newest or not o.step:
                late.add(number)
            newest = max(newest, number)
        return late or self.overtaken

    @property
    def begun(self) -> dict[int, _Operation]:
        """The operations by number, in the order in which they began.

        A callable is two operations with one number: its begin and its end.
        """
        found: dict[int, _Operation] = {}
        for o in self.operations:
            found.setdefault(o.number, o)
        return found

    def begin(self, continues: bool = False) -> None:
        _C.schedule_begin(*self._schedule, self._note, continues)

    def __enter__(self) -> _Run:
        global _inner
        if _unended is not None:
            _unended._end(True)
        if _program is not None and _inner is None and _C.schedule_is_on():
            # Pause the program's own schedule.
            _C.schedule_end(False)
            self._paused = True
        self._collects = gc.isenabled()
        was_on = _C.schedule_is_on()
        try:
            gc.disable()
            self.begin(self._paused)
        except BaseException as error:
            # Ctrl-C may come after the schedule has begun.  If the schedule
            # was refused instead, the one that is on is another thread's.
            interrupted = isinstance(error, KeyboardInterrupt)
            if interrupted and not was_on and _C.schedule_is_on():
                _C.schedule_end(True)
            self._collect()
            self._resume()
            raise
        _inner = self
        return self

    def _collect(self) -> None:
        if self._collects:
            gc.enable()

    def _resume(self) -> None:
        if self._paused and _program is not None:
            self._paused = False
            _program.begin(continues=True)

    def __exit__(
        self, kind: type[BaseException] | None, *rest: object
    ) -> None:
        try:
            self._end(self._failed or kind is not None)
        finally:
            self._collect()

    def _end(self, drop: bool) -> None:
        global _inner, _unended
        try:
            found = _C.schedule_end(drop)
        except RuntimeError:
            _unended = self
            raise
        _inner, _unended = None, None
        self._resume()
        self.count, self.steps, self.order = found[:3]
        self.followed, log, self.notes = found[3:]
        self.operations = [_Operation(*entry) for entry in log]

    def failure_of(
        self, fn: Callable[[], object], *, keep: bool = True
    ) -> Exception | None:
        """Call fn under the schedule.  Return the Exception that it raises, or
        None.

        If fn fails, its variables are freed before the schedule ends, unless
        `keep` is true.  If fn does not fail, but a deadlock was lost, returns
        the exception of the deadlock.
        """
        failure = result = None
        try:
            with self:
                try:
                    result = fn()
                except Exception as error:
                    failure, self._failed = error, True
                    self.places.complete = True
                    if not keep:
                        clear_frames(error.__traceback__)
                _refuse_unstarted(result)
            if failure is None:
                failure = self.take_lost()
                if failure is not None and not keep:
                    clear_frames(failure.__traceback__)
            return failure
        finally:
            self.stuck.clear()
            # The exception's traceback has this frame, and so this variable:
            # without `del`, it would be a reference cycle.
            del failure

    def take_lost(self) -> Exception | None:
        """Return the first unretrieved exception that has ended a callable
        because of a deadlock, or None.  It then counts as retrieved."""
        for future in self.stuck:
            if isinstance(future._unretrieved, Exception):
                return future._exception  # type: ignore[return-value]
        return None

    def note_failed(self, future: StreamFuture) -> None:
        # Forget those whose exceptions code has retrieved meanwhile.
        self.stuck = [f for f in self.stuck if f._unretrieved is not None]
        if _comes_from_deadlock(future._unretrieved):
            self.stuck.append(future)

    def refuse_stale(self) -> None:
        """Raise ValueError if operations that should be late were not queued,
        or if a choice was not possible at its turn."""
        strategy, numbers = self._schedule.strategy, self._schedule.numbers
        fault = ""
        if strategy == _HELD and numbers[-1] > self.count:
            fault = (
                f"{self.name!r} holds back operation {numbers[-1]}, and fn "
                f"queued {self.count}"
            )
        if strategy == _STRATEGIES["all"] and self.followed < len(numbers):
            chosen = numbers[self.followed]
            fault = (
                f"choice {self.followed + 1} of {self.name!r}, "
                f"{f'stream {chosen}' if chosen else 'the program'}, was not "
                "possible"
            )
        if fault:
            raise ValueError(
                "replay() expects the name of a schedule of fn for name, but "
                f"{fault}; explore it again if it has changed"
            )


def _comes_from_deadlock(error: BaseException | None) -> bool:
    """Return whether the error is that of a deadlock, or has one as its cause,
    its context or a part."""
    return any(
        getattr(e, "_is_deadlock", False) is True for e in related(error)
    )


def _refuse_unstarted(result: object) -> None:
    """Raise TypeError if fn has returned a coroutine or a generator, because
    then its work has not begun."""
    if isinstance(result, (CoroutineType, GeneratorType, AsyncGeneratorType)):
        if isinstance(result, CoroutineType):
            result.close()
        raise TypeError(
            "explore() and replay() expect a function that does its work when "
            f"it is called for fn, but it returned a {type(result).__name__}; "
            "of a coroutine function f, give lambda: asyncio.run(f())"
        )


# The schedule of the whole program, the schedule that is explored within it,
# and a schedule that could not end because one of its callables was still
# running.
_program: _Run | None = None
_inner: _Run | None = None
_unended: _Run | None = None


def _forget() -> None:
    """In a forked child, end all schedules, so that its work runs on
    threads."""
    global _program, _inner, _unended
    if _inner is not None:
        _inner._collect()
    _program = _inner = _unended = None
    _C.schedule_forked()


os.register_at_fork(after_in_child=_forget)


def _explore_program(name: str) -> None:
    """Run the whole program under the schedule.

    When the program ends, report deadlocks whose errors were lost.  If there
    are any, the exit status is 1.
    """
    global _program
    _program = _Run(name, asks="PYSTREAMS_SCHEDULE")
    _program.begin()
    atexit.register(_report_lost)


def _report_lost() -> None:
    while _program is not None:
        error = _program.take_lost()
        if error is None:
            break
        _C.set_exit_status(1)
        if sys.stderr is not None:
            print(
                "pystreams.schedules: the error of a deadlock was never "
                "retrieved:",
                file=sys.stderr,
            )
            print_exception(error)


def _note_failed(future: StreamFuture) -> None:
    """Called when an exception has ended a callable."""
    run = _inner or _program
    if run is not None:
        run.note_failed(future)


@contextmanager
def run(name: str) -> Iterator[None]:
    """run(name)

    Run the work of the block under the schedule with this name.

    When the block ends, its remaining work is run.  If the block ends with an
    exception, that work is dropped.

    Raises ValueError if there is no such schedule, and TypeError if name is
    not a str.  Raises RuntimeError if a device is busy, if the block uses a
    device that does not belong to the CPU engine, or if another schedule is
    being explored.  Raises the error of a deadlock if it has ended a callable
    and nobody has retrieved it from the callable's Future.
    """
    block = _Run(name, asks="run()")
    with block:
        yield
    error = block.take_lost()
    block.stuck.clear()
    try:
        if error is not None:
            raise error
    finally:
        del error


# ---- Failures


def _shrink(
    fn: Callable[[], object], failed: _Run, error: Exception
) -> tuple[_Run, Exception]:
    """Return a failing run that is easier to understand, and its exception.
    In this run, few operations are late, and all others run as soon as they
    can.

    Each of the late operations is needed for the failure.  If there are
    several, none of the first _ALONE operations causes the failure as the only
    late one.  If no such run was found, returns `failed` and `error`.
    """

    def attempt(numbers: Sequence[int]) -> tuple[_Run, Exception] | None:
        name = "late:" + ",".join(map(str, numbers)) if numbers else "early"
        trial = _Run(name, logged=True)
        found = trial.failure_of(fn, keep=False)
        return (trial, found) if found and type(found) is kind else None

    def first_of(
        sets: Iterable[tuple[int, ...]],
    ) -> tuple[tuple[int, ...], tuple[_Run, Exception]] | None:
        for numbers in sets:
            if found := attempt(numbers):
                return numbers, found
        return None

    kind = type(error)
    queued = sorted(failed.begun)
    starts = map(sorted, (failed.overtaken, failed.late, queued, ()))
    # Two of the starts are often equal, so dict.fromkeys() drops duplicates.
    found = first_of(dict.fromkeys(map(tuple, starts)))
    size = len(found[0]) if found else 0
    while found and size:
        late, _ = found
        parts = range(0, len(late), size)
        fewer = first_of(late[:i] + late[i + size :] for i in parts)
        found = fewer or found
        size = min(size, len(found[0])) if fewer else size // 2
    if not found or len(found[0]) > 1:
        found = first_of((n,) for n in queued[:_ALONE]) or found
    return found[1] if found else (failed, error)


def _near(place: str) -> str:
    """Return the place, relative to the working directory if the file is
    inside it."""
    try:
        return place.removeprefix(os.getcwd() + os.sep)
    except OSError:
        return place


def _describe(run: _Run, options: str) -> str:
    begun = run.begun.values()
    ran = [o for o in begun if o.step]
    left = [o for o in begun if not o.step and run.places[o.number]]
    late = run.late
    rows = {
        o.number: (
            str(o.number),
            o.name,
            run.places.label(o),
            "late" if o.number in late else "",
        )
        for o in [*ran, *left]
    }
    columns = zip(*rows.values(), strict=True)
    widths = [max(map(len, column)) for column in columns]
    lines = [f'schedule "{run.name}"']
    for title, operations in (
        ("operations in the order in which they ran:", ran),
        ("operations that had not run:", left),
    ):
        if operations:
            lines.append(title)
        for o in operations:
            number, *cells = map(str.ljust, rows[o.number], widths)
            place = _near(run.places[o.number])
            line = "  ".join(("", f"{o.number:{len(number)}}", *cells, place))
            lines.append(line.rstrip())
    lines.append(
        f'replay it: pystreams.schedules.replay(fn, "{run.name}"{options})'
    )
    return "\n".join(lines)


def _add_note(error: BaseException, note: str) -> None:
    # Python 3.10 has no add_note().
    notes = getattr(error, "__notes__", None) or []
    error.__notes__ = [*notes, note]


def _raise_shrunk(fn: Callable[[], object], name: str, options: str) -> None:
    """Call fn under the schedule again.  If it fails, raise the exception of
    the reduced schedule, with a note."""
    logged = _Run(name, logged=True)
    error = logged.failure_of(fn, keep=False)
    if error is None:
        return
    shrunk, error = _shrink(fn, logged, error)
    note = _describe(shrunk, options)
    if shrunk.name != name:
        note += f'\nfound by the schedule "{name}"'
    elif shrunk is logged:
        note += (
            "\nnot reduced: fn did not fail in this way with some operations "
            "late and all others run at once"
        )
    # Run it again, and now keep fn's variables for a debugger.
    error = _Run(shrunk.name).failure_of(fn) or error
    _add_note(error, note)
    try:
        raise error
    finally:
        del error


def _checked(
    fn: Callable[[], _T], races: bool
) -> tuple[Callable[[], _T], str]:
    """Return the function to call instead of fn, and the text of the
    additional arguments that replay() needs."""
    if not races:
        return fn, ""
    from .races import detect

    def checked() -> _T:
        with detect():
            return fn()

    return checked, ", races=True"


# ---- Exploring


def _names(
    strategy: str, depth: int, seed: int, orders: Orders, done: list[_Run]
) -> Iterator[str]:
    """Yield the names of the schedules to run.  `done` has the runs so far."""
    if strategy in ("late", "early"):
        yield strategy
        return
    if strategy == "all":
        while (choices := orders.next()) is not None:
            yield _name_of(choices)
            orders.ran(*read(done[-1].notes))
            done[-1].notes = []
        return
    if strategy == "pct":
        # The pct schedules below change priorities within as many steps as
        # this first run takes.
        yield "early"
    for number in count(seed):
        if strategy == "random":
            yield f"random:{number}"
        else:
            yield f"pct:{depth}:{number}:{max(done[0].steps, 1)}"


def _check_callable(asks: str, fn: object) -> None:
    if not callable(fn):
        raise TypeError(
            f"{asks} expects a callable for fn, but got {type(fn).__name__}"
        )


def _check(strategy: str, runs: int, depth: int, seed: int) -> None:
    if strategy not in tuple(_STRATEGIES):
        raise ValueError(
            "explore() expects 'late', 'early', 'random', 'pct' or 'all' for "
            f"strategy, but got {strategy!r}"
        )
    if runs < 1:
        raise ValueError(
            f"explore() expects 1 or more for runs, but got {runs}"
        )
    if not 1 <= depth <= 64:
        raise ValueError(
            f"explore() expects 1 to 64 for depth, but got {depth}"
        )
    if not 0 <= seed < 1 << 63:
        raise ValueError(
            f"explore() expects 0 to 2**63 - 1 for seed, but got {seed}"
        )


def explore(
    fn: Callable[[], object],
    *,
    runs: SupportsIndex = 1000,
    seed: SupportsIndex | None = None,
    strategy: str = "pct",
    depth: SupportsIndex = 2,
    races: bool = False,
) -> Result:
    """explore(fn, *, runs=1000, seed=None, strategy="pct", depth=2,
    races=False)

    Call fn under at most `runs` schedules.

    strategy is one of
      "late": each operation runs only when a wait by the host needs it; one
      run shows most reads that come too early, but few of the writes that do;
      "early": each operation runs as soon as it can;
      "random": at each step, a random choice among the operations that can
      run and the program;
      "pct": streams and the host have random priorities, which change
      depth - 1 times; a bug that appears only if `depth` pairs of operations
      run in the wrong order is found with a known probability in each run;
      "all": every order that the program could tell from the others, each
      once, up to `runs` of them.

    If fn raises an Exception under a schedule, this schedule is reduced to one
    with only a few late operations, under which fn still raises an exception
    of the same type.  If one of the first 64 operations suffices, it is the
    only late one.  The exception is raised with a note: the name of the
    reduced schedule, the operations in order, and those that were late.  If no
    such schedule was found, the note says so.  With races=True, fn is called
    within races.detect(), and a RaceError counts, too.  seed is the seed of
    the first schedule; None means 0.  If fn raises no Exception, returns how
    many schedules ran, how many of them differed, and whether these are all
    that exist; for other strategies than "all", that is None.

    Raises ValueError or TypeError for invalid arguments, TypeError if fn is a
    coroutine function, and RuntimeError as run() does.
    """
    _check_callable("explore()", fn)
    run_count = integer("explore", "runs", runs)
    levels = integer("explore", "depth", depth)
    first_seed = 0 if seed is None else integer("explore", "seed", seed)
    _check(strategy, run_count, levels, first_seed)
    called, options = _checked(fn, races)
    done: list[_Run] = []
    orders = Orders()
    for name in _names(strategy, levels, first_seed, orders, done):
        if len(done) == run_count:
            break
        done.append(_Run(name))
        # Do not keep fn's variables: they would stay alive in later runs.
        error = done[-1].failure_of(called, keep=False)
        if error is not None:
            try:
                _raise_shrunk(called, name, options)
                _add_note(
                    error,
                    f'schedule "{name}"; a second run under it did not fail, '
                    "so fn depends on more than its schedule, such as time or "
                    "the threads of the program",
                )
                raise error
            finally:
                del error
    if strategy == "all":
        return Result(len(done), orders.distinct, orders.complete)
    return Result(len(done), len({run.order for run in done}), None)


def replay(fn: Callable[[], _T], name: str, *, races: bool = False) -> _T:
    """replay(fn, name, *, races=False)

    Call fn under the schedule with this name, and return its result.

    An Exception that fn raises gets a note, which lists the operations in
    order, and those that were late, because the schedule delayed them or
    because a later operation ran first.  With races=True, fn is called within
    races.detect().

    Raises ValueError if there is no such schedule, if the schedule delays an
    operation that fn does not queue, or if a choice in its name is not
    possible when its turn comes.  Raises TypeError if name is not a str, or if
    fn is not callable or is a coroutine function.  Raises RuntimeError as
    run() does.
    """
    logged = _Run(name, logged=True, asks="replay()")
    _check_callable("replay()", fn)
    called, options = _checked(fn, races)
    results: list[_T] = []

    def kept() -> _T:
        results.append(called())
        return results[0]

    error = logged.failure_of(kept)
    if error is not None:
        _add_note(error, _describe(logged, options))
        try:
            raise error
        finally:
            del error
    logged.refuse_stale()
    return results[0]
