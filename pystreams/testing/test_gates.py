"""Gates, tested with the callables that they hold back."""

from functools import partial

from pystreams import _C
from pystreams.testing import ORDER, contract
from pystreams.testing.busy import Busy, only_once_open
from pystreams.testing.device import FAILURE, Device, fails
from pystreams.testing.limits import SOON, Background, eventually, never

REACHED = (
    "Queue a gate: once the work before it is done or has failed, "
    "reached(argument, status) is called exactly once. Work that is queued on "
    "the stream after the gate starts only after gate_open."
)
WRITTEN = (
    "*gate is written before reached can run, so that reached may open the "
    "gate. If this call fails, *gate has no meaning, and reached never runs. "
    "reached also never runs once shutdown has begun."
)
OPEN = (
    "Open the gate, even if it was not reached yet, and destroy it. Called "
    "exactly once for each gate, on any thread. It may be called even if the "
    "gate's stream has failed, and even after shutdown."
)


@contract("stream_gate", REACHED)
def test_reached_when_its_turn_comes(device: Device, busy: Busy) -> None:
    stream = device.stream()
    before = busy(stream)
    gate = busy.submit(stream)
    only_once_open(before, gate.reached)


@contract("stream_gate", REACHED)
def test_holds_back_what_comes_after(device: Device, busy: Busy) -> None:
    stream = device.stream()
    before = device.mark(stream)
    gate = busy.submit(stream)
    after = device.mark(stream)
    eventually(gate.reached)
    eventually(before.query)
    only_once_open(gate, after.query)


@contract("stream_gate", REACHED)
def test_gate_after_gate(device: Device, busy: Busy) -> None:
    stream = device.stream()
    first, second = busy.submit(stream), busy.submit(stream)
    eventually(first.reached)
    only_once_open(first, second.reached)
    mark = device.mark(stream)
    only_once_open(second, mark.query)


@contract("stream_gate", REACHED)
def test_reached_exactly_once(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy.submit(stream)
    calls: list[int] = []
    futures = [stream.submit(calls.append, i) for i in range(50)]
    gate.open()
    for future in futures:
        future.result(SOON)
    eventually(device.mark(stream).query)
    assert sorted(calls) == list(range(50))


@contract("stream_gate", REACHED)
def test_a_wait_includes_a_closed_gate(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy.submit(stream)
    mark = device.mark(stream)
    calls = [
        Background(wait)
        for wait in (stream.synchronize, mark.synchronize, device.synchronize)
    ]
    assert not any(call.over(0.03) for call in calls)
    gate.open()
    for call in calls:
        call.finish()


@contract("stream_gate", REACHED, "stream_fail")
def test_reached_after_a_failure(device: Device) -> None:
    stream = device.stream()
    _C.fail(stream, FAILURE)
    fails(partial(stream.submit(int).result, SOON))


@contract("stream_gate", WRITTEN)
def test_opened_as_soon_as_it_is_reached(device: Device) -> None:
    stream = device.stream()
    for number in range(200):
        assert stream.submit(int, number).result(SOON) == number
    eventually(device.mark(stream).query)


@contract("gate_open", OPEN)
def test_opened_from_several_threads(device: Device) -> None:
    streams = [device.stream() for _ in range(4)]
    futures = [stream.submit(int) for stream in streams for _ in range(50)]
    for future in futures:
        assert future.result(SOON) == 0
    for stream in streams:
        eventually(device.mark(stream).query)


@contract("gate_open", OPEN, "stream_fail")
def test_gates_of_a_failed_stream(device: Device, busy: Busy) -> None:
    stream = device.stream()
    gate = busy(stream)
    _C.fail(stream, FAILURE)
    futures = [stream.submit(int) for _ in range(3)]
    gate.open()
    for future in futures:
        fails(partial(future.result, SOON))


@contract("every member", ORDER, "stream_gate")
def test_a_closed_gate_holds_up_no_other(device: Device, busy: Busy) -> None:
    first, second = device.stream(), device.stream()
    gate = busy.submit(first)
    eventually(gate.reached)
    assert second.submit(int).result(SOON) == 0
    eventually(device.mark(second).query)
    never(device.mark(first).query)


@contract(
    "stream_destroy",
    "Queued work still runs; the call does not wait for it.",
    "stream_gate",
)
def test_destroyed_behind_a_closed_gate(device: Device, busy: Busy) -> None:
    stream, destroy = device.raw_stream()
    gate = busy.submit(stream)
    mark = device.mark(stream)
    destroy()
    eventually(gate.reached)
    only_once_open(gate, mark.query)
