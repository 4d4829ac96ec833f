"""Broadcast, scatter, gather and reduce between GPUs, as torch.cuda.comm does
them: NCCL on pystreams' streams, ordered by its events.

    python examples/collectives.py [--bytes N]

Alone, the program drives all GPUs of the machine.  If RANK and WORLD_SIZE are
set, it drives one GPU and is one of WORLD_SIZE processes, on this machine or
on several (docs/multi-node.md):

    MASTER_ADDR=node0 MASTER_PORT=29500 WORLD_SIZE=8 RANK=5 LOCAL_RANK=1 \\
        python examples/collectives.py

The code is the same in both cases.  A rank is one GPU's number in the
collectives.  A Group has the ranks of one process: all ranks, or one.  A
collective takes and returns the buffers of these ranks only.

The program needs two GPUs, and NCCL: from the package nvidia-nccl-cu13 (which
torch installs), from CuPy, or from the system.
"""

import argparse
import array
import ctypes
import glob
import importlib.util
import os
import socket
import time

import pystreams
from pystreams import cuda

ROOT = 0
UINT8, FLOAT32, SUM = 1, 7, 0
DEADLINE = 60

POINTER, INT, SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)


PROTOTYPES = {
    "ncclGetUniqueId": (POINTER,),
    "ncclCommInitAll": (POINTER, INT, POINTER),
    "ncclCommInitRank": (POINTER, INT, UniqueId, INT),
    "ncclCommDestroy": (POINTER,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclBroadcast": (POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER),
    "ncclReduce": (POINTER, POINTER, SIZE, INT, INT, INT, POINTER, POINTER),
    "ncclSend": (POINTER, SIZE, INT, INT, POINTER, POINTER),
    "ncclRecv": (POINTER, SIZE, INT, INT, POINTER, POINTER),
}


class Nccl:
    """The functions of NCCL, by their names without the prefix; a failure
    raises RuntimeError."""

    def __init__(self):
        # Within a process, NCCL's kernels may access another GPU's memory
        # directly.  They cannot access Buffers in this way, because Buffers
        # come from memory pools.  So switch direct access off.
        os.environ.setdefault("NCCL_P2P_DIRECT_DISABLE", "1")
        self.library = find_nccl()
        self.library.ncclGetErrorString.restype = ctypes.c_char_p
        for name, parameters in PROTOTYPES.items():
            getattr(self.library, name).argtypes = parameters

    def __getattr__(self, name):
        function = getattr(self.library, f"nccl{name}")

        def call(*arguments):
            status = function(*arguments)
            if status != 0:
                text = self.library.ncclGetErrorString(status).decode()
                raise RuntimeError(f"nccl{name}: {text}")

        return call


def find_nccl():
    package = importlib.util.find_spec("nvidia")
    folders = package.submodule_search_locations if package else []
    found = [p for f in folders for p in glob.glob(f"{f}/nccl/lib/*.so.2")]
    for name in (*found, "libnccl.so.2"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise SystemExit(
        "collectives.py needs NCCL; pip install nvidia-nccl-cu13 brings it"
    )


class Member:
    """A rank of this process: a GPU, and a stream for NCCL alone."""

    def __init__(self, rank, device, comm):
        self.rank, self.device, self.comm = rank, device, comm
        self.stream = cuda.Stream(device)
        self.ready, self.done = cuda.Event(), cuda.Event()

    def enter(self, *blocks):
        """Make NCCL's stream wait for the work on the caller's stream, and
        keep the blocks' memory from reuse until NCCL's work is done."""
        self.ready.record(cuda.current_stream(self.device))
        self.stream.wait_event(self.ready)
        for block in blocks:
            block.record_stream(self.stream)

    def leave(self):
        """Make the caller's stream wait for NCCL's work."""
        self.done.record(self.stream)
        cuda.current_stream(self.device).wait_event(self.done)

    def empty(self, nbytes):
        return pystreams.empty(nbytes, device=f"cuda:{self.device}")


class Group:
    """The ranks of this process among `size` ranks.

    All processes must call the same collectives in the same order.  A
    collective only queues work and does not wait for it.  Lists of buffers
    are in the order of `members`.  A buffer of the root, such as the source of
    broadcast(), is None in a process that does not have the root.
    """

    def __init__(self, nccl, size, members):
        self.nccl, self.size, self.members = nccl, size, members

    @classmethod
    def of_all(cls, devices):
        """Return a group in which this process drives all devices."""
        nccl, size = Nccl(), len(devices)
        comms = (POINTER * size)()
        nccl.CommInitAll(comms, size, (INT * size)(*devices))
        places = zip(devices, comms, strict=True)
        return cls(nccl, size, [Member(r, *p) for r, p in enumerate(places)])

    @classmethod
    def joined(cls, rank, size, device, address):
        """Return a group in which this process has one rank of `size`.  At
        this address, rank 0 gives NCCL's id to the other ranks."""
        nccl, comm = Nccl(), POINTER()
        cuda.set_device(device)
        identity = meet(nccl, rank, size, address)
        nccl.CommInitRank(ctypes.byref(comm), size, identity, rank)
        return cls(nccl, size, [Member(rank, device, comm.value)])

    def root(self):
        return next((m for m in self.members if m.rank == ROOT), None)

    def broadcast(self, source, nbytes):
        """Return the root's bytes, on every GPU."""
        outputs = [member.empty(nbytes) for member in self.members]

        def queue(member, output):
            given = source.data_ptr() if member.rank == ROOT else None
            where = (ROOT, member.comm, member.stream)
            self.nccl.Broadcast(
                given, output.data_ptr(), nbytes, UINT8, *where
            )

        self.run(queue, outputs, source)
        return outputs

    def scatter(self, source, chunk_sizes):
        """Return the chunks of the root's bytes, one on each GPU.  The chunks
        lie one after the other in the source."""
        outputs = [m.empty(chunk_sizes[m.rank]) for m in self.members]

        def queue(member, output):
            where = (member.comm, member.stream)
            if member.rank == ROOT:
                for rank, (start, nbytes) in enumerate(spans(chunk_sizes)):
                    place = source.data_ptr() + start
                    self.nccl.Send(place, nbytes, UINT8, rank, *where)
            self.nccl.Recv(
                output.data_ptr(), output.nbytes, UINT8, ROOT, *where
            )

        self.run(queue, outputs, source)
        return outputs

    def gather(self, blocks, chunk_sizes):
        """Return the chunks of all GPUs, one after the other, on the root."""
        root = self.root()
        target = root and root.empty(sum(chunk_sizes))

        def queue(member, block):
            where = (member.comm, member.stream)
            if member is root:
                for rank, (start, nbytes) in enumerate(spans(chunk_sizes)):
                    place = target.data_ptr() + start
                    self.nccl.Recv(place, nbytes, UINT8, rank, *where)
            self.nccl.Send(block.data_ptr(), block.nbytes, UINT8, ROOT, *where)

        self.run(queue, blocks, target)
        return target

    def reduce_add(self, blocks):
        """Return the sum of all ranks' 32-bit floats, on the root."""
        root = self.root()
        target = root and root.empty(blocks[0].nbytes)

        def queue(member, block):
            taken = target.data_ptr() if member is root else None
            count = block.nbytes // 4
            where = (ROOT, member.comm, member.stream)
            self.nccl.Reduce(
                block.data_ptr(), taken, count, FLOAT32, SUM, *where
            )

        self.run(queue, blocks, target)
        return target

    def run(self, queue, blocks, of_root):
        """Queue a collective on every member.  Between GroupStart() and
        GroupEnd(), the calls for one member do not wait for the others."""
        pairs = list(zip(self.members, blocks, strict=True))
        for member, block in pairs:
            more = (of_root,) if member.rank == ROOT else ()
            member.enter(block, *more)
        self.nccl.GroupStart()
        for member, block in pairs:
            queue(member, block)
        self.nccl.GroupEnd()
        for member in self.members:
            member.leave()

    def synchronize(self):
        for member in self.members:
            cuda.current_stream(member.device).synchronize()

    def close(self):
        self.synchronize()
        for member in self.members:
            self.nccl.CommDestroy(member.comm)


def spans(sizes):
    """Yield (start, size) of chunks that lie one after the other."""
    start = 0
    for size in sizes:
        yield start, size
        start += size


def meet(nccl, rank, size, address):
    """Return NCCL's id of the group: rank 0 makes it, and the others connect
    to rank 0's address and receive it."""
    identity = UniqueId()
    if rank == ROOT:
        nccl.GetUniqueId(ctypes.byref(identity))
        with socket.create_server(address) as server:
            server.settimeout(DEADLINE)
            for _ in range(size - 1):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(bytes(identity))
        return identity
    end = time.monotonic() + DEADLINE
    while True:
        try:
            with socket.create_connection(address, timeout=DEADLINE) as peer:
                told = peer.makefile("rb").read(ctypes.sizeof(identity))
            return UniqueId.from_buffer_copy(told)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def open_group():
    count = 0 if cuda.is_emulated() else cuda.device_count()
    if ("RANK" in os.environ) != ("WORLD_SIZE" in os.environ):
        raise SystemExit(
            "collectives.py is one of several processes where both RANK and "
            "WORLD_SIZE are set, and alone where neither is"
        )
    if "RANK" not in os.environ:
        if count < 2:
            raise SystemExit(
                f"collectives.py needs two GPUs, and there are {count}"
            )
        return Group.of_all(range(count))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = int(os.environ.get("LOCAL_RANK", rank))
    if device >= count:
        raise SystemExit(
            f"collectives.py needs a GPU for each process of a machine: "
            f"LOCAL_RANK is {device}, and there are {count}"
        )
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = int(os.environ.get("MASTER_PORT", "29500"))
    return Group.joined(rank, size, device, (host, port))


def measured(group, name, nbytes, collective, check):
    """Run the collective once and check its result, then time some runs."""
    result = collective()
    group.synchronize()
    check(result)
    repeats = 10
    begin = time.perf_counter()
    for _ in range(repeats):
        collective()
    group.synchronize()
    seconds = (time.perf_counter() - begin) / repeats
    if group.root():
        print(
            f"{name} of {nbytes:,} bytes, {group.size} GPUs: correct, "
            f"{nbytes / seconds / 1e9:.1f} GB/s",
            flush=True,
        )


def filled(member, content):
    return member.empty(len(content)).copy_(content)


def run(group, nbytes):
    """Run each collective, check its result and print its speed."""
    root, count = group.root(), nbytes // 4
    content = bytes(range(251)) * (nbytes // 251 + 1)
    content = content[: count * 4]
    source = root and filled(root, content)
    total = sum(range(1, group.size + 1))
    # Chunks of different sizes: rank r gets r + 1 of `total` equal parts, and
    # the last rank also gets what remains of the content.
    sizes = [len(content) // total * (r + 1) for r in range(group.size)]
    sizes[-1] += len(content) - sum(sizes)
    chunks = [content[start : start + size] for start, size in spans(sizes)]
    mine = [filled(m, chunks[m.rank]) for m in group.members]
    terms = [
        filled(m, bytes(array.array("f", [m.rank + 1]) * count))
        for m in group.members
    ]
    sums = bytes(array.array("f", [total]) * count)

    def all_have_it(blocks):
        assert all(block.tobytes() == content for block in blocks)

    def each_has_its_chunk(blocks):
        for member, block in zip(group.members, blocks, strict=True):
            assert block.tobytes() == chunks[member.rank]

    def root_has_it(block):
        assert block is None or block.tobytes() == content

    def root_has_the_sum(block):
        assert block is None or block.tobytes() == sums

    length = len(content)
    for name, collective, check in (
        ("broadcast", lambda: group.broadcast(source, length), all_have_it),
        ("scatter", lambda: group.scatter(source, sizes), each_has_its_chunk),
        ("gather", lambda: group.gather(mine, sizes), root_has_it),
        ("reduce_add", lambda: group.reduce_add(terms), root_has_the_sum),
    ):
        measured(group, name, length, collective, check)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--bytes", type=int, default=64 << 20, help="on each GPU"
    )
    nbytes = parser.parse_args().bytes
    if nbytes < 4:
        parser.error("--bytes must be at least 4, the size of a float")
    group = open_group()
    run(group, nbytes)
    group.close()


if __name__ == "__main__":
    main()
