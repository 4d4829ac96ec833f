"""Exceptions of callables that nobody asks the Future for are logged."""

import asyncio
import concurrent.futures
import gc
import logging
import sys
from textwrap import dedent

import pytest
from deadlines import LONG, wait_until

import pystreams


def fail():
    raise KeyError("lost")


@pytest.fixture
def logged(caplog):
    """The messages of the package's logger, once Futures have died."""
    caplog.set_level(logging.ERROR, "pystreams")

    def records():
        gc.collect()
        return [r for r in caplog.records if r.name == "pystreams"]

    return records


def ended(stream, function=fail):
    future = stream.submit(function)
    wait_until(future.done)
    stream.synchronize(LONG)
    return future


def test_it_is_logged_once(stream, logged):
    future = ended(stream)
    assert logged() == []
    line = sys._getframe().f_lineno
    del future
    wait_until(logged)
    future = ended(stream)
    del future
    wait_until(lambda: len(logged()) == 2)
    first = logged()[0]
    assert first.exc_info[0] is KeyError
    text = first.getMessage()
    assert text.startswith("the exception of a callable was never retrieved;")
    assert f'  File "{__file__}", line ' in text
    assert text.endswith(", in ended")
    assert line > 0


@pytest.mark.unscheduled
def test_a_future_that_nobody_keeps(stream, logged):
    stream.submit(fail)
    wait_until(logged)
    assert (
        logged()[0]
        .getMessage()
        .endswith(", in test_a_future_that_nobody_keeps")
    )


def test_a_future_in_a_cycle(stream, logged):
    future = ended(stream)
    future.itself = future
    del future
    wait_until(logged)


async def awaited(future):
    with pytest.raises(KeyError):
        await future


def raised(future):
    with pytest.raises(KeyError):
        future.result()


def waited(future):
    concurrent.futures.wait([future], return_when="FIRST_EXCEPTION")
    future.exception()


@pytest.mark.parametrize(
    "fetch",
    [
        raised,
        lambda future: future.exception(),
        lambda future: asyncio.run(awaited(future)),
        lambda future: future.add_done_callback(lambda f: f.exception()),
        waited,
    ],
    ids=["result", "exception", "await", "callback", "wait"],
)
@pytest.mark.parametrize("early", [False, True], ids=["done", "pending"])
def test_what_is_fetched_is_not_logged(stream, logged, fetch, early):
    future = stream.submit(fail)
    if not early:
        wait_until(future.done)
    fetch(future)
    wait_until(future.done)
    stream.synchronize(LONG)
    del future
    gc.collect()
    assert stream.submit(int).result(LONG) == 0
    assert logged() == []


def test_a_failure_of_the_stream_is_not_logged(engine, logged):
    """synchronize() raises it."""
    stream = engine.stream()
    with engine.hold(stream):
        pystreams._C.fail(stream, 700)
        stream.submit(int)
    with pytest.raises(pystreams.AcceleratorError):
        stream.synchronize(LONG)
    assert logged() == []


def test_results_and_cancelled_calls_are_not_logged(engine, logged):
    stream = engine.stream()
    ended(stream, int)
    with engine.hold(stream):
        assert stream.submit(fail).cancel()
    stream.synchronize(LONG)
    assert logged() == []


@pytest.mark.parametrize("kept", [True, False])
def test_at_the_end_of_the_program(run_python, kept):
    """A Future that the program keeps until its end is not logged: perhaps the
    program meant to ask it."""
    code = f"""
        import pystreams
        stream = pystreams.Stream("cpu")
        future = stream.submit(int, "x")
        stream.synchronize()
        while not future.done():
            pass
        if not {kept}:
            del future
            stream.submit(int).result()
        """
    done = run_python(dedent(code))
    assert done.returncode == 0
    assert ("never retrieved" in done.stderr) is not kept
    assert ("ValueError: invalid literal" in done.stderr) is not kept


def test_an_await_without_a_loop_of_its_own(stream):
    """`await stream.submit(f)`."""

    async def main():
        return await stream.submit(int, "7")

    assert asyncio.run(main()) == 7
