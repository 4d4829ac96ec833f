"""The driver's functions called by bare methods, which release the GIL."""

from benchmarks import native
from benchmarks.rows import CALLS


def calls():
    bare = native.extension("bare", *native.toolkit())

    def call(name):
        method = getattr(bare, name)
        return lambda: method()

    rows = {name: call(name) for name in CALLS if hasattr(bare, name)}
    return rows, bare.all_done
