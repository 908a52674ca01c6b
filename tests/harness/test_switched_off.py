"""``-p no:everyrank`` switches everyrank off; ``-p everyrank`` switches it on if pytest loads no plugin itself."""

from __future__ import annotations

import pytest

from tests.engines import one_run
from tests.inner import Inner, Project

SOURCE = """
    import pytest

    @pytest.mark.world(2)
    def test_marked(): pass

    def test_has_a_world(world): pass

    @pytest.fixture
    def device(): return "mine"

    def test_has_its_own_device(device): pass

    def test_plain(): pass
"""


off = one_run(SOURCE, "-p", "no:everyrank", "-rs", "--strict-markers")


def test_multi_rank_tests_are_skipped(off: Inner) -> None:
    outcomes = {"test_marked": "skipped", "test_has_a_world": "skipped"}
    assert off.outcomes() == {**outcomes, "test_has_its_own_device": "passed", "test_plain": "passed"}


def test_the_reason_is_given(off: Inner) -> None:
    assert "it is multi-rank, and everyrank is switched off" in off["test_marked"].text


@pytest.fixture
def without_autoload(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    project.write("test_inner.py", SOURCE)
    environment = {**project.environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    monkeypatch.setattr(project, "environment", lambda: environment)
    return project


def test_the_plugin_that_is_named_brings_all_of_everyrank(without_autoload: Project) -> None:
    inner = without_autoload.run("-p", "everyrank", "--run-file=run.jsonl", "--law=none")
    assert set(inner.outcomes().values()) == {"passed"}
