"""Checks what a wheel of pystreams contains, and that the package works.

Run it by an interpreter for which the wheel was installed:

python .ci/check_wheel.py WHEEL
"""

import ast
import json
import shutil
import sys
import zipfile

EXPECTED = {
    "pystreams/__init__.py",
    "pystreams/_C.pyi",
    "pystreams/py.typed",
    "pystreams/include/pystreams/backend.h",
    "pystreams/include/pystreams/faults.h",
    "pystreams/cuda/__init__.py",
    "pystreams/testing/plugin.py",
    "pytest_pystreams.py",
}
ENDINGS = (".py", ".pyi", "/py.typed", ".h")


def check_names(names, info):
    missing = EXPECTED - names
    assert not missing, f"not in the wheel: {sorted(missing)}"
    (library,) = [name for name in names if name.endswith(".so")]
    assert library.startswith("pystreams/_C."), library
    for name in names:
        assert name.startswith(("pystreams/", "pytest_pystreams.py", info)), (
            f"does not belong into the wheel: {name}"
        )
        known = name == library or name.endswith(ENDINGS)
        assert known or name.startswith(info), f"no such file: {name}"


def check_metadata(wheel, names, info):
    metadata = wheel.read(f"{info}METADATA").decode()
    for text in (
        "License-Expression: BSD-3-Clause\n",
        "License-File: LICENSE\n",
        "License-File: licenses/NVIDIA-CUDA-EULA.txt\n",
        "Requires-Python: >=3.10\n",
    ):
        assert text in metadata, f"METADATA lacks {text!r}"
    assert "Redistribution" in wheel.read(f"{info}licenses/LICENSE").decode()
    eula = f"{info}licenses/licenses/NVIDIA-CUDA-EULA.txt"
    assert "End User License Agreement" in wheel.read(eula).decode()
    bills = [name for name in names if name.startswith(f"{info}sboms/")]
    (part,) = [
        component
        for name in bills
        for component in json.loads(wheel.read(name)).get("components", ())
        if component["name"] == "cudart_static"
    ]
    assert part["version"].startswith("1"), part


def check_stub(text):
    """Check that the stub's docstrings are those of the module."""
    from pystreams import _C

    count = 0

    def check(body, owner):
        nonlocal count
        for node in body:
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                continue
            doc = ast.get_docstring(node)
            if doc is not None:
                built = getattr(owner, node.name).__doc__
                assert doc.split() == built.split(), node.name
                count += 1
            if isinstance(node, ast.ClassDef):
                check(node.body, getattr(owner, node.name, None))

    check(ast.parse(text).body, _C)
    assert count > 150, f"the stub has {count} docstrings"


def check_work():
    """Check that the package works without a compiler."""
    assert shutil.which("cc") is None
    import pystreams
    from pystreams import _C, schedules

    assert "cuda" in dict(_C.backends())
    stream = pystreams.Stream("cpu")
    data = pystreams.empty(4096, device="cpu", stream=stream)
    data.fill_(7, stream=stream)
    assert stream.submit(int).result(30) == 0
    stream.synchronize(30)
    assert data.tobytes() == bytes([7]) * 4096
    with schedules.run("late"):
        data.zero_(stream=stream)
    assert not any(data.tobytes())


def main(path):
    with zipfile.ZipFile(path) as wheel:
        names = {n for n in wheel.namelist() if not n.endswith("/")}
        (info,) = {
            f"{name.split('/')[0]}/" for name in names if ".dist-info/" in name
        }
        check_names(names, info)
        check_metadata(wheel, names, info)
        check_stub(wheel.read("pystreams/_C.pyi").decode())
    check_work()
    print(f"{path.rsplit('/', 1)[-1]}: holds what it should, and works")


if __name__ == "__main__":
    main(*sys.argv[1:])
