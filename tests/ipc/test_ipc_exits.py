"""Interprocess events when some of the processes end, and what remains of
them."""

import gc
import os
import signal
import threading
from pathlib import Path

import pytest
from peers import GONE, PeerError, hold_there, opened, shared

import pystreams
from pystreams import Event

pytestmark = pytest.mark.unscheduled

ENDED = "the process of the record ended before its work"


@pytest.mark.parametrize("step", ["opened", "waiting", "recorded"])
def test_who_opened_it_is_killed(backend, peer, peers, step):
    event, stream = shared(backend), backend.stream()
    peer.open(event)
    if step == "waiting":
        with backend.hold(stream):
            event.record(stream)
            peer.do("stream = backend.stream(); event.wait(stream)")
            peer.kill()
        event.synchronize()
    if step == "recorded":
        peer.do("event.record(backend.stream()); event.synchronize()")
        event.synchronize()
        if not backend.on_engine:
            # Record the event again, so that cudart's event is not that of a
            # dead recorder.
            event.record(stream)
    peer.kill()
    event.synchronize()
    assert event.query()
    event.record(stream)
    event.synchronize()
    another = peers()
    another.open(event)
    another.do("event.synchronize()")


def test_who_opened_it_is_killed_before_its_record_is_done(faulty, peer):
    event, stream = shared(faulty), faulty.stream()
    peer.open(event)
    hold_there(peer)
    event.wait(stream)
    peer.kill()
    for action in (stream.synchronize, event.synchronize, event.query):
        with pytest.raises(pystreams.AcceleratorError, match=ENDED):
            action()
    event.record(faulty.stream())
    event.synchronize()
    assert event.query()


def test_the_record_of_the_dead_is_found_later(faulty, peer, peers):
    event = shared(faulty)
    peer.open(event)
    hold_there(peer)
    peer.kill()
    with pytest.raises(pystreams.AcceleratorError, match=ENDED):
        event.query()
    other = peers()
    other.open(event)
    with pytest.raises(PeerError, match=ENDED):
        other.do("event.synchronize()")


@pytest.mark.parametrize("way", ["exit", "kill"])
@pytest.mark.parametrize("step", ["exported", "opened", "done", "pending"])
def test_the_maker_ends(faulty, peer, peers, way, step):
    if step == "exported":
        peer.do(
            "event = Event(backend.name, enable_timing=False, "
            "interprocess=True)"
        )
        handle = peer.do("event.ipc_handle()")
        getattr(peer, way)()
        with pytest.raises(RuntimeError, match=GONE):
            Event.from_ipc_handle(faulty.device(), handle)
        return
    event, stream = opened(faulty, peer), faulty.stream()
    if step == "done":
        peer.do("event.record(backend.stream())")
    if step == "pending":
        # Queue work that the peer does not wait for when it exits.
        peer.do("stream = backend.stream(); backend.sleep(stream, 10**9)")
        peer.do("event.record(stream)")
        event.wait(stream)
    getattr(peer, way)()
    if step == "pending":
        for action in (event.synchronize, stream.synchronize):
            with pytest.raises(pystreams.AcceleratorError, match=ENDED):
                action()
    else:
        assert event.query()
        event.wait(stream)
        stream.synchronize()
    event.record(faulty.stream())
    event.synchronize()
    with pytest.raises(PeerError, match=GONE):
        peers().open(event)


def test_killed_while_a_thread_waits(faulty, peer):
    event = opened(faulty, peer)
    hold_there(peer)
    raised = []

    def wait():
        try:
            event.synchronize()
        except pystreams.AcceleratorError as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    peer.kill()
    thread.join(60)
    assert len(raised) == 1
    assert ENDED in raised[0]


def test_children_of_the_dead_do_not_matter(faulty, peer):
    """A forked child takes no part in its parent's record."""
    event = opened(faulty, peer)
    hold_there(peer)
    peer.do("import os, time")
    child = peer.do("os.fork() or (os.close(1), time.sleep(1000))")
    try:
        peer.kill()
        with pytest.raises(pystreams.AcceleratorError, match=ENDED):
            event.synchronize(timeout=60)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_process_that_is_stopped_holds_up_no_other(engine, peer):
    event = shared(engine)
    peer.open(event)
    hold_there(peer)
    peer.signal(signal.SIGSTOP)
    try:
        assert event.query() is False
        event.record(engine.stream())
        event.synchronize()
        assert event.query() is True
    finally:
        peer.signal(signal.SIGCONT)
    peer.do("gate.open(); stream.synchronize()")


def test_exit_while_others_are_waited_for(engine, run_python):
    event, stream = shared(engine), engine.stream()
    with engine.hold(stream):
        event.record(stream)
        done = run_python(
            "import sys, threading, pystreams\n"
            "event = pystreams.Event.from_ipc_handle("
            "sys.argv[1], bytes.fromhex(sys.argv[2]))\n"
            "stream = pystreams.Stream(sys.argv[1])\n"
            "event.wait(stream)\n"
            "threading.Thread(target=event.synchronize, daemon=True).start()",
            engine.name,
            event.ipc_handle().hex(),
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FORK = """
import os, sys
import pystreams
from pystreams import Event

name = sys.argv[1]
event = Event(name, enable_timing=False, interprocess=True)
handle = event.ipc_handle()
event.record(pystreams.Stream(name))
child = os.fork()
if child == 0:
    for action in (event.query, event.ipc_handle, event.record, event.wait):
        try:
            action()
        except RuntimeError as error:
            assert "spawn" in str(error), error
        else:
            os._exit(1)
    files = [os.readlink(f"/proc/self/fd/{n}") for n in range(3, 20)
             if os.path.lexists(f"/proc/self/fd/{n}")]
    assert not [f for f in files if "pystreams" in f], files
    opened = Event.from_ipc_handle(name, handle)
    opened.synchronize()
    opened.record(pystreams.Stream(name))
    opened.synchronize()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0
event.synchronize()
print("done")
"""


def test_a_forked_child_opens_it_anew(engine, run_python):
    done = run_python(FORK, engine.name)
    assert (done.stdout, done.stderr) == ("done\n", "")


COUNT = """
def held():
    import gc, os
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    with open("/proc/self/maps") as maps:
        return files, maps.read().count("pystreams-event")
"""


def test_nothing_is_left(engine, peer):
    names = {}
    exec(COUNT, names)
    peer.do(COUNT)

    def round_trip():
        event, stream = shared(engine), engine.stream()
        peer.open(event)
        with engine.hold(stream):
            event.record(stream)
            peer.do("stream = backend.stream(); event.wait(stream)")
        peer.do("stream.synchronize()")
        hold_there(peer)
        event.wait(stream)
        peer.do("gate.open()")
        stream.synchronize()
        peer.do("del event, stream, gate")

    round_trip()
    before = names["held"](), peer.do("held()")
    for _ in range(20):
        round_trip()
    assert (names["held"](), peer.do("held()")) == before
    assert before[0][1] == before[1][1] == 0
    # Other programs' names come and go.
    assert not [n for n in os.listdir("/dev/shm") if "pystreams" in n]


def test_too_many_open_files(engine, run_python):
    done = run_python(
        "import resource, sys, pystreams\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "def made():\n"
        "    event = pystreams.Event(sys.argv[1], enable_timing=False,\n"
        "                            interprocess=True)\n"
        "    event.ipc_handle()\n"
        "    return event\n"
        "kept = []\n"
        "try:\n"
        "    while len(kept) < 100:\n"
        "        kept.append(made())\n"
        "except pystreams.OutOfMemoryError as error:\n"
        "    assert 'out of memory' in str(error)\n"
        "assert 40 < len(kept) < 64\n"
        "del kept[0]\n"
        "made()",
        engine.name,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_events_that_are_not_shared_open_no_file(engine):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    events = [engine.event() for _ in range(10)]
    for event in events:
        event.record(engine.stream())
    assert len(os.listdir("/proc/self/fd")) == before
    assert Path("/proc/self/maps").read_text().count("pystreams-event") == 0
