"""asyncio: an event loop on the calling thread stands for a stream, and a
future that a callback of the loop completes stands for an event."""

START = (
    "import asyncio",
    "stream = asyncio.new_event_loop()",
    "stream.run_until_complete(asyncio.sleep(0)); stream.close()",
)


def calls():
    import asyncio

    from benchmarks.peers import nothing

    loop = asyncio.new_event_loop()
    done = loop.create_future()
    done.set_result(None)

    def record():
        loop.call_soon(loop.create_future().set_result, None)

    def record_query():
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        future.done()

    def settle():
        loop.run_until_complete(asyncio.sleep(0))

    rows = {
        "record": lambda: loop.call_soon(nothing),
        "record_query": record_query,
        "event_query": lambda: done.done(),
        "event_synchronize": lambda: done.result(),
        "event": lambda: loop.create_future(),
        "event_life": record,
    }
    return rows, settle
