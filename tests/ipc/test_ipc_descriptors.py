"""Memory of CUDA devices between processes: forged descriptors from a peer of
the same user, answers that lie or never come, and processes that end."""

import array
import contextlib
import os
import signal
import socket
import struct
import threading
import time
from pathlib import Path

import pytest
from deadlines import wait_until
from peers import GONE, PeerError, mapped, open_files

import pystreams
from pystreams import Buffer

pytestmark = pytest.mark.unscheduled

# The parts of a handle: the UUID of the device, the number with which the
# answer must begin, and the name of the socket.
DEVICE, NONCE, SOCKET = slice(8, 24), slice(24, 56), slice(56, 64)
SIZE, NOTICE = 10_000, 40


@pytest.fixture
def sharing(backend):
    if backend.on_engine:
        pytest.skip(f"{backend}: what is tested is the CUDA backend's")
    # The driver opens files of its own at the first use.
    backend.synchronize()
    return backend


def seal(handle):
    """Return the handle with the right checksum."""
    total = 0xCBF29CE484222325
    for one in handle[:88]:
        total = (total ^ one) * 0x100000001B3 % 2**64
    return bytes(handle[:88]) + struct.pack("<Q", total)


def connected(handle):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(30)
    client.connect(b"\0" + handle[SOCKET].rstrip(b"\0"))
    return client


def listener(handle):
    """Return the link to the handle's socket in /proc."""
    name = b"@" + handle[SOCKET].rstrip(b"\0")
    sockets = Path("/proc/net/unix").read_bytes().splitlines()
    (inode,) = (s.split()[6] for s in sockets if s.endswith(b" " + name))
    return f"socket:[{inode.decode()}]"


def links_of(process):
    links = []
    for file in Path(f"/proc/{process}/fd").iterdir():
        # The process may close the file meanwhile.
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(file))
    return links


def taken(handle):
    """Connect as an opener of the handle does.  Return the answer's bytes and
    its descriptor."""
    with connected(handle) as client:
        data, files, _, _ = socket.recv_fds(client, NOTICE, 1)
    return data, files[0]


class Server:
    """A socket that gives this answer to each client."""

    def __init__(self, data, files):
        self._answer = data, files
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("")
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def handle(self, real, nbytes=SIZE):
        """Return the real handle, but with the name of this socket."""
        forged = bytearray(real)
        name = self._listener.getsockname()[1:]
        forged[SOCKET] = name.ljust(8, b"\0")
        forged[64:88] = struct.pack("<QQQ", nbytes, 0, nbytes)
        return seal(forged)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._listener.close()

    def _serve(self):
        data, files = self._answer
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, contextlib.suppress(OSError):
                    if data or files:
                        send(client, data, files)


def send(client, data, files):
    control = array.array("i", files)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, control)
    client.sendmsg([data], [rights] if files else [])


@pytest.fixture
def theirs(sharing, peer):
    """The handle of a Buffer of another process."""
    peer.do(
        f"buffer = pystreams.Buffer({SIZE}, device=backend.device(), "
        "interprocess=True)\nbuffer.fill_(7); backend.synchronize()"
    )
    return peer.do("buffer.ipc_handle()")


@pytest.fixture
def real(theirs):
    """The answer that the handle's process gives."""
    data, file = taken(theirs)
    assert len(data) == NOTICE
    assert data[:32] == theirs[NONCE]
    yield data, file
    os.close(file)


@contextlib.contextmanager
def opened_file(path):
    number = os.open(path, os.O_RDWR)
    try:
        yield number
    finally:
        os.close(number)


def refuses(sharing, handle):
    with pytest.raises(RuntimeError, match=GONE):
        Buffer.from_ipc_handle(sharing.device(), handle)


def refuses_answer(sharing, theirs, data, files, nbytes=SIZE, why=GONE):
    """Check that the answer is refused, and that the descriptors in it are
    closed."""
    before = open_files()
    server = Server(data, files)
    with (
        contextlib.closing(server),
        pytest.raises(RuntimeError, match=why),
    ):
        Buffer.from_ipc_handle(sharing.device(), server.handle(theirs, nbytes))
    del server
    assert open_files() == before


def test_the_answer_is_what_is_opened(sharing, theirs, real):
    """The right answer is accepted, so the refusals in the tests below mean
    something."""
    data, file = real
    server = Server(data, [file])
    handle = server.handle(theirs)
    assert handle != theirs
    with contextlib.closing(server):
        opened = Buffer.from_ipc_handle(sharing.device(), handle)
    assert opened.tobytes() == bytes([7]) * SIZE


@pytest.mark.parametrize(
    "answer",
    [
        lambda data, file: (b"", []),
        lambda data, file: (b"", [file]),
        lambda data, file: (data, []),
        lambda data, file: (data, [file, file]),
        lambda data, file: (data[:-1], [file]),
        lambda data, file: (data + b"\0", [file]),
        lambda data, file: (bytes(32) + data[32:], [file]),
        lambda data, file: (data[:32] + struct.pack("<Q", 1), [file]),
    ],
    ids=[
        *("closed", "empty", "no file", "two files", "short", "long"),
        *("another number", "another size"),
    ],
)
def test_an_answer_that_is_wrong(sharing, theirs, real, answer):
    refuses_answer(sharing, theirs, *answer(*real))


@pytest.mark.parametrize("path", ["/dev/null", "memfd", "socket"])
def test_a_descriptor_that_is_of_no_memory(sharing, theirs, real, path):
    with contextlib.ExitStack() as stack:
        if path == "memfd":
            number = os.memfd_create("pystreams-memory")
            os.truncate(number, 2 << 20)
            stack.callback(os.close, number)
        elif path == "socket":
            number = stack.enter_context(socket.socket()).fileno()
        else:
            number = stack.enter_context(opened_file(path))
        refuses_answer(sharing, theirs, real[0], [number])
    opened = Buffer.from_ipc_handle(sharing.device(), theirs)
    assert opened.tobytes() == bytes([7]) * SIZE


@pytest.mark.parametrize("nbytes", [16 << 20, 1 << 40])
def test_a_size_that_both_lie_about(sharing, theirs, real, nbytes):
    data, file = real
    data = data[:32] + struct.pack("<Q", nbytes)
    why = f"{GONE}|out of memory"
    refuses_answer(sharing, theirs, data, [file], nbytes, why)


def test_a_device_that_is_another(sharing, theirs):
    forged = bytearray(theirs)
    forged[DEVICE] = bytes(16)
    with pytest.raises(ValueError, match="got one of another device"):
        Buffer.from_ipc_handle(sharing.device(), seal(forged))
    with pytest.raises(ValueError, match="none of the cuda devices"):
        Buffer.from_ipc_handle(sharing.name, seal(forged))
    opened = Buffer.from_ipc_handle(sharing.name, theirs)
    assert opened.device == sharing.device(0)


@pytest.mark.parametrize("name", [b"", b"zzzzz", b"\xff" * 8])
def test_a_socket_that_there_is_not(sharing, theirs, name):
    forged = bytearray(theirs)
    forged[SOCKET] = name.ljust(8, b"\0")
    refuses(sharing, seal(forged))


def test_clients_that_do_nothing_hold_up_no_other(sharing, theirs):
    clients = [connected(theirs) for _ in range(50)]
    opened = Buffer.from_ipc_handle(sharing.device(), theirs)
    assert opened.tobytes() == bytes([7]) * SIZE
    for client in clients:
        client.close()


@pytest.mark.parametrize("kills", [True, False])
def test_a_process_that_is_stopped(sharing, peer, theirs, kills):
    """An opener waits ten seconds for a descriptor, or until the process that
    should send it ends."""
    start, threads = time.monotonic(), []
    peer.stop()
    try:
        if kills:
            threads.append(threading.Timer(0.5, peer.kill))
            threads[0].start()
        refuses(sharing, theirs)
    finally:
        for thread in threads:
            thread.join()
        if not kills:
            peer.signal(signal.SIGCONT)
    assert time.monotonic() - start < (8 if kills else 25)
    if not kills:
        opened = Buffer.from_ipc_handle(sharing.device(), theirs)
        assert opened.tobytes() == bytes([7]) * SIZE


def test_children_of_the_dead_offer_nothing(sharing, peer, theirs):
    peer.do("import os, time")
    child = peer.do("os.fork() or (os.close(1), time.sleep(1000))")
    try:
        assert listener(theirs) in links_of(peer.pid)
        # fork() returns here before the child has closed it.
        wait_until(lambda: listener(theirs) not in links_of(child))
        peer.kill()
        start = time.monotonic()
        refuses(sharing, theirs)
        assert time.monotonic() - start < 5
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_end_offers_nothing(sharing, peer, theirs):
    assert peer.do("pystreams._C.shutdown(10.0)") is True
    start = time.monotonic()
    refuses(sharing, theirs)
    assert time.monotonic() - start < 5
    with pytest.raises(PeerError):
        peer.do(
            "pystreams.Buffer(8, device=backend.device(), interprocess=True)"
        )
    peer.do("buffer.close()")


@pytest.mark.parametrize("milliseconds", [0, 1, 3, 10])
def test_killed_at_any_step(sharing, peers, milliseconds):
    """Either the memory is opened and stays valid, or the process that made it
    has ended."""
    maker = peers()
    maker.do(
        "def made():\n"
        "    buffer = pystreams.Buffer(64, device=backend.device(), "
        "interprocess=True)\n"
        "    buffer.fill_(7)\n"
        "    backend.synchronize()\n"
        "    return buffer\n"
        "buffers = [made() for _ in range(50)]"
    )
    handles = maker.do("[buffer.ipc_handle() for buffer in buffers]")
    opened, gone = [], 0
    killer = threading.Timer(milliseconds / 1000, maker.kill)
    killer.start()
    for handle in handles:
        try:
            opened.append(Buffer.from_ipc_handle(sharing.device(), handle))
        except RuntimeError as error:
            assert GONE in str(error)
            gone += 1
    killer.join()
    assert len(opened) + gone == 50
    assert {buffer.tobytes() for buffer in opened} <= {bytes([7]) * 64}


@pytest.mark.whole_gpu
def test_no_memory_is_lost(sharing, peer):
    """Neither process loses memory of the driver, even if some calls fail."""

    def round_trip(i):
        buffer = Buffer(SIZE, device=sharing.device(), interprocess=True)
        handle = buffer.ipc_handle()
        peer.do(
            "buffer = pystreams.Buffer.from_ipc_handle("
            f"backend.device(), {handle!r}).fill_({i % 256})\n"
            "backend.synchronize()"
        )
        assert buffer.tobytes() == bytes([i % 256]) * SIZE
        address = buffer.data_ptr()
        buffer.close()
        assert not mapped(sharing, address)
        with pytest.raises(PeerError, match=GONE):
            peer.do(
                "pystreams.Buffer.from_ipc_handle("
                f"backend.device(), {handle!r})"
            )

    for i in range(5):
        round_trip(i)
    before, files = pystreams.cuda.mem_get_info()[0], open_files()
    for i in range(200):
        round_trip(i)
    # Another process may use the device, too.
    assert abs(pystreams.cuda.mem_get_info()[0] - before) < 128 << 20
    assert open_files() == files
