"""The names of threads in reports, even while another thread holds the lock
of threading's list of threads."""

import threading
import time

import pytest
from deadlines import LONG

import pystreams
from pystreams import races, timeline


def recorded(backend):
    with timeline.record() as t:
        backend.stream().record_event()
        backend.synchronize()
    columns = timeline.COLUMNS
    return {row[columns.index("thread")] for row in t.rows}


def raced(backend):
    found = []
    one, other = backend.stream(), backend.stream()
    block = backend.empty(16, stream=one)
    with races.detect(found.append):
        block.fill_(1, stream=one)
        block.fill_(2, stream=other)
    backend.synchronize()
    return {found[0].first.thread, found[0].second.thread}


def explained(backend):
    texts, stream = [""], backend.stream()

    def explain():
        end = time.monotonic() + LONG
        while " has waited" not in texts[-1] and time.monotonic() < end:
            texts.append(pystreams.explain())

    stream.submit(explain)
    stream.synchronize()
    return {line.split(" has waited")[0] for line in texts[-1].splitlines()}


@pytest.mark.parametrize("ask", [recorded, raced, explained])
def test_threads_are_named_without_a_lock(backend, ask):
    begin, done = threading.Event(), threading.Event()
    names = set()

    def run():
        begin.wait(LONG)
        names.update(ask(backend))
        done.set()

    # Run a callable, so that the callable's thread exists.
    backend.stream().submit(int).result()
    thread = threading.Thread(target=run, name="asks", daemon=True)
    thread.start()
    with threading._active_limbo_lock:
        begin.set()
        in_time = done.wait(LONG)
    thread.join(LONG)
    assert in_time
    assert "asks" in names
