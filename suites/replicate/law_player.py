"""The player of the laws of ``replicate``: it makes one law's moves on the model of a plan."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import torch
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import Tolerance, same
from everyrank.suites.compare.mistakes import would_be
from everyrank.suites.compare.reference import Plan, Trajectory, order_matched, sum_in_order
from everyrank.suites.moves.move import Move
from everyrank.suites.moves.player import LawPlayer, judged
from everyrank.suites.moves.together import Rejected
from everyrank.suites.replicate.arena import Arena
from everyrank.suites.replicate.law_sides import LawSides
from everyrank.suites.replicate.moves_of_modules import ApartMoves
from everyrank.suites.replicate.planned import Planned, planned
from everyrank.suites.replicate.sides import FRESH

#: Which backwards of a step are synced: the last, all, or none; ``after-all``: all, once all forwards are done.
Sync = Literal["last", "all", "none", "after-all"]


class ReplicateLawPlayer(LawPlayer, ApartMoves):
    """Makes the moves of one law of ``replicate``."""

    model: Planned

    def __init__(self, arena: Arena, model: Planned, **options: Any) -> None:
        super().__init__(arena.subject, model, arena)
        self.given = options

    @functools.cached_property
    def sides(self) -> LawSides:
        return LawSides(self.arena, self.model, **self.given)

    def find(self, move: Move) -> None:
        if move.name == "step":
            self.sides.compare()

    def follow(self, times: int | None = None, sync: Sync = "last") -> None:
        """Take steps of the plan, or all that are left; compare the gradients and the values of each."""
        sides, plan = self.sides, self.model.plan
        if not sides.steps:
            sides.comparison.start(sides.run.start)
            sides.comparison.mistakes = partial(would_be, plan, sides.rank)
        for _ in range(plan.steps - sides.steps if times is None else times):
            if "closure" in plan.row.needs:
                sides.closure = [partial(self._evaluate, sync)]
            else:
                self.backwards(sync)
            self.step()

    def backwards(self, sync: Sync = "last", packing: str = "") -> None:
        """Run forward and backward on the microbatches of the next step, and compare the gradients."""
        sides, plan = self.sides, self.model.plan
        self.clear()
        sides.part, sides.losses = 0, []
        given: dict[str, Any] = {"packing": packing}
        if plan.skips and sides.steps + 1 >= plan.skips_from:
            branch = [number for number, param in enumerate(self.model.params) if param.name.startswith("branch.")]
            given |= {"skips": tuple(branch), "skipped_by": tuple(plan.skips)}
        alone = {"last": plan.parts - 1, "none": plan.parts}.get(sync, 0)
        self.backward(synced=False, times=alone, **given)
        given |= {"forwards": plan.parts} if sync == "after-all" else {"times": plan.parts - alone}
        self.backward(**given)
        sides.compare_gradients(own=sync == "none")
        plan.after_backward(sides.ours)

    def _evaluate(self, sync: Sync) -> torch.Tensor:
        """Compute the loss again. The optimizers that look at the loss must see the same loss on every rank."""
        self.backwards(sync)
        return self.arena.mean(sum_in_order([loss.detach() for loss in self.sides.losses]))

    def forward(self) -> None:
        """Run a forward on the next microbatch, without a backward."""
        sides = self.sides
        rows, targets = sides.train_twins(self.number, 0, (), (), True)
        with sides.acting():
            sides.loss(rows, targets, (), "")

    def load_local(self, seed: int, inside: bool = False) -> None:
        """Load the state dict of a plain model."""
        sides = self.sides
        sides.when = " after loading a local module's"
        sides.twin.load_state_dict(self.model.plan.build(seed).state_dict())
        with subject_acts():
            (sides.inside if inside else sides.ours).load_state_dict(sides.twin.state_dict(), strict=True)

    def load_into_local(self, inside: bool = False) -> None:
        """Let a plain model load the state dict after training, and compare it with the reference."""
        sides = self.sides
        self.verdict()
        local = self.model.plan.build(FRESH)
        with subject_acts("a local module that loads the state after training"):
            local.load_state_dict((sides.inside if inside else sides.ours).state_dict(), strict=True)
        for name, value in local.named_parameters():
            same(value, sides.run.steps[-1].values[name], f"{name}, loaded into a local module")


@contextlib.contextmanager
def playing(
    arena: Arena,
    plan: Plan,
    reference: Callable[[Plan], Trajectory] = order_matched,
    tolerance: Tolerance | None = None,
    **start: Any,
) -> Iterator[ReplicateLawPlayer]:
    """Give the player of a law on the model of a plan, and come to a verdict at the end.

    ``start`` are fields of the model.
    """
    player = ReplicateLawPlayer(arena, planned(plan, **start), reference=reference, tolerance=tolerance)
    with judged(player), contextlib.suppress(Rejected):
        yield player


def follow(arena: Arena, plan: Plan, **given: Any) -> None:
    """Train as planned, and compare with the reference after each step."""
    with playing(arena, plan, **given) as player:
        player.follow()
