"""CuPy."""

PACKAGE = "cupy"
START = (
    "import cupy",
    "stream = cupy.cuda.Stream(non_blocking=True)",
    "stream.record().synchronize()",
)


def calls():
    from cupy import cuda

    device = cuda.Device(0)
    device.use()
    stream, other = (cuda.Stream(non_blocking=True) for _ in range(2))
    event, done = (cuda.Event(disable_timing=True) for _ in range(2))
    timed, start, end = (cuda.Event() for _ in range(3))
    for one in (event, done, timed, start, end):
        one.record(stream)
    stream.synchronize()
    assert done.done

    def record_query():
        event.record(stream)
        return event.done

    def record_wait():
        event.record(stream)
        other.wait_event(event)

    def event_life():
        cuda.Event(disable_timing=True).record(stream)

    def with_stream():
        with stream:
            pass

    def with_device():
        with cuda.Device(0):
            pass

    rows = {
        "record": lambda: event.record(stream),
        "record_current": lambda: event.record(),
        "record_timed": lambda: timed.record(stream),
        "record_query": record_query,
        "event_query": lambda: done.done,
        "event_synchronize": lambda: done.synchronize(),
        "stream_query": lambda: stream.done,
        "stream_synchronize": lambda: stream.synchronize(),
        "record_wait": record_wait,
        "elapsed": lambda: cuda.get_elapsed_time(start, end),
        "event": lambda: cuda.Event(disable_timing=True),
        "event_life": event_life,
        "stream_life": lambda: cuda.Stream(non_blocking=True),
        "current_stream": lambda: cuda.get_current_stream(),
        "with_stream": with_stream,
        "with_device": with_device,
        "equal": lambda: stream == other,
        "hash": lambda: hash(stream),
    }
    return rows, device.synchronize
