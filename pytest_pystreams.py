"""The options of pystreams' conformance suite, as pytest finds them.

Nothing of pystreams is imported unless --pystreams-device is given: pytest
reads this in every project, before a conftest can set PYSTREAMS_* variables.
"""

from __future__ import annotations

import pytest


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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "pystreams_contract(member, sentence, *needs): what a test shows of "
        "<pystreams/backend.h>",
    )
    if config.getoption("pystreams_device"):
        from pystreams.testing import plugin

        config.pluginmanager.register(plugin.Conformance(config))
