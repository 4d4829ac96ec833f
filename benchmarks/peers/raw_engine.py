"""The functions of the CPU engine called from C."""

from benchmarks import native


def rows():
    return native.rows("engine.c", *native.engine())
