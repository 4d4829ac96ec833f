"""Timelines of a GPU, whose operations are timed by events."""

import threading
import time

from deadlines import LONG

from pystreams import timeline

# More than a stream of the driver takes before it makes the caller wait.
MANY = 100_000


def of_kind(t, kind):
    rows = (dict(zip(timeline.COLUMNS, row, strict=True)) for row in t.rows)
    return [row for row in rows if row["kind"] == kind]


def test_as_long_as_by_the_programs_events(gpu):
    stream = gpu.stream()
    begin, end = (gpu.event(enable_timing=True) for _ in range(2))
    block = gpu.empty(256 << 20)
    gpu.synchronize()
    with timeline.record() as t:
        for _ in range(2):
            begin.record(stream)
            block.fill_(1, stream=stream)
            end.record(stream)
            stream.synchronize()
    assert t.clock_error > 0
    *_, last = of_kind(t, "fill")
    took = (last["end"] - last["begin"]) / 1e6
    assert 0.5 * took < begin.elapsed_time(end) < 2 * took + 0.1


def test_nobody_waits_behind_a_full_stream(gpu):
    """A thread that the driver keeps waiting, because the stream has no room,
    holds nothing that others need, which may have to make room."""
    go = threading.Event()
    full = gpu.stream()
    block = gpu.empty(64)
    gpu.synchronize()
    filled = 0

    def fill():
        nonlocal filled
        while filled < MANY and not go.is_set():
            block.fill_(1, stream=full)
            filled += 1

    with timeline.record() as t:
        future = full.submit(go.wait, LONG)
        filler = threading.Thread(target=fill)
        filler.start()
        before = -1
        while before < filled < MANY:
            before = filled
            time.sleep(0.5)
        assert filler.is_alive()
        assert [row["end"] for row in of_kind(t, "fill")] == [None] * filled
        assert t.clock_error > 0
        go.set()
        filler.join(LONG)
        assert future.result(LONG)
        full.synchronize()
    fills = of_kind(t, "fill")
    assert len(fills) == filled
    assert all(row["end"] is not None for row in fills)
