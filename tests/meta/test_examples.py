"""The programs under examples/ run, on each device type, and say what they
did."""

import re

import pytest
from places import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture
def run_example(run_python, backend):
    """Run an example where the backend is the accelerator."""

    def run(name, *arguments):
        done = run_python(
            [EXAMPLES / name],
            *map(str, arguments),
            env={"PYSTREAMS_ACCELERATOR": backend.name},
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert f" {backend.device()}: " in done.stdout
        return done.stdout

    return run


def test_asyncio_server(run_example):
    line = run_example("asyncio_server.py", "--requests", 200)
    assert re.fullmatch(
        r"224 requests of 32 clients on 8 streams of \w+:0: [\d,]+ a second\n",
        line,
    )


@pytest.mark.parametrize(
    ("size", "chunks"),
    [(0, 0), (1, 1), (3 << 18, 3), ((8 << 18) + 1, 9)],
    ids=["empty", "a byte", "whole chunks", "a rest"],
)
def test_pipeline(run_example, tmp_path, size, chunks):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(251)) * (size // 251) + bytes(size % 251))
    line = run_example("pipeline.py", path)
    assert line.startswith(f"{size:,} bytes in {chunks} chunks, there and ")


def test_pipeline_without_a_file(run_example):
    line = run_example("pipeline.py")
    assert line.startswith("16,777,216 bytes in 64 chunks, there and back on ")


@pytest.mark.parametrize(
    ("chunks", "slots"), [(0, 1), (1, 3), (5, 1), (40, 3)]
)
def test_shared_ring(run_example, backend, chunks, slots):
    line = run_example(
        "shared_ring.py",
        "--chunks",
        chunks,
        "--slots",
        slots,
        "--size",
        12_345,
    )
    assert line.startswith(
        f"{chunks} chunks of 12,345 bytes through {slots} slots of "
        f"{backend.device()}: right, "
    )


def test_shared_ring_without_its_consumer(run_python):
    """The producer does not wait for a process that is gone."""
    done = run_python(
        "import sys, shared_ring\n"
        "shared_ring.consume = int\n"
        "if __name__ == '__main__':\n"
        "    sys.argv[1:] = ['--size', '1000']\n"
        "    shared_ring.main()",
        env={"PYSTREAMS_ACCELERATOR": "cpu", "PYTHONPATH": str(EXAMPLES)},
    )
    assert done.returncode == 1
    assert done.stderr.endswith("the consumer ended early, with exit code 1\n")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("shared_ring.py", ["--slots", "0"], "must be at least 1"),
        ("shared_ring.py", ["--size", "0"], "must be at least 1"),
        ("shared_ring.py", ["--chunks", "-1"], "at least 0"),
        ("shared_ring.py", ["--slots", "x"], "invalid int value"),
        ("asyncio_server.py", ["--requests", "0"], "must be at least 1"),
        ("pipeline.py", ["none"], "none is not a file"),
        ("pipeline.py", ["."], ". is not a file"),
        ("collectives.py", ["--bytes", "3"], "must be at least 4"),
    ],
)
def test_arguments_that_are_refused(run_python, name, arguments, message):
    done = run_python([EXAMPLES / name], *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert message in done.stderr.splitlines()[-1]
