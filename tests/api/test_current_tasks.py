"""The current stream of an asyncio task: other tasks and the thread do not see
what it sets, and it does not see what they set."""

import asyncio
import contextlib
import contextvars
import gc
import threading
import weakref

import pytest

import pystreams
from pystreams import _C

TURNS = 5


def handle(backend, index=None):
    return backend.current_stream(index).native_handle


async def turns():
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def together(*coroutines):
    """Run the coroutines as tasks, and return their results."""
    if not hasattr(asyncio, "TaskGroup"):
        return await asyncio.gather(*coroutines)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine) for coroutine in coroutines]
    return [task.result() for task in tasks]


def on_a_thread(function, *args):
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()
    thread.join()
    return results[0]


@pytest.fixture(params=["unknown", "known"])
def run(request, backend):
    """Return run(function, ...), which runs a coroutine function on a thread
    that has, or has not, made a stream current before."""

    def run(function, *args):
        def work():
            if request.param == "known":
                with backend.stream():
                    pass
            before = backend.currents()
            result = asyncio.run(function(*args))
            assert backend.currents() == before
            return result

        return on_a_thread(work)

    return run


def test_with_across_an_await(backend, run):
    async def task(stream):
        for _ in range(TURNS):
            with stream:
                await turns()
                assert backend.current_stream() == stream
            await turns()
            assert handle(backend) == 0

    async def main():
        await together(*(task(backend.stream()) for _ in range(TURNS)))
        assert handle(backend) == 0

    run(main)


def test_set_stream(backend, run):
    async def task(stream):
        _C.set_stream(stream)
        await turns()
        assert backend.current_stream() == stream

    async def main():
        await together(*(task(backend.stream()) for _ in range(TURNS)))
        assert handle(backend) == 0

    run(main)


def test_on_two_devices(two_devices, run):
    """The streams are the task's, the device is the thread's."""
    backend = two_devices

    async def task(index):
        stream = backend.stream(index)
        with stream:
            await turns()
            assert backend.current_stream(index) == stream
            assert handle(backend, 1 - index) == 0

    async def main():
        await together(task(0), task(1))
        assert [handle(backend, i) for i in range(2)] == [0, 0]
        _C.set_device(backend.type, 0)

    run(main)


def test_starts_with_its_creator_s(backend, run):
    """A new task has the streams that were current for its creator when it was
    made."""

    async def task(stream):
        assert backend.current_stream() == stream
        await turns()
        assert backend.current_stream() == stream
        with backend.stream():
            await turns()
        assert backend.current_stream() == stream

    async def main():
        first, second = backend.stream(), backend.stream()
        with first:
            tasks = [asyncio.create_task(task(first))]
            with second:
                tasks.append(asyncio.create_task(task(second)))
                await turns()
            with backend.stream():
                await asyncio.gather(*tasks)
            assert backend.current_stream() == first

    run(main)


def test_made_outside_of_a_task(backend):
    """A task that is made outside of a task starts with the thread's current
    streams."""

    async def main():
        assert backend.current_stream() == stream
        with backend.stream() as inner:
            await turns()
            assert backend.current_stream() == inner
        assert backend.current_stream() == stream

    stream = backend.stream()
    with stream:
        asyncio.run(main())
        assert backend.current_stream() == stream
    assert handle(backend) == 0


def test_nested(backend, run):
    async def task():
        streams = [backend.stream() for _ in range(3)]
        for outer in streams:
            with outer:
                for inner in streams:
                    with inner:
                        await turns()
                        assert backend.current_stream() == inner
                    await turns()
                    assert backend.current_stream() == outer
        assert handle(backend) == 0

    async def main():
        await together(task(), task(), task())

    run(main)


def test_exception(backend, run):
    async def task(stream):
        with pytest.raises(ZeroDivisionError), stream:
            await turns()
            raise ZeroDivisionError
        await turns()
        assert handle(backend) == 0

    async def main():
        await together(*(task(backend.stream()) for _ in range(3)))

    run(main)


def test_cancelled(backend, run):
    seen = []

    async def task(stream):
        try:
            with stream:
                await asyncio.sleep(30)
        finally:
            seen.append(handle(backend))

    async def main():
        stream = backend.stream()
        cancelled = asyncio.create_task(task(backend.stream()))
        with stream:
            await turns()
            cancelled.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cancelled
            assert backend.current_stream() == stream

    run(main)
    assert seen == [0]


def test_left_by_another_task(backend, run):
    """A task that has not entered the stream cannot leave it, and nothing
    changes."""

    async def leave(stream):
        with pytest.raises(RuntimeError, match="not entered by this thread"):
            stream.__exit__(None, None, None)
        assert handle(backend) == 0

    async def main():
        stream = backend.stream()
        other = asyncio.create_task(leave(stream))
        with stream:
            await other
            assert backend.current_stream() == stream
        assert handle(backend) == 0

    run(main)


def test_tasks_that_start_at_once(backend, run):
    if not hasattr(asyncio, "eager_task_factory"):
        pytest.skip("needs Python 3.12")

    async def task(stream):
        with stream:
            await turns()
            assert backend.current_stream() == stream
        assert handle(backend) == 0

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)
        await together(*(task(backend.stream()) for _ in range(3)))
        assert handle(backend) == 0

    run(main)


def test_generators(backend, run):
    """A generator uses the current streams of the task that runs it."""

    def plain(stream):
        with stream:
            yield
            yield

    async def asynchronous(stream):
        with stream:
            await turns()
            yield
            await turns()
            yield

    async def task():
        first, second = backend.stream(), backend.stream()
        generator = plain(first)
        next(generator)
        await turns()
        assert backend.current_stream() == first
        generator.close()
        assert handle(backend) == 0
        async for _ in asynchronous(second):
            await turns()
            assert backend.current_stream() == second
        assert handle(backend) == 0

    async def main():
        await together(task(), task())

    run(main)


def test_callback(backend, run):
    """A callback of the loop starts with the current streams of the code that
    scheduled it."""

    async def main():
        stream, called = backend.stream(), asyncio.Event()

        def callback():
            seen.append(backend.current_stream() == stream)
            _C.set_stream(backend.stream())
            called.set()

        with stream:
            asyncio.get_running_loop().call_soon(callback)
        await called.wait()
        assert handle(backend) == 0

    seen = []
    run(main)
    assert seen == [True]


def test_copied_context(backend, run):
    """If the program runs a copied context itself, the change is not seen
    outside, but it stays in the context for its next run."""

    async def main():
        def change():
            found = handle(backend)
            _C.set_stream(second)
            return found

        first, second = backend.stream(), backend.stream()
        with first:
            context = contextvars.copy_context()
            assert context.run(change) == first.native_handle
            assert backend.current_stream() == first
            assert context.run(change) == second.native_handle
        assert contextvars.Context().run(change) == 0
        assert handle(backend) == 0

    run(main)


def test_another_thread_in_a_task_s_context(backend, run):
    """A thread in a task's context starts with the default streams, as every
    thread does, and changes no streams of the task."""

    def work():
        found = handle(backend)
        _C.set_stream(backend.stream())
        with backend.stream() as stream:
            assert backend.current_stream() == stream
        return found

    async def main():
        with backend.stream() as stream:
            assert await asyncio.to_thread(work) == 0
            assert await asyncio.to_thread(work) == 0
            context = contextvars.copy_context()
            assert on_a_thread(context.run, work) == 0
            assert backend.current_stream() == stream

    run(main)


def test_callable_in_a_task_s_context(backend, run):
    """Callables run on the package's threads, and none sees what another one
    has set."""

    def work():
        found = handle(backend)
        _C.set_stream(backend.stream())
        return found

    async def main():
        with backend.stream() as stream:
            futures = [stream.submit(work) for _ in range(TURNS)]
            found = [await asyncio.wrap_future(future) for future in futures]
            assert backend.current_stream() == stream
            return found

    assert run(main) == [0] * TURNS


def test_threads_with_loops(backend):
    barrier = threading.Barrier(4)

    async def task(stream):
        with stream:
            await turns()
            assert backend.current_stream() == stream
        assert handle(backend) == base.handle

    async def main():
        for _ in range(20):
            await together(*(task(backend.stream()) for _ in range(3)))

    def work():
        with backend.stream() as stream:
            base.handle = stream.native_handle
            barrier.wait()
            asyncio.run(main())
            assert backend.current_stream() == stream
        return True

    base = threading.local()
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(work()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_a_task_keeps_no_stream_when_it_is_gone(cuda, run):
    class Owner:
        def __init__(self):
            self.stream = cuda.stream()

        def __cuda_stream__(self):
            return 0, self.stream.native_handle

    async def task():
        owner = Owner()
        stream = pystreams.ExternalStream(owner, device=cuda.device())
        owners.append(weakref.ref(owner))
        _C.set_stream(stream)
        with stream:
            await turns()

    async def main():
        await together(task(), task())
        # The TaskGroup or gather() refers to the tasks for one turn more.
        await turns()
        gc.collect()
        assert [owner() for owner in owners] == [None, None]

    owners = []
    run(main)


def test_a_value_of_a_stranger_s(backend, run):
    """Code that iterates over a context finds our variable, and may set it to
    anything: that is ignored."""

    async def main():
        with backend.stream():
            pass
        [variable] = (
            variable
            for variable in contextvars.copy_context()
            if variable.name == "pystreams.current"
        )
        for value in (None, 7):
            variable.set(value)
            assert handle(backend) == 0
            with backend.stream() as stream:
                assert backend.current_stream() == stream
            assert handle(backend) == 0

    run(main)


def test_left_without_memory(backend, run):
    """The stream from before becomes current again, even if there is no memory
    for a copy of the task's streams."""
    testcapi = pytest.importorskip("_testcapi", reason="needs _testcapi")

    async def main():
        stream = backend.stream()
        leave = stream.__exit__
        for _ in range(2):
            with backend.stream() as outer:
                stream.__enter__()
                testcapi.set_nomemory(0)
                try:
                    leave(None, None, None)
                finally:
                    testcapi.remove_mem_hooks()
                assert backend.current_stream() == outer
            assert handle(backend) == 0

    run(main)


FORK = """
import asyncio, os, signal, sys
import pystreams
from pystreams import _C

def handle():
    return _C.current_stream(kind).native_handle

async def main():
    with pystreams.Stream(name):
        await asyncio.sleep(0)
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            seen = [handle() == 0]
            with pystreams.Stream(name) as stream:
                seen.append(handle() == stream.native_handle)
            seen.append(handle() == 0)
            os._exit(not all(seen))
        return os.waitpid(pid, 0)[1]

kind, name = int(sys.argv[1]), sys.argv[2]
print(asyncio.run(main()))
"""


def test_fork_in_a_task(engine, run_python):
    """The child has none of its parent's current streams."""
    done = run_python(FORK, str(engine.type), engine.name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


MANY_TASKS = """
import asyncio, resource, sys
import pystreams
from pystreams import _C

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

async def task():
    with first:
        await asyncio.sleep(0)
        _C.set_stream(second)
        asyncio.create_task(child())

async def child():
    with second:
        pass

async def main():
    for _ in range(2_000):
        await asyncio.gather(*(task() for _ in range(10)))
        await asyncio.sleep(0)

first, second = (pystreams.Stream(sys.argv[1]) for _ in range(2))
asyncio.run(main())
before = rss()
asyncio.run(main())
print(rss() - before)
"""


def test_many_tasks(engine, run_python, sanitized):
    if sanitized:
        pytest.skip("a sanitizer keeps what was freed")
    done = run_python(MANY_TASKS, engine.name)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) < 2 << 20
