"""A world that is only slow is left alone, whatever ranks wait for: the tests of `samples/slow_but_right.py`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.inner import Inner, Project

SAMPLE = Path(__file__).parents[1] / "samples" / "slow_but_right.py"


@pytest.fixture(scope="module")
def slow(module_project: Project) -> Inner:
    """One run, in which the workers sleep at the same time."""
    module_project.write("test_inner.py", SAMPLE.read_text())
    return module_project.run("--leaks=off", "-n", "4")


@pytest.mark.parametrize("name", re.findall(r"def (test_\w+)", SAMPLE.read_text()))
def test_a_world_that_is_only_slow_is_left_alone(slow: Inner, name: str) -> None:
    found = {nodeid: test for nodeid, test in slow.tests.items() if re.search(rf"::{name}(\[|$)", nodeid)}
    assert found, slow.out[-3000:]
    assert {nodeid: test.text for nodeid, test in found.items() if test.outcome != "passed"} == {}
