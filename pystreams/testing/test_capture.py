"""Capture."""

from pystreams.testing import contract
from pystreams.testing.device import Device


@contract(
    "stream_capturing",
    "Set *capturing to 1 if work on the stream is captured, and to 0 if it is "
    "executed.",
)
def test_not_unless_asked_for(device: Device) -> None:
    assert device.stream().is_capturing() is False
