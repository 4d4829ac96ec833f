"""Backends that installed distributions offer by entry points: nothing needs
to import them."""

import pytest

POINTS = """[pystreams.backends]
mtia = fake_device
toy = fake_device
made = maker:make
once = maker:make_once
broken = no_such_module
raising = maker:fail
nothing = json
"""
MAKER = """
import time

def make():
    import fake_device

def make_once(calls=[]):
    calls.append(None)
    time.sleep(0.05)
    if len(calls) > 1:
        raise ValueError("a backend 'mtia' is already registered")
    import fake_device

def fail():
    raise OSError("no board")
"""


@pytest.fixture
def installed(run_with_device, tmp_path):
    """run_with_device, where a distribution offers these."""
    folder = tmp_path / "offers-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: offers\n")
    (folder / "entry_points.txt").write_text(POINTS)
    (tmp_path / "maker.py").write_text(MAKER)

    def run(code, **variables):
        return run_with_device("import pystreams\n" + code, env=variables)

    return run


WORKS = """
from pystreams import accelerator
assert str(accelerator.current_accelerator()) == "mtia"
import fake_device
stream = pystreams.Stream()
work = fake_device.launch(stream)
assert stream.device.type == "mtia" and not stream.query()
fake_device.complete(work)
assert stream.query()
"""


@pytest.mark.parametrize("name", ["mtia", "toy", "made"])
def test_the_accelerator_may_be_any_of_them(installed, name):
    done = installed(WORKS, PYSTREAMS_ACCELERATOR=name)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["mtia", "toy", "made"])
def test_a_device_string_may_name_any_of_them(installed, name):
    done = installed(f"""
device = pystreams.device("{name}:1")
assert (device.type, device.index) == ("mtia", 1)
assert pystreams.Stream("{name}").device == pystreams.device("mtia:0")
assert pystreams.device("{name}") == pystreams.device("mtia")
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_loaded_before_it_is_named(installed):
    done = installed("""
import sys
pystreams.Stream("cpu").synchronize()
pystreams.accelerator.current_accelerator()
assert "fake_device" not in sys.modules
assert "importlib.metadata" not in sys.modules
""")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "broken",
            "the backend 'broken' of the entry point 'no_such_module' cannot "
            "be loaded: ModuleNotFoundError: No module named "
            "'no_such_module'",
        ),
        (
            "raising",
            "the backend 'raising' of the entry point 'maker:fail' cannot be "
            "loaded: OSError: no board",
        ),
        (
            "nothing",
            "the entry point 'json' of pystreams.backends has registered no "
            "backend 'nothing', only cpu, cuda are",
        ),
        (
            "absent",
            "PYSTREAMS_ACCELERATOR names an unknown device type: 'absent'; "
            "expected one of cpu, cuda, broken, made, mtia, nothing, once, "
            "raising, toy",
        ),
    ],
)
def test_those_that_cannot_be_used(installed, name, message):
    done = installed(
        """
for _ in range(2):
    try:
        pystreams.Stream()
    except RuntimeError as error:
        print(error)
""",
        PYSTREAMS_ACCELERATOR=name,
        PYSTREAMS_EMULATE_CUDA="1",
    )
    assert (done.stdout, done.stderr) == (2 * (message + "\n"), "")


def test_a_name_that_two_distributions_offer(installed, tmp_path):
    folder = tmp_path / "others-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: others\n")
    (folder / "entry_points.txt").write_text(
        "[pystreams.backends]\ntoy = other_toy\nmtia = fake_device\n"
    )
    done = installed("""
assert str(pystreams.device("mtia")) == "mtia"
try:
    pystreams.Stream("toy")
except RuntimeError as error:
    print(error)
""")
    assert (done.stdout, done.stderr) == (
        "several entry points of pystreams.backends offer a backend 'toy': "
        "fake_device, other_toy; uninstall the distributions of all but one\n",
        "",
    )


@pytest.mark.parametrize("name", ["mtia", "toy"])
def test_a_program_may_have_imported_the_module(installed, name):
    done = installed(f"""
import fake_device
assert pystreams.Stream("{name}").device == pystreams.device("mtia:0")
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_load_a_backend_once(installed):
    done = installed("""
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    streams = list(pool.map(pystreams.Stream, 8 * ["once"]))
assert {stream.device.type for stream in streams} == {"mtia"}
""")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_device_string(installed):
    done = installed("""
for name in ("absent", "broken:1"):
    try:
        pystreams.device(name)
    except RuntimeError as error:
        print(error)
""")
    assert done.stdout.startswith("Expected one of cpu, cuda")
    assert "the backend 'broken'" in done.stdout
