"""An asyncio server that processes its requests on a device.

    python examples/asyncio_server.py [--requests N]

A request is a line, say the number of a card.  The answer is the line with
all but its last four characters masked.  The device does the masking: on one
of a few streams, the server queues a copy to the device, a fill, and a copy
back.  During `await stream`, the event loop serves the other requests.  The
clients, many more than there are streams, are in the same program.
"""

import argparse
import asyncio
import contextlib
import random
import time

import pystreams

LONGEST = 4096
SLOTS = 8
CLIENTS = 32


class Slot:
    """What one request needs: a stream, and memory at both ends."""

    def __init__(self):
        self.stream = pystreams.Stream()
        self.host = pystreams.empty(LONGEST, pin_memory=True)
        self.data = pystreams.empty(LONGEST, stream=self.stream)

    async def mask(self, text):
        stream = self.stream
        await stream  # a cancelled request may have left work on it
        host, data = self.host[: len(text)], self.data[: len(text)]
        host.memoryview()[:] = text
        data.copy_(host, non_blocking=True, stream=stream)
        data[:-4].fill_(ord("*"), stream=stream)
        data.copy_to(host, non_blocking=True, stream=stream)
        await stream
        return bytes(host.memoryview())


class Server:
    """Processes as many requests at once as there are slots; the other
    requests wait for a slot."""

    def __init__(self):
        self.slots = asyncio.Queue()
        for _ in range(SLOTS):
            self.slots.put_nowait(Slot())

    async def answer(self, text):
        slot = await self.slots.get()
        try:
            return await slot.mask(text)
        finally:
            self.slots.put_nowait(slot)

    async def connected(self, reader, writer):
        with contextlib.closing(writer):
            while line := await reader.readline():
                masked = await self.answer(line.rstrip(b"\n"))
                writer.write(masked + b"\n")
                await writer.drain()


async def ask(port, count):
    """A client: send `count` requests, and check every answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        for _ in range(count):
            text = b"%d" % random.randrange(10**15, 10**16)
            writer.write(text + b"\n")
            answer = await reader.readline()
            assert answer == b"*" * 12 + text[-4:] + b"\n", answer
        writer.write_eof()
        assert await reader.read() == b""  # the server has closed, too


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--requests",
        type=int,
        default=CLIENTS * 64,
        help="how many, rounded up to as many from each client",
    )
    requests = parser.parse_args().requests
    if requests < 1:
        parser.error("--requests must be at least 1")
    each = -(-requests // CLIENTS)

    server = await asyncio.start_server(
        Server().connected, "127.0.0.1", 0, limit=LONGEST
    )
    port = server.sockets[0].getsockname()[1]
    begin = time.perf_counter()
    async with server:
        await asyncio.gather(*(ask(port, each) for _ in range(CLIENTS)))
    seconds = time.perf_counter() - begin

    device = pystreams.Stream().device
    print(
        f"{each * CLIENTS} requests of {CLIENTS} clients on {SLOTS} streams "
        f"of {device}: {each * CLIENTS / seconds:,.0f} a second"
    )


if __name__ == "__main__":
    asyncio.run(main())
