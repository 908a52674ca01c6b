"""The plainest correct implementations are green, with no more than they declare to lack, in any order of cases."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.inner import InnerTest, Project
from tests.samples.plain.cases import SUBJECTS

_PLAIN = Path(__file__).parents[1] / "samples" / "plain"

#: What has been red for a trainer or a replicate that quick leaves out, and what it stands on.
_CHOSEN = (
    "in-order[equal-shapes-ws2 or state.in-order[ws2 or state.strict[optimizer or state.round-trip[NAdam-ws2 "
    "or init.sync[built-frozen-ws2 or accumulate[sparse-ws2 or parity.models[gaps-ws2 "
    "or crossings[SGD-gaps-sparse-unused-008-ws3 "
    "or crossings[device-unused-fp32-scalar-036-ws2 or unused[last-rank-ws2 or uneven[last-fewer-ws2 "
    "or mean[sparse-sum-ws3 or state-dict[plain-ws2"
)


@pytest.fixture(scope="module")
def cases(module_project: Project) -> list[InnerTest]:
    """The cases in an order that is neither ours nor sorted; the profiles beyond quick are run by hand."""
    shutil.copytree(_PLAIN, module_project.folder / "plain", ignore=shutil.ignore_patterns("__pycache__"))
    always = ("-W", "ignore", "--shuffle=7", "plain/cases.py")
    quick = module_project.run(*always, "--profile=quick")
    chosen = module_project.run(*always, "--profile=full", "-k", _CHOSEN)
    return [*quick.tests.values(), *chosen.tests.values()]


def test_there_are_three_of_each_contract() -> None:
    found = Counter(subject.contract for subject in SUBJECTS.values())
    assert len(found) == 5
    assert set(found.values()) == {3}


@pytest.mark.parametrize("name", SUBJECTS)
def test_it_is_green(cases: list[InnerTest], name: str) -> None:
    mine = [case for case in cases if f"[{SUBJECTS[name].name}/" in case.nodeid]
    assert {case.nodeid: case.text for case in mine if case.outcome in ("failed", "error")} == {}
    assert sum(case.properties["outcome"] == "pass" for case in mine) >= 20
