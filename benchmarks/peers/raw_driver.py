"""The driver's own functions called from C, on handles of cudart's."""

from benchmarks import native


def rows():
    return native.rows("driver.c", *native.toolkit())
