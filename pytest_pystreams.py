"""What pystreams adds to pytest: the conformance suite of a backend, and tests
that look for races.

Nothing of pystreams is imported unless it is asked for: pytest reads this in
every project, before a conftest can set PYSTREAMS_* variables.
"""

from __future__ import annotations

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pystreams", "conformance of a pystreams backend")
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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "pystreams_contract(member, sentence, *needs): what a test shows of "
        "<pystreams/backend.h>",
    )
    config.addinivalue_line(
        "markers", "races: run the test in pystreams.races.detect()"
    )
    if config.getoption("pystreams_device"):
        from pystreams.testing import plugin

        config.pluginmanager.register(plugin.Conformance(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    looked = item.config.getoption("pystreams_races") or (
        item.get_closest_marker("races") is not None
    )
    if not looked:
        return (yield)
    from pystreams import races

    with races.detect():
        return (yield)


@pytest.fixture
def no_races() -> Iterator[None]:
    """Look for races from here to the end of the test and its fixtures."""
    from pystreams import races

    with races.detect():
        yield
