"""What training would have been if one rank had made a mistake in one step.

An optimizer hides a wrong gradient: Adam makes nearly the same step of its double. So the whole training is repeated
in one process, with each mistake in turn, and the values are compared with those that were found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from everyrank.fixtures.data import loss
from everyrank.suites.compare.mistake import RIGHT, Mistake, mistakes
from everyrank.suites.compare.patterns.evidence import Values
from everyrank.suites.compare.patterns.fit import Fit
from everyrank.suites.compare.reference import Gradients, Plan, sum_in_order, take_gradients, train
from torch import nn

#: A mistake, or None for none, and all values that it would lead to.
Mistaken = tuple[Fit | None, Values]


def would_be(plan: Plan, rank: int, step: int) -> Iterator[Mistaken]:
    """Yield each mistake of the list, and all values after this step, if this rank made it there and not before.

    The first is None, with the values of the plan without a mistake: a law that does more than its plan, such as to
    set an option by hand, expects others, and then no mistake says anything.

    The values are the parameters, and their gradients as ``NAME.grad``.
    """
    yield None, _with(RIGHT, plan, rank, step)
    for mistake in mistakes(plan, step):
        yield mistake.fit(plan), _with(mistake, plan, rank, step)


def _with(mistake: Mistake, plan: Plan, rank: int, last: int) -> Values:
    kept: Gradients = {}  # of the step before the last

    def gradients(module: nn.Module, step: int) -> tuple[torch.Tensor, Gradients]:
        parts, losses = [], []
        for index in range(plan.size):
            plan.prepare(module, index, step)
            own, total = _microbatches(plan, module, index, step)
            parts.append(own)
            losses.append(total)
        if step == last and mistake.each is not None:
            parts = mistake.each(parts, plan.clip)
        combine = mistake.gradient if step == last else RIGHT.gradient
        names = [name for name, _ in module.named_parameters()]
        combined = {name: combine([[part[name] for part in own] for own in parts], rank) for name in names}
        if step == last and mistake.fills:
            zeros = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
            combined |= {name: zeros[name] for name, value in combined.items() if value is None}
        if step == last and mistake.together is not None:
            combined = mistake.together(kept, combined)
        elif step == last - 1:
            kept.update(combined)
        return sum_in_order(losses) / plan.size, combined

    def before(module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == last and mistake.before is not None:
            mistake.before(plan, module, optimizer)

    def after_backward(module: nn.Module, step: int) -> None:
        if plan.clip:
            (mistake if step == last else RIGHT).clip(plan, module)

    def times(step: int) -> int:
        return mistake.times if step == last else 1

    run = train(replace(plan, steps=last), gradients, before, after_backward, times)
    end = run.steps[-1]
    last_gradients = {f"{name}.grad": value.to_dense() for name, value in end.gradients.items() if value is not None}
    return {**end.values, **last_gradients}


def _microbatches(plan: Plan, module: nn.Module, rank: int, step: int) -> tuple[list[Gradients], torch.Tensor]:
    """Return the gradients of each microbatch of a rank, and the sum of their losses."""
    of_parts, losses = [], []
    for part in range(plan.parts):
        module.zero_grad()
        if plan.present(rank, step):
            total = loss(module, plan.batch(rank, step, part)) / plan.parts
            total.backward()
            losses.append(total.detach())
        of_parts.append(take_gradients(module))
    return of_parts, sum_in_order(losses) if losses else torch.zeros((), dtype=plan.dtype)
