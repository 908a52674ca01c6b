"""The tests of ``everyrank kill-matrix``: each rogue, and the controls, on the core cases of the contracts."""

from __future__ import annotations

import pytest
from everyrank.suites.case import Case
from everyrank.suites.items import parameter
from everyrank.suites.kill import asked, tried


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    found = [case for name in asked() for case in tried(name)]
    given = [parameter(case, id=f"{case.subject.name}/{case.id}") for case in found]
    metafunc.parametrize("case", given, indirect=True)


def test_kill(case: Case) -> None:
    """Fails where the case does: the matrix says whether it should."""
    case.run()
