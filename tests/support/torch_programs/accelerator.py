"""Programs for whatever the accelerator is."""

import contextlib
import pickle
import queue
import threading

from torch_programs import Programs, raised, seen

program = Programs()


def on_accelerator(torch):
    """A device with an index."""
    kind = torch.accelerator.current_accelerator().type
    return torch.device(kind, torch.accelerator.current_device_index())


def host_memory(torch, size):
    pinned = torch.accelerator.current_accelerator().type == "cuda"
    return torch.empty(size, device="cpu", pin_memory=pinned)


@program
def devices_are_values(torch):
    first, second = torch.device("cuda:0"), torch.device("cuda", 0)
    assert first == second and hash(first) == hash(second)
    assert first != torch.device("cuda") and first != "cuda:0"
    assert torch.device("cuda").index is None
    assert (first.type, first.index) == ("cuda", 0)
    assert f"{first}" == "cuda:0"
    assert repr(first) == "device(type='cuda', index=0)"
    assert {first: "x"}[second] == "x"
    assert pickle.loads(pickle.dumps(first)) == first
    assert isinstance(first, torch.device)


@program
def malformed_devices_are_refused(torch):
    for text in ("cuda0", "cuda:", "cuda:-1", "cuda:01", "cuda:0:1"):
        message = raised(RuntimeError, torch.device, text)
        assert message == f"Invalid device string: '{text}'"
    message = raised(RuntimeError, torch.device, "teapot")
    assert message.startswith("Expected one of cpu, cuda")
    assert message.endswith("at start of device string: teapot")


@program
def pick_a_device(torch):
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
    else:
        device = torch.device("cpu")
    assert device.index is None
    assert torch.accelerator.device_count() >= 1
    assert device == torch.accelerator.current_accelerator(True)
    assert torch.Stream(device=device).device.type == device.type


@program
def a_stream_tells_where_it_is(torch):
    device = on_accelerator(torch)
    stream = torch.Stream(device)
    assert stream.device == device
    assert stream.device_index == device.index
    assert isinstance(stream.stream_id, int)
    same = torch.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )
    assert same == stream and hash(same) == hash(stream)
    assert len({stream, same}) == 1
    assert stream != torch.Stream(device)


@program
def the_current_stream_is_restored(torch):
    before = torch.accelerator.current_stream()
    outer, inner = torch.Stream(), torch.Stream()
    with outer as entered:
        assert entered is outer
        assert torch.accelerator.current_stream() == outer
        with inner:
            assert torch.accelerator.current_stream() == inner
        assert torch.accelerator.current_stream() == outer
        with contextlib.suppress(KeyError), inner:
            raise KeyError
        assert torch.accelerator.current_stream() == outer
    assert torch.accelerator.current_stream() == before


@program
def set_the_stream_and_back(torch):
    before = torch.accelerator.current_stream()
    stream = torch.Stream()
    torch.accelerator.set_stream(stream)
    assert torch.accelerator.current_stream() == stream
    torch.accelerator.set_stream(before)
    assert torch.accelerator.current_stream() == before


@program
def the_current_stream_is_the_threads_own(torch):
    found = queue.Queue()

    def look():
        found.put(torch.accelerator.current_stream())
        with torch.Stream() as mine:
            found.put(torch.accelerator.current_stream() == mine)

    default = torch.accelerator.current_stream()
    with torch.Stream() as stream:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert torch.accelerator.current_stream() == stream
    assert found.get() == default
    assert found.get() is True


@program
def an_event_that_was_not_recorded(torch):
    event = torch.Event(device=torch.accelerator.current_accelerator())
    assert event.query()
    assert event.synchronize() is None
    assert event.wait() is None
    assert event.device.type == on_accelerator(torch).type
    assert event.event_id == 0


@program
def record_wait_and_synchronize(torch):
    first, second = torch.Stream(), torch.Stream()
    event = torch.Event()
    event.record(first)
    assert event.device == first.device
    second.wait_event(event)
    event.wait(second)
    done = second.record_event()
    done.synchronize()
    assert event.query() and done.query()
    identity = event.event_id
    event.record(stream=second)
    assert event.event_id == identity
    second.synchronize()
    assert first.query() and second.query()


@program
def fork_and_join(torch):
    main = torch.accelerator.current_stream()
    sides = [torch.Stream() for _ in range(3)]
    for side in sides:
        side.wait_stream(main)
    for side in sides:
        main.wait_stream(side)
    main.synchronize()
    assert all(side.query() for side in sides)


@program
def time_a_copy(torch):
    start, end = (torch.Event(enable_timing=True) for _ in range(2))
    stream = torch.Stream()
    source = host_memory(torch, 1 << 16)
    target = torch.empty(1 << 16, device=on_accelerator(torch))
    with stream:
        start.record()
        target.copy_(source, non_blocking=True)
        end.record()
    torch.accelerator.synchronize()
    assert 0 <= start.elapsed_time(end) < 60_000


@program
def times_that_cannot_be_told(torch):
    timed, other = (torch.Event(enable_timing=True) for _ in range(2))
    untimed = torch.Event(enable_timing=False)
    assert raised(ValueError, timed.elapsed_time, untimed) == (
        "Both events must be created with argument 'enable_timing=True'."
    )
    timed.record()
    assert raised(ValueError, timed.elapsed_time, other) == (
        "Both events must be recorded before calculating elapsed time."
    )


@program
def another_device_type_is_refused(torch):
    kind = torch.accelerator.current_accelerator().type
    other = "cuda" if kind == "cpu" else "cpu"
    message = f"{other} doesn't match the current accelerator {kind}."
    for use in (
        torch.accelerator.set_device_index,
        torch.accelerator.current_stream,
        torch.accelerator.synchronize,
    ):
        assert raised(ValueError, use, other) == message
        assert raised(ValueError, use, torch.device(other, 0)) == message


@program
def an_index_is_needed(torch):
    kind = torch.accelerator.current_accelerator()
    message = raised(ValueError, torch.accelerator.set_device_index, kind)
    assert message.endswith(f"or an integer, but got:{kind}")


@program
def devices_in_turn(torch):
    before = torch.accelerator.current_device_index()
    for index in range(torch.accelerator.device_count()):
        with torch.accelerator.device_index(index):
            assert torch.accelerator.current_device_index() == index
            assert torch.Stream().device_index == index
            assert torch.accelerator.current_stream().device_index == index
            torch.accelerator.synchronize()
        assert torch.accelerator.current_device_index() == before
    with torch.accelerator.device_index(None):
        assert torch.accelerator.current_device_index() == before
    torch.accelerator.set_device_index(-1)
    assert torch.accelerator.current_device_index() == before


@program
def a_stream_brings_its_device(torch):
    last = torch.accelerator.device_count() - 1
    kind = torch.accelerator.current_accelerator().type
    stream = torch.Stream(torch.device(kind, last))
    before = torch.accelerator.current_stream(last)
    with stream:
        assert torch.accelerator.current_device_index() == last
        assert torch.accelerator.current_stream() == stream
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_stream(stream)
    assert torch.accelerator.current_device_index() == last
    torch.accelerator.set_stream(before)
    assert torch.accelerator.current_stream() == before
    torch.accelerator.set_device_index(0)


@program
def memory_there_is(torch):
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total
    torch.empty(16, device=on_accelerator(torch))
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    memory = torch.empty(1 << 20, device=on_accelerator(torch))
    held = torch.accelerator.memory_allocated() - before
    assert held >= 1 << 20
    del memory
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() >= before + held
    assert torch.accelerator.memory_reserved() >= before


class Prefetcher:
    """Copies the next batch on a stream of its own while one is in use."""

    def __init__(self, torch, batches):
        self.torch = torch
        self.batches = iter(batches)
        self.stream = torch.Stream()
        self.preload()

    def preload(self):
        source = next(self.batches, None)
        self.batch = None
        if source is not None:
            with self.stream:
                device = on_accelerator(self.torch)
                self.batch = self.torch.empty(len(source), device=device)
                self.batch.copy_(source, non_blocking=True)

    def next(self):
        current = self.torch.accelerator.current_stream()
        current.wait_stream(self.stream)
        batch = self.batch
        if batch is not None:
            batch.record_stream(current)
        self.preload()
        return batch


@program
def prefetch(torch):
    batches = [host_memory(torch, 4096).fill_(n) for n in range(5)]
    torch.accelerator.synchronize()
    prefetcher = Prefetcher(torch, batches)
    for source in batches:
        back = host_memory(torch, 4096)
        back.copy_(prefetcher.next())
        assert seen(back) == seen(source)
    assert prefetcher.next() is None


class StreamPool:
    """Hands out a few streams in turn."""

    def __init__(self, torch, count, device):
        self.streams = [torch.Stream(device) for _ in range(count)]
        self.turn = 0

    def take(self):
        self.turn += 1
        return self.streams[self.turn % len(self.streams)]


@program
def streams_from_a_pool(torch):
    pool = StreamPool(torch, 4, on_accelerator(torch))
    taken = [pool.take() for _ in range(8)]
    assert taken[:4] == taken[4:]
    assert len(set(taken)) == 4
    events = [stream.record_event() for stream in taken]
    for event in events:
        event.synchronize()
    assert all(event.query() for event in events)


@program
def classes_of_ones_own(torch):
    class Named(torch.Stream):
        name = "side"

    class Mark(torch.Event):
        pass

    stream, mark = Named(), Mark(enable_timing=False)
    mark.record(stream)
    assert (stream.name, isinstance(stream, torch.Stream)) == ("side", True)
    mark.synchronize()
