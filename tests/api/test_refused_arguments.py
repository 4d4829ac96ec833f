"""Bad input is refused with the documented type and message, and changes
nothing."""

import gc
import sys
from typing import ClassVar

import pytest

import pystreams
from pystreams import _C, Event, Stream
from pystreams.cuda import graphs
from pystreams.cuda._graphs import Graph


@pytest.fixture
def unchanged(backend):
    """The test changes no current device or stream, no memory in use and no
    queue."""
    # Cycles that earlier tests left would be freed at any time: free them now.
    gc.collect()
    before = backend.currents()
    memory = _C.memory_stats(backend.type, 0)
    yield
    assert backend.currents() == before
    assert _C.memory_stats(backend.type, 0) == memory
    assert backend.current_stream().query()


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("wrong", [1.5, b"cpu", [], object(), ("cuda", 0)])
def test_device_arguments(wrong):
    for use in (
        lambda: Stream(wrong),
        lambda: Stream(device=wrong),
        lambda: Event(wrong),
        lambda: pystreams.empty(16, device=wrong),
        lambda: pystreams.ExternalStream(0, wrong),
        lambda: _C.synchronize(0, wrong),
        lambda: _C.current_stream(0, wrong),
    ):
        with pytest.raises(TypeError, match=type(wrong).__name__):
            use()


OF_CUDA = (
    "can_device_access_peer",
    "current_stream",
    "default_stream",
    "get_device_attributes",
    "get_device_capability",
    "get_device_name",
    "get_device_pci_bus_id",
    "get_device_properties",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "set_device",
    "synchronize",
)
OF_THE_ACCELERATOR = (
    "current_stream",
    "default_stream",
    "device_index",
    "get_memory_info",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "set_device_index",
    "synchronize",
)


def test_an_error_names_the_function_that_was_called(cuda):
    """The error also names the parameter, whichever functions the called one
    is built on."""
    cuda.current_stream()
    for module, names in (
        (pystreams.cuda, OF_CUDA),
        (pystreams.accelerator, OF_THE_ACCELERATOR),
    ):
        for name in names:
            arguments = [1.5, 0][: 2 if name.startswith("can_") else 1]
            with pytest.raises(TypeError) as caught:
                getattr(module, name)(*arguments)
            assert str(caught.value) == (
                f"{name}() expects a device (int, str, device or None) for "
                "device, but got float"
            )
        for name in ("set_stream", "stream"):
            with pytest.raises(TypeError) as caught:
                getattr(module, name)(1)
            assert str(caught.value) == (
                f"{name}() expects a Stream or an object with __cuda_stream__ "
                "for stream, but got int"
            )
    with pytest.raises(TypeError, match="for peer_device, but got float"):
        pystreams.cuda.can_device_access_peer(0, 1.5)
    with pytest.raises(ValueError, match="Expected a cuda device"):
        pystreams.cuda.set_stream(Stream("cpu"))


class _Interface:
    """An object with a CUDA array interface."""

    def __init__(self, **entries):
        self.__cuda_array_interface__ = entries


class _Protocol:
    """An object whose __cuda_stream__ returns what it is given."""

    def __init__(self, result):
        self.__cuda_stream__ = lambda: result


class _NoDict:
    __cuda_array_interface__: ClassVar = []


_SHAPE = {"version": 3, "data": (0, False), "typestr": "|u1"}

# By the name of a case: the call, and the exception that it raises.
REFUSED = {
    "empty(2**63)": (
        lambda: pystreams.empty(2**63, device="cpu"),
        OverflowError(
            "empty() expects a signed int of 64 bits for nbytes, but got "
            f"{2**63}"
        ),
    ),
    "accelerator.Graph(bad=1)": (
        lambda: pystreams.accelerator.Graph(bad=1),
        TypeError("Graph.__new__() got an unexpected keyword argument 'bad'"),
    ),
    "wait(5)": (
        lambda: pystreams.wait(5),
        TypeError(
            "wait() expects an iterable of Streams, Events and Futures for "
            "objects, but got int"
        ),
    ),
    "as_completed(5)": (
        lambda: pystreams.as_completed(5),
        TypeError(
            "as_completed() expects an iterable of Streams, Events and "
            "Futures for objects, but got int"
        ),
    ),
    "wait([5])": (
        lambda: pystreams.wait([Stream("cpu"), 5]),
        TypeError(
            "wait() expects an iterable of Streams, Events and Futures for "
            "objects, but it has int"
        ),
    ),
    "empty('x')": (
        lambda: pystreams.empty("x"),
        TypeError("empty() expects an int for nbytes, but got str"),
    ),
    "empty(-1)": (
        lambda: pystreams.empty(-1),
        ValueError(
            "empty() expects an int of at least 0 for nbytes, but got -1"
        ),
    ),
    "empty(stream=5)": (
        lambda: pystreams.empty(9, stream=5),
        TypeError(
            "empty() expects a Stream or an object with __cuda_stream__ for "
            "stream, but got int"
        ),
    ),
    "empty(device=1.5)": (
        lambda: pystreams.empty(9, device=1.5),
        TypeError(
            "empty() expects a device (int, str, device or None) for device, "
            "but got float"
        ),
    ),
    "empty(pin_memory='x')": (
        lambda: pystreams.empty(9, pin_memory="x"),
        TypeError("empty() expects a bool for pin_memory, but got str"),
    ),
    "Buffer('x')": (
        lambda: pystreams.Buffer("x"),
        TypeError("Buffer() expects an int for nbytes, but got str"),
    ),
    "get_stream_from_external('x')": (
        lambda: pystreams.cuda.get_stream_from_external("x"),
        TypeError(
            "get_stream_from_external() expects an int or an object with "
            "__cuda_stream__ for data_ptr, but got str"
        ),
    ),
    "subscribe(5)": (
        lambda: pystreams.trace.subscribe(5),
        TypeError("subscribe() expects a callable for fn, but got int"),
    ),
    "subscribe(kinds=5)": (
        lambda: pystreams.trace.subscribe(print, kinds=5),
        TypeError(
            "subscribe() expects a str, an iterable of str or None for kinds, "
            "but got int"
        ),
    ),
    "graph(5)": (
        lambda: pystreams.cuda.graph(5),
        TypeError("graph() expects a CUDAGraph for cuda_graph, but got int"),
    ),
    "CUDAGraph('x')": (
        lambda: pystreams.cuda.CUDAGraph("x"),
        TypeError("CUDAGraph() expects a bool for keep_graph, but got str"),
    ),
    "debug_dump(5)": (
        lambda: pystreams.cuda.CUDAGraph().debug_dump(5),
        TypeError(
            "debug_dump() expects a path (str, bytes or os.PathLike) for "
            "debug_path, but got int"
        ),
    ),
    "check_error('x')": (
        lambda: pystreams.cuda.check_error("x"),
        TypeError("check_error() expects an int for res, but got str"),
    ),
    "from_dlpack(device='x')": (
        lambda: pystreams.from_dlpack(
            pystreams.empty(1, device="cpu"), device="x"
        ),
        TypeError("from_dlpack() got an unexpected keyword argument 'device'"),
    ),
    "__dlpack__(1)": (
        lambda: pystreams.empty(1, device="cpu").__dlpack__(1),
        TypeError("__dlpack__() takes no positional arguments (1 given)"),
    ),
    "__dlpack__(copy='x')": (
        lambda: pystreams.empty(1, device="cpu").__dlpack__(copy="x"),
        TypeError("__dlpack__() expects a bool for copy, but got str"),
    ),
    "register_backend()": (
        lambda: pystreams.register_backend(),
        TypeError("register_backend() missing required argument 'capsule'"),
    ),
    "register_backend(faults=5)": (
        lambda: pystreams.register_backend(capsule=None, faults=5),
        TypeError(
            'register_backend() expects a capsule named "pystreams.backend" '
            "for capsule, but got None"
        ),
    ),
    "GreenContext('x')": (
        lambda: pystreams.cuda.GreenContext("x"),
        TypeError("GreenContext() expects an int for num_sms, but got str"),
    ),
    "GreenContext.create('x')": (
        lambda: pystreams.cuda.GreenContext.create(num_sms="x"),
        TypeError("GreenContext() expects an int for num_sms, but got str"),
    ),
    "GreenContext(-1)": (
        lambda: pystreams.cuda.GreenContext(-1),
        ValueError(
            "GreenContext() expects an int of at least 1 for num_sms, but got "
            "-1"
        ),
    ),
    "wait(return_when='x')": (
        lambda: pystreams.wait([], return_when="x"),
        ValueError(
            "wait() expects one of ALL_COMPLETED, FIRST_COMPLETED, "
            "FIRST_EXCEPTION for return_when, but got 'x'"
        ),
    ),
    "add_done_callback()": (
        lambda: Stream("cpu").submit(int).add_done_callback(),
        TypeError("add_done_callback() missing required argument 'fn'"),
    ),
    "copy_(non_blocking='x')": (
        lambda: pystreams.empty(1).copy_(bytes(1), non_blocking="x"),
        TypeError("copy_() expects a bool for non_blocking, but got str"),
    ),
    "copy_to(non_blocking=1.5)": (
        lambda: pystreams.empty(1).copy_to(bytearray(1), 1.5),
        TypeError("copy_to() expects a bool for non_blocking, but got float"),
    ),
    "buffer[::2]": (
        lambda: pystreams.empty(9)[::2],
        ValueError("Buffer[start:stop:step] expects 1 for step, but got 2"),
    ),
    "set_peer_access(enabled='x')": (
        lambda: pystreams.cuda.set_peer_access(0, 1, "x"),
        TypeError("set_peer_access() expects a bool for enabled, but got str"),
    ),
    "export_dot(3)": (
        lambda: graphs.export_dot(3),
        TypeError(
            "export_dot() expects a path (str, bytes or os.PathLike) for "
            "path, but got int"
        ),
    ),
    "export_graph_data(3)": (
        lambda: graphs.export_graph_data(3),
        TypeError(
            "export_graph_data() expects a path (str, bytes or os.PathLike) "
            "for path, but got int"
        ),
    ),
    "declare(3)": (
        lambda: pystreams.races.declare(3),
        TypeError(
            "declare() expects a Stream or an object with __cuda_stream__ for "
            "stream, but got int"
        ),
    ),
    "__cuda_stream__ of None": (
        lambda: pystreams.ExternalStream(_Protocol(None)),
        TypeError(
            "ExternalStream() expects a tuple (version, address) from "
            "__cuda_stream__ of _Protocol, but got None"
        ),
    ),
    "__cuda_stream__ of version 'x'": (
        lambda: pystreams.ExternalStream(_Protocol(("x", 0))),
        TypeError(
            "ExternalStream() expects an int for the version from "
            "__cuda_stream__ of _Protocol, but got 'x'"
        ),
    ),
    "__cuda_stream__ of version 1": (
        lambda: pystreams.ExternalStream(_Protocol((1, 0))),
        ValueError(
            "ExternalStream() expects version 0 from __cuda_stream__ of "
            "_Protocol, but got 1"
        ),
    ),
    "array interface []": (
        lambda: pystreams.empty(1).copy_(_NoDict()),
        TypeError(
            "copy_() expects the CUDA array interface to be a dict, but got "
            "list"
        ),
    ),
    "array interface {}": (
        lambda: pystreams.empty(1).copy_(_Interface()),
        ValueError("the CUDA array interface lacks 'version'"),
    ),
    "array interface without a shape": (
        lambda: pystreams.empty(1).copy_(_Interface(**_SHAPE)),
        ValueError("the CUDA array interface lacks 'shape'"),
    ),
    "array interface of a huge extent": (
        lambda: pystreams.empty(1).copy_(_Interface(**_SHAPE, shape=(2**70,))),
        ValueError(
            "the CUDA array interface must have 'shape' as a tuple of ints of "
            f"at most 64 bits, got ({2**70},)"
        ),
    ),
    "array interface of another extent": (
        lambda: pystreams.empty(1).copy_(_Interface(**_SHAPE, shape=("x",))),
        TypeError(
            "the CUDA array interface must have 'shape' as a tuple of ints of "
            "at most 64 bits, got ('x',)"
        ),
    ),
    "from_ipc_handle(zeros)": (
        lambda: pystreams.cuda.Event.from_ipc_handle(0, bytes(64)),
        ValueError(
            "from_ipc_handle() expects the handle of a live cuda event for "
            "handle, as its ipc_handle() returned it; these 64 bytes are not "
            "one"
        ),
    ),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.unscheduled] * ("ipc" in case))
        for case in REFUSED
    ],
)
def test_an_error_names_the_function_and_the_parameter(cuda, case):
    call, expected = REFUSED[case]
    before = cuda.currents()
    with pytest.raises(type(expected)) as caught:
        call()
    assert str(caught.value) == str(expected)
    assert cuda.currents() == before


def test_a_device_that_is_not_there_is_named_with_those_that_are(cuda):
    last = cuda.count - 1
    range_text = "cuda:0" + (f" to cuda:{last}" if last else "")
    for name, call in (
        ("Stream", Stream),
        ("Event", Event),
        ("empty", lambda device: pystreams.empty(1, device=device)),
        ("synchronize", pystreams.cuda.synchronize),
    ):
        with pytest.raises(pystreams.AcceleratorError) as caught:
            call("cuda:99")
        assert (
            f"\n{name}() of cuda:99, but there is only {range_text}, failed "
        ) in str(caught.value)


def test_an_unknown_stream_handle_is_named(engine):
    with pytest.raises(pystreams.AcceleratorError) as caught:
        pystreams.ExternalStream(12345, engine.device())
    assert "\nExternalStream() of the stream handle 0x3039 failed " in str(
        caught.value
    )


@pytest.mark.usefixtures("unchanged")
def test_calls(backend):
    device, stream, event = backend.device(), backend.stream(), backend.event()
    for use in (
        lambda: Stream(device, -1),
        lambda: Stream(device, nonsense=1),
        lambda: Stream(device, priority="high"),
        lambda: Stream(device, priority=1.5),
        lambda: Event(device, nonsense=1),
        lambda: stream.query(1),
        lambda: stream.wait_event(),
        lambda: stream.wait_event(event, event),
        lambda: stream.wait_stream(),
        lambda: stream.record_event(event, event),
        lambda: event.record(stream, stream),
        lambda: event.record(strm=stream),
        lambda: event.query(1),
        lambda: event.elapsed_time(),
        lambda: pystreams.empty(),
        lambda: pystreams.empty(1, 2, 3),
        lambda: pystreams.ExternalStream(),
    ):
        with pytest.raises(TypeError):
            use()
    assert event.event_id == 0


@pytest.mark.usefixtures("unchanged")
def test_a_stream_by_numbers_is_not_configured():
    numbers = {"stream_id": 0, "device_index": 0, "device_type": 0}
    for use in (
        lambda: Stream("cpu", priority=5, **numbers),
        lambda: Stream("cpu", **numbers),
        lambda: Stream(priority=5, **numbers),
        lambda: Stream(stream_id=0, device_index=0),
    ):
        with pytest.raises(TypeError):
            use()


@pytest.mark.usefixtures("unchanged")
def test_none_is_no_stream(backend):
    """None is refused where it would not plainly mean the current stream."""
    for use in (
        lambda: backend.stream().wait_stream(None),
        lambda: _C.set_stream(None),
        lambda: _C.launch_host_function(None, 1),
        lambda: _C.fail(None, 700),
    ):
        with pytest.raises(TypeError, match="None"):
            use()


@pytest.mark.usefixtures("unchanged")
def test_unbound_calls(backend):
    stream, event = backend.stream(), backend.event()
    for use in (
        lambda: Stream.query(event),
        lambda: Stream.synchronize(1),
        lambda: Event.record(stream),
        lambda: Event.elapsed_time(stream, event),
        lambda: pystreams.Buffer.tobytes(stream),
    ):
        with pytest.raises(TypeError):
            use()


@pytest.mark.usefixtures("unchanged")
def test_ordinals(backend):
    count = backend.count
    for use in (
        lambda: Stream(f"{backend.name}:{count}"),
        lambda: Event(f"{backend.name}:{count}"),
        lambda: Event(f"{backend.name}:77"),
        lambda: pystreams.empty(16, device=f"{backend.name}:{count}"),
        lambda: pystreams.ExternalStream(0, f"{backend.name}:{count}"),
        lambda: _C.synchronize(backend.type, count),
        lambda: _C.set_device(backend.type, count),
        lambda: _C.current_stream(backend.type, count),
        lambda: _C.default_stream(backend.type, count),
        lambda: _C.device_properties(backend.type, count),
        lambda: _C.mem_get_info(backend.type, count),
        lambda: _C.memory_stats(backend.type, count),
        lambda: _C.can_device_access_peer(backend.type, 0, count),
    ):
        with pytest.raises(pystreams.AcceleratorError) as caught:
            use()
        assert "invalid device ordinal" in str(caught.value)
        assert caught.value.error_code == 101
        assert type(caught.value) is pystreams.AcceleratorError


@pytest.mark.parametrize(
    "kind", [pystreams.AcceleratorError, pystreams.OutOfMemoryError]
)
def test_an_error_that_no_operation_raised_has_no_code(kind):
    assert kind("x").error_code is None
    assert kind().error_code is None
    error = kind("x")
    error.error_code = 2
    assert kind("x").error_code is None


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("index", [2**31, 2**63, 2**64])
def test_absurd_ordinals(backend, index):
    for use in (
        lambda: _C.current_stream(backend.type, index),
        lambda: _C.synchronize(backend.type, index),
        lambda: _C.device_properties(backend.type, index),
    ):
        with pytest.raises((RuntimeError, ValueError, OverflowError)):
            use()


@pytest.mark.parametrize("kind", [2, 13, 20, 77, -1, 2**40])
def test_types_that_are_not_there(kind):
    for use in (
        lambda: _C.current_device(kind),
        lambda: _C.current_stream(kind),
        lambda: _C.default_stream(kind),
        lambda: _C.synchronize(kind),
        lambda: _C.set_device(kind, 0),
        lambda: _C.initialize(kind),
        lambda: _C.sleep(kind, 1),
    ):
        with pytest.raises((RuntimeError, ValueError, OverflowError)):
            use()


def test_device_type_without_a_backend():
    with pytest.raises((RuntimeError, ValueError), match="mtia"):
        Stream("mtia:0")


def test_exceptions():
    assert issubclass(pystreams.AcceleratorError, RuntimeError)
    assert issubclass(pystreams.OutOfMemoryError, (pystreams.AcceleratorError))
    assert issubclass(pystreams.OutOfMemoryError, MemoryError)
    assert pystreams.AcceleratorError.__module__ == "pystreams"
    assert pystreams.OutOfMemoryError.__module__ == "pystreams"


def test_what_a_backend_cannot_do_is_named(cuda):
    if cuda.on_engine:
        pytest.skip("the CPU engine can do all that is asked here")
    with pytest.raises(NotImplementedError, match=r"cuda.*fault"):
        _C.fail(cuda.stream(), 700)


def test_statuses_have_names(backend):
    assert _C.status_name(backend.type, 0)
    assert "ordinal" in _C.status_text(backend.type, 101)
    for status in (-1, 424242):
        assert type(_C.status_name(backend.type, status)) is str
        assert type(_C.status_text(backend.type, status)) is str


@pytest.mark.parametrize(
    "integer",
    [-1, 1, 2**31, 2**32, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**64)],
)
def test_integers_at_the_edges(engine, integer):
    """Each integer reaches the engine unchanged, or is refused before."""
    numbers = {"device_index": 0, "device_type": engine.type}
    for use in (
        lambda: Stream(stream_id=integer, **numbers).query(),
        lambda: pystreams.ExternalStream(integer, engine.device()).query(),
        lambda: _C.raw_stream_destroy(engine.type, integer),
    ):
        try:
            answer = use()
        except (RuntimeError, ValueError, OverflowError):
            continue
        if answer is True:
            # CUDA's numbers of default streams.
            assert engine.name == "cuda" and integer in (1, 2)
            continue
        assert type(answer) is int
        assert answer != 0
    assert engine.stream().query()


def test_a_failing_call_keeps_the_pending_exception(backend):
    """Deallocation while an exception unwinds does not replace it."""

    def work():
        stream, event = backend.stream(), backend.event()
        event.record(stream)
        backend.empty(100).fill_(1)
        raise ZeroDivisionError("kept")

    for _ in range(10):
        with pytest.raises(ZeroDivisionError, match="kept") as caught:
            work()
        assert caught.value.__context__ is None


def test_a_failed_cleanup_says_what_was_ignored_and_where(engine, monkeypatch):
    """A graph that is dropped ends its capture, which another call spoiled."""

    def work():
        graph, stream = Graph(engine.type), engine.stream()
        with stream:
            graph.capture_begin()
            with pytest.raises(pystreams.AcceleratorError):
                stream.wait_event(engine.stream().record_event())

    ignored = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "unraisablehook", ignored.append)
        work()
    [report] = ignored
    assert report.err_msg == (
        f"Exception ignored while dropping a graph of {engine.device()}"
    )
    assert type(report.exc_value) is pystreams.AcceleratorError
    assert report.exc_value.error_code == 901
    assert "dropping a graph failed" in str(report.exc_value)
    assert report.exc_traceback.tb_frame.f_code.co_filename == __file__


def test_a_clean_up_that_fails_keeps_the_exception_in_flight(run_python):
    """A graph whose capture was spoilt is dropped while 1 / 0 unwinds."""
    code = """
import sys
import pystreams
from pystreams import cuda
def spoilt():
    graph, stream, other = cuda.CUDAGraph(), cuda.Stream(), cuda.Stream()
    with stream:
        graph.capture_begin()
        event = cuda.Event()
        event.record(stream)
        other.wait_event(event)
        try:
            other.synchronize()
        except pystreams.AcceleratorError:
            pass
    return graph
ignored = []
sys.unraisablehook = lambda unraisable: ignored.append(unraisable.exc_type)
try:
    (spoilt(), 1 / 0)
except ZeroDivisionError as error:
    assert error.__context__ is None
    print(error, [kind.__name__ for kind in ignored])
"""
    done = run_python(code, env={"PYSTREAMS_EMULATE_CUDA": "1"})
    assert done.stderr == ""
    assert done.stdout == "division by zero ['AcceleratorError']\n"


@pytest.mark.parametrize(
    "name", ["zeros", "tensor", "uint8", "bfloat16", "no_grad"]
)
def test_names_of_tensors(name):
    assert not hasattr(pystreams, name)
    with pytest.raises(
        AttributeError,
        match=rf"no attribute '{name}', because it has no tensors: "
        r"pystreams\.empty\(nbytes\) allocates a Buffer",
    ):
        getattr(pystreams, name)


def test_other_names():
    with pytest.raises(AttributeError, match=r"no attribute 'other'$"):
        _ = pystreams.other
