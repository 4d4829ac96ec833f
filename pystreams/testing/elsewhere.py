"""Another process, in which the suite does things one at a time."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pystreams

from .busy import find_way
from .device import Device


class Elsewhere:
    """A process with the device, and what is said to it and heard of it."""

    def __init__(self, device: str, plugin: str | None) -> None:
        # -m would prefer what lies in the current folder.
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from {__name__} import serve; serve(*sys.argv[1:])"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, device, plugin or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *words: str) -> str:
        """Have the process do something, and return what came of it."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def send(self, *words: str) -> None:
        """The same, for what returns nothing."""
        assert self.ask(*words) == "None"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def serve(name: str, module: str) -> None:
    """Do what is said on standard input."""
    plugin = importlib.import_module(module) if module else None
    device = Device(name)
    stream = device.stream()
    way = find_way(device, plugin)

    def hold() -> None:
        assert way is not None
        actions["release"] = way(stream).open

    actions: dict[str, Callable[[], object]] = {
        "waiting": lambda: not stream.query(),
        "finish": stream.synchronize,
        "hold": hold,
    }
    for line in sys.stdin:
        action, *arguments = line.split()
        try:
            if action == "open":
                handle = bytes.fromhex(arguments[0])
                event = pystreams.Event.from_ipc_handle(name, handle)
                actions |= {
                    "query": event.query,
                    "synchronize": event.synchronize,
                    "wait": partial(event.wait, stream),
                    "record": partial(event.record, stream),
                }
                print(None, flush=True)
            else:
                print(actions[action](), flush=True)
        except Exception as error:
            print(f"Error: {type(error).__name__}", flush=True)
