"""Random programs compared with a sequential model; a seed is a whole
program."""

import os
import random

import pytest

FIRST = int(os.environ.get("PYSTREAMS_FIRST_SEED", "0"))
SEEDS = int(os.environ.get("PYSTREAMS_SEEDS", "2000"))
PARTS = 4
KINDS = {
    "record": 4,
    "wait": 4,
    "wait_stream": 2,
    "query": 4,
    "synchronize": 2,
    "sleep": 1,
}


@pytest.fixture(params=range(PARTS), ids="part-{}".format)
def run_seeds(request):
    """run(program): call it with each seed of a part of them."""

    def run(program):
        for seed in range(FIRST + request.param, FIRST + SEEDS, PARTS):
            try:
                program(seed)
            except Exception as error:
                raise AssertionError(
                    f"PYSTREAMS_FIRST_SEED={seed} PYSTREAMS_SEEDS=1 replays it"
                ) from error

    return run


class Gated:
    """Record, wait, query and synchronize while another stream is held."""

    def __init__(self, backend, seed, devices):
        self.backend = backend
        self.random = random.Random(seed)
        self.streams = [backend.stream(i % devices) for i in range(6)]
        self.events = [
            [
                backend.event(enable_timing=bool(timed))
                for timed in (False, True) * 2
            ]
            for _ in range(devices)
        ]
        for stream in self.streams:
            backend.sleep(stream, 0.01)
            stream.synchronize()
        self.held = set()
        self.event_held = {}

    def any_event(self):
        return self.random.choice(self.random.choice(self.events))

    def step(self):
        stream = self.random.choice(self.streams)
        event = self.random.choice(self.events[stream.device_index])
        (kind,) = self.random.choices(list(KINDS), KINDS.values())
        if kind == "record":
            event.record(stream)
            self.event_held[event] = stream in self.held
        elif kind == "wait":
            event = self.any_event()
            stream.wait_event(event)
            if self.event_held.get(event):
                self.held.add(stream)
        elif kind == "wait_stream":
            other = self.random.choice(self.streams)
            stream.wait_stream(other)
            if other in self.held:
                self.held.add(stream)
        elif kind == "sleep":
            self.backend.sleep(stream, 0.01)
        elif kind == "query":
            self.check(stream, stream in self.held)
            event = self.any_event()
            self.check(event, self.event_held.get(event, False))
        else:
            event = self.any_event()
            if stream not in self.held:
                stream.synchronize()
                assert stream.query()
            if not self.event_held.get(event):
                event.synchronize()
                assert event.query()
        return kind

    @staticmethod
    def check(one, held):
        answer = one.query()
        assert type(answer) is bool
        if held:
            assert not answer

    def run(self, rounds):
        """A round ends early once so much is held that little can happen."""
        for _ in range(rounds):
            self.held = {self.random.choice(self.streams)}
            self.event_held.clear()
            with self.backend.hold(*self.held):
                for _ in range(60):
                    kind = self.step()
                    for stream in self.held:
                        assert not stream.query(), kind
                    if len(self.held) > 4:
                        break
            for one in (*self.streams, *self.event_held):
                one.synchronize()
                assert one.query()


def test_held_is_held_and_the_rest_is_free(backend, run_seeds):
    run_seeds(lambda seed: Gated(backend, seed, 1).run(3))


def test_held_across_devices(two_devices, run_seeds):
    run_seeds(lambda seed: Gated(two_devices, seed, 2).run(3))


class Cells:
    """Memory cells that streams fill and copy, ordered by few events that
    are recorded over and over.

    A clock is how many operations of each stream are known to be over.
    """

    EVENTS = 4

    def __init__(self, backend, seed, devices):
        self.backend = backend
        self.random = random.Random(seed)
        self.streams = [backend.stream(i % devices) for i in range(5)]
        self.events = [
            [backend.event() for _ in range(self.EVENTS)]
            for _ in range(devices)
        ]
        self.cells, self.values = [], []
        for nbytes in (64, 64, 64, 4096, 100_000, 100_000):
            cell = backend.host(nbytes)
            cell.zero_()
            self.cells.append(cell)
            self.values.append(0)
        for index in range(devices):
            backend.synchronize(index)
        none = [0] * len(self.streams)
        self.clock = [list(none) for _ in self.streams]
        self.event_clock = {}
        self.host = list(none)
        self.readers = [list(none) for _ in self.cells]
        self.writers = [list(none) for _ in self.cells]

    @staticmethod
    def join(clock, other):
        clock[:] = map(max, clock, other)

    @staticmethod
    def covers(clock, other):
        return all(a >= b for a, b in zip(clock, other, strict=True))

    def record(self, s):
        event = self.random.choice(self.events[self.streams[s].device_index])
        event.record(self.streams[s])
        self.event_clock[event] = list(self.clock[s])
        return event

    def wait(self, s, event):
        self.streams[s].wait_event(event)
        self.join(self.clock[s], self.event_clock[event])

    def order(self, s, accesses):
        """Make stream s wait until these are over, if it does not yet."""
        self.join(self.clock[s], self.host)
        for other, count in enumerate(accesses):
            if self.clock[s][other] < count:
                self.wait(s, self.record(other))

    def ran(self, s, cells, clocks):
        self.clock[s][s] += 1
        for cell in cells:
            clocks[cell][s] = self.clock[s][s]

    def fill(self, s):
        cell = self.random.randrange(len(self.cells))
        value = self.random.randrange(256)
        self.order(s, self.readers[cell])
        self.order(s, self.writers[cell])
        self.cells[cell].fill_(value, stream=self.streams[s])
        self.values[cell] = value
        self.ran(s, [cell], self.writers)

    def copy(self, s):
        source, target = self.random.choice(
            [(0, 1), (1, 2), (2, 0), (4, 5), (5, 4)]
        )
        self.order(s, self.writers[source])
        self.order(s, self.readers[target])
        self.order(s, self.writers[target])
        self.cells[target].copy_(
            self.cells[source], non_blocking=True, stream=self.streams[s]
        )
        self.values[target] = self.values[source]
        self.ran(s, [source], self.readers)
        self.writers[target][s] = self.clock[s][s]

    def observe(self, s):
        """Learn on the host that something is over, and look at it."""
        event = self.record(s)
        how = self.random.randrange(4)
        if how == 0:
            self.streams[s].synchronize()
        elif how == 1:
            event.synchronize()
        elif not (event, self.streams[s])[how - 2].query():
            return
        self.join(self.host, self.clock[s])
        for cell, value in enumerate(self.values):
            if self.covers(self.host, self.writers[cell]):
                self.look(cell, value)

    def look(self, cell, value):
        with memoryview(self.cells[cell]) as view:
            assert view.tobytes() == bytes([value]) * view.nbytes

    def step(self):
        s = self.random.randrange(len(self.streams))
        kind = self.random.randrange(20)
        if kind < 7:
            self.fill(s)
        elif kind < 14:
            self.copy(s)
        elif kind < 16:
            self.record(s)
        elif kind < 17 and self.event_clock:
            self.wait(s, self.random.choice(list(self.event_clock)))
        elif kind < 19:
            self.backend.sleep(self.streams[s], self.random.random() / 20)
        else:
            self.observe(s)

    def run(self, steps):
        for _ in range(steps):
            self.step()
        for stream in self.streams:
            stream.synchronize()
        for cell, value in enumerate(self.values):
            self.look(cell, value)


def test_as_if_sequential(backend, run_seeds):
    run_seeds(lambda seed: Cells(backend, seed, 1).run(80))


def test_as_if_sequential_across_devices(two_devices, run_seeds):
    run_seeds(lambda seed: Cells(two_devices, seed, 2).run(80))
