"""Makes NVTX, in each library of this process that contains it, call the
extension module, which exports the symbol that NVTX looks for."""

from __future__ import annotations

import os

from .. import _C

# NVTX reads this variable once for each library that contains NVTX, at the
# first call there.
_VARIABLE = "NVTX_INJECTION64_PATH"
# A path in this folder that begins with the process's own id is valid in this
# process alone.  So its children, which inherit the variable, load nothing.
_HERE = "/proc/self/task/"


def attach() -> None:
    """Name the extension module to NVTX, unless another tool is named."""
    named = os.environ.get(_VARIABLE)
    if not named or named.startswith(_HERE):
        path = os.path.abspath(_C.__file__)
        os.environ[_VARIABLE] = f"{_HERE}{os.getpid()}/../../../..{path}"
