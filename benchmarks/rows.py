"""The calls that are compared, a row for each, with pystreams' targets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """The most that a call of pystreams may take: `most` nanoseconds, or
    `most` times the figure of another library in the same row or of
    pystreams in another row; `of` is the name of that library or row."""

    most: float
    of: str = "ns"

    def __str__(self):
        if self.of == "ns":
            return f"≤ {self.most:g} ns"
        return f"≤ {self.most:g} x {self.of}"


@dataclass(frozen=True)
class Call:
    title: str
    cuda: Target | None = None
    cpu: Target | None = None


CALLS = {
    "record": Call("event.record(stream)", Target(1, "cuda.core")),
    "record_current": Call(
        "event.record(), current stream", Target(1.3, "record")
    ),
    "record_timed": Call("record, timing on", Target(1.1, "raw")),
    "record_query": Call("record + event.query()", cpu=Target(120)),
    "event_query": Call("event.query(), done", Target(0.4, "raw")),
    "event_synchronize": Call("event.synchronize(), done", Target(0.4, "raw")),
    "stream_query": Call("stream.query()", Target(1.4, "raw")),
    "stream_synchronize": Call(
        "stream.synchronize(), idle", Target(1.2, "raw")
    ),
    "record_wait": Call(
        "record + wait on another stream", Target(1, "cuda.core")
    ),
    "wait_stream": Call("stream.wait_stream(other)", Target(0.6, "cuda.core")),
    "elapsed": Call("start.elapsed_time(end)", Target(1, "cuda.core")),
    "event": Call("Event()", Target(120)),
    "event_life": Call("create, record, drop an event", Target(0.9, "raw")),
    "stream_life": Call("create, drop a stream", Target(0.15, "raw")),
    "current_stream": Call("current_stream()", Target(80)),
    "with_stream": Call("with stream: pass", Target(250)),
    "with_context": Call("with cuda.stream(stream): pass"),
    "with_device": Call("with device: pass", Target(250)),
    "equal": Call("stream == other", Target(1, "cuda.core")),
    "hash": Call("hash(stream)", Target(1, "cuda.core")),
}
