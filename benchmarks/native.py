"""Builds the C programs of benchmarks/c as libraries, and calls them.

Each program has `int prepare(void)`, which returns 0 if the program can
measure here, and functions `double name(int count)`, which return nanoseconds
per operation, or a negative number after a failure.  The exception is bare.c,
an extension module.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from importlib.util import (
    find_spec,
    module_from_spec,
    spec_from_file_location,
)
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FLAGS = ["-std=c11", "-O2", "-fPIC", "-shared", "-pthread", "-D_GNU_SOURCE"]


def engine():
    """The compiler's arguments for a program that calls the CPU engine."""
    sources = sorted((ROOT / "csrc/backends/cpu").glob("*.c"))
    return [*sources, f"-I{ROOT / 'csrc/include'}"]


def toolkit():
    """The compiler's arguments for a program that calls cudart."""
    roots = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    if nvcc := shutil.which("nvcc"):
        roots.append(Path(nvcc).resolve().parent.parent)
    wheels = find_spec("nvidia")
    for folder in wheels.submodule_search_locations if wheels else []:
        roots += sorted(Path(folder).glob("cu[0-9]*"), reverse=True)
    for root in roots:
        for home in (root, *root.glob("targets/*-linux")):
            for libraries in (home / "lib64", home / "lib"):
                if (libraries / "libcudart_static.a").exists():
                    found = [f"-I{home / 'include'}", f"-L{libraries}"]
                    return [*found, "-lcudart_static", "-ldl", "-lrt"]
    raise FileNotFoundError("no libcudart_static.a: set CUDA_HOME")


def compiled(load, source, *options):
    """Compile the source to a library and return load(its path).  The file is
    deleted afterwards; the loaded library stays."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "rows.so")
        command = [os.environ.get("CC", "cc"), *FLAGS, HERE / "c" / source]
        done = subprocess.run(
            [*command, "-o", library, *options], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{source} is not built: {done.stderr[-60:]}")
        return load(str(library))


def build(source, *options):
    loaded = compiled(ctypes.CDLL, source, *options)
    status = loaded.prepare()
    if status:
        raise RuntimeError(f"{source} can't measure here: status {status}")
    return loaded


def extension(name, *options):
    """Compile and import the extension module of the file {name}.c."""

    def load(path):
        spec = spec_from_file_location(name, path)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    headers = f"-I{sysconfig.get_path('include')}"
    return compiled(load, f"{name}.c", headers, *options)


def rows(source, *options):
    """The functions that the source defines with ROW(), by their names."""
    loaded = build(source, *options)
    text = (HERE / "c" / source).read_text()
    return {
        name: checked(getattr(loaded, name))
        for name in re.findall(r"^ROW\((\w+)", text, re.M)
    }


def checked(function):
    function.restype = ctypes.c_double

    def batch(count):
        took = function(count)
        if took < 0:
            raise RuntimeError(f"{function.__name__} failed")
        return took

    return batch
