"""`python -m pystreams`: a report of this machine, and the demo.

Exit codes: 0 success, 1 the demo found different bytes, 2 the request cannot
be carried out, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import sys
import time

from .. import _C
from . import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Any, NoReturn

    from _typeshed import SupportsWrite

    from ..races import Redundant

SUFFIXES = {"": 0, "K": 10, "M": 20, "G": 30}


def chunk_size(text: str) -> int:
    """Parse '65536', '64K', '4M' or '1G' as a number of bytes."""
    from .demo import MAX_CHUNK

    number = text.rstrip("KMGkmg")
    shift = SUFFIXES.get(text[len(number) :].upper())
    if shift is None or not (number.isascii() and number.isdecimal()):
        raise argparse.ArgumentTypeError(
            f"expected bytes such as 65536, 64K or 4M, but got {text!r}"
        )
    nbytes = int(number[:20]) << shift
    if not 1 <= nbytes <= MAX_CHUNK:
        raise argparse.ArgumentTypeError(
            f"a chunk has 1 byte to 1G, but got {text!r}"
        )
    return nbytes


def stream_count(text: str) -> int:
    """Parse a number of streams."""
    from .demo import MAX_STREAMS

    if not (text.isascii() and text.isdecimal()) or not (
        1 <= int(text[:20]) <= MAX_STREAMS
    ):
        raise argparse.ArgumentTypeError(
            f"expected 1 to {MAX_STREAMS}, but got {text!r}"
        )
    return int(text)


def timeline_path(text: str) -> str:
    """Check that a timeline can be written in the format of this file."""
    from ..timeline import _files

    try:
        _files.check(text)
    except (ImportError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, and raises OSError if the
    help cannot be written."""

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        # argparse's own method ignores OSError.
        (sys.stdout if file is None else file).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"pystreams: {message}; see `{self.prog} --help`\n")


def parser() -> Parser:
    """Return the parser of the command line."""
    top = Parser(
        prog="python -m pystreams",
        description="Report the devices that pystreams can use.",
    )
    top.add_argument("--json", action="store_true", help="print JSON")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="stream a file through the devices and check every byte",
        description="Stream a file through devices and back on several "
        "streams, check every byte, and compare with one stream.",
    )
    demo.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="any regular file, best a large one (default: 256 MiB that the "
        "demo makes)",
    )
    demo.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="D",
        help="a device such as cuda:0, or a type for all its devices; "
        "repeat it or use commas for several, which share the chunks "
        "(default: all devices of the accelerator)",
    )
    demo.add_argument(
        "--chain",
        action="store_true",
        help="send each chunk through all of the devices, one after another",
    )
    demo.add_argument(
        "--streams",
        type=stream_count,
        metavar="N",
        help="streams on each device (default: by the number of cores)",
    )
    demo.add_argument(
        "--chunk",
        type=chunk_size,
        metavar="BYTES",
        help="bytes on a stream at a time, with K, M or G for powers of "
        "1024 (default: up to 4M, by the device and the size of the file)",
    )
    demo.add_argument(
        "--timeline",
        type=timeline_path,
        metavar="FILE",
        help="repeat the last run, and write its timeline there, as .pftrace "
        "for https://ui.perfetto.dev, .json for Chrome, .png or .svg",
    )
    demo.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print JSON",
    )
    races = commands.add_parser(
        "races",
        help="run a program, and stop at accesses that nothing orders",
        description="Run a Python program unchanged, with "
        "pystreams.races.detect() around it.",
    )
    races.add_argument(
        "--warn",
        action="store_true",
        help="log each pair of places, and go on",
    )
    races.add_argument(
        "--redundant",
        action="store_true",
        help="list the waits that ordered nothing new at the end",
    )
    timeline = commands.add_parser(
        "timeline",
        help="run a program, and show when its operations ran",
        description="Run a Python program unchanged, with "
        "pystreams.timeline.record() around it.",
    )
    timeline.add_argument(
        "-o",
        "--output",
        type=timeline_path,
        metavar="FILE",
        help="write the timeline there, as .pftrace for "
        "https://ui.perfetto.dev, .json for Chrome, .png or .svg (default: "
        "print a chart)",
    )
    timeline.add_argument(
        "--critical-path",
        action="store_true",
        help="print the chain of operations and waits that took the time",
    )
    for command in (races, timeline):
        command.add_argument(
            "-m",
            dest="module",
            action="store_true",
            help="SCRIPT.PY is the name of a module, as for python -m",
        )
        command.add_argument("script", metavar="SCRIPT.PY")
        # There may be none of these arguments, but some versions of argparse
        # would require one.
        command.add_argument(
            "arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT"
        ).required = False
    return top


def run_program(options: argparse.Namespace) -> int:
    """Run a program as the main module, and return the exit code.

    An exception that the program raises is reported as if Python had run the
    program.
    """
    import runpy

    sys.argv = [options.script, *options.arguments]
    try:
        if options.module:
            sys.path[0] = os.getcwd()
            runpy.run_module(
                options.script, run_name="__main__", alter_sys=True
            )
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(options.script))
            runpy.run_path(options.script, run_name="__main__")
    except Exception as error:
        trace = program_part(error)
        if trace is None and isinstance(error, ImportError):
            return complain(error, 2)
        sys.last_value = error.with_traceback(trace)
        sys.excepthook(type(error), error, trace)
        return 1
    return 0


def find_program(options: argparse.Namespace) -> str | None:
    """Return the reason if the program cannot be found, else None."""
    from importlib.util import find_spec

    if not options.module:
        found = os.path.isfile(options.script)
        return None if found else f"{options.script} is not a file"
    sys.path.insert(0, os.getcwd())
    try:
        # Look for the top-level package only: find_spec() would import a
        # package to look inside it.
        found = find_spec(options.script.partition(".")[0]) is not None
    except (ImportError, ValueError):
        found = False
    del sys.path[0]
    return None if found else f"there is no module {options.script}"


def run_timeline(options: argparse.Namespace) -> int:
    """Run a program in timeline.record(), and show or write the timeline when
    the program ends, even with an exception."""
    import atexit

    from .. import timeline

    reason = find_program(options)
    folder = os.path.dirname(options.output or "") or "."
    if reason is None and not os.path.isdir(folder):
        reason = f"there is no folder {folder} for the timeline"
    if reason is not None:
        return complain(reason, 2)
    recording = timeline.record()
    found = recording.__enter__()
    process = os.getpid()

    def show() -> None:
        # A forked child leaves the timeline to its parent.
        if os.getpid() != process:
            return
        recording.__exit__(None, None, None)
        if options.critical_path:
            print(found.critical_path(), flush=True)
        elif options.output is None:
            print(found, flush=True)
        if options.output is None:
            return
        try:
            found.save(options.output)
        except (ImportError, OSError) as error:
            complain(f"no timeline was written: {error}", 2)

    atexit.register(show)
    return run_program(options)


def run_races(options: argparse.Namespace) -> int:
    """Run a program, and its child processes, in races.detect()."""
    import atexit
    import logging

    from .. import races

    reason = find_program(options)
    if reason is not None:
        return complain(reason, 2)
    logging.basicConfig(format="%(name)s: %(message)s")
    action = "warn" if options.warn else "raise"
    os.environ["PYSTREAMS_RACES"] = action
    # The detector stays on for threads that outlive the main module.  The list
    # of waits is printed even if the module ends with an exception.
    races._detect_in_program(action)
    if options.redundant:
        waits = races._counted_waits()
        found = waits.__enter__()
        atexit.register(show_redundant, os.getpid(), waits, found)
    return run_program(options)


def program_part(error: Exception) -> TracebackType | None:
    """Return the part of the traceback that belongs to the program; None if
    the program did not begin."""
    trace = error.__traceback__
    ours = (__name__, "runpy")
    while trace and trace.tb_frame.f_globals.get("__name__") in ours:
        trace = trace.tb_next
    return trace


def show_redundant(
    process: int,
    waits: AbstractContextManager[list[Redundant]],
    found: list[Redundant],
) -> None:
    """Print the waits that ordered nothing new, at the end of a program, but
    not at the end of its forked children."""
    if os.getpid() != process:
        return
    waits.__exit__(None, None, None)
    print("waits that ordered nothing new:" if found else "no redundant waits")
    for wait in found:
        print(wait)


def show_report(options: argparse.Namespace) -> None:
    """Print the report of this machine; raise if there is no accelerator."""
    found = report.gather()
    text = json.dumps(found, indent=2) if options.json else report.text(found)
    print(text, flush=True)
    if found["accelerator"]["name"] is None:
        raise RuntimeError(found["accelerator"]["why"])


def show_demo(options: argparse.Namespace) -> None:
    """Run the demo and print its measurements."""
    from ..timeline._chart import shades
    from . import demo, timetable

    names = [name for text in options.device for name in text.split(",")]
    title = options.file
    devices = demo.find_devices(names)
    with Bars() as bars, contextlib.ExitStack() as own:
        path = options.file
        if path is None:
            path = own.enter_context(demo.own_file(bars.start))
            title = "256 MiB of random bytes, as no FILE was given"
        result = demo.run(
            path,
            devices,
            options.streams,
            options.chunk,
            bars.start,
            options.chain,
            options.timeline is not None,
        )
    recorded = result.pop("timeline")
    result["why"] = (
        "--device asks for it" if names else report.accelerator_why()
    )
    result["device_names"] = [
        _C.device_properties(dict(_C.backends())[device.type], device)["name"]
        for device in devices
    ]
    if options.json:
        result["timetable"] = timetable.rows(result)
        del result["spans"]
        print(json.dumps(result, indent=2))
    else:
        columns = min(120, shutil.get_terminal_size((100, 24)).columns)
        print(timetable.figures(result, title, columns))
        print()
        marks = shades(sys.stdout.encoding)
        print(timetable.draw(result, columns, marks))
    if recorded is not None:
        try:
            recorded.save(options.timeline)
        except OSError as error:
            raise demo.DemoError(
                f"no timeline was written: {error}"
            ) from error


class Bars:
    """Progress bars on stderr if it is a terminal, drawn by rich if installed.

    start() begins a bar, and returns a function to call with each number of
    bytes done.
    """

    PERIOD = 0.1

    def __init__(self) -> None:
        self._rich: Any = None
        self._width = 0

    def __enter__(self) -> Bars:
        if sys.stderr.isatty():
            try:
                from rich import progress
                from rich.console import Console
            except ModuleNotFoundError:
                return self
            self._rich = progress.Progress(
                progress.TextColumn("{task.description:<13}"),
                progress.BarColumn(),
                progress.DownloadColumn(binary_units=True),
                progress.TransferSpeedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._rich.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._rich:
            self._rich.stop()
        elif self._width:
            self._write("")

    def _write(self, line: str) -> None:
        line = f"{line:<{self._width}}"
        print(line, end="\r", file=sys.stderr, flush=True)
        self._width = len(line)

    def start(self, title: str, total: int) -> Callable[[int], None]:
        if not sys.stderr.isatty():
            return lambda nbytes: None
        task = self._rich and self._rich.add_task(title, total=total)
        done = 0
        shown = time.monotonic()

        def advance(nbytes: int) -> None:
            nonlocal done, shown
            done += nbytes
            now = time.monotonic()
            if now - shown < self.PERIOD and done < total:
                return
            shown = now
            if self._rich:
                self._rich.update(task, completed=done)
                return
            self._write(
                f"{title} {done / total:.0%} of {report.size_text(total)}"
            )

        return advance


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line; OSError if the help can't be written."""
    try:
        return parser().parse_args(arguments)
    finally:
        sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    from .demo import DemoError, Mismatch

    if sys.stderr is None:
        sys.stderr = io.StringIO()
    if sys.stdout is None:
        # Descriptor 1 is free, so the next file that is opened would get it,
        # and then receive all output.
        return complain("the output can't be written: it is closed", 2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As on stderr, escape characters that cannot be encoded, so that any
        # path can be printed.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        options = parse(arguments)
    except OSError as error:
        return unwritable(error)
    if options.command == "races":
        return run_races(options)
    if options.command == "timeline":
        return run_timeline(options)
    try:
        if options.command == "demo":
            show_demo(options)
        else:
            show_report(options)
        sys.stdout.flush()
    except OSError as error:
        return unwritable(error)
    except KeyboardInterrupt:
        return complain("interrupted", 130)
    except Mismatch as error:
        return complain(error, 1)
    except (DemoError, MemoryError, RuntimeError) as error:
        return complain(str(error) or "out of memory", 2)
    return 0


def unwritable(error: OSError) -> int:
    """Drop output that was not written to stdout, and return the exit code."""
    # Redirect stdout: otherwise the interpreter's flush at exit fails, too.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return 141
    return complain(f"the output can't be written: {error.strerror}", 2)


def complain(reason: object, code: int) -> int:
    """Print the reason to stderr, and return the exit code."""
    print(f"pystreams: {reason}", file=sys.stderr)
    return code
