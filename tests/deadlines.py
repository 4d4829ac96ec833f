"""How long tests wait for what must come: far longer than a slow machine
takes, so that only a fault reaches it."""

import time

LONG = 30


def wait_until(condition):
    """Return when the condition is true; fail if it does not become true."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, f"not true within {LONG} s"
        time.sleep(0.001)
