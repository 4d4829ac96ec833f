"""Other processes, for tests of objects that processes share.

A peer runs one piece of Python at a time, with `backend` as tests have it.
Code that takes a minute counts as hung.
"""

import ast
import gc
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pystreams

PATIENCE = 60
GONE = "is gone or out of reach"


class PeerError(Exception):
    """What was raised in a peer: the name of its type and its text."""


class Peer:
    def __init__(self, backend):
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, backend.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        )

    @property
    def pid(self):
        return self._process.pid

    def do(self, code):
        """Run code in the peer; return an expression's value, if a literal."""
        self.start(code)
        return self.finish()

    def start(self, code):
        """Send the code: the first half of do()."""
        self._code = code
        self._process.stdin.write(repr(code).encode() + b"\n")
        self._process.stdin.flush()

    def finish(self):
        """Return the result of the code: the second half of do()."""
        out = self._process.stdout
        if not select.select([out], [], [], PATIENCE)[0]:
            self.kill()
            raise AssertionError(f"a peer hangs in {self._code!r}")
        failure, result = ast.literal_eval(out.readline().decode())
        if failure is not None:
            raise PeerError(failure)
        return result

    def open(self, event, device="backend.device()"):
        """Open an event in the peer, as `event`."""
        handle = event if isinstance(event, bytes) else event.ipc_handle()
        self.do(f"event = Event.from_ipc_handle({device}, {handle!r})")

    def kill(self):
        """End the peer with SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._close()

    def signal(self, number):
        self._process.send_signal(number)

    def stop(self):
        """Stop the peer; return once none of its threads is running."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def exit(self):
        """Let the peer end as programs do; return its exit status."""
        self._close()
        return self._process.wait(PATIENCE)

    def _close(self):
        self._process.stdin.close()
        self._process.stdout.close()


def shared(backend, index=None):
    device = backend.name if index is None else backend.device(index)
    return pystreams.Event(device, enable_timing=False, interprocess=True)


def opened(backend, peer):
    """An event that the peer made and calls `event`."""
    peer.do(
        "event = Event(backend.name, enable_timing=False, interprocess=True)"
    )
    handle = peer.do("event.ipc_handle()")
    return pystreams.Event.from_ipc_handle(backend.device(), handle)


def hold_there(peer):
    """Have the peer record the event on a stream that is held back."""
    peer.do("stream = backend.stream(); gate = backend.gate(stream)")
    peer.do("event.record(stream)")


def mapped(backend, address):
    """Return whether there is interprocess memory at the address."""
    if backend.on_engine:
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, last = line.split()[0].split("-")
            if int(first, 16) <= address < int(last, 16):
                return "pystreams-memory" in line
        return False
    try:
        pystreams.Buffer.from_address(address, 1, device=backend.device())
    except ValueError:
        return False
    return True


def open_files():
    """Return how many files the process has open."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def answer(code, names):
    try:
        try:
            result = eval(code, names)
        except SyntaxError:
            exec(code, names)
            result = None
    except Exception as error:
        return f"{type(error).__name__}: {error}", None
    simple = isinstance(result, bool | int | str | bytes | tuple | list)
    return None, result if simple else None


def serve(name):
    from backend import usable

    names = {"backend": usable(name), "pystreams": pystreams}
    names |= {"Event": pystreams.Event, "Stream": pystreams.Stream}
    names |= {"mapped": mapped, "open_files": open_files}
    for line in sys.stdin:
        print(repr(answer(ast.literal_eval(line), names)), flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
