"""The arguments and the result of a callable are dropped on the package's
thread.  A finalizer there may wait for what is queued behind the callable."""

import logging
import threading

import pytest
from deadlines import LONG, wait_until

import pystreams


def synchronize(stream, behind):
    stream.synchronize(timeout=LONG)


def wait(stream, behind):
    assert pystreams.wait([stream], timeout=LONG).done


def result(stream, behind):
    assert behind[0].result(LONG) == 5


class Dying:
    """Waits when it dies, and then says so."""

    def __init__(self, how, *arguments):
        self.how, self.arguments, self.died = how, arguments, []

    def __del__(self):
        self.how(*self.arguments)
        self.died.append(True)


def keep(argument):
    pass


def give(argument):
    return [argument]


def fail(argument):
    raise ValueError


@pytest.mark.parametrize("how", [synchronize, wait, result])
@pytest.mark.parametrize("function", [keep, give, fail])
def test_a_finalizer_may_wait_for_its_stream(backend, function, how, caplog):
    # A log record of the exception that nobody retrieves would keep the
    # argument.
    caplog.set_level(logging.CRITICAL, "pystreams")
    stream, go, behind = backend.stream(), threading.Event(), []
    held = stream.submit(go.wait, LONG)
    dying = Dying(how, stream, behind)
    died = dying.died
    stream.submit(function, dying)
    del dying
    behind.append(stream.submit(lambda: 5))
    last = stream.submit(lambda: 6)
    go.set()
    assert held.result(LONG)
    assert behind[0].result(LONG) == 5
    assert last.result(LONG) == 6
    wait_until(lambda: died)
