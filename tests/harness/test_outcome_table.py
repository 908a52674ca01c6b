"""The outcome of a test and of a case, as a table."""

from __future__ import annotations

import pytest
from everyrank.model.outcome import ENDINGS, NOT_TRIED, RED, PhaseEnd, case_ending, ending

SETUP, CALL, TEARDOWN = (PhaseEnd(when, "passed") for when in ("setup", "call", "teardown"))


def failed(when: str, filed: str = "") -> PhaseEnd:
    return PhaseEnd(when, "failed", filed=filed)


def filed(outcome: str) -> list[PhaseEnd]:
    return [SETUP, PhaseEnd("call", "passed", filed=outcome), PhaseEnd("teardown", "passed", filed=outcome)]


XFAILED = PhaseEnd("call", "skipped", expected=True)


@pytest.mark.parametrize(
    ("rule", "phases", "expected"),
    [
        ("passed", [SETUP, CALL, TEARDOWN], "pass"),
        ("failed", [SETUP, failed("call"), TEARDOWN], "fail"),
        ("failed", [failed("setup"), TEARDOWN], "error"),
        ("failed", [SETUP, CALL, failed("teardown")], "error"),
        ("deadline", [SETUP, failed("call"), TEARDOWN], "timeout"),
        ("deadlock", [SETUP, failed("call"), TEARDOWN], "timeout"),
        ("lost", [SETUP, failed("call"), TEARDOWN], "crash"),
        ("interrupted", [SETUP, failed("call"), TEARDOWN], "interrupted"),
        ("launcher lost", [SETUP, failed("call"), TEARDOWN], "crash"),
        ("silent", [SETUP, failed("call"), TEARDOWN], "crash"),
        ("not run", [failed("setup"), TEARDOWN], "error"),
        ("different items", [failed("setup"), TEARDOWN], "error"),
        ("refused", [failed("setup"), TEARDOWN], "error"),
        ("strict xpass", [SETUP, failed("call"), TEARDOWN], "stale"),
        ("xfailed", [SETUP, XFAILED, TEARDOWN], "known"),
        ("xpassed", [SETUP, PhaseEnd("call", "passed", expected=True), TEARDOWN], "pass"),
        ("all skipped", [PhaseEnd("setup", "skipped"), TEARDOWN], "skipped"),
        ("", [PhaseEnd("setup", "skipped"), TEARDOWN], "skipped"),
        ("deadline", [SETUP, XFAILED, TEARDOWN], "known"),  # xfail(raises=WorldTimeout)
    ],
)
def test_a_test(rule: str, phases: list[PhaseEnd], expected: str) -> None:
    assert ending(rule, phases) == expected


@pytest.mark.parametrize(
    ("rule", "phases", "expected"),
    [
        *[("passed", filed(outcome), outcome) for outcome in ("pass", "approximate", "unsupported")],
        ("failed", [SETUP, failed("call", "fail"), failed("teardown", "fail")], "fail"),
        ("failed", [SETUP, failed("call", "stale"), TEARDOWN], "stale"),
        ("failed", [SETUP, failed("call", "error"), TEARDOWN], "error"),
        ("failed", [SETUP, failed("call", "pass"), TEARDOWN], "error"),  # only the rank that reports had passed
        ("failed", [failed("setup"), TEARDOWN], "error"),
        ("passed", [*filed("pass")[:2], failed("teardown", "pass")], "error"),  # --leaks=fail
        ("deadline", [SETUP, failed("call", "fail"), TEARDOWN], "timeout"),
        ("interrupted", [SETUP, failed("call", "pass"), TEARDOWN], "interrupted"),
        ("lost", [SETUP, failed("call"), TEARDOWN], "crash"),
        ("refused", [failed("setup"), TEARDOWN], "error"),
        ("xfailed", [SETUP, XFAILED, PhaseEnd("teardown", "passed", filed="known")], "known"),
        ("xfailed", [SETUP, XFAILED, failed("teardown", "known")], "error"),
        ("lost", [SETUP, XFAILED, TEARDOWN], "known"),  # a ledger expects the crash
        ("all skipped", [SETUP, PhaseEnd("call", "skipped", filed="not-applicable"), TEARDOWN], "not-applicable"),
        ("skipped", [PhaseEnd("setup", "skipped"), TEARDOWN], ""),  # too few GPUs: reports call it skipped
    ],
)
def test_a_case(rule: str, phases: list[PhaseEnd], expected: str) -> None:
    assert case_ending(rule, phases) == expected


def test_a_pass_within_a_stated_bound_is_approximate_and_nothing_else_changes() -> None:
    assert case_ending("passed", filed("pass"), approximate=True) == "approximate"
    assert case_ending("failed", [SETUP, failed("call", "fail")], approximate=True) == "fail"
    assert case_ending("passed", filed("unsupported"), approximate=True) == "unsupported"


def test_every_outcome_is_listed_once_and_none_is_both_red_and_green() -> None:
    assert len(ENDINGS) == len(set(ENDINGS))
    assert set(ENDINGS) >= RED | NOT_TRIED
    assert {"pass", "known", "approximate", "unsupported"}.isdisjoint(RED)
