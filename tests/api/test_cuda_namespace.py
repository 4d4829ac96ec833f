"""pystreams.cuda: the names, defaults and errors of torch.cuda."""

import ctypes
import re

import pytest

import pystreams
from pystreams import _C
from pystreams import cuda as api

pytestmark = pytest.mark.usefixtures("cuda")


def test_stream_class(cuda):
    stream = api.Stream()
    assert isinstance(stream, pystreams.Stream)
    assert issubclass(api.Stream, pystreams.Stream)
    assert stream.device == cuda.device(0)
    assert stream.cuda_stream == stream.native_handle
    assert stream.priority == 0
    assert repr(stream) == (
        f"<pystreams.cuda.Stream device=cuda:0 "
        f"cuda_stream={stream.cuda_stream:#x}>"
    )
    with pytest.raises(AttributeError):
        stream.cuda_stream = 0


def test_names_say_where_they_live():
    for one in (
        api.Stream,
        api.Event,
        api.ExternalStream,
        api.CUDAGraph,
        api.device,
        api.current_stream,
    ):
        assert one.__module__ == "pystreams.cuda"
        assert getattr(api, one.__qualname__) is one


def test_stream_arguments(two_cuda):
    assert api.Stream(1).device == two_cuda.device(1)
    assert api.Stream("cuda:1").device == two_cuda.device(1)
    assert api.Stream(device=two_cuda.device(1)).device == two_cuda.device(1)
    with api.device(1):
        assert api.Stream().device == two_cuda.device(1)
        assert api.Stream("cuda").device == two_cuda.device(1)


def test_stream_priority():
    least, greatest = api.Stream.priority_range()
    assert least == 0
    assert greatest < 0
    assert api.Stream(priority=-1).priority == -1
    assert api.Stream(None, -1).priority == -1
    assert api.Stream(priority=greatest - 10).priority == greatest
    assert api.Stream(priority=10).priority == 0
    assert api.Stream(priority=-(2**40)).priority == greatest
    assert api.Stream(priority=2**40).priority == 0


def test_stream_by_numbers():
    stream = api.Stream()
    again = api.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )
    assert type(again) is api.Stream
    assert again == stream


class Mine(api.Stream):
    pass


def test_subclass_by_numbers_of_another_type():
    for kind in (api.Stream, Mine):
        with pytest.raises(ValueError) as caught:
            kind(stream_id=0, device_index=0, device_type=0)
        assert str(caught.value).startswith("Expected a cuda device")
    mine = Mine(stream_id=0, device_index=0, device_type=1)
    assert type(mine) is Mine
    assert mine == api.default_stream(0)


def test_streams_of_both_classes_are_equal(cuda):
    stream = cuda.stream()
    with stream:
        assert type(api.current_stream()) is api.Stream
        assert api.current_stream() == stream
        assert hash(api.current_stream()) == hash(stream)


def test_event_class(cuda):
    event = api.Event()
    assert isinstance(event, pystreams.Event)
    assert event.device is None
    assert event.enable_timing is False
    assert event.blocking is False
    assert event.interprocess is False
    assert event.cuda_event == 0
    assert "uninitialized" in repr(event)
    event.record()
    assert event.device == cuda.device(0)
    assert event.cuda_event == event.event_id != 0
    assert isinstance(event._as_parameter_, ctypes.c_void_p)
    assert event._as_parameter_.value == event.cuda_event
    event.synchronize()


def test_event_arguments():
    event = api.Event(True, True)
    assert event.enable_timing is True
    assert event.blocking is True
    assert api.Event(enable_timing=True).enable_timing is True


def test_arguments_by_name():
    stream, other = api.Stream(), api.Stream()
    start, end = (api.Event(enable_timing=True) for _ in range(2))
    start.record(stream=stream)
    assert other.wait_event(event=start) is None
    assert other.wait_stream(stream=stream) is None
    end.record(stream=other)
    end.synchronize()
    assert start.elapsed_time(end_event=end) >= 0
    for use in (
        lambda: other.wait_event(stream=stream),
        lambda: other.wait_stream(stream, stream=stream),
        lambda: start.elapsed_time(),
    ):
        with pytest.raises(TypeError):
            use()


def test_stream_record_event_is_not_timed():
    event = api.Stream().record_event()
    assert type(event) is api.Event
    assert event.enable_timing is False


def test_elapsed_time(cuda):
    start, end = (api.Event(enable_timing=True) for _ in range(2))
    stream = api.Stream()
    start.record(stream)
    cuda.sleep(stream, 1)
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) > 0
    with pytest.raises(ValueError, match="enable_timing=True"):
        api.Event().elapsed_time(end)


def test_external_stream(cuda):
    stream = api.Stream()
    external = api.ExternalStream(stream.cuda_stream)
    assert isinstance(external, api.Stream)
    assert external == stream
    assert external.cuda_stream == stream.cuda_stream
    again = api.ExternalStream(stream_ptr=stream.cuda_stream, device="cuda:0")
    assert again == stream
    same = api.get_stream_from_external(stream.cuda_stream, cuda.device(0))
    assert same == stream


def test_current_and_default_stream(two_cuda):
    stream = api.Stream(1)
    assert api.current_stream() == api.default_stream()
    assert api.default_stream(1).device == two_cuda.device(1)
    with stream:
        assert api.current_stream() == stream
        assert api.current_stream(1) == stream
        assert api.current_stream("cuda:1") == stream
        assert api.current_stream(two_cuda.device(1)) == stream
        assert api.current_stream(0) == api.default_stream(0)
        assert api.default_stream().device == two_cuda.device(1)
    assert api.current_stream(1) == api.default_stream(1)


def test_set_stream(two_cuda):
    stream = api.Stream(1)
    assert api.set_stream(stream) is None
    assert api.current_device() == 1
    assert api.current_stream() == stream
    assert api.set_stream(None) is None
    assert api.current_stream() == stream
    with pytest.raises(TypeError):
        api.set_stream(1)
    assert api.current_stream() == stream


def test_set_device(two_cuda):
    for argument in (1, "cuda:1", two_cuda.device(1)):
        api.set_device(0)
        assert api.set_device(argument) is None
        assert api.current_device() == 1
    api.set_device(-1)
    assert api.current_device() == 1


def test_another_type_of_device():
    message = "Expected a cuda device, but got: cpu"
    for use in (
        lambda: api.Stream("cpu"),
        lambda: api.current_stream("cpu"),
        lambda: api.default_stream(pystreams.device("cpu")),
        lambda: api.set_device("cpu"),
        lambda: api.synchronize("cpu"),
        lambda: api.device("cpu"),
        lambda: api.mem_get_info("cpu"),
        lambda: api.get_device_properties("cpu"),
        lambda: api.memory_allocated("cpu"),
    ):
        with pytest.raises(ValueError) as caught:
            use()
        assert str(caught.value) == message


def test_index_needed():
    with pytest.raises(ValueError) as caught:
        api.set_device("cuda")
    assert str(caught.value) == (
        "Expected a pystreams.device with a specified index or an integer, "
        "but got:cuda"
    )


@pytest.mark.parametrize("index", [1000, 127, 2**30])
def test_ordinal_out_of_range(cuda, index):
    before = cuda.currents()
    for use in (
        lambda: api.set_device(index),
        lambda: api.Stream(index),
        lambda: api.current_stream(index),
        lambda: api.default_stream(f"cuda:{index}"),
        lambda: api.synchronize(index),
        lambda: api.get_device_properties(index),
        lambda: api.mem_get_info(index),
        lambda: pystreams.Stream(f"cuda:{index}"),
        lambda: pystreams.empty(1, device=f"cuda:{index}"),
    ):
        with pytest.raises(pystreams.AcceleratorError) as caught:
            use()
        assert str(caught.value).startswith(
            "CUDA error: invalid device ordinal"
        )
        assert caught.value.error_code == 101
    with pytest.raises(pystreams.AcceleratorError), api.device(index):
        pytest.fail("entered")
    assert cuda.currents() == before


@pytest.mark.parametrize("wrong", [1.0, b"cuda:0", [], object()])
def test_device_of_a_wrong_type(cuda, wrong):
    before = cuda.currents()
    for use in (
        lambda: api.set_device(wrong),
        lambda: api.Stream(wrong),
        lambda: api.current_stream(wrong),
        lambda: api.device(wrong),
        lambda: api.synchronize(wrong),
    ):
        with pytest.raises((TypeError, ValueError)):
            use()
    assert cuda.currents() == before


def test_what_there_is(cuda):
    assert api.is_available() is True
    assert api.device_count() == cuda.count
    api.init()
    assert api.is_initialized() is True
    assert api.is_emulated() is cuda.on_engine


def test_synchronize(two_cuda):
    stream = api.Stream(1)
    with two_cuda.hold(stream):
        api.synchronize()
        api.synchronize(0)
        assert not stream.query()
    assert api.synchronize(1) is None
    assert stream.query()
    assert api.current_device() == 0


def test_properties(cuda):
    found = api.get_device_properties()
    assert found.name == api.get_device_name()
    assert found.name
    assert found.total_memory > 0
    assert found.multi_processor_count > 0
    assert (found.major, found.minor) == api.get_device_capability()
    assert found.uuid is not None
    assert found.L2_cache_size >= 0
    assert f"name='{found.name}'" in repr(found)
    assert f"major={found.major}" in repr(found)
    if cuda.on_engine:
        assert "emulat" in found.name.lower()


def test_properties_are_compared_by_value(cuda):
    found = api.get_device_properties(0)
    again = api.get_device_properties("cuda:0")
    assert found is not again
    assert found == again
    assert hash(found) == hash(again)
    assert len({found, again}) == 1
    assert found != found.name
    again.total_memory += 1
    assert found != again
    if cuda.count > 1:
        assert found != api.get_device_properties(1)


def test_attributes(cuda):
    found = api.get_device_attributes(0)
    assert found["MultiProcessorCount"] > 0
    assert found["MemoryPoolsSupported"] == 1
    assert all(isinstance(value, int) for value in found.values())
    assert not any("Reserved1" in name for name in found)
    properties = api.get_device_properties(0)
    assert properties.multi_processor_count == found["MultiProcessorCount"]
    assert properties.pci_bus_id == found["PciBusId"]
    if not cuda.on_engine:
        assert properties.max_threads_per_block >= 1024
        assert properties.shared_memory_per_block > 0
        assert found["WarpSize"] == properties.warp_size


def test_pci_bus_ids(cuda):
    found = [api.get_device_pci_bus_id(i) for i in range(cuda.count)]
    assert len(set(found)) == cuda.count
    for index, place in enumerate(found):
        domain, bus, device, function = re.fullmatch(
            r"([0-9A-F]{4}):([0-9A-F]{2}):([0-9A-F]{2})\.([0-7])", place
        ).groups()
        properties = api.get_device_properties(index)
        assert int(domain, 16) == properties.pci_domain_id
        assert int(bus, 16) == properties.pci_bus_id
        assert int(device, 16) == properties.pci_device_id
        assert function == "0"


def test_every_device_has_properties(cuda):
    for index in range(cuda.count):
        assert api.get_device_properties(index).name
        assert api.get_device_name(index)
        assert api.get_device_capability(f"cuda:{index}")


def test_peers(two_cuda):
    assert api.can_device_access_peer(0, 1) in (True, False)
    assert api.can_device_access_peer(0, 0) is False
    with pytest.raises(RuntimeError):
        api.can_device_access_peer(0, 1000)


def test_peer_access_is_given_and_taken(two_cuda):
    """Copies are right either way."""
    if not api.can_device_access_peer(0, 1):
        pytest.skip("the devices do not reach each other's memory")
    source, target = (two_cuda.filled(0, 64, index) for index in (0, 1))
    for byte, enabled in enumerate((True, False, False, True)):
        api.set_peer_access(1, "cuda:0", enabled)
        source.fill_(byte)
        target.copy_(source)
        assert target.tobytes() == bytes([byte]) * 64
        source.zero_()
        source.copy_(target)
        assert source.tobytes() == bytes([byte]) * 64


def test_peer_access_is_refused(cuda):
    with pytest.raises(
        ValueError,
        match=r"^set_peer_access\(\) expects two devices, but got cuda:0 tw",
    ):
        api.set_peer_access(0, "cuda:0", True)
    with pytest.raises(pystreams.AcceleratorError, match="ordinal"):
        api.set_peer_access(0, 1000, True)
    with pytest.raises(TypeError, match="for peer_device, but got float"):
        api.set_peer_access(0, 1.5, True)


def test_mem_get_info():
    free, total = api.mem_get_info()
    assert 0 < free <= total
    assert api.mem_get_info(0)[1] == total


def test_cudart():
    cudart = api.cudart()
    handle = ctypes.c_void_p()
    assert cudart.cudaStreamCreate(ctypes.addressof(handle)) == 0
    assert handle.value
    external = api.ExternalStream(handle.value)
    external.synchronize()
    assert external.query()
    assert cudart.cudaStreamDestroy(handle.value) == 0


def test_cudart_makes_no_stream_without_a_place_for_it(monkeypatch):
    def create(*arguments):
        pytest.fail("made a stream")

    monkeypatch.setattr(_C, "raw_stream_create", create)
    assert api.cudart().cudaStreamCreate(0) == 1
    with pytest.raises(TypeError):
        api.cudart().cudaStreamCreate("1")


def test_torch_names():
    assert api.OutOfMemoryError is pystreams.OutOfMemoryError
    assert api.AcceleratorError is pystreams.AcceleratorError
    assert (api.cudaStatus.SUCCESS, api.cudaStatus.ERROR_NOT_READY) == (0, 34)
    cudart = api.cudart()
    assert cudart.cudaGetErrorString(cudart.cudaError(2)) == "out of memory"
    assert api.memory_reserved() >= api.memory_allocated()
    assert api.max_memory_reserved() >= api.max_memory_allocated()


NOTHING_USED = """
from pystreams import cuda
assert cuda.memory_stats() == {}
assert cuda.memory_allocated() == cuda.max_memory_allocated() == 0
assert cuda.device(0).idx == 0
assert not cuda.is_initialized()
"""


@pytest.mark.parametrize("emulated", ["2", None])
def test_asking_initializes_nothing(run_python, emulated):
    done = run_python(NOTHING_USED, env={"PYSTREAMS_EMULATE_CUDA": emulated})
    assert (done.returncode, done.stderr) == (0, "")


def test_check_error():
    assert api.check_error(0) is None
    with pytest.raises(api.CudaError, match="invalid device ordinal"):
        api.check_error(101)
    with pytest.raises(RuntimeError):
        api.check_error(1)


def test_nothing_is_captured():
    assert api.is_current_stream_capturing() is False
    assert api.Stream().is_capturing() is False


def test_sleep_on_the_current_stream():
    stream = api.Stream()
    start, end = (api.Event(enable_timing=True) for _ in range(2))
    with api.stream(stream):
        start.record()
        api._sleep(2_000_000)
        end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0.5


def test_sleep_refuses():
    for wrong in (-1, 2**64):
        with pytest.raises((ValueError, OverflowError)):
            api._sleep(wrong)
    with pytest.raises(TypeError):
        api._sleep(1.5)
    assert api.current_stream().query()


def test_ipc_collect_is_there():
    assert api.ipc_collect() is None


def test_torch_program(cuda):
    """What a program written for torch does, word for word."""
    torch = pystreams
    device = torch.device("cuda:0")
    side = torch.cuda.Stream(device=device)
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        start.record()
        torch.cuda._sleep(1_000_000)
        end.record()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.current_stream().synchronize()
    assert start.elapsed_time(end) >= 0
    assert end.query() and side.query()
    assert torch.cuda.current_stream(device) == torch.cuda.default_stream()
