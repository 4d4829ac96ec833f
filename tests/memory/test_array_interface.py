"""The CUDA array interface, as producer and as consumer: which Buffers have
it, which producers are refused, and the order of the work on both sides."""

import ctypes
import gc
import weakref

import pytest

from pystreams import Buffer


class Fake:
    """An array of another library; None leaves an entry out."""

    def __init__(self, block, **entries):
        self.block = block
        entries = {
            "shape": (block.nbytes,),
            "typestr": "|u1",
            "data": (block.data_ptr(), False),
            "version": 3,
            **entries,
        }
        self.__cuda_array_interface__ = {
            name: value for name, value in entries.items() if value is not None
        }


def test_what_it_says(cuda):
    block = cuda.filled(1)[8:24]
    interface = block.__cuda_array_interface__
    assert interface == {
        "shape": (16,),
        "typestr": "|u1",
        "data": (block.data_ptr(), False),
        "version": 3,
        "strides": None,
        "stream": 1,
    }
    assert type(interface["data"][1]) is bool


def test_names_the_current_stream(cuda):
    block = cuda.empty(16)
    with cuda.stream() as stream:
        interface = block.__cuda_array_interface__
    assert interface["stream"] == stream.native_handle


def test_names_the_stream_of_its_device(two_cuda):
    block = two_cuda.empty(16, 1)
    with two_cuda.stream(1) as stream, two_cuda.stream(0):
        assert block.__cuda_array_interface__["stream"] == stream.native_handle
    assert block.__cuda_array_interface__["stream"] == 1


def test_who_has_it(backend):
    assert hasattr(backend.empty(16), "__cuda_array_interface__") is (
        backend.name == "cuda"
    )
    assert hasattr(backend.empty(0), "__cuda_array_interface__") is (
        backend.name == "cuda"
    )
    pinned = backend.empty(16, pin_memory=True)
    assert not hasattr(pinned, "__cuda_array_interface__")


def test_of_nothing(cuda):
    interface = cuda.empty(0).__cuda_array_interface__
    assert interface["shape"] == (0,)
    assert interface["data"] == (0, False)


def test_of_a_closed_buffer(cuda):
    block = cuda.empty(16)
    block.close()
    with pytest.raises(ValueError, match="closed"):
        _ = block.__cuda_array_interface__


@pytest.mark.parametrize("use", ["allocation", "fill", "copy", "record"])
def test_the_current_stream_waits_for(cuda, use):
    stream, theirs = cuda.stream(), cuda.stream()
    with cuda.hold(stream), theirs:
        block = cuda.empty(64, stream=stream if use == "allocation" else None)
        if use == "fill":
            block.fill_(2, stream=stream)
        elif use == "copy":
            cuda.empty(64).copy_(block, stream=stream)
        elif use == "record":
            block.record_stream(stream)
        theirs.synchronize()
        interface = block.__cuda_array_interface__
        assert interface["stream"] == theirs.native_handle
        assert not theirs.query()
    theirs.synchronize()


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_is_copied(cuda, version):
    lender = cuda.filled(3)
    block = cuda.filled(1)
    assert block.copy_(Fake(lender, version=version)) is block
    assert block.tobytes() == b"\3" * 64
    block.fill_(4)
    assert block.copy_to(Fake(lender, version=version)) is block
    cuda.synchronize()
    assert lender.tobytes() == b"\4" * 64


def test_to_and_from_host_memory(cuda):
    lender = cuda.filled(3)
    for device in ("cpu", "cuda"):
        host = Buffer(64, device=device, pin_memory=device == "cuda")
        host.copy_(Fake(lender))
        assert bytes(memoryview(host)) == b"\3" * 64
        memoryview(host)[:] = b"a" * 64
        host.copy_to(Fake(lender))
        assert lender.tobytes() == b"a" * 64
        lender.fill_(3)


@pytest.mark.parametrize(
    ("nbytes", "entries"),
    [
        (64, {"shape": (4, 4), "typestr": "<f4"}),
        (64, {"shape": (8,), "typestr": "<c8"}),
        (64, {"shape": (4,), "typestr": "|V16"}),
        (32, {"shape": (4,), "typestr": "<M8[ns]"}),
        (8, {"shape": (), "typestr": ">i8"}),
        (2, {"shape": (2,), "typestr": "|b1"}),
        (0, {"shape": (0, 9), "typestr": "<f8"}),
        (0, {"shape": (0,), "data": (0, False)}),
        (24, {"shape": (2, 3), "typestr": "<f4", "strides": (12, 4)}),
        (12, {"shape": (1, 3), "typestr": "<f4", "strides": (999, 4)}),
        (0, {"shape": (0, 3), "typestr": "<f4", "strides": (9, 9)}),
        (64, {"strides": None, "stream": None, "descr": [("", "|u1")]}),
    ],
    ids=str,
)
def test_size(cuda, nbytes, entries):
    lender = cuda.filled(6)
    block = cuda.empty(nbytes).copy_(Fake(lender, **entries))
    assert block.tobytes() == b"\6" * nbytes


class Lying(tuple):
    """A tuple that says that it has one item."""

    def __len__(self):
        return 1


REFUSED = {
    "no version": ({"version": None}, ValueError, "version"),
    "version 4": ({"version": 4}, ValueError, "version 4"),
    "version -1": ({"version": -1}, ValueError, "version -1"),
    "a large version": ({"version": 2**70}, ValueError, "version"),
    "version of text": ({"version": "3"}, ValueError, "version '3'"),
    "no shape": ({"shape": None}, ValueError, "lacks 'shape'"),
    "shape of a list": ({"shape": [64]}, TypeError, "'shape'"),
    "shape of text": ({"shape": ("64",)}, TypeError, "int"),
    "shape of floats": ({"shape": (64.0,)}, TypeError, "int"),
    "many dimensions": ({"shape": (1,) * 65}, TypeError, "64"),
    "more dimensions than said": (
        {"shape": Lying((1,) * 99)},
        TypeError,
        "64",
    ),
    "negative extent": ({"shape": (-64,)}, ValueError, "negative"),
    "extents overflow": ({"shape": (2**62, 4)}, ValueError, "overflow"),
    "large extent": ({"shape": (2**64,)}, ValueError, "64 bits"),
    "no typestr": ({"typestr": None}, ValueError, "typestr"),
    "typestr of bytes": ({"typestr": b"|u1"}, ValueError, "typestr"),
    "empty typestr": ({"typestr": ""}, ValueError, "typestr"),
    "no byte order": ({"typestr": "u1"}, ValueError, "typestr"),
    "no size": ({"typestr": "<f"}, ValueError, "typestr"),
    "size 0": ({"typestr": "|u0"}, ValueError, "typestr"),
    "negative size": ({"typestr": "|u-1"}, ValueError, "typestr"),
    "large size": ({"typestr": "|V99999999999"}, ValueError, "typestr"),
    "size and more": ({"typestr": "<f4x"}, ValueError, "typestr"),
    "objects": ({"typestr": "|O8"}, ValueError, "typestr"),
    "text": ({"typestr": "<U64"}, ValueError, "typestr"),
    "surrogates": ({"typestr": "\udc80u1"}, ValueError, "typestr"),
    "no data": ({"data": None}, ValueError, "lacks 'data'"),
    "data is an int": ({"data": 4096}, TypeError, "'data'"),
    "data of one": ({"data": (4096,)}, TypeError, "'data'"),
    "text address": ({"data": ("x", False)}, TypeError, "address"),
    "negative address": ({"data": (-1, False)}, ValueError, "address"),
    "large address": ({"data": (2**64, False)}, ValueError, "address"),
    "address 0": ({"data": (0, False)}, ValueError, "is impossible"),
    "past the end": (
        {"data": (2**64 - 8, False)},
        ValueError,
        "is impossible",
    ),
    "mask": ({"mask": object()}, ValueError, "mask"),
    "strides of a list": ({"strides": [1]}, TypeError, "'strides'"),
    "strides too few": ({"strides": ()}, ValueError, "1 extents and 0"),
    "every second": (
        {"shape": (32,), "strides": (2,)},
        ValueError,
        "contiguous",
    ),
    "transposed": (
        {"shape": (8, 8), "strides": (1, 8)},
        ValueError,
        "contiguous",
    ),
    "backwards": ({"strides": (-1,)}, ValueError, "contiguous"),
    "stream 0": ({"stream": 0}, ValueError, "other than 0"),
    "stream True": ({"stream": True}, TypeError, "bool"),
    "stream of text": ({"stream": "1"}, TypeError, "str"),
    "stream -1": ({"stream": -1}, ValueError, "-1"),
}


@pytest.mark.parametrize("lie", REFUSED)
def test_refused(cuda, lie):
    entries, error, message = REFUSED[lie]
    lender, block = cuda.filled(1), cuda.filled(2)
    fake = Fake(lender, **entries)
    reference = weakref.ref(fake)
    for copy in (block.copy_, block.copy_to):
        with pytest.raises(error, match=message):
            copy(fake)
    assert block.tobytes() == b"\2" * 64
    assert lender.tobytes() == b"\1" * 64
    del fake
    gc.collect()
    assert reference() is None


def test_unknown_stream(cuda):
    if not cuda.on_engine:
        pytest.skip(f"{cuda}: a wrong handle cannot be told from a live one")
    with pytest.raises(RuntimeError, match="invalid resource handle"):
        cuda.empty(64).copy_(Fake(cuda.empty(64), stream=12345678))


def test_address_that_no_device_has(cuda):
    pinned = cuda.empty(64, pin_memory=True)
    host = ctypes.create_string_buffer(64)
    for address in (pinned.data_ptr(), ctypes.addressof(host), 4096):
        with pytest.raises(ValueError, match="but there is none"):
            cuda.empty(64).copy_(Fake(pinned, data=(address, False)))


def test_memory_of_another_device(cuda):
    """The address decides the device, not the other side of the copy."""
    if cuda.on_engine or cuda.count < 2:
        pytest.skip(f"{cuda}: needs two GPUs")
    lender = cuda.filled(5, index=1)
    assert cuda.empty(64).copy_(Fake(lender)).tobytes() == b"\5" * 64


def test_read_only(cuda):
    lender, block = cuda.filled(1), cuda.filled(2)
    fake = Fake(lender, data=(lender.data_ptr(), True))
    with pytest.raises(ValueError, match="read-only"):
        block.copy_to(fake)
    assert lender.tobytes() == b"\1" * 64
    assert block.copy_(fake).tobytes() == b"\1" * 64


@pytest.mark.parametrize(
    "interface", [None, 5, [], "x"], ids=lambda value: repr(value)
)
def test_no_dict(cuda, interface):
    fake = Fake(cuda.empty(64))
    fake.__cuda_array_interface__ = interface
    with pytest.raises(TypeError, match="to be a dict, but got"):
        cuda.empty(64).copy_(fake)


def test_attribute_that_raises(backend):
    class Raising:
        error = None

        @property
        def __cuda_array_interface__(self):
            raise self.error

    fake, block = Raising(), backend.empty(64)
    for error in (ZeroDivisionError, KeyboardInterrupt):
        fake.error = error
        with pytest.raises(error):
            block.copy_(fake)
    fake.error = AttributeError
    with pytest.raises(TypeError, match="Raising"):
        block.copy_(fake)


@pytest.mark.parametrize("name", ["version", "data", "stream", "mask"])
def test_a_look_up_that_raises(cuda, name):
    """The error is raised; the entry does not count as missing."""

    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            raise ZeroDivisionError

    fake = Fake(cuda.filled(4))
    interface = fake.__cuda_array_interface__
    interface[Key(name)] = interface.pop(name, None)
    block = cuda.filled(1)
    with pytest.raises(ZeroDivisionError):
        block.copy_(fake)
    assert block.tobytes() == b"\1" * 64


def test_entries_that_change_while_they_are_read(cuda):
    class Clearing:
        def __init__(self):
            self.fake = Fake(lender, data=(lender.data_ptr(), self))

        def __bool__(self):
            self.fake.__cuda_array_interface__.clear()
            gc.collect()
            return False

    lender = cuda.filled(4)
    fake = Clearing().fake
    fake.__cuda_array_interface__["strides"] = tuple(range(1, 2))
    assert cuda.empty(64).copy_(fake).tobytes() == b"\4" * 64
    assert fake.__cuda_array_interface__ == {}


def test_dlpack_comes_first(cuda):
    """DLPack is preferred, because it names the device and gives the memory
    back."""
    lender = cuda.filled(4)

    class Both(Fake):
        def __dlpack__(self, **options):
            return lender.__dlpack__(**options)

        def __dlpack_device__(self):
            return lender.__dlpack_device__()

    fake = Both(lender, data=(0, False))
    assert cuda.empty(64).copy_(fake).tobytes() == b"\4" * 64


@pytest.mark.parametrize("given", ["stream", "current"])
@pytest.mark.parametrize("side", ["copy_", "copy_to"])
def test_waits_for_the_producers_stream(cuda, side, given):
    lender, block = cuda.filled(1), cuda.filled(1)
    theirs, stream = cuda.stream(), cuda.stream()
    fake = Fake(lender, stream=theirs.native_handle)
    with cuda.hold(theirs):
        lender.fill_(2, stream=theirs)
        if given == "current":
            with stream:
                getattr(block, side)(fake, non_blocking=True)
        else:
            getattr(block, side)(fake, non_blocking=True, stream=stream)
        assert not stream.query()
    stream.synchronize()
    value = b"\2" if side == "copy_" else b"\1"
    assert block.tobytes() == lender.tobytes() == value * 64


def test_waits_for_the_default_stream(cuda):
    lender, stream = cuda.filled(1), cuda.stream()
    with cuda.hold(cuda.default_stream()):
        Fake(lender).block.fill_(2, stream=cuda.default_stream())
        block = cuda.empty(64, stream=stream)
        block.copy_(Fake(lender, stream=1), non_blocking=True, stream=stream)
        assert not stream.query()
    stream.synchronize()
    assert block.tobytes() == b"\2" * 64


@pytest.mark.parametrize("entries", [{}, {"version": 2}], ids=str)
def test_no_stream_is_no_wait(cuda, entries):
    lender, block = cuda.filled(1), cuda.filled(2)
    theirs, stream = cuda.stream(), cuda.stream()
    with cuda.hold(theirs):
        fake = Fake(lender, **entries)
        block.copy_(fake, non_blocking=True, stream=stream)
        stream.synchronize()
    assert block.tobytes() == b"\1" * 64


def test_producer_is_kept_while_a_queued_copy_uses_it(cuda):
    lender, block, stream = cuda.filled(1), cuda.filled(2), cuda.stream()
    fake = Fake(lender)
    reference = weakref.ref(fake)
    with cuda.hold(stream):
        block.copy_(fake, non_blocking=True, stream=stream)
        del fake
        gc.collect()
        cuda.empty(64).close()
        assert reference() is not None
    stream.synchronize()
    assert reference() is None
    assert block.tobytes() == b"\1" * 64


def test_producer_is_let_go_after_a_copy(cuda):
    lender, host = cuda.filled(1), Buffer(64, device="cpu")
    fake = Fake(lender)
    reference = weakref.ref(fake)
    host.copy_(fake)
    del fake
    assert reference() is None


def test_there_and_back(cuda):
    """A Buffer as a producer, without DLPack."""

    class Wrapper:
        def __init__(self, block):
            self.__cuda_array_interface__ = block.__cuda_array_interface__

    stream, block = cuda.stream(), cuda.filled(1)
    with cuda.hold(stream):
        block.fill_(2, stream=stream)
        with stream:
            wrapper = Wrapper(block)
        target = cuda.empty(64).copy_(wrapper, non_blocking=True)
        assert not cuda.current_stream().query()
    cuda.current_stream().synchronize()
    assert target.tobytes() == b"\2" * 64
