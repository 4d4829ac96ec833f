"""pystreams.device: parsing, printing, equality.  Needs no device at all."""

import copy
import pickle
import re

import pytest

import pystreams
from pystreams import device

GOOD = [
    (("cuda:1",), "cuda", 1),
    (("cuda",), "cuda", None),
    (("cuda", 1), "cuda", 1),
    (("cuda:0",), "cuda", 0),
    (("cpu",), "cpu", None),
    (("cpu:0",), "cpu", 0),
    (("cpu", 0), "cpu", 0),
    (("cuda:17",), "cuda", 17),
]


@pytest.mark.parametrize(("arguments", "kind", "index"), GOOD)
def test_type_and_index(arguments, kind, index):
    d = device(*arguments)
    assert d.type == kind
    assert d.index == index
    assert type(d.index) is (int if index is not None else type(None))


def test_int_is_an_index_of_the_accelerator():
    accelerator = pystreams.accelerator.current_accelerator()
    assert device(1) == device(accelerator.type, 1)


def test_device_of_a_device():
    assert device(device("cuda:1")) == device("cuda:1")


def test_keywords():
    assert device(type="cuda", index=1) == device("cuda:1")


@pytest.mark.parametrize(
    ("d", "text", "source"),
    [
        (device("cuda:1"), "cuda:1", "device(type='cuda', index=1)"),
        (device("cuda"), "cuda", "device(type='cuda')"),
        (device("cpu", 0), "cpu:0", "device(type='cpu', index=0)"),
    ],
)
def test_text(d, text, source):
    assert str(d) == text
    assert repr(d) == source
    assert eval(source, {"device": device}) == d


def test_equality_and_hash():
    assert device("cuda:1") == device("cuda", 1)
    assert device("cuda:1") != device("cuda:0")
    assert device("cuda") != device("cuda:0")
    assert device("cpu:0") != device("cuda:0")
    assert device("cuda:1") != "cuda:1"
    assert device("cuda:1") != 1
    assert device("cuda:1").__eq__("cuda:1") is NotImplemented
    assert hash(device("cuda:1")) == hash(device("cuda", 1))


def test_dictionary_key():
    seen = {device("cuda:1"): "first"}
    seen[device("cuda", 1)] = "second"
    assert seen == {device("cuda:1"): "second"}


def test_no_order():
    with pytest.raises(TypeError):
        sorted([device("cuda:0"), device("cuda:1")])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("text", ["cuda:1", "cuda", "cpu", "cpu:0"])
def test_pickle(text, protocol):
    d = device(text)
    again = pickle.loads(pickle.dumps(d, protocol))
    assert again == d
    assert type(again) is device


def test_copy():
    d = device("cuda:1")
    assert copy.copy(d) == d
    assert copy.deepcopy(d) == d


@pytest.mark.parametrize("name", ["type", "index", "other"])
def test_immutable(name):
    d = device("cuda:1")
    with pytest.raises((AttributeError, TypeError)):
        setattr(d, name, 0)
    assert d == device("cuda:1")


@pytest.mark.parametrize(
    "text",
    [
        "cuda0",
        "cuda:",
        "cuda:x",
        "cuda:-1",
        "cuda:1:2",
        "cuda: 1",
        "cuda:1 ",
        ":",
        ":1",
        "teapot:x",
    ],
)
def test_malformed(text):
    with pytest.raises(RuntimeError) as caught:
        device(text)
    assert str(caught.value) == f"Invalid device string: '{text}'"


@pytest.mark.parametrize("text", ["teapot", "teapot:1", "CUDA", "_"])
def test_unknown_type(text):
    with pytest.raises(RuntimeError) as caught:
        device(text)
    name = text.split(":")[0]
    assert re.fullmatch(
        r"Expected one of (\w+, )*cpu, cuda, (\w+, )*privateuseone "
        f"device type at start of device string: {name}",
        str(caught.value),
    )


def test_empty():
    with pytest.raises(RuntimeError, match="string must not be empty"):
        device("")


@pytest.mark.parametrize(
    "text",
    ["cuda:99999999999999999999", "cuda:2147483648", "cuda:\u0661", "cud\0a"],
)
def test_hostile_string(text):
    with pytest.raises((RuntimeError, ValueError)):
        device(text)


def test_string_that_is_no_text():
    with pytest.raises(RuntimeError) as caught:
        device("\ud800")
    assert str(caught.value).startswith("Invalid device string: ")


def test_index_out_of_range():
    with pytest.raises(OverflowError):
        device(2**40)
    with pytest.raises(OverflowError):
        device("cuda", 2**40)


def test_malformed_on_the_way_in():
    """A device argument is parsed by the same rule wherever it stands."""
    with pytest.raises(RuntimeError, match="Invalid device string: 'cuda0'"):
        pystreams.Stream("cuda0")
    with pytest.raises(RuntimeError, match="Invalid device string: 'cuda0'"):
        pystreams.Event("cuda0")


@pytest.mark.parametrize(
    "arguments",
    [(), (1.5,), ("cuda", "1"), ("cuda", 1.0), (b"cuda",), ([],)],
)
def test_wrong_types(arguments):
    with pytest.raises(TypeError):
        device(*arguments)


@pytest.mark.parametrize("arguments", [(-1,), ("cuda", -2), ("cuda:1", 2)])
def test_wrong_index(arguments):
    with pytest.raises((RuntimeError, ValueError)):
        device(*arguments)


def test_a_device_need_not_exist():
    d = device("cuda:7")
    assert d.index == 7


def test_torch_spelling():
    torch = pystreams
    assert isinstance(torch.device("cuda:1"), torch.device)
