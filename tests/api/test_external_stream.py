"""Streams that other libraries created: by handle, and by __cuda_stream__."""

import gc
import threading
import weakref

import pytest
from deadlines import wait_until

import pystreams
from pystreams import _C, ExternalStream


class Foreign:
    """Another library's stream."""

    def __init__(self, stream, version=0):
        self.stream = stream
        self.version = version

    def __cuda_stream__(self):
        return self.version, self.stream.native_handle


class Attribute:
    """A stream whose __cuda_stream__ is an attribute instead of a method."""

    def __init__(self, stream):
        self.__cuda_stream__ = (0, stream.native_handle)


class Answers:
    def __init__(self, answer):
        self.answer = answer

    def __cuda_stream__(self):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def wrap(backend, handle, index=0):
    return ExternalStream(handle, device=backend.device(index))


def test_by_handle(backend, stream):
    external = wrap(backend, stream.native_handle)
    assert isinstance(external, pystreams.Stream)
    assert external == stream
    assert hash(external) == hash(stream)
    assert external.native_handle == stream.native_handle
    assert external.device == stream.device
    assert external.device_type == backend.type


def test_does_not_own(backend, stream):
    for _ in range(3):
        external = wrap(backend, stream.native_handle)
        with external:
            assert backend.current_stream() == stream
        external.close()
        del external
        gc.collect()
        backend.sleep(stream, 0.01)
        stream.synchronize()
    assert stream.query()


def test_same_work(backend, stream):
    external = wrap(backend, stream.native_handle)
    with backend.hold(stream):
        assert external.query() is False
        event = external.record_event()
        assert not event.query()
    external.synchronize()
    assert stream.query()
    assert event.query()


def test_device_by_default(two_devices):
    """Neither device nor index: the current one of the accelerator."""
    kind = pystreams.accelerator.current_accelerator().type
    if kind != two_devices.name:
        pytest.skip(f"{kind} is the accelerator")
    with two_devices.stream(1):
        mine = two_devices.stream(1)
        external = ExternalStream(mine.native_handle)
        assert external.device == two_devices.device(1)


def test_device_as_a_context_object(cuda):
    mine = cuda.stream(0)
    device = pystreams.cuda.device(0)
    assert ExternalStream(mine.native_handle, device) == mine
    assert pystreams.cuda.ExternalStream(mine.native_handle, device) == mine


def test_default_stream_by_handle(backend):
    external = wrap(backend, 0)
    assert external == backend.default_stream()
    external.synchronize()
    assert external.query()


@pytest.mark.parametrize("form", [Foreign, Attribute])
def test_by_protocol(cuda, form):
    stream = cuda.stream()
    foreign = form(stream)
    for external in (
        ExternalStream(foreign),
        ExternalStream(foreign, device=cuda.device()),
    ):
        assert external == stream
        assert external.query()


def test_by_protocol_on_another_type(cuda):
    """It is a cudaStream_t, and would be a wrong handle there."""
    foreign = Foreign(cuda.stream())
    for place in ("cpu", pystreams.device("cpu", 0)):
        with pytest.raises(ValueError, match="cuda"):
            ExternalStream(foreign, place)


def test_protocol_object_is_kept_alive(cuda):
    foreign = Foreign(cuda.stream())
    reference = weakref.ref(foreign)
    external = ExternalStream(foreign, device=cuda.device())
    del foreign
    gc.collect()
    assert reference() is not None
    del external
    gc.collect()
    assert reference() is None


def test_protocol_object_is_kept_while_current(cuda):
    """A stream that is current on a thread lives with no other reference."""
    stream = cuda.stream()
    foreign = Foreign(stream)
    reference = weakref.ref(foreign)
    with ExternalStream(foreign, device=cuda.device()):
        del foreign
        gc.collect()
        assert reference() is not None
        assert cuda.current_stream() == stream
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("version", [1, -1, 2**70])
def test_protocol_version(cuda, version):
    with pytest.raises(ValueError, match=f"version 0 .* got {version}$"):
        ExternalStream(Foreign(cuda.stream(), version), device=cuda.device())


@pytest.mark.parametrize("version", ["0", None, 0.0, (0, 0)], ids=repr)
def test_a_protocol_version_that_is_no_int(cuda, version):
    foreign = Foreign(cuda.stream(), version)
    with pytest.raises(TypeError) as caught:
        ExternalStream(foreign, device=cuda.device())
    assert str(caught.value) == (
        "ExternalStream() expects an int for the version from "
        f"__cuda_stream__ of Foreign, but got {version!r}"
    )


@pytest.mark.parametrize(
    "answer",
    [None, 0, (), (0,), (0, 1, 2), ("0", 1), (0, "1"), (0, None), (0, 1.5)],
    ids=repr,
)
def test_protocol_answers_nonsense(cuda, answer):
    with pytest.raises((TypeError, ValueError), match="__cuda_stream__"):
        ExternalStream(Answers(answer), device=cuda.device())


def test_protocol_raises(cuda):
    with pytest.raises(ZeroDivisionError, match="theirs"):
        ExternalStream(
            Answers(ZeroDivisionError("theirs")), device=cuda.device()
        )


@pytest.mark.parametrize("handle", [None, "1", 1.0, b"1", [], object()])
def test_not_a_handle(backend, handle):
    with pytest.raises(TypeError, match=type(handle).__name__):
        wrap(backend, handle)


@pytest.mark.parametrize("handle", [-1, -(2**63), 2**64, 2**200])
def test_out_of_range(backend, handle):
    with pytest.raises((ValueError, OverflowError)):
        wrap(backend, handle)


def test_takes_no_priority(backend, stream):
    with pytest.raises(RuntimeError, match="riority"):
        ExternalStream(
            stream.native_handle, device=backend.device(), priority=-1
        )


def test_garbage_handle_is_refused(engine, stream):
    """At the latest when it is used."""
    for handle in (3, 7, 0xDEADBEEF, stream.native_handle ^ 1, 2**64 - 1):
        with pytest.raises((RuntimeError, ValueError)):
            wrap(engine, handle).synchronize()


def test_stale_handle_is_refused(engine):
    """A handle whose stream is gone for good does not reach the next one."""
    status, handle = _C.raw_stream_create(engine.type, 0)
    assert status == 0
    external = wrap(engine, handle)
    external.synchronize()
    assert _C.raw_stream_destroy(engine.type, handle) == 0
    with pytest.raises(RuntimeError):
        external.synchronize()
    assert _C.raw_stream_create(engine.type, 0)[1] != handle


def test_handle_of_another_type_is_refused(engine):
    for name in ("cpu", "cuda"):
        other = pystreams.device(name, 0)
        if name == engine.name or (
            other.type == "cuda"
            and not (
                pystreams.cuda.is_available() and pystreams.cuda.is_emulated()
            )
        ):
            continue
        mine = engine.stream()
        with pytest.raises((RuntimeError, ValueError)):
            ExternalStream(mine.native_handle, device=other).synchronize()


def test_handle_of_another_device_is_refused(two_devices):
    mine = two_devices.stream(0)
    with pytest.raises((RuntimeError, ValueError)):
        wrap(two_devices, mine.native_handle, 1).synchronize()
    assert mine.query()


def test_wrap_by_numbers_checks_them(backend):
    stream = backend.stream()
    good = {
        "stream_id": stream.stream_id,
        "device_index": 0,
        "device_type": backend.type,
    }
    for name, value, error in (
        ("device_index", 1000, (RuntimeError, ValueError)),
        ("device_index", -5, (RuntimeError, ValueError)),
        ("device_index", 0.5, TypeError),
        ("device_type", 77, (RuntimeError, ValueError)),
        ("device_type", "cpu", TypeError),
        ("stream_id", "1", TypeError),
        ("stream_id", -1, (ValueError, OverflowError)),
    ):
        with pytest.raises(error):
            pystreams.Stream(**{**good, name: value})
    assert pystreams.Stream(**good) == stream


@pytest.mark.parametrize("form", [Foreign, Attribute])
def test_every_stream_argument_takes_it(cuda, form):
    stream = cuda.stream()
    foreign = form(stream)
    event = cuda.event()
    other = cuda.stream()
    block = cuda.empty(64)
    cuda.synchronize()
    with cuda.hold(stream):
        event.record(foreign)
        assert not event.query()
        event.wait(foreign)
        other.wait_stream(foreign)
        assert not other.query()
        block.fill_(5, stream=foreign)
        block.record_stream(foreign)
    other.synchronize()
    stream.synchronize()
    assert block.tobytes() == b"\5" * 64
    scratch = cuda.empty(64, stream=foreign)
    scratch.copy_(block, stream=foreign)
    stream.synchronize()
    with pystreams.cuda.stream(foreign):
        assert cuda.current_stream() == stream
    pystreams.cuda.set_stream(foreign)
    assert cuda.current_stream() == stream
    assert scratch.tobytes() == b"\5" * 64


@pytest.mark.parametrize("wrong", [0, 1, "cpu", 1.5, [], object()])
def test_every_stream_argument_refuses_the_rest(backend, stream, wrong):
    event = backend.event()
    block = backend.empty(64)
    before = backend.currents()
    for use in (
        lambda: event.record(wrong),
        lambda: event.wait(wrong),
        lambda: stream.wait_stream(wrong),
        lambda: block.copy_(bytes(64), stream=wrong),
        lambda: block.fill_(5, stream=wrong),
        lambda: block.record_stream(wrong),
        lambda: backend.empty(64, stream=wrong),
        lambda: _C.set_stream(wrong),
    ):
        with pytest.raises(TypeError, match=type(wrong).__name__):
            use()
    assert event.event_id == 0
    assert backend.currents() == before


@pytest.mark.parametrize("wrong", [None, 0, "event", object()])
def test_every_event_argument_refuses_the_rest(backend, stream, wrong):
    for use in (
        lambda: stream.wait_event(wrong),
        lambda: stream.record_event(wrong),
        lambda: backend.event().elapsed_time(wrong),
    ):
        if wrong is None and use.__code__.co_names[0] == "record_event":
            continue
        with pytest.raises(TypeError, match=type(wrong).__name__):
            use()


def test_stream_of_another_type(cuda):
    """A stream and an event say so when they do not belong together."""
    block = pystreams.empty(64, device="cpu")
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        block.fill_(1, stream=cuda.stream())
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        pystreams.cuda.set_stream(pystreams.Stream("cpu"))
    assert cuda.current_stream() == cuda.default_stream()


def test_owner_that_refers_to_its_stream_is_collected(cuda):
    """A cycle through the owner, which only the collector can break."""

    class Owner(Foreign):
        pass

    owner = Owner(cuda.stream())
    owner.stream = ExternalStream(owner)
    seen = weakref.ref(owner)
    del owner
    gc.collect()
    assert seen() is None


FORMS = {
    "stream": lambda stream: stream,
    "handle": lambda stream: stream.native_handle,
    "protocol": Foreign,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_view_of_one_of_ours_keeps_it(backend, form):
    """If our stream is closed, the view keeps it out of the pool, which would
    give it to the next new stream."""
    if form == "protocol" and backend.name != "cuda":
        pytest.skip(f"{backend}: the protocol is of CUDA's streams")
    lowest = pystreams.Stream.priority_range(backend.device())[1]
    own = backend.stream(priority=lowest)
    view = ExternalStream(FORMS[form](own), device=backend.device())
    twin = ExternalStream(FORMS[form](own), device=backend.device())
    assert view == own == twin
    assert hash(view) == hash(own)
    assert view.priority == lowest
    handle = own.native_handle
    own.close()
    twin.close()
    fresh = [backend.stream(priority=lowest) for _ in range(50)]
    assert view not in fresh
    assert view.native_handle == handle
    with backend.hold(view):
        assert not view.query()
        assert all(stream.query() for stream in fresh)
    view.synchronize()
    view.close()
    assert handle in [
        backend.stream(priority=lowest).native_handle for _ in range(50)
    ]


def test_a_view_on_another_device_is_refused(two_devices):
    own = two_devices.stream(1)
    with pytest.raises(ValueError, match=f"{two_devices.name}:1, not"):
        ExternalStream(own, two_devices.device(0))
    assert ExternalStream(own) == own
    assert ExternalStream(own, two_devices.device(1)) == own


def test_a_closed_stream_has_no_view(backend):
    own = backend.stream()
    own.close()
    with pytest.raises(ValueError, match="closed"):
        ExternalStream(own)


def test_one_of_another_type_is_no_cuda_stream(cuda):
    with pytest.raises(RuntimeError, match="cpu stream is not a CUDA stream"):
        pystreams.cuda.ExternalStream(pystreams.Stream("cpu"))


def test_cudas_number_of_the_legacy_default_stream(two_cuda):
    class Numbered:
        def __cuda_stream__(self):
            return 0, 1

    for source in (1, Numbered()):
        for index in range(two_cuda.count):
            view = pystreams.cuda.ExternalStream(source, index)
            assert view == two_cuda.default_stream(index)
            assert view.cuda_stream == 0
    event = pystreams.cuda.Event()
    event.record(Numbered())
    assert event.device == two_cuda.device(0)
    numbers = {"stream_id": 1, "device_index": 1, "device_type": 1}
    assert pystreams.Stream(**numbers) == two_cuda.default_stream(1)


def test_the_collector_sees_an_owner_that_nothing_else_keeps(cuda):
    foreign = Foreign(cuda.stream())
    view = ExternalStream(foreign)
    assert foreign in gc.get_referents(view)
    with view:
        assert foreign not in gc.get_referents(view)
    assert foreign in gc.get_referents(view)


def test_the_collector_does_not_see_the_owner_during_a_call(cuda):
    """The call keeps the stream with the GIL released, perhaps while the
    collector runs on another thread."""
    stream = cuda.stream()
    foreign = Foreign(stream)
    view = ExternalStream(foreign)
    with cuda.hold(stream):
        thread = threading.Thread(target=view.synchronize)
        thread.start()
        wait_until(lambda: foreign not in gc.get_referents(view))
    thread.join()
    assert foreign in gc.get_referents(view)


def test_an_owner_in_a_cycle_is_kept_while_its_stream_is_current(cuda):
    owner = Foreign(cuda.stream())
    owner.view = ExternalStream(owner)
    seen = weakref.ref(owner)
    pystreams.cuda.set_stream(owner.view)
    del owner
    gc.collect()
    assert seen() is not None
    pystreams.cuda.set_stream(cuda.default_stream())
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("handle", [0, 1, 2], ids=["0", "legacy", "thread"])
def test_default_streams_of_cuda_by_handle(gpu, kernels, handle):
    """They are usable like other streams, on each device that the caller
    names."""
    block, target = gpu.empty(64).zero_(), gpu.empty(64)
    gpu.synchronize()
    for index in range(gpu.count):
        external = wrap(gpu, handle, index)
        assert external.native_handle == (handle if handle == 2 else 0)
        assert external.device == gpu.device(index)
        assert external.query()
    external = wrap(gpu, handle)
    assert (external == gpu.default_stream()) == (handle != 2)
    kernels.fill_late(handle, block.data_ptr(), 64, byte=7, milliseconds=50)
    event = external.record_event()
    assert not external.query()
    assert not event.query()
    target.copy_(block, non_blocking=True, stream=external)
    external.synchronize()
    assert event.query()
    assert target.tobytes() == bytes([7]) * 64
    with external:
        assert gpu.current_stream() == external


def test_a_device_that_contradicts_the_handle(two_devices):
    """It is refused before anything is queued or made current; the message
    names both devices."""
    mine = two_devices.stream(1)
    before = two_devices.currents()
    for kind in (ExternalStream, pystreams.cuda.ExternalStream):
        if kind is not ExternalStream and two_devices.name != "cuda":
            continue
        with pytest.raises(ValueError) as caught:
            kind(mine.native_handle, two_devices.device(0))
        assert f"{two_devices.name}:1, not" in str(caught.value)
        assert f"{two_devices.name}:0" in str(caught.value)
    assert two_devices.currents() == before
    assert wrap(two_devices, mine.native_handle, 1) == mine


def test_owner_is_kept_while_memory_is_used(cuda):
    """Queued work of the stream keeps the owner, even if no Stream object is
    left."""
    stream, block = cuda.stream(), cuda.empty(64)
    cuda.synchronize()
    foreign = Foreign(stream)
    reference = weakref.ref(foreign)
    with cuda.hold(stream):
        block.fill_(1, stream=ExternalStream(foreign))
        del foreign
        gc.collect()
        assert reference() is not None
    stream.synchronize()
    assert block.tobytes() == b"\1" * 64
    del block
    gc.collect()
    assert reference() is None
