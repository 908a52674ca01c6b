"""What the kit's own tests share: an inner pytest a module."""

from __future__ import annotations

import pytest

from tests.inner import Project


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """An empty project of one test's own."""
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def module_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One project for all tests of a module: write it once, run it once."""
    return Project(tmp_path_factory.mktemp("project"))
