"""Fixtures that the project's own tests share, and the groups of tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests import chromium, groups
from tests.chromium import browser as browser
from tests.forked import ForkServers
from tests.inner import Project, outer_environment

#: What ``make kills`` hunts: a project of its own, which pytest is called in.
collect_ignore = ["kills/suite"]


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[ForkServers]:
    """Return the processes from which inner runs are forked."""
    servers = ForkServers(outer_environment())
    yield servers
    servers.close()


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory, fork_servers: ForkServers) -> Project:
    """Return an empty project for one test alone."""
    return Project(tmp_path_factory.mktemp("project"), fork_servers)


@pytest.fixture(scope="module")
def module_project(tmp_path_factory: pytest.TempPathFactory, fork_servers: ForkServers) -> Project:
    """Return one project for all tests of a module, so that they share a single inner run."""
    return Project(tmp_path_factory.mktemp("project"), fork_servers)


def pytest_addoption(parser: pytest.Parser) -> None:
    groups.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"group(name): the test is in a group: {', '.join(groups.GROUPS)}")
    config.addinivalue_line("markers", "smoke: the test runs with those of no group, though it is in one")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are no part of an id: gzip writes the time into them, and then xdist's workers have different tests."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    groups.choose(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", {})
    if groups.OUTPUT in output:
        groups.remember(node.config, Counter(output[groups.OUTPUT]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out := config.stash.get(groups.LEFT_OUT, None):
        terminalreporter.write_line(groups.line(left_out))
    if missed := chromium.line(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(missed)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Send all tests of a module to one worker under a plain ``-n``: they share the module's inner run."""
    from xdist.scheduler import LoadFileScheduling

    shared = config.option.dist == "load" and groups.runs_this_folder(config)
    return LoadFileScheduling(config, log) if shared else None
