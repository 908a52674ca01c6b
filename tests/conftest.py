"""What the kit's own tests share: an inner pytest a module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chromium import browser as browser
from tests.inner import Project


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """An empty project of one test's own."""
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def module_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One project for all tests of a module: write it once, run it once."""
    return Project(tmp_path_factory.mktemp("project"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under a plain ``-n``, a module's tests go to one worker: they share the module's inner run."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log) if config.option.dist == "load" and _runs_these(config) else None


def _runs_these(config: pytest.Config) -> bool:
    """pytest reads this file for ``--pyargs`` too, if it is called beside it: for the kill matrix, say."""
    here = Path(__file__).parent
    paths = [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]
    return any(path.is_relative_to(here) or here.is_relative_to(path) for path in paths)
