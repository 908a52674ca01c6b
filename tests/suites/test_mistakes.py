"""A training with a mistake is recognized by its parameters, whatever the optimizer makes of the gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from everyrank.fixtures.data import loss
from everyrank.suites import Deviation
from everyrank.suites.compare.comparison import CLOSE_FP64, Comparison
from everyrank.suites.compare.mistakes import would_be
from everyrank.suites.compare.reference import Plan, order_matched
from torch import nn

RANKS, RANK, BAD_STEP = 3, 1, 2

#: What a rank does with its microbatches' gradients and those of the others: a list a rank.
Combine = Callable[[list[list[torch.Tensor]]], torch.Tensor]


def mean(parts: list[list[torch.Tensor]]) -> torch.Tensor:
    return torch.stack([torch.stack(own).sum(0) for own in parts]).mean(0)


def gradients(plan: Plan, module: nn.Module, step: int) -> list[list[dict[str, torch.Tensor]]]:
    """Return the gradients of each microbatch of each rank."""

    def of_part(rank: int, part: int) -> dict[str, torch.Tensor]:
        module.zero_grad()
        (loss(module, plan.batch(rank, step, part)) / plan.parts).backward()
        return {name: value.grad.clone() for name, value in module.named_parameters() if value.grad is not None}

    return [[of_part(rank, part) for part in range(plan.parts)] for rank in range(plan.size)]


def deviation(plan: Plan, combine: Combine, only: str = "") -> Deviation:
    """Train with a mistake in one step, with one parameter alone if it is named, and compare as a law does."""
    reference = order_matched(plan)
    comparison = Comparison(CLOSE_FP64, ranks=plan.size, mistakes=partial(would_be, plan, RANK))
    comparison.start(reference.start)
    module = plan.build()
    optimizer = plan.optimize(module)
    for step, expected in enumerate(reference.steps, 1):
        parts = gradients(plan, module, step)
        for name, parameter in module.named_parameters():
            of_name = [[part[name] for part in own] for own in parts]
            parameter.grad = combine(of_name) if step == BAD_STEP and only in ("", name) else mean(of_name)
        optimizer.step()
        comparison.step(step, dict(module.named_parameters()), expected.values)
    with pytest.raises(Deviation) as found:
        comparison.verdict()
    return found.value


def explained(plan: Plan, combine: Combine, only: str = "") -> str:
    """Return what is said of a mistake."""
    explanation = deviation(plan, combine, only).explanation()
    return explanation.news if explanation is not None else ""


SEEN: dict[str, tuple[Combine, str]] = {
    "own": (lambda parts: torch.stack(parts[RANK]).sum(0), "as if this rank had used its own gradient, not the mean"),
    "sum": (
        lambda parts: mean(parts) * RANKS,
        "as if the gradients of the 3 ranks were added up, without a mean",
    ),
    "divided twice": (
        lambda parts: mean(parts) / RANKS,
        "as if the mean gradient was divided by the 3 ranks once more",
    ),
    "not added": (
        lambda parts: torch.stack(parts[RANK]).sum(0) / RANKS,
        "as if this rank had divided its own gradient by 3, and never added the others'",
    ),
    "rank 0": (lambda parts: torch.stack(parts[0]).sum(0), "as if all had used rank 0's gradient"),
    "reduced twice": (
        lambda parts: RANKS * mean([own[:1] for own in parts]) + mean([own[1:] for own in parts]),
        "as if all but the last microbatch were reduced twice: 3 times too much",
    ),
    "last microbatch": (
        lambda parts: mean([own[1:] for own in parts]),
        "as if the last microbatch alone had counted",
    ),
}


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Adagrad"])
def test_a_mistake_with_the_gradients_is_named(name: str, optimizer: str) -> None:
    combine, text = SEEN[name]
    plan = Plan(RANKS, steps=3, optimizer=optimizer, parts=2)
    assert explained(plan, combine) == f"step 2, first.weight: {text}"


def test_a_mistake_with_one_gradient_is_named_beside_the_others_that_are_right() -> None:
    combine, text = SEEN["own"]
    plan = Plan(RANKS, steps=3)
    assert explained(plan, combine, only="last.bias") == f"step 2, last.bias: {text}; the others are right"
    lines = str(deviation(plan, combine, only="last.bias")).splitlines()
    assert lines[-1] == "  at first, in step 2: last.bias alone"


def test_a_mistake_that_is_not_in_the_list_has_no_explanation() -> None:
    assert explained(Plan(RANKS, steps=2), lambda parts: mean(parts) ** 3) == ""


def test_one_rank_makes_no_mistake_with_other_ranks_gradients() -> None:
    assert list(would_be(Plan(1), 0, 1)) == []


def test_an_optimizer_that_is_not_stepped_has_left_all_as_it_was() -> None:
    reference = order_matched(Plan(RANKS))
    comparison = Comparison(CLOSE_FP64, mistakes=partial(would_be, Plan(RANKS), RANK))
    comparison.start(reference.start)
    comparison.step(1, reference.start, reference.steps[0].values)
    with pytest.raises(Deviation) as found:
        comparison.verdict()
    explanation = found.value.explanation()
    assert explanation is not None
    assert (explanation.pattern, explanation.text) == ("stale", "as it was a step before")
