"""The driver's functions called by bare methods, which release the GIL."""

from benchmarks import native

ROWS = (
    "record",
    "record_current",
    "record_timed",
    "event_query",
    "event_synchronize",
    "stream_query",
    "stream_synchronize",
    "wait_stream",
    "elapsed",
)


def calls():
    bare = native.extension("bare", *native.toolkit())

    def call(name):
        method = getattr(bare, name)
        return lambda: method()

    return {name: call(name) for name in ROWS}, bare.all_done
