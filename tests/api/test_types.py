"""The module's types cannot be changed from Python, and can be subclassed
where their documentation says so."""

from types import MethodDescriptorType

import pytest

from pystreams import _C

TYPES = sorted(
    (t for t in vars(_C).values() if isinstance(t, type)),
    key=lambda t: (t.__module__, t.__qualname__),
)
EXCEPTIONS = [t for t in TYPES if issubclass(t, Exception)]
OBJECTS = [t for t in TYPES if t not in EXCEPTIONS]


def name(type):
    return f"{type.__module__}.{type.__qualname__}"


@pytest.fixture(params=OBJECTS, ids=name)
def type_of_ours(request):
    return request.param


def test_all_types_are_here():
    assert len(OBJECTS) == 16
    assert {t.__name__ for t in EXCEPTIONS} == {
        "AcceleratorError",
        "OutOfMemoryError",
    }


def test_attributes_are_fixed(type_of_ours):
    for name in ("__doc__", "__repr__", "new"):
        before = vars(type_of_ours).get(name)
        with pytest.raises(TypeError, match="immutable type"):
            setattr(type_of_ours, name, None)
        assert vars(type_of_ours).get(name) is before
    with pytest.raises(TypeError, match="immutable type"):
        del type_of_ours.__doc__


def test_bases_are_fixed(type_of_ours):
    with pytest.raises(TypeError, match="immutable type"):
        type_of_ours.__bases__ = (object,)


@pytest.mark.parametrize(
    "derived",
    [_C.CudaStream, _C.ExternalStream, _C.CudaExternalStream, _C.CudaEvent],
)
def test_methods_are_the_types_own(derived):
    """The interpreter specializes a call of a method if the object's own type
    has it."""
    base = _C.CudaEvent.__base__ if derived is _C.CudaEvent else _C.Stream
    methods = {
        name
        for name, member in vars(base).items()
        if isinstance(member, MethodDescriptorType)
    }
    assert {"query", "synchronize"} <= methods <= set(vars(derived))


def test_the_lock_of_a_future_is_fixed(backend):
    condition = type(backend.stream().submit(int)._condition)
    with pytest.raises(TypeError, match="immutable type"):
        condition.acquire = None


def test_an_object_keeps_its_type(stream):
    with pytest.raises(TypeError):
        stream.__class__ = object


def test_attributes_of_a_subclass_are_its_own(type_of_ours):
    try:
        subclass = type("Subclass", (type_of_ours,), {})
    except TypeError as error:
        assert "is not an acceptable base type" in str(error)
        return
    subclass.new = 1
    subclass.__doc__ = "mine"
    assert not hasattr(type_of_ours, "new")
    assert type_of_ours.__doc__ != "mine"
