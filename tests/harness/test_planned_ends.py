"""The verdict on a world with faults on purpose, on hand-made fates: which end is planned, and what counts then."""

from __future__ import annotations

import signal

import pytest
from everyrank.faults.text import fault
from everyrank.model.fault import COLLECTIVE, Counted, Made, Plan
from everyrank.model.outcome import Rule
from everyrank.verdict.fates import Acted, Fate, Fates
from everyrank.verdict.rules import Verdict, judge

from tests.harness.test_verdict_table import ECHO, cut, failed, lost, phase, ran, record, skip

CALL = Made("all_reduce", "model.py:88")
DEATH = "rank 1 dies at its 3rd collective"
PLANNED = "rank 1: dies at its 3rd collective, all_reduce at model.py:88, as planned"


def acted(fate: Fate, *texts: str) -> Fate:
    fate.acted += [Acted(fault(text), CALL) for text in texts]
    return fate


def verdict(text: str, *ranks: Fate, deadline: float | None = None) -> Verdict:
    return judge(Fates(list(ranks), plan=Plan([fault(text)]), deadline=deadline, deadline_from="the mark world"))


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (DEATH, signal.SIGKILL),
        ("rank 1 dies by SIGSEGV at its 3rd collective", signal.SIGSEGV | 0x80),
        ("rank 1 exits with 0 at its 3rd collective", 0),
        ("rank 1 exits with 3 after its 3rd collective", 3 << 8),
    ],
)
def test_a_planned_death_is_no_crash(text: str, status: int) -> None:
    assert verdict(text, ran(0), acted(lost(1, status), text)).rule is Rule.PASSED


@pytest.mark.parametrize(
    ("text", "status", "headline"),
    [
        ("rank 1 dies by SIGTERM at its 3rd collective", signal.SIGKILL, "rank 1 of 2 was killed by SIGKILL in call"),
        (
            "rank 1 exits with 3 at its 3rd collective",
            4 << 8,
            "rank 1 of 2 left without a record (exit code 4) in call",
        ),
        ("rank 1 exits with 9 at its 3rd collective", signal.SIGKILL, "rank 1 of 2 was killed by SIGKILL in call"),
        ("rank 1 waits 1 s before its 3rd collective", signal.SIGKILL, "rank 1 of 2 was killed by SIGKILL in call"),
        ("rank 1 raises OSError at its 3rd collective", 0, "rank 1 of 2 left without a record (exit code 0) in call"),
    ],
)
def test_any_other_death_is_a_crash(text: str, status: int, headline: str) -> None:
    ended = verdict(text, ran(0), acted(lost(1, status), text))
    assert (ended.rule, ended.headline) == (Rule.LOST, headline)


def test_a_death_before_the_fault_has_happened_is_a_crash() -> None:
    assert verdict(DEATH, ran(0), lost(1, signal.SIGKILL)).rule is Rule.LOST


def test_a_rank_whose_planned_exception_comes_out_has_ended_as_planned() -> None:
    text = "rank 1 raises OSError at its 3rd collective"
    raised = phase(outcome="failed", brief=f"OSError: {text}, as planned", planned=True)
    assert verdict(text, ran(0), acted(ran(1, raised), text)).rule is Rule.PASSED
    in_teardown = record(phase("setup"), raised, failed(when="teardown"))
    assert verdict(text, ran(0), acted(Fate(1, in_teardown), text)).rule is Rule.FAILED


def test_a_failure_of_a_survivor_counts_and_an_echo_is_put_down_to_the_planned_death() -> None:
    dead = acted(lost(1, signal.SIGKILL), DEATH)
    own = verdict(DEATH, ran(0, failed()), dead, ran(2))
    assert (own.rule, own.headline, own.others) == (
        Rule.FAILED,
        "rank 0 of 3 failed first, in call",
        (PLANNED, "rank 2: passed"),
    )
    echo = verdict(DEATH, ran(0, failed(ECHO)), dead, ran(2))
    assert echo.headline.startswith(f"{PLANNED}; the test lets the error out\n")


def test_a_survivor_that_hangs_is_a_timeout_with_the_planned_death_beside_it() -> None:
    ended = verdict(DEATH, cut(0), acted(lost(1, signal.SIGKILL), DEATH), deadline=2.0)
    assert (ended.rule, ended.others) == (Rule.DEADLINE, (PLANNED,))
    assert "rank 0 had not finished" in ended.headline


def test_a_fault_that_did_not_happen_comes_first() -> None:
    text = 'the fault did not happen: rank 1 made 2 collectives ("rank 1 dies at its 3rd collective")'
    counted = {COLLECTIVE: Counted(2, [CALL, CALL])}
    passed = verdict(DEATH, ran(0), ran(1, counted=counted))
    assert (passed.rule, passed.outcome, passed.headline) == (Rule.NO_FAULT, "failed", text)
    red = verdict(DEATH, ran(0, failed()), ran(1, counted=counted))
    assert (red.rule, red.label) == (Rule.FAILED, "the fault did not happen")
    assert red.headline.startswith(f"{text}\nrank 0 of 2 failed first")
    skipped = verdict(DEATH, ran(0, skip()), ran(1, skip(), counted={}))
    assert skipped.rule is Rule.ALL_SKIPPED


def test_survivors_may_skip() -> None:
    dead = acted(lost(0, signal.SIGKILL), "rank 0 dies at its 3rd collective")
    assert verdict("rank 0 dies at its 3rd collective", dead, ran(1, skip())).outcome == "skipped"
    assert verdict(DEATH, ran(0, skip()), acted(lost(1, signal.SIGKILL), DEATH), ran(2)).rule is Rule.SOME_SKIPPED
