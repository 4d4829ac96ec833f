"""The programs of torch_programs, with pystreams under torch's name on each
backend; with torch itself, too, if it and a GPU are present."""

import json

import pytest
from places import SUPPORT
from torch_programs import accelerator, cuda

import pystreams
from pystreams import trace
from pystreams.cuda import _gpu_trace

every_program = pytest.mark.parametrize(
    "program",
    [*accelerator.program, *cuda.program],
    ids=lambda function: function.__name__,
)


@pytest.fixture
def untraced(monkeypatch):
    """The GPU trace, off again afterwards and with nothing registered."""
    monkeypatch.setattr(_gpu_trace, "_callbacks", [])
    yield
    pystreams._C._deactivate_gpu_trace()
    assert trace._subscriptions == {}


@pytest.mark.usefixtures("cuda", "untraced")
@every_program
def test_on_cuda(program):
    program(pystreams)


ON_THE_CPU = """
import json
import sys
import traceback
import pystreams
sys.path.append(sys.argv[1])
from torch_programs.accelerator import program as programs
failed = {}
for program in programs:
    try:
        program(pystreams)
    except Exception:
        failed[program.__name__] = traceback.format_exc()
print(json.dumps(failed))
"""


@pytest.mark.parametrize("devices", ["1", "2"])
def test_on_the_cpu(run_python, devices):
    """The accelerator is settled once in a process, so they run in one."""
    folder = str(SUPPORT)
    env = {"PYSTREAMS_ACCELERATOR": "cpu", "PYSTREAMS_CPU_DEVICES": devices}
    done = run_python(ON_THE_CPU, folder, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {}


@every_program
@pytest.mark.filterwarnings("ignore")
def test_on_torch(program):
    try:
        import torch
    except ImportError as error:
        pytest.skip(f"needs torch: {error}")
    if not torch.cuda.is_available():
        pytest.skip("needs a torch with CUDA")
    program(torch)
