"""A fault of the kind that compute-sanitizer must report, or no fault.

python tests/support/planted_gpu.py address|order|none
"""

import sys

from kernels import NOWHERE, Kernels

import pystreams
from pystreams import _C, cuda

SECOND = 1_900_000_000

kind = sys.argv[1]
writer, other = cuda.Stream(), cuda.Stream()
first = pystreams.empty(64, device="cuda:0", stream=other)
kernels = Kernels()
if kind == "order":
    # The block is allocated only after `other` has slept, but the writer does
    # not wait for the allocation.
    _C.sleep(1, SECOND // 10, other)
block = pystreams.empty(64, device="cuda:0", stream=other)
if kind == "none":
    writer.wait_stream(other)
address = NOWHERE if kind == "address" else block.data_ptr()
kernels.store(writer.cuda_stream, address, 1)
if kind == "address":
    # The fault has broken the device, so it cannot be used any more.
    sys.exit()
other.wait_stream(writer)
cuda.synchronize()
