"""Streams and events that are exchanged with torch, CuPy, cuda.core and Numba
on a GPU, both ways, and with the driver itself.

A slow kernel writes on each stream that is exchanged, so a reader that does
not wait finds the old bytes.
"""

import ctypes
import gc
import importlib.util
import sys
import weakref
from glob import glob

import pytest

import pystreams
from pystreams import ExternalStream
from pystreams import cuda as api

SIZE = 1 << 16
DELAY = 100

# Warnings of other libraries do not matter here.
pytestmark = pytest.mark.filterwarnings("ignore")


class Torch:
    """The functions of torch that the tests need.  The other classes are for
    other libraries."""

    keeps_owner = False

    def __init__(self, torch):
        self.torch = torch
        torch.cuda.init()

    def stream(self):
        return self.torch.cuda.Stream()

    def wrap(self, stream):
        return self.torch.cuda.ExternalStream(stream.cuda_stream)

    def handle(self, theirs):
        return theirs.cuda_stream

    def synchronize(self, theirs):
        theirs.synchronize()

    def record(self, theirs):
        return theirs.record_event()

    def wait(self, theirs, event):
        theirs.wait_event(event)

    def wait_raw(self, theirs, handle):
        """torch cannot wrap an event of another library, so call the
        driver."""
        wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitEvent
        arguments = ctypes.c_void_p(self.handle(theirs)), handle
        assert wait(*arguments, ctypes.c_uint(0)) == 0


class Cupy:
    keeps_owner = True

    def __init__(self, cupy):
        self.cuda = cupy.cuda

    def stream(self):
        return self.cuda.Stream(non_blocking=True)

    def wrap(self, stream):
        return self.cuda.Stream.from_external(stream)

    def handle(self, theirs):
        return theirs.ptr

    def synchronize(self, theirs):
        theirs.synchronize()

    def record(self, theirs):
        return theirs.record()

    def wait(self, theirs, event):
        theirs.wait_event(event)

    def wait_raw(self, theirs, handle):
        self.cuda.runtime.streamWaitEvent(theirs.ptr, handle.value)


class Core:
    keeps_owner = True

    def __init__(self, core):
        self.device = core.Device(0)

    def stream(self):
        return self.device.create_stream()

    def wrap(self, stream):
        return self.device.create_stream(stream)

    def handle(self, theirs):
        return int(theirs.handle)

    def synchronize(self, theirs):
        theirs.sync()

    def record(self, theirs):
        return theirs.record()

    def wait(self, theirs, event):
        theirs.wait(event)

    def wait_raw(self, theirs, handle):
        from cuda.bindings import driver

        event = driver.CUevent(handle.value)
        (status,) = driver.cuStreamWaitEvent(theirs.handle, event, 0)
        assert status == driver.CUresult.CUDA_SUCCESS


class Numba:
    keeps_owner = False

    def __init__(self, numba):
        self.cuda = numba

    def stream(self):
        return self.cuda.stream()

    def wrap(self, stream):
        return self.cuda.external_stream(stream.native_handle)

    def handle(self, theirs):
        return int(theirs)

    def synchronize(self, theirs):
        theirs.synchronize()

    def record(self, theirs):
        event = self.cuda.event(timing=False)
        event.record(theirs)
        return event

    def wait(self, theirs, event):
        event.wait(theirs)

    def wait_raw(self, theirs, handle):
        from numba.cuda.cudadrv.driver import Event

        Event(handle.value).wait(theirs)


LIBRARIES = {"torch": Torch, "cupy": Cupy, "core": Core, "numba": Numba}


@pytest.fixture(params=LIBRARIES)
def library(request, gpu):
    return LIBRARIES[request.param](request.getfixturevalue(request.param))


class Late:
    """Memory of zeros, which a kernel on a stream fills late."""

    def __init__(self, gpu, kernels):
        self.kernels = kernels
        self.block = gpu.empty(SIZE).zero_()
        gpu.synchronize()

    def begin(self, handle):
        self.kernels.fill_late(
            handle, self.block.data_ptr(), SIZE, byte=7, milliseconds=DELAY
        )

    def seen_by(self, handle):
        return self.kernels.read(handle, self.block.data_ptr(), SIZE)


@pytest.fixture
def late(gpu, kernels):
    return Late(gpu, kernels)


def test_a_stream_that_waits_for_nothing(gpu, late):
    """A reader that does not wait sees the old bytes.  So in the tests below,
    a reader that sees the new bytes has waited."""
    writer, reader = gpu.stream(), gpu.stream()
    late.begin(writer.native_handle)
    assert late.seen_by(reader.native_handle) == (0, 0)
    writer.synchronize()
    assert late.seen_by(reader.native_handle) == (7, 7)


def test_theirs_in_our_functions(gpu, library, late):
    theirs, other = library.stream(), gpu.stream()
    event, block = gpu.event(), gpu.empty(64)
    gpu.synchronize()
    late.begin(library.handle(theirs))
    event.record(theirs)
    assert not event.query()
    other.wait_stream(theirs)
    assert not other.query()
    block.fill_(5, stream=theirs)
    block.record_stream(theirs)
    scratch = gpu.empty(64, stream=theirs)
    scratch.copy_(block, non_blocking=True, stream=theirs)
    assert late.seen_by(other.native_handle) == (7, 7)
    library.synchronize(theirs)
    assert event.query()
    assert scratch.tobytes() == bytes([5]) * 64
    with api.stream(theirs):
        assert api.current_stream().cuda_stream == library.handle(theirs)
        assert api.current_stream() == ExternalStream(theirs)
    api.set_stream(theirs)
    assert api.current_stream().cuda_stream == library.handle(theirs)


def test_theirs_is_kept_alive(library):
    # Count references.  A weak reference would do, too, but torch 2.11 does
    # not clear those to its streams: they lead to freed memory.
    theirs = library.stream()
    before = sys.getrefcount(theirs)
    external = ExternalStream(theirs)
    external.synchronize()
    assert sys.getrefcount(theirs) > before
    del external
    gc.collect()
    assert sys.getrefcount(theirs) == before


def test_ours_as_theirs(gpu, library, late):
    ours = api.Stream()
    theirs = library.wrap(ours)
    assert library.handle(theirs) == ours.native_handle
    assert ExternalStream(theirs) == ours
    late.begin(library.handle(theirs))
    assert not ours.query()
    library.synchronize(theirs)
    assert ours.query()
    assert late.seen_by(ours.native_handle) == (7, 7)


def test_ours_is_kept_alive_by_theirs(library):
    if not library.keeps_owner:
        pytest.skip("it takes a number, which keeps nothing alive")
    ours = api.Stream()
    handle, seen = ours.native_handle, weakref.ref(ours)
    theirs = library.wrap(ours)
    del ours
    gc.collect()
    assert seen() is not None
    assert library.handle(theirs) == handle
    del theirs
    gc.collect()
    assert seen() is None


def test_ours_is_left_alive_by_theirs(gpu, library):
    """Other libraries wrap our stream, and do not destroy it."""
    ours = api.Stream()
    for _ in range(3):
        theirs = library.wrap(ours)
        library.synchronize(theirs)
        del theirs
        gc.collect()
        gpu.sleep(ours, 0.01)
        ours.synchronize()


def test_their_stream_waits_for_our_event(gpu, library, late):
    writer, reader = api.Stream(), library.stream()
    event = api.Event()
    late.begin(writer.cuda_stream)
    event.record(writer)
    event.wait(reader)
    assert late.seen_by(library.handle(reader)) == (7, 7)


def test_their_stream_waits_for_our_raw_event(gpu, library, late):
    writer, reader = api.Stream(), library.stream()
    event = api.Event()
    late.begin(writer.cuda_stream)
    event.record(writer)
    library.wait_raw(reader, event._as_parameter_)
    assert late.seen_by(library.handle(reader)) == (7, 7)


def test_our_stream_waits_for_their_event(gpu, library, late):
    writer, reader = library.stream(), api.Stream()
    late.begin(library.handle(writer))
    event = library.record(writer)
    library.wait(library.wrap(reader), event)
    assert late.seen_by(reader.cuda_stream) == (7, 7)
    del event


def test_cuda_core_waits_for_our_stream(gpu, core, late):
    """cuda.core accepts any stream that has __cuda_stream__()."""
    library = Core(core)
    writer, reader = api.Stream(), library.stream()
    late.begin(writer.cuda_stream)
    reader.wait(writer)
    assert late.seen_by(library.handle(reader)) == (7, 7)


def cudart():
    """Load the CUDA runtime from a package or from a toolkit."""
    package = importlib.util.find_spec("nvidia")
    places = package.submodule_search_locations if package else []
    found = [
        *(p for f in places for p in glob(f"{f}/*/lib/libcudart.so.1?")),
        *glob("/usr/local/cuda/lib64/libcudart.so.1?"),
    ]
    if not found:
        pytest.skip("needs a libcudart.so")
    return ctypes.CDLL(found[0])


@pytest.mark.parametrize("prefix", ["cuda", "cu"])
def test_handles_as_ctypes_arguments(gpu, late, prefix):
    """Streams and events can be arguments of a ctypes function, as their
    handles."""
    runtime = cudart() if prefix == "cuda" else ctypes.CDLL("libcuda.so.1")
    writer, reader, event = api.Stream(), pystreams.Stream(), api.Event()

    def call(name, *arguments):
        return getattr(runtime, prefix + name)(*arguments)

    event.record(writer)
    writer.synchronize()
    late.begin(writer.cuda_stream)
    assert call("EventRecord", event, writer) == 0
    assert call("StreamQuery", writer) == 600
    assert call("EventQuery", event) == 600
    assert call("StreamWaitEvent", reader, event, ctypes.c_uint(0)) == 0
    assert late.seen_by(reader.native_handle) == (7, 7)
    assert call("StreamSynchronize", writer) == 0
    assert call("EventSynchronize", event) == 0
    assert call("EventQuery", event) == 0
