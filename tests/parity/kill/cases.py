"""The tests of the table: ``everyrank kill-matrix --contract parity``, or pytest alone, which runs all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from everyrank.suites.kill import sample

from tests.parity.kill.rows import Row, sampled, shown
from tests.parity.kill.table import FAULT, FOUND
from tests.parity.kill.table import Table as table

__all__ = ["table"]

pytestmark = pytest.mark.filterwarnings("ignore:.*does not define an element-wise:UserWarning")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = [pytest.param(row, marks=pytest.mark.world(row.size), id=row.id) for row in sampled(sample.requested())]
    metafunc.parametrize("row", given)


def test_kill(row: Row, process_group: Any, record_property: Callable[[str, object], None]) -> None:
    """An honest subject is silent, and a rogue is found where it says."""
    report = row.run()
    record_property(FOUND, "silent" if report.passed else shown(report.findings[0]))
    if fault := row.fault(report):
        record_property(FAULT, fault)
    assert not fault, f"{row.name} {fault}\n{report.text()}"
