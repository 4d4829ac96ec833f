"""A queue.Queue and the thread that serves it stand for a stream; a
threading.Event that the thread sets stands for an event."""

START = (
    "import queue, threading",
    """
stream = queue.Queue()
def serve():
    while (call := stream.get()) is not None:
        call()
        stream.task_done()
threading.Thread(target=serve, daemon=True).start()
""",
    "event = threading.Event(); stream.put(event.set); event.wait()",
)


def calls():
    from queue import Queue
    from threading import Event, Thread

    def new_stream():
        stream = Queue()

        def serve():
            while (call := stream.get()) is not None:
                call()
                stream.task_done()

        thread = Thread(target=serve, daemon=True)
        thread.start()
        return stream, thread

    (stream, _), (other, _) = new_stream(), new_stream()
    event, done = Event(), Event()
    done.set()

    def record_query():
        stream.put(event.set)
        event.is_set()

    def record_wait():
        recorded = Event()
        stream.put(recorded.set)
        other.put(recorded.wait)

    def event_life():
        stream.put(Event().set)

    def stream_life():
        made, thread = new_stream()
        made.put(None)
        thread.join()

    rows = {
        "record": lambda: stream.put(event.set),
        "record_query": record_query,
        "event_query": lambda: done.is_set(),
        "event_synchronize": lambda: done.wait(),
        "stream_query": lambda: stream.empty(),
        "stream_synchronize": lambda: stream.join(),
        "record_wait": record_wait,
        "event": lambda: Event(),
        "event_life": event_life,
        "stream_life": stream_life,
    }

    def settle():
        stream.join()
        other.join()

    return rows, settle
