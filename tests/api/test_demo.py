"""`python -m pystreams` as a user runs it: its output and its exit code."""

import errno
import json
import os
import random
import sys
from pathlib import Path

import pytest

import pystreams
from pystreams import _C
from pystreams import _cli as program
from pystreams._cli import demo, timetable

CHUNK = 4096

# The demo waits for messages of its callables.
pytestmark = pytest.mark.unscheduled


@pytest.fixture
def make(tmp_path):
    """make(size) -> path of a file of that many unlike bytes."""

    def write(size, name="a file"):
        path = tmp_path / name
        path.write_bytes(random.Random(size).randbytes(size))
        return str(path)

    return write


@pytest.fixture
def run_demo(run_python):
    def run(*arguments, **options):
        return run_python(
            ["-m", "pystreams", "demo"], *map(str, arguments), **options
        )

    return run


def refused(done, *words):
    """Check that the program printed one plain sentence to stderr, and exited
    with 2."""
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    for word in words:
        assert word in last


@pytest.mark.parametrize(
    "size", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5_000_011]
)
def test_adds_up(backend, run_demo, make, size):
    done = run_demo(
        make(size), "--device", backend.device(), "--chunk", CHUNK, "--json"
    )
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    chunks = -(-size // CHUNK)
    assert result["bytes"] == size
    assert result["chunks"] == chunks
    assert result["devices"] == [str(backend.device())]
    assert result["streams"] == min(demo.default_streams(1), chunks)
    assert result["why"]
    rows = result["timetable"]
    assert len(rows) == result["streams"]
    assert sum(row["chunks"] for row in rows) == chunks
    for row in rows:
        assert row["device"] == str(backend.device())
        assert 0 <= row["begin_ms"] <= row["end_ms"]
        assert 0 <= row["busy_ms"] <= row["end_ms"] - row["begin_ms"] + 0.01
        assert row["end_ms"] <= result["seconds"] * 1000 + 0.01
    assert result["timed_bytes"] == size
    assert result["bytes_per_second"] == pytest.approx(
        size / result["seconds"]
    )
    assert result["one_stream_bytes_per_second"] == pytest.approx(
        size / result["one_stream_seconds"]
    )
    assert result["checked_bytes_per_second"] == pytest.approx(
        size / result["checked_seconds"]
    )
    if result["streams"] == 1:
        assert result["overlap"] is None
    else:
        assert result["overlap"] == pytest.approx(
            result["one_stream_seconds"] / result["seconds"]
        )


def test_for_a_person(backend, run_demo, make):
    done = run_demo(make(100_000), "--device", backend.device())
    assert (done.returncode, done.stderr) == (0, "")
    assert str(backend.device()) in done.stdout
    assert "100,000" in done.stdout
    assert "a file" in done.stdout
    assert "stream 0" in done.stdout
    assert max(map(len, done.stdout.splitlines()[-5:])) <= 100


@pytest.mark.parametrize("output", [[], ["--json"]], ids=["text", "json"])
def test_timeline(two_devices, run_demo, make, tmp_path, output):
    """The timeline has each chunk's copy to a device and back, once."""
    path = tmp_path / "t.json"
    devices = [str(two_devices.device(i)) for i in range(2)]
    done = run_demo(
        make(10 * CHUNK), "--chunk", CHUNK, "--device", ",".join(devices),
        "--streams", 2, "--timeline", path, *output,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    events = json.loads(path.read_text())["traceEvents"]
    slices = [e for e in events if e.get("ph") == "X"]
    copies = [e for e in slices if e["name"].startswith("copy ")]
    assert len(copies) == 2 * 10
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for i in range(2):
        assert sum(name.startswith(f"stream {i} (0x") for name in names) == 2


@pytest.mark.parametrize("suffix", [".pftrace", ".svg", ".png"])
def test_timeline_of_another_format(run_demo, make, tmp_path, suffix):
    if suffix in (".svg", ".png"):
        pytest.importorskip("matplotlib", reason="needs Matplotlib")
    path = tmp_path / f"t{suffix}"
    done = run_demo(make(CHUNK), "--device=cpu:0", "--timeline", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert path.stat().st_size > 100


def test_timeline_that_cannot_be_written(run_demo, make, tmp_path):
    """A wrong suffix is refused at once, and a missing folder at the end."""
    done = run_demo(make(CHUNK), "--timeline=t.txt", "--device=cpu:0")
    refused(done, "--timeline: a timeline's file ends with .json", "t.txt")
    path = tmp_path / "none" / "t.json"
    done = run_demo(make(CHUNK), "--timeline", path, "--device=cpu:0")
    assert done.returncode == 2
    assert "came back right" in done.stdout
    assert done.stderr.startswith("pystreams: no timeline was written: ")
    assert str(path) in done.stderr


@pytest.mark.parametrize("command", ["demo", "timeline"])
def test_a_picture_without_matplotlib(monkeypatch, capsys, command):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    option = {"demo": "--timeline=t.svg", "timeline": "--output=t.svg"}
    with pytest.raises(SystemExit):
        program.main([command, option[command], "none.py"])
    assert "pip install matplotlib" in capsys.readouterr().err


def test_with_no_file(run_demo, tmp_path):
    """Without a file, the demo makes one, and removes it at the end."""
    done = run_demo("--device", "cpu:0", env={"TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert "268,435,456" in done.stdout
    assert "as no FILE was given" in done.stdout
    assert os.listdir(tmp_path) == []


def test_with_no_room_for_a_file(monkeypatch, capsys):
    def full(size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(demo.os, "urandom", full)
    assert program.main(["demo", "--device=cpu:0"]) == 2
    assert capsys.readouterr().err == (
        "pystreams: cannot make a file of 256 MiB: No space left on device; "
        "name a FILE, or set TMPDIR to a folder with room\n"
    )


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_columns(run_demo, make, columns):
    env = {"COLUMNS": str(columns)}
    done = run_demo(make(100_000), "--device", "cpu:0", env=env)
    lines = done.stdout.splitlines()
    assert max(map(len, lines[1:])) <= columns
    bars = [line for line in lines if line.startswith("stream ")]
    assert {len(line) for line in bars} == {columns}


def runs(*ratios):
    found = [{"seconds": 1.0, "one_stream_seconds": r} for r in ratios]
    middle = sorted(ratios)[len(ratios) // 2]
    return {"seconds": 1.0, "overlap": middle, "runs": found}


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ((1.4, 1.5, 1.6, 1.5, 1.5), "1.50 times as fast: reading"),
        ((1.4, 1.5, 0.6, 1.5, 1.5), "1.50 times as fast: reading"),
        ((1.0, 1.01, 0.9, 1.0, 1.2), "1.00 times as fast: no gain"),
        ((0.9, 1.0, 1.1, 1.2, 1.3), "unclear: 1.00 to 1.20 times as fast"),
        ((1.1, 1.2, 2.1, 3.0, 3.0), "unclear: 1.20 to 3.00 times as fast"),
        ((1.5,), "1.50 times as fast"),
    ],
    ids=["gain", "outlier", "none", "unclear", "far apart", "once"],
)
def test_runs_that_disagree(ratios, words):
    assert timetable.gain(runs(*ratios)).startswith(words)


def test_where_blocks_cannot_be_printed(run_demo, make):
    env = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = run_demo(make(100_000), "--device", "cpu:0", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


@pytest.mark.parametrize("way", ["shared", "chain"])
@pytest.mark.parametrize("spelling", ["comma", "twice", "type"])
def test_across_devices(two_devices, run_demo, make, spelling, way):
    first, second = (str(two_devices.device(i)) for i in range(2))
    arguments = {
        "comma": ["--device", f"{first},{second}"],
        "twice": ["--device", first, "--device", second],
        "type": ["--device", two_devices.name],
    }[spelling]
    if way == "chain":
        arguments.append("--chain")
    done = run_demo(make(300_000), *arguments, "--chunk", "64K", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    devices = result["devices"]
    assert devices[:2] == [first, second]
    assert result["chunks"] == 5
    rows = result["timetable"]
    total = sum(row["chunks"] for row in rows)
    if way == "chain":
        assert total == 5 * len(devices)
        assert len(rows) == result["streams"] * len(devices)
    else:
        assert total == 5
        assert len(rows) == result["streams"]
    counts = [row["device"] for row in rows]
    assert set(counts) == set(devices[:5])
    assert counts.count(first) >= counts.count(second) >= 1


@pytest.mark.parametrize(
    ("cores", "devices", "streams"),
    [(1, 1, 4), (2, 1, 4), (2, 2, 2), (16, 1, 16), (32, 2, 16), (64, 1, 16),
     (2, 8, 1)],
)  # fmt: skip
def test_streams_by_default(monkeypatch, cores, devices, streams):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(cores))
    assert demo.default_streams(devices) == streams


def test_way_for_a_person(two_devices, run_demo, make):
    """The output says which devices a chunk goes through."""
    devices = [str(two_devices.device(i)) for i in range(2)]
    for options, way in ([], " or "), (["--chain"], " -> "):
        done = run_demo(make(50_000), "--device", ",".join(devices), *options)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"pinned -> {way.join(devices)} -> pinned" in done.stdout


def test_device_by_default(run_demo, make):
    for env, expected in (
        ({"PYSTREAMS_ACCELERATOR": "cpu"}, ["cpu:0", "cpu:1"]),
        ({"PYSTREAMS_EMULATE_CUDA": "2"}, ["cuda:0", "cuda:1"]),
    ):
        env.setdefault("PYSTREAMS_CPU_DEVICES", "2")
        done = run_demo(make(1000), "--json", env=env)
        assert (done.returncode, done.stderr) == (0, "")
        result = json.loads(done.stdout)
        assert result["devices"] == expected
        assert result["why"]


def test_streams(run_demo, make):
    path = make(500_000)
    for streams in (1, 7, 64):
        done = run_demo(
            path, "--device", "cpu:0", "--streams", streams, "--chunk", "4K",
            "--json",
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        result = json.loads(done.stdout)
        assert result["streams"] == streams
        assert len(result["timetable"]) == streams


def test_missing(run_demo, tmp_path):
    refused(run_demo(tmp_path / "nowhere"), "nowhere", "No such file")


def test_empty(run_demo, make):
    refused(run_demo(make(0)), "a file", "empty")


def test_directory(run_demo, tmp_path):
    refused(run_demo(tmp_path), str(tmp_path))


def test_pipe(run_demo, tmp_path):
    """The demo refuses a pipe, and does not wait for a writer."""
    os.mkfifo(tmp_path / "pipe")
    refused(run_demo(tmp_path / "pipe"), "pipe")


def test_unreadable(run_demo, make):
    path = make(10)
    os.chmod(path, 0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    refused(run_demo(path), "Permission denied")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--device", "teapot"),
        ("--device", "cpu:99"),
        ("--device", "cuda0"),
        ("--device", ""),
        ("--device", "cpu,cuda"),
        ("--streams", "0"),
        ("--streams", "-1"),
        ("--streams", "99999999999999999999999"),
        ("--streams", "four"),
        ("--chunk", "0"),
        ("--chunk", "-4K"),
        ("--chunk", "4X"),
        ("--chunk", "K"),
        ("--chunk", "99999999999999999999999G"),
        ("--nonsense", "1"),
    ],
)
def test_bad_options(run_demo, make, option, value):
    refused(run_demo(make(10), f"{option}={value}"))


def test_gpu_that_is_not_there(run_demo, make):
    env = {"PYSTREAMS_EMULATE_CUDA": None, "CUDA_VISIBLE_DEVICES": ""}
    refused(run_demo(make(10), "--device", "cuda", env=env), "cuda")


def during(monkeypatch, stage, action):
    """Do something once, when the first bytes of a stage are done."""
    pending = [action]

    def start(self, title, total):
        def advance(nbytes):
            if title == stage and pending:
                pending.pop()()

        return advance

    monkeypatch.setattr(program.Bars, "start", start)


def demo_here(path):
    return program.main(
        ["demo", path, "--device=cpu:0", "--streams=2", f"--chunk={CHUNK}"]
    )


@pytest.mark.parametrize(
    "stage", ["reading", "checking", "timing 1 stream", "timing"]
)
@pytest.mark.parametrize("what", ["shrinks", "grows", "vanishes", "changes"])
def test_file_that_does_not_hold_still(monkeypatch, capsys, make, stage, what):
    path = make(100 * CHUNK)
    action = {
        "shrinks": lambda: os.truncate(path, CHUNK),
        "grows": lambda: os.truncate(path, 200 * CHUNK),
        "vanishes": lambda: os.remove(path),
        "changes": lambda: rewrite(path),
    }[what]
    during(monkeypatch, stage, action)
    assert demo_here(path) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert path in err
    assert {"shrinks": "shrank", "vanishes": "vanished"}.get(
        what, "changed"
    ) in err


def rewrite(path):
    with open(path, "r+b") as file:
        file.seek(50 * CHUNK)
        file.write(b"other bytes")
    os.utime(path, (1, 1))


@pytest.mark.parametrize("at", ["incoming", "outgoing"])
def test_a_wrong_byte_is_found(monkeypatch, capsys, make, at):
    """If one byte is changed on the way, the demo's check fails."""
    read, check = demo.Lane.read, demo.Lane.check

    def flip(lane, chunk):
        if chunk.index == 7:
            getattr(lane, at).memoryview()[chunk.nbytes - 1] ^= 1

    def spoilt_read(self, chunk):
        read(self, chunk)
        flip(self, chunk)

    def spoilt_check(self, chunk, expected):
        flip(self, chunk)
        check(self, chunk, expected)

    if at == "incoming":
        monkeypatch.setattr(demo.Lane, "read", spoilt_read)
    else:
        monkeypatch.setattr(demo.Lane, "check", spoilt_check)
    assert demo_here(make(10 * CHUNK)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "chunk 7 came back different" in err


def test_every_chunk_once(run_demo, make):
    """Each chunk is sent once, by whichever stream is free for it."""
    done = run_demo(
        make(100 * CHUNK + 1), "--device", "cpu:0", "--streams", 3, "--chunk",
        CHUNK, "--json",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)["timetable"]
    assert len(rows) == 3
    assert sum(row["chunks"] for row in rows) == 101


def test_short_reads(monkeypatch, capsys, make):
    """After a short read, the rest of the chunk is read."""
    preadv = os.preadv

    def short(file, views, offset):
        return preadv(file, [view[:1000] for view in views], offset)

    monkeypatch.setattr(os, "preadv", short)
    assert demo_here(make(10 * CHUNK + 1)) == 0
    assert "came back right" in capsys.readouterr().out


def test_a_read_that_fails(monkeypatch, capsys, make):
    """If a read in a callable fails, the demo ends and says why."""
    preadv = os.preadv
    pending = [OSError(errno.EIO, "Input/output error")]

    def start(self, title, total):
        if title == "checking":
            monkeypatch.setattr(os, "preadv", fail)
        return lambda nbytes: None

    def fail(file, views, offset):
        if offset == 50 * CHUNK and pending:
            raise pending.pop()
        return preadv(file, views, offset)

    monkeypatch.setattr(program.Bars, "start", start)
    path = make(100 * CHUNK)
    assert demo_here(path) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"pystreams: {path}: Input/output error\n"


def test_work_that_fails(faulty, monkeypatch, capsys, make):
    """The callables behind it never run; the demo does not wait for them."""
    send = demo.Lane.send

    def fail(self, chunk):
        if chunk.index == 7:
            _C.fail(self.streams[0], 719)
        send(self, chunk)

    monkeypatch.setattr(demo.Lane, "send", fail)
    path, device = make(100 * CHUNK), str(faulty.device())
    assert program.main(["demo", path, f"--device={device}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pystreams: ")
    assert "Traceback" not in err
    assert "719" in err


def test_interrupted(monkeypatch, capsys, make):
    def interrupt():
        raise KeyboardInterrupt

    during(monkeypatch, "checking", interrupt)
    assert demo_here(make(10 * CHUNK)) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_reader_that_went_away(run_python):
    code = """
import os, sys
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
from pystreams._cli import main
sys.exit(main(["--json"]))
"""
    done = run_python(code)
    assert done.returncode == 141
    assert done.stderr == ""


def test_report(run_python):
    done = run_python(["-m", "pystreams"])
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("pystreams 0", "accelerator", "cpu:0", "cuda"):
        assert word in done.stdout


def test_report_in_json(run_python, backend):
    done = run_python(["-m", "pystreams", "--json"])
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    found = {b["name"]: b for b in report["backends"]}
    assert len(found[backend.name]["devices"]) == backend.count
    assert found[backend.name]["unavailable"] is None
    assert report["accelerator"]["name"] in found
    assert report["accelerator"]["why"]


def test_report_without_a_gpu_says_why(run_python):
    env = {"PYSTREAMS_EMULATE_CUDA": None, "CUDA_VISIBLE_DEVICES": ""}
    done = run_python(["-m", "pystreams", "--json"], env=env)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    cuda = {b["name"]: b for b in report["backends"]}["cuda"]
    assert cuda["devices"] == []
    assert cuda["unavailable"]
    assert report["accelerator"]["name"] == "cpu"


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_report_of_an_accelerator_that_cannot_be(run_python, arguments):
    """The report is complete, and says that the accelerator in the variable
    cannot be used."""
    env = {"PYSTREAMS_ACCELERATOR": "xyz"}
    done = run_python(["-m", "pystreams"], *arguments, env=env)
    assert done.returncode == 2
    assert done.stderr.startswith("pystreams: PYSTREAMS_ACCELERATOR ")
    assert "'xyz'" in done.stderr
    assert done.stderr.count("\n") == 1
    reason = done.stderr.removeprefix("pystreams: ").rstrip()
    if arguments:
        report = json.loads(done.stdout)
        assert report["accelerator"] == {"name": None, "why": reason}
        assert report["backends"]
    else:
        assert "\nno accelerator\n" in done.stdout
        assert reason not in done.stdout
        assert "cpu:0" in done.stdout


def test_report_of_a_broken_device(monkeypatch, capsys, backend):
    """A broken device is reported in a line, and the report goes on."""
    healthy = _C.device_properties

    def properties(kind, index):
        if kind == backend.type:
            raise pystreams.AcceleratorError("broken\nin two lines")
        return healthy(kind, index)

    monkeypatch.setattr(_C, "device_properties", properties)
    assert program.main([]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    line = f"  {backend.name}:0  can't be used: broken; in two lines\n"
    assert line in out
    assert program.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = {b["name"]: b["devices"] for b in report["backends"]}
    assert found[backend.name][0] == {
        "name": None,
        "total_memory": None,
        "priorities": None,
        "fault": "broken\nin two lines",
    }


@pytest.mark.parametrize("arguments", [["teapot"], ["--teapot"]])
def test_bad_command(run_python, arguments):
    done = run_python(["-m", "pystreams"], *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_help(run_python):
    for arguments in (["--help"], ["demo", "--help"]):
        done = run_python(["-m", "pystreams"], *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "usage" in done.stdout.lower()


def test_output_that_cannot_be_written(run_python):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    code = """
import os, sys
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
from pystreams._cli import main
sys.exit(main([]))
"""
    done = run_python(code)
    assert done.returncode == 2
    assert done.stderr == (
        "pystreams: the output can't be written: No space left on device\n"
    )
