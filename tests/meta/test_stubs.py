"""_C.pyi matches the built module, and everything public is documented."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import pystreams
from pystreams import _C
from pystreams.cuda import _gpu_trace

STUB = Path(pystreams.__file__).parent / "_C.pyi"
DUNDERS = {
    "__cuda_array_interface__",
    "__cuda_stream__",
    "__dlpack__",
    "__dlpack_c_exchange_api__",
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
    """Return, for each name, the node that defines it.  If the name has
    overloads, this is one of them."""
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            if not is_type_check_only(node):
                found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = node
    return found


STUBBED = definitions(ast.parse(STUB.read_text()).body)
CLASSES = {n: d for n, d in STUBBED.items() if isinstance(d, ast.ClassDef)}
PUBLIC = sorted(n for n in vars(_C) if not n.startswith("__"))


def test_same_names():
    assert sorted(STUBBED) == PUBLIC


def is_repeated(cls, name):
    """Return whether a derived type only repeats a method of its base."""
    own, inherited = vars(cls)[name], getattr(cls.__base__, name, None)
    return callable(inherited) and (
        own.__text_signature__ == inherited.__text_signature__
        and own.__doc__ == inherited.__doc__
    )


def members(cls):
    """Return what users see of a class, except what Python adds and what the
    class repeats of its base."""
    return {
        name
        for name in vars(cls)
        if not name.startswith("__") or name in DUNDERS
        if not is_repeated(cls, name)
    }


@pytest.mark.parametrize("name", CLASSES)
def test_same_members(name):
    cls = getattr(_C, name)
    stubbed = {
        n
        for n in definitions(CLASSES[name].body)
        if not n.startswith("__") or n in DUNDERS
    }
    if issubclass(cls, Exception):
        assert stubbed <= {"error_code"}
        return
    assert stubbed == members(cls)


@pytest.mark.parametrize("name", CLASSES)
def test_same_bases(name):
    bases = [
        getattr(_C, b.id, None) or eval(b.id) for b in CLASSES[name].bases
    ]
    assert bases == [
        base for base in getattr(_C, name).__bases__ if base is not object
    ]


# A text signature shows one of two overloads, and Python before 3.12 has no
# __buffer__.
ALLOWED = r"""
pystreams\._C\.(Cuda)?Stream\.__new__
pystreams\._C\.Buffer\.__buffer__
"""


def test_stubtest_agrees(tmp_path):
    """Stub and module agree about parameters and defaults, and about which
    classes are final."""
    pytest.importorskip("mypy", reason="needs mypy, which the extra dev has")
    allowed = tmp_path / "allowed"
    allowed.write_text(ALLOWED)
    options = ["--concise", "--ignore-disjoint-bases", "--allowlist", allowed]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy.stubtest", *options),
            *("--ignore-unused-allowlist", "pystreams._C"),
        ],
        # mypy does not follow an editable install.
        cwd=STUB.parent.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
