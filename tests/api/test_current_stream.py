"""The current device and streams: per thread, nested, restored exactly."""

import gc
import threading

import pytest

import pystreams
from pystreams import _C


class Stop(Exception):
    pass


def on_a_thread(function):
    """What the function returns, run on a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_starts_at_the_default_stream(backend):
    assert backend.current_device() == 0
    for index in range(backend.count):
        assert backend.current_stream(index) == backend.default_stream(index)
        assert backend.current_stream(index).native_handle == 0
        assert backend.default_stream(index).device == backend.device(index)


def test_a_thread_starts_at_the_default_stream(two_devices):
    start = two_devices.currents()
    with two_devices.stream(0), two_devices.stream(1):
        assert on_a_thread(two_devices.currents) == start
        assert two_devices.currents() != start
    assert start == (0, [0] * two_devices.count)


def test_a_thread_changes_only_its_own(two_devices):
    def change():
        _C.set_stream(two_devices.stream(1))
        return two_devices.currents()

    before = two_devices.currents()
    assert on_a_thread(change)[0] == 1
    assert two_devices.currents() == before


def test_with(backend):
    stream = backend.stream()
    before = backend.currents()
    with stream as entered:
        assert entered is stream
        assert backend.current_stream() == stream
        assert backend.default_stream() != stream
    assert backend.currents() == before


def test_with_returns_none_from_exit(backend):
    stream = backend.stream()
    assert stream.__enter__() is stream
    assert not stream.__exit__(None, None, None)
    assert backend.current_stream() == backend.default_stream()


def test_with_on_another_device(two_devices):
    stream = two_devices.stream(1)
    with stream:
        assert two_devices.current_device() == 1
        assert two_devices.current_stream() == stream
        assert two_devices.current_stream(1) == stream
        assert two_devices.current_stream(0) == two_devices.default_stream(0)
    assert two_devices.current_device() == 0
    assert two_devices.current_stream(1) == two_devices.default_stream(1)


def test_nested_three_deep_across_devices(two_devices):
    a, b, c = (two_devices.stream(i) for i in (1, 0, 1))
    seen = [two_devices.currents()]
    with a:
        seen.append(two_devices.currents())
        with b:
            seen.append(two_devices.currents())
            with c:
                seen.append(two_devices.currents())
                assert two_devices.current_device() == 1
                assert two_devices.current_stream(0) == b
                assert two_devices.current_stream(1) == c
            assert two_devices.currents() == seen[2]
            assert two_devices.current_device() == 0
        assert two_devices.currents() == seen[1]
    assert two_devices.currents() == seen[0]
    assert len({str(s) for s in seen}) == 4


def test_restores_what_was_set_before(two_devices):
    """Not the default: exactly what was there, on both devices."""
    base, other = two_devices.stream(0), two_devices.stream(1)
    _C.set_stream(other)
    _C.set_stream(base)
    before = two_devices.currents()
    with two_devices.stream(1), two_devices.stream(0):
        pass
    assert two_devices.currents() == before
    assert two_devices.current_stream(0) == base
    assert two_devices.current_stream(1) == other


def test_restores_over_changes_made_inside(two_devices):
    before = two_devices.currents()
    with two_devices.stream(1):
        _C.set_stream(two_devices.stream(1))
        _C.set_device(two_devices.type, 0)
    assert two_devices.currents() == before


def test_restores_the_device_it_left(two_devices):
    """What is set on that device inside the block ends with the block."""
    base = two_devices.stream(0)
    _C.set_stream(base)
    before = two_devices.currents()
    with two_devices.stream(1):
        _C.set_stream(two_devices.stream(0))
    assert two_devices.currents() == before
    assert two_devices.current_stream(0) == base


def test_leaves_the_device_it_does_not_own_alone(two_devices):
    """A with block restores its own device's stream, and no other's."""
    kept = two_devices.stream(1)
    with two_devices.stream(0):
        _C.set_stream(kept)
    assert two_devices.current_device() == 0
    assert two_devices.current_stream(0) == two_devices.default_stream(0)
    assert two_devices.current_stream(1) == kept


def test_entered_again(two_devices):
    first, second = two_devices.stream(0), two_devices.stream(1)
    before = two_devices.currents()
    with first:
        with first:
            with second:
                with first:
                    assert two_devices.current_stream() == first
                assert two_devices.current_stream() == second
                assert two_devices.current_device() == 1
            assert two_devices.current_stream() == first
        assert two_devices.current_stream() == first
    assert two_devices.currents() == before


def test_entered_deeply(backend):
    streams = [backend.stream() for _ in range(3)]
    before = backend.currents()

    def enter(depth):
        stream = streams[depth % 3]
        with stream:
            if depth:
                enter(depth - 1)
            assert backend.current_stream() == stream

    enter(200)
    assert backend.currents() == before


def test_entered_by_two_threads_at_once(two_devices):
    """Thread 1 leaves first; each finds its own again."""
    shared = two_devices.stream(1)
    mine, theirs = two_devices.stream(0), two_devices.stream(0)
    entered, left = threading.Event(), threading.Event()
    result = []

    def other():
        _C.set_stream(theirs)
        with shared:
            entered.set()
            assert left.wait(30)
            result.append(two_devices.current_stream() == shared)
        result.append(two_devices.current_stream(0) == theirs)
        result.append(two_devices.current_device() == 0)
        result.append(two_devices.currents()[1][1] == 0)

    thread = threading.Thread(target=other)
    with mine:
        with shared:
            thread.start()
            assert entered.wait(30)
        left.set()
        thread.join()
        assert two_devices.current_stream() == mine
    assert result == [True] * 4


def test_exception_passes_through(two_devices):
    before = two_devices.currents()
    with (
        pytest.raises(Stop, match="through") as caught,
        two_devices.stream(1),
        two_devices.stream(0),
    ):
        raise Stop("through")
    assert caught.value.__context__ is None
    assert two_devices.currents() == before


def test_generator_left_halfway(two_devices):
    before = two_devices.currents()

    def inside():
        with two_devices.stream(1):
            yield two_devices.currents()

    generator = inside()
    assert next(generator) != before
    generator.close()
    assert two_devices.currents() == before


def test_set_stream(two_devices):
    stream = two_devices.stream(1)
    assert _C.set_stream(stream) is None
    assert two_devices.current_device() == 1
    assert two_devices.current_stream() == stream
    assert two_devices.current_stream(0) == two_devices.default_stream(0)
    _C.set_stream(two_devices.default_stream(0))
    assert two_devices.current_device() == 0
    assert two_devices.current_stream(1) == stream


def test_exit_without_enter(backend):
    stream = backend.stream()
    before = backend.currents()
    with pytest.raises(RuntimeError):
        stream.__exit__(None, None, None)
    assert backend.currents() == before


def test_exit_out_of_order(backend):
    """Whatever it does, the thread is usable and ends where it began."""
    first, second = backend.stream(), backend.stream()
    before = backend.currents()
    first.__enter__()
    second.__enter__()
    try:
        first.__exit__(None, None, None)
    except RuntimeError:
        second.__exit__(None, None, None)
        first.__exit__(None, None, None)
    else:
        second.__exit__(None, None, None)
    _C.set_stream(backend.default_stream())
    assert backend.currents() == before
    with backend.stream() as stream:
        assert backend.current_stream() == stream


def test_current_is_kept_alive(backend):
    """A thread's current stream lives on when its Python object is gone."""
    stream = backend.stream()
    handle = stream.native_handle
    _C.set_stream(stream)
    del stream
    gc.collect()
    others = [backend.stream() for _ in range(50)]
    assert handle not in {s.native_handle for s in others}
    current = backend.current_stream()
    assert current.native_handle == handle
    event = current.record_event()
    current.synchronize()
    assert event.query()


def test_with_keeps_an_unnamed_stream_alive(backend):
    before = backend.currents()
    with backend.stream():
        gc.collect()
        others = [backend.stream() for _ in range(50)]
        current = backend.current_stream()
        assert current not in others
        backend.sleep(current, 0.01)
        current.synchronize()
    assert backend.currents() == before


def test_wrapper_of_current_outlives_the_switch(backend):
    _C.set_stream(backend.stream())
    current = backend.current_stream()
    _C.set_stream(backend.default_stream())
    gc.collect()
    assert current.native_handle not in {
        backend.stream().native_handle for _ in range(50)
    }
    assert current.query()


def test_closed_while_current(backend):
    """Its thread keeps the native stream, which stays current and is not given
    out again; only the Python object is closed."""
    before = backend.currents()
    stream = backend.stream()
    handle = stream.native_handle
    with stream:
        stream.close()
        assert backend.current_stream().native_handle == handle
        backend.event().record()
        others = [backend.stream() for _ in range(50)]
        assert handle not in {s.native_handle for s in others}
    assert backend.currents() == before


def test_thread_ends_with_a_stream_set(backend):
    """The stream is released with the thread; other threads keep theirs."""

    def work():
        _C.set_stream(backend.stream())
        backend.event().record()
        return True

    for _ in range(20):
        assert on_a_thread(work)
    assert backend.current_stream() == backend.default_stream()


OWNER_AT_THE_END = """
import threading
from pystreams import cuda

class Owner:
    def __init__(self):
        self.stream = cuda.Stream()

    def __cuda_stream__(self):
        return 0, self.stream.cuda_stream

    def __del__(self):
        seen.append(cuda.current_stream().cuda_stream)

def work():
    for _ in range(3):
        cuda.ExternalStream(Owner()).__enter__()

seen = []
for _ in range(10):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(seen == [0] * 30)
"""


def test_owner_that_asks_while_its_thread_ends(cuda, run_python):
    """The thread's current streams are dropped one by one, and an owner that
    asks meanwhile sees none that is dropped."""
    done = run_python(OWNER_AT_THE_END)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "True\n"


def test_two_types_are_apart(cuda):
    """A stream of one device type is not current for another."""
    host = pystreams.Stream("cpu")
    with cuda.stream() as stream, host:
        assert cuda.current_stream() == stream
        assert _C.current_stream(0) == host
    assert _C.current_stream(0).native_handle == 0
    assert cuda.current_stream().native_handle == 0


def test_device_contexts_of_each_type(two_devices):
    kind = two_devices.type
    with _C.DeviceContext(kind, 1):
        assert two_devices.current_device() == 1
        with _C.DeviceContext(kind, -1):
            assert two_devices.current_device() == 1
        assert two_devices.current_device() == 1
    assert two_devices.current_device() == 0


def test_failed_switch_changes_nothing(backend):
    before = backend.currents()
    for use in (
        lambda: _C.set_device(backend.type, backend.count),
        _C.DeviceContext(backend.type, backend.count).__enter__,
        lambda: _C.current_stream(backend.type, backend.count),
        lambda: backend.stream(backend.count),
    ):
        with pytest.raises(RuntimeError):
            use()
    assert backend.currents() == before


def test_closed_by_the_collector_while_it_is_entered(engine):
    """A thread's first current stream allocates, which may run the garbage
    collector, which closes the stream."""
    entered = []

    def work(allocations):
        stream = engine.stream()
        handle = stream.native_handle

        class Garbage:
            def __del__(self):
                stream.close()

        spare = [{} for _ in range(200)]
        garbage = Garbage()
        garbage.itself = garbage
        del garbage
        gc.enable()
        gc.set_threshold(gc.get_count()[0] + allocations)
        try:
            with stream:
                gc.disable()
                current = engine.current_stream()
                entered.append(current.native_handle == handle)
        except ValueError as error:
            entered.append("closed" in str(error))
        finally:
            gc.disable()
            gc.set_threshold(*thresholds)
        del spare

    thresholds = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        for allocations in range(10):
            thread = threading.Thread(target=work, args=(allocations,))
            thread.start()
            thread.join()
    finally:
        gc.enable()
    assert entered == [True] * 10


def test_current_stream_of_a_class(backend):
    current = _C.current_stream(backend.type, None)
    assert type(current) is _C.Stream
    assert _C.current_stream(backend.type) == current
    assert _C.default_stream(backend.type, 0) == current
