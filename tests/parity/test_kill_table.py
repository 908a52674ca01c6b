"""The table of parity in the kill matrix is perfect only if each row was tried and ended as it must."""

from __future__ import annotations

from dataclasses import replace

import pytest
from everyrank.parity.report.report import Finding, Report
from everyrank.suites.kill.sample import PARTS, Sample

from tests.parity.kill.rows import Row, rows
from tests.parity.kill.table import FAULT, FOUND, Table

PART = Sample(3, PARTS, ", by the number of commits, 2")
ALL = {row.id: row for row in rows()}
ROGUE = ALL["rogue-never-syncs-ws2"]
FOUND_THERE = Finding("gradient", "norm.weight", 1, "not-reduced", "is not reduced", 1.0, 1e-8, (0, 1), ("fp64",))
SILENT = Report((), (), 3, 3, (), ("fp64",), 2, 1, "rows")


def _report(row: Row, outcome: str = "passed", **properties: str) -> pytest.TestReport:
    report = pytest.TestReport(
        f"parity/kill/cases.py::test_kill[{row.id}]", ("", 0, ""), {}, outcome, None, "call"  # type: ignore[arg-type]
    )  # fmt: skip
    report.user_properties = [*properties.items()]
    return report


def _table(sample: Sample = PART, lost: str = "") -> Table:
    """Return a table of which each row but one has ended well."""
    table = Table(sample)
    for row in rows():
        if row.id != lost:
            table.pytest_runtest_logreport(_report(row, **{FOUND: "silent"}))
    return table


def test_parts_have_each_row_once() -> None:
    parts = [Table(Sample(number, PARTS)) for number in range(1, PARTS + 1)]
    tried = [fault for part in parts for fault in part.faults]
    assert len(tried) == len(set(tried)) == len(ALL)


def test_a_table_whose_rows_end_well_is_perfect_and_names_its_part() -> None:
    text = _table().text()
    assert "part 3 of 12 of all rows was tried, by the number of commits, 2; --others=all tries all" in text
    assert text.splitlines()[-1].startswith("perfect: ")


def test_a_row_that_was_not_tried_is_a_fault() -> None:
    table = _table(Sample(), ROGUE.id)
    assert table.faults == ["never-syncs at 2 ranks was not tried"]
    assert "perfect" not in table.text()


def test_a_row_that_fails_is_a_fault_in_the_words_of_its_test() -> None:
    table = _table(Sample(), ROGUE.id)
    table.pytest_runtest_logreport(_report(ROGUE, "failed", **{FOUND: "silent", FAULT: "survives"}))
    assert table.faults == ["never-syncs at 2 ranks survives"]


def test_a_row_that_ends_without_a_word_is_a_fault_with_its_verdict() -> None:
    table = _table(Sample(), ROGUE.id)
    table.pytest_runtest_logreport(_report(ROGUE, "failed", verdict="timeout"))
    assert table.faults == ["never-syncs at 2 ranks ends by timeout"]


def test_a_rogue_that_is_not_found_survives() -> None:
    fault = ROGUE.fault(SILENT)
    assert fault == "survives: it must be found as gradient * not-reduced"


def test_a_rogue_that_is_found_as_it_must_be_is_no_fault() -> None:
    assert ROGUE.fault(replace(SILENT, findings=(FOUND_THERE,))) == ""


@pytest.mark.parametrize(
    "wrong", [replace(FOUND_THERE, kind="update"), replace(FOUND_THERE, pattern="stale")], ids=["kind", "pattern"]
)
def test_a_rogue_that_is_found_as_something_else_is_a_fault(wrong: Finding) -> None:
    fault = ROGUE.fault(replace(SILENT, findings=(wrong,)))
    assert fault.startswith(f"is found as {wrong.kind} norm.weight {wrong.pattern}, and must be as gradient")


def test_a_rogue_that_is_found_at_another_tensor_is_a_fault() -> None:
    fussy = replace(ROGUE, rogue=replace(ROGUE.rogue, tensors=("head.*",)))  # type: ignore[type-var]
    assert "must be as gradient head.* not-reduced" in fussy.fault(replace(SILENT, findings=(FOUND_THERE,)))


def test_an_honest_subject_that_is_accused_is_a_fault() -> None:
    fault = ALL["honest-ddp-ws2"].fault(replace(SILENT, findings=(FOUND_THERE,)))
    assert fault == "is honest, but gradient of `norm.weight` is not reduced (step 1, fp64)"
