"""examples/collectives.py, on GPUs with NCCL.  On other machines, a stand-in
for NCCL that uses memmove shows that the program makes the right calls."""

import ctypes
import importlib.util
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from places import ROOT

from pystreams import cuda as api

PROGRAM = ROOT / "examples" / "collectives.py"
NAMES = ["broadcast", "scatter", "gather", "reduce_add"]
# Do not use multicast, because not every machine lets a process set it up.
PLAIN = {"NCCL_NVLS_ENABLE": "0"}


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("collectives", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Nccl:
    """NCCL for memory that the host can access.  A communicator is its
    rank."""

    def __init__(self, ranks):
        self.ranks = ranks

    def GroupStart(self):
        self.calls = {rank: [] for rank in self.ranks}

    def __getattr__(self, name):
        def call(*arguments):
            self.calls[arguments[-2]].append((name, *arguments[:-2]))

        return call

    def CommDestroy(self, comm):
        self.ranks.remove(comm)

    def of(self, name, rank):
        return [call[1:] for call in self.calls[rank] if call[0] == name]

    def GroupEnd(self):
        for device in range(api.device_count()):
            api.synchronize(device)
        for rank in self.ranks:
            sent = {r: iter(self.of("Send", r)) for r in self.ranks}
            for target, count, _, source in self.of("Recv", rank):
                data, given, _, peer = next(
                    call for call in sent[source] if call[-1] == rank
                )
                assert (given, peer) == (count, rank)
                ctypes.memmove(target, data, count)
        self.broadcast()
        self.reduce()

    def broadcast(self):
        calls = [self.of("Broadcast", rank) for rank in self.ranks]
        if not calls[0]:
            return
        ((data, _, nbytes, _, root),) = calls[0]
        assert root == 0
        for ((_, target, count, _, _),) in calls:
            assert count == nbytes
            ctypes.memmove(target, data, nbytes)

    def reduce(self):
        calls = [call for r in self.ranks for call in self.of("Reduce", r)]
        if not calls:
            return
        _, target, count, kind, operation, _ = calls[0]
        assert (kind, operation) == (7, 0)
        floats = [(ctypes.c_float * count).from_address(c[0]) for c in calls]
        result = (ctypes.c_float * count).from_address(target)
        result[:] = [sum(terms) for terms in zip(*floats, strict=True)]


def test_what_it_asks_for(cuda, example, capsys):
    """The program runs on two emulated devices, with chunks of odd sizes."""
    if not cuda.on_engine:
        pytest.skip("the host reaches no memory of a GPU")
    ranks = list(range(cuda.count))
    members = [example.Member(rank, rank, rank) for rank in ranks]
    group = example.Group(Nccl(ranks), len(ranks), members)
    example.run(group, 1003)
    group.close()
    assert ranks == []
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert all("of 1,000 bytes" in line for line in lines)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_the_processes_meet(example):
    """All processes get the name that rank 0 made, in whatever order they
    start."""

    class Names:
        def GetUniqueId(self, place):
            place._obj.internal[:] = [i - 128 for i in range(0, 256, 2)]

    address, size = ("127.0.0.1", free_port()), 4
    with ThreadPoolExecutor(size) as threads:
        met = [
            threads.submit(example.meet, Names(), rank, size, address)
            for rank in reversed(range(size))
        ]
        names = {bytes(future.result(60)) for future in met}
    assert names == {bytes(range(128, 256, 2)) + bytes(range(0, 128, 2))}


@pytest.mark.parametrize(
    "variables",
    [{}, {"RANK": "0", "WORLD_SIZE": "2"}],
    ids=["one process", "several"],
)
def test_it_says_what_it_needs(run_python, variables):
    nothing = {"CUDA_VISIBLE_DEVICES": "", "PYSTREAMS_EMULATE_CUDA": None}
    done = run_python([PROGRAM], env={**nothing, **variables})
    assert done.returncode == 1
    assert re.fullmatch(
        r"collectives.py needs .*, and there are 0\n", done.stderr
    )


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_half_of_a_rank(run_python, name):
    nothing = {"RANK": None, "WORLD_SIZE": None}
    done = run_python([PROGRAM], env={**nothing, name: "1"})
    assert done.returncode == 1
    assert "where both RANK and WORLD_SIZE are set" in done.stderr


@pytest.fixture
def nccl(gpu, example):
    try:
        example.find_nccl()
    except SystemExit as error:
        pytest.skip(str(error))


def check_report(text, size):
    lines = text.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert all(f"{size} GPUs: correct, " in line for line in lines)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.usefixtures("nccl")
def test_one_process(gpu, run_python, size):
    if gpu.count < size:
        pytest.skip(f"needs {size} GPUs, has {gpu.count}")
    visible = ",".join(map(str, range(size)))
    done = run_python(
        [PROGRAM],
        env={**PLAIN, "CUDA_VISIBLE_DEVICES": visible},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    check_report(done.stdout, size)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.usefixtures("nccl")
def test_a_process_for_each_gpu(gpu, tmp_path, size):
    if gpu.count < size:
        pytest.skip(f"needs {size} GPUs, has {gpu.count}")
    common = {
        **os.environ,
        **PLAIN,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * size, said
    check_report(said[0][0], size)
    assert all(out == "" for out, _ in said[1:])
