"""The models of laws: those of a plan, whose model, optimizer and batches have names in the tables of fixtures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from everyrank.suites.compare.reference import SEED, Plan
from everyrank.suites.trainer.batches import Microbatch
from everyrank.suites.trainer.model import Model, Step
from torch import nn

#: What a law compares with the reference after each move.
Compared = Literal["parameters", "loss", "nothing"]


@dataclass(frozen=True, kw_only=True)
class Planned(Model):
    """The model of a plan. A step has the batches of the plan, and skips and thaws what the plan does."""

    plan: Plan
    given: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """The groups that the trainer is built with, by the names of their parameters."""
    compared: Compared = "parameters"
    stored: bool = False
    """Whether the plan is done as it stands, so that the reference is the plan's own run, which is stored."""

    def build(self, seed: int = SEED, frozen: Iterable[int] = ()) -> nn.Module:
        return self.plan.build(seed)

    def batches(self, module: Any, step: Step, number: int, time: int, index: int) -> Sequence[Microbatch]:
        self.plan.prepare(module, index, number + time)
        parts = step.number_on(index)
        drawn = [self.plan.batch(index, number + time, part) for part in range(parts)]
        rows = step.rows[index] if step.rows else None
        found = [Microbatch(batch.inputs[:rows], batch.targets[:rows], parts) for batch in drawn]
        if step.skips_in:
            return step.prepared(found, lambda skips: setattr(module, "skip", bool(skips)), index)
        if not step.spoiled or index != step.by:
            return found
        targets = float(step.spoiled)
        return [Microbatch(batch.inputs, torch.full_like(batch.targets, targets), parts) for batch in found]

    def named(self, groups: Sequence[Any], first: Mapping[str, str]) -> list[dict[str, Any]]:
        if self.given or not self.choice.group_arguments:
            return [dict(group) for group in self.given]
        names: Any = list(dict.fromkeys(first.values()))
        return self.choice.split(names)


def planned(plan: Plan, **start: Any) -> Planned:
    """Return the model of a plan; ``start`` are further fields of it."""
    return Planned(size=plan.size, optimizer=plan.optimizer, variant=plan.variant, plan=plan, **start)
