"""The conformance suite quotes the contract, passes on each backend, and
reports each fault of a broken one by the test that names it."""

import collections
import re

import pytest
from contract import EVERY, claims, comments

from pystreams import _C

CLAIMS = list(claims())

LATER = "A later record of the event changes nothing."
DEFAULT = (
    "Stream 0 is the default stream of the device; no event, graph or "
    "executable has the handle 0."
)
STATUSES = "Statuses: the failure of "
GATE = "Queue a gate: once the work before it is done or has failed,"
NOTIFIED = "Call notification->reached once, when the work that the stream"
ENDING = "The program is ending:"
LATER_WAIT = "A later wait returns PS_ERROR_SHUTTING_DOWN"
ENDED = "NULL, or a function that the backend calls about every 50 ms"

# For each fault of tests/c/broken_device, the tests that fail, each with the
# member and the sentence of the contract that it names.
FAULTS = {
    "query": {
        "test_query_of_a_busy_stream": (
            "stream_query",
            "Returns PS_SUCCESS when all work queued so far is done,",
        ),
        # The check of this test relies on stream_query.
        "test_synchronize_waits": (
            "stream_synchronize",
            "Wait until all work queued before the call is done.",
        ),
    },
    "flag": {
        "test_the_earlier_record_is_done": (
            "event_record",
            "Record the stream's current position: the event completes "
            "when all work queued on the stream before this call is done. "
            "Replaces any earlier record.",
        ),
    },
    "latest": {
        "test_a_later_record_that_takes_longer": ("stream_wait_event", LATER),
        "test_a_later_record_that_is_done_first": ("stream_wait_event", LATER),
    },
    "default": {
        "test_the_default_stream": (EVERY, DEFAULT),
        "test_each_device_has_a_default_stream": (EVERY, DEFAULT),
        "test_the_default_stream_is_independent": (
            "stream_create",
            "Create a stream that serializes with no other stream,",
        ),
    },
    "first": {
        "test_synchronize_waits_for_another_device": (
            "device_synchronize",
            "Wait until all work that was queued on the device before the "
            "call is done.",
        ),
    },
    "lost": {
        "test_stream_synchronize": (
            "stream_synchronize",
            "Statuses: the first failure of the stream's work, at every call.",
        ),
        "test_event_synchronize": (
            "event_synchronize",
            STATUSES + "the work before the latest record.",
        ),
        "test_device_synchronize": (
            "device_synchronize",
            STATUSES + "any of that work.",
        ),
        "test_of_a_destroyed_stream": (
            "stream_destroy",
            "If the stream's work fails, and no call to stream_synchronize or",
        ),
    },
    "early": {
        "test_reached_when_its_turn_comes": ("stream_gate", GATE),
        "test_reached_after_a_failure": ("stream_gate", GATE),
        "test_gates_of_a_failed_stream": ("gate_open", "Open the gate,"),
    },
    "endless": {
        "test_it_keeps_its_limit": ("shutdown", ENDING),
        "test_a_later_wait": ("shutdown", LATER_WAIT),
    },
    "undead": {
        "test_no_notification_comes_after_it": ("shutdown", ENDING),
        "test_a_later_wait": ("shutdown", LATER_WAIT),
    },
    "deaf": {
        "test_the_wait_for_a_stream_is_ended": ("is_over", ENDED),
        "test_the_wait_for_an_event_is_ended": ("is_over", ENDED),
    },
    "hasty": {
        "test_notified_when_work_ends": ("stream_notify", NOTIFIED),
        "test_notified_of_a_failure": ("stream_notify", NOTIFIED),
        "test_notified_past_a_queue": (
            "stream_notify",
            "The notification takes no place",
        ),
    },
    "ajar": {
        "test_holds_back_what_comes_after": ("stream_gate", GATE),
        "test_gate_after_gate": ("stream_gate", GATE),
        "test_a_wait_includes_a_closed_gate": ("stream_gate", GATE),
        "test_a_closed_gate_holds_up_no_other": (EVERY, "Queued work may run"),
        "test_destroyed_behind_a_closed_gate": (
            "stream_destroy",
            "Queued work still runs;",
        ),
    },
}


@pytest.fixture
def conform(run_with_device):
    """Run the suite in another process."""

    def run(device, *options, plugin=None, env=None):
        arguments = ["--pystreams-device", device] if device else []
        if plugin is not None:
            arguments += ["--pystreams-plugin", plugin]
        return run_with_device(
            ["-m", "pytest", "-p", "no:cacheprovider"],
            "--pyargs",
            "pystreams.testing",
            *arguments,
            *options,
            env=env,
        )

    return run


def table(done):
    """Return {group: what the summary says of it}."""
    _, _, summary = done.stdout.partition("the contract on ")
    rows = re.findall(r"^([a-z]+) +(\d+ .*)$", summary, re.M)
    return {group: re.sub(r" {2,}", "  ", text) for group, text in rows}


def broken(done):
    """Return {test: (member, sentence)} as in the summary."""
    found = re.findall(
        r'^BROKEN ([\w ]+)\n\s+"(.*?)"\n.*?::(\w+)$', done.stdout, re.M | re.S
    )
    return {
        test: (member, " ".join(sentence.split()))
        for member, sentence, test in found
    }


@pytest.mark.parametrize(
    ("member", "sentence"),
    [claim[1:] for claim in CLAIMS],
    ids=[claim[0] for claim in CLAIMS],
)
def test_the_contract_says_so(member, sentence):
    assert sentence in comments()[member]


def test_every_member_is_shown():
    shown = {member for _, member, _ in CLAIMS}
    # No member reports that pinned memory is freed.
    assert set(comments()) - shown == {"pinned_free"}


def test_names_of_tests_are_unique():
    names = collections.Counter(test for test, _, _ in CLAIMS)
    assert names.most_common(1)[0][1] == 1


@pytest.mark.unscheduled
def test_each_backend_holds(conform, backend):
    done = conform(backend.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert broken(done) == {}
    members = _C.backend_members(backend.type)
    lacking = {member for member, has in members.items() if not has}
    for row in table(done).values():
        _, _, absent = row.partition("absent: ")
        assert {m for m in members if f"{m} is NULL" in absent} <= lacking


def test_the_example_holds(conform):
    done = conform("mtia", plugin="fake_device")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert broken(done) == {}
    rows = table(done)
    assert list(rows) == [
        "status",
        "devices",
        "streams",
        "partitions",
        "events",
        "timing",
        "ipc",
        "memory",
        "work",
        "notifications",
        "gates",
        "waits",
        "capture",
        "graphs",
        "times",
        "activities",
        "faults",
        "shutdown",
    ]
    for group in ("status", "devices", "streams", "events", "faults"):
        assert " hold" in rows[group]
    assert rows["timing"] == "3 absent: event_elapsed is NULL"
    assert re.match("14 absent: event_export, event_open, ", rows["ipc"])
    assert rows["work"] == "3 absent: host_function, sleep are NULL"
    assert rows["notifications"] == (
        "7 absent: event_notify, notify_cancel, stream_notify are NULL"
    )
    assert rows["gates"] == "11 absent: gate_open, stream_gate are NULL"
    assert re.match(
        "9 absent: device_synchronize with a limit; ", rows["waits"]
    )
    assert rows["shutdown"] == "3 absent: shutdown is NULL"
    assert rows["capture"] == "1 absent: stream_capturing is NULL"
    assert re.match(r"\d+ absent: capture_begin, ", rows["graphs"])
    assert re.match(r"\d+ absent: .*memory_allocate,", rows["memory"])


@pytest.mark.parametrize("way", ["launch", "submit"])
def test_gates_hold(conform, way, built, tmp_path):
    """Streams are kept busy by what the plugin has, or else by gates."""
    (tmp_path / "submit.py").write_text("import gated_device\n")
    done = conform(
        "mtia",
        plugin="gated_device" if way == "launch" else way,
        env={"PYTHONPATH": f"{tmp_path}:{built}"},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    rows = table(done)
    assert rows["notifications"] == "7 hold"
    assert rows["gates"] == "11 hold"
    assert rows["shutdown"] == "3 hold"
    assert "busy" not in done.stdout


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(conform, fault):
    done = conform("mtia", plugin="broken_device", env={"FAULT": fault})
    assert done.returncode == 1
    found = broken(done)
    assert found.keys() == FAULTS[fault].keys()
    for test, (member, beginning) in FAULTS[fault].items():
        assert found[test][0] == member
        assert found[test][1].startswith(beginning)


def test_what_takes_its_time_is_no_fault(conform):
    done = conform("mtia", plugin="broken_device", env={"FAULT": "none"})
    assert done.returncode == 0, done.stdout
    assert broken(done) == {}


def test_an_unfinished_device(conform):
    env = {"FAULT": "unfinished"}
    done = conform("mtia", plugin="broken_device", env=env)
    assert done.returncode == 1
    rows = table(done)
    assert rows["status"] == "2 hold"
    assert " hold" in rows["devices"]
    assert "BROKEN" in rows["streams"]
    assert "not run" not in done.stdout


def test_a_device_that_hangs_ends_the_run(conform):
    done = conform(
        "mtia",
        "-k",
        "any_int or test_event_synchronize or test_other_streams_go_on",
        plugin="broken_device",
        env={"FAULT": "hang"},
    )
    assert done.returncode == 2
    assert broken(done) == {
        "test_event_synchronize": (
            "event_synchronize",
            STATUSES + "the work before the latest record.",
        )
    }
    assert "still waiting after 10 s, at test_faults.py:" in done.stdout
    assert table(done) == {
        "status": "1 hold",
        "faults": "1 BROKEN  1 not run",
    }


IMPATIENT = """
import ctypes, sys
import pytest
from pystreams.testing import limits

limits.GIVE_UP = 2.0
sys.exit(pytest.main(sys.argv[1:]))
"""
KEEPS_THE_GIL = """
import ctypes
import fake_device

def launch(stream):
    ctypes.PyDLL(None).sleep(1000)

complete = fake_device.complete
"""


def test_a_device_that_keeps_the_gil_ends_the_process(
    run_with_device, built, tmp_path
):
    (tmp_path / "keeps_the_gil.py").write_text(KEEPS_THE_GIL)
    done = run_with_device(
        IMPATIENT,
        "--pyargs",
        "pystreams.testing",
        "--pystreams-device=mtia",
        "--pystreams-plugin=keeps_the_gil",
        "-pno:cacheprovider",
        "-kany_int or test_query_of_a_busy_stream",
        env={"PYTHONPATH": f"{tmp_path}:{built}"},
    )
    assert done.returncode == 1
    assert "Timeout (0:00:02)!" in done.stderr
    assert " in test_query_of_a_busy_stream" in done.stderr


@pytest.mark.parametrize(
    ("device", "plugin", "reason"),
    [
        (None, None, "the conformance suite needs a device type"),
        (
            "mtia",
            None,
            "no backend is registered as 'mtia', only cpu and cuda",
        ),
        ("npu", "fake_device", "as 'npu', only cpu and cuda and mtia"),
        ("mtia", "fake", "--pystreams-plugin fake cannot be imported"),
    ],
    ids=["no-device", "no-plugin", "another-device", "missing-plugin"],
)
def test_usage(conform, device, plugin, reason):
    done = conform(device, plugin=plugin)
    assert done.returncode == 4
    assert reason in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_where_nothing_keeps_a_stream_busy(conform, built, tmp_path):
    (tmp_path / "only_registers.py").write_text("import fake_device\n")
    done = conform(
        "mtia",
        "-k",
        "test_query",
        plugin="only_registers",
        env={"PYTHONPATH": f"{tmp_path}:{built}"},
    )
    assert done.returncode == 0
    assert table(done)["streams"] == (
        "1 hold  1 absent: a way to keep a stream busy"
    )


def test_other_projects_import_nothing(run_python, tmp_path):
    (tmp_path / "test_empty.py").write_text(
        "import sys\n\n\n"
        "def test():\n"
        "    assert 'pytest_pystreams' in sys.modules\n"
        "    assert 'pystreams' not in sys.modules\n"
    )
    done = run_python(["-m", "pytest", "-p", "no:cacheprovider"])
    assert done.returncode == 0, done.stdout


def test_pystreams_needs_no_pytest(run_python):
    done = run_python("import pystreams, sys; print('pytest' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("plugin", "plugin.py"),
        ("package", "package/__init__.py"),
        ("package.plugin", "package/plugin.py"),
    ],
)
def test_the_other_process_imports_the_same_plugin(
    run_python, tmp_path, name, file
):
    """Another folder, which comes first, has a plugin of this name, too."""
    for folder, text in (("first", "1 / 0"), ("second", "")):
        (tmp_path / folder / "package").mkdir(parents=True)
        (tmp_path / folder / "package/__init__.py").touch()
        (tmp_path / folder / file).write_text(text)
    done = run_python(f"""
import importlib, sys
sys.path.insert(0, {str(tmp_path / "second")!r})
importlib.import_module({name!r})
sys.path.insert(0, {str(tmp_path / "first")!r})
from pystreams.testing.elsewhere import Elsewhere
process = Elsewhere("cpu", {name!r})
process.begin()
process.close()
""")
    assert (done.returncode, done.stderr) == (0, "")
