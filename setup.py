"""Builds pystreams._C.  pyproject.toml has all settings that need no code.

Switches, read from the environment:
  PYSTREAMS_CUDA      1 (default): with CUDA, or fail; 0: without; auto: with
                      CUDA if a toolkit is found
  CUDA_HOME           the toolkit to build with, before any other
  PYSTREAMS_SANITIZE  address (and undefined behaviour), thread, or compute: a
                      query that finds a CUDA event done also waits for it,
                      because NVIDIA's compute-sanitizer sees an order in a
                      wait, but not in a query
  PYSTREAMS_SHARED    1: emulated CUDA is called with the GIL released, as the
                      CUDA backend is, so that races between threads show; the
                      default with PYSTREAMS_SANITIZE address or thread
  PYSTREAMS_DEBUG     1: no optimization, debug information
  PYSTREAMS_WERROR    1: warnings are errors
  PYSTREAMS_URL       the address of the project's repository on GitHub or
                      another host with the same paths.  With it, a package has
                      the project's URLs, and the links of its description lead
                      to the repository
"""

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError, LinkError, SetupError

EXPORTS = "csrc/exports.map"
SANITIZERS = {
    "address": [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
    ],
    "thread": ["-fsanitize=thread"],
}
NO_CUDA = """\
no CUDA toolkit to build with was found. Any of these provides one:
  - pip's isolated build, which fetches nvidia-cuda-runtime and
    nvidia-cuda-crt (without isolation, install the two by hand);
  - CUDA_HOME=/path/to/a/toolkit, version 12.0 or later;
  - a toolkit in /usr/local/cuda, or its nvcc on PATH.
PYSTREAMS_CUDA=0 builds for the CPU alone, and needs none."""

NO_PYTHON_H = """\
Python.h is not in {}, so no extension module can be built.
Install the headers of this Python: apt-get install python3-dev
(python{}-dev for this version alone)."""


def switch(name, default, choices):
    value = os.environ.get(name) or default
    if value not in choices:
        expected = ", ".join(filter(None, choices))
        raise SetupError(f"{name}={value}: expected one of {expected}")
    return value


def defined(macro, header):
    """Return the number that a header defines, or 0."""
    text = header.read_text(errors="replace")
    found = re.search(rf"#define {macro}\s+(\d+)", text)
    return int(found[1]) if found else 0


class Toolkit:
    """The folders of one CUDA toolkit, of any layout; paths or None."""

    def __init__(self, root):
        machine = platform.machine()
        targets = [f"targets/{machine}-linux", "targets/sbsa-linux", "."]
        multiarch = sysconfig.get_config_var("MULTIARCH") or ""
        libraries = ["lib64", "lib", f"lib/{multiarch}"]
        self.root = Path(root)
        self.include = self._find(
            [f"{target}/include" for target in targets],
            ["cuda.h", "cuda_runtime_api.h", "crt/host_defines.h"],
        )
        self.cudart = self._find(
            [f"{target}/{lib}" for target in targets for lib in libraries],
            ["libcudart_static.a"],
        )

    def _find(self, folders, names):
        for folder in folders:
            found = self.root / folder
            if all((found / name).is_file() for name in names):
                return found
        return None

    def fault(self):
        """Return why this toolkit cannot be used, or None if it can."""
        if self.include is None:
            return "has no cuda.h, cuda_runtime_api.h and crt/host_defines.h"
        if self.cudart is None:
            return "has no libcudart_static.a"
        if defined("CUDA_VERSION", self.include / "cuda.h") < 12000:
            return "is older than CUDA 12.0"
        return None


def find_toolkit():
    """The toolkit to build with, or None."""
    home = os.environ.get("CUDA_HOME")
    if home:
        toolkit = Toolkit(home)
        if toolkit.fault():
            raise SetupError(f"CUDA_HOME={home} {toolkit.fault()}")
        return toolkit
    roots = []
    wheels = importlib.util.find_spec("nvidia")
    if wheels is not None:
        for folder in wheels.submodule_search_locations or []:
            roots += sorted(glob(f"{folder}/cu[0-9]*"), reverse=True)
    roots.append("/usr/local/cuda")
    nvcc = shutil.which("nvcc")
    if nvcc:
        roots.append(Path(nvcc).resolve().parent.parent)
    return next((t for t in map(Toolkit, roots) if not t.fault()), None)


def check_python_h():
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        version = sysconfig.get_python_version()
        raise SetupError(NO_PYTHON_H.format(include, version))


def cuda_version(include):
    """The version of cudart that is linked, according to its header."""
    number = defined("CUDART_VERSION", include / "cuda_runtime_api.h")
    return f"{number // 1000}.{number % 1000 // 10}"


def bill_of_materials(name, version, cuda):
    """What the library is made of, in CycloneDX's format (PEP 770)."""
    cudart = {
        "type": "library",
        "supplier": {"name": "NVIDIA Corporation"},
        "name": "cudart_static",
        "version": cuda,
        "licenses": [{"license": {"name": "NVIDIA CUDA Toolkit EULA"}}],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "name": name,
                "version": version,
                "purl": f"pkg:pypi/{name}@{version}",
                "licenses": [{"license": {"id": "BSD-3-Clause"}}],
            }
        },
        "components": [cudart] if cuda is not None else [],
    }


def project_urls(repository):
    """Return the URLs that a package index lists; none without a
    repository."""
    if not repository:
        return {}
    files = f"{repository}/blob/HEAD"
    return {
        "Source": repository,
        "Documentation": f"{files}/docs/guide.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def description(readme, repository):
    """Return the readme, with links that work outside the repository."""
    if not repository:
        return readme

    def absolute(link):
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({repository}/{kind}/HEAD/{link[3]})"

    # Neither an address nor a heading of the page.
    relative = r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)"
    return re.sub(relative, absolute, readme)


class BuildExt(build_ext):
    def run(self):
        super().run()
        stub = Path(self.build_lib, "pystreams/_C.pyi")
        if not self.inplace and stub.exists():
            library = self.get_ext_fullpath("pystreams._C")
            command = [sys.executable, "stub_docs.py", library, stub]
            # A sanitized library cannot be loaded here.
            if subprocess.run(command, check=False).returncode != 0:
                print("pystreams: the stub has no docstrings")

    def build_extension(self, ext):
        check_python_h()
        # Compile all: object files may be left from a build with other
        # switches.
        self.force = True
        self.add_cuda(ext)
        self.add_options(ext)
        super().build_extension(ext)

    def add_cuda(self, ext):
        wanted = switch("PYSTREAMS_CUDA", "1", ["0", "1", "auto"])
        toolkit = find_toolkit() if wanted != "0" else None
        if toolkit is None:
            if wanted == "1":
                raise SetupError(NO_CUDA)
            print("pystreams: building without CUDA")
            return
        print(f"pystreams: building with the CUDA toolkit in {toolkit.root}")
        self.distribution.cuda_version = cuda_version(toolkit.include)
        ext.sources += sorted(glob("csrc/backends/cuda/*.c"))
        ext.define_macros.append(("PS_WITH_CUDA", "1"))
        ext.include_dirs.append(str(toolkit.include))
        ext.extra_objects.append(str(toolkit.cudart / "libcudart_static.a"))
        ext.libraries += ["dl", "rt"]

    def optimizes_across_files(self, options):
        """Whether link-time optimization works; clang with GNU ld may fail."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "check.c")
            source.write_text("int check(void) { return 0; }\n")
            try:
                objects = self.compiler.compile(
                    [str(source)], folder, extra_preargs=options
                )
                self.compiler.link_shared_object(
                    objects, f"{folder}/check.so", extra_preargs=options
                )
            except (CompileError, LinkError):
                return False
        return True

    def add_options(self, ext):
        sanitize = switch(
            "PYSTREAMS_SANITIZE", "", ["", "address", "thread", "compute"]
        )
        if sanitize == "compute":
            ext.define_macros.append(("PS_COMPUTE_SANITIZER", "1"))
            sanitize = ""
        debug = switch("PYSTREAMS_DEBUG", "0", ["0", "1"]) == "1"
        werror = switch("PYSTREAMS_WERROR", "0", ["0", "1"]) == "1"
        shared = switch(
            "PYSTREAMS_SHARED", "1" if sanitize else "0", ["0", "1"]
        )
        compile_args = ["-std=c11", "-pthread", "-fvisibility=hidden"]
        # The last entry of a table of methods or slots leaves out fields.
        compile_args += ["-Wall", "-Wextra", "-Wno-missing-field-initializers"]
        # Python's own flags may say otherwise; the last one counts.
        compile_args += ["-O0" if debug else "-O3"]
        link_args = ["-pthread", f"-Wl,--version-script={EXPORTS}"]
        if werror:
            compile_args.append("-Werror")
        if shared == "1":
            ext.define_macros.append(("PS_EMULATE_SHARED", "1"))
        if debug or sanitize:
            compile_args += ["-g", "-UNDEBUG", "-fno-omit-frame-pointer"]
        if sanitize:
            compile_args += ["-U_FORTIFY_SOURCE", *SANITIZERS[sanitize]]
            link_args += SANITIZERS[sanitize]
        elif not debug:
            compile_args += [
                "-g0",
                "-U_FORTIFY_SOURCE",
                "-D_FORTIFY_SOURCE=2",
                "-fstack-protector-strong",
                "-fstack-clash-protection",
                "-fno-plt",
            ]
            if platform.machine() in ("x86_64", "i686"):
                compile_args.append("-fcf-protection")
            # Symbols stay, so that a debugger can name functions.
            link_args += ["-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack"]
            # A call goes through functions of five files.  With link-time
            # optimization, for example, a record takes a sixth less time.
            for whole in (["-flto=auto"], ["-flto=full"]):
                if self.optimizes_across_files(whole):
                    compile_args += whole
                    link_args += whole
                    break
            else:
                print("pystreams: building without link-time optimization")
        ext.extra_compile_args += compile_args
        ext.extra_link_args += link_args


class BuildPy(build_py):
    """Puts the public headers into the package: copies in a wheel, a symbolic
    link in an editable install."""

    def run(self):
        super().run()
        if self.editable_mode:
            link = Path("pystreams/include")
            if not link.is_symlink():
                link.symlink_to("../csrc/include")
            return
        folder = "pystreams/include/pystreams"
        self.mkpath(f"{self.build_lib}/{folder}")
        for header in glob("csrc/include/pystreams/*.h"):
            self.copy_file(header, f"{self.build_lib}/{folder}")


class BdistWheel(bdist_wheel):
    """Adds the bill of materials."""

    def write_wheelfile(self, wheelfile_base, **kwargs):
        super().write_wheelfile(wheelfile_base, **kwargs)
        # The build, which comes before this, has found the toolkit's version.
        built = self.distribution
        cuda = getattr(built, "cuda_version", None)
        folder = Path(wheelfile_base, "sboms")
        folder.mkdir(exist_ok=True)
        bill = bill_of_materials(built.get_name(), built.get_version(), cuda)
        text = json.dumps(bill, indent=2) + "\n"
        (folder / "pystreams.cdx.json").write_text(text)


# Tests import this file, to look for a toolkit as the build does.
if __name__ == "__main__":
    repository = os.environ.get("PYSTREAMS_URL", "").rstrip("/")
    setup(
        long_description=description(
            Path("README.md").read_text("utf-8"), repository
        ),
        long_description_content_type="text/markdown",
        project_urls=project_urls(repository),
        cmdclass={
            "build_ext": BuildExt,
            "build_py": BuildPy,
            "bdist_wheel": BdistWheel,
        },
        ext_modules=[
            Extension(
                "pystreams._C",
                sources=[
                    source
                    for folder in ("backends/cpu", "core", "observe", "python")
                    for source in sorted(glob(f"csrc/{folder}/*.c"))
                ],
                depends=[
                    EXPORTS,
                    *sorted(glob("csrc/**/*.h", recursive=True)),
                ],
                include_dirs=["csrc/include"],
                define_macros=[("_GNU_SOURCE", "1")],
            )
        ],
    )
