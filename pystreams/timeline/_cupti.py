"""Finds CUPTI: loaded already, or in NVIDIA's wheel, or in a toolkit.

The CUDA backend looks for a loaded library by its name, so loading is enough.
"""

from __future__ import annotations

import contextlib
import os

from .. import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_CUDA = 1
_VERSIONS = (13, 12)


def _places() -> Iterator[str]:
    """Yield the paths at which CUPTI may be, the best one first."""
    from importlib.util import find_spec

    wheels = find_spec("nvidia")
    folders = [] if wheels is None else wheels.submodule_search_locations or []
    for folder in folders:
        yield f"{folder}/cu13/lib/libcupti.so.13"
        yield f"{folder}/cuda_cupti/lib/libcupti.so.12"
    named = map(os.environ.get, ("CUDA_HOME", "CUDA_PATH"))
    for root in filter(None, (*named, "/usr/local/cuda")):
        for version in _VERSIONS:
            yield f"{root}/extras/CUPTI/lib64/libcupti.so.{version}"
            yield f"{root}/lib64/libcupti.so.{version}"


def load() -> None:
    """Load CUPTI, if it can be found and there are real CUDA devices."""
    if _C.is_emulated(_CUDA) or _C.device_count(_CUDA) <= 0:
        return
    import ctypes

    for version in _VERSIONS:
        with contextlib.suppress(OSError):
            # Use a CUPTI that is loaded already: a second one in the process
            # would not work.
            ctypes.CDLL(f"libcupti.so.{version}", os.RTLD_NOW | os.RTLD_NOLOAD)
            return
    for path in filter(os.path.exists, _places()):
        with contextlib.suppress(OSError):
            ctypes.CDLL(path)
            return
