"""Programs for CUDA devices."""

import contextlib
import ctypes
import importlib
import threading

from torch_programs import Programs, raised, seen

program = Programs()


@program
def timing_as_in_the_manual(torch):
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    torch.cuda._sleep(1_000_000)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0


@program
def a_side_stream(torch):
    device = torch.device("cuda")
    side = torch.cuda.Stream()
    memory = torch.empty(1024, device=device).zero_()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        memory.fill_(3)
    torch.cuda.current_stream().wait_stream(side)
    memory.record_stream(side)
    other = torch.empty(1024, device=device).fill_(3)
    torch.cuda.synchronize()
    first, second = (torch.empty(1024, pin_memory=True) for _ in range(2))
    first.copy_(memory)
    second.copy_(other)
    assert seen(first) == seen(second)


@program
def current_and_default(torch):
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.default_stream().cuda_stream == 0
    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    assert torch.cuda.current_stream() == stream
    assert torch.cuda.current_stream("cuda:0") == stream
    torch.cuda.set_stream(None)
    assert torch.cuda.current_stream() == stream
    torch.cuda.set_stream(torch.cuda.default_stream())
    assert torch.cuda.current_stream().cuda_stream == 0


@program
def stream_contexts_nest(torch):
    first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    with torch.cuda.stream(first) as nothing:
        assert nothing is None
        with torch.cuda.stream(second), torch.cuda.stream(None):
            assert torch.cuda.current_stream() == second
        assert torch.cuda.current_stream() == first
    with contextlib.suppress(KeyError), torch.cuda.stream(first):
        raise KeyError
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    context = torch.cuda.StreamContext(first)
    with context:
        assert torch.cuda.current_stream() == context.stream == first


@program
def priorities(torch):
    least, greatest = torch.cuda.Stream.priority_range()
    assert least == 0 > greatest
    for asked, given in ((0, 0), (-1, -1), (7, 0), (-1000, greatest)):
        assert torch.cuda.Stream(priority=asked).priority == given


@program
def events_between_streams(torch):
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(first):
        torch.cuda._sleep(1_000_000)
        event = torch.cuda.Event()
        event.record()
    second.wait_event(event)
    done = second.record_event()
    assert isinstance(done, torch.cuda.Event)
    done.synchronize()
    assert event.query() and first.query()
    blocking = torch.cuda.Event(blocking=True)
    blocking.record(second)
    blocking.synchronize()
    assert blocking.cuda_event != 0
    assert blocking.device == torch.device("cuda:0")


@program
def both_kinds_together(torch):
    stream, generic = torch.cuda.Stream(), torch.Stream("cuda")
    event = torch.Event("cuda")
    generic.record_event(event)
    stream.wait_event(event)
    stream.wait_stream(generic)
    generic.wait_stream(stream)
    mark = torch.cuda.Event()
    mark.record(generic)
    mark.wait(generic)
    with torch.cuda.stream(generic):
        current = torch.cuda.current_stream()
        assert current.cuda_stream == generic.native_handle
    torch.cuda.synchronize()
    assert mark.query() and event.query()


@program
def streams_made_elsewhere(torch):
    cudart = torch.cuda.cudart()
    handle = ctypes.c_ulonglong(0)
    made = cudart.cudaStreamCreate(ctypes.addressof(handle))
    torch.cuda.check_error(made)
    external = torch.cuda.ExternalStream(handle.value)
    assert external.cuda_stream == handle.value
    assert external.device == torch.device("cuda:0")
    with torch.cuda.stream(external):
        assert torch.cuda.current_stream().cuda_stream == handle.value
        torch.cuda._sleep(1000)
    external.synchronize()
    assert external.query()
    torch.cuda.check_error(cudart.cudaStreamDestroy(handle.value))
    raised(torch.cuda.CudaError, torch.cuda.check_error, 1)


@program
def handles_for_other_libraries(torch):
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    assert event._as_parameter_.value is None
    event.record(stream)
    assert stream._as_parameter_.value == stream.cuda_stream
    assert event._as_parameter_.value == event.cuda_event
    assert stream.__cuda_stream__() == (0, stream.cuda_stream)
    again = torch.cuda.get_stream_from_external(stream.cuda_stream, "cuda:0")
    assert again.cuda_stream == stream.cuda_stream


@program
def devices_by_context(torch):
    count = torch.cuda.device_count()
    for index in range(count):
        with torch.cuda.device(index):
            assert torch.cuda.current_device() == index
            assert torch.cuda.Stream().device.index == index
            assert torch.cuda.current_stream().device.index == index
        with torch.cuda.device(f"cuda:{index}"), torch.cuda.device(-1):
            assert torch.cuda.current_device() == index
        memory = torch.empty(16, device=f"cuda:{index}")
        assert memory.device == torch.device("cuda", index)
        assert torch.cuda.get_device_name(index)
        torch.cuda.synchronize(index)
    assert torch.cuda.current_device() == 0
    message = raised(torch.AcceleratorError, torch.cuda.set_device, count)
    assert message == "CUDA error: invalid device ordinal"
    assert torch.cuda.current_device() == 0


@program
def events_between_devices(torch):
    last = torch.cuda.device_count() - 1
    here, there = torch.cuda.Stream(0), torch.cuda.Stream(last)
    event = here.record_event()
    there.wait_event(event)
    there.wait_stream(here)
    torch.cuda.synchronize(last)
    assert event.query() and torch.cuda.current_device() == 0
    with torch.cuda.stream(there):
        assert torch.cuda.current_device() == last
        if last > 0:
            default = torch.cuda.default_stream(0)
            assert torch.cuda.current_stream(0) == default
    assert torch.cuda.current_device() == 0
    if last > 0:
        message = raised(RuntimeError, event.record, there)
        assert message.startswith("Event device")


@program
def what_is_no_cuda_device(torch):
    message = "Expected a cuda device, but got: cpu"
    for use in (
        torch.cuda.Stream,
        torch.cuda.current_stream,
        torch.cuda.device,
        torch.cuda.get_device_properties,
        torch.cuda.set_device,
        torch.cuda.synchronize,
    ):
        assert raised(ValueError, use, "cpu") == message
    message = raised(ValueError, torch.cuda.set_device, "cuda")
    assert message.endswith("or an integer, but got:cuda")


@program
def properties(torch):
    found = torch.cuda.get_device_properties(torch.device("cuda:0"))
    assert found.name == torch.cuda.get_device_name()
    assert (found.major, found.minor) == torch.cuda.get_device_capability(0)
    assert found.total_memory > 0 and found.multi_processor_count > 0
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total


@program
def out_of_memory_is_caught(torch):
    try:
        torch.empty(1 << 50, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        assert isinstance(error, RuntimeError)
    else:
        raise AssertionError("a petabyte was there")
    assert torch.empty(16, device="cuda").data_ptr() != 0


@program
def nothing_is_captured(torch):
    assert torch.cuda.is_available() and torch.cuda.is_initialized()
    assert torch.cuda.is_current_stream_capturing() is False


@program
def a_stream_for_each_thread(torch):
    failures = []

    def work(index):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(20):
                    event = torch.cuda.Event()
                    event.record()
                    event.synchronize()
                assert torch.cuda.current_stream() == stream
            assert torch.cuda.current_stream().cuda_stream == 0
        except BaseException as error:
            failures.append((index, error))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@program
def listen_to_the_trace(torch):
    trace = importlib.import_module(f"{torch.__name__}.cuda._gpu_trace")
    told = []
    trace.register_callback_for_event_record(lambda *args: told.append(args))
    torch._C._activate_gpu_trace()
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    event.record(stream)
    assert told == [(event.cuda_event, stream.cuda_stream)]
