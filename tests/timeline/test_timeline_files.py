"""Timelines as files, read back: a viewer shows the same as the rows."""

import json
import os
import random
import re
import resource
import sys
import time
from contextlib import nullcontext

import pytest

import pystreams
from pystreams import schedules, timeline
from pystreams.timeline import _files, _picture

KIND, NAME, DEVICE, STREAM, THREAD, QUEUED, BEGIN, END, NBYTES = range(9)
SOURCE = 12
WORK = ("fill", "copy", "sleep", "callable", "function", "graph")


@pytest.fixture(params=range(3), ids="program-{}".format)
def recorded(request, backend):
    """A random program with all kinds of rows."""
    choose = random.Random(request.param)
    streams = [backend.stream(i % backend.count) for i in range(3)]
    # There is one block for each stream, because nothing orders their fills.
    blocks = {s: backend.empty(1 << 12, s.device.index) for s in streams}
    with timeline.record() as t:
        for _ in range(40):
            stream, other = choose.sample(streams, 2)
            block = blocks[stream]
            step = choose.randrange(5)
            if step == 0:
                block.fill_(1, stream=stream)
            elif step == 1:
                backend.sleep(stream, 0.05)
            elif step == 2:
                stream.submit(int)
            elif step == 3:
                stream.wait_stream(other)
            else:
                backend.empty(1 << choose.randrange(8, 16))
        with timeline.span('a "name"\n', streams[0]), timeline.span("host ü"):
            streams[0].submit(sorted, [])
        for stream in streams:
            stream.synchronize()
    return t


def slices(rows):
    """Return the bars that are drawn, as (process, track, name, begin,
    end)."""
    return sorted(
        (
            row[DEVICE] or "host",
            row[STREAM] or row[THREAD],
            row[NAME],
            *row[BEGIN : END + 1],
        )
        for row in rows
        if row[KIND] in (*WORK, "span", "synchronize")
        or (row[KIND] == "wait" and row[END] > row[BEGIN])
    )


def arrows(rows):
    """Return the arrows as (begin's process and track, time, end's process and
    track, time)."""
    found = []
    for row in rows:
        if row[KIND] == "wait" and row[SOURCE] is not None:
            source = rows[row[SOURCE]]
            begin = (*source[DEVICE : STREAM + 1], source[END])
            found.append((*begin, *row[DEVICE : STREAM + 1], row[END]))
    return sorted(found)


def depths(rows):
    """Return how many operations of each device are queued, at each time at
    which this number changes.  If it changes several times at one time, the
    last number counts."""
    found = {}
    for device in {row[DEVICE] for row in rows if row[KIND] in WORK}:
        spans = [
            row[QUEUED : END + 1 : 2]
            for row in rows
            if row[KIND] in WORK and row[DEVICE] == device
        ]
        times = {time for span in spans for time in span}
        found[device] = {
            time: sum(begin <= time < end for begin, end in spans)
            for time in times
        }
    return found


def memory(rows):
    return sorted(
        (row[DEVICE], row[BEGIN], row[NBYTES])
        for row in rows
        if row[KIND] == "memory"
    )


# ---- Chrome's ----


class Chrome:
    """A file of Chrome's format, read back in the form that the functions
    above return."""

    def __init__(self, path):
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        names = {
            (e["name"], e["pid"], e["tid"]): e["args"]["name"]
            for e in events
            if e["ph"] == "M" and "args" in e
        }
        self.slices, self.arrows, self.memory = [], [], []
        self.depths = {}
        begun = {}
        for event in events:
            if event["ph"] == "M":
                continue
            process = names["process_name", event["pid"], 0]
            at = round(event["ts"] * 1000)
            if event["ph"] == "C":
                ((unit, value),) = event["args"].items()
                if unit == "bytes":
                    self.memory.append((process, at, value))
                else:
                    self.depths.setdefault(process, {})[at] = value
                continue
            track = names["thread_name", event["pid"], event["tid"]]
            if event["ph"] == "X" and (event["cat"], event["dur"]) != (
                "wait",
                0,
            ):
                end = at + round(event["dur"] * 1000)
                self.slices.append((process, track, event["name"], at, end))
            elif event["ph"] == "s":
                begun[event["id"]] = process, track, at
            elif event["ph"] == "f":
                self.arrows.append(
                    (*begun.pop(event["id"]), process, track, at)
                )
        assert begun == {}


# ---- Perfetto's ----


class Perfetto:
    """A file of Perfetto's format, read back in the same form with Perfetto's
    own classes."""

    def __init__(self, path):
        protos = pytest.importorskip(
            "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
            reason="needs the perfetto wheel",
        )
        trace = protos.Trace()
        data = path.read_bytes()
        assert trace.ParseFromString(data) == len(data)
        assert trace.SerializeToString() != b""
        kinds = protos.TrackEvent
        described, open_slices, begun = {}, {}, {}
        self.slices, self.arrows, self.memory = [], [], []
        self.depths = {}
        ends = []
        packets = list(trace.packet)
        assert packets[0].sequence_flags == 1
        # Sort the packets, as Perfetto's trace processor does.
        packets.sort(key=lambda packet: packet.timestamp)
        for packet in packets:
            assert packet.trusted_packet_sequence_id == 1
            if packet.HasField("track_descriptor"):
                found = packet.track_descriptor
                described[found.uuid] = found
        for packet in packets:
            if not packet.HasField("track_event"):
                continue
            event, at = packet.track_event, packet.timestamp
            track = described[event.track_uuid]
            parent = described[track.parent_uuid]
            where = parent.name or parent.process.process_name, track.name
            if event.type == kinds.TYPE_COUNTER:
                if track.counter.unit == 3:
                    self.memory.append((where[0], at, event.counter_value))
                else:
                    assert track.counter.unit == 2
                    self.depths.setdefault(where[0], {})[at] = (
                        event.counter_value
                    )
            elif event.type == kinds.TYPE_SLICE_BEGIN:
                open_slices.setdefault(event.track_uuid, []).append(
                    (event.name, at)
                )
            elif event.type == kinds.TYPE_SLICE_END:
                name, begin = open_slices[event.track_uuid].pop()
                self.slices.append((*where, name, begin, at))
            else:
                assert event.type == kinds.TYPE_INSTANT
                for flow in event.flow_ids:
                    begun.setdefault(flow, []).append((*where, at))
                for flow in event.terminating_flow_ids:
                    ends.append((flow, (*where, at)))
        assert not any(open_slices.values())
        for flow, end in ends:
            (begin,) = begun.pop(flow)
            self.arrows.append((*begin, *end))
        assert begun == {}


@pytest.mark.parametrize(
    ("suffix", "read"), [("json", Chrome), ("pftrace", Perfetto)]
)
def test_read_back(recorded, tmp_path, suffix, read):
    path = tmp_path / f"t.{suffix}"
    recorded.save(path)
    rows = recorded.rows
    found = read(path)
    assert sorted(found.arrows) == arrows(rows)
    assert len(found.arrows) == sum(row[KIND] == "wait" for row in rows)
    assert sorted(found.memory) == memory(rows)
    assert found.depths == depths(rows)
    assert sorted(found.slices) == slices(rows)


def test_notes(recorded, tmp_path):
    """The notes are what a viewer shows about a slice that was clicked on."""
    recorded.save(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    notes = [e["args"] for e in events if e.get("cat") == "fill"]
    assert notes
    for note in notes:
        assert note["bytes"] == 4096
        assert note["thread"] == "MainThread"
        assert re.fullmatch(
            r".*test_timeline_files.py:\d+, in recorded", note["place"]
        )
        assert note["queued us before"] >= 0


@pytest.mark.parametrize("name", ["t", "t.txt", "t.json.gz", ".json"])
def test_another_suffix(recorded, tmp_path, name):
    with pytest.raises(ValueError, match=r"\.json, \.pftrace, \.png or \.svg"):
        recorded.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(recorded, tmp_path):
    with pytest.raises(FileNotFoundError):
        recorded.save(tmp_path / "none" / "t.json")


@pytest.mark.parametrize(
    ("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")]
)
def test_pictures(recorded, tmp_path, suffix, start):
    pytest.importorskip("matplotlib", reason="needs Matplotlib")
    recorded.save(tmp_path / f"t.{suffix}")
    assert (tmp_path / f"t.{suffix}").read_bytes().startswith(start)
    assert recorded._repr_html_().startswith("<svg")


@pytest.mark.unscheduled  # a schedule has its own time
@pytest.mark.parametrize("span", [True, False])
def test_a_picture_shows_the_time_that_the_chart_shows(backend, span):
    """It begins at the first operation or span, and ends at the last wait,
    even if memory and events are used before and after."""
    pytest.importorskip("matplotlib", reason="needs Matplotlib")
    with timeline.record() as t:
        stream, other = backend.stream(), backend.stream()
        block = backend.empty(1 << 12)
        event = stream.record_event()
        time.sleep(0.1)
        with timeline.span("load") if span else nullcontext():
            time.sleep(0.1)
        other.wait_event(event)
        backend.sleep(stream, 5)
        stream.synchronize()
        time.sleep(0.1)
        del block
        stream.record_event()
    picture = _picture.draw(t).axes[0]
    begin, end = picture.get_xlim()
    assert (100 if span else 200) <= begin < end < t.duration / 1e6 - 99
    assert (begin < 200) == span
    title = picture.get_title(loc="left")
    assert t.chart().startswith(f"{title}: ")
    # No arrow, which has no text, comes from the time before.
    assert all(text.get_text() for text in picture.texts)


@pytest.mark.parametrize(
    ("name", "width", "text"),
    [
        ("copy device to host", 19, "copy device to host"),
        ("copy device to host", 18, "copy"),
        ("copy device to host", 3, ""),
        ("kernel_of_some_library", 10, "kern~brary"),
    ],
)
def test_labels_of_a_picture(name, width, text):
    assert _picture.label(name, width) == text


def test_the_title_of_a_picture_is_that_of_the_chart(backend):
    """The title has the time until the last operation ends, not only the time
    of the block."""
    pytest.importorskip("matplotlib", reason="needs Matplotlib")
    with timeline.record() as t:
        stream = backend.stream()
        backend.sleep(stream, 50)
    stream.synchronize()
    title = _picture.draw(t).axes[0].get_title(loc="left")
    assert t.chart().startswith(f"{title}: ")
    number, unit = title.removeprefix("1 operation in ").split()
    # The sleep may seem shorter, because a device sleeps by its own clock.
    assert float(number) >= 40 and unit == "ms"


@pytest.mark.unscheduled
def test_the_title_says_that_time_was_virtual(no_gpu_is_used):
    pytest.importorskip("matplotlib", reason="needs Matplotlib")
    with schedules.run("late"), timeline.record() as t:
        stream = pystreams.Stream("cpu")
        pystreams.empty(64, device="cpu").fill_(1, stream=stream)
        stream.synchronize()
    title = _picture.draw(t).axes[0].get_title(loc="left")
    assert title.endswith(
        " in 0 us of virtual time, in which only sleeps last"
    )
    assert t.chart().startswith(f"{title}: ")


def test_copies_have_colors_by_direction():
    pytest.importorskip("matplotlib", reason="needs Matplotlib")
    rows = [
        ("copy", name, "cuda:0", "s", "t", 0, begin, begin + 100)
        for begin, name in enumerate(
            ["copy host to device", "copy device to host", "copy peer to peer"]
        )
    ]
    axes = _picture.figures().Figure().subplots()
    _picture.draw_slices(axes, rows, _picture.Lanes(rows), 1.0, 102)
    colors = {tuple(bars.get_facecolor()[0]) for bars in axes.collections}
    assert len(colors) == 3
    _picture.legend(axes, rows)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["copy", "copy host to device", "copy device to host"]


def test_narrow_slices_have_no_edges():
    """Narrow slices would look empty, because they are narrower than their
    edges."""
    pytest.importorskip("matplotlib", reason="needs Matplotlib")
    rows = [
        ("fill", "fill", "cpu:0", "s", "t", 0, begin, end)
        for begin, end in [(0, 5000), (5000, 5001), (6000, 9999)]
    ]
    axes = _picture.figures().Figure().subplots()
    _picture.draw_slices(axes, rows, _picture.Lanes(rows), 1.0, 9999)
    (bars,) = axes.collections
    assert list(bars.get_linewidth()) == [0.3, 0, 0.3]


def test_nested_spans_stand_below_each_other():
    """A thread's spans and waits stand below each other; a stream's spans fill
    its lane."""
    span, wait = ("span", "s", None, None), ("synchronize", "w", None, None)
    rows = [
        (*span, "a", 0, 0, 90),
        (*span, "b", 0, 5, 95),
        (*span, "a", 0, 10, 50),
        (*wait, "a", 0, 20, 30),
        (*span, "a", 0, 60, 70),
        ("span", "s", "cpu:0", "t", "a", 0, 0, 90),
    ]
    heights = _picture.Heights(rows)
    third = pytest.approx(0.28)
    assert [heights.of(row) for row in rows] == [
        (-0.42, third),
        (-0.42, 0.84),
        (pytest.approx(-0.14), third),
        (pytest.approx(0.14), third),
        (pytest.approx(-0.14), third),
        (-0.42, 0.84),
    ]


def test_no_matplotlib(recorded, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        recorded.save(tmp_path / "t.png")
    assert recorded._repr_html_().startswith("<pre>")


def test_an_empty_timeline(tmp_path):
    with timeline.record() as t:
        pass
    for suffix in ("json", "pftrace"):
        t.save(tmp_path / f"t.{suffix}")
    assert Chrome(tmp_path / "t.json").slices == []


@pytest.mark.parametrize(
    "value", [0, 1, 127, 128, 300, 1 << 35, (1 << 64) - 1]
)
def test_varints(value):
    found, shift = 0, 0
    for byte in _files.varint(value):
        found |= (byte & 127) << shift
        shift += 7
    assert found == value


@pytest.mark.parametrize("suffix", ["json", "pftrace"])
def test_many_operations(tmp_path, sanitized, suffix):
    """100,000 operations take less than a second of CPU time and 20 MB more
    memory.  So a million take 10 s and 200 MB."""
    if sanitized:
        pytest.skip("a sanitizer makes it slower and larger")
    import pystreams

    stream = pystreams.Stream("cpu")
    block = pystreams.empty(64, device="cpu")
    with timeline.record() as t:
        for _ in range(100_000):
            block.fill_(1, stream=stream)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    t.save(tmp_path / f"t.{suffix}")
    took = time.process_time() - begin
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert took < 3
    assert after - before < 20 << 10
    assert os.path.getsize(tmp_path / f"t.{suffix}") > 1 << 20


@pytest.mark.parametrize("suffix", ["json", "pftrace"])
def test_all_in_one_moment(backend, no_gpu_is_used, tmp_path, suffix):
    """This happens while a schedule is explored."""
    path = tmp_path / f"t.{suffix}"
    with schedules.run("late"):
        block = backend.empty(64)
        with timeline.record() as t:
            block.fill_(1)
            backend.synchronize()
        assert t.duration == 0
        t.save(path)
        assert "1 operation in 0 us" in str(t)
    assert path.read_bytes()
