"""What pystreams adds to pytest: the conformance suite of a backend, tests
that look for races, tests that run under many schedules, and devices and busy
streams for tests.

No part of pystreams is imported unless it is asked for: pytest loads this
plugin in every project, before a conftest can set PYSTREAMS_* variables.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from inspect import Parameter, Signature, iscoroutinefunction, signature
from shlex import quote

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any

    from pystreams.testing import hold as _Hold
    from pystreams.testing.kit import Emulation


def _runs(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(
            f"expected a number of runs of 1 or more, but got {text!r}"
        )
    return int(text)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup(
        "pystreams", "races and schedules of tests, conformance of backends"
    )
    group.addoption(
        "--pystreams-device",
        metavar="TYPE",
        help="the device type to show the contract of, with "
        "--pyargs pystreams.testing",
    )
    group.addoption(
        "--pystreams-plugin",
        metavar="MODULE",
        help="a module to import first, which registers the backend",
    )
    group.addoption(
        "--pystreams-races",
        action="store_true",
        help="have a test fail when two accesses to memory are not ordered, "
        "as if each were marked with pytest.mark.races",
    )
    group.addoption(
        "--pystreams-schedules",
        metavar="N",
        type=_runs,
        help="call each test function under N schedules, as if each were "
        "marked with pytest.mark.schedules(runs=N)",
    )
    group.addoption(
        "--pystreams-replay",
        metavar="NAME",
        help="call each test function under the schedule that a report named",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "pystreams_contract(member, sentence, *needs): what a test shows of "
        "<pystreams/backend.h>",
        "races: run the test in pystreams.races.detect()",
        "schedules(runs=200, seed=None, strategy='pct', depth=2, "
        "races=False): call the test function under that many schedules, with "
        "pystreams.schedules.explore(); its fixtures are made once",
        "emulated_cuda(devices=2, memory='1GiB'): what the fixture "
        "emulated_cuda gives the test; the marker alone is enough",
    ):
        config.addinivalue_line("markers", marker)
    if config.getoption("pystreams_plugin") and not config.getoption(
        "pystreams_device"
    ):
        raise pytest.UsageError(
            "--pystreams-plugin needs --pystreams-device, the device type "
            "that the module registers"
        )
    if config.getoption("pystreams_device"):
        from pystreams.testing import plugin

        config.pluginmanager.register(plugin.Conformance(config))
    replayed = config.getoption("pystreams_replay")
    if replayed is not None:
        from pystreams import schedules

        try:
            schedules._parse(replayed, "--pystreams-replay")
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None


_USER = pytest.StashKey["Any"]()


def _look_for_races(item: pytest.Item) -> None:
    """Look for races until the test has ended."""
    from pystreams import races

    if _USER not in item.stash:
        item.stash[_USER] = races._begin("raise", keeps=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item,
) -> Generator[None, object, object]:
    """Look for races in the test and its fixtures."""
    if item.config.getoption("pystreams_races") or (
        item.get_closest_marker("races") is not None
    ):
        _look_for_races(item)
    try:
        return (yield)
    finally:
        if _USER in item.stash:
            from pystreams import races

            races._end(item.stash[_USER])
            del item.stash[_USER]


_UNFAILED = (pytest.skip.Exception, pytest.xfail.Exception)


def _with_races(
    phase: str,
) -> Callable[[pytest.Item], Generator[None, object, object]]:
    """Make a phase of a test fail even if the test caught the error of a
    race."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def hook(item: pytest.Item) -> Generator[None, object, object]:
        error: BaseException | None = None
        try:
            result = yield
        except BaseException as raised:
            error = raised
        found = item.stash[_USER].take(error) if _USER in item.stash else []
        if found and (error is None or isinstance(error, _UNFAILED)):
            text = (
                "a RaceError was raised, but did not end the test:\n"
                f"{found[0]}"
            )
            error = pytest.fail.Exception(text, pytrace=False)
            del found[0]
        for race in found:
            item.add_report_section(phase, "one more race", f"{race}\n")
        if error is not None:
            raise error
        return result

    return hook


pytest_runtest_setup = _with_races("setup")
pytest_runtest_call = _with_races("call")
pytest_runtest_teardown = _with_races("teardown")


def _arguments(
    item: pytest.Item, name: str, accepted: Callable[[], Signature]
) -> dict[str, Any] | None:
    """Return the arguments of a marker by their names; None if there is no
    marker."""
    marker = item.get_closest_marker(name)
    if marker is None:
        return None
    try:
        bound = accepted().bind(*marker.args, **marker.kwargs)
    except TypeError as error:
        text = f"pytest.mark.{name}: {error}"
        raise pytest.fail.Exception(text, pytrace=False) from None
    return bound.arguments


def _of_schedules() -> Signature:
    """Return the parameters of pytest.mark.schedules: those of explore()
    without fn.  The marker takes them by position, too."""
    from pystreams.schedules import explore

    _, *parameters = signature(explore).parameters.values()
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Signature([p.replace(kind=kind) for p in parameters])


def _options_of(item: pytest.Function) -> dict[str, Any] | None:
    """Return the arguments of explore(); None if the test runs once."""
    given = _arguments(item, "schedules", _of_schedules)
    runs = item.config.getoption("pystreams_schedules")
    if given is None and not runs:
        return None
    options = {"runs": 200, **(given or {})}
    if runs:
        options["runs"] = runs
    if _USER in item.stash:
        # Have each run raise its own race, so that the report names the
        # schedule of that run.
        options["races"] = True
    return options


def _call(item: pytest.Function) -> None:
    names = item._fixtureinfo.argnames
    try:
        item.obj(**{name: item.funcargs[name] for name in names})
    except pytest.fail.Exception as failure:
        # explore() reports only Exceptions, and pytest.fail.Exception is not
        # one: it is a BaseException.
        raise AssertionError(failure.msg) from failure
    finally:
        if _HOLDS in item.stash:
            # Release the streams that are held: the schedule ends only when
            # its work has ended.
            item.stash[_HOLDS].close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    _arguments(pyfuncitem, "races", Signature)
    replayed = pyfuncitem.config.getoption("pystreams_replay")
    options = _options_of(pyfuncitem)
    if replayed is None and options is None:
        return None
    if iscoroutinefunction(pyfuncitem.obj):
        # A plugin for coroutine functions runs the test, in its own way.
        text = (
            f"{pyfuncitem.name} is a coroutine function, which pystreams "
            "cannot call under schedules; call asyncio.run() in a plain test"
        )
        if pyfuncitem.get_closest_marker("schedules") is not None:
            pytest.fail(text, pytrace=False)
        pyfuncitem.warn(pytest.PytestWarning(text))
        return None
    from pystreams import schedules

    def test() -> None:
        _call(pyfuncitem)

    try:
        if replayed is not None:
            races = _USER in pyfuncitem.stash
            schedules.replay(test, replayed, races=races)
        elif options is not None:
            schedules.explore(test, **options)
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", []))
        name = re.search(r'schedule "([^"]*)"', notes)
        if name is not None:
            checked = " --pystreams-races" if "races=True" in notes else ""
            pyfuncitem.add_report_section(
                "call",
                "schedule",
                f"pytest --pystreams-replay {quote(name[1])}{checked} "
                f"{quote(pyfuncitem.nodeid)}",
            )
        raise
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and item.get_closest_marker("emulated_cuda") is not None
            and "emulated_cuda" not in item.fixturenames
        ):
            # Put it first, so that other fixtures are made within the
            # emulation.
            item.fixturenames.insert(0, "emulated_cuda")


@pytest.fixture
def emulated_cuda(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., Emulation]]:
    """Emulated CUDA devices for the duration of the test: two with 1 GiB each,
    or as pytest.mark.emulated_cuda says.

    emulated_cuda(devices=2, memory="1GiB") emulates others in their place
    until the end of the test, the end of a with block, or close().
    """
    from contextlib import ExitStack

    from pystreams.testing.kit import Emulation

    given = _arguments(
        request.node, "emulated_cuda", lambda: signature(Emulation)
    )
    with ExitStack() as test:

        def emulate(*args: Any, **kwargs: Any) -> Emulation:
            return test.enter_context(Emulation(*args, **kwargs))

        emulate(**(given or {}))
        yield emulate


_HOLDS = pytest.StashKey["Any"]()


@pytest.fixture
def hold(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], _Hold]]:
    """hold(stream) keeps the stream busy until release() is called on the
    object that it returns, or until its with block ends.  At the latest, it
    ends with the test or, under schedules, with each run of the test."""
    from pystreams.testing.kit import Holds

    with Holds() as test:
        request.node.stash[_HOLDS] = test
        yield test.add


@pytest.fixture
def fail() -> Callable[..., None]:
    """fail(stream, error=719) queues work that fails, as
    pystreams.testing.fail does."""
    from pystreams.testing import fail

    return fail


@pytest.fixture
def no_races(request: pytest.FixtureRequest) -> None:
    """Look for races from here to the end of the test and its fixtures."""
    _look_for_races(request.node)
