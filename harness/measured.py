"""Coverage in ranks: each measures itself as the controller does, and what it found is added to the controller's.

So both ``pytest --cov`` and ``coverage run -m pytest`` have the totals of all ranks without combining anything. A
rank saves after each test, since it may not live to the end of the next.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

#: What the controller's measuring is told by; a rank's is to be alike.
_ALIKE = (
    "run:branch",
    "run:concurrency",
    "run:context",
    "run:core",
    "run:cover_pylib",
    "run:dynamic_context",
    "run:include",
    "run:omit",
    "run:plugins",
    "run:relative_files",
    "run:source",
    "run:source_pkgs",
    "run:source_dirs",
    "run:timid",
)
#: A rank sees a part of the code, and saves by itself.
_APART: dict[str, Any] = {
    "run:parallel": False,
    "run:patch": [],
    "run:sigterm": False,
    "run:disable_warnings": [
        "already-imported",
        "module-not-imported",
        "module-not-measured",
        "no-data-collected",
    ],
}
_PREFIX = "coverage-"


def running() -> Any:
    """The coverage.Coverage that measures this process, or nothing."""
    coverage = sys.modules.get("coverage")
    return coverage.Coverage.current() if coverage is not None else None


def settings(folder: str) -> dict[str, Any]:
    """How to measure as this process is measured, for another process; empty, if it is not."""
    cov = running()
    if cov is None:
        return {}
    alike = {}
    for name in _ALIKE:
        with contextlib.suppress(Exception):  # a version that does not have it
            alike[name] = cov.get_option(name)
    return {"config_file": cov.config.config_file or False, "alike": alike, "folder": folder}


class RankCoverage:
    """Measures one rank."""

    def __init__(self, told: dict[str, Any]) -> None:
        import coverage

        while (inherited := running()) is not None:
            inherited.stop()  # the controller's, as of the fork, or what coverage has started by itself
            if running() is inherited:
                break
        path = os.path.join(told["folder"], f"{_PREFIX}{os.getpid()}")
        self._cov: Any = coverage.Coverage(data_file=path, config_file=told["config_file"])
        for name, value in {**told["alike"], **_APART}.items():
            if value is not None:
                with contextlib.suppress(Exception):
                    self._cov.set_option(name, value)
        self._cov.start()

    def take_over(self, config: pytest.Config) -> None:
        """pytest-cov's switches, for contexts and for what is not to be measured, work on this one."""
        manager = config.pluginmanager
        if controller := getattr(manager.get_plugin("_cov"), "cov_controller", None):
            controller.cov = self._cov
        if manager.has_plugin("_cov_contexts"):
            manager.unregister(name="_cov_contexts")
        if config.getoption("cov_context", None) == "test":
            manager.register(_Contexts(self._cov), "everyrank-contexts")

    def save(self) -> None:
        self._cov.save()


class _Contexts:
    """Which test, and which phase of it, a line was run by: as pytest-cov calls it."""

    def __init__(self, cov: Any) -> None:
        self._cov = cov

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._cov.switch_context(f"{item.nodeid}|setup")

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._cov.switch_context(f"{item.nodeid}|run")

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self._cov.switch_context(f"{item.nodeid}|teardown")


_started: list[RankCoverage] = []


def start(told: dict[str, Any]) -> None:
    """In a clean interpreter, before it imports anything of the user's."""
    if told:
        _started.append(RankCoverage(told))


def of_this_rank(config: pytest.Config, folder: str) -> RankCoverage | None:
    """This process's own; started now, if it was forked from one that is measured."""
    if not _started and (told := settings(folder)):
        start(told)
    if not _started:
        return None
    _started[-1].take_over(config)
    return _started[-1]


def collect(folder: str, tell: Callable[[str], None], pids: Iterable[int | None] | None = None) -> None:
    """Add what these ranks have saved, or all of them, to what this process has measured itself."""
    cov = running()
    if cov is None:
        return
    from coverage import CoverageData
    from coverage.exceptions import CoverageException

    names = _saved(folder) if pids is None else [f"{_PREFIX}{pid}" for pid in pids]
    for name in names:
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            continue
        data = CoverageData(basename=path)
        try:
            data.read()
            cov.get_data().update(data)
        except (CoverageException, sqlite3.Error) as error:
            tell(f"what a rank saved of its coverage cannot be read, since it died in the midst of it: {error}")
        finally:
            data.close()
            with contextlib.suppress(OSError):
                os.unlink(path)


def _saved(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.startswith(_PREFIX) and name[len(_PREFIX) :].isdigit()]
    except OSError:
        return []
