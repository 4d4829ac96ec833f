"""The plugin of --pystreams-device: it selects the tests that apply to the
backend, runs them under a time limit, and reports which promises hold."""

from __future__ import annotations

import faulthandler
import functools
import importlib
import os
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest

from pystreams import _C

from .busy import Way, find_way
from .device import LIMIT, Device
from .limits import Hung, Stuck, call_within_limit, last_resort

USAGE = """\
the conformance suite needs a device type, and the module that registers it:
  pytest --pyargs pystreams.testing --pystreams-device mtia \
--pystreams-plugin fake_device"""

NULL = " is NULL"
GROUPS = [
    "status",
    "devices",
    "streams",
    "partitions",
    "events",
    "timing",
    "ipc",
    "memory",
    "work",
    "notifications",
    "gates",
    "waits",
    "capture",
    "graphs",
    "times",
    "activities",
    "faults",
    "shutdown",
]


class Claim(NamedTuple):
    """The sentence of the contract that a test is for."""

    group: str
    member: str
    sentence: str


def conformance(config: pytest.Config) -> Conformance:
    """Return the plugin of a run with --pystreams-device."""
    for plugin in config.pluginmanager.get_plugins():
        if isinstance(plugin, Conformance):
            return plugin
    raise pytest.UsageError(USAGE)


def group_of(item: pytest.Item) -> str:
    return item.path.stem.removeprefix("test_")


def order(item: pytest.Item) -> int:
    """Return the place of a test; groups come in the order of bring-up."""
    group = group_of(item)
    return GROUPS.index(group) if group in GROUPS else len(GROUPS)


def reasons(absent: set[str]) -> str:
    """Return why tests are absent, with all NULL members in one phrase."""
    null = sorted(r.split()[0] for r in absent if r.endswith(NULL))
    said = sorted(r for r in absent if not r.endswith(NULL))
    if null:
        said.append(
            ", ".join(null) + (NULL if len(null) == 1 else " are NULL")
        )
    return "; ".join(said)


class Conformance:
    """One run of the suite, on one device type."""

    def __init__(self, config: pytest.Config) -> None:
        name = config.getoption("pystreams_device")
        module = config.getoption("pystreams_plugin")
        try:
            plugin = importlib.import_module(module) if module else None
        except Exception as error:
            raise pytest.UsageError(
                f"--pystreams-plugin {module} cannot be imported: "
                f"{type(error).__name__}: {error}"
            ) from error
        backends = dict(_C.backends())
        if name not in backends:
            raise pytest.UsageError(
                f"no backend is registered as {name!r}, only "
                f"{' and '.join(backends)}; --pystreams-plugin names the "
                "module that registers it"
            )
        reason = _C.unavailable_reason(backends[name])
        if reason is not None:
            raise pytest.UsageError(f"{name} is not available: {reason}")
        # Memory that is pinned for "cpu" belongs to the default accelerator.
        # So make the device type under test the accelerator.
        os.environ["PYSTREAMS_ACCELERATOR"] = name
        self.device: Device = Device(name)
        self.module = module
        self.way: Way | None = find_way(self.device, plugin)
        self._claims: dict[str, Claim] = {}
        self._absent: dict[str, str] = {}
        self._broken: dict[str, str] = {}
        self._held: set[str] = set()
        capture: Any = config.pluginmanager.getplugin("capturemanager")
        with (
            capture.global_and_fixture_disabled() if capture else nullcontext()
        ):
            self._stderr = os.dup(2)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=order)
        for item in items:
            mark = item.get_closest_marker("pystreams_contract")
            if mark is None or not isinstance(item, pytest.Function):
                continue
            group = group_of(item)
            member, sentence, *needs = mark.args
            self._claims[item.nodeid] = Claim(group, member, sentence)
            for name in (member, *needs):
                if not self.device.members.get(name, True):
                    is_null = "" if name.endswith(LIMIT) else NULL
                    reason = f"absent: {name}{is_null}"
                    item.add_marker(pytest.mark.skip(reason=reason))
            item.obj = self._limited(item, item.obj)

    def call(
        self,
        session: pytest.Session,
        function: Callable[..., object],
        rescue: Callable[[], None] | None = None,
        **arguments: Any,
    ) -> None:
        """Call a function that may hang; end the run if it is stuck."""
        __tracebackhide__ = True
        try:
            call_within_limit(function, rescue, **arguments)
        except Hung as hung:
            if isinstance(hung, Stuck):
                session.shouldstop = "the device hangs, and the rest waits"
            pytest.fail(str(hung), pytrace=False)

    def _limited(self, item: pytest.Function, function: Any) -> Any:
        """Return the test, to run in a thread of its own."""

        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            __tracebackhide__ = True
            busy = getattr(item, "busy", None)
            rescue = busy.open if busy is not None else None
            last_resort(self._stderr)
            self.call(item.session, function, rescue, **arguments)

        return run

    def pytest_sessionfinish(self) -> None:
        faulthandler.cancel_dump_traceback_later()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        node = report.nodeid
        if node not in self._claims:
            return
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash else str(report.longrepr)
            self._broken.setdefault(node, message)
        elif report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self._absent[node] = reason.removeprefix("absent: ")
        elif report.when == "call":
            self._held.add(node)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        if not self._claims:
            return
        out, device = terminalreporter, self.device
        count = f"{device.count} device{'s' if device.count > 1 else ''}"
        name = _C.device_properties(device.type, 0)["name"]
        out.section(f"the contract on {device.name}: {count}, {name}")
        for group in GROUPS:
            self._write_group(out, group)
        for node, message in self._broken.items():
            self._write_broken(out, node, message)

    def _write_group(self, out: pytest.TerminalReporter, group: str) -> None:
        nodes = {n for n, c in self._claims.items() if c.group == group}
        broken = nodes & self._broken.keys()
        held = (nodes & self._held) - broken
        absent = nodes & self._absent.keys()
        unrun = nodes - broken - held - absent
        if not nodes:
            return
        column = 9
        out.write(f"{group:{column}}")
        for some, name, markup in (
            (held, "hold", {"green": True}),
            (broken, "BROKEN", {"red": True, "bold": True}),
            (unrun, "not run", {"yellow": True}),
            (absent, "absent", {}),
        ):
            if some:
                text = f"{len(some):4} {name}"
                out.write(text, **markup)
                column += len(text)
        if absent:
            text = reasons({self._absent[node] for node in absent})
            lines = textwrap.wrap(text, 79 - column - 2)
            out.write(": " + ("\n" + " " * (column + 2)).join(lines))
        out.line("")

    def _write_broken(
        self, out: pytest.TerminalReporter, node: str, message: str
    ) -> None:
        claim = self._claims[node]
        out.line("")
        out.line(f"BROKEN {claim.member}", red=True, bold=True)
        for text in (f'"{claim.sentence}"', message.partition("\n")[0]):
            out.line(textwrap.indent(textwrap.fill(text, 74), "    "))
        out.line(f"    {node}")
