"""Imports that other threads had begun when a child was forked.

In the child, these threads do not exist, but importlib's locks for their
imports are still held.  So the next import of such a module would wait for
ever.  This happens easily: the call that first needs a module of this package
imports it, on any thread.
"""

from __future__ import annotations

import _frozen_importlib
import os
import sys
from _thread import get_ident


def _forget_imports() -> None:
    """In a new child, forget the imports that other threads had begun.

    The next import of such a module then begins again.  Imports that the
    calling thread has begun continue.
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
    """Call _forget_imports() in each child that is forked from now on."""
    os.register_at_fork(after_in_child=_forget_imports)
