"""Shortage of memory, descriptors or threads.  Each public call must behave as
documented when any allocation in it fails.  The sweeps are in shortage.py, and
the calls in calls.py."""

import re
import subprocess
import sysconfig
from pathlib import Path

import calls
import pytest
from places import SUPPORT, TESTS

from pystreams import _C

# Functions of the C library that the module calls, but that shortage.c does
# not make fail: they never fail, or they fail for other reasons than a
# shortage.
CANNOT_BE_SHORT = re.compile(
    r"_ITM_\w+|__\w+_chk|__ctype_\w+|__cxa_finalize|__errno_location"
    r"|__gmon_start__|__register_atfork|__isoc\w+"
    r"|__stack_chk_fail|__tls_get_addr|__getdelim|clock_gettime|close(dir)?"
    # These only load a library that is loaded already, or that is optional.
    r"|dl(open|sym|close)"
    r"|epoll_wait|eventfd_(write|read)"
    r"|fclose|ferror|fgets|fread|free|getenv|gete?[ug]id|getpid|getppid|ioctl"
    r"|kill|madvise"
    r"|mem(chr|cmp|cpy|move|set)|munmap|nanosleep|poll|prctl"
    r"|pthread_(cond|condattr|mutex|mutexattr)_\w+"
    r"|pthread_(detach|join|self|setname_np|sigmask|once|[gs]etspecific)"
    # Thread-specific keys are made before a sweep begins.
    r"|pthread_key_(create|delete)"
    r"|_?exit|pthread_attr_\w+"
    r"|read|readdir(64)?|readlink|sched_yield|sem_\w+|sig\w+"
    r"|s?n?printf|f?stat(x|fs)?"
    r"|lstat|str\w+|syscall|sysconf|sysinfo|unlink|usleep|v?snprintf|wcslen"
    r"|tdelete|tfind"
    r"|sched_getaffinity|secure_getenv|process_vm_\w+|pread|pwrite|write"
)


def test_each_public_name_has_a_call():
    named = calls.covered_names() | set(calls.OTHERS)
    assert calls.public_names() - named == set()
    assert named - calls.public_names() == set()
    assert calls.covered_names() & set(calls.OTHERS) == set()


@pytest.mark.unscheduled
@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_each_call_works(run_python, name):
    """Each call works, and can be made again.  Otherwise a sweep of it would
    show nothing."""
    code = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
import calls
world = calls.World({name!r})
for case, prepare in calls.cases({name!r}).items():
    for _ in range(2):
        prepare(world)()
        assert world.settle() == [], case
world.close()
"""
    done = run_python(code, env=environment(name))
    assert (done.stdout, done.stderr) == ("", "")


def environment(name):
    return {
        "PYSTREAMS_ACCELERATOR": name,
        "PYSTREAMS_CPU_DEVICES": "2",
        "PYSTREAMS_EMULATE_CUDA": "2",
    }


@pytest.fixture
def sweep(run_python, short_library):
    """Return sweep(kind, device type), which returns what is wrong."""
    pytest.importorskip("_testcapi", reason="needs _testcapi")

    def run(kind, name):
        done = run_python(
            ["-W", "ignore", SUPPORT / "shortage.py", kind, name],
            env=environment(name) | short_library,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.unscheduled
@pytest.mark.parametrize("name", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", ["python", "threads", "delivery"])
def test_the_interpreter_is_short(sweep, kind, name):
    if kind == "threads" and sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("without the GIL all threads are short when one is")
    assert sweep(kind, name) == ""


@pytest.mark.unscheduled
@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_the_module_is_short(sweep, sanitized, name):
    if sanitized:
        pytest.skip("a sanitizer has an allocator of its own")
    assert sweep("native", name) == ""


def test_no_call_is_forgotten(tools, sanitized):
    """Each call that the module makes of the C library can be made to fail, or
    is known never to be short of anything."""
    if sanitized:
        pytest.skip("a sanitizer has calls of its own")
    if "cudart" in Path(_C.__file__).read_bytes().decode("latin-1"):
        pytest.skip("this module has the CUDA runtime's calls too")
    done = subprocess.run(
        ["nm", "-D", "--undefined-only", _C.__file__],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(re.findall(r" [Uw] (\w+)", done.stdout))
    source = (TESTS / "c/shortage.c").read_text()
    failing = set(re.findall(r"FAILS\((\w+),", source))
    failing |= {"__open_2"}
    known = {
        name
        for name in imported
        if name.startswith(("Py", "_Py")) or CANNOT_BE_SHORT.fullmatch(name)
    }
    assert imported - known - failing == set()
