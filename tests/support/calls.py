"""A call to each public name, for tests that try all of them.

CASES and CUDA_CASES map the names that a case covers to the case.  A case is a
function that takes a World, prepares a call that succeeds, and returns the
call as a function without arguments.  test_shortage.py demands a case for each
name of _C.pyi and of the modules' __all__, or a reason in OTHERS.
"""

import ast
import asyncio
import concurrent.futures
import contextlib
import ctypes
import os
import subprocess
import sys
from pathlib import Path

from producers import DELETER, SET_ERROR, TENSOR, Tensor, drop, table_of

import pystreams
from pystreams import (
    _C,
    _expressions,
    accelerator,
    cuda,
    races,
    schedules,
    timeline,
    trace,
)
from pystreams.cuda._graphs import Graph

MODULES = {
    "pystreams": pystreams,
    "accelerator": accelerator,
    "cuda": cuda,
    "races": races,
    "schedules": schedules,
    "timeline": timeline,
    "trace": trace,
}
# Seconds to wait for work that should end at once.
LIMIT = 5


libc = ctypes.CDLL(None)


def address_of(name):
    return ctypes.cast(getattr(libc, name), ctypes.c_void_p).value


PEER = """
import sys, pystreams
event = pystreams.Event(
    pystreams.device(sys.argv[1], 0), interprocess=True, enable_timing=False
)
buffer = pystreams.empty(64, device=sys.argv[1], interprocess=True)
print(event.ipc_handle().hex(), buffer.ipc_handle().hex(), flush=True)
sys.stdin.read()
"""


class World:
    """The objects that the calls use, on one device type.  `stream` is held
    back between hold() and settle(); the other streams are idle."""

    def __init__(self, name):
        self.name = name
        self.type = dict(_C.backends())[name]
        self.device = pystreams.device(name, 0)
        self.stream = pystreams.Stream(self.device)
        self.other = pystreams.Stream(self.device)
        self.event = pystreams.Event(name)
        self.event.record(self.stream)
        self.timed = [pystreams.Event(name) for _ in range(2)]
        for event in self.timed:
            event.record(self.stream)
        self.buffer = pystreams.empty(256, device=self.device)
        self.host = pystreams.empty(256, device="cpu")
        self.buffer.zero_()
        self.host.zero_()
        self.waiter = _C.Waiter()
        self.loop = asyncio.new_event_loop()
        self.holds = []
        self.begun = []
        self.kept = []
        self.later = contextlib.ExitStack()
        self.peer = None
        self.green = None
        self.settle()

    def hold(self):
        """Hold `stream` back with work that runs no Python."""
        semaphore = (ctypes.c_long * 4)()
        assert libc.sem_init(semaphore, 0, 0) == 0
        self.holds.append(semaphore)
        _C.launch_host_function(
            self.stream, address_of("sem_wait"), ctypes.addressof(semaphore)
        )

    def sleep(self, milliseconds=2):
        """Keep the stream busy for a moment."""
        _C.sleep(self.type, milliseconds * 1_000_000, self.stream)

    def settle(self):
        """End all work that a call has begun; return a line for each object
        that does not end in time."""
        asyncio._set_running_loop(None)
        for semaphore in self.holds:
            libc.sem_post(semaphore)
        lost = []
        for stream in (self.stream, self.other):
            try:
                stream.synchronize(timeout=LIMIT)
            except TimeoutError:
                lost.append(f"{stream} is never idle")
        # Free the semaphores only now, when no sem_wait uses them any longer.
        self.holds.clear()
        begun, self.begun = self.begun, []
        self.later.callback(self.kept.clear)
        futures = [f for f in begun if asyncio.isfuture(f)]
        if futures:
            self.loop.run_until_complete(asyncio.wait(futures, timeout=LIMIT))
        for future in begun:
            if future not in futures:
                with contextlib.suppress(TimeoutError):
                    future.exception(LIMIT)
            if not future.done():
                lost.append(f"{future} never ends")
        self.later.close()
        self.waiter.take()
        return lost

    def close(self):
        self.settle()
        self.loop.close()
        if self.peer is not None:
            self.peer.communicate()

    def begin(self, future):
        self.begun.append(future)

    def peer_handles(self):
        """Return the handles of an event and a Buffer of another process."""
        if self.peer is None:
            self.peer = subprocess.Popen(
                [sys.executable, "-c", PEER, self.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            line = self.peer.stdout.readline()
            self.handles = [bytes.fromhex(word) for word in line.split()]
        return self.handles


def enter(context):
    with context:
        pass


def closing(make):
    """Return a case of close().  Each call closes a new object."""

    def case(world):
        return make(world).close

    return case


def awaiting(obj):
    """Return a case of __await__ for work that is not done."""

    def case(world):
        world.hold()
        one = getattr(world, obj)
        if one is world.event:
            one.record(world.stream)

        # Run the call as if a task of the loop made it.
        asyncio._set_running_loop(world.loop)

        def call():
            # Keep the iterator, because dropping it would drop the future.
            world.kept.append(one.__await__())
            for future in world.kept[-1]:
                world.begin(future)
                break

        return call

    return case


def holding(make):
    """Return a case whose stream is held back while the call is made."""

    def case(world):
        world.hold()
        return make(world)

    return case


def serialized(world):
    """Use a blocking stream and the default stream, each of which waits for
    the other."""
    stream = _C.Stream(world.device, blocking=True)
    default = _C.default_stream(world.type, 0)
    _C.sleep(world.type, 2_000_000, stream)
    return lambda: [s.record_event() for s in (default, stream, default)]


def submit(world):
    world.hold()
    return lambda: world.begin(world.stream.submit(divmod, 7, 2))


def future_callbacks(world):
    world.hold()
    future = world.stream.submit(int)
    return lambda: (future.add_done_callback(id), world.begin(future))


def future_cancel(world):
    world.hold()
    future = world.stream.submit(int)
    future.add_done_callback(set().discard)
    return lambda: (future.cancel(), future.cancelled())


def future_result(world):
    future, failed = world.other.submit(int), world.other.submit(int, "no")
    return lambda: (future.result(LIMIT), failed.exception(LIMIT))


def future_state(world):
    future = world.other.submit(int)
    return lambda: (future.running(), future.done(), future._unretrieved)


def submit_keywords(world):
    return lambda: world.begin(world.stream.submit(int, "7", base=8))


def wait_some(world):
    world.hold()
    future = world.other.submit(int)
    objects = [world.stream, world.other, world.event, future]

    def call():
        pystreams.wait(objects, return_when="FIRST_COMPLETED")

    return call


def wait_in_vain(world):
    world.hold()
    world.event.record(world.stream)
    objects = [world.stream, world.event, world.stream.submit(int)]
    return lambda: pystreams.wait(objects, timeout=0.001)


def as_completed(world):
    objects = [world.stream, world.event, world.other.submit(int)]
    return lambda: list(pystreams.as_completed(objects))


def register(world):
    world.hold()
    world.event.record(world.stream)
    token = iter(range(10**6))

    def call():
        for obj in (world.stream, world.event, world.device):
            world.waiter.register(obj, next(token))

    return call


def take(world):
    for token in range(5):
        world.waiter.post(token)
    return world.waiter.take


def wait_waiter(world):
    for token in range(5):
        world.waiter.post(token)
    return lambda: world.waiter.wait(1)


def captured(world, make=None):
    """Return a graph in which a buffer is filled."""
    graph = make() if make is not None else Graph(world.type)
    with world.other:
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            world.buffer.fill_(3)
        finally:
            graph.capture_end()
    return graph


def capture(world):
    def call():
        graph = Graph(world.type)
        with world.other:
            graph.capture_begin(capture_error_mode="relaxed")
            try:
                world.buffer.fill_(3)
                world.event.record(world.other)
            finally:
                graph.capture_end()

    return call


def capture_to_the_side(world):
    def call():
        graph = Graph(world.type)
        with world.other:
            graph.capture_begin(capture_error_mode="relaxed")
            try:
                world.event.record(world.other)
                with pystreams.Stream(world.device) as side:
                    world.event.wait(side)
                    world.buffer.fill_(3)
                    world.event.record(side)
                world.event.wait(world.other)
            finally:
                graph.capture_end()

    return call


def submit_captured(world):
    """Capture a callable, replay the graph and describe it."""

    def call():
        graph = Graph(world.type, True)
        with world.other:
            graph.capture_begin(capture_error_mode="relaxed")
            try:
                world.other.submit(divmod, 7, 2)
            finally:
                graph.capture_end()
            graph.replay()
            world.other.synchronize()

    return call


def graph_nodes(world):
    graph = Graph(world.type, True)
    with world.other:
        graph.capture_begin(capture_error_mode="relaxed")
        world.buffer.fill_(3)
        world.other.submit(int)
        graph.capture_end()
    return graph.get_graph_data


def graph_as_text(world):
    graph = captured(world, lambda: Graph(world.type, True))
    return lambda: cuda.export_dot(os.devnull)(graph)


class ContextGraph(Graph):
    """A graph that is a context, as accelerator.Graph is."""

    def _begin_capture(self):
        self.capture_begin(capture_error_mode="relaxed")

    __enter__ = _C.Graph._enter
    __exit__ = _C.Graph._exit


def graph_as_context(world):
    def call():
        with world.other, ContextGraph(world.type):
            world.buffer.fill_(3)

    return call


def instantiate(world):
    graph = Graph(world.type, True)
    with world.other:
        graph.capture_begin(capture_error_mode="relaxed")
        world.buffer.fill_(3)
        graph.capture_end()
    return graph.instantiate


def update(world):
    graphs = [captured(world, lambda: Graph(world.type, True)) for _ in "ab"]
    other = captured_two(world)

    def call():
        graphs[0].update(graphs[1])
        try:
            graphs[0].update(other)
        except pystreams.AcceleratorError as error:
            assert error.error_code == 910

    return call


def captured_two(world):
    graph = Graph(world.type, True)
    with world.other:
        graph.capture_begin(capture_error_mode="relaxed")
        world.buffer.fill_(3)
        world.buffer.fill_(4)
        graph.capture_end()
    return graph


def add_child(world):
    child = captured(world, lambda: Graph(world.type, True))

    def call():
        graph = Graph(world.type)
        with world.other:
            graph.capture_begin(capture_error_mode="relaxed")
            try:
                graph.add_child(child)
            finally:
                graph.capture_end()

    return call


def of_graph(use):
    def case(world):
        graph = captured(world, lambda: Graph(world.type, True))

        def call():
            use(graph)

        return call

    return case


def replay(world):
    graph = captured(world)

    def call():
        with world.other:
            graph.replay()

    return call


def ipc_handle(world):
    event = pystreams.Event(
        world.device, interprocess=True, enable_timing=False
    )
    return event.ipc_handle


def ipc_open(world):
    handle = world.peer_handles()[0]

    def call():
        opened = _C.Event.from_ipc_handle(world.device, handle)
        opened.wait(world.other)
        opened.record(world.other)

    return call


def shared_buffer(world):
    def call():
        buffer = pystreams.empty(64, device=world.device, interprocess=True)
        assert buffer.interprocess
        buffer.ipc_handle()
        buffer.__reduce__()

    return call


def open_buffer(world):
    handle = world.peer_handles()[1]

    def call():
        opened = pystreams.Buffer.from_ipc_handle(world.device, handle)
        opened.fill_(1, stream=world.other)

    return call


def to_dlpack(world):
    return lambda: (
        world.host.__dlpack__(max_version=(1, 0)),
        world.host.__dlpack__(),
    )


def exchange(world):
    """Call each function in the exchange table.  Make objects from the tensors
    that the functions return."""
    table = table_of(pystreams.Buffer)
    device = world.buffer.__dlpack_device__()
    described, tensor, handle, made = (
        Tensor(),
        TENSOR(),
        ctypes.c_void_p(),
        ctypes.c_void_p(),
    )
    extent = ctypes.c_int64(64)
    prototype = Tensor(None, *device, 1, 1, 8, 1, ctypes.pointer(extent))
    # allocate() reports an error by calling this function, which ignores it.
    # Here, the only possible error is a lack of memory.
    ignore = SET_ERROR(address_of("getpid"))

    def insist(function, argument):
        try:
            function(argument)
        except ctypes.ArgumentError:
            insist(function, argument)

    def take():
        try:
            table.managed_to_object(tensor, ctypes.byref(made))
        except BaseException:
            insist(DELETER(tensor.contents.deleter), tensor)
            raise
        insist(drop, made)

    def there_and_back():
        table.current_work_stream(*device, ctypes.byref(handle))
        table.tensor_from_object(world.buffer, ctypes.byref(described))
        table.managed_from_object(world.buffer, ctypes.byref(tensor))
        take()
        if table.allocate(prototype, tensor, None, ignore) != 0:
            raise MemoryError
        take()

    def call():
        try:
            there_and_back()
        except ctypes.ArgumentError as error:
            # ctypes raises this if it has no memory for an argument.
            raise MemoryError from error

    return call


class Interface:
    def __init__(self, buffer):
        self.buffer = buffer

    @property
    def __cuda_array_interface__(self):
        return self.buffer.__cuda_array_interface__


def emulate():
    # Do not use a with block, because its end may not run if memory is short.
    _C.emulation_leave(_C.emulation_enter(1, 1 << 20))


def copy(world):
    data, target = bytes(256), bytearray(256)

    def call():
        world.buffer.copy_(data, stream=world.stream)
        world.buffer.copy_(world.host, non_blocking=True, stream=world.stream)
        world.buffer.copy_to(target, stream=world.stream)

    return call


def copy_later(world):
    """Queue a copy behind work that takes a while.  If there is no memory to
    note which buffers the copy uses, the copy may wait for that work
    instead."""
    world.sleep()
    target = pystreams.empty(256, device=world.device)

    def call():
        target.copy_(world.buffer, non_blocking=True, stream=world.stream)

    return call


def captured_copies(world):
    """Capture copies from and to pageable memory, which the graph keeps."""
    data = bytearray(world.buffer.nbytes)

    def call():
        graph = Graph(world.type)
        with world.other:
            graph.capture_begin(capture_error_mode="relaxed")
            try:
                world.buffer.copy_(data, non_blocking=True)
                world.buffer.copy_to(data, non_blocking=True)
            finally:
                graph.capture_end()

    return call


def buffer_views(world):
    host = world.host

    def call():
        with host.memoryview() as view:
            bytes(view[:3])
        bytes(host)
        with memoryview(host):
            pass
        len(host)
        host[3:9].tobytes()

    return call


def record_stream(world):
    """Release memory while another stream uses it."""
    world.sleep()

    def call():
        block = pystreams.empty(64, device=world.device)
        block.record_stream(world.stream)
        block.close()

    return call


def raw_stream(world):
    made = [(1, 0)]
    world.later.callback(
        lambda: made[0][0] or _C.raw_stream_destroy(world.type, made[0][1])
    )

    def call():
        made[0] = _C.raw_stream_create(world.type)
        if made[0][0] == 2:
            raise MemoryError

    return call


def raw_stream_destroy(world):
    _, handle = _C.raw_stream_create(world.type)
    world.later.callback(_C.raw_stream_destroy, world.type, handle)

    def call():
        assert _C.raw_stream_destroy(world.type, handle) == 0

    return call


def host_function(world):
    world.hold()
    getpid = address_of("getpid")
    return lambda: _C.launch_host_function(world.stream, getpid)


def fail(world):
    stream = pystreams.Stream(world.device)

    def call():
        _C.fail(stream, 700)
        try:
            stream.synchronize()
        except pystreams.AcceleratorError as error:
            assert error.error_code == 700

    def end():
        with contextlib.suppress(pystreams.AcceleratorError):
            stream.synchronize()
        # CPython 3.12 may lose the call's frame, which would keep the stream
        # alive.  The stream's failure would then become the device's failure,
        # so close the stream.
        stream.close()

    world.later.callback(end)
    return call


def recorded(world):
    """Record a timeline with every kind of row, and read the rows."""

    def call():
        with timeline.record() as t, timeline.span("host"):
            with timeline.span("stream", world.stream):
                world.buffer.fill_(1, stream=world.stream)
                world.other.wait_stream(world.stream)
            _C.sleep(world.type, 1000, world.stream)
            world.stream.submit(int).result()
            world.other.synchronize()
            _C.timeline_await_end(_C.timeline_await_begin(world.other))
            pystreams.empty(256, device=world.device)
        return t.rows, t.clock_error

    def stop():
        """If memory is short, the with block's end may not have run."""
        timeline._blocks = 0
        timeline._log = None
        _C.timeline_stop()

    world.later.callback(stop)
    return call


def races_found(world):
    """Make two accesses that race, and declare them."""

    def call():
        with races.redundant(found.append) as waits:
            races.declare(world.stream, writes=[(4096, 8)])
            races.declare(world.other, reads=[(4096, 8)])
            list(pystreams.as_completed([world.other]))
            world.stream.synchronize()
            world.stream.synchronize()
        for wait in waits:
            str(wait)

    def stop():
        """If memory is short, the with block's end may not have run."""
        races._users.clear()
        _expressions._OBJECTS = most
        races._counting = 0
        _C.races_count_waits(False)
        _C.races_stop()

    found = []
    # Limit the search for names, because it allocates for each object.
    most, _expressions._OBJECTS = _expressions._OBJECTS, 10
    world.later.callback(stop)
    return call


def scheduled(world):
    """Run a schedule, with the log that a report needs."""

    def call():
        with schedules.run("late:1"):
            world.stream.record_event()
            _C.schedule_poll()
            _C.schedule_is_on()
            _C.schedule_hold()
            _C.schedule_released()

    def work():
        with contextlib.suppress(AttributeError):
            world.stream.record_event()
            world.stream.synchronize()

    def explored():
        call()
        schedules.explore(work, runs=2)
        schedules.explore(work, runs=2, strategy="all", races=True)
        schedules.replay(work, "pct:2:1")
        _C.schedule_forked()

    def stop():
        """If memory is short, the with block's end may not have run."""
        if _C.schedule_is_on():
            _C.schedule_end(True)

    world.later.callback(stop)
    return explored


def partition(world):
    """Make a partition.  The call keeps its objects out of local variables,
    because CPython may lose the call's frame, which would then keep them alive
    forever."""
    kept = [None] * 2
    world.later.callback(kept.clear)

    def call():
        kept[0] = pystreams.Partition(1, world.device)
        kept[1] = kept[0].Stream(name="part")
        world.event.record(kept[1])
        return kept[0].count, kept[0].device

    return call


def green_context(world):
    # Use one context for all calls, because CPython may lose a call's frame,
    # which would then keep the context alive forever.
    if world.green is None:
        world.green = cuda.GreenContext(1)
    context = world.green

    def call():
        cuda.GreenContext(num_sms=1)
        context.set_context()
        context.pop_context()

    def pop():
        """If memory is short, the call may not have popped the context."""
        with contextlib.suppress(RuntimeError):
            context.pop_context()

    world.later.callback(pop)
    return call


def set_trace(world):
    seen, subscribed = [], [None]
    world.later.callback(lambda: subscribed[0] and subscribed[0].close())

    def call():
        subscribed[0] = trace.subscribe(seen.append, ["event_record"])
        world.event.record(world.stream)
        subscribed[0].close()

    return call


def current_device(world):
    def call():
        enter(_C.DeviceContext(world.type, 0))
        _C.set_device(world.type, 0)
        return _C.current_device(world.type), _C.DeviceContext(
            world.type, 0
        ).idx

    return call


def set_stream(world):
    default = _C.default_stream(world.type)

    def call():
        try:
            _C.set_stream(world.stream)
        finally:
            _C.set_stream(default)

    return call


def record_many(world):
    """Make so many records that the engine must enlarge its memory for
    records."""
    world.hold()
    events = [pystreams.Event(world.device) for _ in range(200)]

    def call():
        for event in events:
            event.record(world.stream)
            world.other.wait_event(event)

    return call


def cuda_event(world):
    def call():
        event = cuda.Event()
        event.record(world.stream)
        return event.device, event.cuda_event, event._as_parameter_

    return call


def array_interface(world):
    source = pystreams.empty(64, device=world.device)
    interface = Interface(source)
    return lambda: world.buffer[:64].copy_(interface)


def cuda_graph(world):
    def call():
        context = cuda.graph(cuda.CUDAGraph(), capture_error_mode="relaxed")
        with context:
            assert cuda.is_current_stream_capturing()
            world.buffer.fill_(3)
        assert context.stream_ctx.stream is context.capture_stream
        assert context.capture_error_mode == "relaxed"
        assert context.pool is None
        context.cuda_graph.replay()

    return call


def explain(world):
    world.hold()
    world.begin(world.stream.submit(int))
    world.other.wait_stream(world.stream)
    event = world.other.record_event()
    return lambda: [
        pystreams.explain(x) for x in (None, world.other, event, world.event)
    ]


def explain_timeouts(world):
    world.hold()
    future = world.stream.submit(int)
    world.begin(future)
    event = world.stream.record_event()

    def call():
        for wait in (world.stream.synchronize, event.synchronize):
            with contextlib.suppress(TimeoutError):
                wait(0)
        with contextlib.suppress(concurrent.futures.TimeoutError):
            future.result(0)
        with contextlib.suppress(TimeoutError):
            list(pystreams.as_completed([future, event], 0))

    return call


CASES = {
    "Partition Partition.count Partition.device Partition.Stream": partition,
    "device device.type device.index": lambda w: (
        lambda: [
            (d.type, d.index)
            for d in (_C.device(w.name, 0), _C.device(w.name))
        ]
    ),
    "Stream": lambda w: lambda: _C.Stream(w.device, priority=0),
    "Stream.name": lambda w: lambda: _C.Stream(w.device, name="copy").name,
    "Stream.is_non_blocking": lambda w: (
        lambda: _C.Stream(w.device, blocking=True).is_non_blocking
    ),
    "Stream.stream_id Stream.device_index Stream.device_type": lambda w: (
        lambda: _C.Stream(
            stream_id=w.stream.stream_id,
            device_index=w.stream.device_index,
            device_type=w.stream.device_type,
        )
    ),
    "Stream.device Stream.native_handle Stream.priority": lambda w: (
        lambda: (
            w.stream.device,
            w.stream.native_handle,
            w.stream.priority,
        )
    ),
    "Stream._as_parameter_": lambda w: lambda: w.stream._as_parameter_,
    "Stream.priority_range": lambda w: (
        lambda: _C.Stream.priority_range(w.device)
    ),
    "Stream.query": lambda w: w.stream.query,
    "Stream.synchronize": lambda w: w.stream.synchronize,
    "Stream.synchronize (timeout)": lambda w: lambda: w.stream.synchronize(9),
    "FutureBase.add_done_callback": future_callbacks,
    "FutureBase.cancel FutureBase.cancelled": future_cancel,
    "FutureBase.result FutureBase.exception": future_result,
    "FutureBase.running FutureBase.done FutureBase._unretrieved": future_state,
    "Stream.submit": submit,
    "Stream.submit (keywords)": submit_keywords,
    "Stream.submit (captured)": submit_captured,
    "Stream.__await__": awaiting("stream"),
    "Stream.__await__ (done)": lambda w: lambda: list(w.stream.__await__()),
    "Stream.wait_event": holding(
        lambda w: lambda: w.other.wait_event(w.stream.record_event())
    ),
    "Stream.wait_stream": holding(
        lambda w: lambda: w.other.wait_stream(w.stream)
    ),
    "Stream.record_event": holding(lambda w: w.stream.record_event),
    "Stream.record_event (many)": record_many,
    "Stream.record_event (serialized)": serialized,
    "Stream.is_capturing": lambda w: w.stream.is_capturing,
    "Stream.close": closing(lambda w: _C.Stream(w.device)),
    "Stream.__enter__ Stream.__exit__": lambda w: lambda: enter(w.stream),
    "ExternalStream": lambda w: (
        lambda: _C.ExternalStream(w.stream.native_handle, w.device).query()
    ),
    "Event": lambda w: lambda: _C.Event(w.device, blocking=True),
    "Event.device Event.enable_timing Event.blocking Event.interprocess": (
        lambda w: (
            lambda: (
                w.event.device,
                w.event.enable_timing,
                w.event.blocking,
                w.event.interprocess,
            )
        )
    ),
    "Event.event_id": lambda w: lambda: w.event.event_id,
    "Event.record": holding(lambda w: lambda: w.event.record(w.stream)),
    "Event.record (first)": lambda w: (
        lambda: _C.Event(w.device).record(w.stream)
    ),
    "Event.wait": holding(
        lambda w: lambda: (w.event.record(w.stream), w.event.wait(w.other))
    ),
    "Event.query": lambda w: w.event.query,
    "Event.synchronize": lambda w: w.event.synchronize,
    "Event.__await__": awaiting("event"),
    "Event.elapsed_time": lambda w: (
        lambda: w.timed[0].elapsed_time(w.timed[1])
    ),
    "Event.ipc_handle": ipc_handle,
    "Event.from_ipc_handle": ipc_open,
    "Graph Graph._begin Graph.capture_end": capture,
    "Graph.capture_end (side stream)": capture_to_the_side,
    "Graph.instantiate": instantiate,
    "Graph.instantiate (options)": of_graph(
        lambda g: g.instantiate(
            auto_free_on_launch=False, use_node_priority=False
        )
    ),
    "Graph.update": update,
    "Graph.add_child": add_child,
    "Graph.replay": replay,
    "Graph.reset": of_graph(lambda g: g.reset()),
    "Graph.enable_debug_mode": of_graph(lambda g: g.enable_debug_mode()),
    "Graph.debug_dump": of_graph(lambda g: g.debug_dump(os.devnull)),
    "Graph.upload": of_graph(lambda g: g.upload()),
    "Graph._nodes": graph_nodes,
    "Graph._keep": of_graph(lambda g: g._keep([])),
    "Graph._wait": of_graph(lambda g: g._wait()),
    "Graph._executable": of_graph(lambda g: g._executable()),
    "Graph._enter Graph._exit": graph_as_context,
    "Graph._state": of_graph(
        lambda g: (
            g.instantiate(),
            g.pool(),
            g.raw_cuda_graph(),
            g.raw_cuda_graph_exec(),
        )
    ),
    "StreamContext StreamContext.stream StreamContext.__enter__ "
    "StreamContext.__exit__": lambda w: (
        lambda: enter(_C.StreamContext(_C.StreamContext(w.stream).stream))
    ),
    "DeviceContext DeviceContext.idx DeviceContext.prev_idx "
    "DeviceContext.__enter__ DeviceContext.__exit__ current_device "
    "set_device": current_device,
    "Waiter Waiter.fileno": lambda w: lambda: _C.Waiter().fileno(),
    "Waiter.register": register,
    "Waiter.post": lambda w: lambda: w.waiter.post(1),
    "Waiter.expect Waiter.cancel": lambda w: (
        lambda: (
            w.waiter.expect(10**9),
            w.waiter.cancel(10**9),
        )
    ),
    "Waiter.first": lambda w: w.waiter.first,
    "Waiter.take": take,
    "Waiter.wait": wait_waiter,
    "Waiter.check": lambda w: lambda: w.waiter.check(w.stream, 0),
    "Buffer empty": lambda w: (
        lambda: pystreams.empty(64, device=w.device, stream=w.stream)
    ),
    "Buffer (pinned)": lambda w: lambda: pystreams.empty(64, pin_memory=True),
    "Buffer.nbytes Buffer.device Buffer.data_ptr Buffer.is_pinned "
    "Buffer.readonly": lambda w: (
        lambda: (
            w.buffer.nbytes,
            w.buffer.device,
            w.buffer.data_ptr(),
            w.buffer.is_pinned(),
            w.buffer.readonly,
        )
    ),
    "Buffer.from_address Buffer.stream": lambda w: (
        lambda: (
            pystreams.Buffer.from_address(
                w.buffer.data_ptr(), 9, device=w.device, owner=w.buffer
            ),
            w.buffer.stream,
        )
    ),
    "emulation_enter emulation_leave": lambda w: emulate,
    "pin": lambda w: lambda: pystreams.pin(bytearray(64), device=w.device),
    "Buffer.copy_ Buffer.copy_to": copy,
    "Buffer.copy_ (later)": copy_later,
    "Buffer.copy_ Buffer.copy_to (captured)": captured_copies,
    "Buffer.fill_ Buffer.zero_": holding(
        lambda w: (
            lambda: (
                w.buffer.fill_(1, stream=w.stream),
                w.buffer.zero_(stream=w.stream),
            )
        )
    ),
    "Buffer.record_stream": record_stream,
    "Buffer.tobytes": lambda w: w.buffer.tobytes,
    "Buffer.__bytes__ "
    "Buffer.memoryview Buffer.__buffer__ Buffer.__len__ Buffer.__getitem__": (
        buffer_views
    ),
    "Buffer.__dlpack__": to_dlpack,
    "Buffer (by its table of functions)": exchange,
    "Buffer.__dlpack_device__": lambda w: w.buffer.__dlpack_device__,
    "Buffer.ipc_handle Buffer.__reduce__ Buffer.interprocess": shared_buffer,
    "Buffer.from_ipc_handle": open_buffer,
    "Buffer.close": closing(lambda w: pystreams.empty(9, device=w.device)),
    "from_dlpack": lambda w: lambda: pystreams.from_dlpack(w.buffer),
    "backend_members takes_limits backends default_type": lambda w: (
        lambda: (
            _C.backend_members(w.type),
            _C.takes_limits(w.type),
            _C.backends(),
            _C.default_type(),
        )
    ),
    "device_count unavailable_reason is_emulated is_initialized initialize "
    "device_index": lambda w: (
        lambda: (
            _C.device_count(w.type),
            _C.unavailable_reason(w.type),
            _C.is_emulated(w.type),
            _C.is_initialized(w.type),
            _C.initialize(w.type),
            _C.device_index(w.type, w.device),
        )
    ),
    "synchronize": lambda w: (
        lambda: (
            _C.synchronize(w.type),
            _C.synchronize(w.type, w.device, 9),
            _C.synchronize(w.type, None, None, True),
        )
    ),
    "current_stream default_stream as_stream": lambda w: (
        lambda: (
            _C.current_stream(w.type, w.device),
            _C.default_stream(w.type),
            _C.as_stream("stream", w.stream),
        )
    ),
    "set_stream": set_stream,
    "device_properties device_attributes": lambda w: (
        lambda: (_C.device_properties(w.type), _C.device_attributes(w.type))
    ),
    "can_device_access_peer set_peer_access mem_get_info memory_stats "
    "reset_accumulated_memory_stats reset_peak_memory_stats": lambda w: (
        lambda: (
            _C.can_device_access_peer(w.type, 0, 1),
            w.type == 0 or _C.set_peer_access(w.type, 0, 1, True),
            _C.reset_accumulated_memory_stats(w.type),
            _C.mem_get_info(w.type),
            _C.memory_stats(w.type),
            _C.reset_peak_memory_stats(w.type),
        )
    ),
    "empty_cache empty_host_cache host_memory_stats "
    "reset_peak_host_memory_stats reset_accumulated_host_memory_stats "
    "accelerator.empty_cache accelerator.empty_host_cache": lambda w: (
        lambda: (
            _C.reset_accumulated_host_memory_stats(w.type),
            _C.empty_cache(w.type),
            _C.empty_host_cache(w.type),
            _C.host_memory_stats(w.type),
            _C.reset_peak_host_memory_stats(w.type),
        )
    ),
    "sleep": holding(lambda w: lambda: _C.sleep(w.type, 1000, w.stream)),
    "launch_host_function": host_function,
    "fail": fail,
    "versions status_name status_text": lambda w: (
        lambda: (
            _C.versions(w.type),
            _C.status_name(w.type, 2),
            _C.status_text(w.type, 2),
        )
    ),
    "places_exclude": lambda w: lambda: _C.places_exclude(""),
    "raw_stream_create": raw_stream,
    "raw_stream_destroy": raw_stream_destroy,
    "races_start races_stop races_declare races.detect races.declare "
    "races.Race races.Operation races_count_waits races_redundant "
    "races_orders races_moment races_reached races_ignore "
    "races.redundant races.Redundant": races_found,
    "schedule_begin schedule_end schedule_is_on schedule_poll "
    "schedule_forked schedule_hold schedule_released schedules.run "
    "schedules.explore schedules.replay schedules.Result": scheduled,
    "timeline_start timeline_stop timeline_now timeline_end timeline_resolve "
    "timeline_rows timeline_nodes timeline_error timeline_thread "
    "timeline_await_begin timeline_await_end "
    "timeline_span_begin timeline_span_end "
    "timeline.record timeline.span timeline.Timeline": recorded,
    "set_trace trace.subscribe": set_trace,
    "cuda.graph_pool_handle": lambda w: cuda.graph_pool_handle,
    "accelerator.generate_graph_pool_handle": lambda w: (
        pystreams.accelerator.generate_graph_pool_handle
    ),
    "accelerator.Graph": lambda w: (
        lambda: pystreams.accelerator.Graph().reset()
    ),
    "cuda.export_dot": graph_as_text,
    "pystreams.wait": wait_some,
    "pystreams.wait (in vain)": wait_in_vain,
    "pystreams.as_completed": as_completed,
    "pystreams.get_include": lambda w: pystreams.get_include,
    "pystreams.explain explain_stream explain_name explain_target "
    "explain_streams explain_callables explain_threads": explain,
    "pystreams.explain (timeout)": explain_timeouts,
    "trace.Record": lambda w: lambda: trace.Record("event_wait", w.device),
    "accelerator.current_accelerator accelerator.current_device_idx "
    "accelerator.current_device_index accelerator.device_count "
    "accelerator.is_available": lambda w: (
        lambda: (
            accelerator.current_accelerator(),
            accelerator.current_device_index(),
            accelerator.device_count(),
            accelerator.is_available(),
        )
    ),
    "accelerator.current_stream accelerator.default_stream": lambda w: (
        lambda: (accelerator.current_stream(), accelerator.default_stream())
    ),
    "accelerator.device_index": lambda w: (
        lambda: enter(accelerator.device_index(0))
    ),
    "accelerator.get_memory_info accelerator.memory_stats "
    "accelerator.max_memory_allocated accelerator.max_memory_reserved "
    "accelerator.memory_allocated accelerator.memory_reserved "
    "accelerator.reset_accumulated_memory_stats "
    "accelerator.reset_peak_memory_stats": lambda w: (
        lambda: (
            accelerator.reset_accumulated_memory_stats(),
            accelerator.get_memory_info(),
            accelerator.memory_stats(),
            accelerator.max_memory_allocated(),
            accelerator.memory_allocated(),
            accelerator.reset_peak_memory_stats(),
        )
    ),
    "accelerator.set_device_idx accelerator.set_device_index": lambda w: (
        lambda: accelerator.set_device_index(0)
    ),
    "accelerator.set_stream": lambda w: (
        lambda: accelerator.set_stream(accelerator.default_stream())
    ),
    "accelerator.stream": lambda w: (
        lambda: enter(accelerator.stream(accelerator.default_stream()))
    ),
    "accelerator.synchronize": lambda w: accelerator.synchronize,
}

CUDA_CASES = {
    "cuda.GreenContext": green_context,
    "Stream.__cuda_stream__": lambda w: w.stream.__cuda_stream__,
    "ExternalStream (object)": lambda w: lambda: _C.ExternalStream(w.stream),
    "CudaStream CudaStream.cuda_stream": lambda w: (
        lambda: _C.CudaStream(w.device).cuda_stream
    ),
    "CudaExternalStream get_stream_from_external": lambda w: (
        lambda: cuda.get_stream_from_external(w.stream.native_handle, w.device)
    ),
    "CudaEvent CudaEvent.device CudaEvent.cuda_event "
    "CudaEvent._as_parameter_": cuda_event,
    "cuda.CUDAGraph": lambda w: lambda: captured(w, cuda.CUDAGraph).reset(),
    "CudaDevice": lambda w: lambda: enter(cuda.device(0)),
    "cuda_current_stream cuda_default_stream cuda_stream": lambda w: (
        lambda: (
            cuda.current_stream(),
            cuda.default_stream(),
            enter(cuda.stream(w.stream)),
        )
    ),
    "Buffer.__cuda_array_interface__": array_interface,
    "GraphContext GraphContext.__enter__ GraphContext.__exit__ cuda.graph "
    "cuda.is_current_stream_capturing": cuda_graph,
    "cuda.can_device_access_peer cuda.set_peer_access "
    "cuda.current_device cuda.device_count "
    "cuda.is_available cuda.is_emulated cuda.is_initialized cuda.init": (
        lambda w: (
            lambda: (
                cuda.can_device_access_peer(0, 1),
                cuda.set_peer_access(0, 1, True),
                cuda.current_device(),
                cuda.device_count(),
                cuda.is_available(),
                cuda.is_emulated(),
                cuda.is_initialized(),
                cuda.init(),
            )
        )
    ),
    "cuda.check_error cuda.cudart cuda.cudaStatus": lambda w: (
        lambda: cuda.check_error(cuda.cudart().cudaError.success)
    ),
    "cuda.CudaError": lambda w: lambda: cuda.CudaError(2),
    "cuda.device_of": lambda w: lambda: enter(cuda.device_of(w.buffer)),
    "cuda.get_device_capability cuda.get_device_name "
    "cuda.get_device_properties cuda.get_device_attributes "
    "cuda.get_device_pci_bus_id": lambda w: (
        lambda: (
            cuda.get_device_pci_bus_id(),
            cuda.get_device_capability(),
            cuda.get_device_name(),
            repr(cuda.get_device_properties()),
        )
    ),
    "cuda.max_memory_allocated cuda.max_memory_reserved cuda.mem_get_info "
    "cuda.memory_allocated cuda.memory_reserved cuda.memory_stats "
    "cuda.reset_accumulated_memory_stats cuda.reset_peak_memory_stats "
    "cuda.ipc_collect": lambda w: (
        lambda: (
            cuda.reset_accumulated_memory_stats(),
            cuda.max_memory_allocated(),
            cuda.mem_get_info(),
            cuda.memory_allocated(),
            cuda.memory_stats(),
            cuda.reset_peak_memory_stats(),
            cuda.ipc_collect(),
        )
    ),
    "trim_pool set_pool_threshold cuda.trim_pool cuda.set_pool_threshold "
    "cuda.empty_cache cuda.host_memory_stats "
    "cuda.reset_accumulated_host_memory_stats "
    "cuda.reset_peak_host_memory_stats": lambda w: (
        lambda: (
            cuda.reset_accumulated_host_memory_stats(),
            cuda.empty_cache(),
            cuda.trim_pool(0),
            cuda.set_pool_threshold(None),
            cuda.host_memory_stats(),
            cuda.reset_peak_host_memory_stats(),
        )
    ),
    "cuda.set_device": lambda w: lambda: cuda.set_device(0),
    "cuda.set_stream": lambda w: (
        lambda: cuda.set_stream(cuda.default_stream())
    ),
    "cuda.synchronize": lambda w: cuda.synchronize,
}

# Names without a case, and the reasons.
OTHERS = {
    "AcceleratorError": "what calls raise",
    "OutOfMemoryError": "what calls raise",
    "races.RaceError": "what calls raise",
    "cuda.export_graph_data": "open() itself raises RuntimeError",
    "FutureBase": "what submit() returns is of a type derived of it",
    "Graph.__del__": "reports what its hooks raise; test_graph_hooks.py",
    "Graph._use_hooks": "hooks stay; test_graph_hooks.py",
    "register_backend": "a backend stays; test_register.py",
    "register_backends": "does nothing after the import",
    "_activate_gpu_trace": "what cuda._gpu_trace calls for torch",
    "_deactivate_gpu_trace": "what cuda._gpu_trace calls for torch",
    "explain_on_signal": "starts a thread once",
    "shutdown": "nothing works after it",
    "set_exit_status": "the process ends with it",
    "trace.Subscription": "what subscribe() returns",
}


def cases(name):
    """Return the cases for a device type."""
    return {**CASES, **CUDA_CASES} if name == "cuda" else CASES


def members(path):
    """Yield the names that a stub declares: functions, classes and their
    members."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif (
            isinstance(node, ast.ClassDef)
            and not node.decorator_list[
                slice(None) if node.name.startswith("_") else slice(0)
            ]
        ):
            yield node.name
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    yield f"{node.name}.{member.name}"


def public_names():
    """Return all public names without duplicates.  A name in _C that another
    module also exports is listed only as _C's."""
    stub = Path(_C.__file__).with_name("_C.pyi")
    names = {
        name
        for name in members(stub)
        if not name.endswith((".__new__", ".__init__"))
    }
    own = {id(value) for value in vars(_C).values()}
    for module, namespace in MODULES.items():
        for name in namespace.__all__:
            value = getattr(namespace, name)
            if id(value) not in own and callable(value):
                names.add(f"{module}.{name}")
    return names


def covered_names():
    """Return the names that have a case.  If a name has several cases, text in
    brackets after the name tells them apart."""
    return {
        name
        for key in {**CASES, **CUDA_CASES}
        for name in key.partition(" (")[0].split()
    }
