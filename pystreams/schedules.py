"""Test a program under many legal schedules, and any one of them again.

result = pystreams.schedules.explore(fn)
pystreams.schedules.replay(fn, "pct:2:17:240")

On a real device, and on the CPU engine's threads, work is mostly done in the
order in which it was queued, so a missing edge rarely shows.  Here the CPU
engine has no threads: fn's own calls run the work, and a schedule decides when
each operation runs, and whether fn goes on before it.  Any such order is one
that the program allows.  The same name gives the same order on every machine.

Time is virtual: a sleep costs nothing, elapsed_time() is exact, and the limit
of a wait expires in virtual time.  Memory is poisoned when it is allocated and
when it is freed.  A wait for what cannot come raises RuntimeError at once.

fn makes its own streams, and devices are idle before and after it.  What other
threads of the program queue is taken as it comes, and callables of
Stream.submit run one at a time, when the schedule says.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, groupby, repeat
from traceback import clear_frames
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from . import _C
from ._names import stream_label
from ._orders import Orders, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    _T = TypeVar("_T")

__all__ = ["Result", "explore", "replay", "run"]

_PACKAGE = os.path.dirname(__file__) + os.sep
_STRATEGIES = {"late": 0, "early": 1, "random": 2, "pct": 3, "all": 5}
_HELD = 4
_STEPS = 256  # of a pct schedule that does not say how many
_EXPECTED = (
    "'late', 'early', 'random:SEED', 'pct:DEPTH:SEED', "
    "'pct:DEPTH:SEED:STEPS', 'late:NUMBERS' or 'all:NUMBERS'"
)


@dataclass(frozen=True)
class Result:
    """What explore() has found: no schedule under which fn raises."""

    #: How many schedules ran.
    runs: int
    #: How many of them differed.
    distinct: int
    #: Whether these were all there are.
    complete: bool

    def __str__(self) -> str:
        if self.complete and self.distinct == 1:
            return "the only order holds"
        if self.complete:
            return f"all {self.distinct} orders hold"
        return f"{self.runs} runs passed, in {self.distinct} different orders"


@dataclass(frozen=True)
class _Schedule:
    """A schedule's name, read."""

    strategy: int
    seed: int = 0
    changes: int = 0
    steps: int = 0
    numbers: tuple[int, ...] = ()


def _choices(texts: str) -> Iterator[int]:
    """Yield the numbers of "0*3,2", which are 0, 0, 0 and 2."""
    for text in texts.split(","):
        number, *times = text.split("*")
        if len(times) > 1 or not 0 <= int(number) < 1 << 64:
            raise ValueError
        yield from repeat(int(number), int(times[0]) if times else 1)


def _name_of(choices: Sequence[int]) -> str:
    """Return the name of the schedule that makes these choices."""
    texts = []
    for number, group in groupby(choices):
        times = len(list(group))
        texts.append(f"{number}*{times}" if times > 1 else str(number))
    return ":".join(["all", ",".join(texts)] if texts else ["all"])


def _parse(name: str) -> _Schedule:
    """Return what a schedule's name means; ValueError for another text."""
    strategy, *texts = name.split(":") if isinstance(name, str) else [""]
    try:
        if strategy == "late" and len(texts) == 1:
            held = tuple(sorted(int(text) for text in texts[0].split(",")))
            return _Schedule(_HELD, numbers=held)
        if strategy == "all" and len(texts) < 2:
            choices = tuple(_choices(texts[0])) if texts else ()
            return _Schedule(_STRATEGIES[strategy], numbers=choices)
        numbers = [int(text) for text in texts]
        if any(not 0 <= number < 1 << 64 for number in numbers):
            raise ValueError
        if strategy in ("late", "early") and not numbers:
            return _Schedule(_STRATEGIES[strategy])
        if strategy == "random" and len(numbers) == 1:
            return _Schedule(_STRATEGIES[strategy], numbers[0])
        if strategy == "pct" and len(numbers) in (2, 3):
            depth, seed, *steps = numbers
            if 1 <= depth <= 64:
                return _Schedule(3, seed, depth - 1, (steps or [_STEPS])[0])
    except ValueError:
        pass
    raise ValueError(f"a schedule is {_EXPECTED}, but got {name!r}")


# ---- One run


@dataclass(frozen=True)
class _Operation:
    """One operation of a run, in the order in which they ran."""

    number: int
    name: str
    device_type: str
    device: int
    #: The stream's, another one in each run.
    handle: int = field(compare=False)
    stream: int
    step: int
    time: int
    overtaken: bool


class _Places:
    """Where the operations of a run were queued, and on which streams."""

    def __init__(self) -> None:
        self._places: dict[int, str] = {}
        # By operation, device and handle: a graph has other streams, too.
        self._names: dict[tuple[int, int, int], str | None] = {}
        # Whether the run has failed: what is queued then is its clean-up.
        self.complete = False

    def note(
        self, first: int, last: int, device: int, handle: int, name: str | None
    ) -> None:
        # The stream may be gone when the run has failed, and its handle be
        # another one's.
        for number in range(first, last + 1):
            self._names[number, device, handle] = name
        frame: Any = sys._getframe(1) if not self.complete else None
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
        """Return what the operation's stream was called."""
        o = operation
        name = self._names.get((o.number, o.device, o.handle))
        return stream_label(f"{o.device_type}:{o.device}", str(o.stream), name)


class _Run:
    """A run under one schedule, and what came of it."""

    def __init__(self, name: str, *, logged: bool = False) -> None:
        self.name = name
        self._schedule = _parse(name)
        self.places = _Places()
        self._note = self.places.note if logged else None
        self.operations: list[_Operation] = []
        self.notes: list[tuple[int, int, int, int]] = []
        self.count = self.steps = self.order = 0
        self._failed = self._paused = False

    def begin(self) -> None:
        s = self._schedule
        _C.schedule_begin(
            s.strategy, s.seed, s.changes, s.steps, s.numbers, self._note
        )

    def __enter__(self) -> _Run:
        global _inner
        if _program is not None and not _inner and _C.schedule_is_on():
            # The program's own schedule pauses.
            _C.schedule_end(False)
            self._paused = True
        try:
            self.begin()
        except BaseException:
            self._resume()
            raise
        _inner = True
        return self

    def _resume(self) -> None:
        if self._paused and _program is not None:
            self._paused = False
            _program.begin()

    def __exit__(
        self, kind: type[BaseException] | None, *rest: object
    ) -> None:
        global _inner
        drop = self._failed or kind is not None
        self.count, self.steps, self.order, log, self.notes = _C.schedule_end(
            drop
        )
        _inner = False
        self._resume()
        self.operations = [_Operation(*entry) for entry in log]

    def failure_of(
        self, fn: Callable[[], object], *, keep: bool = True
    ) -> Exception | None:
        """Call fn under the schedule, and return what it raises.

        Unless they are kept, its variables go before the schedule ends.
        """
        failure = result = None
        with self:
            try:
                result = fn()
            except Exception as error:
                failure, self._failed = error, True
                self.places.complete = True
                if not keep:
                    clear_frames(error.__traceback__)
            _refuse_unstarted(result)
        return failure

    def refuse_stale(self) -> None:
        """Raise ValueError if operations are to be late that did not come."""
        held = self._schedule.strategy == _HELD
        last = max(self._schedule.numbers, default=0) if held else 0
        if last > self.count:
            raise ValueError(
                f"replay() expects the name of a schedule of fn for name, but "
                f"{self.name!r} holds back operation {last}, and fn queued "
                f"{self.count}; explore it again if it has changed"
            )


def _refuse_unstarted(result: object) -> None:
    """Raise TypeError for what a coroutine function or a generator function
    returns: its work has not begun."""
    if isinstance(result, (CoroutineType, GeneratorType, AsyncGeneratorType)):
        if isinstance(result, CoroutineType):
            result.close()
        raise TypeError(
            "explore() and replay() expect a function that does its work when "
            f"it is called for fn, but it returned a {type(result).__name__}; "
            "of a coroutine function f, give lambda: asyncio.run(f())"
        )


# The schedule of the whole program, or None; whether another one is on.
_program: _Run | None = None
_inner = False


def _explore_program(name: str) -> None:
    """Run the whole program under the schedule."""
    global _program
    _program = _Run(name)
    _program.begin()


@contextmanager
def run(name: str) -> Iterator[None]:
    """run(name)

    Run the work of the block under the schedule with this name.

    When the block ends, what is left of its work is run; if it ends with an
    exception, it is dropped.  Raises ValueError for another name, and
    RuntimeError if a device is busy, if a device is used that is not the CPU
    engine's, or within another schedule.
    """
    with _Run(name):
        yield


# ---- Failures


def _deadlock(
    streams: list[tuple[str, int, int, str | None]], operation: int
) -> str:
    """Return who waits for whom: the caller for the first stream, each for the
    next, and the last for its callable, which is the operation."""
    labels = [
        stream_label(f"{kind}:{device}", str(number), name)
        for kind, device, number, name in streams
    ]
    if labels:
        labels.append(f"its callable (operation {operation})")
        labels.append("work that is queued behind it")
    chain = ", which waits for ".join(labels or ["a callable"])
    return f"the caller waits for {chain}"


def _same(one: Exception | None, other: Exception) -> bool:
    return type(one) is type(other)


def _held(numbers: Sequence[int]) -> str:
    return "late:" + ",".join(map(str, numbers)) if numbers else "early"


def _shrink(
    fn: Callable[[], object], failed: _Run, error: Exception
) -> tuple[_Run, Exception]:
    """Return the failing run with the fewest late operations.

    A schedule that delays single operations until the host needs them, and
    runs all others at once, is the easiest to understand.
    """

    def attempt(numbers: Sequence[int]) -> tuple[_Run, Exception] | None:
        trial = _Run(_held(numbers), logged=True)
        found = trial.failure_of(fn, keep=False)
        return (trial, found) if found and _same(found, error) else None

    late = sorted({o.number for o in failed.operations if o.overtaken})
    known = attempt(late)
    if known is None:
        return failed, error
    best = known
    size = len(late)
    while size:
        for start in range(0, len(late), size):
            fewer = late[:start] + late[start + size :]
            found = attempt(fewer)
            if found is not None:
                best, late = found, fewer
                break
        else:
            size //= 2
            continue
        size = min(size, len(late))
    return best


def _near(place: str) -> str:
    """Return a place with its path from the working directory, if in that."""
    try:
        return place.removeprefix(os.getcwd() + os.sep)
    except OSError:
        return place


def _describe(run: _Run, options: str) -> str:
    ran = [o for o in run.operations if o.step]
    left = [o for o in run.operations if not o.step and run.places[o.number]]
    rows = {
        o.number: (
            str(o.number),
            o.name,
            run.places.label(o),
            "late" if o.overtaken else "",
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
    if hasattr(error, "add_note"):
        error.add_note(note)
        return
    notes = getattr(error, "__notes__", None) or []
    error.__notes__ = [*notes, note]


def _raise_shrunk(fn: Callable[[], object], name: str, options: str) -> None:
    """Raise what fn raises under the schedule, with a note; or return."""
    logged = _Run(name, logged=True)
    error = logged.failure_of(fn, keep=False)
    if error is None:
        return
    shrunk, error = _shrink(fn, logged, error)
    note = _describe(shrunk, options)
    if shrunk.name != name:
        note += f'\nfound by the schedule "{name}"'
    # Once more, for the variables.
    error = _Run(shrunk.name).failure_of(fn) or error
    _add_note(error, note)
    raise error


def _checked(
    fn: Callable[[], _T], races: bool
) -> tuple[Callable[[], _T], str]:
    """Return what to call, and what replay() then needs after the name."""
    if not races:
        return fn, ""
    from .races import detect

    def checked() -> _T:
        with detect():
            return fn()

    return checked, ", races=True"


# ---- Exploring


def _names_of_all(orders: Orders, done: list[_Run]) -> Iterator[str]:
    while (choices := orders.next()) is not None:
        yield _name_of(choices)
        orders.ran(*read(done[-1].notes))
        done[-1].notes = []


def _names(
    strategy: str, depth: int, seed: int, done: list[_Run]
) -> Iterator[str]:
    """Yield names of schedules, given those that ran."""
    if strategy in ("late", "early"):
        yield strategy
        return
    if strategy == "pct":
        # The priorities change within the steps that this takes.
        yield "early"
    for number in count(seed):
        if strategy == "random":
            yield f"random:{number}"
        else:
            yield f"pct:{depth}:{number}:{done[0].steps}"


def _check(strategy: str, runs: int, depth: int, seed: int) -> None:
    for name, value in (("runs", runs), ("depth", depth), ("seed", seed)):
        if not isinstance(value, int):
            raise TypeError(
                f"explore() expects an int for {name}, but got "
                f"{type(value).__name__}"
            )
    if strategy not in _STRATEGIES:
        raise ValueError(
            "explore() expects 'late', 'early', 'random', 'pct' or 'all' for "
            f"strategy, but got {strategy!r}"
        )
    if runs < 1 or not 1 <= depth <= 64:
        raise ValueError(
            "explore() expects runs of 1 or more, and a depth from 1 to 64, "
            f"but got {runs} and {depth}"
        )
    if seed < 0:
        raise ValueError(
            f"explore() expects 0 or more for seed, but got {seed}"
        )


def explore(
    fn: Callable[[], object],
    *,
    runs: int = 1000,
    seed: int | None = None,
    strategy: str = "pct",
    depth: int = 2,
    races: bool = False,
) -> Result:
    """explore(fn, *, runs=1000, seed=None, strategy="pct", depth=2,
    races=False)

    Call fn under that many schedules, at most.

    strategy is one of
      "late": nothing runs before a wait of the host needs it: one run shows
      most reads that come too early;
      "early": everything runs as soon as it can;
      "random": at each call, any operation that can run, or none;
      "pct": streams and the host have random priorities, which change
      depth - 1 times: a bug that depth pairs in the wrong order make is hit
      with a known probability in each run;
      "all": every order in which the program could see a difference, and each
      of them once, unless there are more than runs.

    The first schedule under which fn raises an Exception is reduced to the
    fewest late operations with which it still raises one of its type, and that
    is raised, with a note: the schedule's name, the operations in order, and
    what was late.  With races=True, fn is called within races.detect(), so
    that a RaceError is such an Exception.  seed is the first schedule's; None
    takes 0.  Otherwise returns how many schedules ran, how many differed, and
    whether these were all, which only strategy "all" can tell.

    Raises ValueError or TypeError for other arguments, TypeError if fn is a
    coroutine function, and RuntimeError as run() does.
    """
    _check(strategy, runs, depth, seed or 0)
    called, options = _checked(fn, races)
    done: list[_Run] = []
    orders = Orders()
    names = (
        _names_of_all(orders, done)
        if strategy == "all"
        else _names(strategy, depth, seed or 0, done)
    )
    for name in names:
        if len(done) == runs:
            break
        done.append(_Run(name))
        error = done[-1].failure_of(called)
        if error is not None:
            _raise_shrunk(called, name, options)
            _add_note(
                error,
                f'schedule "{name}"; a second run under it did not fail, so '
                "fn depends on more than its schedule, such as time or the "
                "threads of the program",
            )
            raise error
    if strategy == "all":
        return Result(len(done), orders.distinct, orders.complete)
    return Result(len(done), len({run.order for run in done}), False)


def replay(fn: Callable[[], _T], name: str, *, races: bool = False) -> _T:
    """replay(fn, name, *, races=False)

    Call fn under the schedule with this name, and return its result.

    An Exception of fn's is raised with a note: the operations in order, and
    what was late.  With races=True, fn is called within races.detect().
    Raises ValueError for another name, or if fn queues fewer operations than
    the schedule names, TypeError if fn is a coroutine function, and
    RuntimeError as run() does.
    """
    logged = _Run(name, logged=True)
    called, options = _checked(fn, races)
    results: list[_T] = []

    def kept() -> _T:
        results.append(called())
        return results[0]

    error = logged.failure_of(kept)
    if error is not None:
        _add_note(error, _describe(logged, options))
        raise error
    logged.refuse_stale()
    return results[0]
