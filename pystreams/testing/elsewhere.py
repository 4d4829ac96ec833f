"""Another process, which carries out the suite's requests one at a time."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pystreams
from pystreams import _C

from .busy import Submitted, find_way
from .device import Device
from .limits import Background, eventually


def search_path(plugin: str | None) -> list[str]:
    """Return a sys.path that makes another process import the same plugin as
    this one, even if another folder has a module of that name."""
    file = getattr(sys.modules.get(plugin or ""), "__file__", None)
    if plugin is None or file is None:
        return sys.path
    place = Path(file)
    if place.name.startswith("__init__."):
        place = place.parent
    return [str(place.parents[plugin.count(".")]), *sys.path]


class Elsewhere:
    """A process that uses the device; requests and replies are lines."""

    def __init__(self, device: str, plugin: str | None) -> None:
        # Do not use -m, which would prefer modules in the current folder.
        program = (
            f"import sys; sys.path[:] = {search_path(plugin)!r}; "
            f"from {__name__} import serve; serve(*sys.argv[1:])"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, device, plugin or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> None:
        """Wait until the process has used the device, which takes long on a
        busy machine."""
        assert self._process.stdout
        assert self._process.stdout.readline() == "begun\n"

    def ask(self, *words: str) -> str:
        """Send a request, and return the reply."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def send(self, *words: str) -> None:
        """Send a request that has no result."""
        assert self.ask(*words) == "None"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Interrupted(Exception):
    """Raised by a signal's handler."""


def interrupted(wait: Callable[..., object]) -> str:
    """Return when a signal handler ended the wait: "soon", "late" or
    "never"."""

    def handler(*args: object) -> None:
        raise Interrupted

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    start = time.monotonic()
    try:
        wait(timeout=2.0)
    except Interrupted:
        return "soon" if time.monotonic() - start < 1.0 else "late"
    return "never"


def shut_down() -> str:
    """Shut the backends down, within 0.2 s."""
    call = Background(lambda: _C.shutdown(0.2))
    if not call.over(2.0):
        return "late"
    call.finish()
    return "in time"


def serve(name: str, module: str) -> None:
    """Carry out the requests on standard input."""
    plugin = importlib.import_module(module) if module else None
    device = Device(name)
    stream, event, waiter = device.stream(), device.event(), _C.Waiter()
    way = find_way(device, plugin)

    def hold() -> None:
        assert way is not None
        gate = way(stream)
        actions["release"] = gate.open
        # Wait for the callable to begin: otherwise the end of the program
        # cancels it.
        if isinstance(gate, Submitted):
            eventually(gate.reached)

    def wait() -> str:
        try:
            stream.synchronize(timeout=2.0)
        except pystreams.AcceleratorError as error:
            return str(error.error_code)
        except TimeoutError:
            return "TimeoutError"
        return "done"

    def memory() -> str:
        buffer = pystreams.empty(100, device=name, interprocess=True)
        buffer.fill_(7)
        device.synchronize()
        kept.append(buffer)
        return buffer.ipc_handle().hex()

    def fill() -> None:
        kept[-1].fill_(1)
        device.synchronize()

    def open_event(handle: str) -> None:
        event = pystreams.Event.from_ipc_handle(name, bytes.fromhex(handle))
        actions["query"] = event.query
        actions["synchronize"] = event.synchronize
        actions["wait"] = partial(event.wait, stream)
        actions["record"] = partial(event.record, stream)

    def open_memory(handle: str) -> None:
        memory = bytes.fromhex(handle)
        kept.append(pystreams.Buffer.from_ipc_handle(name, memory))

    kept: list[pystreams.Buffer] = []
    actions: dict[str, Callable[..., object]] = {
        "open": open_event,
        "open-memory": open_memory,
        "memory": memory,
        "fill": fill,
        "bytes": lambda: kept[-1].tobytes().hex(),
        "close-memory": lambda: kept.pop().close(),
        "waiting": lambda: not stream.query(),
        "finish": stream.synchronize,
        "hold": hold,
        "mark": partial(event.record, stream),
        "register": lambda: waiter.register(stream, 1),
        "notifications": lambda: len(waiter.wait(0.2)),
        "interrupt-stream": partial(interrupted, stream.synchronize),
        "interrupt-event": partial(interrupted, event.synchronize),
        "interrupt-device": partial(interrupted, device.synchronize),
        "shutdown": shut_down,
        "wait-in-time": wait,
    }
    print("begun", flush=True)
    for line in sys.stdin:
        action, *arguments = line.split()
        try:
            print(actions[action](*arguments), flush=True)
        except Exception as error:
            print(f"Error: {type(error).__name__}", flush=True)
