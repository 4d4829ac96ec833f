"""Fills with values of 1, 2 and 4 bytes."""

import array
import struct

import pytest

import pystreams
from pystreams import races
from pystreams.cuda._graphs import Graph

VALUES = {
    "int": (7, b"\7"),
    "byte": (b"\x80", b"\x80"),
    "two": (b"\1\2", b"\1\2"),
    "four": (bytearray(b"\1\2\3\4"), b"\1\2\3\4"),
    "two the same": (b"\5\5", b"\5\5"),
    "four in halves": (memoryview(b"\1\2\1\2"), b"\1\2\1\2"),
    "array": (array.array("i", [-2]), struct.pack("=i", -2)),
    "high": (b"\xff\xfe\xfd\xfc", b"\xff\xfe\xfd\xfc"),
    "True": (True, b"\1"),
}


@pytest.mark.parametrize(("value", "item"), VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("nbytes", [4, 12, 1 << 20])
def test_values(backend, value, item, nbytes):
    stream = backend.stream()
    block = backend.filled(9, nbytes + 8, stream=stream)
    assert block[4:-4].fill_(value, stream) is not block
    stream.synchronize()
    expected = item * (nbytes // len(item))
    assert block.tobytes() == b"\x09" * 4 + expected + b"\x09" * 4


def test_two_bytes_at_an_address_of_two(backend):
    block = backend.filled(9, 16)
    block[2:8].fill_(b"\1\2")
    backend.synchronize()
    assert block.tobytes()[:10] == b"\x09\x09\1\2\1\2\1\2\x09\x09"


def test_numbers_of_numpy(backend, numpy):
    block = backend.empty(64)
    for number in (
        numpy.float32(1.5),
        numpy.float16(-2),
        numpy.int32(-3),
        numpy.uint16(65535),
        numpy.uint8(200),
    ):
        block.fill_(number)
        backend.synchronize()
        found = numpy.frombuffer(block.tobytes(), number.dtype)
        assert (found == number).all()
    with pytest.raises(ValueError, match="4 bytes for value, but numpy"):
        block.fill_(numpy.int64(1))


def test_pinned_memory(pinning):
    block = pinning.empty(64, pin_memory=True)
    stream = pinning.stream()
    block.fill_(b"\1\2\3\4", stream)
    stream.synchronize()
    assert bytes(block.memoryview()) == b"\1\2\3\4" * 16


def test_in_the_order_of_the_stream(backend):
    stream = backend.stream()
    block, copy = backend.filled(1), backend.empty(64)
    backend.synchronize()
    with backend.hold(stream):
        block.fill_(b"\1\2", stream)
        copy.copy_(block, non_blocking=True, stream=stream)
        block.fill_(b"\3\4\5\6", stream)
    stream.synchronize()
    assert copy.tobytes() == b"\1\2" * 32
    assert block.tobytes() == b"\3\4\5\6" * 16


def test_in_a_graph(backend, tmp_path):
    graph, block = Graph(backend.type, True), backend.filled(1)
    with backend.stream() as stream:
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            block.fill_(b"\1\2\3\4")
            block[:32].fill_(b"\7\x08")
            block[:1].fill_(9)
        finally:
            graph.capture_end()
        for _ in range(2):
            block.zero_()
            graph.replay()
            stream.synchronize()
            expected = b"\x09\x08" + b"\7\x08" * 15 + b"\1\2\3\4" * 8
            assert block.tobytes() == expected
    if backend.on_engine:
        graph.debug_dump(tmp_path / "graph.dot")
        text = (tmp_path / "graph.dot").read_text()
        for value in ("0x04030201\\", "0x0807\\", "0x09\\"):
            assert f"fill with {value}" in text


def test_a_fill_writes(backend):
    first, second = backend.stream(), backend.stream()
    block = backend.filled(1)
    with races.detect():
        block.fill_(b"\1\2\3\4", first)
        with pytest.raises(races.RaceError, match="fill"):
            block.fill_(b"\1\2", second)
        second.wait_stream(first)
        block.fill_(b"\1\2", second)
    backend.synchronize()


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        (-1, ValueError, "int from 0 to 255 for value, but got -1"),
        (256, ValueError, "a value of 2 or 4 bytes"),
        (b"", ValueError, "1, 2 or 4 bytes for value, but bytes has 0"),
        (b"123", ValueError, "but bytes has 3"),
        (b"12345678", ValueError, "but bytes has 8"),
        ("1", TypeError, "an int or an object with the buffer protocol"),
        (1.5, TypeError, "for value, but got float"),
    ],
    ids=repr,
)
def test_what_is_refused(backend, value, error, match):
    block = backend.filled(1)
    with pytest.raises(error, match=match):
        block.fill_(value)
    backend.synchronize()
    assert block.tobytes() == b"\1" * 64


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (slice(1, 9), b"\1\2\3\4"),
        (slice(2, 10), b"\1\2\3\4"),
        (slice(1, 3), b"\1\2"),
        (slice(0, 10), b"\1\2\3\4"),
        (slice(0, 3), b"\1\2"),
    ],
    ids=["odd", "half", "odd for two", "too long", "too long for two"],
)
def test_values_that_do_not_fit(backend, part, value):
    block = backend.filled(1)
    with pytest.raises(ValueError, match=r"multiples of \d for a value of"):
        block[part].fill_(value)
    backend.synchronize()
    assert block.tobytes() == b"\1" * 64


def test_no_bytes(backend):
    assert backend.empty(0).fill_(b"\1\2\3\4").nbytes == 0


def test_the_value_may_be_named(backend):
    block = pystreams.empty(4, device=backend.device())
    block.fill_(value=b"\1\2", stream=None)
    backend.synchronize()
    assert block.tobytes() == b"\1\2\1\2"
