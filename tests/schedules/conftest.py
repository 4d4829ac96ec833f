"""What tests of schedules share."""

import pytest

from pystreams import schedules


@pytest.fixture(autouse=True)
def no_gpu_is_used():
    """Schedules are explored in processes that use no GPU."""
    try:
        with schedules.run("early"):
            pass
    except RuntimeError as error:
        if "this process uses the" not in str(error):
            raise
        pytest.skip(str(error))
