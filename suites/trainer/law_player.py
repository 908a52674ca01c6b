"""The player of the laws of ``trainer``: it makes one law's moves on the model of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from everyrank.suites.compare.comparison import CLOSE_FP64, Comparison, Tolerance
from everyrank.suites.compare.mistake import ANEW, UNCOUNTED, uncount
from everyrank.suites.compare.mistakes import Mistaken, would_be
from everyrank.suites.compare.reference import SEED, Plan
from everyrank.suites.errors import NotApplicable
from everyrank.suites.moves.player import LawPlayer, judged
from everyrank.suites.trainer.arena import AMPLIFIED, CLOSE_FP32, SAME_GRAPH, Arena
from everyrank.suites.trainer.model import Step
from everyrank.suites.trainer.model_alone import ModelAlone, Stored
from everyrank.suites.trainer.moves_of_states import ApartMoves
from everyrank.suites.trainer.planned import Compared, Planned, planned
from everyrank.suites.trainer.sides import Sides, TrainingSide


class LawSides(Sides):
    """Both sides of a law's training, and the comparison of all its steps: the first must not hide the next."""

    made_of: Planned
    coarse = ()  # type: ignore[assignment]

    def __init__(self, arena: Arena, made_of: Planned, seed: int = SEED) -> None:
        self.compared = made_of.compared
        super().__init__(arena, made_of, seed)
        self.plan = replace(made_of.plan, size=self.training.parts)
        if made_of.stored:
            self.alone = Stored(self.plan)
        self.comparison = self._new_comparison()
        self.start = {} if self.compared != "nothing" else self.training.values
        self.as_loaded = False
        """Whether a state was loaded after the last comparison."""
        self.goes_on = False
        """Whether the next step is the first after a load."""

    def reference(self) -> Any:
        # Of a plan that is stored: when it is known how many parts there are.
        return None if self.made_of.stored else super().reference()

    def refused(self, error: Exception) -> None:
        pass  # a law tells what is claimed and refused from what is lacking

    def step(self, step: Step, number: int, time: int) -> None:
        """Train for the next step of the plan."""
        if self.goes_on and self.compared == "parameters" and isinstance(self.alone, ModelAlone):
            self.comparison.mistakes = partial(self._going_on, self.alone.copy(), step, self.steps + 1)
        self.goes_on = False
        if self.compared != "nothing":
            super().step(step, self.steps + 1, 0)
            return
        self.steps += 1
        self.training.step(step, self.steps, 0)

    def meet(self) -> None:
        self.arena.meet("all ranks have returned from the step")

    def load(self, state: Any, training: TrainingSide) -> None:
        if self.comparison.differences or self.comparison.approximate:
            self.comparison.verdict()
        super().load(state, training)
        self.as_loaded = self.goes_on = True

    # --- comparing -----------------------------------------------------------------------------------

    def _new_comparison(self) -> Comparison:
        comparison = Comparison(self._tolerance(), self.arena.subject.bound, ranks=self.plan.size)
        if self.compared == "parameters":
            comparison.start(self.alone.values)
            comparison.mistakes = partial(would_be, self.plan, self.training.index)
        return comparison

    def _going_on(self, loaded: ModelAlone, step: Step, first: int, number: int) -> Iterable[Mistaken]:
        """Yield what the values would be after the first step of what was loaded, with an optimizer of no past."""
        if number != first:
            yield from would_be(self.plan, self.training.index, number)
            return
        for pattern in (None, ANEW, UNCOUNTED):
            alone = loaded.copy()
            if pattern is ANEW:
                alone.start_anew()
            elif pattern is UNCOUNTED:
                uncount(alone.optimizer)
            alone.step(step, first, 0, self.training.parts)
            yield pattern, alone.values

    def _tolerance(self) -> Tolerance:
        plan = self.plan
        exact = plan.size == self.arena.size <= 2  # of two summands there is one sum; other cuts sum within a layer
        mixed = "mixed-dtypes" in plan.definition.properties and not exact
        if plan.dtype == torch.float32 or mixed:
            return CLOSE_FP32
        return AMPLIFIED if "closure" in plan.row.needs else CLOSE_FP64

    def compare(self) -> None:
        """Compare the full parameters with those of the reference, for the verdict."""
        if self.compared != "parameters":
            return
        found = self.training.values
        wanted = self.wanted(found)
        if self.as_loaded:
            loaded = self._new_comparison()
            loaded.step(0, found, wanted)
            loaded.raise_first("as it was loaded: ")
            self.as_loaded, self.comparison = False, self._new_comparison()
        elif self.steps:
            self.comparison.step(self.steps, found, wanted)

    def compare_loss(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        ours = found.detach().cpu().reshape(())
        self.comparison.step(self.steps, {"the loss": ours}, {"the loss": wanted.detach().reshape(())})

    def verdict(self) -> None:
        if self.start:
            now = self.training.values
            moved = any(not torch.equal(value, now[name]) for name, value in self.start.items())
            self.arena.check(moved, "the steps have changed nothing")
        elif self.steps:
            self.comparison.verdict()


class TrainerLawPlayer(LawPlayer, ApartMoves):
    """Makes the moves of one law of ``trainer``."""

    sides: LawSides
    sides_of = LawSides


def playing(
    arena: Arena, plan: Plan, stored: bool = False, compared: Compared = "parameters", **start: Any
) -> AbstractContextManager[TrainerLawPlayer]:
    """Give the player of a law on the model of a plan, and come to a verdict at the end.

    ``stored``: the plan is done as it stands, so that this run has its reference. ``start``: fields of the model.
    """
    if SAME_GRAPH in arena.subject.declares and plan.skips and len(plan.skips) < plan.size:
        raise NotApplicable("the subject needs ranks that use the same parameters in each step")
    model = planned(plan, losses=compared == "loss", stored=stored, compared=compared, **start)
    return judged(TrainerLawPlayer(arena.subject, model, arena))


def follow(arena: Arena, plan: Plan, **start: Any) -> None:
    """Train as planned, and compare with the reference after each step."""
    with playing(arena, plan, stored=True, **start) as player:
        player.step(times=plan.steps, parts=plan.parts, max_norm=plan.clip or None)
