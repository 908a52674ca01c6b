"""What training would have been if one rank had made a mistake with the gradients of one step: a closed list.

An optimizer hides a wrong gradient: Adam makes nearly the same step of its double. So the whole training is repeated
in one process, with each mistake in turn, and the values are compared with those that were found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from everyrank.fixtures.data import loss
from everyrank.suites.compare.pattern import Pattern, Values
from everyrank.suites.compare.reference import Gradients, Plan, mean, sum_in_order, take_gradients, train
from torch import nn

#: The gradients of each microbatch of each rank.
Parts = list[list[Gradients]]


@dataclass(frozen=True)
class Mistake:
    """A mistake with the gradients of a step."""

    id: str
    text: str
    """What a step does that makes it; ``ranks`` stands for their number."""
    gradient: Callable[[list[list[torch.Tensor | None]], int], torch.Tensor | None]
    """The gradient of a parameter on this rank, made from those of each rank's microbatches."""
    microbatches: bool = False
    """Whether it needs several microbatches."""

    def pattern(self, ranks: int) -> Pattern:
        return Pattern(self.id, self.text.format(ranks=ranks))


def _total(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    found = [part for part in parts if part is not None]
    return sum_in_order(found) if found else None


def _mean(parts: list[list[torch.Tensor | None]], rank: int = 0) -> torch.Tensor | None:
    return mean([_total(own) for own in parts])


def _times(gradient: torch.Tensor | None, number: float) -> torch.Tensor | None:
    return None if gradient is None else gradient * number


def _first_reduced_twice(parts: list[list[torch.Tensor | None]], rank: int) -> torch.Tensor | None:
    """Reduce the accumulated gradient after each microbatch, by a sum whose parts were divided before."""
    last = mean([own[-1] for own in parts])
    before = _times(_mean([own[:-1] for own in parts]), len(parts))
    return _total([before, last])


MISTAKES = (
    Mistake(
        "not-reduced",
        "as if this rank had used its own gradient, not the mean",
        lambda parts, rank: _total(parts[rank]),
    ),
    Mistake(
        "sum-for-mean",
        "as if the gradients of the {ranks} ranks were added up, without a mean",
        lambda parts, rank: _times(_mean(parts), len(parts)),
    ),
    Mistake(
        "sum-for-mean",
        "as if the mean gradient was divided by the {ranks} ranks once more",
        lambda parts, rank: _times(_mean(parts), 1 / len(parts)),
    ),
    Mistake(
        "not-reduced",
        "as if this rank had divided its own gradient by {ranks}, and never added the others'",
        lambda parts, rank: _times(_total(parts[rank]), 1 / len(parts)),
    ),
    Mistake("not-reduced", "as if all had used rank 0's gradient", lambda parts, rank: _total(parts[0])),
    Mistake(
        "reduced-twice",
        "as if all but the last microbatch were reduced twice: {ranks} times too much",
        _first_reduced_twice,
        microbatches=True,
    ),
    Mistake(
        "not-reduced",
        "as if the last microbatch alone had counted",
        lambda parts, rank: mean([own[-1] for own in parts]),
        microbatches=True,
    ),
)


def would_be(plan: Plan, rank: int, step: int) -> Iterator[tuple[Pattern, Values]]:
    """Yield each mistake of the list, and all values after this step, if this rank made it there and not before.

    The values are the parameters, and their gradients as ``NAME.grad``.
    """
    for mistake in MISTAKES:
        if plan.size > 1 and (plan.parts > 1 or not mistake.microbatches):
            yield mistake.pattern(plan.size), _with(mistake, plan, rank, step)


def _with(mistake: Mistake, plan: Plan, rank: int, last: int) -> Values:
    def gradients(module: nn.Module, step: int) -> tuple[torch.Tensor, Gradients]:
        parts, losses = [], []
        for index in range(plan.size):
            plan.prepare(module, index, step)
            own, total = _microbatches(plan, module, index, step)
            parts.append(own)
            losses.append(total)
        combine = mistake.gradient if step == last else _mean
        names = [name for name, _ in module.named_parameters()]
        made = {name: combine([[part[name] for part in own] for own in parts], rank) for name in names}
        return sum_in_order(losses) / plan.size, made

    end = train(replace(plan, steps=last), gradients).steps[-1]
    made = {f"{name}.grad": value.to_dense() for name, value in end.gradients.items() if value is not None}
    return {**end.values, **made}


def _microbatches(plan: Plan, module: nn.Module, rank: int, step: int) -> tuple[list[Gradients], torch.Tensor]:
    """Return the gradients of each microbatch of a rank, and the sum of their losses."""
    made, losses = [], []
    for part in range(plan.parts):
        module.zero_grad()
        if plan.present(rank, step):
            total = loss(module, plan.batch(rank, step, part)) / plan.parts
            total.backward()
            losses.append(total.detach())
        made.append(take_gradients(module))
    return made, sum_in_order(losses) if losses else torch.zeros((), dtype=plan.dtype)
