"""The context manager that captures a with block into a CUDAGraph."""

from __future__ import annotations

from .. import _C
from .._C import CudaGraph, CudaStream, StreamContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .._C import _StreamLike

_CUDA = 1


class graph:
    """Capture what the current stream gets within a with block.

    The block runs with a stream current, one of its own where none is given,
    after all work on the current device is done.  pool and
    capture_error_mode go to CUDAGraph.capture_begin.  However the block ends,
    so does the capture, the streams that it took work of are usable again,
    and the stream that was current is so again.  What the block raises comes
    before what is then wrong with the capture.
    """

    __slots__ = (
        "capture_error_mode",
        "capture_stream",
        "cuda_graph",
        "pool",
        "stream_ctx",
    )

    def __init__(
        self,
        cuda_graph: CudaGraph,
        pool: tuple[int, int] | None = None,
        stream: _StreamLike | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_stream = (
            CudaStream() if stream is None else _C.as_stream(_CUDA, stream)
        )
        self.capture_error_mode = capture_error_mode
        self.stream_ctx = StreamContext(self.capture_stream)

    def __enter__(self) -> None:
        _C.synchronize(_CUDA)
        self.stream_ctx.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self.stream_ctx.__exit__()
            raise

    def __exit__(self, *args: Any) -> None:
        try:
            self.cuda_graph.capture_end()
        except Exception:
            if not any(args):
                raise
        finally:
            self.stream_ctx.__exit__(*args)
