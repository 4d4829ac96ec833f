"""What tests of schedules share."""

import pytest


@pytest.fixture(autouse=True)
def explorable(no_gpu_is_used):
    pass
