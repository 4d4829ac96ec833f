"""Status text."""

from pystreams import _C
from pystreams.testing import contract
from pystreams.testing.device import Device

SUCCESS, OUT_OF_MEMORY, NOT_READY = 0, 2, 600


@contract(
    "status_name",
    "status_name returns the status as the backend's documentation spells "
    'it ("cudaErrorInvalidDevice"). status_text returns a phrase for people '
    '("invalid device ordinal").',
)
def test_each_status_has_its_own(device: Device) -> None:
    for function in (_C.status_name, _C.status_text):
        said = {
            function(device.type, status)
            for status in (SUCCESS, OUT_OF_MEMORY, NOT_READY)
        }
        assert len(said) == 3
        assert all(said)


@contract("status_text", "Both accept any int, and answer at once.")
def test_any_int(device: Device) -> None:
    for status in (-(2**31), -1, 1, 599, 999, 1000, 12345, 2**31 - 1):
        for function in (_C.status_name, _C.status_text):
            said = function(device.type, status)
            assert said
            assert function(device.type, status) == said
