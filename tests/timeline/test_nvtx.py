"""Ranges and marks of NVTX in timelines, by the nvtx package and by libraries
with NVTX's own headers."""

import ctypes
import importlib.util
import os
import subprocess
import threading

import pytest
from deadlines import LONG
from places import TESTS
from test_timeline_files import Chrome, Perfetto
from together import together

import pystreams
from pystreams import schedules, timeline

KIND, NAME, DEVICE, STREAM, THREAD, QUEUED, BEGIN, END, NBYTES = range(9)
DOMAIN = 13
VARIABLE = "NVTX_INJECTION64_PATH"


def ranges(t):
    """Return (name, domain, thread) for each row."""
    return [
        (row[NAME], row[DOMAIN], row[THREAD])
        for row in t.rows
        if row[KIND] in ("span", "mark")
    ]


def rows(t):
    return {row[NAME]: row for row in t.rows if row[KIND] in ("span", "mark")}


@pytest.fixture
def nvtx():
    """The nvtx package, in a process in which it was not used before this
    module was imported."""
    if os.environ[VARIABLE].find(f"/{os.getpid()}/") < 0:
        pytest.skip("another tool has NVTX")
    return pytest.importorskip("nvtx", reason="needs the nvtx package")


@pytest.fixture(scope="module")
def headers(tools):
    wheels = importlib.util.find_spec("nvidia")
    folders = [] if wheels is None else wheels.submodule_search_locations
    for folder in folders:
        if os.path.exists(f"{folder}/cu13/include/nvtx3/nvToolsExt.h"):
            return f"-I{folder}/cu13/include"
    pytest.skip("no NVTX to build with")


@pytest.fixture(scope="module")
def build(tmp_path_factory, headers):
    """Return build(name), which returns the path of a library with NVTX."""

    def build(name):
        path = tmp_path_factory.mktemp("nvtx") / f"{name}.so"
        options = [headers, "-fPIC", "-shared", "-O1", "-ldl"]
        source = TESTS / "c/nvtx/client.c"
        subprocess.run(["cc", source, *options, "-o", path], check=True)
        return path

    return build


@pytest.fixture(scope="module")
def library(build):
    """A library with NVTX, loaded so that its calls hold the GIL."""
    loaded = ctypes.PyDLL(build("first"))
    loaded.nvtxRangeStartA.restype = ctypes.c_uint64
    loaded.nvtxRangeEnd.argtypes = [ctypes.c_uint64]
    for name in ("Create", "RegisterString"):
        for suffix in "AW":
            function = getattr(loaded, f"nvtxDomain{name}{suffix}")
            function.restype = ctypes.c_void_p
    return loaded


class Event(ctypes.Structure):
    """nvtxEventAttributes_t, with a message."""

    _fields_ = (
        ("version", ctypes.c_uint16),
        ("size", ctypes.c_uint16),
        ("more", ctypes.c_uint32 * 7),
        ("message_type", ctypes.c_int32),
        ("message", ctypes.c_void_p),
    )

    def __init__(self, kind=0, message=None):
        super().__init__(version=3, size=48, message_type=kind)
        self.message = message


def test_interface(headers, tmp_path):
    """The declarations in nvtx.h agree with NVTX's own headers."""
    command = ["cc", "-std=c11", "-fsyntax-only", headers]
    subprocess.run([*command, TESTS / "c/nvtx/interface.c"], check=True)


def test_ranges_of_the_package(nvtx):
    """Tests decorators that were made before the recording, blocks, and marks,
    all with their domains.  Also tests the times of the calls within a
    range."""

    @nvtx.annotate(domain="tests")
    def outer():
        with nvtx.annotate("inner ü", color="green"):
            nvtx.mark("mark", domain="tests")

    with timeline.record() as t:
        outer()
        nvtx.push_range("pushed", domain="other")
        nvtx.pop_range(domain="other")
    main = threading.current_thread().name
    assert ranges(t) == [
        ("outer", "tests", main),
        ("inner ü", "NVTX", main),
        ("mark", "tests", main),
        ("pushed", "other", main),
    ]
    found = rows(t)
    outer, inner, mark = found["outer"], found["inner ü"], found["mark"]
    assert 0 <= outer[BEGIN] <= inner[BEGIN] <= mark[BEGIN] == mark[END]
    assert mark[END] <= inner[END] <= outer[END] <= t.duration
    for row in found.values():
        assert row[DEVICE : STREAM + 1] == (None, None)
        assert row[QUEUED] == row[BEGIN] and row[NBYTES] == 0
        assert row[9:13] == (None,) * 4


def test_spans_have_no_domain():
    with timeline.record() as t, timeline.span("ours"):
        pass
    assert rows(t)["ours"][DOMAIN] is None


def test_ranges_that_are_open_at_the_beginning(nvtx):
    """Such ranges have no rows, and their ends do not end other ranges."""
    nvtx.push_range("before")
    with timeline.record() as t:
        nvtx.push_range("within")
        nvtx.pop_range()
        nvtx.pop_range()
        nvtx.pop_range()
        nvtx.push_range("after")
        nvtx.pop_range()
    assert [name for name, *_ in ranges(t)] == ["within", "after"]
    within, after = rows(t).values()
    assert within[END] <= after[BEGIN] <= after[END] <= t.duration


@pytest.mark.unscheduled
def test_ranges_that_are_open_at_the_end(nvtx, tmp_path):
    """Such a range gets its end when the program ends it."""
    with timeline.record() as t:
        nvtx.push_range("open")
        started = nvtx.start_range("started")
    for name in ("open", "started"):
        assert rows(t)[name][BEGIN] is not None
        assert rows(t)[name][END] is None
    t.save(tmp_path / "t.json")
    assert Chrome(tmp_path / "t.json").slices == []
    nvtx.push_range("unseen")
    nvtx.pop_range()
    assert rows(t)["open"][END] is None
    with timeline.record() as other:
        nvtx.push_range("of the other")
        nvtx.pop_range()
        nvtx.pop_range()
        nvtx.end_range(started)
    assert [name for name, *_ in ranges(other)] == ["of the other"]
    ends = [rows(t)[name][END] for name in ("open", "started")]
    assert t.duration < ends[0] < ends[1]
    assert rows(t).keys() == {"open", "started"}


def test_a_timeline_that_goes_before_its_ranges_end(nvtx):
    with timeline.record():
        nvtx.push_range("open")
        started = nvtx.start_range("started")
    with timeline.record() as t:
        nvtx.pop_range()
        nvtx.end_range(started)
        nvtx.end_range((1 << 60, started[1]))
    assert ranges(t) == []


def test_ranges_of_threads(nvtx):
    """Each thread has its own ranges.  A range that one thread starts may end
    on another."""
    ready, go = threading.Event(), threading.Event()
    started = []

    def run():
        nvtx.push_range("of a thread")
        started.append(nvtx.start_range("across"))
        ready.set()
        assert go.wait(LONG)

    with timeline.record() as t:
        thread = threading.Thread(target=run, name="worker")
        thread.start()
        assert ready.wait(LONG)
        nvtx.push_range("of main")
        nvtx.pop_range()
        nvtx.pop_range()
        nvtx.end_range(started[0])
        go.set()
        thread.join(LONG)
    main = threading.current_thread().name
    assert ranges(t) == [
        ("of a thread", "NVTX", "worker"),
        ("across", "NVTX", "worker"),
        ("of main", "NVTX", main),
    ]
    found = rows(t)
    assert found["across"][END] >= found["of main"][END]
    assert found["of a thread"][END] is None


def test_texts(library):
    """Texts may be bytes, wide characters, registered strings, or absent."""
    narrow = ctypes.create_string_buffer("bytes ü".encode())
    wide = ctypes.create_unicode_buffer("wide ü€😀")
    domain = library.nvtxDomainCreateW("domain ü")
    strings = [
        library.nvtxDomainRegisterStringA(None, b"registered"),
        library.nvtxDomainRegisterStringW(None, "registered wide ü"),
    ]
    with timeline.record() as t:
        library.nvtxMarkA(narrow)
        library.nvtxMarkW(wide)
        library.nvtxMarkA(b"\xff")
        library.nvtxMarkA(None)
        library.nvtxMarkEx(None)
        library.nvtxMarkEx(ctypes.byref(Event()))
        for kind, text in [
            (1, ctypes.addressof(narrow)),
            (2, ctypes.addressof(wide)),
            *((3, string) for string in strings),
            (3, 1 << 20),
            (9, 1),
        ]:
            event = ctypes.byref(Event(kind, text))
            library.nvtxDomainMarkEx(ctypes.c_void_p(domain), event)
    main = threading.current_thread().name
    names = ["bytes ü", "wide ü€😀", "\ufffd", *["mark"] * 3]
    more = ["bytes ü", "wide ü€😀", "registered", "registered wide ü"]
    assert ranges(t) == [
        *((name, "NVTX", main) for name in names),
        *((name, "domain ü", main) for name in [*more, "mark", "mark"]),
    ]


def test_every_function_with_a_range(library):
    event = ctypes.byref(Event(1, ctypes.addressof(text := TEXT)))
    domain = ctypes.c_void_p(library.nvtxDomainCreateA(b"domain"))
    pushes = [
        lambda: library.nvtxRangePushA(b"a"),
        lambda: library.nvtxRangePushW("w"),
        lambda: library.nvtxRangePushEx(event),
        lambda: library.nvtxDomainRangePushEx(domain, event),
    ]
    pops = [library.nvtxRangePop] * 3
    pops.append(lambda: library.nvtxDomainRangePop(domain))
    starts = [
        lambda: library.nvtxRangeStartA(b"a"),
        lambda: library.nvtxRangeStartW("w"),
        lambda: library.nvtxRangeStartEx(event),
        lambda: library.nvtxDomainRangeStartEx(domain, event),
    ]
    for name in ("RangeStartW", "RangeStartEx", "DomainRangeStartEx"):
        getattr(library, f"nvtx{name}").restype = ctypes.c_uint64
    with timeline.record() as t:
        # The result is NVTX_NO_PUSH_POP_TRACKING, as without a tool.
        for push, pop in zip(pushes, pops, strict=True):
            assert push() == pop() == -2
        identifiers = [start() for start in starts]
        assert len({0, *identifiers}) == 5
        for identifier in identifiers[:3]:
            library.nvtxRangeEnd(identifier)
        library.nvtxDomainRangeEnd(domain, ctypes.c_uint64(identifiers[3]))
    names = [("a", "NVTX"), ("w", "NVTX"), ("ex", "NVTX"), ("ex", "domain")]
    assert [found[:2] for found in ranges(t)] == names * 2
    assert all(row[END] is not None for row in t.rows)
    assert text.value == b"ex"


TEXT = ctypes.create_string_buffer(b"ex")


@pytest.mark.unscheduled
def test_ranges_that_are_not_nested(library, tmp_path):
    """Each domain has a stack of its own, so ranges of two domains may
    overlap.  In a file, they need a second track."""
    domains = [
        ctypes.c_void_p(library.nvtxDomainCreateA(name))
        for name in (b"one", b"two")
    ]
    event = ctypes.byref(Event(1, ctypes.addressof(TEXT)))
    with timeline.record() as t:
        for domain in domains:
            library.nvtxDomainRangePushEx(domain, event)
        with timeline.span("ours"):
            library.nvtxMarkA(b"mark")
            library.nvtxDomainRangePop(domains[0])
        library.nvtxDomainRangePop(domains[1])
    first, second, ours, _ = t.rows
    assert first[DOMAIN] == "one" and second[DOMAIN] == "two"
    assert first[END] <= ours[END] <= second[END]
    main = threading.current_thread().name
    drawn = sorted(
        ("host", track, row[NAME], row[BEGIN], row[END])
        for track, row in [
            (main, first),
            (f"{main} (2)", second),
            (f"{main} (2)", ours),
        ]
    )
    for suffix, read in (("json", Chrome), ("pftrace", Perfetto)):
        t.save(tmp_path / f"t.{suffix}")
        assert sorted(read(tmp_path / f"t.{suffix}").slices) == drawn


def test_categories_and_marks_in_files(nvtx, tmp_path):
    import json

    with timeline.record() as t, nvtx.annotate("range", domain="tests"):
        nvtx.mark("mark", domain="other")
    t.save(tmp_path / "t.json")
    text = (tmp_path / "t.json").read_text()
    found = {e["name"]: e for e in json.loads(text)["traceEvents"]}
    span, mark = found["range"], found["mark"]
    assert (span["cat"], span["ph"]) == ("tests", "X")
    assert (mark["cat"], mark["ph"], mark["s"]) == ("other", "i", "t")
    assert (mark["pid"], mark["tid"]) == (span["pid"], span["tid"])
    pb2 = pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
        reason="needs the perfetto wheel",
    )
    t.save(tmp_path / "t.pftrace")
    trace = pb2.Trace.FromString((tmp_path / "t.pftrace").read_bytes())
    events = [p.track_event for p in trace.packet if p.track_event.name]
    assert [(e.name, *e.categories, e.type) for e in events] == [
        ("range", "tests", pb2.TrackEvent.TYPE_SLICE_BEGIN),
        ("mark", "other", pb2.TrackEvent.TYPE_INSTANT),
    ]
    assert len({e.track_uuid for e in events}) == 1
    pytest.importorskip("matplotlib", reason="needs Matplotlib")
    t.save(tmp_path / "t.svg")


@pytest.mark.unscheduled
def test_virtual_time(nvtx, no_gpu_is_used):
    def run():
        with timeline.record() as t:
            stream = pystreams.Stream("cpu")
            cpu = pystreams._C.backends()[0][1]
            with nvtx.annotate("range"):
                pystreams._C.sleep(cpu, 5_000_000, stream)
                stream.synchronize()
            nvtx.push_range("open")
        kept.append(t)

    kept = []
    schedules.replay(run, "late")
    nvtx.pop_range()
    row = rows(kept[0])["range"]
    assert row[BEGIN : END + 1] == (0, 5_000_000)
    assert rows(kept[0])["open"][END] >= 5_000_000


def test_libraries_share_domains(library, build):
    """Each library has its own copy of NVTX."""
    second = ctypes.PyDLL(build("second"))
    second.nvtxDomainCreateA.restype = ctypes.c_void_p
    domains = [each.nvtxDomainCreateA(b"same") for each in (library, second)]
    assert domains[0] == domains[1]
    with timeline.record() as t:
        second.nvtxRangePushA(b"of the second")
        library.nvtxRangePop()
    assert rows(t)["of the second"][END] is not None


def test_many_threads(library):
    """Nothing is lost while other threads read."""
    count, each = 4, 500
    released = ctypes.CDLL(library._name)

    def run(number):
        for _ in range(each):
            released.nvtxRangePushA(b"range")
            released.nvtxRangePop()

    with timeline.record() as t:
        together(run, count, meanwhile=lambda: t.rows)
    found = t.rows
    assert len(found) == count * each
    assert all(row[END] is not None for row in found)


def test_a_child_records_its_own(nvtx):
    """After a fork, the environment variable is the parent's until the child
    records."""
    with timeline.record() as t:
        nvtx.push_range("both")
        child = os.fork()
        if child == 0:
            nvtx.mark("of the child")
            nvtx.pop_range()
            names = [name for name, *_ in ranges(t)]
            os._exit(names != ["both", "of the child"])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        nvtx.pop_range()
    assert [name for name, *_ in ranges(t)] == ["both"]


USE = """
import os
before = os.environ.get("NVTX_INJECTION64_PATH")
{}
import nvtx
print(type(nvtx.get_domain("tests")).__name__)
print(before == os.environ.get("NVTX_INJECTION64_PATH"))
with open("/proc/self/maps") as maps:
    print("pystreams/_C." in maps.read())
"""


@pytest.mark.parametrize(
    ("before", "path", "expected"),
    [
        # Another program, which has no timeline.
        ("", None, "DummyDomain True False"),
        # A child with a timeline of its own.
        ("from pystreams import timeline", None, "Domain False True"),
        # A profiler that the program runs under.
        ("from pystreams import timeline", "/no", "DummyDomain True True"),
    ],
)
def test_processes(nvtx, run_python, before, path, expected):
    env = {} if path is None else {VARIABLE: path}
    done = run_python(USE.format(before), env=env)
    assert done.stderr == ""
    assert done.stdout.split() == expected.split()


def test_nvtx_was_used_before(nvtx, run_python):
    """NVTX that was used before the import of pystreams keeps its tool, so
    its ranges are not seen."""
    done = run_python(
        """
import nvtx
nvtx.push_range("first")
from pystreams import timeline
with timeline.record() as t, nvtx.annotate("second"):
    pass
print(t.rows)
""",
        env={VARIABLE: None},
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_end_of_what_nothing_has_recorded(build, run_python):
    """Such an end may belong to a range that began under another tool."""
    done = run_python(
        f"""
import ctypes
from pystreams import timeline
ctypes.CDLL({str(build("first"))!r}).nvtxRangeEnd(ctypes.c_uint64(7))
print("done")
""",
        env={VARIABLE: None},
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_marks_without_the_gil_beside_a_subinterpreter(build, run_python):
    """If there is a subinterpreter, PyGILState_Check() tells every thread that
    it has the GIL."""
    done = run_python(
        f"""
import ctypes, threading
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
from pystreams import timeline
library = ctypes.CDLL({str(build("first"))!r})
interpreter = interpreters.create()
with timeline.record() as t:
    threads = [
        threading.Thread(
            target=lambda: [library.nvtxMarkA(b"mark") for _ in range(2000)]
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
interpreters.destroy(interpreter)
print(len(t.rows))
""",
        env={VARIABLE: None},
    )
    assert (done.stdout, done.stderr) == ("8000\n", "")


def test_a_program_that_stays_as_it_is(nvtx, run_python, tmp_path):
    """Under `python -m pystreams timeline`, an unchanged program has ranges
    from its beginning on, although it imports nvtx first."""
    (tmp_path / "program.py").write_text(
        "import nvtx\n@nvtx.annotate()\ndef f(): pass\nf()\n"
    )
    command = ["-m", "pystreams", "timeline", "-o", "t.json", "program.py"]
    done = run_python(command)
    assert (done.returncode, done.stderr) == (0, "")
    names = [found[2] for found in Chrome(tmp_path / "t.json").slices]
    assert names == ["f"]
