"""The reports' pytest plugin: hooks and options only. The slow imports wait for the first multi-rank test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from everyrank.reports.live.live_run import RunReporter

_NAME = "everyrank-run"
#: The content of a worker's file until it has collected a multi-rank test.
_NOTHING = b"none"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("everyrank-reports", "everyrank: reports of a run")
    group.addoption(
        "--run-file", metavar="PATH", default=None, help="write the outcome of each multi-rank test to this file"
    )
    group.addoption(
        "--shard",
        metavar="K/N",
        default=None,
        help="run part K of N of the tests; `everyrank merge` makes one run file of the run files of all N",
    )
    group.addoption(
        "--shard-times",
        metavar="RUN",
        default=None,
        help="balance the shards by the times in this run file of an earlier run; all shards need the same file",
    )
    parser.addini("everyrank_run_file", "the path of the run file, relative to pytest's root folder", default="")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("shard") is not None or config.getoption("shard_times") is not None:
        from everyrank.reports.shards.choose import asked

        asked(config)
    path = _tests_path(config)
    if path is not None:
        path.write_bytes(_NOTHING)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if _prints(config) and not _only_shows(config) and (config.getoption("run_file") or _ini(config)):
        _run(config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    yield  # all filters have chosen by now
    if config.getoption("shard") is None or config.pluginmanager.has_plugin("everyrank-spawned"):
        return
    from everyrank.reports.shards import choose

    asked = choose.asked(config)
    assert asked is not None
    choose.choose(config, items, asked)
    if (path := _tests_path(config)) is not None:
        from everyrank.reports.live.gather import Collected, leave

        leave(Collected({"shard": config.stash[choose.SHARD]}, [], []), path)  # it may have no multi-rank test
    elif (reporter := config.pluginmanager.get_plugin(_NAME)) is not None:
        reporter.gathering.run["shard"] = config.stash[choose.SHARD]


@pytest.hookimpl(optionalhook=True)
def pytest_everyrank_collected(config: pytest.Config, items: list[pytest.Item], run: dict[str, Any]) -> None:
    from everyrank.reports.live.gather import collected, leave

    if (shard := _shard(config)) is not None:
        run["shard"] = shard
    if (path := _tests_path(config)) is not None:
        leave(collected(items, run), path)
    elif _prints(config) and not _only_shows(config):
        _run(config).expect(collected(items, run))


@pytest.hookimpl(optionalhook=True)
def pytest_everyrank_result(item: pytest.Item, result: dict[str, Any], reports: list[pytest.TestReport]) -> None:
    from everyrank.reports.live.gather import attach

    attach(result, reports)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    factory = getattr(node.config, "_tmp_path_factory", None)
    if factory is not None:
        name = f"everyrank-{uuid.uuid4().hex}.json"
        node.workerinput["everyrank_collected"] = os.path.join(factory.getbasetemp(), name)
    elif node.config.getoption("run_file") or _ini(node.config):
        raise pytest.UsageError("--run-file: with pytest-xdist it needs pytest's temp folder: leave out -p no:tmpdir")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    file = node.workerinput.get("everyrank_collected")
    if file is None:
        return
    path = Path(file)
    if path.exists() and path.read_bytes() == _NOTHING:
        path.unlink()
        return
    from everyrank.reports.live.gather import fetch

    _run(node.config).expect_of_worker(fetch(path, ids))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.getoption("shard") is not None:
        shard = _shard(session.config)
        if shard is not None and shard["all_tests"] and not shard["tests"]:
            session.exitstatus = pytest.ExitCode.OK  # there are fewer tests than shards: no fault of this machine


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("shard") is not None and (shard := _shard(config)) is not None:
        from everyrank.reports.shards.choose import text

        terminalreporter.write_line(text(shard))


def _shard(config: pytest.Config) -> dict[str, Any] | None:
    """Return the shard that runs, as plain data, as soon as it is known: here, or in the workers of pytest-xdist."""
    if config.getoption("shard") is None:
        return None
    from everyrank.reports.shards.choose import SHARD

    reporter: RunReporter | None = config.pluginmanager.get_plugin(_NAME)
    of_worker = None if reporter is None else reporter.gathering.run.get("shard")
    return config.stash.get(SHARD, of_worker)


def _run(config: pytest.Config) -> RunReporter:
    """Return the reporter of this session."""
    known: RunReporter | None = config.pluginmanager.get_plugin(_NAME)
    if known is not None:
        return known
    from everyrank.reports.live import live_run

    reporter = live_run.RunReporter(config, live_run.run_file_path(config))
    config.pluginmanager.register(reporter, _NAME)
    return reporter


def _ini(config: pytest.Config) -> bool:
    return bool(config.getini("everyrank_run_file"))


def _tests_path(config: pytest.Config) -> Path | None:
    """In a worker of pytest-xdist, return the file in which its controller expects the collected tests."""
    file = getattr(config, "workerinput", {}).get("everyrank_collected")
    # On another host that folder does not exist: the controller gets only the ids.
    return Path(file) if file and os.path.isdir(os.path.dirname(file)) else None


def _prints(config: pytest.Config) -> bool:
    """Return whether this is the process that a person called: no worker, and no rank."""
    return not hasattr(config, "workerinput") and not config.pluginmanager.has_plugin("everyrank-spawned")


def _only_shows(config: pytest.Config) -> bool:
    shows = ("collectonly", "showfixtures", "show_fixtures_per_test")
    return any(config.getoption(name, False) for name in shows)
