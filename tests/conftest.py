"""Fixtures that the project's own tests share: a project in which to run an inner pytest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import browser as browser
from tests.forked import ForkServers
from tests.inner import Project, outer_environment


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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Send all tests of a module to one worker under a plain ``-n``: they share the module's inner run."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log) if config.option.dist == "load" and _runs_this_folder(config) else None


def _runs_this_folder(config: pytest.Config) -> bool:
    """Return whether the run is one of tests/.

    pytest reads this file for ``--pyargs`` too if it is started in the folder above, as the kill matrix is.
    """
    here = Path(__file__).parent
    paths = [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]
    return any(path.is_relative_to(here) or here.is_relative_to(path) for path in paths)
