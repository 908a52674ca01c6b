"""A training with a mistake is recognized by its parameters, whatever the optimizer makes of the gradients."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from everyrank.fixtures.data import loss
from everyrank.suites import Deviation
from everyrank.suites.compare.comparison import CLOSE_FP64, Comparison
from everyrank.suites.compare.explain import FirstDeviation
from everyrank.suites.compare.mistakes import would_be
from everyrank.suites.compare.patterns.fit import Fit
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


#: What a mistake does before a step, with the optimizer.
Before = Callable[[Plan, nn.Module, torch.optim.Optimizer], torch.optim.Optimizer]


def as_it_is(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return optimizer


def deviation(
    plan: Plan, combine: Combine = mean, only: str = "", clips: bool = True, before: Before = as_it_is
) -> Deviation:
    """Train with a mistake in one step, with one parameter alone if it is named, and compare as a law does."""
    reference = order_matched(plan)
    comparison = Comparison(CLOSE_FP64, ranks=plan.size, mistakes=partial(would_be, plan, RANK))
    comparison.start(reference.start)
    module = plan.build()
    optimizer = plan.optimize(module)
    for step, expected in enumerate(reference.steps, 1):
        parts = gradients(plan, module, step)
        for name, parameter in module.named_parameters():
            if name not in parts[0][0]:
                continue  # no rank has a gradient of it
            of_name = [[part[name] for part in own] for own in parts]
            parameter.grad = combine(of_name) if step == BAD_STEP and only in ("", name) else mean(of_name)
        if clips or step != BAD_STEP:
            plan.after_backward(module)
        optimizer = before(plan, module, optimizer) if step == BAD_STEP else optimizer
        optimizer.step()
        comparison.step(step, dict(module.named_parameters()), expected.values)
    with pytest.raises(Deviation) as found:
        comparison.verdict()
    return found.value


def explained(plan: Plan, combine: Combine = mean, only: str = "", **more: Any) -> str:
    """Return what is said of a mistake."""
    explanation = deviation(plan, combine, only, **more).explanation()
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
    "power of two": (
        lambda parts: mean(parts) * RANKS / 4,
        "as if the sum over the 3 ranks was divided by 4, a power of two",
    ),
    "rounded": (
        lambda parts: torch.stack([torch.stack(own).sum(0).bfloat16().double() for own in parts]).mean(0),
        "as if the gradient of each rank was rounded to bfloat16 before the mean",
    ),
    "left out": (
        lambda parts: mean([*parts[:2], [0 * part for part in parts[2]]]),
        "as if rank 2's gradient was left out, and the sum divided by 3",
    ),
    "for another": (
        lambda parts: mean([parts[0], parts[1], parts[1]]),
        "as if rank 1's gradient had counted for that of rank 2, too",
    ),
    "all but the last are its own": (
        lambda parts: parts[RANK][0] + mean([own[1:] for own in parts]),
        "as if the last microbatch alone was reduced, and the others were this rank's own",
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
    of_gradients = {"sum-for-mean", "not-reduced", "reduced-twice"}
    assert not of_gradients & {pattern.id for pattern, _ in would_be(Plan(1), 0, 1) if pattern is not None}


def test_a_mean_over_rows_in_place_of_ranks_is_named() -> None:
    plan = Plan(RANKS, steps=2, rows=(1, 2, 5))

    def by_rows(parts: list[list[torch.Tensor]]) -> torch.Tensor:
        return sum((rows * torch.stack(own).sum(0) for rows, own in zip((1, 2, 5), parts, strict=True))) / 8

    text = "as if the mean was taken over all rows, and not over ranks, which have 1, 2, 5 rows"
    assert explained(plan, by_rows) == f"step 2, first.weight: {text}"


def test_gradients_that_parameters_of_one_shape_take_from_each_other_are_named() -> None:
    def before(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        first, _, last = module.parameters()
        first.grad, last.grad = last.grad, first.grad
        return optimizer

    plan = Plan(RANKS, steps=2, model="equal-shapes", variant="defaults")
    assert explained(plan, before=before).endswith("as if parameters of one shape had taken each other's gradients")


def test_what_several_mistakes_explain_names_each() -> None:
    plan = Plan(RANKS, steps=2, parts=3)
    assert explained(plan, lambda parts: mean(parts) * 3) == (
        "step 2, first.weight: as if the gradients of the 3 ranks were added up, without a mean, "
        "or as if the gradients of the 3 microbatches were added up, without a mean"
    )
    assert explained(replace(plan, parts=2), lambda parts: mean(parts) * 2) == (
        "step 2, first.weight: as if the gradients of the 2 microbatches were added up, without a mean"
    )


def test_what_is_reduced_again_after_each_microbatch_is_named() -> None:
    plan = Plan(RANKS, steps=2, parts=3)
    assert explained(plan, lambda parts: mean([[9 * own[0], 3 * own[1], own[2]] for own in parts])) == (
        "step 2, first.weight: as if all that was accumulated was added up over the ranks again after each microbatch"
    )


@pytest.mark.parametrize(
    ("of_before", "text"),
    [(0.0, "used the gradients of the step before"), (1.0, "the gradients of the step before were still there")],
)
def test_gradients_of_the_step_before_are_named(of_before: float, text: str) -> None:
    plan = Plan(RANKS, steps=2, optimizer="AdamW")
    older = {name: value for name, value in order_matched(plan).steps[0].gradients.items() if value is not None}

    def before(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            parameter.grad = of_before * parameter.grad + older[name]
        return optimizer

    assert text in explained(plan, before=before)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Adagrad"])
def test_an_optimizer_that_steps_twice_is_named(optimizer: str) -> None:
    def before(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        optimizer.step()
        return optimizer

    plan = Plan(RANKS, steps=3, optimizer=optimizer)
    assert explained(plan, before=before) == "step 2, first.weight: as if the optimizer had stepped twice"


def test_an_optimizer_that_counts_its_steps_anew_is_named() -> None:
    def before(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        for state in optimizer.state.values():
            state["step"] = torch.zeros_like(state["step"])
        return optimizer

    text = "step 2, first.weight: as if the optimizer had begun to count its steps anew"
    assert explained(Plan(RANKS, steps=3, optimizer="AdamW"), before=before) == text


def test_what_explains_all_values_is_named_without_what_explains_some() -> None:
    right = {name: torch.rand(4, dtype=torch.float64) for name in ("first", "last")}
    found = {**right, "first": right["first"] + torch.rand(4, dtype=torch.float64)}
    of_all, of_some = Fit("decay", "as if all"), Fit("clipped", "as if some")
    made = [(None, right), (of_some, {"first": found["first"], "last": right["first"]}), (of_all, found)]
    deviation = FirstDeviation(1, found, right, right, ("first",), 1e-9, RANKS, lambda step: made)
    assert deviation.fit() == of_all


def test_a_rank_that_has_not_clipped_is_named() -> None:
    plan = Plan(RANKS, steps=3, clip=0.05)
    assert explained(plan, clips=False) == "step 2, first.weight: as if this rank had not clipped"


def _norm(gradients: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    totals = [sum(each[name] for each in gradients) for name in gradients[0]]
    return torch.stack([torch.as_tensor(total).norm() for total in totals]).norm()


@pytest.mark.parametrize(
    ("each_rank", "clips", "text"),
    [
        (False, False, "as if each microbatch was clipped, and not their sum"),
        (False, True, "as if each microbatch was clipped, and then their sum"),
        (True, False, "as if each rank had clipped its own gradient, before the mean"),
    ],
)
def test_what_was_clipped_instead_of_the_mean_is_named(each_rank: bool, clips: bool, text: str) -> None:
    plan = Plan(RANKS, steps=2, parts=2, clip=0.05)

    def before(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        made = gradients(plan, deepcopy(module), BAD_STEP)
        scales = [[plan.clip / (_norm(own if each_rank else [part]) + 1e-6) for part in own] for own in made]
        for name, parameter in module.named_parameters():
            parameter.grad = mean(
                [
                    [part[name] * scale.clamp(max=1.0) for part, scale in zip(own, of_rank, strict=True)]
                    for own, of_rank in zip(made, scales, strict=True)
                ]
            )
        if clips:
            plan.after_backward(module)
        return optimizer

    assert explained(plan, before=before) == f"step 2, first.weight: {text}"


@pytest.mark.parametrize(
    ("each", "text"),
    [
        (True, "as if each parameter was clipped by its own norm"),
        (False, "as if the norm had counted all parameters 3 times, once for each rank"),
    ],
)
def test_a_norm_of_too_little_or_too_much_is_named(each: bool, text: str) -> None:
    plan = Plan(RANKS, steps=2, clip=0.05)

    def before(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        found = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in found]).norm() * RANKS**0.5
        for gradient in found:
            gradient.mul_(plan.clip / ((gradient.norm() if each else norm) + 1e-6))
        return optimizer

    assert explained(plan, clips=False, before=before) == f"step 2, first.weight: {text}"


def test_in_a_step_without_any_gradient_a_clip_hides_no_mistake() -> None:
    plan = Plan(RANKS, steps=2, clip=0.05, batches=(1,) * RANKS)
    older = order_matched(plan).steps[0].gradients

    def before(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        for name, parameter in module.named_parameters():
            gradient = older[name]
            assert gradient is not None
            parameter.grad = gradient.clone()
        plan.after_backward(module)
        return optimizer

    assert "as if it had used the gradients of the step before" in explained(plan, before=before)


def _fresh(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return plan.optimize(module)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Adagrad"])
def test_an_optimizer_that_starts_anew_is_named(optimizer: str) -> None:
    plan = Plan(RANKS, steps=3, optimizer=optimizer)
    assert explained(plan, before=_fresh) == "step 2, first.weight: as if the optimizer had started anew"


def _decay(choose: Callable[[list[float]], float]) -> Before:
    """Return what gives each group another weight decay, chosen from those of all."""

    def before(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["weight_decay"] = choose(decays)
        return optimizer

    return before


def test_a_weight_decay_that_is_lost_is_named() -> None:
    plan = Plan(RANKS, steps=3, optimizer="AdamW")
    assert explained(plan, before=_decay(lambda decays: 0.0)) == "step 2, first.weight: as if it had no weight decay"


def test_a_weight_decay_of_a_group_that_has_none_is_named() -> None:
    plan = Plan(RANKS, steps=3, optimizer="AdamW", variant="groups")
    decays = [group["weight_decay"] for group in plan.optimize(plan.build()).param_groups]
    assert len(set(decays)) > 1
    assert explained(plan, before=_decay(max)).endswith("as if weight decay went to all alike")


def test_options_of_the_first_group_for_all_are_named() -> None:
    plan = Plan(RANKS, steps=3, optimizer="SGD", variant="groups")

    def alike(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        first, *others = optimizer.param_groups
        for group in others:
            group.update({name: value for name, value in first.items() if name != "params"})
        return optimizer

    assert explained(plan, before=alike).endswith("as if the options of the first group went to all parameters")


def test_a_gradient_of_zeros_in_place_of_none_is_named() -> None:
    plan = Plan(RANKS, steps=3, optimizer="AdamW", model="frozen")
    missing = [name for name, gradient in order_matched(plan).steps[0].gradients.items() if gradient is None]

    def before(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        for name, parameter in module.named_parameters():
            parameter.grad = torch.zeros_like(parameter) if name in missing else parameter.grad
        return optimizer

    text = "as if what has no gradient had one of zeros, with decay and momentum"
    assert explained(plan, before=before) == f"step 2, {missing[0]}: {text}"


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


def test_of_a_training_that_does_more_than_its_plan_no_mistake_is_named() -> None:
    """A law that sets a weight decay by hand: a subject that ignores it is not one that gives all the same."""
    plan = Plan(RANKS, steps=2, optimizer="AdamW", variant="groups")
    reference, module = order_matched(plan), plan.build()
    optimizer = plan.optimize(module)
    comparison = Comparison(CLOSE_FP64, ranks=RANKS, mistakes=partial(would_be, plan, RANK))
    comparison.start(reference.start)
    for group in optimizer.param_groups:
        group["weight_decay"] *= 3
    for name, parameter in module.named_parameters():
        parameter.grad = reference.steps[0].gradients[name]
    optimizer.step()
    comparison.step(1, reference.steps[0].values, dict(module.named_parameters()))
    with pytest.raises(Deviation) as found:
        comparison.verdict()
    assert found.value.explanation() is None
