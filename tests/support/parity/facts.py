"""Find out what a library is to those who use it: its members, their
signatures, and what the programs of programs.txt give.

A fact is a text under a key.  Texts of the two libraries are equal where a
program cannot tell them apart: handles are blotted out, both are called
torch, and of an error the type and the first line count.  What ends a
process, or needs one of its own, runs in one.
"""

import contextlib
import importlib
import inspect
import io
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NAMESPACES = (
    "",
    ".Stream",
    ".Event",
    ".device",
    ".cuda",
    ".cuda.Stream",
    ".cuda.ExternalStream",
    ".cuda.Event",
    ".cuda.StreamContext",
    ".cuda.device",
    ".cuda.device_of",
    ".cuda.cudaStatus",
    ".cuda._cudart",
    ".cuda.CUDAGraph",
    ".cuda.graph",
    ".cuda._gpu_trace",
    ".cuda._CudaDeviceProperties",
    ".accelerator",
    ".accelerator.device_index",
)
TOP = re.compile(
    "tream|vent|vice|ccel|OutOfMemory|^cuda$|^empty$|^from_dlpack$"
)
OPERATORS = ("__enter__", "__exit__", "__cuda_stream__", "_as_parameter_")


def read_programs():
    """Return the programs of each section."""
    sections = {}
    for line in (FOLDER / "programs.txt").read_text().splitlines():
        if line.startswith("["):
            programs = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            programs.append(line)
    return sections


PROGRAMS = read_programs()


def is_own(library, owner, name):
    """Return whether the name belongs to the library, and was not imported by
    its module."""
    value = getattr(owner, name)
    if not inspect.ismodule(owner) or name in getattr(owner, "__all__", ()):
        return True
    if inspect.ismodule(value):
        return value.__name__.startswith(f"{library.__name__}.")
    if inspect.isclass(value) or inspect.isroutine(value):
        home, top = str(value.__module__), library.__name__
        return home.startswith(owner.__name__) or home in (top, f"{top}._C")
    return False


def names(library, path, owner):
    """Yield the public members of torch.<path>."""
    for name in dir(owner):
        if name in OPERATORS and not inspect.ismodule(owner):
            yield name
        elif name.startswith("_"):
            continue
        elif owner is library and library.__name__ == "torch":
            if TOP.search(name):
                yield name
        elif is_own(library, owner, name):
            yield name


def written(parameter):
    """Return a parameter as in a def, but only with what a caller can tell."""
    name = parameter.name
    if parameter.kind is parameter.POSITIONAL_ONLY:
        name = "_"
    mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    text = mark.get(parameter.kind, "") + name
    if parameter.default is not parameter.empty:
        text += f"={parameter.default!r}"
    return text


def signature(value, name):
    """Return the parameters of a callable, or "(?)" if neither the callable
    nor its docstring says them."""
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        lines = (inspect.getdoc(value) or "").strip().splitlines() or [""]
        found = re.match(rf"(?:\w+\.)?{name}(\(.*\))", lines[0])
        text = found[1] if found else "(?)"
        text = re.sub(r"arg\d: [^,)]+", "_", text)
        return text.replace("_)", "_, /)")
    kind = inspect.Parameter
    texts = []
    for before, parameter in itertools.pairwise([None, *parameters, None]):
        was = before.kind if before else kind.POSITIONAL_OR_KEYWORD
        now = parameter.kind if parameter else None
        if was is kind.POSITIONAL_ONLY is not now:
            texts.append("/")
        if now is kind.KEYWORD_ONLY and was not in (now, kind.VAR_POSITIONAL):
            texts.append("*")
        if parameter and not (before is None and parameter.name == "self"):
            texts.append(written(parameter))
    return f"({', '.join(texts)})".replace("(/, ", "(").replace("(/)", "()")


def members(library):
    """Return the signature of each member, under the key torch.path.name."""
    importlib.import_module(f"{library.__name__}.cuda._gpu_trace")
    found = {}
    for path in NAMESPACES:
        try:
            owner = eval(f"library{path}", {"library": library})
        except (AttributeError, RuntimeError):
            continue
        for name in names(library, path, owner):
            # A property of a class is not called, whatever it returns.
            value = inspect.getattr_static(owner, name, None)
            if not isinstance(value, property):
                value = getattr(owner, name)
            shown = signature(value, name) if callable(value) else "there"
            found[f"torch{path}.{name}"] = shown
    return found


def blotted(text):
    """Return the first line, without what is different from run to run."""
    text = text.replace("pystreams", "torch")
    text = re.sub(r"0x[0-9a-f]{2,}", "0x*", text)
    return re.sub(r"\b\d{7,}\b", "*", text).split("\n")[0].strip()


def inside(context, function):
    with context:
        return function()


def raising(context):
    """Return what is left of an exception that passes through a context."""
    try:
        with context:
            raise KeyError("passed through")
    except KeyError as error:
        return error.args[0]


def traced(library, kind, function):
    """Return how many arguments each callback of the kind got in the call."""
    module = importlib.import_module(f"{library.__name__}.cuda._gpu_trace")
    told, listening = [], True

    def callback(*args):
        if listening:
            told.append(args)

    getattr(module, f"register_callback_for_{kind}")(callback)
    library._C._activate_gpu_trace()
    function()
    listening = False
    return [len(args) for args in told]


def evaluate(library, program):
    """Return the value of a program's last expression, or the error that ends
    the program."""
    space = {
        "torch": library,
        "inside": inside,
        "raising": raising,
        "traced": lambda *args: traced(library, *args),
    }
    *statements, last = program.split("; ")
    try:
        for statement in statements:
            exec(compile(statement, program, "exec"), space)
        return blotted(repr(eval(compile(last, program, "eval"), space)))
    except Exception as error:
        return blotted(f"{type(error).__name__}: {error}")


def reset(library):
    for index in range(library.cuda.device_count()):
        library.cuda.set_stream(library.cuda.default_stream(index))
    if library.cuda.is_available():
        library.cuda.set_device(0)


def unsafe(library, program):
    """Return whether the program has undefined behavior in torch, because of
    pointers to objects of other types.  Then it is not run."""
    return program.startswith("! ") and library.__name__ == "torch"


def calls(library):
    """Return what each program gives.  Without a GPU, run only the programs
    that need none."""
    found = {}
    left_out = {"no GPU", "forked"}
    if not library.cuda.is_available():
        left_out = PROGRAMS.keys() - {"device"}
    if library.cuda.device_count() < 2:
        left_out.add("two devices")
    sections = (PROGRAMS[name] for name in PROGRAMS if name not in left_out)
    for program in itertools.chain(*sections):
        if unsafe(library, program):
            found[program] = "undefined behaviour, not run"
            continue
        with contextlib.redirect_stderr(io.StringIO()):
            found[program] = evaluate(library, program.removeprefix("! "))
        reset(library)
    return found


def forked_calls(library):
    """Return what the programs give in a child of a process that used CUDA."""
    library.cuda.Stream().synchronize()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        found = {p: evaluate(library, p) for p in PROGRAMS["forked"]}
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        found = json.loads(pipe.read())
    os.waitpid(child, 0)
    return found


def main(name, what):
    library = importlib.import_module(name)
    if what == "all":
        found = gather(name)
    elif what == "forked":
        found = forked_calls(library)
    else:
        found = {p: evaluate(library, p) for p in PROGRAMS["no GPU"]}
    print(json.dumps(found))


def elsewhere(name, what):
    """Start main() in another process."""
    environment = dict(os.environ)
    path = [str(FOLDER.parent), *filter(None, sys.path)]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    if what == "no GPU":
        environment["CUDA_VISIBLE_DEVICES"] = ""
        environment.pop("PYSTREAMS_EMULATE_CUDA", None)
    return subprocess.Popen(
        # Do not use -m, which would prefer modules of the current folder.
        [sys.executable, "-W", "ignore", __file__, name, what],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def gather(name):
    """Return all facts of the library with this name."""
    library = importlib.import_module(name)
    kinds = ("no GPU", "forked") if library.cuda.is_available() else ()
    others = {kind: elsewhere(name, kind) for kind in kinds}
    found = members(library) | calls(library)
    for kind, process in others.items():
        try:
            output, _ = process.communicate(timeout=120)
            results = json.loads(output)
        except (subprocess.TimeoutExpired, json.JSONDecodeError):
            process.kill()
            results = dict.fromkeys(PROGRAMS[kind], "its process failed")
        for program, result in results.items():
            found[f"{kind}: {program}"] = result
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
