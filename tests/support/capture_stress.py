"""Submit callables on some threads, while the main thread captures their
streams and ends the captures:

    python tests/support/capture_stress.py [SECONDS [THREADS [SEED]]]

A callable either runs, or is captured with its stream.  Prints how often each
occurred, and exits with 1 if submit() failed in another way.  On a GPU, the
driver crashes if pystreams lets two of the calls run at the same time.
"""

import contextlib
import faulthandler
import random
import sys
import threading
import time
from collections import Counter

import pystreams
from pystreams.cuda import CUDAGraph

LIMIT = 20
CAPTURED = "the callable was captured into a graph"


def submit(stream, over, seen):
    while not over.is_set():
        try:
            stream.submit(int).result(LIMIT)
            seen["ran"] += 1
        except RuntimeError as error:
            text = str(error)
            seen["captured" if text.startswith(CAPTURED) else text] += 1


def capture(graph, stream, sides, buffer, *, pause, joins):
    # If the streams are not joined again, the end of the capture fails.
    with contextlib.suppress(RuntimeError), stream:
        graph.capture_begin(capture_error_mode="relaxed")
        buffer.fill_(2)
        for side in sides:
            side.wait_stream(stream)
        time.sleep(pause)
        if joins:
            for side in sides:
                stream.wait_stream(side)
            graph.capture_end()
            graph.replay()
    with contextlib.suppress(RuntimeError):
        graph.reset()
    with contextlib.suppress(RuntimeError):
        stream.synchronize()


def main(seconds=10, threads=1, seed=0):
    faulthandler.enable()
    random.seed(int(seed))
    sys.setswitchinterval(1e-5)
    stream, over = pystreams.Stream("cuda"), threading.Event()
    sides = [pystreams.Stream("cuda") for _ in range(int(threads))]
    buffer = pystreams.empty(1 << 16, device="cuda", stream=stream)
    counts = [Counter() for _ in sides]
    started = [
        threading.Thread(target=submit, args=(side, over, seen))
        for side, seen in zip(sides, counts, strict=True)
    ]
    for thread in started:
        thread.start()
    end, captures = time.monotonic() + float(seconds), 0
    while time.monotonic() < end:
        capture(
            CUDAGraph(),
            stream,
            sides,
            buffer,
            pause=random.choice((0, 0.0002, 0.001)),
            joins=random.random() < 0.5,
        )
        captures += 1
    over.set()
    for thread in started:
        thread.join(2 * LIMIT)
        assert not thread.is_alive()
    for side in sides:
        assert side.submit(int).result(LIMIT) == 0
    seen = sum(counts, Counter())
    print(
        f"{captures} captures, {seen['ran']} ran, {seen['captured']} captured"
    )
    failed = {k: n for k, n in seen.items() if k not in ("ran", "captured")}
    for text, count in failed.items():
        print(f"{count} times: {text}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
