"""What tests of captures and graphs share."""

import threading

import pytest
from deadlines import LONG

from pystreams import AcceleratorError
from pystreams.cuda._graphs import Graph

SIZE = 4096

UNSUPPORTED = 900
MERGE = 902
UNJOINED = 904
ISOLATION = 905
CAPTURED_EVENT = 907
WRONG_THREAD = 908


class Capture:
    """Capture what a with block queues on a stream."""

    def __init__(self, graph, stream, mode="relaxed"):
        self.graph, self.stream, self.mode = graph, stream, mode

    def __enter__(self):
        self.stream.__enter__()
        self.graph.capture_begin(capture_error_mode=self.mode)

    def __exit__(self, *exc_info):
        try:
            self.graph.capture_end()
        finally:
            self.stream.__exit__(*exc_info)


def captured(backend, *works, keep=True):
    """Return a graph of the work that these functions queue; each is called
    with the stream that is being captured."""
    graph, stream = Graph(backend.type, keep), backend.stream()
    with Capture(graph, stream):
        for work in works:
            work(stream)
    return graph


def fill(buffer, byte):
    return lambda stream: buffer.fill_(byte, stream)


def copy(buffer, other):
    return lambda stream: buffer.copy_(other, non_blocking=True, stream=stream)


def filling(backend, buffer, byte, keep=False):
    return captured(backend, fill(buffer, byte), keep=keep)


def replay(graph, stream):
    with stream:
        graph.replay()


def is_unlocked(graph):
    """Whether another thread can use the graph now."""
    thread = threading.Thread(target=graph.pool, daemon=True)
    thread.start()
    thread.join(LONG)
    return not thread.is_alive()


def byte_of(buffer, stream):
    stream.synchronize()
    (byte,) = set(buffer.tobytes())
    return byte


def code(call, *arguments, **options):
    """The status of a call that fails."""
    with pytest.raises(AcceleratorError) as caught:
        call(*arguments, **options)
    return caught.value.error_code
