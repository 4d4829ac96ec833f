"""The fixtures of the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .busy import Busy
from .device import Device
from .elsewhere import Elsewhere
from .limits import GIVE_UP, Background
from .plugin import USAGE, conformance


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    if not config.getoption("pystreams_device", None):
        raise pytest.UsageError(USAGE)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The device type under test, without work or failures from other
    tests."""
    plugin = conformance(request.config)
    yield plugin.device
    plugin.call(request.session, plugin.device.settle)


@pytest.fixture
def two_devices(device: Device) -> Device:
    """The device type, if it has two devices."""
    if device.count < 2:
        pytest.skip("absent: a second device")
    return device


@pytest.fixture
def busy(request: pytest.FixtureRequest, device: Device) -> Iterator[Busy]:
    """Keeps a stream busy: busy(stream) returns a gate to open()."""
    way = conformance(request.config).way
    if way is None:
        pytest.skip("absent: a way to keep a stream busy")
    busy = Busy(way)
    request.node.busy = busy
    yield busy
    busy.open()


@pytest.fixture
def elsewhere(
    request: pytest.FixtureRequest, device: Device
) -> Iterator[Elsewhere]:
    """Another process that uses the device."""
    process = Elsewhere(device.name, conformance(request.config).module)
    try:
        Background(process.begin).finish(GIVE_UP)
        yield process
    finally:
        process.close()
