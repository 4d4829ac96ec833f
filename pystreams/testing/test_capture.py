"""Capture."""

from pystreams.testing import contract
from pystreams.testing.device import Device


@contract(
    "stream_capturing",
    "Whether work on the stream is captured (1) or executed (0).",
)
def test_not_unless_asked_for(device: Device) -> None:
    assert device.stream().is_capturing() is False
