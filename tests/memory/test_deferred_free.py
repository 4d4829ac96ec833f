"""Memory that is freed while work uses it: which call frees it in the end,
when that happens, and which calls wait for it if memory is short."""

import threading
from contextlib import nullcontext

import pytest
from deadlines import LONG
from places import SUPPORT
from producers import DELETER, Loan

import pystreams
from pystreams import _C


def give_up(buffer, stream):
    """Close the buffer, as if the stream's present work used it."""
    buffer.record_stream(stream)
    buffer.close()


def test_a_callable_short_of_memory_does_not_wait_for_itself(backend, stream):
    def allocate():
        give_up(backend.empty(64, stream=backend.default_stream()), stream)
        with pytest.raises(pystreams.OutOfMemoryError):
            backend.empty(2**60)
        return "refused"

    assert stream.submit(allocate).result(20) == "refused"


@pytest.mark.unscheduled
@pytest.mark.parametrize("nbytes", [64 << 20, 300 << 20])
@pytest.mark.parametrize("short", [False, True])
def test_a_callable_frees_no_pinned_memory(pinning, stream, nbytes, short):
    """CUDA frees pinned memory only after all work, and so only after the
    callable.  This would be a deadlock.  Each block is so large that freeing
    it would return its pages, with the bytes in them, to the system."""
    idle = pinning.empty(nbytes, pin_memory=True)
    memoryview(idle)[:1] = b"p"
    address = idle.data_ptr()

    def give_up():
        idle.close()
        if short:
            pinning.empty(2**60)

    given_up = stream.submit(give_up)
    with pytest.raises(pystreams.OutOfMemoryError) if short else nullcontext():
        given_up.result(20)
    again = pinning.empty(nbytes, pin_memory=True)
    assert again.data_ptr() == address
    assert again.memoryview()[0] == ord("p")
    del again
    _C.empty_host_cache(pinning.type)


@pytest.mark.unscheduled
def test_dropped_pinned_memory_waits_for_no_work(pinning, stream):
    """CUDA frees pinned memory only after all work, so a thread that drops
    some, and then lets this work go on, would wait for ever."""
    blocks = [pinning.empty(160 << 20, pin_memory=True) for _ in range(2)]
    with pinning.hold(stream):
        dropping = threading.Thread(target=blocks.clear)
        dropping.start()
        dropping.join(LONG)
        assert not dropping.is_alive()
    _C.empty_host_cache(pinning.type)


def reserved(backend):
    """Return the bytes of pinned memory in use or kept for reuse."""
    return _C.host_memory_stats(backend.type)["reserved_bytes.current"]


def test_growing_pinned_memory_leaves_little(pinning):
    """Each request is larger than the block that the one before has left."""
    _C.empty_host_cache(pinning.type)
    before = reserved(pinning)
    for nbytes in range(4096, 1 << 21, 4096):
        pinning.empty(nbytes, pin_memory=True).close()
    assert reserved(pinning) - before <= 7 << 21
    _C.empty_host_cache(pinning.type)
    assert reserved(pinning) <= before


@pytest.mark.unscheduled
def test_short_of_device_memory_frees_no_pinned_memory(cuda):
    """It would not help, and on a GPU it would wait for all work."""
    cuda.empty(1 << 20, pin_memory=True).close()
    before = reserved(cuda)
    with cuda.hold(cuda.stream()), pytest.raises(pystreams.OutOfMemoryError):
        cuda.empty(2**60)
    assert reserved(cuda) == before > 0


def test_a_finalizer_behind_a_callable_may_ask_for_memory(backend, stream):
    """The request does not wait for a callable that only this thread could
    run."""
    go, refused = threading.Event(), threading.Event()

    class Argument:
        def __del__(self):
            try:
                backend.empty(2**60)
            except pystreams.OutOfMemoryError:
                refused.set()

    stream.submit(lambda _: go.wait(20), Argument())
    behind = stream.submit(str, 5)
    give_up(backend.empty(64), stream)
    go.set()
    assert behind.result(20) == "5"
    assert refused.wait(20)


@pytest.mark.parametrize("first", ["the one", "the other"])
def test_what_was_waited_for_is_given_back(first):
    """A wait gives back the memory of the work that it waited for, even while
    another thread is still busy giving back other memory."""
    reached, leave, freed = threading.Event(), threading.Event(), []

    @DELETER
    def delete_slowly(address):
        reached.set()
        assert leave.wait(20)

    @DELETER
    def delete(address):
        freed.append(address)

    slow, quick = pystreams.Stream("cpu"), pystreams.Stream("cpu")
    end_slow, end_quick = threading.Event(), threading.Event()
    slow.submit(end_slow.wait, 20)
    quick.submit(end_quick.wait, 20)
    loans = [
        (Loan(deleter=delete_slowly), slow),
        (Loan(deleter=delete), quick),
    ]
    for loan, stream in loans if first == "the one" else loans[::-1]:
        give_up(pystreams.from_dlpack(loan.capsule()), stream)
    end_slow.set()
    thread = threading.Thread(target=slow.synchronize)
    thread.start()
    assert reached.wait(20)
    end_quick.set()
    quick.synchronize()
    leave.set()
    thread.join(20)
    assert len(freed) == 1


FORK = """
import faulthandler, os, sys, threading
sys.path.insert(0, sys.argv[1])
import pystreams
from producers import DELETER, Loan
faulthandler.dump_traceback_later(20, exit=True)
child = None
def retire(deleter):
    stream, done = pystreams.Stream("cpu"), threading.Event()
    stream.submit(done.wait)
    loan = Loan(deleter=deleter)
    buffer = pystreams.from_dlpack(loan.capsule())
    buffer.record_stream(stream)
    buffer.close()
    done.set()
    stream.synchronize()
    return loan
def short_of_memory():
    try:
        pystreams.empty(2**60, device="cpu")
    except pystreams.OutOfMemoryError:
        return "refused"
def in_child():
    freed = []
    kept = retire(DELETER(freed.append))
    print(short_of_memory(), len(freed), flush=True)
    os._exit(0)
@DELETER
def fork(address):
    global child
    child = os.fork()
    if child == 0 and sys.argv[2] == "stays":
        in_child()
kept = retire(fork)
if child == 0:
    in_child()
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize("child", ["stays", "comes back"])
def test_a_fork_while_memory_is_given_back(run_python, sanitized, child):
    """The child frees no memory of its parent, and continues."""
    if sanitized:
        pytest.skip(
            "a child of a fork starts threads: AddressSanitizer's allocator"
            " may stay locked there by a thread of the parent, and"
            " ThreadSanitizer takes them for the parent's"
        )
    done = run_python(FORK, str(SUPPORT), child)
    assert (done.stdout, done.stderr) == ("refused 1\n0\n", "")


FORK_BETWEEN_PINNED = """
import os
import pystreams
freed, child = [], None
class Memory(bytearray):
    def __del__(self):
        global child
        freed.append(os.getpid())
        if child is None:
            child = os.fork()
pinned = [pystreams.pin(Memory(4096), device="cpu") for _ in range(3)]
# In a callable, which may not wait as unpinning does.
def close():
    while pinned:
        pinned.pop().close()
    return list(freed)
assert pystreams.Stream("cpu").submit(close).result(20) == []
pystreams.Stream("cpu").synchronize()
if child == 0:
    print(freed.count(os.getpid()), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1], len(freed))
"""


def test_a_fork_while_pinned_memory_is_given_back(run_python):
    """Only the parent unpins the rest."""
    # An accelerator would pin the memory itself, and also free it.
    done = run_python(
        FORK_BETWEEN_PINNED, env={"PYSTREAMS_ACCELERATOR": "cpu"}
    )
    assert (done.stdout, done.stderr) == ("0\n0 3\n", "")


ABOUT_TO_FREE = """
import resource, sys, threading
sys.path.insert(0, sys.argv[1])
import pystreams
from producers import DELETER, Loan
SIZE = 1 << 30
reached, leave, done = (threading.Event() for _ in range(3))
@DELETER
def delete(address):
    reached.set()
    assert leave.wait(20)
def give_up(buffer):
    buffer.record_stream(stream)
    buffer.close()
def allocate():
    made.append(pystreams.empty(SIZE, device="cpu"))
made, loan = [], Loan(bytes(16), deleter=delete)
stream = pystreams.Stream("cpu")
stream.submit(done.wait)
with open("/proc/self/statm") as file:
    mapped = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + SIZE * 3 // 2,) * 2)
# Those that are kept are looked at the other way round the next time: the
# memory is never the first.
give_up(pystreams.from_dlpack(loan.capsule()))
give_up(pystreams.from_dlpack(loan.capsule()))
give_up(pystreams.empty(SIZE, device="cpu"))
give_up(pystreams.from_dlpack(loan.capsule()))
give_up(pystreams.from_dlpack(loan.capsule()))
done.set()
threads = [threading.Thread(target=stream.synchronize),
           threading.Thread(target=allocate)]
threads[0].start()
assert reached.wait(20)
threads[1].start()
threads[1].join(0.3)
print(threads[1].is_alive(), len(made))
leave.set()
for thread in threads:
    thread.join(20)
print(made[0].nbytes == SIZE)
"""


def test_memory_that_another_thread_is_about_to_free_is_waited_for(
    run_python, sanitized
):
    if sanitized:
        pytest.skip("a sanitizer keeps freed memory")
    done = run_python(ABOUT_TO_FREE, str(SUPPORT))
    assert (done.stdout, done.stderr) == ("True 0\nTrue\n", "")
