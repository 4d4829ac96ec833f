"""Puts the docstrings of the built module into its stub, for editors:

python stub_docs.py LIBRARY STUB

setup.py runs it for what is installed; the stub in the checkout has none.
"""

import ast
import importlib.util
import sys
import types
from pathlib import Path


def load(library):
    spec = importlib.util.spec_from_file_location("pystreams._C", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def quoted(doc, indent):
    doc = doc.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    lines = doc.strip().splitlines()
    end = "\n" + indent if len(lines) > 1 else ""
    text = "\n".join(f"{indent}{line}".rstrip() for line in lines).lstrip()
    return f'{indent}"""{text}{end}"""\n'


def insertions(body, owner):
    """Yield (node, docstring) of each definition that has one."""
    seen = set()
    for node in body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        # Skip what the module lacks, and a name that was seen already, as for
        # a second overload or the setter of a property.
        documented = getattr(owner, node.name, None)
        if documented is None or node.name in seen:
            continue
        seen.add(node.name)
        doc = documented.__doc__
        # Leave out Python's own docstrings, such as that of __init__, which
        # say nothing about this method.
        is_pythons = isinstance(documented, types.WrapperDescriptorType)
        is_own = node.name in vars(owner) and node.name != "__new__"
        if doc and is_own and not is_pythons:
            yield node, doc
        if isinstance(node, ast.ClassDef):
            yield from insertions(node.body, documented)


def with_docs(text, module):
    """Return the stub's text with docstrings."""
    lines = text.splitlines(keepends=True)
    found = list(insertions(ast.parse(text).body, module))
    # Insert from the end, so that the numbers of earlier lines stay valid.  If
    # a class's docstring and that of its first method go to the same line,
    # insert the method's first.
    found.sort(key=lambda f: (f[0].body[0].lineno, f[0].col_offset))
    for node, doc in reversed(found):
        first = node.body[0]
        indent = " " * (node.col_offset + 4)
        decorators = getattr(first, "decorator_list", ())
        row = min(part.lineno for part in (first, *decorators)) - 1
        if ast.unparse(first) == "...":
            before = lines[row][: first.col_offset].rstrip()
            lines[row] = (before + "\n" if before else "") + quoted(
                doc, indent
            )
        else:
            lines.insert(row, quoted(doc, indent))
    return "".join(lines)


if __name__ == "__main__":
    library, stub = sys.argv[1:]
    path = Path(stub)
    path.write_text(with_docs(path.read_text(), load(library)))
