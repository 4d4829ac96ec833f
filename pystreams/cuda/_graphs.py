"""Captures and graphs with torch's names, words and errors.

Ending a capture, entering a `graph` block and leaving it are one C call each,
so that Ctrl-C cannot interrupt them halfway.
"""

from __future__ import annotations

from itertools import count

from .. import _C
from .._C import CudaStream as Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Self

    from .._C import _StreamLike

    _Pool = tuple[int, int]

_CUDA = 1
# Indexed by enum ps_capture_mode.
_MODES = ("global", "thread_local", "relaxed")

_pools = count(1)


def graph_pool_handle() -> _Pool:
    """Return a new token for a memory pool that graphs share, two ints."""
    return 0, next(_pools)


def _mode(name: str) -> int:
    if not isinstance(name, str):
        raise TypeError(
            "capture_begin() expects a str for capture_error_mode, but got "
            f"{type(name).__name__}"
        )
    if name not in _MODES:
        raise RuntimeError(
            "Unknown capture error mode. Expected `global`, `thread_local`, "
            f"or `relaxed`, got {name}"
        )
    return _MODES.index(name)


def _pool(pool: _Pool | None) -> _Pool:
    """Return the token; a new one for None and (0, 0), which mean no pool."""
    if pool is None or pool == (0, 0):
        return next(_pools), 0
    if isinstance(pool, tuple) and [type(n) for n in pool] == [int, int]:
        return pool
    raise TypeError(
        "capture_begin() expects None or a token of graph_pool_handle() or "
        f"CUDAGraph.pool() for pool, but got {pool!r}"
    )


class Graph(_C.Graph):
    """A CUDAGraph for any device type."""

    def capture_begin(
        self, pool: _Pool | None = None, capture_error_mode: str = "global"
    ) -> None:
        """Begin to capture the current stream (cudaStreamBeginCapture).

        Until capture_end(), its work is captured and not executed.  A stream
        that waits for an event recorded in the capture joins it.
        capture_error_mode says which threads must not make calls that are
        unsafe during a capture: 'global' (all), 'thread_local' (this one) or
        'relaxed' (none).  pool is a token of graph_pool_handle() or pool();
        it has no effect, as there is no caching allocator and each graph
        keeps the Buffers that its work uses.

        Raises RuntimeError on a default stream, if there is a captured graph
        already, and for another mode.
        """
        self._begin(_mode(capture_error_mode), _pool(pool))

    def pool(self) -> _Pool:
        """Return the token of the memory pool, for another capture_begin().

        Raises RuntimeError if nothing was captured.
        """
        _, handle, executable, pool = self._state()
        if handle == executable == 0:
            raise RuntimeError(
                "Called CUDAGraph::pool() without a preceding successful "
                "capture."
            )
        return pool

    def raw_cuda_graph(self) -> int:
        """Return the cudaGraph_t as an int.

        Raises RuntimeError unless keep_graph is True and capture_end() was
        called.
        """
        keeps, handle, *_ = self._state()
        if not keeps:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless "
                "CUDAGraph was initialized with keep_graph=true"
            )
        if handle == 0:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance until "
                "capture_end() has been called"
            )
        return handle

    def raw_cuda_graph_exec(self) -> int:
        """Return the cudaGraphExec_t as an int.

        It is valid until instantiate() or reset().  Raises RuntimeError if
        there is none.
        """
        _, _, handle, _ = self._state()
        if handle == 0:
            raise RuntimeError(
                "You cannot access the raw cudaGraphExec_t instance until "
                "instantiate() has been called"
            )
        return handle


class CUDAGraph(Graph):
    """Work that is captured once and replayed as a whole.

    It keeps the Buffers and the external events that its work uses until
    reset() or its own end.  With keep_graph, the cudaGraph_t is kept for
    raw_cuda_graph(), and instantiate() makes the graph ready to replay.

    Raises RuntimeError if there is no device, NotImplementedError if the
    backend has no graphs.  Safe to use from several threads.
    """

    __module__ = "pystreams.cuda"

    def __new__(cls, keep_graph: bool = False) -> Self:
        # torch accepts None and any int, too.
        if keep_graph is not None and not isinstance(keep_graph, int):
            raise TypeError(
                "CUDAGraph() expects a bool for keep_graph, but got "
                f"{type(keep_graph).__name__}"
            )
        return super().__new__(cls, _CUDA, bool(keep_graph))


class graph(_C.GraphContext):
    """Capture the current stream's work within a with block.

    The block runs with a stream current, one of its own if none is given,
    after all work on the current device is done.  pool and capture_error_mode
    go to CUDAGraph.capture_begin.  However the block ends, the capture ends,
    the streams that joined it are usable again, and the stream that was
    current before is current again.  An exception of the block comes before
    one of the capture's end.
    """

    __module__ = "pystreams.cuda"

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: _Pool | None = None,
        stream: _StreamLike | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        for method in ("capture_begin", "capture_end", "reset"):
            if not callable(getattr(cuda_graph, method, None)):
                raise TypeError(
                    "graph() expects a CUDAGraph for cuda_graph, but got "
                    f"{type(cuda_graph).__name__}"
                )
        self.capture_stream: _C.Stream = (
            Stream() if stream is None else _C.as_stream("graph", stream)
        )
        super().__init__(self.capture_stream)
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_error_mode = capture_error_mode

    def _begin(self) -> None:
        begin = self.cuda_graph.capture_begin
        # Looked up now, so that __exit__ cannot fail before the call.
        self._end = self.cuda_graph.capture_end
        begin(self.pool, self.capture_error_mode)

    def _cancel(self) -> None:
        # Ctrl-C may have interrupted _begin() after the capture began.
        if self.capture_stream.is_capturing():
            self.cuda_graph.reset()

    @property
    def stream_ctx(self) -> _C.StreamContext:
        """The context manager that makes the stream current: this one."""
        return self
