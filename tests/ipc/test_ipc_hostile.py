"""Handles and pages that a peer of the same user forged, damaged or left half
written: what is refused, and that no process hangs, crashes or loses data."""

import fcntl
import mmap
import os
import random
import signal
import struct
import time

import pytest
from peers import GONE, PeerError, hold_there, shared

import pystreams
from pystreams import Event

pytestmark = pytest.mark.unscheduled

PAGE, LATEST, PIPE = 4096, 24, 32
UNKNOWN = 999
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def forge(device_type, process, file, inode, nonce):
    head = struct.pack(
        "<8siiiiQ24s", b"psevent2", device_type, 0, process, file, inode, nonce
    )
    total = 0xCBF29CE484222325
    for byte in head:
        total = (total ^ byte) * 0x100000001B3 % 2**64
    return head + struct.pack("<Q", total)


def handle_of_file(engine, file, content):
    return forge(
        engine.type, os.getpid(), file, os.fstat(file).st_ino, content[:24]
    )


class Page:
    """The memory that the processes share."""

    def __init__(self, event, pid=None):
        handle = event if isinstance(event, bytes) else event.ipc_handle()
        path = f"/proc/{pid or os.getpid()}/fd/{handle[20] | handle[21] << 8}"
        with open(path, "r+b", buffering=0) as file:
            self._memory = mmap.mmap(file.fileno(), PAGE)

    def __getitem__(self, place):
        return struct.unpack_from("<Q", self._memory, place)[0]

    def __setitem__(self, place, value):
        struct.pack_into("<Q", self._memory, place, value)

    def publish(self, outcome, process=None, inode=0):
        """A record that is pending if the outcome is 0."""
        process = process or os.getpid()
        self[LATEST] = (inode % 2**32) << 32 | process << 10 | outcome


@pytest.fixture
def file(tmp_path):
    """A file of this user's, of a page's size, with bytes that mean
    nothing."""
    content = bytes(range(1, 256)) * 17
    path = tmp_path / "file"
    path.write_bytes(content[:PAGE])
    number = os.open(path, os.O_RDWR)
    yield number, content[:PAGE]
    assert os.pread(number, 2 * PAGE, 0) == content[:PAGE]
    os.close(number)


def memory_file(name, size=PAGE, seals=SEALS, content=b"n" * 24):
    number = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(number, size)
    os.pwrite(number, content, 0)
    fcntl.fcntl(number, fcntl.F_ADD_SEALS, seals)
    return number


def refuses(engine, handle):
    with pytest.raises(RuntimeError, match=GONE):
        Event.from_ipc_handle(engine.device(), handle)


def test_no_file_with_a_name_is_mapped(engine, file):
    number, content = file
    refuses(engine, handle_of_file(engine, number, content))


@pytest.mark.parametrize(
    "options",
    [
        {"seals": 0},
        {"seals": fcntl.F_SEAL_GROW},
        {"seals": fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW},
        {"size": PAGE - 1},
        {"size": 2 * PAGE},
        {"name": "pystreams"},
        {"content": b"m" * 24},
    ],
    ids=str,
)
def test_no_memory_of_another_kind_is_mapped(engine, options):
    number = memory_file(**{"name": "pystreams-event"} | options)
    try:
        refuses(engine, handle_of_file(engine, number, b"n" * 24))
    finally:
        os.close(number)


def test_a_page_is_what_is_mapped(engine):
    """A page in the same file format is accepted, so that the refusals above
    mean something."""
    number = memory_file("pystreams-event")
    handle = handle_of_file(engine, number, b"n" * 24)
    assert Event.from_ipc_handle(engine.device(), handle).query()
    os.close(number)


def test_what_is_refused_is_not_even_opened(engine, tmp_path):
    """If it were opened, the writer of a named pipe would see a reader."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    event = shared(engine)
    page = Page(event)
    try:
        refuses(engine, handle_of_file(engine, writer, b"n" * 24))
        number = memory_file("pystreams-event")
        handle = handle_of_file(engine, number, b"n" * 24)
        opened = Event.from_ipc_handle(engine.device(), handle)
        page = Page(handle)
        page[PIPE] = writer
        page.publish(0, inode=os.fstat(writer).st_ino)
        with pytest.raises(pystreams.AcceleratorError, match="ended before"):
            opened.query()
        os.close(number)
    finally:
        os.close(writer)


def test_nobody_can_keep_others_from_a_page(engine, peer):
    event = shared(engine)
    path = f"/proc/self/fd/{event.ipc_handle()[20]}"
    with open(path, "r+b", buffering=0) as page:
        for seal in (fcntl.F_SEAL_SEAL, 16):
            with pytest.raises(PermissionError):
                fcntl.fcntl(page, fcntl.F_ADD_SEALS, seal)
        with pytest.raises(PermissionError):
            page.truncate(0)
    peer.open(event)


WRONG = [600, 901, 909, 1000, 1022]


@pytest.mark.parametrize("status", WRONG)
def test_a_status_that_there_is_not(engine, peer, status):
    """For example "not ready": work with this outcome would be waited for for
    ever."""
    event = shared(engine)
    peer.open(event)
    Page(event).publish(status + 1)
    peer.do("stream = backend.stream()")
    peer.do("event.wait(stream)")
    for wait in ("event", "stream"):
        for how in ("query()", "synchronize()", "synchronize(timeout=30)"):
            with pytest.raises(PeerError, match=rf"\({UNKNOWN}\)"):
                peer.do(f"{wait}.{how}")
    peer.do("event.record(backend.stream()); event.synchronize()")


@pytest.mark.parametrize("nbytes", [601, 902, 910, 1001, 4096])
def test_a_pipe_with_a_status_that_there_is_not(engine, peer, nbytes):
    event = shared(engine)
    peer.open(event)
    hold_there(peer)
    assert event.query() is False
    stream = engine.stream()
    event.wait(stream)
    page = Page(event)
    pipe = page[PIPE]
    peer.do("import os")
    peer.do(f"os.write({pipe}, bytes({nbytes}))")
    for wait in (event, stream):
        with pytest.raises(pystreams.AcceleratorError, match=str(UNKNOWN)):
            wait.synchronize(timeout=30)
    peer.do("gate.open(); event.synchronize()")


def test_a_pipe_that_is_full_holds_up_nobody(engine, peer):
    event = shared(engine)
    peer.open(event)
    hold_there(peer)
    page = Page(event)
    pipe = page[PIPE]
    writer = os.open(
        f"/proc/{peer.pid}/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK
    )
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, bytes(512))
    peer.do("gate.open(); stream.synchronize()")
    assert peer.do("event.query()") is True
    os.close(writer)


def test_a_process_that_dies_between_two_words(engine, peer):
    """A record's outcome is in two words.  If the process wrote only one of
    them before it died, that one is believed."""
    event, stream = shared(engine), engine.stream()
    peer.open(event)
    hold_there(peer)
    event.wait(stream)
    Page(event)[LATEST] += 1
    peer.kill()
    stream.synchronize(timeout=30)


def test_no_peer_completes_a_record_of_ours(engine, peer):
    event = shared(engine)
    peer.open(event)
    hold_there(peer)
    Page(event)[LATEST] += 1
    assert peer.do("event.query()") is False
    peer.do("gate.open(); event.synchronize()")


@pytest.mark.parametrize("number", [0, 10**6, 2**64 - 1])
def test_a_record_whose_pipe_is_not_where_it_should_be(engine, peer, number):
    """This is as if another process had stopped between writing the pipe's
    word and the record's."""
    event, stream = shared(engine), engine.stream()
    peer.open(event)
    hold_there(peer)
    Page(event)[PIPE] = number
    assert event.query() is False
    event.wait(stream)
    assert stream.query() is False
    peer.do("gate.open()")
    stream.synchronize(timeout=30)
    assert event.query() is True


RECORDER = """
def go():
    import mmap, os
    with open({path!r}, "r+b", buffering=0) as file:
        flags = mmap.mmap(file.fileno(), 4096)
    stream = backend.stream()
    while flags[0] == 0:
        event.record(stream)
    flags[0] = 0
    return event.query()
"""


def test_a_process_stopped_in_a_record_damages_none(engine, peer, tmp_path):
    """Wherever it was stopped, and however many records were made since."""
    path = tmp_path / "flags"
    path.write_bytes(bytes(4096))
    event, stream = shared(engine), engine.stream()
    peer.open(event)
    peer.do(RECORDER.format(path=str(path)))
    chance = random.Random(1)
    with open(path, "r+b", buffering=0) as file:
        flags = mmap.mmap(file.fileno(), 4096)
    for _ in range(60):
        peer.start("go()")
        time.sleep(chance.uniform(0.0005, 0.002))
        peer.stop()
        for _ in range(64):
            event.record(stream)
        flags[0] = 1
        peer.signal(signal.SIGCONT)
        assert peer.finish() is True
        assert event.query() is True


def test_any_page(engine, peers):
    """The maker of the event and another survive whatever stands in it, and
    wait for none of it."""
    maker, opener = peers(), peers()
    maker.do(
        "event = Event(backend.name, enable_timing=False, interprocess=True)"
    )
    handle = maker.do("event.ipc_handle()")
    page = Page(handle, maker.pid)
    use = (
        "def use(event):\n"
        "    import contextlib, time\n"
        "    start, stream = time.monotonic(), backend.stream()\n"
        "    for action in (event.query, lambda: event.wait(stream),\n"
        "                   lambda: event.record(stream), event.query,\n"
        "                   lambda: event.synchronize(0.01),\n"
        "                   lambda: stream.synchronize(0.01)):\n"
        "        with contextlib.suppress(RuntimeError, TimeoutError):\n"
        "            action()\n"
        "    return time.monotonic() - start < 10"
    )
    maker.do(use)
    opener.do(use)
    for seed in range(150):
        chance = random.Random(seed)
        for _ in range(chance.randrange(1, 30)):
            page[chance.choice([LATEST, LATEST, PIPE])] = chance.choice(
                [
                    *(0, 1, 2**63, 2**64 - 1),
                    chance.getrandbits(64),
                    chance.getrandbits(12),
                    page[LATEST] ^ 1 << chance.randrange(64),
                    chance.getrandbits(32) << 32 | maker.pid << 10,
                ]
            )
        opener.open(handle, "backend.device()")
        assert maker.do("use(event)") is True
        assert opener.do("use(event)") is True
