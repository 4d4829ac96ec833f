"""A program's names for its objects: expressions by which a function reaches
them.

These functions run no code of the program, not even a property or a method of
its classes or metaclasses, because the program may be in any state.  So all
variables must be in a dict, not in another mapping.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections import deque
from itertools import islice
from keyword import iskeyword
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# _DEPTH is the most attributes and subscripts in an expression.  _WIDTH is the
# most items of a container, or attributes of an object, that are looked at.
# _OBJECTS is the most objects that are looked at altogether.
_DEPTH = 3
_WIDTH = 64
_OBJECTS = 500

# The attributes of a class, even if its metaclass defines others.
_mro_of, _dict_of, _module_of = (
    vars(type)[name].__get__ for name in ("__mro__", "__dict__", "__module__")
)

_ELEMENT = re.compile(r"(.+)\[(\d+)\]")


def _is_name(text: object) -> bool:
    return type(text) is str and text.isidentifier() and not iskeyword(text)


def _first(elements: Iterable[Any]) -> list[Any]:
    """Return the first elements.  Returns none if another thread adds or
    removes elements meanwhile, which is possible without a GIL."""
    try:
        return list(islice(elements, _WIDTH))
    except RuntimeError:
        return []


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the objects that an object stores."""
    for kind in _mro_of(type(value)):
        members = _dict_of(kind)
        for name in list(members.copy()):
            member = members.get(name)
            has_dict = type(member) is GetSetDescriptorType
            if not has_dict and type(member) is not MemberDescriptorType:
                continue
            if not _is_name(name) or has_dict != (name == "__dict__"):
                continue
            try:
                found = member.__get__(value)
            except (AttributeError, TypeError):
                # There is no value, or the member is another class's.
                continue
            if has_dict:
                yield from _items(found)
            else:
                yield name, found


def _items(dictionary: Any) -> Iterator[tuple[Any, object]]:
    """Of the first items of a dict, yield those whose keys are of type str or
    int.  The dict may change meanwhile."""
    # Do not iterate over items(): CPython 3.11 crashes if it has no memory
    # for the iterator.
    for key in _first(dict.__iter__(dictionary)):
        # Other keys may have a hash function that the program defines.
        if type(key) in (str, int):
            yield key, dict.get(dictionary, key)


def _is_builtin(kind: type) -> bool:
    try:
        module = _module_of(kind)
    except AttributeError:
        return False
    return type(module) is str and module == "builtins"


def _parts(value: object) -> Iterable[tuple[str, object]]:
    kind = type(value)
    if issubclass(kind, (list, tuple)):
        of: Any = list if issubclass(kind, list) else tuple
        items = enumerate(_first(of.__iter__(value)))
        return ((f"[{index}]", item) for index, item in items)
    if kind is deque:
        items = enumerate(_first(value))  # type: ignore
        return ((f"[{index}]", item) for index, item in items)
    if issubclass(kind, dict):
        return ((f"[{key!r}]", item) for key, item in _items(value))
    if issubclass(kind, (type, ModuleType)) or _is_builtin(kind):
        return ()
    return (
        (f".{name}", item)
        for name, item in _attributes(value)
        if _is_name(name)
    )


def expressions(
    variables: Mapping[str, object], kinds: tuple[type, ...]
) -> Iterator[tuple[str, Any]]:
    """Yield (expression, object) for each object of one of `kinds` that can be
    reached from the variables.  Short expressions come first.

    Looks at elements of lists, tuples, deques and dicts, and at attributes.
    """
    level = (
        (name, variables.get(name))
        for name in list(variables)
        if _is_name(name)
    )
    seen: set[int] = set()
    for _ in range(_DEPTH + 1):
        opened: list[tuple[str, object]] = []
        for text, value in level:
            if len(seen) == _OBJECTS:
                return
            if id(value) in seen:
                continue
            seen.add(id(value))
            if issubclass(type(value), kinds):
                yield text, value
            else:
                opened.append((text, value))
        level = (
            (text + part, item)
            for text, value in opened
            for part, item in _parts(value)
        )


def as_written(
    expression: str, variables: Mapping[str, object], filename: str
) -> str:
    """Return the expression of an element as the program's file has it.

    `used[0]` becomes `used[b]` if the file has `used[b]` and b is 0: in a
    loop, the next pass may need another element.
    """
    element = _ELEMENT.fullmatch(expression)
    if element is None:
        return expression
    container, index = element.groups()
    source = "".join(linecache.getlines(filename))
    written = rf"(?<![\w.]){re.escape(container)}\[([^\W\d]\w*)\]"
    for name in re.findall(written, source):
        value = variables.get(name)
        if type(value) is int and value == int(index):
            return f"{container}[{name}]"
    return expression


def name_in_package(path: str, variables: Mapping[str, object]) -> str | None:
    """Return the code that reaches a path in this package from the variables.

    For "cuda.default_stream(0)", this is "torch.cuda.default_stream(0)" if the
    variable `torch` is this package, and "default_stream(0)" if the variable
    `default_stream` is that function.  None if no variable leads to the path.
    """
    attributes, parenthesis, arguments = path.partition("(")
    value: Any = sys.modules[__package__]
    ways = [value]
    for attribute in attributes.split("."):
        ways.append(value := getattr(value, attribute))
    rest = ["", *attributes.split(".")]
    for index in reversed(range(len(ways))):
        for name in list(variables):
            if _is_name(name) and variables.get(name) is ways[index]:
                code = ".".join([name, *rest[index + 1 :]])
                return code + parenthesis + arguments
    return None
