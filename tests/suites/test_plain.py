"""The plainest correct implementations are green, with no more than they declare to lack, in any order of cases."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.inner import Project

PLAIN = Path(__file__).parents[1] / "samples" / "plain"

#: For each contract its subjects: the name of the module, of the class, and what else is declared.
SUBJECTS = {
    "sharded-optimizer": (
        ("sharded_by_shard", "ByShard", "lacks=['whole-tensor'], declares={'caller-syncs-whole'}"),
        ("sharded_divides", "Divides", "lacks=['whole-tensor']"),
        ("sharded_keeps_wholes", "KeepsWholes", ""),
    ),
    "rpc-optimizer": (
        ("rpc_loop", "Loop", ""),
        ("rpc_wait_all", "WaitsForAll", ""),
        ("rpc_functions", "Functions", ""),
    ),
    "parameter-server": (
        ("server_lock", "LockServer", ""),
        ("server_condition", "ConditionServer", ""),
        ("server_queue", "QueueServer", ""),
    ),
}

_IMPORTS = """
    from everyrank.suites import Subject, conformance
"""

_SUBJECT = """
    from plain.{module} import {name}

    @conformance(Subject("{name}", contract="{contract}", build={name}, {declared}))
    def test_{module}(case): case.run()
"""

_REVERSED = """
    def pytest_collection_modifyitems(items):
        items.reverse()
"""


@pytest.mark.parametrize("contract", SUBJECTS)
def test_plain_implementations_are_green(project: Project, contract: str) -> None:
    shutil.copytree(PLAIN, project.folder / "plain", ignore=shutil.ignore_patterns("__pycache__"))
    subjects = [
        _SUBJECT.format(module=module, name=name, contract=contract, declared=declared)
        for module, name, declared in SUBJECTS[contract]
    ]
    project.write("test_inner.py", "".join([_IMPORTS, *subjects]))
    project.write("conftest.py", _REVERSED)
    inner = project.run("-W", "ignore", "--profile=quick", "test_inner.py")
    assert {name: test.text for name, test in inner.tests.items() if test.outcome not in ("passed", "skipped")} == {}
    for module, _, _ in SUBJECTS[contract]:
        outcomes = [
            test.properties["outcome"] for nodeid, test in inner.tests.items() if f"::test_{module}[" in nodeid
        ]
        assert outcomes.count("pass") > 20
