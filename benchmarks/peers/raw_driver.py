"""The driver's functions called from C, on handles that cudart made."""

from benchmarks import native


def rows():
    return native.rows("driver.c", *native.toolkit())
