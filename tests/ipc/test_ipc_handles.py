"""Handles of interprocess events: their contents, which processes may open
one, and what is refused."""

import pytest
from peers import GONE, Peer, PeerError, shared

import pystreams
from pystreams import _C, Event

pytestmark = pytest.mark.unscheduled


def test_a_handle_is_64_bytes(backend):
    event = shared(backend)
    handle = event.ipc_handle()
    assert isinstance(handle, bytes)
    assert len(handle) == 64
    assert event.ipc_handle() == handle
    event.record(backend.stream())
    event.synchronize()
    assert event.ipc_handle() == handle
    assert shared(backend).ipc_handle() != handle


def test_a_handle_makes_the_event(backend):
    event = shared(backend)
    assert event.event_id == 0
    event.ipc_handle()
    assert event.event_id != 0
    assert event.device == backend.device(0)
    assert event.query()
    event.synchronize()
    event.wait(backend.stream())


def test_a_handle_makes_the_event_where_it_was_asked_for(two_devices):
    event = shared(two_devices, 1)
    event.ipc_handle()
    assert event.device == two_devices.device(1)
    assert two_devices.current_device() == 0
    with pytest.raises(RuntimeError, match="does not match recording"):
        event.record(two_devices.stream(0))
    event.record(two_devices.stream(1))


def test_what_is_opened(backend, peer):
    event = shared(backend)
    peer.open(event)
    assert peer.do("str(event.device)") == f"{backend.name}:0"
    assert peer.do("event.interprocess") is True
    assert peer.do("event.enable_timing") is False
    assert peer.do("event.event_id") != 0
    assert peer.do("event.query()") is True
    assert peer.do("event.synchronize() is None") is True
    assert peer.do("event.ipc_handle()") == event.ipc_handle()


def test_a_handle_may_be_any_buffer(backend, peer):
    event = shared(backend)
    handle = event.ipc_handle()
    for kind in ("bytearray", "memoryview"):
        peer.do(
            f"Event.from_ipc_handle(device=backend.name, "
            f"handle={kind}({handle!r})).query()"
        )


def test_cuda_events_open_as_such(cuda):
    event = pystreams.cuda.Event(interprocess=True)
    peer = Peer(cuda)
    try:
        peer.do(
            f"event = pystreams.cuda.Event.from_ipc_handle("
            f"0, {event.ipc_handle()!r})"
        )
        assert peer.do("type(event) is pystreams.cuda.Event") is True
        assert peer.do("event.cuda_event") != 0
    finally:
        peer.kill()


def test_cuda_events_have_cuda_devices(cuda):
    with pytest.raises(ValueError, match="Expected a cuda device"):
        pystreams.cuda.Event.from_ipc_handle("cpu", bytes(64))


def test_subclasses_open_as_such(backend, peer):
    event = shared(backend)
    peer.do("class Mine(Event): pass")
    peer.do(
        f"mine = Mine.from_ipc_handle(backend.name, {event.ipc_handle()!r})"
    )
    assert peer.do("type(mine) is Mine") is True


def test_an_opened_event_can_be_handed_on(backend, peers):
    first, second = peers(), peers()
    event = shared(backend)
    first.open(event)
    second.open(first.do("event.ipc_handle()"))
    event.record(backend.stream())
    second.do("event.synchronize()")


def test_trace_tells_of_what_is_opened(backend, peer):
    event = shared(backend)
    handle = event.ipc_handle()
    peer.do("import pystreams.trace; kinds = []")
    peer.do(
        "subscription = pystreams.trace.subscribe("
        "lambda record: kinds.append(record.kind))"
    )
    peer.open(handle)
    peer.do("del event")
    assert peer.do("kinds") == ["event_creation", "event_deletion"]


def test_only_interprocess_events_have_a_handle(backend):
    event = backend.event()
    with pytest.raises(RuntimeError, match="interprocess=True"):
        event.ipc_handle()
    assert event.event_id == 0


@pytest.mark.parametrize("length", [n for n in range(129) if n != 64])
def test_a_handle_of_another_length(backend, length):
    with pytest.raises(ValueError, match=f"64 bytes .*, but got {length}"):
        Event.from_ipc_handle(backend.device(), bytes(length))


@pytest.mark.parametrize("handle", [None, 64, "x" * 64], ids=repr)
def test_a_handle_that_is_not_bytes(backend, handle):
    with pytest.raises(TypeError):
        Event.from_ipc_handle(backend.device(), handle)


def test_not_in_the_process_that_made_it(backend):
    event = shared(backend)
    with pytest.raises(RuntimeError, match="was made in this process"):
        Event.from_ipc_handle(backend.device(), event.ipc_handle())
    event.record(backend.stream())
    event.synchronize()


def test_bytes_that_are_no_handle(backend):
    with pytest.raises(ValueError, match="as its ipc_handle"):
        Event.from_ipc_handle(backend.device(), bytes(64))


@pytest.mark.parametrize("byte", range(64))
def test_any_bit_of_a_handle(engine, byte):
    handle = shared(engine).ipc_handle()
    for bit in range(8):
        altered = bytearray(handle)
        altered[byte] ^= 1 << bit
        with pytest.raises(ValueError, match="as its ipc_handle"):
            Event.from_ipc_handle(engine.device(), altered)


def forge(handle, **fields):
    """The handle with other fields and their right checksum."""
    places = {"process": 16, "file": 20, "inode": 24, "nonce": 32}
    forged = bytearray(handle)
    for name, value in fields.items():
        size = 4 if places[name] < 24 else 8
        forged[places[name] : places[name] + size] = value.to_bytes(
            size, "little", signed=True
        )
    total = 0xCBF29CE484222325
    for one in forged[:56]:
        total = (total ^ one) * 0x100000001B3 % 2**64
    forged[56:] = total.to_bytes(8, "little")
    return bytes(forged)


@pytest.mark.parametrize(
    "fields",
    [
        {"process": 2**22 + 1},
        {"process": -1},
        {"process": 0},
        {"file": 0},
        {"file": 1},
        {"file": 2**30},
        {"file": -1},
        {"inode": 1},
        {"nonce": 1},
    ],
    ids=lambda fields: "=".join(f"{k}={v}" for k, v in fields.items()),
)
def test_a_handle_that_names_something_else(engine, peer, fields):
    event = shared(engine)
    handle = event.ipc_handle()
    assert forge(handle) == handle
    with pytest.raises(PeerError, match=f"RuntimeError: .*{GONE}"):
        peer.open(forge(handle, **fields))


def test_a_handle_of_another_device(engine, peer):
    if engine.count < 2:
        pytest.skip(f"{engine}: needs two devices")
    event = shared(engine, 1)
    with pytest.raises(PeerError, match="got one of another device"):
        peer.open(event)
    peer.open(event, "backend.device(1)")


def test_a_handle_of_another_device_type(peer, backend):
    others = {"cpu": "cuda", "cuda": "cpu"}
    if not backend.on_engine or _C.unavailable_reason(
        dict(_C.backends())[others[backend.name]]
    ):
        pytest.skip(f"{backend}: needs both types on the CPU engine")
    event = Event(others[backend.name], enable_timing=False, interprocess=True)
    with pytest.raises(PeerError, match="as its"):
        peer.open(event)


def test_an_event_that_is_gone(engine, peer):
    event = shared(engine)
    handle = event.ipc_handle()
    del event
    with pytest.raises(RuntimeError, match=GONE):
        Event.from_ipc_handle(engine.device(), handle)
    with pytest.raises(PeerError, match=f"RuntimeError: .*{GONE}"):
        peer.open(handle)
