"""What tests of schedules share."""

import contextlib

import pytest
from deadlines import LONG

import pystreams
from pystreams import _C, schedules


def wait_for_earlier_tests():
    for name, kind in _C.backends():
        if name == "cpu" or _C.is_emulated(kind):
            for index in range(_C.device_count(kind)):
                # A failure that an earlier test left is not this one's.
                with contextlib.suppress(pystreams.AcceleratorError):
                    _C.synchronize(kind, index, LONG)


@pytest.fixture(autouse=True)
def no_gpu_is_used():
    """Schedules are explored in processes that use no GPU."""
    wait_for_earlier_tests()
    try:
        with schedules.run("early"):
            pass
    except RuntimeError as error:
        if "this process uses the" not in str(error):
            raise
        pytest.skip(str(error))
