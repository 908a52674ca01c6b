"""The laws of ``trainer`` about errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from everyrank.fixtures.optimizers import Row, rows
from everyrank.suites.arena.groups import NAMES_RANKS, own_group
from everyrank.suites.compare.reference import Plan
from everyrank.suites.engine.contract import Point
from everyrank.suites.errors import NotApplicable
from everyrank.suites.trainer import points
from everyrank.suites.trainer.arena import SAME_GRAPH, Arena
from everyrank.suites.trainer.contract import CONTRACT
from everyrank.suites.trainer.law_player import playing
from everyrank.suites.trainer.points import TrainingPoint

law = CONTRACT.law


@dataclass(frozen=True, kw_only=True)
class FailurePoint(TrainingPoint):
    """A point that fixes which rank fails."""

    culprit: int
    goes_on: bool = False
    """Whether all ranks train on then."""


def _failures() -> Iterator[FailurePoint]:
    for size in (2, 3):
        for culprit in (0, size - 1):
            label = "first" if culprit == 0 else "last"
            core = (3,) if culprit else ()
            yield from points.each_size(partial(FailurePoint, culprit=culprit), size, label=label, core=core)
    goes_on: Any = partial(FailurePoint, culprit=2, goes_on=True)
    yield from points.each_size(goes_on, 3, label="goes-on", steps=3, variant="momentum", core=())


@law("errors.rank", _failures)
def errors_rank(arena: Arena, point: FailurePoint) -> None:
    """If the loss raises on one rank, that rank gets its own error, and all others soon get one too.

    Nobody has changed its parameters in that step. If the subject declares `names-ranks`, the error of the others
    names the rank, and all can train on: nothing of that step is left for the next one.
    """
    if point.goes_on:
        if NAMES_RANKS not in arena.subject.declares:
            raise NotApplicable("no rank hears from the others that one has failed")
        with own_group(), playing(arena, point.plan) as player:
            player.step()
            player.miss(by=point.culprit)
            player.step(times=2)
        return
    with playing(arena, point.plan, compared="nothing") as player:
        player.fail(point.culprit)


@dataclass(frozen=True, kw_only=True)
class MissPoint(TrainingPoint):
    """A point that fixes in which microbatch a step fails, whether in backward, and what follows."""

    parts: int = 1
    in_backward: bool = False
    writes: bool = False
    """Whether the user writes into the parameters then."""
    parts_after: int = 1
    twice: bool = False
    """Whether the step fails once more, in its first microbatch."""
    skips: bool = False
    """Whether the last rank does not use a parameter in the first step after that."""


def _misses() -> Iterator[MissPoint]:
    for label, model, given in (
        ("loss", "plain", {}),
        ("second", "plain", {"parts": 2}),
        ("backward", "plain", {"in_backward": True}),
        ("microbatches", "plain", {"parts_after": 2}),
        ("unused", "unused", {}),
        ("written", "plain", {"writes": True}),
        ("twice", "plain", {"parts": 2, "twice": True}),
        ("some-ranks", "optional", {"parts": 2, "twice": True, "skips": True}),
    ):
        make: Any = partial(MissPoint, **given)
        core = (3,) if label == "second" else ()
        yield from points.each_size(make, 2, 3, label=label, model=model, steps=3, variant="momentum", core=core)


@law("errors.everywhere", _misses, groups=("TRAINED", "SCALED"))
def errors_everywhere(arena: Arena, point: MissPoint) -> None:
    """If a step fails on all ranks alike, all raise that error, nothing has changed, and training goes on.

    The loss of the last microbatch raises, or its backward. Nothing of that step is left for the next one, which may
    have several microbatches, or for what the user writes into the parameters.
    """
    with own_group(), playing(arena, point.plan) as player:
        player.step()
        player.miss(point.parts, point.in_backward)
        if point.twice:
            player.miss()
        if point.skips and SAME_GRAPH not in arena.subject.declares:
            player.step(skips=(0,), skipped_by=(point.size - 1,), skips_in=(0,))
        if point.writes:
            player.overwrite()
        player.step(times=2, parts=point.parts_after)


@dataclass(frozen=True, kw_only=True)
class ArgumentsPoint(Point):
    """A point with an optimizer whose invalid arguments are passed."""

    row: Row


def _arguments() -> Iterator[ArgumentsPoint]:
    for row in rows():
        core = row.name == "SGD"
        yield ArgumentsPoint(row.name, 2, core=core, optimizer=row.name, row=row)


@law("errors.arguments", _arguments)
def errors_arguments(arena: Arena, point: ArgumentsPoint) -> None:
    """Invalid arguments are refused when the trainer is built, on every rank, with the error of torch.optim."""
    plan = Plan(point.size, model=point.row.model, optimizer=point.row.name, variant="defaults")
    with playing(arena, plan) as player:
        player.sides.compare()  # a subject that refuses every argument has not refused the invalid ones
        for number in range(len(point.row.invalid)):
            player.refuse(number)
