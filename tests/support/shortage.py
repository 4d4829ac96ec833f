"""Have each allocation in each public call fail, first alone and then with all
allocations after it, and print what is wrong afterwards, one line per fault:

    python tests/support/shortage.py KIND cpu|cuda [CASE...]

A call that is short of something ends with MemoryError, or with OSError if it
is short of descriptors, or works all the same.  Afterwards, everything must be
usable, what was begun must end, and nothing may be kept.  KIND is what fails:
`python`, the interpreter's allocator; `native`, the module's own calls, for
which shortage.c is loaded before all else; `threads` and `delivery`, the
interpreter's allocator on the package's threads, and during delivery to an
event loop.
"""

import _testcapi
import asyncio
import ctypes
import faulthandler
import functools
import gc
import logging
import os
import re
import sys
import sysconfig
import threading
import time
import types
import uuid  # noqa: F401

from calls import LIMIT, World, cases, libc
from short_calls import Native

import pystreams

# Import what calls import at their first use.  Importing may compile it, and
# CPython's compiler must not be swept.
import pystreams._asyncio
import pystreams._explain
import pystreams._interchange
from pystreams import _C

SHORT = (MemoryError, OSError)
# The errors that CPython reports if it has no memory for the frame of a caller
# to which an exception propagates.  It then loses the exception
# (take_ownership in frame.c).  CPython 3.10 raises no exception if it has no
# memory for the cache that a function gets at its 1024th call
# (_PyCode_InitOpcache).  The text is empty if there is no memory for it
# (_PyErr_FormatV).
LOST = (
    re.compile("^$|_PyEval_EvalFrameDefault returned NULL without")
    if sys.version_info < (3, 11)
    else re.compile(
        "error return without exception|<function .* returned NULL"
    )
    if sys.version_info < (3, 14)
    or sysconfig.get_config_var("Py_GIL_DISABLED")
    else None
)
# More allocations than any call makes.
MOST = 2000
# The number of allocations that fail in the sweeps in which an allocation and
# those after it fail.  It must not be larger.  CPython 3.11 ends the process
# after 32 failures while it makes a MemoryError, and with no memory at all, it
# tries forever to enter a block that handles an exception.
MANY = 25
SWEEPS = 10
BATCH = 100
BATCHES = 30
# More blocks than the module allocates for an object of the package.
OF_AN_OBJECT = 16


class Lost(Exception):
    """The world cannot be used any more."""


class Python:
    """The interpreter's allocator."""

    # If shortage.c is loaded, this returns how much the module holds.
    held = staticmethod(lambda: 0)

    def attempt(self, call, skip, count):
        """Have `count` allocations fail after `skip` successful ones.  Return
        whether the first of them has failed, and how the call ended."""
        error, failed = None, True
        try:
            _testcapi.set_nomemory(skip, skip + count)
            try:
                call()
                failed = self.is_over()
            finally:
                _testcapi.remove_mem_hooks()
        except BaseException as caught:
            error = caught
        return failed, error

    def is_over(self, some=tuple(range(50)), make=object):
        """Return whether the allocation that should fail has failed before
        this call."""
        try:
            for _ in some:
                make()
        except MemoryError:
            return False
        return True


class Threads(Python):
    """The interpreter's allocator, from the moment that a scene on one of the
    package's threads chooses.  The scene returns the Futures that must end
    then."""

    ENDED = ("FINISHED", "CANCELLED_AND_NOTIFIED")

    def attempt(self, call, skip, count):
        looks = False

        def start():
            # The main thread has no memory either, so let it enter its loop.
            while not looks:
                time.sleep(0.0005)
            _testcapi.set_nomemory(skip, skip + count)

        futures = call(start)
        end = time.monotonic() + LIMIT
        over, left = False, futures
        # Take no lock, because this may fail here, too.
        while left:
            try:
                looks = True
                left = [f for f in left if f._state not in self.ENDED]
                time.sleep(0.0005)
                if time.monotonic() > end:
                    break
            except MemoryError:
                over = True
        try:
            over = self.is_over() or over
        finally:
            _testcapi.remove_mem_hooks()
        if left:
            return True, Lost(f"{left} never end")
        return over, next(filter(None, (f._exception for f in futures)), None)


def arm(start, result):
    start()
    return result


def arm_and_raise(start, error):
    start()
    raise error


def settle(world):
    return lambda start: [world.other.submit(arm, start, 5)]


def settle_exception(world):
    error = OSError("the callable's own")
    return lambda start: [world.other.submit(arm_and_raise, start, error)]


def settle_with_a_callback(world):
    def call(start):
        world.hold()
        world.other.wait_stream(world.stream)
        future = world.other.submit(arm, start, 5)
        future.add_done_callback(id)
        libc.sem_post(world.holds[-1])
        return [future]

    return call


def start_the_next(world):
    def call(start):
        world.hold()
        world.other.wait_stream(world.stream)
        futures = [
            world.other.submit(arm, start, 5),
            world.other.submit(int),
            world.other.submit(int),
        ]
        futures[1].add_done_callback(id)
        libc.sem_post(world.holds[-1])
        return futures

    return call


SCENES = {
    "settle": settle,
    "settle an exception": settle_exception,
    "settle with a callback": settle_with_a_callback,
    "start the next": start_the_next,
}


class Loop(asyncio.SelectorEventLoop):
    """An event loop in which allocations fail during the first delivery."""

    def __init__(self, shortage, skip, count):
        super().__init__()
        self.plan = shortage, skip, count
        self.failed = None

    def add_reader(self, file, callback, *arguments):
        def deliver():
            if self.failed is not None:
                callback(*arguments)
                return
            shortage, skip, count = self.plan
            self.failed, error = shortage.attempt(
                functools.partial(callback, *arguments), skip, count
            )
            if error is not None:
                raise error

        super().add_reader(file, deliver)


class Delivery(Python):
    """The interpreter's allocator, during the delivery to an event loop."""

    def attempt(self, call, skip, count):
        loop = Loop(super(), skip, count)
        asyncio._set_running_loop(loop)
        try:
            futures = call()
        finally:
            asyncio._set_running_loop(None)
        try:
            end, left = time.monotonic() + LIMIT, futures
            # Do not use asyncio.wait().  There may have been no memory for a
            # finished future to notify the tasks that wait for it.
            while left and time.monotonic() < end:
                loop.run_until_complete(asyncio.sleep(0.001))
                left = [f for f in futures if not f.done()]
        finally:
            loop.close()
        if left:
            return True, Lost(f"{left} never end")
        errors = (f.exception() for f in futures)
        return loop.failed, next(filter(None, errors), None)


def deliver(world):
    """Await several streams at once."""

    def call():
        streams = [pystreams.Stream(world.device) for _ in range(8)]
        world.hold()
        for stream in streams:
            stream.wait_stream(world.stream)
        # Keep the iterators, because dropping one would drop its future.
        world.kept.extend(stream.__await__() for stream in streams)
        futures = [next(waiting) for waiting in world.kept]
        libc.sem_post(world.holds[-1])
        for stream in streams:
            stream.synchronize()
        return futures

    return call


DELIVERIES = {"deliver": deliver}


def is_short(error):
    """Return whether a call failed because of a shortage, or did not fail.  An
    exception that was raised while a MemoryError was handled also counts."""
    if error is None or isinstance(error, SHORT):
        return True
    if isinstance(error, SystemError):
        # Before 3.14, f_back leaves an exception behind if it has no memory,
        # and the next call in C fails because of that.
        left = sys.version_info < (3, 14) and error.__cause__ is not None
        if left and "a result with an exception set" in str(error):
            return is_short(error.__cause__)
        return LOST is not None and LOST.search(str(error)) is not None
    # CPython's own errors, and the error for a peer whose memory cannot be
    # accessed.
    if re.search("can't (allocate lock|start new)|out of reach", str(error)):
        return True
    return error.__context__ is not None and is_short(error.__context__)


class Sweep:
    def __init__(self, shortage, name):
        self.shortage = shortage
        self.world = World(name)
        self.faults = []
        self.unraisable = []
        sys.unraisablehook = self.unraisable.append

    def fault(self, case, text):
        # Print one line for texts that differ only by addresses.
        text = re.sub(r"0x[0-9a-f]+", "0x...", text)
        line = f"{self.world.name}, {case}: {text}"
        if line not in self.faults:
            self.faults.append(line)
            print(line, flush=True)

    def sweep(self, case, prepare, count, most=MOST):
        """Have each allocation in the call fail, together with those after it.
        Return the number of allocations."""
        for skip in range(most):
            call = prepare(self.world)
            failed, error = self.shortage.attempt(call, skip, count)
            where = f"allocation {skip}{' and more' if count > 1 else ''}"
            if isinstance(self.shortage, Native):
                where += f", {self.shortage.failed_call()}"
            if not is_short(error):
                self.fault(case, f"{where}: {error!r}")
            if isinstance(error, Lost):
                raise error
            del call, error
            self.check(case, where)
            if not failed:
                return skip
        if most == MOST:
            self.fault(case, f"more than {MOST} allocations")
        return most

    def check(self, case, where):
        """Check that everything is as it was before, and note what is not."""
        lost = self.world.settle()
        try:
            assert self.world.stream.submit(int, "7").result(LIMIT) == 7
        except BaseException as error:
            lost.append(f"then submit: {error!r}")
        for text in lost:
            self.fault(case, f"{where}: {text}")
        if lost:
            raise Lost
        if _C.current_stream(self.world.type).native_handle != 0:
            self.fault(case, f"{where}: another stream is current")
            _C.set_stream(_C.default_stream(self.world.type))
        for one in (self.world.stream, self.world.other):
            if one.is_capturing():
                self.fault(case, f"{where}: {one} is capturing")
                raise Lost
        for ignored in self.unraisable:
            if not issubclass(ignored.exc_type, SHORT):
                self.fault(
                    case,
                    f"{where}: ignored: {ignored.exc_type.__name__}: "
                    f"{ignored.exc_value} in {ignored.object!r}",
                )
        self.unraisable.clear()

    def held(self):
        """Return the number of descriptors, and of the module's allocations.
        The latter are not counted if the interpreter keeps objects of the
        package, or frames that may refer to them, because the interpreter
        itself loses references to frames when it is short of memory.  The
        package's references are counted in test_references.py."""
        # The package's threads drop a Future when they get the GIL again.
        time.sleep(0.005)
        gc.collect()
        kept = sum(
            type(one).__module__.startswith("pystreams")
            or isinstance(one, types.FrameType)
            for one in gc.get_objects()
        )
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "native": self.shortage.held() - kept * OF_AN_OBJECT,
        }

    def run(self, case, prepare):
        """Sweep until nothing grows any more.  Return whether the world can
        still be used."""
        try:
            count = self.sweep(case, prepare, 1)
            self.sweep(case, prepare, MANY, count)
            before, growing = None, {"descriptors", "native"}
            for _ in range(SWEEPS):
                self.sweep(case, prepare, 1)
                held = self.held()
                if before is not None:
                    growing = {k for k in growing if held[k] > before[k]}
                before = held
                if not growing:
                    return True
            for kind in sorted(growing):
                self.look_for_leak(case, prepare, count, kind)
        except Lost:
            return False
        return True

    def look_for_leak(self, case, prepare, count, kind):
        """Find the allocation whose failure causes a leak each time.  The
        interpreter's lists of free objects grow, too, but ever more slowly."""
        for skip in range(count):
            grown, before = BATCH, self.held()[kind]
            for _ in range(BATCHES):
                if grown < BATCH // 2:
                    break
                for _ in range(BATCH):
                    self.shortage.attempt(prepare(self.world), skip, 1)
                    self.check(case, f"allocation {skip}")
                now = self.held()[kind]
                grown, before = now - before, now
            else:
                self.fault(case, f"allocation {skip}: {kind} leak")


def start_again(names, chosen):
    """Run this program again, with the cases that have these names instead of
    the chosen ones.  In the new process, nothing is stuck."""
    if names:
        program = [sys.executable, *sys.orig_argv[1:]]
        os.execv(sys.executable, [*program[: len(program) - chosen], *names])


def outlive_lost_references():
    """Keep the code of each function alive, because CPython 3.12 and 3.13 lose
    a reference to it whenever they have no memory for a generator
    (gh-122752)."""
    left = [
        one.__code__
        for one in gc.get_objects()
        if isinstance(one, types.FunctionType)
    ]
    while left:
        code = left.pop()
        count = ctypes.c_ssize_t.from_address(id(code))
        count.value += MOST * SWEEPS * BATCH
        left += [c for c in code.co_consts if isinstance(c, types.CodeType)]


def main(kind, name, *chosen):
    gc.disable()
    if (3, 12) <= sys.version_info < (3, 14):
        outlive_lost_references()
    # Hide what concurrent.futures logs about a callback that failed.
    logging.disable()
    threading.excepthook = lambda arguments: None
    preloaded = os.environ.get("SHORTAGE")
    shortage, table = {
        "python": (Python, cases(name)),
        "native": (lambda: Native(preloaded), cases(name)),
        "threads": (Threads, SCENES),
        "delivery": (Delivery, DELIVERIES),
    }[kind]
    sweep = Sweep(shortage(), name)
    if preloaded:
        sweep.shortage.held = Native(preloaded).held
    sweep.world.stream.submit(int).result(LIMIT)
    names = [case for case in table if not chosen or case in chosen]
    if kind == "python" and sysconfig.get_config_var("Py_GIL_DISABLED"):
        # CPython crashes without the GIL if str.split() or a list display has
        # no memory for the items of its list.  The list is then dropped
        # although its items are not initialized (PyList_New in listobject.c).
        # Names of schedules are split, and a race is reported with lists of
        # what it found.
        crashes = ("schedules.run", "races.detect")
        names = [n for n in names if not any(c in n for c in crashes)]
    for number, case in enumerate(names):
        print(case, end=" ", file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(LIMIT * 8, exit=True)
        started = time.monotonic()
        usable = sweep.run(case, table[case])
        took = time.monotonic() - started
        print(f"({took:.2f} s)", file=sys.stderr, flush=True)
        if not usable:
            start_again(names[number + 1 :], len(chosen))
    faulthandler.cancel_dump_traceback_later()
    sweep.world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
