"""Events in objects that multiprocessing sends to other processes."""

import copy
import pickle

import pytest
from peers import shared

import pystreams

pytestmark = pytest.mark.unscheduled

PROGRAM = """
import multiprocessing
import sys

import pystreams
from pystreams import Event


def work(event, inbox, outbox):
    '''Wait for the event, and record one that came by a queue.'''
    back = inbox.get(timeout=60)
    stream = pystreams.Stream(event.device)
    event.wait(stream)
    stream.synchronize()
    back.record(stream)
    outbox.put((type(event).__name__, str(event.device), event.interprocess))
    inbox.get(timeout=60)


def main(name):
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    if name == "cuda":
        event = pystreams.cuda.Event(interprocess=True)
    else:
        event = Event(name, enable_timing=False, interprocess=True)
    back = Event(name, enable_timing=False, interprocess=True)
    process = context.Process(target=work, args=(event, inbox, outbox))
    process.start()
    event.record(pystreams.Stream(name))
    inbox.put(back)
    print(*outbox.get(timeout=60))
    back.synchronize()
    assert back.query()
    inbox.put(None)
    process.join(60)
    print(process.exitcode)


if __name__ == "__main__":
    main(sys.argv[1])
"""


def test_processes_and_queues(backend, run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_python([program], backend.name)
    assert (done.stdout, done.stderr) == (
        f"Event {backend.name}:0 True\n0\n",
        "",
    )


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_is_pickled_is_the_handle(backend, protocol):
    event = shared(backend)
    text = pickle.dumps(event, protocol)
    if protocol > 2:
        assert event.ipc_handle() in text
    with pytest.raises(RuntimeError, match="was made in this process"):
        pickle.loads(text)
    event.record(backend.stream())
    event.synchronize()


def test_pickling_keeps_the_type(cuda):
    event = pystreams.cuda.Event(interprocess=True)
    open_it, (device, handle) = event.__reduce__()
    assert open_it == pystreams.cuda.Event.from_ipc_handle
    assert (device, handle) == (cuda.device(0), event.ipc_handle())


@pytest.mark.parametrize("blocking", [False, True])
def test_blocking_is_kept(backend, peers, blocking):
    peer = peers()
    peer.do(
        "import pickle; event = Event(backend.name, enable_timing=False, "
        f"interprocess=True, blocking={blocking})"
    )
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        event = pickle.loads(peer.do(f"pickle.dumps(event, {protocol})"))
        assert event.blocking is blocking
        assert event.interprocess is True
        assert event.enable_timing is False
        # A process that received the event and passes it on keeps the flag,
        # too.
        assert pickle.loads(pickle.dumps(event)).blocking is blocking


def test_the_state_of_other_events_is_theirs(backend):
    for event, state in (
        (backend.event(), True),
        (shared(backend), 1),
        (shared(backend), {"blocking": True}),
    ):
        with pytest.raises(TypeError, match="being unpickled"):
            event.__setstate__(state)
        assert event.blocking is False


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_other_events_cannot_be_pickled(backend, way):
    with pytest.raises(TypeError, match="made with interprocess=True"):
        way(backend.event())


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_a_shared_event_cannot_be_copied(backend, way):
    with pytest.raises(RuntimeError, match="use the Event itself here"):
        way(shared(backend))
