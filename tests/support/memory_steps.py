"""Random uses of memory, and how much memory must be in use after each."""

import random

from producers import Loan

import pystreams


class Owned:
    """A block of device memory, and the objects that keep it."""

    def __init__(self, index, nbytes, holder):
        self.index, self.nbytes, self.holders = index, nbytes, [holder]
        self.lent = False


class Steps:
    """Random things that programs do with memory.

    `owned` has the blocks of device memory in use.  `others` has borrowed and
    pinned memory, which do not count as in use."""

    def __init__(self, backend, seed):
        self.backend, self.random = backend, random.Random(seed)
        self.streams = [
            [backend.default_stream(i), backend.stream(i), backend.stream(i)]
            for i in range(backend.count)
        ]
        self.last = self.streams[0][0]
        self.owned, self.others = [], []

    def buffers(self):
        return [
            (block, holder)
            for block in self.owned
            for holder in block.holders
            if isinstance(holder, pystreams.Buffer)
        ]

    def one(self):
        """A block and a Buffer that holds it."""
        return self.random.choice(self.buffers())

    def stream(self, index):
        """A stream of the device, which first waits for all work so far."""
        stream = self.random.choice(self.streams[index])
        stream.wait_stream(self.last)
        self.last = stream
        return stream

    def allocate(self):
        index = self.random.randrange(self.backend.count)
        nbytes = self.random.choice([0, 1, 255, 256, 4096, 100_000])
        stream = self.stream(index)
        if stream == self.streams[index][0] and self.random.random() < 0.5:
            stream = None
        buffer = self.backend.empty(nbytes, index, stream=stream)
        self.owned.append(Owned(index, nbytes, buffer))

    def cut(self):
        block, buffer = self.one()
        a, b = sorted(self.random.choices(range(buffer.nbytes + 1), k=2))
        block.holders.append(buffer[a:b])

    def export(self):
        block, buffer = self.one()
        block.holders.append(buffer.__dlpack__(max_version=(1, 0)))

    def export_a_copy(self):
        block, buffer = self.one()
        with self.stream(block.index):
            capsule = buffer.__dlpack__(copy=True)
        self.owned.append(Owned(block.index, buffer.nbytes, capsule))

    def take(self):
        block, buffer = self.one()
        block.holders.append(pystreams.from_dlpack(buffer))
        block.lent = True

    def borrow(self):
        loan = Loan(bytes(self.random.randrange(1000)))
        self.others.append(pystreams.from_dlpack(loan.capsule()))

    def pin(self):
        size = self.random.randrange(10_000)
        self.others.append(self.backend.empty(size, pin_memory=True))

    def copy(self):
        (block, target), (other, source) = self.one(), self.one()
        size = min(target.nbytes, source.nbytes)
        if block is not other:
            target[:size].copy_(source[:size], True, self.stream(block.index))

    def fill(self):
        block, buffer = self.one()
        buffer.fill_(1, self.stream(block.index))

    def copy_out(self):
        block, buffer = self.one()
        buffer.copy_to(
            bytearray(buffer.nbytes), stream=self.stream(block.index)
        )

    def finish(self, block):
        """A borrower gives memory back once the borrower's work with it is
        done."""
        if block.lent:
            self.backend.synchronize(block.index)

    def close(self):
        block, buffer = self.one()
        self.finish(block)
        block.holders.remove(buffer)
        buffer.close()

    def drop(self):
        for block in self.random.sample(self.owned, min(2, len(self.owned))):
            self.finish(block)
            holders = block.holders
            holders.pop(self.random.randrange(len(holders)))
            if not holders:
                self.owned.remove(block)
        self.others[:1] = []

    def synchronize(self):
        self.backend.synchronize(self.random.randrange(self.backend.count))

    def step(self):
        if not self.buffers():
            self.allocate()
            return
        self.random.choice(
            [
                self.allocate,
                self.allocate,
                self.cut,
                self.export,
                self.export_a_copy,
                self.take,
                self.borrow,
                self.pin,
                self.copy,
                self.fill,
                self.copy_out,
                self.close,
                self.drop,
                self.drop,
                self.synchronize,
            ]
        )()
        self.owned = [block for block in self.owned if block.holders]
