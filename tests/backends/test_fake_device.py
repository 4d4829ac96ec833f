"""A backend that another extension module registers through the public API:
the example, each time in a process of its own."""

import pytest

HEAD = """
import fake_device
import pystreams
from pystreams import Event, ExternalStream, Stream, _C
from fake_device import complete, launch

MTIA = 13

def raises(error, words, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except error as raised:
        assert type(raised) is error, type(raised)
        assert words in str(raised), str(raised)
    else:
        raise AssertionError(f"no {error.__name__}")
"""

CASES = {
    "names": """
assert _C.backends()[-1] == ("mtia", MTIA)
assert _C.device_count(MTIA) == 2
device = pystreams.device("mtia:1")
assert (device.type, device.index) == ("mtia", 1)
stream = Stream(device)
assert (stream.device, stream.device_type) == (device, MTIA)
handle = hex(stream.native_handle)
assert repr(stream) == f"<pystreams.Stream device=mtia:1 handle={handle}>"
event = Event("mtia")
assert repr(event) == "<pystreams.Event uninitialized>"
assert event.device.type == "mtia" and event.device.index is None
event.record(stream)
assert repr(event) == f"<pystreams.Event mtia:1 {hex(event.event_id)}>"
assert Stream.priority_range("mtia") == (0, 0)
assert Stream("mtia", priority=-5).priority == 0
raises(pystreams.AcceleratorError, "MTIA error", Stream, "mtia:2")
raises(RuntimeError, "a mtia stream cannot wait for a cpu stream",
       stream.wait_stream, Stream("cpu"))
""",
    "work is over when the program says so": """
stream, other = Stream("mtia"), Stream("mtia:1")
first, second = launch(stream), launch(stream)
event = stream.record_event()
other.wait_stream(stream)
assert not (stream.query() or other.query() or event.query())
complete(second)
assert not (stream.query() or event.query())
complete(first)
assert stream.query() and other.query() and event.query()
other.synchronize()
complete(first)
""",
    "versions of an event": """
stream, waiting, event = Stream("mtia"), Stream("mtia"), Event("mtia")
first = launch(stream)
event.record(stream)
waiting.wait_event(event)
second = launch(stream)
event.record(stream)
complete(first)
assert waiting.query() and not event.query()
complete(second)
event.synchronize()
""",
    "current streams": """
zero, one = Stream("mtia:0"), Stream("mtia:1")
def current():
    return _C.current_device(MTIA), [
        _C.current_stream(MTIA, i).native_handle for i in range(2)
    ]
start = current()
assert start == (0, [0, 0])
with one as entered:
    assert entered is one
    assert current() == (1, [0, one.native_handle])
    with zero:
        assert current() == (0, [zero.native_handle, one.native_handle])
        event = Event("mtia")
        event.record()
        assert event.device == zero.device
    assert current() == (1, [0, one.native_handle])
assert current() == start
assert _C.current_stream(_C.default_type()).device.type != "mtia"
""",
    "default streams": """
zero, one = (_C.default_stream(MTIA, i) for i in range(2))
assert zero.native_handle == one.native_handle == 0 and zero != one
work = launch(one)
assert zero.query() and not one.query() and Stream("mtia:1").query()
complete(work)
_C.synchronize(MTIA, 1)
""",
    "external streams": """
status, handle = _C.raw_stream_create(MTIA, 1)
assert status == 0
stream = ExternalStream(handle, "mtia:1")
work = launch(stream)
same = Stream(stream_id=handle, device_index=1, device_type=MTIA)
assert same == stream and not same.query()
complete(work)
same.synchronize()
assert ExternalStream(0, "mtia") == _C.default_stream(MTIA, 0)
for wrong in (1, 12345, 2**64 - 1):
    wrong = ExternalStream(wrong, "mtia")
    raises(pystreams.AcceleratorError, "no such object", wrong.query)
    raises(ValueError, "a stream of a fake device", launch, wrong)
raises(RuntimeError, "is not a CUDA stream", stream.__cuda_stream__)
raises(ValueError, "a stream of a fake device", launch, Stream("cpu"))
raises(AttributeError, "device_type", launch, 3)
""",
    "no memory": """
absent = "the mtia backend does not support "
raises(NotImplementedError, absent + "memory", pystreams.empty, 8,
       device="mtia")
raises(NotImplementedError, absent + "memory", pystreams.empty, 0,
       device="mtia", stream=Stream("mtia"))
raises(NotImplementedError, absent + "pinned memory", pystreams.empty, 8,
       device="mtia", pin_memory=True)
raises(NotImplementedError, absent + "memory", _C.mem_get_info, MTIA)
raises(NotImplementedError, absent + "peer access",
       _C.can_device_access_peer, MTIA, 0, 1)
raises(NotImplementedError, absent + "control of peer access",
       _C.set_peer_access, MTIA, 0, 1, True)
assert set(_C.memory_stats(MTIA).values()) == {0}
host = pystreams.empty(8, device="cpu")
raises(ValueError, "expects a stream of cpu", host.fill_, 1, Stream("mtia"))
raises(ValueError, "expects a stream of cpu", host.copy_, bytes(8), False,
       Stream("mtia"))
""",
    "no timing": """
absent = "the mtia backend does not support timing"
stream = Stream("mtia")
start, end = Event("mtia"), stream.record_event()
assert not start.enable_timing and not end.enable_timing
assert not Event("mtia", enable_timing=None).enable_timing
assert Event("cpu").enable_timing
raises(NotImplementedError, absent, Event, "mtia", enable_timing=True)
raises(NotImplementedError, absent, start.elapsed_time, end)
start.record(stream)
raises(NotImplementedError, absent, start.elapsed_time, end)
""",
    "no work, no capture": """
absent = "the mtia backend does not support "
stream = Stream("mtia")
raises(NotImplementedError, absent + "sleep", _C.sleep, MTIA, 100, stream)
raises(NotImplementedError, absent + "host functions",
       _C.launch_host_function, stream, 1)
shared = Event("mtia", interprocess=True)
raises(NotImplementedError, absent, shared.record, stream)
assert stream.is_capturing() is False
assert _C.versions(MTIA) == (0, 0)
assert _C.shutdown(0.0)
""",
    "failures": """
stream, other, fine = (Stream("mtia") for _ in range(3))
before = stream.record_event()
_C.fail(stream, 719)
other.wait_stream(stream)
for failed in (stream, other):
    for _ in range(2):
        raises(pystreams.AcceleratorError, "FAKE_UNKNOWN (719)",
               failed.synchronize)
    raises(pystreams.AcceleratorError, "719", failed.query)
assert before.query() and fine.query()
complete(launch(stream))
""",
    "the accelerator": """
assert str(pystreams.accelerator.current_accelerator()) == "mtia"
assert pystreams.accelerator.device_count() == 2
with Stream() as stream:
    assert stream.device == pystreams.device("mtia:0")
    Event().record()
assert pystreams.empty(8, device="cpu").device.type == "cpu"
raises(NotImplementedError, "memory", pystreams.empty, 8)
""",
    "a fork": """
import os
stream = Stream("mtia")
event = stream.record_event()
child = os.fork()
if child == 0:
    try:
        raises(RuntimeError, "'spawn' start method", Stream, "mtia")
        raises(RuntimeError, "'spawn' start method", event.record, stream)
        Stream("cpu").synchronize()
    except BaseException as error:
        print(error, flush=True)
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert Stream("mtia").query()
""",
    "the end while a thread waits": """
import threading
stream = Stream("mtia")
launch(stream)
threading.Thread(target=stream.synchronize, daemon=True).start()
event = stream.record_event()
threading.Thread(target=event.synchronize, daemon=True).start()
""",
    "waits with a limit": """
import asyncio, threading
stream = Stream("mtia")
work = launch(stream)
event = stream.record_event()
raises(TimeoutError, "Stream.synchronize", stream.synchronize, timeout=0.01)
raises(TimeoutError, "Event.synchronize", event.synchronize, timeout=0.01)
async def main():
    await stream
words = "does not support await, wait() or as_completed()"
raises(NotImplementedError, words, asyncio.run, main())
raises(NotImplementedError, words, pystreams.wait, [event])
threading.Timer(0.05, complete, [work]).start()
stream.synchronize(timeout=30)
event.synchronize(timeout=30)
_C.synchronize(MTIA, 0, 30)
""",
    "a second one of the name": """
import os
os.environ["FAULT"] = "query"
before = _C.backends()
try:
    import broken_device
except ValueError as error:
    assert str(error) == (
        "register_backend: the name 'mtia' is taken, by the backend with "
        "device type 13"
    )
else:
    raise AssertionError("taken twice")
assert _C.backends() == before
launch(Stream("mtia"))
""",
}


@pytest.mark.parametrize("case", CASES)
def test_fake_device(run_with_device, case):
    chosen = "mtia" if case == "the accelerator" else None
    env = {"PYSTREAMS_ACCELERATOR": chosen}
    done = run_with_device(HEAD + CASES[case], env=env, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
