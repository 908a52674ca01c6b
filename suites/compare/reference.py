"""The references: the same training in one process with plain torch.optim, cached by its plan for the whole run.

*Order-matched*: the gradients of the ranks' parts are averaged in rank order; replicas agree with it closely or
exactly. *Whole-batch*: the batch is in one piece, as a user would train in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from everyrank.fixtures.data import Batch, batch_for, loss
from everyrank.fixtures.models import Model, model_of
from everyrank.fixtures.optimizers import Row, Variant, row
from everyrank.suites.compare.stored import stored
from everyrank.suites.compare.trajectory import Gradients as Gradients
from everyrank.suites.compare.trajectory import Step
from everyrank.suites.compare.trajectory import Trajectory as Trajectory
from torch import nn

#: The seed of rank 0's model. Every rank starts with this model unless a law seeds it by rank.
SEED = 11


@dataclass(frozen=True)
class Plan:
    """The parameters of a training, by which its reference is cached."""

    size: int
    steps: int = 2
    model: str | Model = "plain"
    optimizer: str = "SGD"
    variant: str = "everything"
    dtype: torch.dtype = torch.float64
    parts: int = 1
    """How many microbatches make up a rank's part of a step's batch."""
    skips: frozenset[int] = frozenset()
    """Ranks on which the model "optional" does not use its branch, from the step ``skips_from`` on."""
    skips_from: int = 1
    batches: tuple[int, ...] = ()
    """For how many steps each rank has batches; empty means all steps."""
    rows: tuple[int, ...] = ()
    """How many rows each rank's batches have; empty means five."""
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
    def definition(self) -> Model:
        return model_of(self.model)

    def build(self, seed: int = SEED) -> nn.Module:
        return self.definition.build(seed, self.dtype)

    def optimize(self, module: nn.Module) -> torch.optim.Optimizer:
        return self.row.build(module.parameters(), self.choice)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        """Return a scheduler that changes the learning rate after each step, if the plan has one."""
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if self.schedule else None

    def batch(self, rank: int, step: int, part: int = 0) -> Batch:
        """Return one microbatch of one rank at one step."""
        whole = batch_for(self.definition, 5, rank, step * self.parts + part, dtype=self.dtype)
        rows = self.rows[rank] if self.rows else None
        return Batch(whole.inputs[:rows], whole.targets[:rows])

    def present(self, rank: int, step: int) -> bool:
        return not self.batches or step <= self.batches[rank]

    def prepare(self, module: nn.Module, rank: int, step: int) -> None:
        """Change the model as the training itself does before a step."""
        if "optional" in self.definition.properties:
            module.skip = rank in self.skips and step >= self.skips_from  # type: ignore[assignment]
        if step == self.thaw:
            for parameter in module.parameters():
                parameter.requires_grad_(True)

    def after_backward(self, module: nn.Module) -> None:
        if self.clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), self.clip)


@stored
def order_matched(plan: Plan) -> Trajectory:
    """Train on the ranks' parts one after the other, with their gradients averaged in rank order."""

    def gradients(module: nn.Module, step: int) -> tuple[torch.Tensor, Gradients]:
        of_ranks = [rank_gradients(plan, module, rank, step) for rank in range(plan.size)]
        losses = [total for total, _ in of_ranks]
        names = [name for name, _ in module.named_parameters()]
        return sum_in_order(losses) / plan.size, {
            name: mean([gradients[name] for _, gradients in of_ranks]) for name in names
        }

    return train(plan, gradients)


@stored
def whole_batch(plan: Plan) -> Trajectory:
    """Train on all ranks' parts in one batch."""

    def gradients(module: nn.Module, step: int) -> tuple[torch.Tensor, Gradients]:
        plan.prepare(module, 0, step)
        module.zero_grad()
        parts = [plan.batch(rank, step, part) for rank in range(plan.size) for part in range(plan.parts)]
        whole = Batch(torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts]))
        total = loss(module, whole)
        total.backward()
        return total.detach(), take_gradients(module)

    return train(plan, gradients)


#: What is done before a step: given the module, its optimizer, and the number of the step.
Before = Callable[[nn.Module, torch.optim.Optimizer, int], None]


def train(
    plan: Plan,
    gradients: Callable[[nn.Module, int], tuple[torch.Tensor, Gradients]],
    before: Before | None = None,
    after_backward: Callable[[nn.Module, int], None] | None = None,
    times: Callable[[int], int] = lambda step: 1,
) -> Trajectory:
    """Train as planned in one process, with these losses and gradients of each step.

    ``after_backward`` clips in the place of the plan, and ``times`` says how often the optimizer goes in a step.
    """
    module = plan.build()
    optimizer = plan.optimize(module)
    scheduler = plan.scheduler(optimizer)
    run = Trajectory(_values(module.named_parameters()))
    for step in range(1, plan.steps + 1):
        seen: list[tuple[torch.Tensor, Gradients]] = []

        def closure(step: int = step, seen: list[tuple[torch.Tensor, Gradients]] = seen) -> torch.Tensor:
            total, of_step = gradients(module, step)
            seen.append((total, of_step))
            for name, parameter in module.named_parameters():
                gradient = of_step[name]
                parameter.grad = None if gradient is None else gradient.clone()
            if after_backward is None:
                plan.after_backward(module)
            else:
                after_backward(module, step)
            return total

        if before is not None:
            before(module, optimizer, step)
        step_with(plan, optimizer, closure)
        for _ in range(times(step) - 1):
            optimizer.step(seen[0][0].item)  # the loss that is known, with the gradients that are there
        if scheduler is not None:
            scheduler.step()
        run.steps.append(Step(seen[0][1], _values(module.named_parameters()), _values(module.named_buffers())))
    return run


def step_with(plan: Plan, optimizer: Any, closure: Callable[[], Any]) -> None:
    """Do one step; pass the closure to the optimizer if it needs to compute the loss again."""
    if "closure" in plan.row.needs:
        optimizer.step(closure)
        return
    closure()
    optimizer.step()


def rank_gradients(plan: Plan, module: nn.Module, rank: int, step: int) -> tuple[torch.Tensor, Gradients]:
    """Return the loss and the gradients of one rank's part."""
    plan.prepare(module, rank, step)
    module.zero_grad()
    if not plan.present(rank, step):
        return torch.zeros((), dtype=plan.dtype), take_gradients(module)
    losses = []
    for part in range(plan.parts):
        part_loss = loss(module, plan.batch(rank, step, part)) / plan.parts
        part_loss.backward()
        losses.append(part_loss.detach())
    return sum_in_order(losses), take_gradients(module)


def take_gradients(module: nn.Module) -> Gradients:
    """Return the gradients of a module and leave it without any."""
    taken: Gradients = {}
    for name, parameter in module.named_parameters():
        gradient, parameter.grad = parameter.grad, None
        # A rank adds up the gradients of rows that it has used twice.
        taken[name] = gradient.coalesce() if gradient is not None and gradient.is_sparse else gradient
    return taken


def mean(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the mean, in which a None counts as zero; None if all are None."""
    present = [part for part in parts if part is not None]
    return sum_in_order(present) / len(parts) if present else None


def sum_in_order(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total = total + part
    return total.coalesce() if total.is_sparse else total


def _values(named: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in named}
