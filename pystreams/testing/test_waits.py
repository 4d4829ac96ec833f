"""Timed waits."""

from functools import partial
from typing import Protocol

import pytest

from pystreams import _C
from pystreams.testing import contract
from pystreams.testing.busy import Busy, Gate
from pystreams.testing.device import FAILURE, Device, fails
from pystreams.testing.elsewhere import Elsewhere
from pystreams.testing.limits import SOON, Background

LIMITED = (
    "If limit is not NULL, returns PS_ERROR_TIMED_OUT when the limit is "
    "reached and some of that work is not done."
)
SAME = "The limit is as in device_synchronize."
ENDED = (
    "NULL, or a function that the backend calls about every 50 ms during the "
    "wait, with the argument; a result other than 0 ends the wait "
    "with PS_ERROR_TIMED_OUT."
)


class Wait(Protocol):
    def __call__(self, *, timeout: float) -> object: ...


def gives_up(wait: Wait, gate: Gate) -> None:
    """Check that a wait ends at its limit, or else once the gate opens."""
    for timeout in (0, 0.02):
        with pytest.raises(TimeoutError):
            wait(timeout=timeout)
    call = Background(wait, timeout=SOON)
    assert not call.over(0.03)
    gate.open()
    call.finish()
    wait(timeout=0)


def keeps_failing(wait: Wait) -> None:
    """Check that each wait raises the failure."""
    for _ in range(3):
        fails(partial(wait, timeout=SOON))


@contract("stream_synchronize", SAME, "stream_synchronize with a limit")
def test_a_stream_in_time(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gives_up(stream.synchronize, busy(stream))


@contract("event_synchronize", SAME, "event_synchronize with a limit")
def test_an_event_in_time(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy(stream)
    event = device.mark(stream)
    busy(stream)
    gives_up(event.synchronize, gate)


@contract("device_synchronize", LIMITED, "device_synchronize with a limit")
def test_a_device_in_time(device: Device, busy: Busy) -> None:
    gives_up(device.synchronize, busy(device.stream()))


@contract(
    "stream_synchronize",
    SAME,
    "stream_synchronize with a limit",
    "stream_fail",
)
def test_a_stream_that_failed(device: Device) -> None:
    stream = device.stream()
    _C.fail(stream, FAILURE)
    keeps_failing(stream.synchronize)


@contract(
    "event_synchronize", SAME, "event_synchronize with a limit", "stream_fail"
)
def test_an_event_that_failed(device: Device) -> None:
    stream = device.stream()
    _C.fail(stream, FAILURE)
    keeps_failing(device.mark(stream).synchronize)


@contract(
    "device_synchronize",
    LIMITED,
    "device_synchronize with a limit",
    "stream_fail",
)
def test_a_device_that_failed(device: Device) -> None:
    _C.fail(device.stream(), FAILURE)
    fails(partial(device.synchronize, timeout=SOON))


@contract("is_over", ENDED, "stream_synchronize with a limit")
@pytest.mark.usefixtures("busy")
def test_the_wait_for_a_stream_is_ended(elsewhere: Elsewhere) -> None:
    elsewhere.send("hold")
    assert elsewhere.ask("interrupt-stream") == "soon"


@contract("is_over", ENDED, "event_synchronize with a limit")
@pytest.mark.usefixtures("busy")
def test_the_wait_for_an_event_is_ended(elsewhere: Elsewhere) -> None:
    elsewhere.send("hold")
    elsewhere.send("mark")
    assert elsewhere.ask("interrupt-event") == "soon"


@contract("is_over", ENDED, "device_synchronize with a limit")
@pytest.mark.usefixtures("busy")
def test_the_wait_for_a_device_is_ended(elsewhere: Elsewhere) -> None:
    elsewhere.send("hold")
    assert elsewhere.ask("interrupt-device") == "soon"
