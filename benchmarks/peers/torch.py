"""torch.cuda."""

from benchmarks.peers import torch_api

PACKAGE = "torch"
START = (
    "import torch",
    "stream = torch.cuda.Stream()",
    "torch.cuda.Event().record(stream); stream.synchronize()",
)


def calls():
    import torch

    torch.cuda.init()
    return torch_api.calls(torch.cuda)
