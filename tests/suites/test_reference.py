"""The references are what they say: one is the other up to the order of a sum, and both are plain torch.optim."""

from __future__ import annotations

from math import nan

import pytest
import torch
from everyrank.fixtures.data import loss, whole_batch
from everyrank.suites import Subject
from everyrank.suites.collect.rotation import default
from everyrank.suites.compare.comparison import EXACT, Comparison, Tolerance
from everyrank.suites.compare.reference import Plan, Trajectory, mean, order_matched
from everyrank.suites.compare.reference import whole_batch as whole
from everyrank.suites.engine.case import cases
from everyrank.suites.replicate.points import TrainingPoint
from everyrank.suites.trainer.arena import CLOSE_FP32
from everyrank.suites.trainer.points import training

#: The trainings of the default profile that a law of `replicate` compares with, and the law that asks for it first.
PLANS: dict[Plan, str] = {}
_CASES = cases(Subject("any", contract="replicate", build=print))
_CHOSEN = default(_CASES)
for case in _CASES:
    if isinstance(case.point, TrainingPoint) and case.id in _CHOSEN:
        PLANS.setdefault(case.point.plan, case.law.id)


@pytest.mark.parametrize("law", sorted(set(PLANS.values())))
def test_the_reference_against_itself_is_green(law: str) -> None:
    """Two runs of one plan are equal bit for bit, and the parameters move: the kill matrix's first control."""
    for plan in (plan for plan, asks in PLANS.items() if asks == law):
        print(plan)  # if it fails, the last line of its output says for which
        _against_itself(order_matched(plan), order_matched.__wrapped__(plan))


def test_a_reference_that_differs_is_not_green() -> None:
    """The test above can fail."""
    plan = Plan(2)
    with pytest.raises(AssertionError, match=r"step 1, first\.weight: off by"):
        _against_itself(order_matched(plan), order_matched(Plan(2, variant="lr")))


def test_each_training_of_trainer_in_fp32_moves_far_enough_to_prove_something() -> None:
    for plan in (point.plan for point in training() if point.plan.dtype == torch.float32 and point.size == 2):
        print(plan)
        _against_itself(order_matched(plan), order_matched(plan), CLOSE_FP32)


def _against_itself(once: Trajectory, again: Trajectory, tolerance: Tolerance = EXACT) -> None:
    comparison = Comparison(tolerance)
    comparison.start(once.start)
    for number, (ours, other) in enumerate(zip(again.steps, once.steps, strict=True), 1):
        comparison.step(number, ours.values, other.values)
    comparison.verdict()


@pytest.mark.parametrize(
    ("ours", "reference", "agree"),
    [([nan, 1.0], [nan, 1.0], True), ([nan, 1.0], [0.0, 1.0], False), ([nan, 2.0], [nan, 1.0], False)],
    ids=["equal", "not-in-the-reference", "beside-another-value"],
)
def test_a_nan_agrees_only_with_a_nan(ours: list[float], reference: list[float], agree: bool) -> None:
    comparison = Comparison()
    comparison.step(1, {"w": torch.tensor(ours)}, {"w": torch.tensor(reference)})
    assert (comparison.differences == []) is agree


@pytest.mark.parametrize("size", [1, 2, 3])
def test_both_references_agree_but_for_the_order_of_a_sum(size: int) -> None:
    plan = Plan(size, steps=3, parts=2)
    for ours, other in zip(order_matched(plan).steps, whole(plan).steps, strict=True):
        for name, value in ours.values.items():
            torch.testing.assert_close(value, other.values[name], rtol=1e-12, atol=1e-14)


def test_the_whole_batch_is_what_a_user_would_write() -> None:
    plan = Plan(2, steps=2, optimizer="Adam", variant="defaults")
    module = plan.build()
    optimizer = torch.optim.Adam(module.parameters())
    for step in (1, 2):
        optimizer.zero_grad()
        loss(module, whole_batch(5, step, 2)).backward()
        optimizer.step()
    for name, value in module.named_parameters():
        assert torch.equal(value, whole(plan).steps[-1].values[name])


def test_equal_plans_share_a_run() -> None:
    assert order_matched(Plan(2, skips=frozenset({1}))) is order_matched(Plan(2, skips=frozenset({1})))


def test_none_stays_none_only_where_all_are() -> None:
    gradient = torch.tensor([2.0, 4.0])
    assert mean([None, None]) is None
    averaged = mean([None, gradient])
    assert averaged is not None
    assert averaged.tolist() == [1.0, 2.0]


def test_a_rank_without_a_batch_counts_as_zero() -> None:
    both, alone = order_matched(Plan(2, steps=1)), order_matched(Plan(2, steps=1, batches=(1, 0)))
    first = order_matched(Plan(1, steps=1))
    for name, gradient in alone.steps[0].gradients.items():
        assert gradient is not None
        assert torch.equal(gradient, first.steps[0].gradients[name] / 2)  # type: ignore[operator]
        assert not torch.equal(gradient, both.steps[0].gradients[name])  # type: ignore[arg-type]


def test_what_is_frozen_has_no_gradient_until_it_is_thawed() -> None:
    run = order_matched(Plan(2, steps=2, model="frozen", thaw=2))
    assert run.steps[0].gradients["first.weight"] is None
    assert run.steps[1].gradients["first.weight"] is not None
