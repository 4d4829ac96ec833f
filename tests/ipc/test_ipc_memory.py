"""Buffers of several processes: what they hold, who may open them, what ends
with which process, and which handles are refused."""

import fcntl
import gc
import os
import pickle
import resource
import struct
import sys
from pathlib import Path

import pytest
from peers import GONE, PeerError, mapped, open_files, shared

import pystreams
from pystreams import Buffer, races, schedules

pytestmark = pytest.mark.unscheduled

SIZE, LENGTH = 10_000, 96
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
def sharing(backend):
    """A backend with interprocess memory."""
    return backend


@pytest.fixture
def ordering(sharing):
    """A backend with interprocess memory and interprocess events."""
    try:
        shared(sharing).ipc_handle()
    except NotImplementedError as error:
        pytest.skip(str(error))
    return sharing


def made(backend, nbytes=SIZE, index=0):
    return Buffer(nbytes, device=backend.device(index), interprocess=True)


def open_there(peer, buffer, device="backend.device()", name="buffer"):
    handle = buffer if isinstance(buffer, bytes) else buffer.ipc_handle()
    peer.do(f"{name} = pystreams.Buffer.from_ipc_handle({device}, {handle!r})")


def checksum(head):
    total = 0xCBF29CE484222325
    for one in head:
        total = (total ^ one) * 0x100000001B3 % 2**64
    return struct.pack("<Q", total)


def forge(handle, places):
    """Return the handle with 8-byte fields changed, and with matching
    checksums."""
    forged = bytearray(handle)
    for place, value in places.items():
        forged[place : place + 8] = struct.pack("<Q", value % 2**64)
    if forged.startswith(b"psmemor1"):
        forged[56:64] = checksum(forged[:56])
    forged[88:] = checksum(forged[:88])
    return bytes(forged)


def test_both_processes_see_the_bytes(sharing, peer):
    buffer = made(sharing)
    assert buffer.interprocess
    assert not sharing.empty(8).interprocess
    assert buffer.nbytes == SIZE
    assert buffer.device == sharing.device(0)
    assert not buffer.is_pinned()
    buffer.fill_(3)
    sharing.synchronize()
    open_there(peer, buffer)
    assert peer.do("buffer.interprocess, buffer.nbytes") == (True, SIZE)
    assert peer.do("str(buffer.device)") == f"{sharing.name}:0"
    assert peer.do("buffer.tobytes()") == bytes([3]) * SIZE
    peer.do("buffer.fill_(4); backend.synchronize()")
    assert buffer.tobytes() == bytes([4]) * SIZE


INHERITABLE = """[
    number for number in os.listdir("/proc/self/fd")
    # That of the listing is closed.
    if os.path.exists(f"/proc/self/fd/{number}")
    and os.get_inheritable(int(number))
]"""


def test_no_descriptor_is_for_other_programs(sharing, peer):
    buffer = made(sharing)
    peer.do("import os")
    before = eval(INHERITABLE), peer.do(INHERITABLE)
    others = [made(sharing) for _ in range(3)]
    open_there(peer, buffer)
    open_there(peer, others[0], name="other")
    assert (eval(INHERITABLE), peer.do(INHERITABLE)) == before


def test_it_begins_with_zeros(engine):
    assert set(made(engine).tobytes()) <= {0}


def test_an_event_orders_the_processes(ordering, peer):
    sharing = ordering
    buffer, event = made(sharing), shared(sharing)
    stream = sharing.stream()
    open_there(peer, buffer)
    peer.open(event)
    with sharing.hold(stream):
        buffer.fill_(7, stream=stream)
        event.record(stream)
        peer.do(
            "stream = backend.stream(); copied = backend.empty(10_000)\n"
            "event.wait(stream); copied.copy_(buffer, True, stream)\n"
            "event.record(stream)"
        )
        assert not event.query()
    event.synchronize()
    assert peer.do("stream.synchronize() or copied.tobytes()") == (
        bytes([7]) * SIZE
    )


@pytest.mark.parametrize("part", [slice(0, 1), slice(5, 777), slice(0, 0)])
def test_a_part_of_a_buffer_is_that_part_elsewhere(sharing, peer, part):
    buffer = made(sharing)
    whole = bytes(range(250)) * 40
    buffer.copy_(whole)
    open_there(peer, buffer[part])
    assert peer.do("buffer.tobytes()") == whole[part]
    if part.stop > part.start:
        peer.do("buffer.fill_(255); backend.synchronize()")
    expected = bytearray(whole)
    expected[part] = b"\xff" * (part.stop - part.start)
    assert buffer.tobytes() == expected


def test_it_can_be_handed_on_and_opened_twice(sharing, peers):
    first, second = peers(), peers()
    buffer = made(sharing)
    open_there(first, buffer)
    handle = first.do("buffer.ipc_handle()")
    assert handle == buffer.ipc_handle()
    open_there(second, handle)
    open_there(second, handle, name="again")
    second.do("again.fill_(9); backend.synchronize()")
    assert second.do("buffer.tobytes()") == bytes([9]) * SIZE
    assert buffer.tobytes() == bytes([9]) * SIZE


PROGRAM = """
import multiprocessing
import sys

import pystreams


def work(buffer, event, queue):
    stream = pystreams.Stream(buffer.device)
    event.wait(stream)
    buffer[1:].fill_(6, stream=stream)
    event.record(stream)
    stream.synchronize()
    queue.put((type(buffer).__name__, str(buffer.device)))


def main(name):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    buffer = pystreams.empty(5, device=name, interprocess=True)
    event = pystreams.Event(name, enable_timing=False, interprocess=True)
    stream = pystreams.Stream(name)
    buffer.fill_(1, stream=stream)
    event.record(stream)
    process = context.Process(target=work, args=(buffer, event, queue))
    process.start()
    print(*queue.get(timeout=60))
    process.join(60)
    print(process.exitcode, buffer.tobytes())


if __name__ == "__main__":
    main(sys.argv[1])
"""


def test_multiprocessing_sends_it(ordering, run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = run_python([program], ordering.name)
    expected = f"Buffer {ordering.name}:0\n0 {bytes([1, 6, 6, 6, 6])}\n"
    assert (done.stdout, done.stderr) == (expected, "")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_the_handle(sharing, protocol):
    text = pickle.dumps(made(sharing), protocol)
    with pytest.raises(RuntimeError, match="is gone or out of reach"):
        pickle.loads(text)
    buffer = made(sharing)
    text = pickle.dumps(buffer, protocol)
    with pytest.raises(RuntimeError, match="made in this process"):
        pickle.loads(text)


def test_other_memory_has_no_handle(sharing):
    buffer = sharing.empty(8)
    with pytest.raises(RuntimeError, match="interprocess=True"):
        buffer.ipc_handle()
    with pytest.raises(TypeError, match="cannot pickle 'Buffer'"):
        pickle.dumps(buffer)
    buffer = made(sharing)
    buffer.close()
    for action in (buffer.ipc_handle, lambda: buffer.interprocess):
        with pytest.raises(ValueError, match="the Buffer is closed"):
            action()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pin_memory": True}, "expects pin_memory=False with interprocess"),
        ({"nbytes": 0}, "expects an int of at least 1 for nbytes"),
        ({"stream": "default"}, "expects None for stream with interprocess"),
    ],
    ids=["pinned", "nothing", "stream"],
)
@pytest.mark.parametrize("make", [Buffer, pystreams.empty])
def test_arguments_that_exclude_each_other(sharing, make, arguments, message):
    values = {"nbytes": 8, "device": sharing.device(0), "interprocess": True}
    values |= arguments
    if "stream" in values:
        values["stream"] = sharing.stream()
    before = sharing.in_use()
    with pytest.raises(ValueError, match=message):
        make(values.pop("nbytes"), **values)
    with pytest.raises(TypeError, match="interprocess"):
        make(8, interprocess="yes")
    assert sharing.in_use() == before


def test_statistics_count_what_this_process_allocated(sharing, peer):
    before = sharing.in_use()
    buffer = made(sharing)
    open_there(peer, buffer)
    assert sharing.in_use() == before + SIZE
    assert peer.do("backend.in_use()") == 0
    buffer.close()
    assert sharing.in_use() == before


def test_what_is_opened_outlives_the_buffer_and_its_process(sharing, peers):
    first, second = peers(), peers()
    first.do(
        "buffer = pystreams.Buffer(100, device=backend.device(), "
        "interprocess=True)\nbuffer.fill_(8); backend.synchronize()"
    )
    handle = first.do("buffer.ipc_handle()")
    here = Buffer.from_ipc_handle(sharing.device(), handle)
    first.do("buffer.close()")
    with pytest.raises(PeerError, match=f"RuntimeError: .*{GONE}"):
        open_there(second, handle)
    first.kill()
    assert here.tobytes() == bytes([8]) * 100
    here.fill_(1)
    assert here.tobytes() == bytes([1]) * 100


@pytest.mark.parametrize("step", ["made", "opened", "writing"])
def test_a_process_is_killed(sharing, peers, step):
    maker, user = peers(), peers()
    maker.do(
        "buffer = pystreams.Buffer(100, device=backend.device(), "
        "interprocess=True)\nstream = backend.stream()\n"
        "buffer.fill_(0); backend.synchronize()"
    )
    handle = maker.do("buffer.ipc_handle()")
    if step != "made":
        open_there(user, handle)
    if step == "writing":
        maker.do("gate = backend.gate(stream)")
        maker.do("buffer.fill_(1, stream=stream)")
    maker.kill()
    if step == "made":
        with pytest.raises(PeerError, match=GONE):
            open_there(user, handle)
    else:
        assert user.do("buffer.tobytes()") == bytes(100)


def test_work_that_uses_it_keeps_it(sharing, peer):
    buffer = made(sharing)
    open_there(peer, buffer)
    peer.do(
        "stream, address = backend.stream(), buffer.data_ptr()\n"
        "gate = backend.gate(stream)\n"
        "buffer.fill_(5, stream=stream)\n"
        "del buffer"
    )
    assert peer.do("mapped(backend, address)")
    peer.do("gate.open(); stream.synchronize()")
    assert not peer.do("mapped(backend, address)")
    assert buffer.tobytes() == bytes([5]) * SIZE


def test_nothing_is_left(sharing, peer):

    def round_trip():
        buffer = made(sharing)
        open_there(peer, buffer)
        buffer.fill_(1)
        sharing.synchronize()
        peer.do("address = buffer.data_ptr()\nbuffer.tobytes(); del buffer")
        address = buffer.data_ptr()
        del buffer
        assert not mapped(sharing, address)
        assert not peer.do("mapped(backend, address)")

    round_trip()
    before = open_files(), peer.do("open_files()")
    for _ in range(20):
        round_trip()
    assert (open_files(), peer.do("open_files()")) == before
    assert not [n for n in os.listdir("/dev/shm") if "pystreams" in n]


def test_a_callable_may_drop_it(sharing):
    """A callable must not wait for work, so another thread frees the
    memory."""
    buffer, stream = [made(sharing)], sharing.stream()
    address = buffer[0].data_ptr()
    stream.submit(buffer.clear).result(60)
    made(sharing, 10 * SIZE).close()
    assert not mapped(sharing, address)


def test_a_callable_may_make_and_open_it(sharing, peer):
    """Neither making nor opening the memory may wait for work of the stream,
    because that work waits for the callable."""
    peer.do(
        "stream = backend.stream()\n"
        "buffer = pystreams.Buffer(8, device=backend.device(), "
        "interprocess=True)\nbuffer.fill_(3); backend.synchronize()"
    )
    handle, stream = peer.do("buffer.ipc_handle()"), sharing.stream()
    future = stream.submit(
        lambda: (
            made(sharing),
            Buffer.from_ipc_handle(sharing.device(), handle),
        )
    )
    behind = sharing.filled(1, stream=sharing.stream())
    ours, theirs = future.result(60)
    stream.synchronize()
    assert theirs.tobytes() == bytes([3]) * 8
    ours.copy_(behind.tobytes() + bytes(SIZE - 64))


def test_a_handle_has_96_bytes(sharing):
    buffer = made(sharing)
    handle = buffer.ipc_handle()
    assert isinstance(handle, bytes)
    assert len(handle) == LENGTH
    for length in range(200):
        if length != LENGTH:
            with pytest.raises(ValueError, match=f"96.*but got {length}"):
                Buffer.from_ipc_handle(sharing.device(), bytes(length))
    with pytest.raises(TypeError, match="a bytes-like object for handle"):
        Buffer.from_ipc_handle(sharing.device(), "handle")


@pytest.mark.parametrize("byte", range(LENGTH))
def test_any_bit_of_a_handle(sharing, byte):
    handle = made(sharing).ipc_handle()
    for bit in range(8):
        altered = bytearray(handle)
        altered[byte] ^= 1 << bit
        with pytest.raises(ValueError, match="as its ipc_handle"):
            Buffer.from_ipc_handle(sharing.device(), altered)


@pytest.mark.parametrize(
    "places",
    [
        {64: 0},
        {64: 2**63},
        {64: 2**64 - 1},
        {72: SIZE + 1, 80: 0},
        {72: 1, 80: SIZE},
        {72: 2**64 - 1},
        {80: SIZE + 1},
        {80: 2**64 - 1},
    ],
    ids=str,
)
def test_a_part_that_is_not_in_the_memory(sharing, peer, places):
    handle = made(sharing).ipc_handle()
    assert forge(handle, {}) == handle
    with pytest.raises(PeerError, match=r"ValueError: .*as its ipc_handle"):
        open_there(peer, forge(handle, places))


@pytest.mark.parametrize("pages", [-1, 1, 1000, 2**40])
def test_a_size_that_is_not_the_memory_s(sharing, peer, pages):
    buffer = made(sharing, 3 * 4096)
    forged = forge(buffer.ipc_handle(), {64: (3 + pages) * 4096, 80: 1})
    with pytest.raises(PeerError, match=f"{GONE}|as its ipc_handle"):
        open_there(peer, forged)
    open_there(peer, buffer)


def test_the_handle_of_an_event_is_none_of_memory(ordering, peer):
    event, buffer = shared(ordering), made(ordering)
    handle = event.ipc_handle() + buffer.ipc_handle()[64:]
    with pytest.raises(PeerError, match="as its ipc_handle"):
        open_there(peer, forge(handle, {}))
    with pytest.raises(PeerError, match="as its ipc_handle"):
        peer.open(buffer.ipc_handle()[:64])


@pytest.mark.parametrize(
    "options",
    [{}, {"seals": 0}, {"name": "pystreams-event"}, {"size": 4096}],
    ids=lambda options: str(options) or "right",
)
def test_only_sealed_memory_is_mapped(engine, options):
    """If a file can be made shorter, a process that reads its memory may
    crash."""
    options = {
        "seals": SEALS,
        "name": "pystreams-memory",
        "size": 2 * 4096,
    } | options
    number = os.memfd_create(
        options["name"], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    )
    try:
        os.truncate(number, options["size"])
        os.pwrite(number, b"n" * 24, 0)
        fcntl.fcntl(number, fcntl.F_ADD_SEALS, options["seals"])
        head = struct.pack(
            "<8siiiiQ24s",
            b"psmemor1",
            engine.type,
            0,
            os.getpid(),
            number,
            os.fstat(number).st_ino,
            b"n" * 24,
        )
        head += checksum(head) + struct.pack("<QQQ", 100, 0, 100)
        handle = head + checksum(head)
        right = options == {
            "seals": SEALS,
            "name": "pystreams-memory",
            "size": 2 * 4096,
        }
        if right:
            opened = Buffer.from_ipc_handle(engine.device(), handle)
            assert opened.tobytes() == bytes(100)
        else:
            with pytest.raises(RuntimeError, match=GONE):
                Buffer.from_ipc_handle(engine.device(), handle)
    finally:
        os.close(number)


def test_not_in_the_process_that_made_it(sharing):
    buffer = made(sharing)
    with pytest.raises(RuntimeError, match="use the Buffer itself"):
        Buffer.from_ipc_handle(sharing.device(), buffer.ipc_handle())


def test_not_on_another_device(sharing, peer):
    if sharing.count < 2:
        pytest.skip(f"{sharing}: needs two devices")
    buffer = made(sharing, index=1)
    with pytest.raises(PeerError, match="got one of another device"):
        open_there(peer, buffer)
    open_there(peer, buffer, "backend.device(1)")
    assert peer.do("str(buffer.device)") == f"{sharing.name}:1"


def test_a_device_without_an_index_is_the_one_that_has_it(sharing, peer):
    """A pickle has no index of the device, since the processes may number
    devices differently."""
    if sharing.count < 2:
        pytest.skip(f"{sharing}: needs two devices")
    buffer = made(sharing, index=1).fill_(2, sharing.stream(1))
    sharing.synchronize(1)
    open_there(peer, buffer, repr(sharing.name))
    assert peer.do("str(buffer.device)") == f"{sharing.name}:1"
    peer.do(f"import pickle; buffer = pickle.loads({pickle.dumps(buffer)!r})")
    assert peer.do("str(buffer.device)") == f"{sharing.name}:1"
    assert peer.do("buffer.tobytes()") == bytes([2]) * SIZE


def test_a_process_that_does_not_see_the_device(engine, run_python):
    if engine.count < 2:
        pytest.skip(f"{engine}: needs two devices")
    buffer = made(engine, index=1)
    done = run_python(
        "import sys\n"
        "from pystreams import Buffer\n"
        "try:\n"
        "    Buffer.from_ipc_handle(sys.argv[1], bytes.fromhex(sys.argv[2]))\n"
        "except ValueError as error:\n"
        "    print(error)",
        engine.name,
        buffer.ipc_handle().hex(),
        env={"PYSTREAMS_CPU_DEVICES": "1", "PYSTREAMS_EMULATE_CUDA": "1"},
    )
    message = f"none of the {engine.name} devices that this process sees"
    assert (message in done.stdout, done.stderr) == (True, "")


def test_more_than_there_is(sharing):
    for nbytes in (2**45, sys.maxsize):
        with pytest.raises(pystreams.OutOfMemoryError, match="allocating"):
            made(sharing, nbytes)


def test_too_many_open_files(sharing):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = []
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 9, hard)
    )
    try:
        with pytest.raises(pystreams.OutOfMemoryError):
            while len(kept) < 100:
                kept.append(made(sharing, 8))
        assert kept
        del kept[0]
        made(sharing, 8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


FORK = """
import os, sys
import pystreams

name = sys.argv[1]
buffer = pystreams.empty(64, device=name, interprocess=True)
buffer.fill_(3)
buffer.tobytes()
handle = buffer.ipc_handle()
view = buffer.memoryview(readonly=True) if name == "cpu" else b"\3"
child = os.fork()
if child == 0:
    assert view[0] == 3
    for action in (buffer.ipc_handle, buffer.tobytes):
        try:
            action()
        except RuntimeError as error:
            assert "spawn" in str(error), error
        else:
            os._exit(1)
    files = [os.readlink(f"/proc/self/fd/{n}") for n in range(3, 20)
             if os.path.lexists(f"/proc/self/fd/{n}")]
    assert not [f for f in files if "pystreams" in f], files
    opened = pystreams.Buffer.from_ipc_handle(name, handle)
    assert opened.tobytes() == bytes([3]) * 64
    opened.fill_(4)
    opened.tobytes()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
print(buffer.tobytes() == bytes([4]) * 64)
"""


def test_a_forked_child_opens_it_anew(engine, run_python):
    done = run_python(FORK, engine.name)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_emulated_memory_is_the_device_s(sharing):
    if not pystreams.cuda.is_emulated() or sharing.name == "cpu":
        pytest.skip(f"{sharing}: is no emulated device")
    free = pystreams.cuda.mem_get_info()[0]
    buffer = made(sharing, 4096)
    assert pystreams.cuda.mem_get_info()[0] == free - 4096
    assert buffer.__dlpack_device__() == (2, 0)
    buffer.close()
    assert pystreams.cuda.mem_get_info()[0] == free


def test_races_are_found_in_it(sharing):
    one, two = sharing.stream(), sharing.stream()
    with races.detect("raise"):
        buffer = made(sharing)
        buffer.fill_(1, stream=one)
        with pytest.raises(races.RaceError):
            buffer.fill_(2, stream=two)
    sharing.synchronize()


def test_not_while_a_schedule_is_explored(engine, peer):
    peer.do(
        "buffer = pystreams.Buffer(8, device=backend.device(), "
        "interprocess=True)"
    )
    handle = peer.do("buffer.ipc_handle()")

    def program():
        for action in (
            lambda: made(engine),
            lambda: Buffer.from_ipc_handle(engine.device(), handle),
        ):
            with pytest.raises(RuntimeError, match="of several processes"):
                action()

    schedules.replay(program, "late")
    gc.collect()
    assert "pystreams-memory" not in Path("/proc/self/maps").read_text()
