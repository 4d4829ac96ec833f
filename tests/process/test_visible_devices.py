"""How many devices CUDA_VISIBLE_DEVICES leaves: read anew until a device is
used.  test_gpu_devices.py has how the driver reads the variable."""

import pytest


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("", 0),
        ("-1", 0),
        ("0", 1),
        ("2", 1),
        ("2,0", 2),
        ("0,1,2,3", 3),
        ("1,-1,2", 1),
        ("1,1", 0),
        ("0,GPU-1", 1),
        ("nonsense", 0),
        ("GPU-0", 0),
        ("MIG-0", 0),
    ],
)
def test_emulated_devices_are_hidden_as_others(run_python, value, number):
    """By CUDA_VISIBLE_DEVICES, until a device is used."""
    code = """
import os
import sys
from pystreams import cuda
os.environ.pop("CUDA_VISIBLE_DEVICES", None)
print(cuda.device_count())
os.environ["CUDA_VISIBLE_DEVICES"] = sys.argv[1]
print(cuda.device_count(), cuda.is_available(), cuda.is_initialized())
if cuda.is_available():
    print(cuda.Stream(cuda.device_count() - 1).device.index)
else:
    try:
        cuda.init()
    except RuntimeError as error:
        print(error)
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
print(cuda.device_count())
"""
    env = {"PYSTREAMS_EMULATE_CUDA": "3", "CUDA_VISIBLE_DEVICES": "0"}
    done = run_python(code, value, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    first, found, used, last = done.stdout.splitlines()
    assert first == "3"
    assert found == f"{number} {number > 0} False"
    if number > 0:
        assert (used, last) == (f"{number - 1}", f"{number}")
    else:
        assert used == (
            "No CUDA GPUs are available: CUDA_VISIBLE_DEVICES hides all "
            "devices"
        )
        assert last == "2"


def test_a_device_that_is_hidden_is_none(run_python):
    code = """
import os
from pystreams import AcceleratorError, cuda
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
try:
    cuda.Stream(1)
except AcceleratorError as error:
    print("but there is only cuda:0, failed" in str(error))
print(cuda.Stream(0).device)
"""
    done = run_python(code, env={"PYSTREAMS_EMULATE_CUDA": "3"})
    assert (done.stdout, done.stderr) == ("True\ncuda:0\n", "")


def test_the_count_of_gpus_follows_the_variable(gpu, run_python):
    code = """
import os
from pystreams import cuda
everything = cuda.device_count()
os.environ["CUDA_VISIBLE_DEVICES"] = ""
assert cuda.device_count() == 0
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
assert cuda.device_count() == 1
assert not cuda.is_initialized()
cuda.Stream().synchronize()
os.environ["CUDA_VISIBLE_DEVICES"] = ""
print(cuda.device_count())
"""
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("1\n", "")
