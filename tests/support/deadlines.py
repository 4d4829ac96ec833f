"""How long tests wait for something that must happen: far longer than it takes
on a slow machine, so that only a fault reaches the time limit."""

import time

LONG = 30


def wait_until(condition):
    """Return when the condition is true; fail if it does not become true."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, f"not true within {LONG} s"
        time.sleep(0.001)


def until_steady(count):
    """Wait until count() has not grown for half a second."""
    before = -1
    while before < (now := count()):
        before = now
        time.sleep(0.5)
