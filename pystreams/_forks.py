"""Imports that other threads had begun when a child was forked.

A child has no thread that would finish them, but a copy of their locks in
importlib.  The next import of such a module would wait for its lock.  Many
modules of this package, and what these import, are imported by the call that
first needs them, on any thread.
"""

from __future__ import annotations

import _frozen_importlib
import os
import sys
from _thread import get_ident


def _forget_imports() -> None:
    """Make this process, a new child, begin other threads' imports again.

    Those of the calling thread go on.
    """
    locks = getattr(_frozen_importlib, "_module_locks", {})
    for name, reference in list(locks.items()):
        lock = reference()
        if getattr(lock, "owner", None) in (None, get_ident()):
            continue
        del locks[name]
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if getattr(spec, "_initializing", False):
            del sys.modules[name]


def register() -> None:
    """Make each child that is forked from now on begin them again."""
    os.register_at_fork(after_in_child=_forget_imports)
