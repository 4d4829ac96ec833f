"""A ThreadPoolExecutor of one thread stands for a stream, and the future of a
call that does nothing stands for an event."""

START = (
    "from concurrent.futures import ThreadPoolExecutor",
    "stream = ThreadPoolExecutor(1)",
    "stream.submit(int).result()",
)


def calls():
    from concurrent.futures import Future, ThreadPoolExecutor

    from benchmarks.peers import nothing

    stream, other = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    done = stream.submit(nothing)
    done.result()

    def record_wait():
        other.submit(stream.submit(nothing).result)

    def stream_life():
        made = ThreadPoolExecutor(1)
        made.submit(nothing)
        made.shutdown()

    rows = {
        "record": lambda: stream.submit(nothing),
        "record_query": lambda: stream.submit(nothing).done(),
        "event_query": lambda: done.done(),
        "event_synchronize": lambda: done.result(),
        "record_wait": record_wait,
        "event": lambda: Future(),
        "event_life": lambda: stream.submit(nothing),
        "stream_life": stream_life,
    }

    def settle():
        stream.submit(nothing).result()
        other.submit(nothing).result()

    return rows, settle
