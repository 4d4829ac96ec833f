"""pystreams on a GPU."""

from benchmarks.peers import torch_api

PACKAGE = "pystreams"
START = (
    "from pystreams import cuda",
    "stream = cuda.Stream()",
    "cuda.Event().record(stream); stream.synchronize()",
)


def calls():
    from pystreams import cuda

    if cuda.is_emulated():
        raise RuntimeError("PYSTREAMS_EMULATE_CUDA is set")
    return torch_api.calls(cuda)
