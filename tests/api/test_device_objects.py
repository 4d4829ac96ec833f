"""Devices of other libraries: any object with a type and an index is one."""

from types import SimpleNamespace

import pytest
from integers import Number

import pystreams
from pystreams import _C


def named(type, index=None):
    return SimpleNamespace(type=type, index=index)


@pytest.mark.parametrize("index", [None, 0, 1])
def test_equal_devices(index):
    found = pystreams.device(named("cuda", index))
    assert (found.type, found.index) == ("cuda", index)
    assert pystreams.device(found) == found


def test_every_call_takes_one(backend):
    device = named(backend.name, 0)
    assert pystreams.Stream(device).device == backend.device()
    assert pystreams.Event(device).device.type == backend.name
    assert pystreams.empty(8, device=device).device == backend.device()
    assert _C.device_index(backend.type, device) == 0
    _C.synchronize(backend.type, device)
    _C.memory_stats(backend.type, named(backend.name))
    assert pystreams.Stream.priority_range(device)[0] == 0


def test_cuda_takes_one(cuda):
    device = named("cuda", 0)
    api = pystreams.cuda
    assert api.Stream(device).device == cuda.device()
    assert api.current_stream(device).device == cuda.device()
    assert api.mem_get_info(device)[1] > 0
    assert api.get_device_properties(device).total_memory > 0
    api.set_device(device)
    with api.device(device):
        assert api.current_device() == 0
    with api.device_of(SimpleNamespace(device=device)):
        assert api.current_device() == 0


def test_the_accelerator_takes_one(accelerator):
    api = pystreams.accelerator
    device = named(accelerator.name, 0)
    assert api.current_stream(device).device == accelerator.device()
    assert api.memory_stats(device) == api.memory_stats(0)
    other = named("cpu" if accelerator.name == "cuda" else "cuda", 0)
    with pytest.raises(ValueError, match="match the current accelerator"):
        api.current_stream(other)


def test_any_integer_is_an_index(backend):
    device = named(backend.name, Number(0))
    assert pystreams.Stream(device).device == backend.device()
    assert pystreams.device(device).index == 0
    assert pystreams.Stream(SimpleNamespace(idx=Number(0))).device.index == 0


def test_of_torch(torch):
    device = torch.device("cuda:0")
    assert pystreams.Stream(device).device == pystreams.device("cuda:0")
    assert pystreams.cuda.get_device_name(
        device
    ) == torch.cuda.get_device_name(device)


def test_of_the_wrong_type(cuda):
    with pytest.raises(ValueError, match="Expected a cuda device, but got"):
        pystreams.cuda.Stream(named("cpu", 0))
    with pytest.raises(ValueError, match="Expected a cuda device, but got"):
        pystreams.cuda.mem_get_info(named("cpu"))


@pytest.mark.parametrize(
    ("device", "error", "match"),
    [
        (named("gpu", 0), RuntimeError, "Expected one of cpu"),
        (named("", 0), RuntimeError, "must not be empty"),
        (named("cuda", -1), RuntimeError, "must not be negative"),
        (named("cuda", 2**40), OverflowError, "at most"),
        (
            named("cuda", "1"),
            TypeError,
            r"expects an int or None for \w+\.index, but got str",
        ),
        (
            named(1, 1),
            TypeError,
            r"expects a str for \w+\.type, but got int",
        ),
        (SimpleNamespace(type="cuda"), TypeError, "expects a device"),
        (SimpleNamespace(index=0), TypeError, "expects a device"),
    ],
    ids=str,
)
def test_what_is_none(device, error, match):
    for call in (pystreams.Stream, pystreams.device):
        with pytest.raises(error, match=match):
            call(device)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (named(1, 1), "a str for device.type, but got int"),
        (named(None, "1"), "an int or None for device.index, but got str"),
    ],
    ids=str,
)
def test_the_accelerator_names_the_attribute(accelerator, device, expected):
    device.type = device.type or accelerator.name
    with pytest.raises(TypeError) as caught:
        pystreams.accelerator.current_stream(device)
    assert str(caught.value) == f"current_stream() expects {expected}"


def test_attributes_that_raise():
    class Raising:
        type = "cuda"

        @property
        def index(self):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pystreams.Stream(Raising())


def test_the_index_is_none(accelerator):
    device = named(accelerator.name)
    assert pystreams.Stream(device).device == accelerator.device()
    with pytest.raises(ValueError, match="with a specified index"):
        pystreams.accelerator.set_device_index(device)
