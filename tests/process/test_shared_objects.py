"""Every method of one object on many threads at once, close() among them: each
call works, or is refused as it would be alone."""

import collections
import concurrent.futures
import ctypes
import gc
import weakref

import pytest
from deadlines import wait_until
from gil import FREE
from producers import TENSOR, Tensor, drop, table_of
from together import together

import pystreams
from pystreams import _C, cuda
from pystreams._expressions import expressions
from pystreams.cuda._graphs import Graph

TABLE = table_of(pystreams.Buffer)
# Without the GIL, the threads really run at the same time.
THREADS = 64 if FREE else 8
ROUNDS = 20 if FREE else 3
REFUSALS = (
    BufferError,
    NotImplementedError,
    RuntimeError,
    TimeoutError,
    TypeError,
    ValueError,
    concurrent.futures.CancelledError,
    concurrent.futures.InvalidStateError,
)

pytestmark = pytest.mark.usefixtures("switch_often")


class World:
    """What the calls are made with, and the objects that threads share."""

    def __init__(self, backend):
        self.backend = backend
        self.type = dict(_C.backends())[backend.name]
        self.device = backend.device()
        self.stream = backend.stream()
        self.event = backend.event()
        self.buffer = self.new_buffer()
        self.captured = self.new_graph()

    def new_buffer(self):
        return pystreams.empty(64, device=self.device)

    def new_graph(self):
        graph = Graph(self.type, True)
        capture(graph, self)
        return graph


def enter(context):
    with context:
        pass


def exchange(block):
    """Call the table's functions, in both directions and without ownership."""
    tensor, made = TENSOR(), ctypes.c_void_p()
    TABLE.tensor_from_object(block, ctypes.byref(Tensor()))
    TABLE.managed_from_object(block, ctypes.byref(tensor))
    TABLE.managed_to_object(tensor, ctypes.byref(made))
    drop(made)


def hold(condition):
    with condition:
        pass


def capture(graph, world):
    with world.backend.stream():
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            world.buffer.zero_()
        finally:
            graph.capture_end()


STREAM = {
    "__await__": lambda s, w: s.__await__(),
    "__cuda_stream__": lambda s, w: s.__cuda_stream__(),
    "__enter__ __exit__": lambda s, w: enter(s),
    "is_capturing": lambda s, w: s.is_capturing(),
    "priority_range": lambda s, w: s.priority_range(w.device),
    "query": lambda s, w: s.query(),
    "record_event": lambda s, w: s.record_event(w.event),
    "submit": lambda s, w: s.submit(int),
    "synchronize": lambda s, w: s.synchronize(9),
    "wait_event": lambda s, w: s.wait_event(w.event),
    "wait_stream": lambda s, w: (
        s.wait_stream(w.stream),
        w.stream.wait_stream(s),
    ),
}
EVENT = {
    "__await__": lambda e, w: e.__await__(),
    "__reduce__": lambda e, w: e.__reduce__(),
    "__setstate__": lambda e, w: e.__setstate__(True),
    "elapsed_time": lambda e, w: e.elapsed_time(w.event),
    "from_ipc_handle": lambda e, w: e.from_ipc_handle(w.device, b""),
    "ipc_handle": lambda e, w: e.ipc_handle(),
    "query": lambda e, w: e.query(),
    "record": lambda e, w: e.record(w.stream),
    "synchronize": lambda e, w: e.synchronize(9),
    "wait": lambda e, w: e.wait(w.stream),
}
BUFFER = {
    "__reduce__": lambda b, w: b.__reduce__(),
    "__dlpack__": lambda b, w: b.__dlpack__(),
    "__dlpack_c_exchange_api__": lambda b, w: exchange(b),
    "__dlpack_device__": lambda b, w: b.__dlpack_device__(),
    "__buffer__ __release_buffer__": lambda b, w: memoryview(b).release(),
    "__getitem__": lambda b, w: b[3:9].data_ptr(),
    "__bytes__": lambda b, w: bytes(b),
    "__len__": lambda b, w: len(b),
    "copy_": lambda b, w: b.copy_(w.buffer),
    "copy_to": lambda b, w: b.copy_to(w.buffer),
    "data_ptr": lambda b, w: b.data_ptr(),
    "fill_": lambda b, w: b.fill_(1),
    "from_ipc_handle": lambda b, w: b.from_ipc_handle(w.device, b""),
    "ipc_handle": lambda b, w: b.ipc_handle(),
    "from_address": lambda b, w: b.from_address(0, 0),
    "is_pinned": lambda b, w: b.is_pinned(),
    "memoryview": lambda b, w: b.memoryview(readonly=True).release(),
    "record_stream": lambda b, w: b.record_stream(w.stream),
    "tobytes": lambda b, w: b.tobytes(),
    "zero_": lambda b, w: b.zero_(),
}
GRAPH = {
    "_begin capture_end": lambda g, w: capture(g, w),
    "_enter": lambda g, w: None,
    "_executable": lambda g, w: g._executable(),
    "_exit": lambda g, w: None,
    "_keep": lambda g, w: g._keep([]),
    "_nodes": lambda g, w: g._nodes(),
    "_state": lambda g, w: g._state(),
    "_use_hooks": lambda g, w: g._use_hooks(),
    "_wait": lambda g, w: g._wait(),
    "add_child": lambda g, w: g.add_child(w.captured),
    "debug_dump": lambda g, w: g.debug_dump("/dev/null"),
    "enable_debug_mode": lambda g, w: None,
    "instantiate": lambda g, w: g.instantiate(),
    "replay": lambda g, w: g.replay(),
    "update": lambda g, w: g.update(w.captured),
    "upload": lambda g, w: g.upload(),
}
FUTURE = {
    "__del__": lambda f, w: f.__del__(),
    "_condition": lambda f, w: hold(f._condition),
    "add_done_callback": lambda f, w: f.add_done_callback(id),
    "cancel": lambda f, w: f.cancel(),
    "cancelled": lambda f, w: f.cancelled(),
    "done": lambda f, w: f.done(),
    "exception": lambda f, w: f.exception(9),
    "result": lambda f, w: f.result(9),
    "running": lambda f, w: f.running(),
    "wait": lambda f, w: concurrent.futures.wait([f], 9),
}
WAITER = {
    "cancel": lambda x, w: (x.cancel(1), x.cancel()),
    "check": lambda x, w: x.check(w.stream, 0),
    "expect": lambda x, w: x.expect(1),
    "fileno": lambda x, w: x.fileno(),
    "first": lambda x, w: x.first(),
    "post": lambda x, w: x.post(1),
    "take": lambda x, w: x.take(),
    "wait": lambda x, w: x.wait(0.001),
    "register": lambda x, w: x.register(w.event, 2),
}
STREAM_CONTEXT = {
    "__enter__ __exit__": lambda c, w: enter(c),
    "__init__": lambda c, w: c.__init__(w.stream),
}
DEVICE_CONTEXT = {
    "__enter__ __exit__": lambda c, w: enter(c),
    "__init__": lambda c, w: c.__init__(w.type, 0),
}
PARTITION = {
    "Stream": lambda p, w: p.Stream().wait_stream(w.stream),
}
# For each kind: how to make the object, the type whose methods are called, the
# calls of these methods, and the method that gives the object up, which is
# called once.
KINDS = {
    "Stream": (
        lambda w: w.backend.stream(),
        _C.Stream,
        STREAM,
        "close",
    ),
    "ExternalStream": (
        lambda w: pystreams.ExternalStream(w.backend.stream()),
        _C.Stream,
        STREAM,
        "close",
    ),
    "Event": (lambda w: w.backend.event(), _C.Event, EVENT, None),
    "Buffer": (World.new_buffer, _C.Buffer, BUFFER, "close"),
    "pinned Buffer": (
        lambda w: pystreams.empty(64, device="cpu"),
        _C.Buffer,
        BUFFER,
        "close",
    ),
    "Graph": (World.new_graph, _C.Graph, GRAPH, "reset"),
    "Future": (
        lambda w: w.stream.submit(int),
        _C.FutureBase,
        FUTURE,
        None,
    ),
    "Waiter": (lambda w: _C.Waiter(), _C.Waiter, WAITER, None),
    "Partition": (
        lambda w: pystreams.Partition(1, w.device),
        _C.Partition,
        PARTITION,
        None,
    ),
    "StreamContext": (
        lambda w: cuda.StreamContext(w.stream),
        _C.StreamContext,
        STREAM_CONTEXT,
        None,
    ),
    "DeviceContext": (
        lambda w: _C.DeviceContext(w.type, 0),
        _C.DeviceContext,
        DEVICE_CONTEXT,
        None,
    ),
}
# Methods of every object.
COMMON = {
    "__repr__": lambda obj, w: repr(obj),
    "__del__": lambda obj, w: None,
    "__hash__": lambda obj, w: hash(obj),
    "__eq__": lambda obj, w: obj == w.stream,
}
NOT_CALLED = {"__doc__", "__module__", "__new__", "__getattribute__"}
# The methods of a Buffer that access its bytes.  Threads then access the bytes
# at the same time.
ACCESSES = {"copy_", "copy_to", "fill_", "tobytes", "zero_"}
COMPARISONS = {"__lt__", "__le__", "__ne__", "__gt__", "__ge__"}


def attributes(type_):
    return [
        name
        for name, value in vars(type_).items()
        if type(value).__name__ in ("getset_descriptor", "member_descriptor")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_is_called(kind):
    _, type_, calls, end = KINDS[kind]
    called = {name for names in calls for name in names.split()}
    known = called | set(COMMON) | {end} | NOT_CALLED | COMPARISONS
    assert set(vars(type_)) - set(attributes(type_)) <= known


@pytest.mark.parametrize("kind", KINDS)
def test_all_at_once(backend, kind, thread_sanitized):
    make, type_, calls, end = KINDS[kind]
    names = attributes(type_)
    left_out = ACCESSES if thread_sanitized else set()
    steps = [call for name, call in calls.items() if name not in left_out]
    steps += COMMON.values()
    steps += [lambda obj, w, name=name: getattr(obj, name) for name in names]
    world = World(backend)
    for _ in range(ROUNDS):
        shared = [make(world)]

        def work(number, obj=shared[0]):
            for turn in range(len(steps)):
                if end is not None and number == 0 and turn == 5:
                    give_up(obj, end)
                try:
                    steps[(7 * number + turn) % len(steps)](obj, world)
                except pystreams.AcceleratorError:
                    raise
                except (AttributeError, *REFUSALS):
                    pass

        together(work, THREADS)
        work.__defaults__ = None
        if end is not None:
            getattr(shared[0], end)()
        alive = referrer(shared.pop())
        gc.collect()
        if alive is not None:
            # The thread of a cancelled callable drops the callable when its
            # turn comes.
            wait_until(lambda alive=alive: alive() is None)
        # A Partition is kept by its streams until their work is done.
        backend.synchronize()


def test_a_callback_added_as_its_future_ends_is_called(backend):
    """The callback is called once, whether the Future is done before it is
    added or after."""
    called, threads, callables = [], 8, 4000 if FREE else 100

    def work(number):
        stream = backend.stream()
        for _ in range(callables):
            future = stream.submit(int)
            while not future.done():
                pass
            future.add_done_callback(called.append)

    together(work, threads)
    wait_until(lambda: len(called) == threads * callables)
    assert len(set(called)) == threads * callables


def test_names_are_found_while_containers_change(backend):
    """Containers that change during the search are skipped, and names in the
    others are found."""
    stream, many = backend.stream(), range(60)
    counts, queue = dict.fromkeys(many), collections.deque(many)
    variables = {"counts": counts, "queue": queue, "stream": stream}

    def work(number):
        for turn in range(3000 if FREE else 50):
            if number % 2:
                counts["turn"] = queue.append(turn)
                counts.pop("turn", queue.pop())
            else:
                found = expressions(variables, (pystreams.Stream,))
                assert dict(found) == {"stream": stream}

    together(work, 4)


def give_up(obj, end):
    try:
        getattr(obj, end)()
    except BufferError as error:
        assert "views" in str(error)


def referrer(obj):
    try:
        return weakref.ref(obj)
    except TypeError:
        return None
