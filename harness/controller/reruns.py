"""Lets pytest-rerunfailures decide whether a test on many ranks runs again (``--reruns``, the mark ``flaky``).

Its hook runs pytest's three phases of a test as often as it wants, by a function that it has imported from pytest. In
this process that function gives a multi-rank test a world instead. So all options and conditions of the plugin count.
"""

from __future__ import annotations

import builtins
import contextlib
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, cast

import pluggy
import pytest
from everyrank.errors import RankLost, WorldTimeout
from everyrank.model.outcome import RULES

#: Runs a test once, on a world, and returns its reports.
RunOnce = Callable[[pytest.Item, pytest.Item | None], list[pytest.TestReport]]

#: The function of pytest by which the plugin runs a test.
_RUNS = "runtestprotocol"


class Reruns:
    """The plugin pytest-rerunfailures, if this run has it."""

    def __init__(self, config: pytest.Config, run_once: RunOnce) -> None:
        manager = config.pluginmanager
        plugin = manager.get_plugin("rerunfailures") or manager.get_plugin("pytest_rerunfailures")  # the latter by -p
        self._plugin: ModuleType | None = plugin if isinstance(plugin, ModuleType) else None
        self._run_once = run_once
        if self._plugin is not None and not _fits(self._plugin):
            self._plugin = None
            text = "this version of pytest-rerunfailures has no effect on multi-rank tests; version 16 has"
            config.issue_config_time_warning(pytest.PytestWarning(f"everyrank: {text}"), stacklevel=2)

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test as often as the plugin wants, and log its reports. Return whether the plugin wants it at all."""
        if self._plugin is None:
            return False
        with _in_place(self._plugin, self._run_phases):
            return bool(self._plugin.pytest_runtest_protocol(item=item, nextitem=nextitem))

    def _run_phases(
        self, item: pytest.Item, nextitem: pytest.Item | None = None, log: bool = False
    ) -> list[pytest.TestReport]:
        """Do for the plugin what pytest's function does: the plugin's hooks see each phase that ends."""
        return [self._seen(item, report) for report in self._run_once(item, nextitem)]

    def _seen(self, item: pytest.Item, report: pytest.TestReport) -> pytest.TestReport:
        manager = pluggy.PluginManager("pytest")
        manager.add_hookspecs(_Phase)
        manager.register(_Ended(report))
        manager.register(self._plugin)
        seen: pytest.TestReport = manager.hook.pytest_runtest_makereport(item=item, call=_call(report))
        return seen


class _Phase:
    @pytest.hookspec(firstresult=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any: ...


class _Ended:
    """Makes a report that exists already."""

    def __init__(self, report: pytest.TestReport) -> None:
        self._report = report

    @pytest.hookimpl
    def pytest_runtest_makereport(self) -> pytest.TestReport:
        return self._report


def _fits(plugin: ModuleType) -> bool:
    return callable(getattr(plugin, "pytest_runtest_protocol", None)) and callable(getattr(plugin, _RUNS, None))


@contextlib.contextmanager
def _in_place(plugin: ModuleType, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(plugin, _RUNS)
    setattr(plugin, _RUNS, function)
    try:
        yield
    finally:
        setattr(plugin, _RUNS, before)


def _call(report: pytest.TestReport) -> pytest.CallInfo[None]:
    """Return the call of a phase that ended as this report says: conditions of the plugin ask for the exception."""

    def phase() -> None:
        if report.failed:
            raise _error(report)

    assert report.when is not None
    return pytest.CallInfo.from_call(phase, report.when)


def _error(report: pytest.TestReport) -> BaseException:
    """Make an exception like the one that a rank has raised: its process may be gone, and texts are all that is left.

    A builtin exception has its own class. A class of another module only has its name.
    """
    rule = dict(report.user_properties).get("verdict", "")
    message = str(getattr(getattr(report.longrepr, "reprcrash", None), "message", None) or report.longrepr)
    ended = {"crash": RankLost, "timeout": WorldTimeout}.get(RULES.get(str(rule), ""))
    if ended is not None:
        return ended(message)
    named = re.match(r"(?:\[[^]]*\] |\(passes alone\) )*(?:\w+\.)*([A-Za-z_]\w*)(?:: (.*))?$", message, re.DOTALL)
    if named is None:
        return AssertionError(message)
    name, text = named.group(1), named.group(2) or ""
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception):
        with contextlib.suppress(TypeError):  # UnicodeDecodeError takes more than a text
            return cast(BaseException, known(text))
    return cast(BaseException, type(name, (Exception,), {})(text))
