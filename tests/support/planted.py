"""A fault of the kind that a sanitizer must report, made with the module.

python tests/support/planted.py address|object|thread
"""

import ctypes
import sys

from pystreams import Buffer, Stream

buffer = Buffer(1 << 20, device="cpu")
if sys.argv[1] == "address":
    # Write one byte past the end of the buffer.
    ctypes.memset(buffer.data_ptr() + buffer.nbytes, 0, 1)
elif sys.argv[1] == "object":
    # Write to a Python object after it was freed.
    text = bytes(100)
    address = id(text) + sys.getsizeof(text) // 2
    del text
    ctypes.memset(address, 0, 1)
else:
    # Two streams write the same memory, and no event orders the writes.
    streams = Stream("cpu"), Stream("cpu")
    for turn in range(100):
        for stream in streams:
            buffer.fill_(turn, stream=stream)
    for stream in streams:
        stream.synchronize()
