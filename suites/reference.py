"""The references: the same training in one process with plain torch.optim, kept by content.

*Order-matched*: the gradients of the ranks' parts, averaged in rank order; what replicas agree with closely or
exactly. *Whole-batch*: the batch in one piece; what a user would have run on one process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from everyrank.fixtures.data import Batch, batch_for, loss
from everyrank.fixtures.models import MODELS, Model
from everyrank.fixtures.optimizers import Row, Variant, row
from torch import nn

Gradients = dict[str, torch.Tensor | None]

#: What rank 0 starts with: every rank, where the subject makes them equal.
SEED = 11


@dataclass(frozen=True)
class Plan:
    """A training, in values that a reference can be kept by."""

    size: int
    steps: int = 2
    model: str = "plain"
    optimizer: str = "SGD"
    variant: str = "everything"
    dtype: torch.dtype = torch.float64
    parts: int = 1
    """How many microbatches make up a rank's part of a step's batch."""
    skips: frozenset[int] = frozenset()
    """Ranks on which the model "optional" does not use its branch, from the step ``skips_from`` on."""
    skips_from: int = 1
    batches: tuple[int, ...] = ()
    """How many steps each rank has batches for; all of them, if empty."""
    thaw: int = 0
    """The step before which frozen parameters are unfrozen."""
    clip: float = 0.0
    schedule: bool = False

    @property
    def row(self) -> Row:
        return row(self.optimizer)

    @property
    def choice(self) -> Variant:
        return self.row.variant(self.variant)

    @property
    def made(self) -> Model:
        return MODELS[self.model]

    def build(self, seed: int = SEED) -> nn.Module:
        return self.made.build(seed, self.dtype)

    def optimize(self, module: nn.Module) -> torch.optim.Optimizer:
        return self.row.build(module.parameters(), self.choice)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        """One that changes the learning rate after each step."""
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if self.schedule else None

    def batch(self, rank: int, step: int, part: int = 0) -> Batch:
        """One microbatch of one rank at one step."""
        return batch_for(self.made, 5, rank, step * self.parts + part, dtype=self.dtype)

    def present(self, rank: int, step: int) -> bool:
        return not self.batches or step <= self.batches[rank]

    def prepare(self, module: nn.Module, rank: int, step: int) -> None:
        """What the training itself changes about the model before a step."""
        if "optional" in self.made.properties:
            module.skip = rank in self.skips and step >= self.skips_from  # type: ignore[assignment]
        if step == self.thaw:
            for parameter in module.parameters():
                parameter.requires_grad_(True)

    def after_backward(self, module: nn.Module) -> None:
        if self.clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), self.clip)


@dataclass(frozen=True)
class Step:
    """What the reference has after one step; ``gradients`` are those of its first backward, before any clipping."""

    gradients: Gradients
    values: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Trajectory:
    """A whole reference run. Not to be written to: others use it too."""

    start: dict[str, torch.Tensor]
    steps: list[Step] = field(default_factory=list)


@functools.cache
def order_matched(plan: Plan) -> Trajectory:
    """The ranks' parts one after the other, their gradients averaged in rank order."""

    def gradients(module: nn.Module, step: int) -> tuple[torch.Tensor, Gradients]:
        found = [_of_rank(plan, module, rank, step) for rank in range(plan.size)]
        losses = [one for one, _ in found]
        names = [name for name, _ in module.named_parameters()]
        return sum_in_order(losses) / plan.size, {
            name: mean([gradients[name] for _, gradients in found]) for name in names
        }

    return _run(plan, gradients)


@functools.cache
def whole_batch(plan: Plan) -> Trajectory:
    """All ranks' parts in one batch."""

    def gradients(module: nn.Module, step: int) -> tuple[torch.Tensor, Gradients]:
        plan.prepare(module, 0, step)
        module.zero_grad()
        parts = [plan.batch(rank, step, part) for rank in range(plan.size) for part in range(plan.parts)]
        whole = Batch(torch.cat([one.inputs for one in parts]), torch.cat([one.targets for one in parts]))
        total = loss(module, whole)
        total.backward()
        return total.detach(), _taken(module)

    return _run(plan, gradients)


def _run(plan: Plan, gradients: Callable[[nn.Module, int], tuple[torch.Tensor, Gradients]]) -> Trajectory:
    module = plan.build()
    optimizer = plan.optimize(module)
    scheduler = plan.scheduler(optimizer)
    run = Trajectory(_values(module.named_parameters()))
    for step in range(1, plan.steps + 1):
        seen: list[Gradients] = []

        def closure(step: int = step, seen: list[Gradients] = seen) -> torch.Tensor:
            total, found = gradients(module, step)
            seen.append(found)
            for name, parameter in module.named_parameters():
                one = found[name]
                parameter.grad = None if one is None else one.clone()
            plan.after_backward(module)
            return total

        step_with(plan, optimizer, closure)
        if scheduler is not None:
            scheduler.step()
        run.steps.append(Step(seen[0], _values(module.named_parameters()), _values(module.named_buffers())))
    return run


def step_with(plan: Plan, optimizer: Any, closure: Callable[[], Any]) -> None:
    """One step, by a closure where the optimizer needs to compute the loss again."""
    if "closure" in plan.row.needs:
        optimizer.step(closure)
        return
    closure()
    optimizer.step()


def _of_rank(plan: Plan, module: nn.Module, rank: int, step: int) -> tuple[torch.Tensor, Gradients]:
    """The loss and the gradients of one rank's part."""
    plan.prepare(module, rank, step)
    module.zero_grad()
    if not plan.present(rank, step):
        return torch.zeros((), dtype=plan.dtype), _taken(module)
    losses = []
    for part in range(plan.parts):
        one = loss(module, plan.batch(rank, step, part)) / plan.parts
        one.backward()
        losses.append(one.detach())
    return sum_in_order(losses), _taken(module)


def _taken(module: nn.Module) -> Gradients:
    taken: Gradients = {}
    for name, parameter in module.named_parameters():
        gradient, parameter.grad = parameter.grad, None
        # Rows that were used twice are added up on their own rank first.
        taken[name] = gradient.coalesce() if gradient is not None and gradient.is_sparse else gradient
    return taken


def mean(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    """None only where all are; otherwise a None counts as zero, and the divisor stays."""
    found = [one for one in parts if one is not None]
    if not found:
        return None
    return sum_in_order(found) / len(parts)


def sum_in_order(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for one in parts[1:]:
        total = total + one
    return total.coalesce() if total.is_sparse else total


def _values(named: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in named}
