"""Coverage in ranks: each rank measures itself as the controller does, and its data is added to the controller's.

So both ``pytest --cov`` and ``coverage run -m pytest`` report the totals of all ranks, without ``coverage combine``.
A rank saves its data after each test, since it may not live to the end of the next.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

#: The options of coverage that a rank takes from the controller.
_SHARED_OPTIONS = (
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
#: The options that differ in a rank: it runs only a part of the code, and saves its data itself.
_RANK_OPTIONS: dict[str, Any] = {
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
    """Return the coverage.Coverage that measures this process, or None."""
    coverage = sys.modules.get("coverage")
    return coverage.Coverage.current() if coverage is not None else None


def settings(folder: str) -> dict[str, Any]:
    """Return the settings with which a rank measures as this process does; empty if this process is not measured."""
    cov = running()
    if cov is None:
        return {}
    shared = {}
    for name in _SHARED_OPTIONS:
        with contextlib.suppress(Exception):  # a version that does not have it
            shared[name] = cov.get_option(name)
    return {"config_file": cov.config.config_file or False, "options": shared, "folder": folder}


class RankCoverage:
    """Measures the coverage of one rank."""

    def __init__(self, coverage_settings: dict[str, Any]) -> None:
        import coverage

        while (inherited := running()) is not None:
            inherited.stop()  # the controller's, copied by the fork, or one that coverage started automatically
            if running() is inherited:
                break
        path = os.path.join(coverage_settings["folder"], f"{_PREFIX}{os.getpid()}")
        self._cov: Any = coverage.Coverage(data_file=path, config_file=coverage_settings["config_file"])
        for name, value in {**coverage_settings["options"], **_RANK_OPTIONS}.items():
            if value is not None:
                with contextlib.suppress(Exception):
                    self._cov.set_option(name, value)
        self._cov.start()

    def take_over(self, config: pytest.Config) -> None:
        """Let pytest-cov's contexts and its exclusions act on this measurement."""
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
    """Sets the context, the test and its phase, under the names that pytest-cov uses."""

    def __init__(self, cov: Any) -> None:
        self._cov = cov

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._switch(f"{item.nodeid}|setup")

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._switch(f"{item.nodeid}|run")

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self._switch(f"{item.nodeid}|teardown")

    def _switch(self, context: str) -> None:
        from coverage.exceptions import CoverageException

        with contextlib.suppress(CoverageException):  # pytest-cov has stopped it: the test has the mark no_cover
            self._cov.switch_context(context)


_started: list[RankCoverage] = []


def start(coverage_settings: dict[str, Any]) -> None:
    """Start measuring, if there are settings. A clean interpreter does this before it imports the user's code."""
    if coverage_settings:
        _started.append(RankCoverage(coverage_settings))


def of_this_rank(config: pytest.Config, folder: str) -> RankCoverage | None:
    """Return this rank's measurement, or None. Start it now if the rank was forked from a measured process."""
    if not _started and (coverage_settings := settings(folder)):
        start(coverage_settings)
    if not _started:
        return None
    _started[-1].take_over(config)
    return _started[-1]


def collect(folder: str, notify: Callable[[str], None], pids: Iterable[int | None] | None = None) -> None:
    """Add the data that these ranks saved, or all ranks, to this process's own coverage."""
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
            notify(f"a rank died while saving its coverage; that data is lost: {error}")
        finally:
            data.close()
            with contextlib.suppress(OSError):
                os.unlink(path)


def _saved(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.startswith(_PREFIX) and name[len(_PREFIX) :].isdigit()]
    except OSError:
        return []
