"""The context managers of pystreams.cuda."""

import gc
import threading
import weakref

import pytest

import pystreams
from pystreams import cuda as api

pytestmark = pytest.mark.usefixtures("cuda")


def test_stream_context(two_cuda):
    stream = api.Stream(1)
    before = two_cuda.currents()
    with api.stream(stream) as nothing:
        assert nothing is None
        assert api.current_stream() == stream
        with api.stream(None):
            assert api.current_stream() == stream
        with api.stream(api.default_stream(0)):
            assert api.current_device() == 0
        assert api.current_stream() == stream
    assert two_cuda.currents() == before


def test_stream_context_over_an_exception(two_cuda):
    before = two_cuda.currents()
    with pytest.raises(KeyError), api.stream(api.Stream(1)):
        raise KeyError
    assert two_cuda.currents() == before


def test_stream_context_refuses_the_rest():
    for wrong in (1, "cuda:0", object()):
        with pytest.raises(TypeError), api.stream(wrong):
            pytest.fail("entered")
        with pytest.raises(TypeError):
            api.StreamContext(wrong)
    with pytest.raises(ValueError, match="Expected a cuda device"):
        api.stream(pystreams.Stream("cpu"))


def test_stream_context_in_a_subclass(two_cuda):
    class Named(api.StreamContext):
        def __init__(self, name, stream):
            super().__init__(stream=stream)
            self.name = name

    first, second = api.Stream(), api.Stream()
    context = Named("first", first)
    context.itself = context
    with context as nothing:
        assert nothing is None
        assert api.current_stream() == first == context.stream
    context.__init__("second", second)
    with context:
        assert api.current_stream() == second == context.stream
    assert api.current_stream() == api.default_stream()
    kept = weakref.ref(second)
    del context, second
    gc.collect()
    assert kept() is None
    # A context that was made without __init__ names no stream.
    with api.StreamContext.__new__(api.StreamContext):
        assert api.current_stream() == api.default_stream()


def test_a_stream_that_refers_to_its_context_is_collected():
    class Named(api.Stream):
        pass

    stream = Named()
    stream.context = api.StreamContext(stream)
    kept = weakref.ref(stream)
    del stream
    gc.collect()
    assert kept() is None


def test_device_context(two_cuda):
    with api.device(1) as nothing:
        assert nothing is None
        assert api.current_device() == 1
        with api.device("cuda:0"):
            assert api.current_device() == 0
        assert api.current_device() == 1
        with api.device(None):
            assert api.current_device() == 1
        with api.device(-1):
            assert api.current_device() == 1
    assert api.current_device() == 0


def test_device_context_attributes(two_cuda):
    context = api.device(two_cuda.device(1))
    assert context.idx == 1
    assert context.prev_idx == -1
    with context:
        assert context.prev_idx == 0
    assert api.device(None).idx == 0
    assert api.device(-1).idx == -1


def test_device_context_in_a_subclass(two_cuda):
    class Last(api.device):
        def __init__(self):
            super().__init__(two_cuda.count - 1)

    with Last() as nothing:
        assert nothing is None
        assert api.current_device() == two_cuda.count - 1
    assert api.current_device() == 0
    # A context that was made without __init__ names no device.
    with api.device.__new__(api.device):
        assert api.current_device() == 0


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        (1 << 31, OverflowError),
        (1 << 80, OverflowError),
        (True, TypeError),
        (1.0, TypeError),
        ("cpu", ValueError),
    ],
    ids=str,
)
def test_device_context_refuses_the_rest(two_cuda, argument, error):
    with pytest.raises(error):
        api.device(argument)
    assert api.current_device() == 0


def test_device_context_left_without_being_entered(two_cuda):
    context = api.device(1)
    with pytest.raises(RuntimeError, match="did not enter"):
        context.__exit__(None, None, None)
    assert api.current_device() == 0


def test_device_context_entered_again(two_cuda):
    context, other = api.device(1), api.device(0)
    with context:
        with other:
            with context:
                with context:
                    assert api.current_device() == 1
                assert api.current_device() == 1
            assert api.current_device() == 0
        assert api.current_device() == 1
    assert api.current_device() == 0


def test_device_context_entered_by_two_threads(two_cuda):
    """The other thread starts on device 0 and this one on device 1; each
    comes back to its own."""
    context = api.device(0)
    entered, left = threading.Event(), threading.Event()
    result = []

    def other():
        with context:
            entered.set()
            assert left.wait(30)
        result.append(api.current_device())

    thread = threading.Thread(target=other)
    api.set_device(1)
    with context:
        thread.start()
        assert entered.wait(30)
    left.set()
    thread.join()
    assert api.current_device() == 1
    assert result == [0]


def test_device_context_over_an_exception(two_cuda):
    with pytest.raises(KeyError), api.device(1):
        raise KeyError
    assert api.current_device() == 0


def test_device_of(two_cuda):
    block = two_cuda.empty(16, 1)
    with api.device_of(block):
        assert api.current_device() == 1
    with api.device_of(api.Stream(1)):
        assert api.current_device() == 1
    with api.device_of(object()):
        assert api.current_device() == 0
    with api.device_of(pystreams.empty(16, device="cpu")):
        assert api.current_device() == 0
    assert api.current_device() == 0


def test_device_of_what_is_not_on_a_device(two_cuda):
    """As in torch, get_device() is not called if is_cuda is False."""

    class OnHost:
        is_cuda = False

        def get_device(self):
            raise RuntimeError

    with api.device(1), api.device_of(OnHost()):
        assert api.current_device() == 1
