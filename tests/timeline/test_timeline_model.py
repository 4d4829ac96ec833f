"""The timeline against a model.  In random programs, the model finds which
calls came before which, by a search of the whole graph of calls."""

import itertools
import os
import random

import pytest

from pystreams import timeline

SEEDS = int(os.environ.get("PYSTREAMS_SEEDS", "120"))
GROUPS = 4
LENGTH = 40
KIND, NAME, DEVICE, STREAM, THREAD, QUEUED, BEGIN, END = range(8)
SOURCE = 12
WORK = ("fill", "sleep", "callable")


class Program:
    """A run and, for each of its calls that has a row, the calls that came
    before."""

    def __init__(self, backend, seed):
        self.backend = backend
        self.random = random.Random(seed)
        devices = min(2, backend.count)
        self.streams = [backend.stream(i % devices) for i in range(4)]
        self.events = [backend.event() for _ in range(4)]
        # There is one block for each stream, because nothing orders their
        # fills.
        self.blocks = [
            backend.empty(1 << 10, stream.device.index or 0)
            for stream in self.streams
        ]
        for stream in self.streams:
            backend.sleep(stream, 0.01)
            stream.synchronize()
        # (kind, stream, record that it waits for)
        self.calls = []
        self.before = []
        self.latest = {}
        self.recorded = {}
        # The device of each event.  All records of the event are made on this
        # device.
        self.homes = {}

    def call(self, kind, stream, source=None):
        before = [self.latest.get(stream), source]
        self.calls.append((kind, stream, source))
        self.before.append([b for b in before if b is not None])
        self.latest[stream] = len(self.calls) - 1

    def step(self):
        index = self.random.randrange(len(self.streams))
        stream = self.streams[index]
        event = self.random.randrange(len(self.events))
        kind = self.random.choices(
            ("fill", "sleep", "callable", "record", "wait", "wait_stream"),
            (4, 4, 1, 4, 5, 2),
        )[0]
        if kind == "fill":
            self.blocks[index].fill_(1, stream=stream)
            self.call(kind, index)
        elif kind == "sleep":
            self.backend.sleep(stream, self.random.choice((0.02, 0.1, 0.3)))
            self.call(kind, index)
        elif kind == "callable":
            stream.submit(int)
            self.call(kind, index)
        elif kind == "record":
            home = self.homes.setdefault(event, stream.device)
            if home == stream.device:
                stream.record_event(self.events[event])
                self.call(kind, index)
                self.recorded[event] = len(self.calls) - 1
        elif kind == "wait" and event in self.recorded:
            stream.wait_event(self.events[event])
            self.call(kind, index, self.recorded[event])
        elif kind == "wait_stream":
            other = self.random.randrange(len(self.streams))
            stream.wait_stream(self.streams[other])
            self.call("record", other)
            self.call("wait", index, len(self.calls) - 1)

    def synchronize(self):
        stream = self.random.randrange(len(self.streams))
        self.streams[stream].synchronize()

    def run(self):
        with timeline.record() as t:
            for _ in range(LENGTH):
                if self.random.random() < 0.05:
                    self.synchronize()
                else:
                    self.step()
            for stream in self.streams:
                stream.synchronize()
        return t

    def work_before(self, call):
        """Return the operations that a call comes after."""
        seen, todo = set(), [call]
        while todo:
            for before in self.before[todo.pop()]:
                if before not in seen:
                    seen.add(before)
                    todo.append(before)
        return {c for c in seen if self.calls[c][0] in WORK}


def make(backend, seed):
    program = Program(backend, seed)
    t = program.run()
    rows = t.rows
    calls = [
        i
        for i, row in enumerate(rows)
        if row[KIND] in (*WORK, "record", "wait")
    ]
    return program, t, rows, calls


@pytest.fixture(params=range(GROUPS), ids="part-{}".format)
def each_seed(request, backend):
    """Return each_seed(check), which calls check with the program of each seed
    of a part."""

    def run(check):
        for seed in range(request.param, SEEDS, GROUPS):
            try:
                check(*make(backend, seed))
            except AssertionError as error:
                raise AssertionError(f"the program of seed {seed}") from error

    return run


def check_order(program, t, rows, calls):
    labels = {}
    assert len(calls) == len(program.calls)
    for call, index in enumerate(calls):
        row = rows[index]
        kind, stream, source = program.calls[call]
        assert row[KIND] == kind
        assert labels.setdefault(stream, row[STREAM]) == row[STREAM]
        assert 0 <= row[QUEUED] <= row[BEGIN] <= row[END]
        if kind == "wait":
            assert row[SOURCE] == calls[source]
        if kind in WORK:
            for earlier in program.work_before(call):
                assert rows[calls[earlier]][END] <= row[BEGIN]
    assert len(set(labels.values())) == len(labels)


def test_order(each_seed):
    """Each call has its row, each wait its record, and nothing begins before
    what it waits for has ended."""
    each_seed(check_order)


def busy_at(rows, recorder, duration, time):
    """Return what is busy in the nanosecond that begins at this time."""
    found = set()
    waits = 0
    for row in rows:
        if row[BEGIN] <= time < row[END]:
            if row[KIND] in WORK:
                found.add("copy" if row[KIND] == "fill" else "work")
            waits += row[KIND] == "synchronize"
    if time < duration and waits == 0:
        found.add("host")
    return tuple(sorted(found))


def check_overlap(program, t, rows, calls):
    edges = {0, t.duration}
    for row in rows:
        edges.update((row[BEGIN], row[END]))
    edges = sorted(edges)
    expected = {}
    for begin, end in itertools.pairwise(edges):
        key = busy_at(rows, "MainThread", t.duration, begin)
        expected[key] = expected.get(key, 0) + end - begin
    assert t.overlap() == expected


def test_overlap(each_seed):
    each_seed(check_overlap)


class Path:
    """The critical path, found by looking at everything that came before."""

    def __init__(self, program, t, rows, calls):
        self.program = program
        self.rows = rows
        self.calls = calls
        self.clock_error = t.clock_error
        duration = t.duration
        self.steps = []
        ends = [(self.end(c), c) for c in range(len(calls)) if self.is_work(c)]
        last = max(ends, default=(0, None))
        if last[0] > duration:
            call = last[1]
        else:
            call = self.host(duration, len(rows), last[0])
        while call is not None:
            call = self.operation(call)

    def is_work(self, call):
        return self.program.calls[call][0] in WORK

    def end(self, call):
        return self.rows[self.calls[call]][END]

    def before_on_stream(self, call):
        own = self.program.calls[call][1]
        earlier = [c for c in range(call) if self.program.calls[c][1] == own]
        return earlier[-1] if earlier else None

    def latest(self, calls):
        return max(((self.end(c), c) for c in calls), default=(0, None))

    def host(self, end, index, floor):
        """Follow the thread back from a row to its last synchronize() that
        waited for some work until it was done.  Other waits do not count,
        although the record of an idle stream can make the host of a GPU wait,
        too."""
        for at in reversed(range(index)):
            row = self.rows[at]
            if row[KIND] != "synchronize":
                continue
            target = self.calls.index(row[SOURCE])
            assert row[SOURCE] < at
            before = self.program.work_before(target)
            if self.is_work(target):
                before.add(target)
            done, call = self.latest(before)
            if row[BEGIN] < done <= row[END] + self.clock_error:
                gain = min(row[END] - row[BEGIN], end - floor)
                self.steps.append((None, row[END], end, "synchronize", gain))
                return call
        self.steps.append((None, 0, end, "", 0))
        return None

    def operation(self, call):
        row = self.rows[self.calls[call]]
        time, cause = self.latest(self.program.work_before(call))
        where = (self.calls[call], row[BEGIN], row[END])
        if cause is None or time < row[QUEUED]:
            self.steps.append((*where, "host", 0))
            return self.host(row[QUEUED], self.calls[call], time)
        own = self.program.calls[call][1]
        if self.program.calls[cause][1] == own:
            self.steps.append((*where, "stream", 0))
            return cause
        # The gain is the time that the removal of this wait would save.  The
        # other waits since the stream's previous operation would remain.
        ends = []
        at = self.before_on_stream(call)
        while at is not None and not self.is_work(at):
            source = self.program.calls[at][2]
            if source is not None and self.program.calls[source][1] != own:
                before = self.program.work_before(source)
                ends.append(self.latest(before)[0])
            at = self.before_on_stream(at)
        assert time in ends
        ends.remove(time)
        if at is not None:
            ends.append(self.end(at))
        gain = time - max([row[QUEUED], *ends])
        self.steps.append((*where, "wait", gain))
        return cause


def check_path(program, t, rows, calls):
    expected = Path(program, t, rows, calls).steps[::-1]
    path = t.critical_path()
    found = [(s.row, s.begin, s.end, s.after, s.gain) for s in path.steps]
    assert found == expected
    gains = {}
    for step in path.steps:
        if step.wait is not None:
            kind = {"wait": "wait", "synchronize": "synchronize"}[step.after]
            assert rows[step.wait][KIND] == kind
            gains[step.wait] = gains.get(step.wait, 0) + step.gain
    assert dict(path.waits) == gains
    assert [g for _, g in path.waits] == sorted(gains.values(), reverse=True)


@pytest.mark.unscheduled
def test_critical_path(each_seed):
    each_seed(check_path)
