"""Numba, with numba-cuda."""

PACKAGE = "numba"
START = (
    "from numba import cuda",
    "stream = cuda.stream()",
    "event = cuda.event(False); event.record(stream); event.synchronize()",
)


def calls():
    from numba import cuda

    stream, other = cuda.stream(), cuda.stream()
    event, done = (cuda.event(timing=False) for _ in range(2))
    timed, start, end = (cuda.event() for _ in range(3))
    for one in (event, done, timed, start, end):
        one.record(stream)
    stream.synchronize()
    assert done.query()

    def record_query():
        event.record(stream)
        event.query()

    def record_wait():
        event.record(stream)
        event.wait(other)

    def event_life():
        cuda.event(timing=False).record(stream)

    rows = {
        "record": lambda: event.record(stream),
        "record_timed": lambda: timed.record(stream),
        "record_query": record_query,
        "event_query": lambda: done.query(),
        "event_synchronize": lambda: done.synchronize(),
        "stream_synchronize": lambda: stream.synchronize(),
        "record_wait": record_wait,
        "elapsed": lambda: start.elapsed_time(end),
        "event": lambda: cuda.event(timing=False),
        "event_life": event_life,
        "stream_life": lambda: cuda.stream(),
    }
    return rows, cuda.synchronize
