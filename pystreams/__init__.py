"""Streams, events and the work they order, on CUDA devices and on the CPU.

Importing this package starts no thread and touches no driver.  At exit it
waits up to 5 seconds for running work, and does not start pending work.
"""

from __future__ import annotations

import atexit
import os
import sys

try:
    from . import _C, _forks, _settings, accelerator, cuda, trace

    _C.places_exclude(os.path.dirname(__file__) + os.sep)
    _forks.register()
    _settings.register_backends()
    _settings.look_for_races()
    _settings.explore_a_schedule()
    _settings.explain_on_signal()
except ImportError:
    from importlib.util import find_spec

    if find_spec(f"{__name__}._C") is not None:
        raise
    raise ImportError(
        f"{__path__[0]} is a checkout that has not been built: run `sh "
        "bootstrap.sh` there and use its .venv/bin/python, or `pip install` "
        "it and start Python in another folder"
    ) from None
except ValueError as _error:
    # An environment variable has an invalid value.  `python -m pystreams`
    # prints the error without a traceback.  In this case argv is ["-m"] now,
    # because Python imports the package to look for its __main__.
    if sys.argv[:1] != ["-m"]:
        raise
    print(f"pystreams: {_error}", file=sys.stderr)
    raise SystemExit(2) from None
from ._C import (
    AcceleratorError,
    Buffer,
    Event,
    ExternalStream,
    OutOfMemoryError,
    Partition,
    Stream,
    device,
    empty,
    from_dlpack,
    pin,
    register_backend,
)
from ._version import __version__
from ._waiting import as_completed, wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Any

    from . import races, schedules, timeline

__all__ = [
    "AcceleratorError",
    "Buffer",
    "Event",
    "ExternalStream",
    "OutOfMemoryError",
    "Partition",
    "Stream",
    "__version__",
    "accelerator",
    "as_completed",
    "cuda",
    "device",
    "empty",
    "explain",
    "from_dlpack",
    "get_include",
    "pin",
    "races",
    "register_backend",
    "schedules",
    "timeline",
    "trace",
    "wait",
]

# Modules that are imported when they are first used.
_LATER = ("races", "schedules", "timeline")

# Names that programs expect after `import pystreams as torch`.
_OF_TENSORS = (
    r"[Tt]ensor|zeros|ones|full|empty_like|from_numpy|arange|randn?"
    r"|b?float\d+|u?int\d+|bool|dtype|no_grad|inference_mode|autograd|nn"
)


def __getattr__(name: str) -> object:
    if name in _LATER:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    import re

    message = f"module {__name__!r} has no attribute {name!r}"
    if re.fullmatch(_OF_TENSORS, name):
        message += (
            ", because it has no tensors: pystreams.empty(nbytes) allocates "
            "a Buffer of bytes, which other libraries use as an array, as "
            "in `cupy.from_dlpack(buffer)`"
        )
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


_EXIT_DEADLINE = 5.0


def explain(x: Stream | Event | Future[Any] | None = None) -> str:
    """explain(x=None)

    Return in words what a stream, an event or a Future of Stream.submit waits
    for, down to the root; without an argument, what everything waits for.

    It knows the queues of the CPU engine, the callables of Stream.submit, and
    the threads that wait in this package.  Safe to call from any thread and
    from a signal handler: it waits for no work and changes nothing.  Raises
    TypeError for any other object.
    """
    from ._explain import explain

    return explain(x)


def get_include() -> str:
    """Return the folder for the compiler's -I, with <pystreams/backend.h>."""
    return os.path.join(os.path.dirname(__file__), "include")


def _shutdown() -> None:
    if not _C.shutdown(_EXIT_DEADLINE):
        print(
            "pystreams: queued work or a callback was still running "
            f"{_EXIT_DEADLINE:g} s after the program ended; it was abandoned",
            file=sys.stderr,
        )


atexit.register(_shutdown)
_settings.warn_of_variables()
