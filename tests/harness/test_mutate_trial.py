"""What becomes of a changed seed, by what the ranks give to collectives without it, with it, and without it again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from everyrank.model.mutation import Call, MutationPart, Observe, Seen
from everyrank.mutants.trial import Request, trial
from everyrank.verdict.fates import Fate, Fates
from everyrank.verdict.rules import Verdict, judge
from everyrank.wire.messages import Phase, Record


def _ended(digest: int, fails: bool = False) -> Fates:
    """Return the fates of two ranks that gave this to their one collective, which cannot be changed."""
    last = Phase("call", "failed", {}, 1.0, "AssertionError: one seed") if fails else Phase("call", "passed", {})
    phases = [Phase("setup", "passed", {}), last, Phase("teardown", "passed", {})]
    seen = Seen([Call([0, 1], 0, 0, "barrier", "test_mine.py:3", "", digest=digest)])
    return Fates([Fate(rank, Record("", phases, [], [], [], None, seen=seen)) for rank in range(2)], began=True)


def _tried(first: Fates, *others: Fates) -> MutationPart:
    """Return what becomes of a test that ends so: at first, unchanged once more, and then with changes."""
    ends = iter(others)

    def again(watch: Observe, seconds: float) -> tuple[Verdict, Fates]:
        fates = next(ends)
        return judge(fates), fates

    return trial(first, Request(seed=0, budget=60.0, floor=0.0), again)


@pytest.mark.parametrize(
    ("runs", "outcome"),
    [
        ((_ended(1), _ended(2), _ended(1)), "survived"),
        ((_ended(1), _ended(1)), "redundant"),
        ((_ended(1), _ended(2, fails=True), _ended(1)), "killed"),
        ((_ended(1), _ended(1, fails=True)), "unstable"),
        ((_ended(1), _ended(2), _ended(3)), "not-landed"),  # the time, say, which is another in each run
        ((_ended(1), _ended(2, fails=True), _ended(3)), "killed"),  # it failed, whatever else changed
    ],
)
def test_a_seed_is_judged_by_what_ranks_give_with_it_and_without(runs: tuple[Fates, ...], outcome: str) -> None:
    (seed,) = _tried(runs[0], *runs).mutants
    assert seed.outcome == outcome


def test_what_a_test_makes_in_its_first_run_alone_is_not_judged() -> None:
    (seed,) = _tried(_ended(9), _ended(1), _ended(1)).mutants
    assert seed.outcome == "redundant"


def test_a_test_that_is_red_the_second_time_is_not_changed() -> None:
    part = _tried(_ended(1), _ended(1, fails=True))
    assert (part.mutants, part.remarks) == (
        [],
        ["the test was green, and red when it ran again unchanged: it was not changed"],
    )


def test_an_interruption_of_the_second_run_is_not_called_red() -> None:
    interrupted = replace(_ended(1), ranks=[Fate(rank, cut=True) for rank in range(2)], interrupted="SIGINT")
    part = _tried(_ended(1), interrupted)
    assert (part.mutants, part.remarks) == ([], [])
