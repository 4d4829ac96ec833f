"""pystreams.accelerator: one API whatever the accelerator is.

Which one it is, is settled once in a process, so choices run in others.
"""

import pytest

import pystreams
from pystreams import accelerator as api


@pytest.fixture
def two(accelerator):
    if accelerator.count < 2:
        pytest.skip(f"{accelerator}: has {accelerator.count} device")
    return accelerator


def test_what_there_is(accelerator):
    assert api.is_available() is True
    assert api.device_count() == accelerator.count
    current = api.current_accelerator()
    assert current == pystreams.device(accelerator.name)
    assert current.index is None
    assert api.current_accelerator(check_available=True) == current


def test_current_device(two):
    assert api.current_device_index() == 0
    assert api.set_device_index(1) is None
    assert api.current_device_index() == 1
    assert two.current_device() == 1
    api.set_device_index(two.device(0))
    assert api.current_device_index() == 0
    api.set_device_index(str(two.device(1)))
    assert api.current_device_index() == 1


def test_device_index_context(two):
    with api.device_index(1):
        assert api.current_device_index() == 1
        with api.device_index(None):
            assert api.current_device_index() == 1
        with api.device_index(0):
            assert api.current_device_index() == 0
        assert api.current_device_index() == 1
    assert api.current_device_index() == 0
    with pytest.raises(KeyError), api.device_index(1):
        raise KeyError
    assert api.current_device_index() == 0


def test_current_stream(two):
    stream = two.stream(1)
    assert api.current_stream() == api.default_stream()
    assert api.default_stream(1).device == two.device(1)
    with stream:
        assert api.current_stream() == stream
        assert api.current_stream(0) == api.default_stream(0)
    assert api.current_stream(1) == api.default_stream(1)
    assert isinstance(api.current_stream(), pystreams.Stream)


def test_set_stream_switches_the_device(two):
    stream = two.stream(1)
    assert api.set_stream(stream) is None
    assert api.current_device_index() == 1
    assert api.current_stream() == stream


def test_synchronize_does_not(two):
    stream = two.stream(1)
    two.sleep(stream, 1)
    assert api.synchronize(1) is None
    assert stream.query()
    api.synchronize(two.device(1))
    api.synchronize()
    assert api.current_device_index() == 0


def test_stream_context(two):
    stream = two.stream(1)
    before = two.currents()
    with api.stream(stream):
        assert api.current_stream() == stream
    assert two.currents() == before


def test_wrong_type(accelerator):
    other = "cpu" if accelerator.name != "cpu" else "cuda"
    message = f"{other} doesn't match the current accelerator " + (
        f"{accelerator.name}."
    )
    for use in (
        lambda: api.set_device_index(other),
        lambda: api.set_device_index(pystreams.device(other, 0)),
        lambda: api.current_stream(other),
        lambda: api.synchronize(f"{other}:0"),
        lambda: api.get_memory_info(other),
    ):
        with pytest.raises(ValueError) as caught:
            use()
        assert str(caught.value) == message


FOREIGN = """
import pystreams
from pystreams import accelerator, cuda
class Foreign:
    stream = cuda.Stream()
    def __cuda_stream__(self):
        return 0, self.stream.cuda_stream
for use in (
    lambda: accelerator.set_stream(Foreign()),
    lambda: accelerator.stream(Foreign()),
    lambda: accelerator.set_stream(Foreign.stream),
):
    try:
        use()
    except ValueError as error:
        print(error)
print(cuda.current_stream() == cuda.default_stream())
"""


@pytest.mark.usefixtures("cuda")
def test_another_librarys_stream_of_a_wrong_type(run_python):
    done = run_python(FOREIGN, env={"PYSTREAMS_ACCELERATOR": "cpu"})
    assert (done.returncode, done.stderr) == (0, "")
    message = "cuda doesn't match the current accelerator cpu.\n"
    assert done.stdout == 3 * message + "True\n"


def test_out_of_range(accelerator):
    before = accelerator.currents()
    for use in (
        lambda: api.set_device_index(1000),
        lambda: api.current_stream(1000),
        lambda: api.synchronize(1000),
    ):
        with pytest.raises(pystreams.AcceleratorError) as caught:
            use()
        assert "invalid device ordinal" in str(caught.value)
    assert accelerator.currents() == before


def test_memory(accelerator):
    free, total = api.get_memory_info()
    assert 0 < free <= total
    before = api.memory_allocated()
    block = pystreams.empty(1 << 16)
    assert block.device.type == accelerator.name
    assert api.memory_allocated() >= before + (1 << 16)
    assert api.max_memory_allocated() >= api.memory_allocated()
    assert api.memory_stats()["allocated_bytes.all.current"] == (
        api.memory_allocated()
    )
    block.close()
    api.synchronize()
    assert api.memory_allocated() == before
    api.reset_peak_memory_stats()
    assert api.max_memory_allocated() == before


SHOW = """
import pystreams
print(pystreams.accelerator.current_accelerator(), pystreams.Stream().device,
      pystreams.device(0))
"""


def test_chosen_by_environment(run_python):
    emulate = {"PYSTREAMS_EMULATE_CUDA": "1"}
    for choice, expected in (
        ({"PYSTREAMS_ACCELERATOR": "cpu"}, "cpu cpu:0 cpu:0\n"),
        ({"PYSTREAMS_ACCELERATOR": "cuda", **emulate}, "cuda cuda:0 cuda:0\n"),
        ({"PYSTREAMS_ACCELERATOR": "cpu", **emulate}, "cpu cpu:0 cpu:0\n"),
    ):
        done = run_python(SHOW, env=choice)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == expected


NO_GPU = {"PYSTREAMS_EMULATE_CUDA": None, "CUDA_VISIBLE_DEVICES": ""}


def test_cpu_where_there_is_no_gpu(run_python):
    done = run_python(SHOW, env=NO_GPU)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "cpu cpu:0 cpu:0\n"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("teapot", "'teapot'"), ("cuda", "'cuda', which is not available: ")],
)
def test_choice_that_cannot_be(run_python, name, reason):
    """Never another one in its place."""
    env = {**NO_GPU, "PYSTREAMS_ACCELERATOR": name}
    done = run_python(SHOW, env=env)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: ")
    assert reason in last
    assert done.stdout == ""


def test_is_available_answers_whatever_is_asked_for(run_python):
    code = "import pystreams; print(pystreams.accelerator.is_available())"
    for name, answer in (("cuda", False), ("teapot", False), ("cpu", True)):
        env = {**NO_GPU, "PYSTREAMS_ACCELERATOR": name}
        done = run_python(code, env=env)
        assert (done.stdout, done.stderr) == (f"{answer}\n", "")


def test_asking_by_name_gives_that_or_an_error(run_python):
    done = run_python("import pystreams; pystreams.Stream('cuda')", env=NO_GPU)
    assert done.returncode == 1
    assert "RuntimeError: No CUDA GPUs are available: " in done.stderr


def test_a_graph_that_is_entered_again(accelerator):
    """The second block is refused, and the first still captures."""
    stream, graph = accelerator.stream(), api.Graph()
    memory = accelerator.filled(1, 64, stream=stream)
    stream.synchronize()
    with stream, graph:
        with pytest.raises(RuntimeError), graph:
            pass
        assert stream.is_capturing()
        memory.fill_(2)
    assert memory.tobytes() == bytes([1]) * 64
