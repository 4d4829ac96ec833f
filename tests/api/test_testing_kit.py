"""The tools of pystreams.testing: emulated devices within a process, streams
that stay busy, work that fails."""

import asyncio
import concurrent.futures
import gc
import inspect
import itertools
import sys
import threading
import time
from pathlib import Path

import pytest
from deadlines import LONG
from integers import Number
from places import ROOT

import pystreams
from pystreams import _C, accelerator, cuda, races, schedules, timeline
from pystreams.testing import emulated_cuda, fail, hold

EMPTY = {
    "PYSTREAMS_EMULATE_CUDA": None,
    "PYSTREAMS_ACCELERATOR": None,
    "PYSTREAMS_SCHEDULE": None,
}


def facts():
    """Return what an emulation replaces."""
    found = [
        _C.backends(),
        cuda.device_count(),
        cuda.is_available(),
        cuda.is_emulated(),
        cuda.is_initialized(),
        cuda.memory_stats(),
        cuda.host_memory_stats(),
        str(accelerator.current_accelerator()),
    ]
    if cuda.is_initialized():
        found += [cuda.current_device(), cuda.current_stream()]
        found += [cuda.mem_get_info(i)[1] for i in range(cuda.device_count())]
    return found


@pytest.mark.unscheduled
@pytest.mark.parametrize("devices", [1, 2, 16])
def test_devices_and_memory(devices):
    with emulated_cuda(devices, "3MiB"):
        assert cuda.is_emulated()
        assert cuda.device_count() == devices
        assert not cuda.is_initialized()
        assert str(accelerator.current_accelerator()) == "cuda"
        last = devices - 1
        assert cuda.mem_get_info(last) == (3 << 20, 3 << 20)
        assert cuda.get_device_properties(last).total_memory == 3 << 20
        block = pystreams.empty(2 << 20, device=f"cuda:{last}")
        with pytest.raises(pystreams.OutOfMemoryError):
            pystreams.empty(2 << 20, device=f"cuda:{last}")
        with pytest.raises(pystreams.AcceleratorError, match="ordinal"):
            pystreams.Stream(f"cuda:{devices}")
        block.close()


@pytest.mark.unscheduled
def test_a_number_of_another_type():
    with emulated_cuda(Number(3)):
        assert cuda.device_count() == 3


@pytest.mark.parametrize("devices", [2.0, "2", None], ids=repr)
def test_a_number_of_devices_that_is_none_is_refused(devices):
    with pytest.raises(
        TypeError,
        match=r"^emulated_cuda\(\) expects an int for devices, but got "
        f"{type(devices).__name__}$",
    ):
        emulated_cuda(devices)


def test_a_decorator_without_parentheses_is_refused():
    with pytest.raises(
        TypeError,
        match=r"^emulated_cuda\(\) expects an int for devices, but got "
        r"function; as a decorator, write @emulated_cuda\(\), with",
    ):

        @emulated_cuda
        def count():
            pass


@pytest.mark.unscheduled
def test_sizes():
    with emulated_cuda(memory=4096):
        assert cuda.mem_get_info()[1] == 4096
    with emulated_cuda():
        assert cuda.device_count() == 2
        assert cuda.mem_get_info()[1] == 1 << 30


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0,), "from 1 to 16 for devices, but got 0"),
        ((17,), "from 1 to 16 for devices, but got 17"),
        ((1 << 99,), f"from 1 to 16 for devices, but got {1 << 99}"),
        ((1, 0), "number of bytes, KiB, MiB, GiB or TiB above 0"),
        ((1, 1 << 63), "number of bytes, KiB, MiB, GiB or TiB above 0"),
        ((1, "1GB"), "memory of emulated_cuda.. must be a number of bytes"),
    ],
    ids=str,
)
def test_what_is_refused(nothing_left, arguments, match):
    before = facts()
    with pytest.raises(ValueError, match=match), emulated_cuda(*arguments):
        pass
    assert facts() == before


@pytest.mark.unscheduled
def test_all_is_as_it_was(cuda):
    """After an emulation, the earlier devices are there again, and have worked
    meanwhile."""
    stream = cuda.stream()
    block = cuda.filled(3, stream=stream)
    with stream, cuda.hold(stream):
        event = stream.record_event()
        before = facts()
        with emulated_cuda(3, "1MiB"):
            pystreams.cuda.set_device(1)
            inner = pystreams.cuda.Stream(1)
            pystreams.cuda.set_stream(inner)
            other = pystreams.empty(64, device="cuda:1").fill_(9)
            assert pystreams.cuda.memory_allocated(1) == 64
            assert not event.query()
            assert other.tobytes() == b"\x09" * 64
            assert inner.device == pystreams.device("cuda:1")
            assert inner != stream
            del other
        assert facts() == before
    stream.synchronize()
    assert event.query()
    assert block.tobytes() == b"\3" * 64


@pytest.mark.unscheduled
def test_each_begins_anew():
    for _ in range(20):
        with emulated_cuda(2, "1MiB"):
            assert not cuda.is_initialized()
            assert cuda.memory_stats() == {}
            cuda.init()
            assert cuda.current_device() == 0
            assert cuda.memory_stats()["allocation.all.allocated"] == 0
            assert cuda.memory_reserved() == 0
            assert cuda.host_memory_stats()["allocations.allocated"] == 0
            assert cuda.current_stream().native_handle == 0
            assert cuda.mem_get_info()[0] == 1 << 20
            cuda.synchronize()
            block = pystreams.empty(1 << 20, device="cuda")
            pinned = pystreams.empty(64, pin_memory=True)
            cuda.set_pool_threshold(0)
            fail(cuda.default_stream())
            cuda.set_stream(cuda.Stream(1))
            del block, pinned


@pytest.mark.unscheduled
def test_an_emulation_is_used_again():
    """An emulation leaves no threads, no descriptors and no memory behind."""
    for devices in range(1, 17):
        with emulated_cuda(devices):
            index = _C.backends()
        assert index


@pytest.mark.unscheduled
def test_used_again_after_a_wait_between_streams():
    for _ in range(20):
        with emulated_cuda(1):
            cuda.Stream().wait_stream(cuda.Stream())


@pytest.mark.unscheduled
def test_used_again_while_threads_give_streams_back(switch_often):
    """For ThreadSanitizer: a thread that releases the last stream of an
    emulation touches none of its devices afterwards."""
    for _ in range(1000):
        go = threading.Event()
        with emulated_cuda(1):
            streams = [cuda.Stream() for _ in range(16)]
            results = [stream.submit(go.wait) for stream in streams]
            del streams
        go.set()
        assert all(result.result() for result in results)


@pytest.mark.unscheduled
def test_used_again_after_a_notification_of_a_device():
    """For ThreadSanitizer: the thread that waited for the device may still
    run."""
    for _ in range(100):
        with emulated_cuda(1):
            waiter = _C.Waiter()
            waiter.register(pystreams.device("cuda:0"), 1)
            waiter.wait(LONG)


@pytest.mark.unscheduled
def test_used_again_while_a_thread_uses_its_default_stream(switch_often):
    """For ThreadSanitizer: a default stream outlives its emulation."""
    with emulated_cuda(1):
        stream = cuda.default_stream()
    over = threading.Event()

    def use():
        while not over.is_set():
            stream.synchronize()
            assert stream.query()

    thread = threading.Thread(target=use)
    thread.start()
    for _ in range(100):
        with emulated_cuda(1):
            pass
    over.set()
    thread.join(LONG)
    assert not thread.is_alive()


@pytest.mark.unscheduled
def test_objects_outlive_their_emulation():
    with emulated_cuda(2, "1MiB"):
        stream = cuda.Stream(1)
        block = pystreams.empty(64, device="cuda:1", stream=stream)
        event = stream.record_event()
    with emulated_cuda(1, "1MiB"):
        # This is another emulation, in which nothing is allocated.
        assert cuda.memory_allocated() == 0
        assert cuda.mem_get_info()[0] == 1 << 20
        block.fill_(5, stream)
        event.record(stream)
        stream.synchronize()
        assert event.query()
        assert block.tobytes() == b"\5" * 64
        block.close()
        assert cuda.memory_allocated() == 0
        assert cuda.memory_stats()["allocation.all.freed"] == 0


class Emulated:
    """Objects of one emulation."""

    def __init__(self):
        self.stream = cuda.Stream()
        self.event = cuda.Event(enable_timing=True)
        self.event.record(self.stream)
        self.block = pystreams.empty(8, device="cuda")
        self.graph = cuda.CUDAGraph(keep_graph=True)
        with cuda.graph(self.graph, stream=self.stream):
            self.block.fill_(1)


MIXTURES = {
    "Event.record": lambda a, b: a.event.record(b.stream),
    "Stream.wait_event": lambda a, b: b.stream.wait_event(a.event),
    "Event.wait": lambda a, b: a.event.wait(b.stream),
    "Event.elapsed_time": lambda a, b: a.event.elapsed_time(b.event),
    "Stream.wait_stream": lambda a, b: a.stream.wait_stream(b.stream),
    "fill_": lambda a, b: a.block.fill_(1, b.stream),
    "copy_": lambda a, b: a.block.copy_(b.block),
    "record_stream": lambda a, b: a.block.record_stream(b.stream),
    "upload": lambda a, b: a.graph.upload(b.stream),
    "update": lambda a, b: a.graph.update(b.graph),
}


@pytest.mark.unscheduled
@pytest.mark.parametrize("operation", MIXTURES)
def test_objects_of_two_emulations(operation):
    mix, end = MIXTURES[operation], r"; make both in the emulated_cuda\(\) "
    ended, outer = "an emulation that has ended", "an outer emulation"
    with emulated_cuda():
        left = Emulated()
    with emulated_cuda():
        around = Emulated()
        with emulated_cuda():
            here = Emulated()
            for one, other, first, second in (
                (left, here, ended, "the present emulation"),
                (here, around, "the present emulation", outer),
                (around, left, outer, ended),
            ):
                with pytest.raises(
                    RuntimeError,
                    match=rf"{operation}\(\): the \w+ belongs to {first}, "
                    rf"but the [\w ]+ to {second}{end}",
                ):
                    mix(one, other)
    with pytest.raises(RuntimeError, match=f"{ended}, .* to another one"):
        mix(left, here)


def of_another_emulation(operation, what):
    """Expect the error of an operation on objects of two emulations."""
    return pytest.raises(
        RuntimeError,
        match=rf"^{operation}\(\): the {what}; make both in the emulated_cuda",
    )


@pytest.mark.unscheduled
def test_a_capture_on_a_stream_of_another_emulation():
    def refuse(stream, what):
        with (
            of_another_emulation("graph", what),
            cuda.graph(graph, None, stream),
        ):
            pass

    ended = "stream belongs to an emulation that has ended"
    with emulated_cuda():
        graph, left = cuda.CUDAGraph(), cuda.Stream()
    with emulated_cuda():
        around = cuda.Stream()
        with emulated_cuda():
            present = "but the capture to the present emulation"
            refuse(left, f"{ended}, {present}")
            refuse(around, f"stream belongs to an outer emulation, {present}")
            assert cuda.current_stream() == cuda.default_stream()
    refuse(left, f"{ended}, but the capture to devices outside of emulations")


class Object:
    """Another library's stream."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


HANDLES = {
    "ExternalStream": lambda handle: cuda.ExternalStream(handle),
    "Stream": lambda handle: cuda.Stream(
        stream_id=handle, device_index=0, device_type=1
    ),
    "get_stream_from_external": cuda.get_stream_from_external,
    "set_stream": lambda handle: cuda.set_stream(Object(handle)),
    "empty": lambda handle: pystreams.empty(
        8, device="cuda", stream=Object(handle)
    ),
}


@pytest.mark.unscheduled
@pytest.mark.parametrize("operation", HANDLES)
def test_handles_of_another_emulation(operation):
    use = HANDLES[operation]
    present = "but the device to the present emulation"
    with emulated_cuda():
        left = cuda.Stream()
    with emulated_cuda():
        around = cuda.Stream()
        with emulated_cuda():
            for stream, its in (
                (left, "an emulation that has ended"),
                (around, "an outer emulation"),
            ):
                what = f"stream belongs to {its}, {present}"
                with of_another_emulation(operation, what):
                    use(stream.cuda_stream)
        use(around.cuda_stream)
        handle = left.cuda_stream
        left.close()
        # The stream is destroyed: no emulation knows the handle any more.
        with pytest.raises(pystreams.AcceleratorError, match=f"{handle:#x}"):
            use(handle)


@pytest.mark.unscheduled
def test_a_stream_of_an_earlier_emulation_allocates_nothing():
    with emulated_cuda():
        stream = cuda.Stream()
    with (
        emulated_cuda(),
        pytest.raises(RuntimeError, match=r"empty\(\): the memory belongs to"),
    ):
        pystreams.empty(8, device="cuda", stream=stream)


@pytest.mark.unscheduled
def test_too_many_that_are_still_in_use(run_python):
    done = run_python(
        """
from pystreams import cuda
from pystreams.testing import emulated_cuda
kept = []
try:
    while len(kept) < 100:
        with emulated_cuda():
            kept.append(cuda.Stream())
except RuntimeError as error:
    print(error)
assert 3 <= len(kept) < 10
assert not cuda.is_emulated()
kept.pop()
with emulated_cuda():
    assert cuda.is_emulated()
""",
        env=EMPTY,
    )
    assert (done.stdout, done.stderr) == (
        "emulated_cuda() has no place left: each earlier emulation is still "
        "entered, or streams, events, graphs or Buffers of it are still "
        "alive; leave it, or drop them\n",
        "",
    )


def test_busy_streams_that_were_dropped_keep_no_place(run_python):
    """A stream of a partition is given up only once it is idle, which may be
    after the emulation was left."""
    done = run_python(
        """
import time
from pystreams import Partition, _C
from pystreams.testing import emulated_cuda
for _ in range(20):
    with emulated_cuda():
        stream = Partition(1, "cuda").Stream()
        _C.sleep(1, 10_000_000, stream)
        del stream
    time.sleep(0.03)
""",
        env=EMPTY,
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_cycles_keep_no_place(run_python):
    """For example, the tracebacks of failed tests hold streams in cycles."""
    done = run_python(
        """
import gc
from pystreams import cuda
from pystreams.testing import emulated_cuda
gc.set_threshold(0)
for _ in range(20):
    with emulated_cuda():
        cycle = [cuda.Stream()]
        cycle.append(cycle)
        del cycle
print("done")
""",
        env=EMPTY,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.unscheduled
def test_a_failure_to_end(monkeypatch):
    """The end fails because the program itself has destroyed a native stream
    that is in the pool."""
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    with emulated_cuda(1):
        handle = cuda.Stream().cuda_stream
        cuda.cudart().cudaStreamDestroy(handle)
    (error,) = (report.exc_value for report in reported)
    assert isinstance(error, pystreams.AcceleratorError)
    assert str(error).splitlines()[1:] == [
        "ending an emulation failed with PS_ERROR_INVALID_HANDLE (400)."
    ]


@pytest.mark.unscheduled
def test_a_capture_that_is_left():
    with emulated_cuda():
        graph = cuda.CUDAGraph()
        stream = cuda.Stream()
        block = pystreams.empty(64, device="cuda")
        cuda.synchronize()
        with stream:
            graph.capture_begin()
            block.fill_(7)
    with emulated_cuda():
        assert not cuda.is_current_stream_capturing()
        cuda.synchronize()
        other = pystreams.empty(64, device="cuda").fill_(1)
        assert other.tobytes() == b"\1" * 64
        del other
    assert stream.is_capturing()
    graph.reset()
    assert not stream.is_capturing()
    block.fill_(7, stream)
    stream.synchronize()
    assert block.tobytes() == b"\7" * 64


@pytest.mark.unscheduled
def test_nested():
    before = facts()
    with emulated_cuda(1):
        outer = facts()
        stream = cuda.Stream()
        with emulated_cuda(4):
            assert cuda.device_count() == 4
            assert cuda.Stream() != stream
        assert cuda.device_count() == 1
        assert outer[:4] == facts()[:4]
        stream.synchronize()
    assert facts() == before


@pytest.mark.unscheduled
@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_left_in_any_order(order):
    """A block that is not the latest one ends, too, but with an error."""
    before = facts()
    blocks = [emulated_cuda(devices) for devices in (1, 2, 3)]
    for block in blocks:
        block.__enter__()
    entered = [0, 1, 2]
    for index in order:
        if index == entered[-1]:
            blocks[index].__exit__(None, None, None)
        else:
            with pytest.raises(RuntimeError, match="in the reverse of the"):
                blocks[index].__exit__(None, None, None)
        entered.remove(index)
        if entered:
            assert cuda.device_count() == entered[-1] + 1
            assert str(accelerator.current_accelerator()) == "cuda"
    assert facts() == before


@pytest.mark.unscheduled
def test_overlapping_tasks_leave_nothing():
    before = facts()

    async def emulate(entered, leave):
        try:
            with emulated_cuda():
                cuda.set_stream(cuda.Stream(1))
                entered.set()
                await leave.wait()
        finally:
            entered.set()

    async def overlap():
        entered = [asyncio.Event(), asyncio.Event()]
        leave = [asyncio.Event(), asyncio.Event()]
        tasks = []
        for events in zip(entered, leave, strict=True):
            tasks.append(asyncio.create_task(emulate(*events)))
            await events[0].wait()
        leave[0].set()
        with pytest.raises(RuntimeError, match="one thread or task at a time"):
            await tasks[0]
        leave[1].set()
        await tasks[1]

    for _ in range(9):
        asyncio.run(overlap())
    assert facts() == before


@pytest.mark.unscheduled
def test_a_stream_that_is_current_keeps_no_place():
    """The stream belongs to an emulation that ends before one that was entered
    later."""
    before = facts()
    for _ in range(9):
        first, second = emulated_cuda(), emulated_cuda()
        first.__enter__()
        cuda.set_stream(cuda.Stream(1))
        second.__enter__()
        with pytest.raises(RuntimeError, match="in the reverse of the"):
            first.__exit__(None, None, None)
        second.__exit__(None, None, None)
    assert facts() == before


@pytest.mark.unscheduled
def test_threads_that_overlap_leave_nothing():
    before = facts()
    failures = []

    def emulate():
        for _ in range(50):
            try:
                with emulated_cuda(1):
                    time.sleep(0)
            except RuntimeError as error:
                if "in the reverse of the" not in str(error):
                    failures.append(error)

    threads = [threading.Thread(target=emulate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert facts() == before


def test_the_accelerator_that_a_change_overtakes(run_python):
    """An emulation ends, as it could on another thread, while the package asks
    for the accelerator.  In the first case, the accelerator was not known
    before the emulation, and in the second case, it was."""
    done = run_python(
        """
import contextlib
from pystreams import _settings, accelerator
from pystreams.testing import emulated_cuda
ask = _settings.default_type
def overtaken():
    kind = ask()
    block.__exit__()
    return kind
for _ in range(2):
    block = emulated_cuda()
    block.__enter__()
    _settings.default_type = overtaken
    with contextlib.suppress(RuntimeError):
        accelerator.current_accelerator()
    _settings.default_type = ask
    print(accelerator.current_accelerator())
""",
        env=EMPTY | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert (done.stdout, done.stderr) == ("cpu\ncpu\n", "")


@pytest.mark.unscheduled
def test_an_exception_passes():
    before = facts()
    with pytest.raises(ZeroDivisionError), emulated_cuda():
        raise ZeroDivisionError
    assert facts() == before


@pytest.mark.unscheduled
def test_as_a_decorator():
    @emulated_cuda(3)
    def count():
        return cuda.device_count()

    assert count() == count() == 3


@pytest.mark.unscheduled
def test_as_a_decorator_of_a_coroutine_function():
    before = facts()

    @emulated_cuda(3, "2MiB")
    async def count(argument):
        """Its text."""
        await asyncio.sleep(0)
        return cuda.device_count(), cuda.mem_get_info()[1], argument

    assert inspect.iscoroutinefunction(count)
    assert count.__doc__ == "Its text."
    for _ in range(2):
        assert asyncio.run(count(1)) == (3, 2 << 20, 1)
    assert facts() == before


@pytest.mark.unscheduled
def test_overlapping_calls_of_a_decorated_function():
    """Each call ends the emulation that it has begun, not the latest one."""
    before = facts()
    ended = []

    @emulated_cuda(1)
    async def emulate(name, turns):
        for _ in range(turns):
            await asyncio.sleep(0)
        ended.append(name)

    async def overlap():
        return await asyncio.gather(
            emulate("first", 1), emulate("second", 5), return_exceptions=True
        )

    first, second = asyncio.run(overlap())
    assert ended == ["first", "second"]
    assert "in the reverse of the order" in str(first)
    assert second is None
    assert facts() == before


def test_a_generator_function_is_not_decorated():
    def generate():
        yield

    async def generate_later():
        yield

    for function in (generate, generate_later):
        with pytest.raises(
            TypeError,
            match=r"^emulated_cuda\(\) cannot decorate a generator function, "
            r".*write `with emulated_cuda\(\):` in .*generate",
        ):
            emulated_cuda()(function)


@pytest.mark.unscheduled
def test_other_threads():
    seen = []

    def look():
        stream = cuda.Stream(1)
        cuda.set_stream(stream)
        cuda.set_device(1)
        seen.append((cuda.device_count(), cuda.current_device()))

    for _ in range(3):
        with emulated_cuda(2):
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
    assert seen == [(2, 1)] * 3


@pytest.mark.unscheduled
def test_races_are_found_inside():
    def run():
        first, second = cuda.Stream(), cuda.Stream()
        block = pystreams.empty(64, device="cuda")
        block.fill_(1, first)
        with pytest.raises(races.RaceError):
            block.fill_(2, second)

    with races.detect(), emulated_cuda():
        run()
    with emulated_cuda(), races.detect():
        run()
    with emulated_cuda():
        cuda.Stream().synchronize()


@pytest.mark.unscheduled
def test_schedules_are_explored_inside(no_gpu_is_used):
    def program():
        stream = cuda.Stream()
        block = pystreams.empty(8, device="cuda", stream=stream)
        block.fill_(1, stream)
        stream.synchronize()
        assert block.tobytes() == b"\1" * 8

    def enter():
        with emulated_cuda():
            pass

    with emulated_cuda():
        schedules.explore(program, runs=20)
        with pytest.raises(RuntimeError, match="a schedule is explored"):
            schedules.explore(enter, runs=1)


@pytest.mark.unscheduled
def test_with_no_cuda_before(run_python):
    done = run_python(
        """
import pystreams
from pystreams import accelerator, cuda
from pystreams.testing import emulated_cuda
assert not cuda.is_available()
assert str(accelerator.current_accelerator()) == "cpu"
for _ in range(3):
    with emulated_cuda(2):
        assert cuda.is_available()
        assert pystreams.Stream().device.type == "cuda"
    assert not cuda.is_available()
    assert pystreams.Stream().device.type == "cpu"
    try:
        cuda.Stream()
    except RuntimeError as error:
        assert "No CUDA GPUs are available" in str(error)
""",
        env=EMPTY | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.unscheduled
def test_variables(run_python):
    """The variable that hides devices does not hide emulated ones, and the one
    that names the accelerator is heeded."""
    done = run_python(
        """
from pystreams import accelerator, cuda
from pystreams.testing import emulated_cuda
with emulated_cuda(3):
    assert cuda.device_count() == 3
    assert str(accelerator.current_accelerator()) == "cpu"
""",
        env={"CUDA_VISIBLE_DEVICES": "0", "PYSTREAMS_ACCELERATOR": "cpu"},
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.unscheduled
def test_a_fork_inside(run_python):
    done = run_python(
        """
import os, pystreams
from pystreams import cuda
from pystreams.testing import emulated_cuda
with emulated_cuda(3):
    cuda.Stream().synchronize()
    child = os.fork()
    if child == 0:
        assert cuda.device_count() == 3
        block = pystreams.empty(8, device="cuda:2").fill_(1)
        assert block.tobytes() == b"\\1" * 8
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
""",
        env=EMPTY,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_suite_of_backends_is_not_needed(run_python):
    """pytest is not needed either."""
    done = run_python("""
import sys
sys.modules["pytest"] = None
from pystreams.testing import emulated_cuda, fail, hold
""")
    assert (done.returncode, done.stderr) == (0, "")


# ---- Busy streams and failures ----


def test_hold(backend, stream):
    block = backend.filled(1, stream=stream)
    with hold(stream) as held:
        block.fill_(2, stream)
        event = stream.record_event()
        assert not event.query()
        assert not held.released
        assert not stream.query()
    stream.synchronize()
    assert held.released
    assert block.tobytes() == b"\2" * 64


def test_a_hold_begins_with_its_block(stream):
    """A hold whose `with` is forgotten does not block the stream for ever, and
    cannot be released."""
    held = hold(stream)
    stream.synchronize()
    with pytest.raises(
        RuntimeError, match=r"write `with hold\(stream\) as held:`$"
    ):
        held.release()
    for _ in range(2):
        assert held.released
        with held:
            assert not held.released
            assert not stream.query()
        stream.synchronize()


def test_the_place_of_a_hold_is_the_programs(backend, stream):
    with timeline.record() as t, hold(stream) as held:
        line = inspect.currentframe().f_lineno - 1
        waits = pystreams.explain(stream)
    stream.synchronize()
    (row,) = (row for row in t.rows if row[0] == "callable")
    assert row[9:11] == (__file__, line)
    assert f"({Path(__file__).name}:{line})" in waits
    assert held.released


def test_hold_is_released(backend):
    stream = backend.stream()
    with hold(stream) as held:
        event = stream.record_event()
        held.release()
        held.release()
        event.synchronize()
        assert held.released


def test_holds_do_not_hold_up_each_other(backend):
    streams = [backend.stream() for _ in range(4)]
    with hold(streams[0]), hold(streams[1]):
        streams[2].synchronize()
        with hold(streams[3]):
            pass
        streams[3].synchronize()
        assert not streams[0].query()
        assert not streams[1].query()
    for stream in streams:
        stream.synchronize()


def test_hold_ends_with_an_exception(backend):
    stream = backend.stream()
    with pytest.raises(ZeroDivisionError), hold(stream):
        raise ZeroDivisionError
    stream.synchronize()


def test_hold_refuses():
    with pytest.raises(TypeError, match=r"hold\(\) expects"), hold("cuda:0"):
        pass


@pytest.mark.unscheduled
def test_hold_under_schedules(engine):
    """The test is quick: no schedule waits until the hold ends by itself."""

    def program():
        streams = [engine.stream() for _ in range(3)]
        block = engine.empty(64, stream=streams[1])
        with hold(streams[0]) as held, hold(streams[1]):
            block.fill_(1, stream=streams[1])
            event = streams[0].record_event()
            assert not event.query()
            with pytest.raises(TimeoutError):
                event.synchronize(timeout=LONG)
            future = streams[2].submit(event.synchronize)
            # In CPython 3.10, this is another class than TimeoutError.
            with pytest.raises(concurrent.futures.TimeoutError):
                future.result(timeout=LONG)
            held.release()
            event.synchronize()
            future.result()
            assert not streams[1].query()
        streams[1].synchronize()
        assert block.tobytes() == bytes([1]) * 64

    before = time.monotonic()
    for name in ("late", "early"):
        schedules.replay(program, name)
    for strategy in ("random", "pct"):
        schedules.explore(program, runs=20, strategy=strategy)
    assert time.monotonic() - before < LONG


@pytest.mark.unscheduled
def test_a_schedule_waits_for_a_release_by_a_thread(engine):
    with schedules.run("late"):
        stream = engine.stream()
        with hold(stream) as held:
            timer = threading.Timer(0.1, held.release)
            timer.start()
            stream.synchronize()
            assert held.released
        timer.join()


def test_fail(faulty):
    stream, other = faulty.stream(), faulty.stream()
    fail(stream)
    other.wait_stream(stream)
    for one in (stream, other):
        with pytest.raises(pystreams.AcceleratorError) as caught:
            one.synchronize()
        assert caught.value.error_code == 719
        assert "unspecified launch failure" in str(caught.value)


@pytest.mark.parametrize("status", [700, 2])
@pytest.mark.parametrize("kind", [int, Number], ids=["int", "index"])
def test_fail_with_a_status(faulty, status, kind):
    stream, again = faulty.stream(), faulty.stream()
    fail(stream, kind(status))
    with pytest.raises(pystreams.AcceleratorError) as caught:
        stream.synchronize()
    fail(again, caught.value)
    with pytest.raises(type(caught.value)) as repeated:
        again.synchronize()
    assert repeated.value.error_code == status


@pytest.mark.unscheduled
def test_fail_comes_in_its_turn(faulty):
    stream = faulty.stream()
    with hold(stream):
        before = stream.record_event()
        fail(stream)
        after = stream.record_event()
    before.synchronize()
    with pytest.raises(pystreams.AcceleratorError):
        after.synchronize()


def test_fail_refuses(faulty):
    stream = faulty.stream()
    status = "a status from 1 to 999, or an error with one, for error, but got"
    number = "an int or an AcceleratorError for error, but got"
    for error, kind, text in (
        (0, ValueError, f"{status} 0"),
        (1000, ValueError, f"{status} 1000"),
        (pystreams.AcceleratorError("none"), ValueError, f"{status} Acc"),
        ("719", TypeError, f"{number} str"),
        (719.0, TypeError, f"{number} float"),
        (None, TypeError, f"{number} NoneType"),
    ):
        with pytest.raises(kind, match=rf"^fail\(\) expects {text}"):
            fail(stream, error)
    stream.synchronize()


# ---- Under pytest ----

TESTS = """
import pytest
import pystreams
from pystreams import cuda

def test_fixture(emulated_cuda):
    assert cuda.device_count() == 2
    assert cuda.mem_get_info()[1] == 1 << 30

def test_others_in_their_place(emulated_cuda):
    emulated_cuda(devices=3, memory="4MiB")
    with emulated_cuda(5):
        assert cuda.device_count() == 5
    assert cuda.device_count() == 3
    assert cuda.mem_get_info()[1] == 4 << 20
    emulated_cuda(1).close()
    assert cuda.device_count() == 3
    outer, _ = emulated_cuda(4), emulated_cuda(6)
    with pytest.raises(RuntimeError, match="in the reverse of the order"):
        outer.close()
    with pytest.raises(ValueError, match="expects an int from 1 to 16"):
        emulated_cuda(devices=17)

@pytest.mark.emulated_cuda
def test_marker_alone():
    assert cuda.device_count() == 2

@pytest.mark.emulated_cuda(devices=5, memory="2MiB")
def test_marker(emulated_cuda):
    assert cuda.device_count() == 5
    assert cuda.mem_get_info()[1] == 2 << 20

@pytest.fixture
def stream():
    return cuda.Stream(3)

@pytest.mark.emulated_cuda(4)
def test_other_fixtures_are_made_within(stream, hold):
    gate = hold(stream)
    assert not stream.query()
    gate.release()
    stream.synchronize()
    with hold(stream) as held:
        assert "(test_them.py:" in pystreams.explain(stream)
        assert not stream.query()
    assert held.released
    hold(stream)

def test_failing_work(emulated_cuda, fail):
    stream = cuda.Stream()
    fail(stream, error=700)
    with pytest.raises(pystreams.AcceleratorError):
        stream.synchronize()

@pytest.mark.emulated_cuda
class TestAll:
    def test_one(self):
        assert cuda.is_emulated()

    @pytest.mark.races
    def test_races(self):
        block = pystreams.empty(8, device="cuda")
        block.fill_(1)

    @pytest.mark.schedules(runs=5)
    def test_held_under_schedules(self, hold):
        block = pystreams.empty(8, device="cuda")
        stream = cuda.Stream()
        hold(stream)
        block.fill_(1, stream=stream)
        assert not stream.query()

    @pytest.mark.schedules(runs=5)
    def test_schedules(self):
        block = pystreams.empty(8, device="cuda")
        block.fill_(1)
        assert block.tobytes() == bytes([1]) * 8

def test_left():
    assert not cuda.is_available()
"""


@pytest.mark.unscheduled
def test_fixtures_and_markers(run_python, tmp_path):
    (tmp_path / "test_them.py").write_text(TESTS)
    done = run_python(
        ["-m", "pytest", "-q", "--strict-markers"],
        env=EMPTY | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)},
    )
    assert "11 passed" in done.stdout, done.stdout + done.stderr


WRONG = {
    "races('warn')": "too many positional arguments",
    "races(action='warn')": "got an unexpected keyword argument 'action'",
    "schedules(run=5)": "got an unexpected keyword argument 'run'",
    "schedules(1, 2, 'late', 2, True, 0)": "too many positional arguments",
    "emulated_cuda(device=2)": "got an unexpected keyword argument 'device'",
}


@pytest.mark.unscheduled
def test_wrong_markers(run_python, tmp_path):
    lines = ["import pytest, pystreams"]
    for number, marker in enumerate(WRONG):
        lines += [f"@pytest.mark.{marker}", f"def test_{number}():", " pass"]
    lines += ["@pytest.mark.schedules(1)", "def test_runs():", " print('ran')"]
    (tmp_path / "test_them.py").write_text("\n".join(lines))
    done = run_python(
        ["-m", "pytest", "-rA"], env=EMPTY | {"PYTHONPATH": str(ROOT)}
    )
    for marker, text in WRONG.items():
        name = marker.partition("(")[0]
        assert f"\npytest.mark.{name}: {text}\n" in done.stdout
    assert "During handling" not in done.stdout
    assert done.stdout.count("\nran\n") == 1
    assert "4 failed, 1 passed, 1 error" in done.stdout


@pytest.mark.unscheduled
def test_a_plugin_without_a_device(run_python):
    done = run_python(
        ["-m", "pytest", "--pystreams-plugin", "fake_device"],
        env=EMPTY | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 4
    assert "--pystreams-plugin needs --pystreams-device" in done.stderr


@pytest.mark.unscheduled
def test_nothing_is_left_over():
    """Nothing is left of all the emulations before."""
    gc.collect()
    with emulated_cuda():
        pass
