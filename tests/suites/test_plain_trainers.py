"""The plainest correct trainers and replicates, written from the documents alone, keep what they claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inner import Inner, Project

_PLAIN = Path(__file__).parent.parent / "samples" / "plain"
_FILES = sorted([*_PLAIN.glob("trainer_*.py"), *_PLAIN.glob("replicate_*.py")])

_TEST = """
    from everyrank.suites import conformance
    from plain_{name} import SUBJECT

    @conformance(SUBJECT)
    def test_{name}(case): case.run()
"""

#: What has been red for one of them, and what it stands on. All profiles are run by hand if a law changes.
_CHOSEN = (
    "in-order[equal-shapes-ws2 or state.in-order[ws2 or state.strict[optimizer or state.round-trip[NAdam-ws2 "
    "or init.sync[built-frozen-ws2 or accumulate[sparse-ws2 or parity.models[gaps-ws2 "
    "or crossings[SGD-gaps-sparse-unused-008-ws3 "
    "or crossings[device-unused-fp32-scalar-036-ws2 or unused[last-rank-ws2 or uneven[last-fewer-ws2 "
    "or mean[sparse-sum-ws3 or state-dict[plain-ws2"
)


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    for file in _FILES:
        module_project.write(f"plain_{file.stem}.py", file.read_text())
        module_project.write(f"test_{file.stem}.py", _TEST.format(name=file.stem))
    return module_project.run("-W", "ignore", "--profile=full", "-k", _CHOSEN)


def test_there_are_three_of_a_contract() -> None:
    names = [file.stem.partition("_")[0] for file in _FILES]
    assert {name: names.count(name) for name in names} == {"trainer": 3, "replicate": 3}


@pytest.mark.parametrize("name", [file.stem for file in _FILES])
def test_it_is_green(inner: Inner, name: str) -> None:
    mine = {nodeid: case for nodeid, case in inner.tests.items() if nodeid.startswith(f"test_{name}.py")}
    assert len(mine) >= 5
    assert {nodeid: case.text for nodeid, case in mine.items() if case.outcome in ("failed", "error")} == {}
    assert sum(case.properties["outcome"] == "pass" for case in mine.values()) >= 3
