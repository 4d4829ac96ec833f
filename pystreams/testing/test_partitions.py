"""Partitions of a device's multiprocessors."""

import pytest

from pystreams import _C, Partition
from pystreams.testing import contract
from pystreams.testing.busy import Busy, only_once_open
from pystreams.testing.device import FAILURE, Device, fails
from pystreams.testing.limits import eventually

AS_STREAMS = (
    "Like stream_create, but create a stream whose work runs only on the "
    "partition's multiprocessors."
)
LEFT = "Other partitions can then get its multiprocessors."


def whole(device: Device) -> int:
    found = _C.device_properties(device.type, 0)
    return found["multi_processor_count"]


def all_partitions(device: Device, index: int = 0) -> list[Partition]:
    """As many partitions as there can be."""
    found: list[Partition] = []
    with pytest.raises(RuntimeError, match="were asked for"):
        while True:
            found.append(Partition(1, f"{device.name}:{index}"))
    return found


def refused(device: Device, count: int) -> bool:
    """Whether fewer than `count` multiprocessors are left."""
    try:
        Partition(count, f"{device.name}:0")
    except RuntimeError as error:
        assert "were asked for" in str(error)
        return True
    return False


@contract(
    "partition_create",
    "Make a partition of at least count (> 0) of the device's "
    "multiprocessors. No multiprocessor is in two partitions.",
)
def test_no_partition_has_anothers(device: Device) -> None:
    for index in range(device.count):
        partitions = all_partitions(device, index)
        assert min(p.count for p in partitions) >= 1
        assert sum(p.count for p in partitions) <= whole(device)


@contract(
    "partition_create",
    "Statuses: PS_ERROR_INVALID_RESOURCE if fewer than count are left,",
)
def test_too_many(device: Device) -> None:
    assert refused(device, whole(device) + 1)
    first = Partition(1, f"{device.name}:0")
    assert refused(device, whole(device) - first.count + 1)


@contract("partition_destroy", LEFT)
def test_multiprocessors_come_back(device: Device) -> None:
    counts = [len(all_partitions(device)) for _ in range(3)]
    assert counts == counts[:1] * 3


@contract("partition_stream_create", AS_STREAMS)
def test_work_on_its_streams(device: Device, busy: Busy) -> None:
    partition = Partition(1, f"{device.name}:0")
    first, second = partition.Stream(), device.stream()
    gate = busy(first)
    event = device.mark(first)
    second.wait_event(event)
    only_once_open(gate, device.mark(second).query)
    gate = busy(second)
    first.wait_event(device.mark(second))
    only_once_open(gate, device.mark(first).query)
    first.synchronize()


@contract("partition_stream_create", AS_STREAMS)
def test_priorities_in_a_partition(device: Device) -> None:
    partition = Partition(1, f"{device.name}:0")
    least, greatest = partition.Stream().priority_range(device.name)
    for priority in range(greatest, least + 1):
        stream = partition.Stream(priority=priority)
        assert stream.priority == priority
        eventually(device.mark(stream).query)


@contract("partition_stream_create", AS_STREAMS, "stream_fail")
def test_its_failures(device: Device) -> None:
    stream = Partition(1, f"{device.name}:0").Stream()
    _C.fail(stream, FAILURE)
    fails(stream.synchronize)
