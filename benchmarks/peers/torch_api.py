"""The rows of a library whose names are those of torch.cuda."""


def calls(cuda):
    stream, other = cuda.Stream(), cuda.Stream()
    event, done = cuda.Event(), cuda.Event()
    timed, start, end = (cuda.Event(enable_timing=True) for _ in range(3))
    for one in (event, done, timed, start, end):
        one.record(stream)
    stream.synchronize()
    assert done.query() and end.query()

    def record_query():
        event.record(stream)
        event.query()

    def record_wait():
        event.record(stream)
        other.wait_event(event)

    def event_life():
        cuda.Event().record(stream)

    def with_stream():
        with stream:
            pass

    rows = {
        "record": lambda: event.record(stream),
        "record_current": lambda: event.record(),
        "record_timed": lambda: timed.record(stream),
        "record_query": record_query,
        "event_query": lambda: done.query(),
        "event_synchronize": lambda: done.synchronize(),
        "stream_query": lambda: stream.query(),
        "stream_synchronize": lambda: stream.synchronize(),
        "record_wait": record_wait,
        "wait_stream": lambda: other.wait_stream(stream),
        "elapsed": lambda: start.elapsed_time(end),
        "event": lambda: cuda.Event(),
        "event_life": event_life,
        "stream_life": lambda: cuda.Stream(),
        "current_stream": lambda: cuda.current_stream(),
        "with_stream": with_stream,
        "equal": lambda: stream == other,
        "hash": lambda: hash(stream),
    }
    if hasattr(cuda, "device"):

        def with_context():
            with cuda.stream(stream):
                pass

        def with_device():
            with cuda.device(0):
                pass

        rows["with_context"] = with_context
        rows["with_device"] = with_device
    return rows, cuda.synchronize
