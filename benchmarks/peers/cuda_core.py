"""cuda.core, in which record and wait are methods of streams only."""

PACKAGE = "cuda.core"
START = (
    "from cuda.core import Device",
    "Device(0).set_current(); stream = Device(0).create_stream()",
    "stream.record(); stream.sync()",
)


def calls():
    from cuda.core import Device, EventOptions

    device = Device(0)
    device.set_current()
    stream, other = device.create_stream(), device.create_stream()
    timing = EventOptions(timing_enabled=True)
    event, done = device.create_event(), device.create_event()
    timed, start, end = (device.create_event(timing) for _ in range(3))
    for one in (event, done, timed, start, end):
        stream.record(one)
    stream.sync()
    assert done.is_done and end - start >= 0

    def record_query():
        stream.record(event)
        return event.is_done

    def record_wait():
        stream.record(event)
        other.wait(event)

    rows = {
        "record": lambda: stream.record(event),
        "record_timed": lambda: stream.record(timed),
        "record_query": record_query,
        "event_query": lambda: done.is_done,
        "event_synchronize": lambda: done.sync(),
        "stream_synchronize": lambda: stream.sync(),
        "record_wait": record_wait,
        "wait_stream": lambda: other.wait(stream),
        "elapsed": lambda: end - start,
        "event": lambda: device.create_event(),
        "event_life": lambda: stream.record(),
        "stream_life": lambda: device.create_stream(),
        "equal": lambda: stream == other,
        "hash": lambda: hash(stream),
    }
    return rows, device.sync
