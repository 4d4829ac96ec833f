"""cudart called from C."""

from benchmarks import native


def rows():
    return native.rows("cudart.c", *native.toolkit())
