"""The folders of csrc are the architecture, and these tests enforce it."""

import graphlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT

from pystreams import _C

SOURCES = sorted(
    p for p in (ROOT / "csrc").rglob("*") if p.suffix in {".c", ".h"}
)
PYTHON = sorted(
    p
    for folder in ("pystreams", "tests", "benchmarks", "examples")
    for p in (ROOT / folder).rglob("*")
    if p.suffix in {".py", ".pyi"}
)
TEXTS = {
    *SOURCES,
    *PYTHON,
    *(ROOT / "tests").rglob("*.[ch]"),
    *(ROOT / "benchmarks").rglob("*.[ch]"),
    *(p for p in (ROOT / "examples").rglob("*") if p.suffix in {".c", ".md"}),
    *(ROOT / "docs").rglob("*.md"),
    *(p for p in ROOT.glob("*") if p.suffix in {".py", ".toml", ".md", ".sh"}),
    *(p for p in (ROOT / ".ci").rglob("*") if p.is_file()),
}


def name(path):
    return str(path.relative_to(ROOT))


def each(paths):
    return pytest.mark.parametrize("path", sorted(paths), ids=name)


def part(path):
    """Return "include", "core", "python", or an entry of backends."""
    parts = path.relative_to(ROOT / "csrc").parts
    return "/".join(parts[: 2 if parts[0] == "backends" else 1])


def code(path):
    """Return the text of a file without comments and without the contents of
    strings."""
    text = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.S)
    text = re.sub(r"//.*", "", text)
    return re.sub(r'(?<!#include )"(?:\\.|[^"\\\n])*"', '""', text)


def includes(path):
    """Yield what the file includes, as <name> or as a path from the top of the
    checkout."""
    for mark, target in re.findall(
        r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', path.read_text(), re.M
    ):
        if mark == "<":
            yield f"<{target}>"
            continue
        for folder in (path.parent, ROOT / "csrc", ROOT / "csrc/include"):
            if (folder / target).exists():
                yield name((folder / target).resolve())
                break
        else:
            pytest.fail(f"{name(path)} includes {target}, which is nowhere")


def test_there_is_something_to_read():
    assert {part(path) for path in SOURCES} == {
        "include",
        "core",
        "observe",
        "python",
        "backends/backends.h",
        "backends/cpu",
        "backends/cuda",
    }


@each(SOURCES)
def test_who_includes_what(path):
    mine = part(path)
    found = list(includes(path))
    python = [i for i in found if i in {"<Python.h>", "<structmember.h>"}]
    cuda = [i for i in found if re.match(r"<(cuda|nvml|cu[A-Z])", i)]
    inside = [i for i in found if i.startswith("csrc/")]
    if mine != "python":
        assert not python
    if mine != "backends/cuda":
        assert not cuda
    public = "csrc/include/pystreams/"
    allowed = {
        "include": [public],
        "core": [public, "csrc/core/"],
        "observe": [public, "csrc/observe/"],
        "python": [
            public,
            "csrc/core/",
            "csrc/observe/",
            "csrc/python/",
            "csrc/backends/backends.h",
        ],
        "backends/backends.h": [public],
        "backends/cpu": [
            public,
            "csrc/backends/backends.h",
            "csrc/backends/cpu/",
        ],
        "backends/cuda": [
            public,
            "csrc/backends/backends.h",
            "csrc/backends/cuda/",
        ],
    }[mine]
    for one in inside:
        assert one.startswith(tuple(allowed))


@each(p for p in SOURCES if part(p) != "backends/cuda")
def test_who_names_the_cuda_api(path):
    assert re.findall(r"\b(?:cuda|cu|nvml)[A-Z]\w*", code(path)) == []


@each(p for p in SOURCES if part(p) != "python")
def test_who_names_python(path):
    assert re.findall(r"\bPy[A-Z_]\w*", code(path)) == []


@each(p for p in SOURCES if part(p) == "core")
def test_core_names_no_backend(path):
    assert "ps_cpu_backend" not in code(path)
    assert "ps_cuda_backend" not in code(path)


@each(SOURCES)
def test_no_thread_local_variables(path):
    """See core/thread.h."""
    assert "_Thread_local" not in code(path)
    assert "__thread" not in code(path)


# The function that NVTX calls.
LOOKED_UP = "InitializeInjectionNvtx2"


def defined(path):
    """Return the names of the functions with external linkage that a file
    defines."""
    return re.findall(
        r"^(?!static|typedef)[a-z][\w \t]*[\w*]\n(\w+)\([^;{}]*\)\n\{",
        code(path),
        re.M,
    )


@each(
    p for p in SOURCES if part(p) in {"core", "observe"} and p.suffix == ".c"
)
def test_core_prefixes_its_externals(path):
    names = defined(path)
    assert names
    others = [n for n in names if not n.startswith("ps_")]
    assert others == [LOOKED_UP] * (path.name == "nvtx.c")


def symbols(path, folder, headers):
    """Return the names that a file defines for other files, and the names that
    it needs."""
    target = folder / f"{path.stem}.o"
    options = ["-std=c11", "-D_GNU_SOURCE", f"-I{ROOT / 'csrc/include'}"]
    options += [f"-I{folder}" for folder in headers]
    subprocess.run(
        ["cc", *options, "-c", str(path), "-o", str(target)], check=True
    )
    listing = subprocess.run(
        ["nm", str(target)], capture_output=True, text=True, check=True
    ).stdout
    fields = [line.split()[-2:] for line in listing.splitlines()]
    return (
        {name for kind, name in fields if kind.isupper() and kind != "U"},
        {name for kind, name in fields if kind == "U"},
    )


def needs(paths, folder, *headers):
    """Return, for each file, the files that define a symbol that it needs."""
    found = {path.stem: symbols(path, folder, headers) for path in paths}
    return {
        one: {
            other
            for other, (defined, _) in found.items()
            if other != one and defined & needed
        }
        for one, (_, needed) in found.items()
    }


needs_compiler = pytest.mark.skipif(
    not (shutil.which("cc") and shutil.which("nm")), reason="no cc or no nm"
)


@needs_compiler
@pytest.mark.parametrize(
    ("folder", "top"),
    [
        ("core", "device"),
        ("observe", "table"),
        ("backends/cpu", "engine"),
        ("backends/cuda", "table"),
    ],
)
def test_no_circles(request, tmp_path, folder, top):
    """The files of a folder can be put in an order in which each one needs
    only files below it."""
    paths = [p for p in SOURCES if part(p) == folder and p.suffix == ".c"]
    headers = [request.getfixturevalue("headers")] * folder.endswith("cuda")
    files = needs(paths, tmp_path, *headers)
    graphlib.TopologicalSorter(files).prepare()
    assert not any(top in others for others in files.values())
    assert len(files) == len(paths)


@needs_compiler
def test_circles_are_seen(tmp_path):
    one, two = tmp_path / "one.c", tmp_path / "two.c"
    one.write_text("int two(void); int one(void) { return two(); }")
    two.write_text("int one(void); int two(void) { return one(); }")
    order = graphlib.TopologicalSorter(needs([one, two], tmp_path))
    with pytest.raises(graphlib.CycleError):
        order.prepare()


def test_a_backend_is_its_tables():
    """A backend's tables are the functions that backends.h declares.  Each is
    defined once, and no others are."""
    found = {}
    for path in SOURCES:
        if part(path).startswith("backends/") and path.suffix == ".c":
            tables = re.findall(
                r"^(?:const )?struct ps_(?:backend|faults|schedules)\s+"
                r"(\w+)\s*=",
                code(path),
                re.M,
            )
            names = [n for n in defined(path) if n.startswith("ps_")]
            found.setdefault(part(path), []).extend(tables + names)
    declared = re.findall(
        r"\bps_\w+(?=[;(])", code(ROOT / "csrc/backends/backends.h")
    )
    assert found == {
        "backends/cpu": [
            "ps_cpu_renew",
            "ps_cpu_backend",
            "ps_cpu_schedules",
            "ps_cpu_faults",
        ],
        "backends/cuda": ["ps_cuda_backend"],
    }
    assert sorted(declared) == sorted(
        name for names in found.values() for name in names
    )


def names_of_module(*options):
    """Return the names that nm finds in the extension module."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm")
    listing = subprocess.run(
        [nm, "--defined-only", *options, _C.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [line.split()[-1] for line in listing.splitlines()]


def test_exports_only_its_initializers(sanitized):
    if sanitized:
        pytest.skip("a sanitizer exports its own")
    assert names_of_module("-D") == [LOOKED_UP, "PyInit__C"]


def test_a_debugger_finds_the_names_of_functions():
    """There is a name for each layer, and none of these functions is
    inlined."""
    names = {"Event_record", "ps_event_record", "cpu_event_record"}
    # If two names are equal, the linker appends a number.
    assert names <= {name.partition(".")[0] for name in names_of_module()}


def test_size_of_what_was_built(sanitized):
    if sanitized:
        pytest.skip("a sanitizer makes it larger")
    assert Path(_C.__file__).stat().st_size <= 2 << 20


def test_public_headers_are_installed():
    import pystreams

    installed = Path(pystreams.get_include()) / "pystreams"
    public = {h.name: h for h in ROOT.glob("csrc/include/pystreams/*.h")}
    assert sorted(public) == ["backend.h", "faults.h"]
    for name, header in public.items():
        assert (installed / name).read_text() == header.read_text()


@each(TEXTS)
def test_nothing_is_left_to_do(path):
    words = "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"))
    assert re.findall(rf"\b(?:{words})\b", path.read_text()) == []


@each(TEXTS)
def test_text_is_plain(path):
    text = path.read_text()
    assert text.endswith("\n")
    assert "\r" not in text
    assert not re.findall(r"[ \t]+$", text, re.M)
    if path.suffix in {".c", ".h", ".py", ".pyi"}:
        assert "\t" not in text
        assert max(map(len, text.splitlines()), default=0) <= 79


@each([*SOURCES, *(ROOT / "examples").rglob("*.c")])
def test_a_c_file_opens_with_what_it_is(path):
    text = path.read_text()
    assert text.startswith("/* ")
    assert text.index("*/") < text.index("#")


@each(p for p in PYTHON if p.suffix == ".py" and p.name != "_version.py")
def test_a_python_file_opens_with_what_it_is(path):
    assert path.read_text().startswith(('"""', "#!"))


def test_no_file_is_called_after_nothing():
    for path in TEXTS:
        assert path.stem.strip("_") not in {"utils", "util", "common", "misc"}
