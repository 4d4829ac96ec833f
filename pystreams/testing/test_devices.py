"""Devices, and the rules of every member."""

from pystreams import _C
from pystreams.testing import ORDER, contract
from pystreams.testing.busy import Busy
from pystreams.testing.device import Device
from pystreams.testing.limits import Background, eventually

SET = "Make the device current on the calling thread, at the user's request."
SYNCHRONIZE = (
    "Wait until all work that was queued on the device before the call is "
    "done."
)
CURRENT = (
    "A member leaves the calling thread's current device as it found it, on "
    "success and on failure, and touches no other device."
)


@contract(
    "device_attribute",
    "Get the device attribute whose number in cudaDeviceAttr is `attribute`.",
)
def test_attributes(device: Device) -> None:
    for index in range(device.count):
        found = _C.device_attributes(device.type, index)
        assert found == _C.device_attributes(device.type, index)
        properties = _C.device_properties(device.type, index)
        count = properties["multi_processor_count"]
        assert found.get("MultiProcessorCount", count) == count


@contract("device_count", "Get the number of devices.")
def test_each_can_be_used(device: Device) -> None:
    assert device.count > 0
    for index in range(device.count):
        stream = device.stream(index)
        assert stream.device_index == index
        eventually(device.mark(stream).query)


@contract(
    "device_properties",
    "The device's human-readable name, and its properties. A property that "
    "the device lacks is 0.",
)
def test_properties(device: Device) -> None:
    for index in range(device.count):
        assert _C.device_properties(device.type, index)["name"]


@contract(
    "device_current",
    "Get the calling thread's current device, which is 0 on a new thread.",
)
def test_a_new_thread_starts_with_the_first(device: Device) -> None:
    assert device.current == 0
    _C.set_device(device.type, device.count - 1)

    def check() -> None:
        assert device.current == 0

    Background(check).finish()


@contract("device_set", SET)
def test_set_is_for_the_calling_thread(two_devices: Device) -> None:
    device = two_devices

    def switch() -> None:
        _C.set_device(device.type, 1)
        assert device.current == 1

    Background(switch).finish()
    assert device.current == 0


@contract("device_set", SET)
def test_with_a_stream_of_another_device(two_devices: Device) -> None:
    device = two_devices
    with device.stream(1):
        assert device.current == 1
        with device.stream(0):
            assert device.current == 0
        assert device.current == 1
    assert device.current == 0


@contract(
    "device_restore",
    "Make `previous`, the device that was current before a device_set, "
    "current again.",
)
def test_restore(two_devices: Device) -> None:
    device = two_devices
    with _C.DeviceContext(device.type, 1):
        assert device.current == 1
    assert device.current == 0


@contract("device_synchronize", SYNCHRONIZE)
def test_synchronize_waits(device: Device, busy: Busy) -> None:
    streams = [device.stream(), device.stream()]
    gate = busy(streams[0])
    marks = [device.mark(stream) for stream in streams]
    call = Background(device.synchronize)
    assert not call.over(0.05)
    gate.open()
    call.finish()
    assert all(mark.query() for mark in marks)


@contract("device_synchronize", SYNCHRONIZE)
def test_synchronize_waits_for_another_device(
    two_devices: Device, busy: Busy
) -> None:
    gate = busy(two_devices.stream(1))
    call = Background(two_devices.synchronize, index=1)
    assert not call.over(0.05)
    gate.open()
    call.finish()


@contract("device_synchronize", SYNCHRONIZE)
def test_synchronize_without_work(device: Device) -> None:
    for index in range(device.count):
        device.synchronize(index)


@contract("every member", CURRENT)
def test_the_other_device_is_not_waited_for(
    two_devices: Device, busy: Busy
) -> None:
    busy(two_devices.stream(1))
    Background(two_devices.synchronize, index=0).finish()


@contract("every member", CURRENT)
def test_the_current_device_is_left_alone(two_devices: Device) -> None:
    device = two_devices
    for current, other in ((0, 1), (1, 0)):
        _C.set_device(device.type, current)
        stream = device.stream(other)
        event = device.mark(stream)
        stream.wait_event(event)
        stream.query()
        event.query()
        event.synchronize()
        stream.synchronize()
        device.synchronize(other)
        _C.device_properties(device.type, other)
        stream.priority_range(f"{device.name}:{other}")
        stream.close()
        assert device.current == current


@contract(
    "every member",
    "pystreams calls members on any thread, and on several threads at once.",
)
def test_several_threads_at_once(device: Device) -> None:
    shared = device.event()
    shared.record(device.stream())

    def use() -> None:
        for _ in range(20):
            one, other = device.stream(), device.stream()
            other.wait_event(device.mark(one))
            other.wait_event(shared)
            done = device.mark(other)
            shared.record(one)
            eventually(done.query)

    for call in [Background(use) for _ in range(4)]:
        call.finish()


@contract("every member", ORDER)
def test_order(device: Device, busy: Busy) -> None:
    stream, other = device.stream(), device.stream()
    before = device.mark(stream)
    gate = busy(stream)
    after = device.mark(stream)
    eventually(before.query)
    eventually(device.mark(other).query)
    assert not after.query()
    gate.open()
    eventually(after.query)


@contract(
    "every member",
    'A member marked "enqueues" appends an operation to a stream and returns, '
    "without waiting for work; see stream_wait_room.",
)
def test_enqueueing_does_not_wait(device: Device, busy: Busy) -> None:
    stream, other = device.stream(), device.stream()
    busy(stream)

    def enqueue() -> None:
        event = device.mark(stream)
        other.wait_event(event)
        device.mark(other)

    Background(enqueue).finish()


@contract(
    "every member",
    'A member marked "answers" returns within about a microsecond, and does '
    "not wait.",
)
def test_answering_does_not_wait(device: Device, busy: Busy) -> None:
    stream = device.stream()
    busy(stream)
    event = device.mark(stream)

    def ask() -> None:
        stream.query()
        event.query()

    Background(ask).finish()


@contract(
    "versions",
    "Versions of the runtime and of the driver, as 1000 * major + "
    "10 * minor; 0 if none.",
)
def test_versions(device: Device) -> None:
    assert all(version >= 0 for version in _C.versions(device.type))
