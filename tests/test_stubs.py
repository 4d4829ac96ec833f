"""_C.pyi matches the built module, and everything public is documented."""

import ast
import inspect
import types
from pathlib import Path

import pytest

import pystreams
from pystreams import _C
from pystreams.cuda import _gpu_trace

STUB = Path(pystreams.__file__).parent / "_C.pyi"
TREE = ast.parse(STUB.read_text())
DUNDERS = {
    "__cuda_array_interface__",
    "__cuda_stream__",
    "__dlpack__",
    "__dlpack_device__",
    "__enter__",
    "__exit__",
    "__getitem__",
}


def is_type_check_only(node):
    return any(
        isinstance(d, ast.Name) and d.id == "type_check_only"
        for d in node.decorator_list
    )


def definitions(body):
    """name -> the nodes that define it, overloads and all."""
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            if not is_type_check_only(node):
                found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign):
            found.setdefault(node.target.id, []).append(node)
    return found


STUBBED = {
    name: nodes
    for name, nodes in definitions(TREE.body).items()
    if name != "__file__"
}
CLASSES = [
    n for n, nodes in STUBBED.items() if isinstance(nodes[0], ast.ClassDef)
]
FUNCTIONS = [
    n for n, nodes in STUBBED.items() if isinstance(nodes[0], ast.FunctionDef)
]
PUBLIC = sorted(n for n in vars(_C) if not n.startswith("__"))


def test_same_names():
    assert sorted(STUBBED) == PUBLIC


def members(cls):
    """What users see of a class, beyond what Python puts there."""
    return {
        name
        for name in vars(cls)
        if not name.startswith("__") or name in DUNDERS
    }


@pytest.mark.parametrize("name", CLASSES)
def test_same_members(name):
    (node,) = STUBBED[name]
    cls = getattr(_C, name)
    stubbed = {
        n
        for n in definitions(node.body)
        if not n.startswith("__") or n in DUNDERS
    }
    if issubclass(cls, Exception):
        assert stubbed <= {"error_code"}
        return
    assert stubbed == members(cls)


@pytest.mark.parametrize("name", CLASSES)
def test_same_bases(name):
    (node,) = STUBBED[name]
    bases = [getattr(_C, b.id, None) or eval(b.id) for b in node.bases]
    assert bases == [
        base for base in getattr(_C, name).__bases__ if base is not object
    ]


def parameters(node):
    """(name, kind, whether it has a default) of a stub's function."""
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    first_default = len(positional) - len(a.defaults)
    kinds = inspect.Parameter
    for i, arg in enumerate(positional):
        kind = (
            kinds.POSITIONAL_ONLY
            if i < len(a.posonlyargs)
            else kinds.POSITIONAL_OR_KEYWORD
        )
        yield arg.arg, kind, i >= first_default
    if a.vararg:
        yield a.vararg.arg, kinds.VAR_POSITIONAL, False
    for arg, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        yield arg.arg, kinds.KEYWORD_ONLY, default is not None
    if a.kwarg:
        yield a.kwarg.arg, kinds.VAR_KEYWORD, False


def defaults(node):
    """name -> value, of those defaults that a stub spells out."""
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    pairs = zip(
        [*positional[len(positional) - len(a.defaults) :], *a.kwonlyargs],
        [*a.defaults, *a.kw_defaults],
        strict=True,
    )
    return {
        arg.arg: default.value
        for arg, default in pairs
        if isinstance(default, ast.Constant) and default.value is not ...
    }


def check_signature(nodes, built, bound):
    signature = inspect.signature(built)
    actual = [
        (p.name, p.kind, p.default is not p.empty)
        for p in signature.parameters.values()
    ]
    if bound:
        assert actual[0][0] == "self"
        actual = actual[1:]
    described = [list(parameters(node)) for node in nodes]
    described = [
        d[1:] if d and d[0][0] in {"self", "cls"} else d for d in described
    ]
    if len(nodes) == 1:
        assert described[0] == actual
        for name, value in defaults(nodes[0]).items():
            assert signature.parameters[name].default == value
    else:
        # A text signature has one form: the usual one, or one for all.
        names = {name for one in described for name, _, _ in one}
        assert actual in described or names == {name for name, _, _ in actual}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_parameters(name):
    check_signature(STUBBED[name], getattr(_C, name), False)


@pytest.mark.parametrize("name", CLASSES)
def test_same_parameters_of_methods(name):
    (node,) = STUBBED[name]
    cls = getattr(_C, name)
    for method, nodes in definitions(node.body).items():
        if not isinstance(nodes[0], ast.FunctionDef):
            continue
        decorators = {
            d.id for d in nodes[0].decorator_list if isinstance(d, ast.Name)
        }
        if "property" in decorators:
            assert isinstance(
                inspect.getattr_static(cls, method),
                (types.GetSetDescriptorType, types.MemberDescriptorType),
            )
        elif method in {"__new__", "__init__"}:
            check_signature(nodes, cls, False)
        elif method in DUNDERS or not method.startswith("__"):
            bound = not decorators & {"staticmethod", "classmethod"}
            check_signature(nodes, getattr(cls, method), bound)


def built_callables():
    for name in PUBLIC:
        value = getattr(_C, name)
        if isinstance(value, type):
            yield name, value
            if issubclass(value, Exception):
                continue
            for member in sorted(members(value)):
                yield f"{name}.{member}", getattr(value, member)
        elif callable(value):
            yield name, value


BUILT = dict(built_callables())


@pytest.mark.parametrize("name", BUILT)
def test_what_was_built_says_what_it_does(name):
    value = BUILT[name]
    doc = inspect.getdoc(value)
    assert doc
    assert doc.rstrip().endswith((".", ")"))
    made = isinstance(value, type) and not issubclass(value, Exception)
    if (made and value is not _C.Buffer) or inspect.isroutine(value):
        assert value.__text_signature__ is not None
        inspect.signature(value)


MODULES = (
    pystreams,
    pystreams.accelerator,
    pystreams.cuda,
    pystreams.trace,
)


def package_functions():
    for module in (*MODULES, _gpu_trace):
        for name, value in sorted(vars(module).items()):
            if name.startswith("__"):
                continue
            if getattr(value, "__module__", None) != module.__name__:
                continue
            if callable(value):
                yield f"{module.__name__}.{name}", value


PACKAGE = dict(package_functions())


@pytest.mark.parametrize(
    "name", [n for n in PACKAGE if not n.split(".")[-1].startswith("_")]
)
def test_the_package_says_what_it_does(name):
    assert inspect.getdoc(PACKAGE[name])


@pytest.mark.parametrize("module", MODULES)
def test_all_is_all(module):
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name)


def test_marked_as_typed():
    assert (STUB.parent / "py.typed").exists()
