"""Names of streams: who has one, and where it is shown."""

import asyncio
import gc

import pytest

import pystreams
from pystreams import Stream, races
from pystreams.cuda._graphs import Graph


@pytest.fixture
def named(backend):
    return Stream(backend.device(), name="copy")


def test_it_is_read_only(named):
    assert named.name == "copy"
    with pytest.raises(AttributeError):
        named.name = "other"
    assert named.name == "copy"


def test_it_is_none_by_default(backend):
    assert backend.stream().name is None
    assert backend.default_stream().name is None
    assert Stream(backend.device(), name=None).name is None


def test_repr(backend, named):
    assert repr(named) == (
        f"<pystreams.Stream 'copy' device={backend.device()} "
        f"handle={named.native_handle:#x}>"
    )


def test_repr_once_closed(backend, named):
    named.close()
    assert named.name == "copy"
    text = f"<pystreams.Stream 'copy' device={backend.device()} closed>"
    assert repr(named) == text
    with pytest.raises(ValueError, match="'copy'"):
        named.query()


def test_cuda_streams(cuda):
    stream = pystreams.cuda.Stream(name="copy", reserve=True)
    assert stream.name == "copy"
    assert repr(stream) == (
        "<pystreams.cuda.Stream 'copy' device=cuda:0 "
        f"cuda_stream={stream.cuda_stream:#x}>"
    )


@pytest.mark.parametrize("name", ["", "ö", "'", "a b", "x" * 1000])
def test_any_text(backend, name):
    stream = Stream(backend.device(), name=name)
    assert stream.name == name
    assert repr(name) in repr(stream)


@pytest.mark.parametrize("wrong", [5, b"copy", 1.5, ["copy"], True])
def test_another_type_is_refused(backend, wrong):
    with pytest.raises(
        TypeError,
        match=r"^Stream\(\) expects a str or None for name, but got "
        f"{type(wrong).__name__}$",
    ):
        Stream(backend.device(), name=wrong)


@pytest.mark.parametrize("wrong", ["a\0b", "\ud800"])
def test_text_that_is_no_name_is_refused(backend, wrong):
    with pytest.raises(ValueError):
        Stream(backend.device(), name=wrong)


def test_it_is_not_given_to_a_stream_that_exists(backend):
    numbers = {
        "stream_id": 0,
        "device_index": 0,
        "device_type": backend.type,
    }
    with pytest.raises(TypeError, match="device, priority, name and blocking"):
        Stream(name="copy", **numbers)


def test_every_object_of_the_stream_has_it(backend, named):
    same = Stream(
        stream_id=named.stream_id,
        device_index=named.device_index,
        device_type=named.device_type,
    )
    external = pystreams.ExternalStream(named)
    with named:
        current = backend.current_stream()
    for other in (same, external, current):
        assert other == named
        assert other.name == "copy"


def test_it_ends_with_the_stream(engine):
    """If a new stream gets the native stream again, it has no name."""
    # Take the idle streams from the pool, so that it has room for this one.
    taken = [engine.stream() for _ in range(64)]
    stream = Stream(engine.device(), name="copy")
    handle = stream.native_handle
    del stream
    gc.collect()
    streams = [engine.stream() for _ in range(64)]
    assert handle in [s.native_handle for s in streams]
    assert {s.name for s in [*taken, *streams]} == {None}


def test_subclasses(backend):
    class Mine(Stream):
        pass

    assert Mine(backend.device(), name="copy").name == "copy"


@pytest.mark.parametrize("value", [True, False, 0, 1, None])
def test_reserve(backend, value):
    """Every stream is reserved."""
    assert Stream(backend.device(), reserve=value).query()


def test_reserve_of_another_type_is_refused(backend):
    with pytest.raises(TypeError, match="a bool for reserve, but got str"):
        Stream(backend.device(), reserve="yes")


def polled(stream, block):
    while not stream.query():
        pass


async def awaited(stream, block):
    await stream


@pytest.mark.parametrize(
    "call",
    [
        lambda stream, block: stream.synchronize(),
        polled,
        lambda stream, block: stream.submit(int).result(),
        lambda stream, block: block.copy_(bytes(64), stream=stream),
        lambda stream, block: asyncio.run(awaited(stream, block)),
    ],
    ids=["synchronize", "query", "submit", "copy", "await"],
)
def test_in_the_error_of_failed_work(faulty, call):
    stream = Stream(faulty.device(), name="copy")
    block = pystreams.empty(64, device=faulty.device(), stream=stream)
    pystreams._C.fail(stream, 700)
    with pytest.raises(pystreams.AcceleratorError, match="on 'copy' failed"):
        call(stream, block)


@pytest.mark.parametrize("refused", ["query", "synchronize"])
def test_in_the_error_of_a_refused_call(engine, refused):
    stream = Stream(engine.device(), name="copy")
    graph = Graph(engine.type)
    with stream:
        graph.capture_begin()
        with pytest.raises(pystreams.AcceleratorError, match="on 'copy' f"):
            getattr(stream, refused)()
        graph.reset()


def test_in_the_error_of_a_capture(engine):
    copy, side = (Stream(engine.device(), name=n) for n in ("copy", "side"))
    graph = Graph(engine.type)
    with copy:
        graph.capture_begin()
        side.wait_stream(copy)
        with pytest.raises(pystreams.AcceleratorError) as caught:
            graph.capture_end()
    text = str(caught.value)
    handle = f"{engine.device()} {side.native_handle:#x}"
    assert f"The stream 'side' ({handle}) joined the capture at" in text
    assert "have 'copy' (" in text


def test_in_timeouts(backend, named):
    late = pytest.raises(TimeoutError, match=r"^Stream\.synchronize on 'copy'")
    with backend.hold(named), late:
        named.synchronize(timeout=0.01)


def test_in_races(engine):
    one, two = (Stream(engine.device(), name=n) for n in ("one", "two"))
    buffer = pystreams.empty(64, device=engine.device())
    one.wait_stream(engine.current_stream())
    two.wait_stream(engine.current_stream())
    with races.detect(), pytest.raises(races.RaceError) as caught:
        buffer.fill_(1, one)
        buffer.fill_(2, two)
    race = caught.value.race
    assert race.first.stream_name == "one"
    assert race.second.stream_name == "two"
    handle = one.native_handle
    assert f"on one ({engine.device()} {handle:#x})" in str(caught.value)


def test_repr_of_a_busy_stream(engine, sanitized):
    if sanitized and engine.name == "cuda":
        pytest.skip("cuda: a sanitizer's build calls it as another library's")
    stream = Stream(engine.device(), name="copy")
    idle = repr(stream)
    with engine.hold(stream):
        stream.record_event()
        assert repr(stream) == f"{idle[:-1]} pending=2>"
    stream.synchronize()
    assert repr(stream) == idle
