"""Events and memory between processes."""

from __future__ import annotations

import pytest

import pystreams
from pystreams.testing import contract
from pystreams.testing.busy import Busy
from pystreams.testing.device import Device
from pystreams.testing.elsewhere import Elsewhere
from pystreams.testing.limits import eventually

LATEST = (
    "Each process may record the event. Every member that takes the event "
    "refers to its latest record, whichever process made it."
)


def shared(device: Device) -> pystreams.Event:
    return pystreams.Event(device.name, enable_timing=False, interprocess=True)


@contract(
    "event_export",
    "Write a handle with which another process can open the event, as long "
    "as this process lives and the event is not destroyed.",
)
def test_one_handle_for_each_event(device: Device) -> None:
    first, second = shared(device), shared(device)
    handle = first.ipc_handle()
    first.record(device.stream())
    assert first.ipc_handle() == handle != second.ipc_handle()
    eventually(first.query)


@contract("event_open", LATEST)
def test_a_record_made_here(
    device: Device, busy: Busy, elsewhere: Elsewhere
) -> None:
    event, stream = shared(device), device.stream()
    gate = busy(stream)
    event.record(stream)
    elsewhere.send("open", event.ipc_handle().hex())
    assert elsewhere.ask("query") == "False"
    elsewhere.send("wait")
    assert elsewhere.ask("waiting") == "True"
    gate.open()
    assert elsewhere.ask("synchronize") == "None"
    assert elsewhere.ask("query") == "True"
    assert elsewhere.ask("finish") == "None"


@contract("event_open", LATEST)
@pytest.mark.usefixtures("busy")
def test_a_record_made_elsewhere(device: Device, elsewhere: Elsewhere) -> None:
    event, stream = shared(device), device.stream()
    event.record(stream)
    event.synchronize()
    elsewhere.send("open", event.ipc_handle().hex())
    elsewhere.send("hold")
    elsewhere.send("record")
    assert not event.query()
    event.wait(stream)
    assert not stream.query()
    elsewhere.send("release")
    event.synchronize()
    stream.synchronize()
    assert event.query()


@contract(
    "event_open",
    "A backend may delay a record until all earlier records of the event are "
    "done.",
)
def test_a_record_behind_an_earlier_one(
    device: Device, busy: Busy, elsewhere: Elsewhere
) -> None:
    event, stream = shared(device), device.stream()
    gate = busy(stream)
    event.record(stream)
    elsewhere.send("open", event.ipc_handle().hex())
    elsewhere.send("record")
    gate.open()
    event.synchronize()
    elsewhere.send("synchronize")
    assert event.query()


@pytest.mark.parametrize("byte", [0, 255])
@contract("event_open", "The bytes of the handle may be arbitrary.")
def test_any_bytes(elsewhere: Elsewhere, byte: int) -> None:
    handle = bytes([byte]) * 64
    assert elsewhere.ask("open", handle.hex()).startswith("Error: ")


def shared_memory(device: Device, nbytes: int = 100) -> pystreams.Buffer:
    return pystreams.empty(nbytes, device=device.name, interprocess=True)


@contract(
    "shared_allocate",
    "Allocate nbytes (> 0) of the device's memory. Work on any stream may "
    "use it as soon as the call returns. Write a handle with which other "
    "processes of this user can open it, as long as this process lives and "
    "the memory is not freed.",
)
@pytest.mark.parametrize("nbytes", [1, 4096, 10_001])
def test_memory_that_two_processes_write(
    device: Device, elsewhere: Elsewhere, nbytes: int
) -> None:
    buffer = shared_memory(device, nbytes)
    buffer.fill_(5, stream=device.stream())
    device.synchronize()
    elsewhere.send("open-memory", buffer.ipc_handle().hex())
    assert elsewhere.ask("bytes") == (bytes([5]) * nbytes).hex()
    elsewhere.send("fill")
    assert buffer.tobytes() == bytes([1]) * nbytes


@contract(
    "shared_allocate",
    "open it, as long as this process lives and the memory is not freed.",
)
def test_one_handle_for_each_block(device: Device) -> None:
    first, second = shared_memory(device), shared_memory(device)
    assert first.ipc_handle() == first.ipc_handle() != second.ipc_handle()


@contract(
    "shared_open",
    "The mapped memory stays valid until shared_free, whatever happens to the "
    "other process.",
)
def test_memory_of_a_process_that_has_ended(
    device: Device, elsewhere: Elsewhere
) -> None:
    handle = bytes.fromhex(elsewhere.ask("memory"))
    buffer = pystreams.Buffer.from_ipc_handle(device.name, handle)
    elsewhere.close()
    assert buffer.tobytes() == bytes([7]) * 100


@pytest.mark.parametrize("byte", [0, 255])
@contract(
    "shared_open",
    "The bytes of the handle may be arbitrary, and nbytes may be any number "
    "except 0.",
)
def test_memory_of_any_handle(elsewhere: Elsewhere, byte: int) -> None:
    handle = bytes([byte]) * 96
    assert elsewhere.ask("open-memory", handle.hex()).startswith("Error: ")


@contract("shared_free", "Processes that have opened it keep it.")
def test_memory_that_was_freed(device: Device, elsewhere: Elsewhere) -> None:
    buffer = shared_memory(device)
    buffer.fill_(3)
    device.synchronize()
    elsewhere.send("open-memory", buffer.ipc_handle().hex())
    buffer.close()
    assert elsewhere.ask("bytes") == (bytes([3]) * 100).hex()
    elsewhere.send("close-memory")
