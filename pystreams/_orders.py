"""All orders of a program's steps that the program can tell apart, each once.

A step is an operation of a stream, or the part of the program between two of
its calls.  A process is a stream, or the program.  Two steps depend on each
other in three cases: both belong to one stream, or to the program; one makes
the other possible; or they conflict, so that their order changes the contents
of memory or the result of a query.  Two runs have equal orders if all
dependent steps come in the same order; the program cannot distinguish them.
The next order to run is derived from the orders that ran, by optimal dynamic
partial-order reduction (Abdulla, Aronis, Jonsson and Sagonas, POPL 2014).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    #: The number of a memory block, and the offsets of the first byte and of
    #: the byte after the last one.
    _Span = tuple[int, int, int]

# The values of enum ps_note_kind in backends.h, which explains them.
(
    _STEP,
    _READ,
    _WRITE,
    _ANY,
    _PROGRAM,
    _DONE,
    _ASKED,
    _ASKED_STEP,
    _AFTER_STEP,
    _WAITED,
    _WAITED_STEP,
    _TIME,
    _SLEEP,
    _BLOCK,
    _VIEW,
    _VIEW_WRITES,
    _VIEW_END,
    _ARGUMENT,
    _CALLABLE,
    _LOOSE,
) = range(20)


def _overlap(some: Iterable[_Span], others: Sequence[_Span]) -> bool:
    return any(
        block == other and begin < last and first < end
        for block, begin, end in some
        for other, first, last in others
    )


@dataclass
class Step:
    """One step of a run, and what determines on which other steps it
    depends."""

    #: The number of the stream, or 0 for the program.
    process: int
    #: The number of the operation, or 0.
    operation: int
    #: How many operations were queued before this step.
    queued: int
    #: Whether the step runs code of the program.
    program: bool
    #: The operation that ends in this step, or 0.  A callable takes two steps,
    #: and ends in the second.
    done: int = 0
    #: Whether the step may access any memory.
    any: bool = False
    reads: list[_Span] = field(default_factory=list)
    writes: list[_Span] = field(default_factory=list)
    #: The operations whose completion the step queries.
    asked: set[int] = field(default_factory=set)
    reads_time: bool = False
    sleeps: bool = False
    #: The indices of earlier steps that make this one possible.
    after: set[int] = field(default_factory=set)

    @property
    def _touches(self) -> bool:
        return self.any or bool(self.reads or self.writes)

    def depends_on(self, other: Step) -> bool:
        return (
            self.process == other.process
            or (self.program and other.program)
            or self.done in other.asked
            or other.done in self.asked
            or (self.reads_time and other.sleeps)
            or (self.sleeps and other.reads_time)
            or (self.any and other._touches)
            or (other.any and self._touches)
            or _overlap(self.writes, other.writes)
            or _overlap(self.writes, other.reads)
            or _overlap(self.reads, other.writes)
        )


_queued = attrgetter("queued")


class _Reader:
    """Reads the steps of a run from its notes."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._blocks: list[tuple[int, int]] = []
        self._views: list[tuple[_Span, bool]] = []
        # The memory among the arguments of callables.  _arguments is for the
        # callable that is being submitted, and _callables is for those that
        # are queued, by operation.
        self._arguments: list[_Span] = []
        self._callables: dict[int, list[_Span]] = {}
        # The operations for which the program's next step waits.
        self._waited: set[int] = set()
        # For each operation, the step in which it ended.
        self._ended: dict[int, int] = {}

    def _span(self, address: int, nbytes: int) -> _Span:
        """Return an address range as its block's number and offsets in the
        block, because addresses differ between runs."""
        for number, (begin, size) in enumerate(self._blocks, 1):
            if begin <= address < begin + size:
                return number, address - begin, address - begin + nbytes
        return 0, address, address + nbytes

    def _begin(self, process: int, operation: int, queued: int) -> None:
        step = Step(process, operation, queued, process == 0)
        self.steps.append(step)
        if process == 0:
            step.after, self._waited = self._waited, set()
            for span, writes in self._views:
                (step.writes if writes else step.reads).append(span)
            return
        step.after.add(bisect_left(self.steps, operation, key=_queued) - 1)
        spans = self._callables.pop(operation, None)
        if spans is not None:
            step.writes, step.any = spans, not spans

    def _note_memory(self, kind: int, address: int, nbytes: int) -> None:
        span, step = self._span(address, nbytes), self.steps[-1]
        if kind in (_VIEW, _VIEW_WRITES):
            self._views.append((span, kind == _VIEW_WRITES))
        if kind in (_READ, _VIEW):
            step.reads.append(span)
        elif kind in (_WRITE, _VIEW_WRITES):
            step.writes.append(span)
        elif kind == _VIEW_END:
            for view in ((span, False), (span, True)):
                if view in self._views:
                    self._views.remove(view)
                    break
        elif kind == _ARGUMENT:
            self._arguments.append(span)

    def _note_order(self, kind: int, number: int) -> None:
        step = self.steps[-1]
        if kind == _DONE:
            step.done = number
            self._ended[number] = len(self.steps) - 1
        elif kind == _ASKED:
            step.asked.add(number)
        elif kind == _ASKED_STEP:
            step.asked.add(self.steps[number - 1].done)
        elif kind == _AFTER_STEP:
            step.after.add(number - 1)
        elif kind == _WAITED:
            self._waited.add(self._ended[number])
        elif kind == _WAITED_STEP:
            self._waited.add(number - 1)

    def read(self, kind: int, first: int, second: int, third: int) -> None:
        if kind == _STEP:
            self._begin(first, second, third)
        elif kind == _BLOCK:
            self._blocks.append((first, second))
        elif kind == _CALLABLE:
            self._callables[first] = self._arguments
            self._arguments = []
        elif kind == _ANY:
            self.steps[-1].any = True
        elif kind == _PROGRAM:
            self.steps[-1].program = True
        elif kind == _TIME:
            self.steps[-1].reads_time = True
        elif kind == _SLEEP:
            self.steps[-1].sleeps = True
        else:
            self._note_memory(kind, first, second)
            self._note_order(kind, first)


def read(
    notes: Iterable[tuple[int, int, int, int]],
) -> tuple[list[Step], bool]:
    """Return the steps of a run, and whether the notes are complete, so that
    all orders can be derived from them."""
    reader, closed = _Reader(), True
    for note in notes:
        if note[0] == _LOOSE:
            closed = False
        else:
            reader.read(*note)
    for step in reader.steps:
        # 0 means no operation.
        step.asked.discard(0)
    return reader.steps, closed


# ---- Which orders there are


@dataclass
class _Branch:
    """A step to take in another run, and the steps to take after it."""

    step: Step
    branches: list[_Branch] = field(default_factory=list)


@dataclass
class _Point:
    """A point in the latest run, just before a step."""

    #: The step that was taken at this point.
    step: Step
    #: The steps, by process, that would lead only to orders that have already
    #: run, if taken here.
    asleep: dict[int, Step]
    #: The steps to be taken at this point in other runs.
    branches: list[_Branch]


class _Suffix:
    """A sequence of steps that could come next, with their dependencies."""

    def __init__(self, run: _Order, indices: list[int]) -> None:
        self._run = run
        self.indices = indices

    def first(self, process: int) -> int:
        """Return the index, in the run, of the process's first step in the
        suffix; -1 if it has none there."""
        steps = self._run.steps
        own = (i for i in self.indices if steps[i].process == process)
        return next(own, -1)

    def can_begin_with(self, step: Step) -> bool:
        """Return whether the step could come before all other steps of the
        suffix."""
        own = self.first(step.process)
        if own < 0:
            return not any(
                self._run.steps[index].depends_on(step)
                for index in self.indices
            )
        before = self._run.before[own]
        return not any(
            before >> index & 1 for index in self.indices if index != own
        )

    def without(self, process: int) -> _Suffix:
        own = self.first(process)
        return _Suffix(self._run, [i for i in self.indices if i != own])


class _Order:
    """A run's steps, with the partial order that all equal orders share."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        # For each step, a bit mask of the steps that must precede it, and of
        # the step itself.
        self.before: list[int] = []
        # Pairs of steps of which the second depends on the first directly, not
        # through a step in between.
        self.races: list[tuple[int, int]] = []
        latest: dict[int, int] = {}
        for index, step in enumerate(steps):
            mask = 1 << index
            needed = set(step.after)
            if step.process in latest:
                needed.add(latest[step.process])
            for earlier in needed:
                mask |= self.before[earlier]
            for earlier in reversed(range(index)):
                if not mask >> earlier & 1 and step.depends_on(steps[earlier]):
                    mask |= self.before[earlier]
                    self.races.append((earlier, index))
            self.before.append(mask)
            latest[step.process] = index

    def reversal(self, race: tuple[int, int]) -> _Suffix:
        """Return steps that reverse a race.  They could come in place of the
        race's first step: all later steps that do not depend on that step, and
        then the race's second step."""
        first, second = race
        others = range(first + 1, len(self.steps))
        return _Suffix(
            self,
            [i for i in others if not self.before[i] >> first & 1] + [second],
        )

    def key(self) -> tuple[tuple[int, ...], ...]:
        """Return a key that only equal orders share.

        For each step, the key contains the step's process, and how many steps
        of each process must precede the step.
        """
        processes = [step.process for step in self.steps]
        rows = []
        for process, mask in zip(processes, self.before, strict=True):
            earlier = (p for i, p in enumerate(processes) if mask >> i & 1)
            pairs = sorted(Counter(earlier).items())
            rows.append((process, *(n for pair in pairs for n in pair)))
        return tuple(sorted(rows))


def _insert(branches: list[_Branch], suffix: _Suffix) -> None:
    """Add the suffix as a branch, unless some branch already leads to an
    equal order."""
    while suffix.indices:
        for branch in branches:
            if suffix.can_begin_with(branch.step):
                suffix = suffix.without(branch.step.process)
                branches = branch.branches
                break
        else:
            for index in suffix.indices:
                branch = _Branch(suffix._run.steps[index])
                branches.append(branch)
                branches = branch.branches
            return
        if not branches:
            return


class Orders:
    """The orders of a program, as far as its runs have shown them."""

    def __init__(self) -> None:
        self._points: list[_Point] = []
        # The processes that take the first steps of the next run.
        self._next: list[int] | None = [0]
        self._branches: list[_Branch] = []
        self._keys: set[object] = set()
        self._closed = True

    @property
    def distinct(self) -> int:
        """The number of different orders that ran."""
        return len(self._keys)

    @property
    def complete(self) -> bool:
        """Whether all orders of the program have run."""
        return self._next is None and self._closed

    def next(self) -> list[int] | None:
        """Return the processes that take the next run's first steps, after the
        step that begins every run; None if no order is left."""
        return self._next[1:] if self._next is not None else None

    def ran(self, steps: list[Step], closed: bool) -> None:
        """Evaluate the steps of the run that next() chose."""
        assert self._next is not None
        self._closed = self._closed and closed
        order = _Order(steps)
        self._keys.add(order.key())
        if [s.process for s in steps[: len(self._next)]] == self._next:
            # Use the steps of this run.  The result of a query, and what the
            # program does after the query, may differ from an earlier run in
            # which the query came later.
            for point, step in zip(self._points, steps, strict=False):
                point.step = step
            self._extend(steps)
            for race in order.races:
                suffix = order.reversal(race)
                point = self._points[race[0]]
                if not any(map(suffix.can_begin_with, point.asleep.values())):
                    _insert(point.branches, suffix)
        else:
            # The program did not take the chosen steps, so it depends on more
            # than its schedule.
            self._closed = False
        self._choose()

    def _extend(self, steps: list[Step]) -> None:
        branches = self._branches
        for step in steps[len(self._points) :]:
            asleep = {}
            if self._points:
                last = self._points[-1]
                asleep = {
                    process: other
                    for process, other in last.asleep.items()
                    if not other.depends_on(last.step)
                }
            rest = branches[1:]
            branches = branches[0].branches if branches else []
            self._points.append(_Point(step, asleep, rest))

    def _choose(self) -> None:
        """Choose the next run.  It takes a branch at the last point that has a
        branch left."""
        while self._points and not self._points[-1].branches:
            self._points.pop()
        if not self._points:
            self._next = None
            return
        point = self._points[-1]
        point.asleep[point.step.process] = point.step
        branch = point.branches.pop(0)
        point.step = branch.step
        self._next = [p.step.process for p in self._points]
        self._branches = branches = branch.branches
        while branches:
            self._next.append(branches[0].step.process)
            branches = branches[0].branches
