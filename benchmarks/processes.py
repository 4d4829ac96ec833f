"""Runs each measurement in a process other than the one that asks for it.

If a peer is missing, raises, crashes or hangs, the one that asks gets Missing
with the reason, and can go on with the other measurements.
"""

import json
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120
# How many seconds the calls run before each batch, to warm the caches; these
# are some thousand calls.
WARMING = 1e-3


class Missing(Exception):
    """There is no figure; the message is the reason."""


def environment(**more):
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return dict(
        os.environ, PYTHONPATH=os.pathsep.join(filter(None, path)), **more
    )


def reason(error):
    """The error in one short line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:120]


def complaint(text):
    """The line of a failed program's stderr that names the error, or, if none
    does, the last line."""
    lines = text.strip().splitlines() or ["no message"]
    errors = [line for line in lines if re.match(r"[\w.]+Error\b", line)]
    return (errors or lines)[-1][:120]


def fresh(module, function, *arguments, **more):
    """Call the module's function in a new process; return its result."""
    code = (
        "import json, sys; from importlib import import_module; "
        "module, function, arguments = json.loads(sys.argv[1]); "
        "result = getattr(import_module(module), function)(*arguments); "
        "print(json.dumps(result))"
    )
    call = json.dumps([module, function, arguments])
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, call],
            env=environment(**more),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"no answer in {PATIENCE} s") from None
    if done.returncode:
        raise Missing(f"exit {done.returncode}: {complaint(done.stderr)}")
    return json.loads(done.stdout.splitlines()[-1])


class Worker:
    """A process with one library loaded, which runs batches on request."""

    def __init__(self, peer):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.processes", peer],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            self.rows = self._answer()
        except Missing:
            self.close()
            raise

    def batch(self, row, calls, processor):
        """Run a batch on the processor; return nanoseconds per call."""
        try:
            question = json.dumps([row, calls, processor]).encode() + b"\n"
            self._process.stdin.write(question)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Missing("the process is gone") from None
        return self._answer()

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _answer(self):
        out = self._process.stdout
        if not select.select([out], [], [], PATIENCE)[0]:
            self._process.kill()
            raise Missing(f"no answer in {PATIENCE} s")
        line = out.readline()
        if not line:
            raise Missing(f"the process ended with {self._process.wait()}")
        answer = json.loads(line)
        if "why" in answer:
            raise Missing(answer["why"])
        return answer["is"]


def serve(peer):
    """Answer the requests that come on stdin, one a line.

    Answers go to the original stdout.  File descriptor 1 becomes stderr, so
    that text that a library prints does not get between the answers.
    """
    from benchmarks.peers import load

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(function, *arguments):
        try:
            result = {"is": function(*arguments)}
        except Exception as error:
            result = {"why": reason(error)}
        print(json.dumps(result), file=answers, flush=True)

    rows = {}
    answer(lambda: (rows.update(load(peer)), list(rows))[1])
    for line in sys.stdin:
        row, calls, processor = json.loads(line)
        move(processor)
        answer(warm, rows[row], calls)


def move(processor):
    """Move this thread to the processor.  It is not bound there: its affinity
    is restored at once."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    os.sched_setaffinity(0, allowed)


def warm(batch, calls):
    """Run the batch for a while first, so that the caches are warm and the
    processor runs at speed; return the time of the last run."""
    end = time.perf_counter() + WARMING
    while time.perf_counter() < end:
        batch(calls)
    return batch(calls)


if __name__ == "__main__":
    serve(sys.argv[1])
