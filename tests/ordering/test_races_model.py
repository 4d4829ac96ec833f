"""The race detector against a model.  In random programs, the model finds what
happened before what, by a search of the whole graph of calls."""

import os
import random
import threading

import pytest
from deadlines import LONG

import pystreams
from pystreams import _expressions, races

SEEDS = int(os.environ.get("PYSTREAMS_SEEDS", "2000"))
GROUPS = 8
LENGTH = 60
STREAMS, EVENTS, BUFFERS, SIZE = 4, 4, 3, 64


@pytest.fixture(autouse=True)
def no_names(monkeypatch):
    """Leave names out of the reports, because only the search for names takes
    long."""
    monkeypatch.setattr(_expressions, "_OBJECTS", 0)


class Model:
    """Nodes and their predecessors; the host's nodes are a chain."""

    def __init__(self):
        self.before = [[]]
        self.host = 0
        self.latest = {}
        self.recorded = {}
        # (node, stream, writes, buffer, begin, end)
        self.accesses = []

    def node(self, *before):
        self.before.append([b for b in before if b is not None])
        return len(self.before) - 1

    def queue(self, stream, *before):
        node = self.node(self.latest.get(stream), self.host, *before)
        self.latest[stream] = node
        return node

    def learn(self, node):
        self.host = self.node(self.host, node)

    def reached(self, node):
        seen, todo = set(), [node]
        while todo:
            for before in self.before[todo.pop()]:
                if before not in seen:
                    seen.add(before)
                    todo.append(before)
        return seen

    def access(self, node, stream, accesses):
        """Return whether each access races, and remember the accesses."""
        earlier = self.reached(node)
        found = [
            any(
                theirs not in earlier
                and whose != stream
                and node not in self.reached(theirs)
                for theirs, whose, *other in self.accesses
                if conflict(access, other)
            )
            for access in accesses
        ]
        self.accesses += [(node, stream, *access) for access in accesses]
        return found


def conflict(one, other):
    return (
        (one[0] or other[0])
        and one[1] == other[1]
        and one[2] < other[3]
        and other[2] < one[3]
    )


class Later:
    """A callable that accesses a part of a buffer once it is let go."""

    def __init__(self, program, stream, part):
        self.go = threading.Event()
        self.stream, self.part, self.node = stream, part, None
        self.view = program.slice(part)

    def run(self):
        assert self.go.wait(LONG)
        self.view.memoryview().release()


class Program:
    def __init__(self, backend, seed, hold=True):
        # Whether callables are held back, so that accesses that may race
        # really run in either order.
        self.hold = hold
        self.rng = random.Random(seed)
        count = backend.count
        devices = [f"{backend.name}:{i}" for i in range(count)]
        self.streams = [
            pystreams.Stream(devices[i % count]) for i in range(STREAMS)
        ]
        self.events = [None] * EVENTS
        self.buffers = [
            pystreams.Buffer(
                SIZE, device=devices[0], pin_memory=backend.name == "cuda"
            )
            for _ in range(BUFFERS)
        ]
        self.model = Model()
        # The callables that are not let go yet, and their Futures.
        self.later = {}
        self.said = []
        self.wrong = []

    def part(self):
        buffer = self.rng.randrange(BUFFERS)
        begin = self.rng.randrange(SIZE)
        end = min(SIZE, begin + self.rng.choice([1, 8, SIZE]))
        return buffer, begin, end

    def slice(self, part):
        buffer, begin, end = part
        return self.buffers[buffer][begin:end]

    def compare(self, what, found):
        said, self.said = self.said, []
        if bool(said) != any(found):
            self.wrong.append((what, found, [str(race) for race in said]))

    def stream(self):
        return self.rng.randrange(STREAMS)

    def fill(self):
        stream, part = self.stream(), self.part()
        found = self.model.access(
            self.model.queue(stream), stream, [(True, *part)]
        )
        self.slice(part).fill_(1, stream=self.streams[stream])
        self.compare(("fill", stream, part), found)

    def copy(self):
        stream, to, source = self.stream(), self.part(), self.part()
        size = min(to[2] - to[1], source[2] - source[1])
        to = (to[0], to[1], to[1] + size)
        source = (source[0], source[1], source[1] + size)
        if to[0] == source[0] and to[1] < source[2] and source[1] < to[2]:
            return
        found = self.model.access(
            self.model.queue(stream),
            stream,
            [(False, *source), (True, *to)],
        )
        self.slice(to).copy_(self.slice(source), True, self.streams[stream])
        self.compare(("copy", stream, to, source), found)

    def view(self):
        part, writes = self.part(), self.rng.random() < 0.5
        # It is over when the next call is made.
        self.model.learn(None)
        found = self.model.access(self.model.host, "host", [(writes, *part)])
        self.slice(part).memoryview(readonly=not writes)
        self.compare(("view", writes, part), found)

    def record(self):
        stream, index = self.stream(), self.rng.randrange(EVENTS)
        if self.events[index] is None or self.rng.random() < 0.3:
            self.events[index] = pystreams.Event(self.streams[stream].device)
        event = self.events[index]
        if event.device not in (None, self.streams[stream].device):
            return
        event.record(self.streams[stream])
        self.model.recorded[index] = self.model.latest.get(stream)

    def wait(self):
        stream, index = self.stream(), self.rng.randrange(EVENTS)
        if self.events[index] is not None:
            self.streams[stream].wait_event(self.events[index])
            self.model.queue(stream, self.model.recorded[index])

    def wait_stream(self):
        stream, other = self.stream(), self.stream()
        if stream != other:
            self.streams[stream].wait_stream(self.streams[other])
            self.model.queue(stream, self.model.latest.get(other))

    def is_held(self, node):
        """Return whether the node waits for a callable that was not let go."""
        before = self.model.reached(node) | {node}
        return any(later.node in before for later in self.later)

    def learn_of_stream(self):
        stream = self.stream()
        how = self.rng.choice(["synchronize", "query", "wait", "timeout"])
        if how == "query":
            if not self.streams[stream].query():
                return
        elif self.is_held(self.model.latest.get(stream, 0)):
            return
        elif how == "wait":
            pystreams.wait([self.streams[stream]])
        else:
            self.streams[stream].synchronize(
                *([10] if how == "timeout" else [])
            )
        self.model.learn(self.model.latest.get(stream))

    def learn_of_event(self):
        index = self.rng.randrange(EVENTS)
        if self.events[index] is None:
            return
        how = self.rng.choice(["synchronize", "query", "wait"])
        if how == "query":
            if not self.events[index].query():
                return
        elif self.is_held(self.model.recorded[index] or 0):
            return
        elif how == "wait":
            pystreams.wait([self.events[index]])
        else:
            self.events[index].synchronize()
        self.model.learn(self.model.recorded[index])

    def submit(self):
        stream, part = self.stream(), self.part()
        if self.is_held(self.model.latest.get(stream, 0)):
            return
        view = self.slice(part)
        node = self.model.queue(stream)
        found = self.model.access(node, stream, [(True, *part)])
        future = self.streams[stream].submit(
            lambda: view.memoryview().release()
        )
        # Wait, so that the callable's accesses are checked before the next
        # work is queued.
        future.exception()
        self.compare(("submit", stream, part), found)
        self.model.learn(node)

    def submit_later(self):
        stream = self.stream()
        if len(self.later) < 3 and not any(
            later.stream == stream for later in self.later
        ):
            later = Later(self, stream, self.part())
            later.node = self.model.queue(stream)
            self.later[later] = self.streams[stream].submit(later.run)

    def let_go(self):
        free = [
            later
            for later in self.later
            if not any(
                other.node in self.model.reached(later.node)
                for other in self.later
            )
        ]
        if free:
            later = self.rng.choice(free)
            found = self.model.access(
                later.node, later.stream, [(True, *later.part)]
            )
            later.go.set()
            self.later.pop(later).exception()
            self.compare(("later", later.stream, later.part), found)
            self.model.learn(later.node)

    def renew(self):
        stream = self.stream()
        if any(later.stream == stream for later in self.later):
            return
        self.streams[stream] = pystreams.Stream(self.streams[stream].device)
        # What the old one has left is still unordered.
        old = object()
        self.model.accesses = [
            (node, old if whose == stream else whose, *rest)
            for node, whose, *rest in self.model.accesses
        ]
        self.model.latest.pop(stream, None)

    def run(self):
        steps = {
            self.fill: 6,
            self.copy: 6,
            self.view: 3,
            self.record: 4,
            self.wait: 4,
            self.wait_stream: 2,
            self.learn_of_stream: 1,
            self.learn_of_event: 1,
            self.submit: 1,
            self.submit_later: int(self.hold),
            self.let_go: 1,
            self.renew: 1,
        }
        with races.detect(lambda race: self.said.append(race)):
            for _ in range(LENGTH):
                (step,) = self.rng.choices(list(steps), steps.values())
                step()
                if self.wrong:
                    break
            for later in self.later:
                later.go.set()
        for stream in self.streams:
            stream.synchronize()
        return self.wrong


@pytest.mark.parametrize("group", range(GROUPS))
def test_as_the_model(backend, group, sanitized):
    for seed in range(group, max(SEEDS, GROUPS), GROUPS):
        # On a GPU, do not hold callables: the driver's copy from host memory
        # to host memory makes the program wait for the work before it, and a
        # held callable there would wait for the program.
        hold = not sanitized and backend.on_engine
        program = Program(backend, seed, hold)
        assert (seed, program.run()) == (seed, [])
