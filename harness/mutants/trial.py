"""Run a green test again with one of its collectives changed at a time, and judge whether it notices."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from everyrank.model.mutation import SEED, MutantPart, MutationPart, Observe, Seen
from everyrank.model.outcome import RULES, Rule
from everyrank.mutants.plan import Collected, Planned, collected, planned, remarks
from everyrank.verdict.fates import Fates, failures
from everyrank.verdict.rules import Verdict

#: Runs the test on a world once more: with these orders, and within this many seconds.
RunAgain = Callable[[Observe, float], tuple[Verdict, Fates]]

#: A changed test may take this many times as long as the test, and at least this many seconds.
_TIMES, _LEAST = 10.0, 5.0
_RED_AGAIN = "the test was green, and red when it ran again unchanged: it was not changed"
_VARIES = "what the ranks give to collectives is another in each run"
#: At most this many characters of a failure are kept.
_LONGEST = 200


@dataclass(frozen=True)
class Request:
    """What ``--mutate`` and its kin ask for, of one test."""

    seed: int
    budget: float  # seconds
    floor: float


def trial(fates: Fates, request: Request, again: RunAgain) -> MutationPart:
    """Run the mutants of a test that has just passed with these fates, as many as the budget allows."""
    began = time.monotonic()
    calls = collected(seen(fates))
    limit = max(_LEAST, _TIMES * fates.seconds)
    if calls:  # The next runs are as the second: what a test keeps in its process, it makes in the first alone.
        verdict, found = again(Observe(), limit)
        if verdict.outcome != "passed":
            remarked = [] if verdict.rule is Rule.INTERRUPTED else [_RED_AGAIN]
            return MutationPart(len(calls), remarks=remarked, seed=request.seed, floor=request.floor)
        calls = collected(seen(found))
    plan = planned(calls, len(fates.ranks), request.seed)
    ended: list[MutantPart] = []
    for mutant in plan:
        if ended and time.monotonic() - began > request.budget:
            break
        verdict, found = again(Observe(mutant.mutant), limit)
        if verdict.rule is Rule.INTERRUPTED:
            break
        ended.append(_part(mutant, verdict, found, calls))
    remarked = remarks(calls, len(fates.ranks))
    if any(part.outcome == "killed" or _is_surviving_seed(part) for part in ended):
        verdict, found = again(Observe(), limit)
        if verdict.outcome != "passed":
            remarked.append("unchanged, the test was red after its mutants: their outcomes are not certain")
        elif _given(collected(seen(found))) != _given(calls):
            ended = [_not_judged(part) if _is_surviving_seed(part) else part for part in ended]
    return MutationPart(
        calls=len(calls), possible=len(plan), mutants=ended, remarks=remarked, seed=request.seed, floor=request.floor,
        seconds=time.monotonic() - began,
    )  # fmt: skip


def _given(calls: list[Collected]) -> list[tuple[int, ...]]:
    """Return what the ranks gave to each collective."""
    return [call.digests for call in calls]


def _is_surviving_seed(part: MutantPart) -> bool:
    return (part.way, part.outcome) == (SEED, "survived")


def _not_judged(seed: MutantPart) -> MutantPart:
    """Return a changed seed as not landed: without it, too, the ranks give other tensors in each run."""
    return msgspec.structs.replace(seed, outcome="not-landed", message=_VARIES)


def seen(fates: Fates) -> list[Seen]:
    """Return what the ranks have seen, as far as they have filed it."""
    return [fate.record.seen for fate in fates.ranks if fate.record is not None and fate.record.seen is not None]


def _part(planned: Planned, verdict: Verdict, fates: Fates, calls: list[Collected]) -> MutantPart:
    found = seen(fates)
    landed = _landed(planned, found, calls)
    by, message = "", ""
    trouble = next((rank.trouble for rank in found if rank.trouble), "")
    if verdict.outcome in ("failed", "error"):
        outcome = "killed" if landed is not False or len(found) < len(fates.ranks) else "unstable"
        by = RULES.get(verdict.rule) or "fail"
        root = next(iter(failures(fates)), None)
        message = root.phase.brief if root is not None else verdict.headline
    elif trouble:
        outcome, message = "not-landed", trouble
    elif landed and verdict.outcome == "passed":
        outcome = "survived"
    else:
        outcome = "not-landed" if landed or landed is None else "redundant"
    name, location = (planned.call.name, planned.call.location) if planned.call is not None else ("", "")
    brief = " ".join(message.split())[:_LONGEST]
    return MutantPart(planned.mutant.way, name, location, planned.text, outcome, by, brief)


def _landed(planned: Planned, found: list[Seen], calls: list[Collected]) -> bool | None:
    """Return whether a tensor was another one because of the change; None if the changed call was not made.

    One seed on all ranks has landed if a rank gave something else to a collective than without it.
    """
    if planned.mutant.way == SEED:
        return _given(collected(found)) != _given(calls)
    landed = [rank.landed for rank in found if rank.landed is not None]
    return any(landed) if landed else None
