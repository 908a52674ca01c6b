"""The tests of ``everyrank kill-matrix``: each rogue and control on the core cases of the contracts."""

from __future__ import annotations

import pytest
from everyrank.suites.collect.items import parameter
from everyrank.suites.engine.case import Case
from everyrank.suites.errors import DeclarationError
from everyrank.suites.kill import sample
from everyrank.suites.kill.blind_spots import requested_ledger, tried_under
from everyrank.suites.kill.matrix import drawn, requested, tried
from everyrank.suites.options import PLAN


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    ledger, plan = requested_ledger(), metafunc.config.stash.get(PLAN, None)
    try:
        if ledger:
            tables = [tried_under(name, ledger) for name in requested()]
        elif plan is not None:
            tables = [drawn(name, plan) for name in requested()]
        else:
            tables = [tried(name, sample.requested()) for name in requested()]
    except DeclarationError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    params = [parameter(case, id=f"{case.subject.name}/{case.id}") for table in tables for case in table]
    metafunc.parametrize("case", params, indirect=True)


def test_kill(case: Case) -> None:
    """Run the case, which may fail: the matrix says whether it should."""
    case.run(may_fail=True)
