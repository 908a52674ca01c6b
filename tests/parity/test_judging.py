"""A step is judged by what each rank has seen."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from everyrank.parity.judge.steps import Deviation, judge
from everyrank.parity.run.activations import Seen
from everyrank.parity.run.plain import BACKWARD, FORWARD, LOSS


class Truth(dict[Any, torch.Tensor]):
    """The plain model's values."""

    notes: dict[str, Any] = {FORWARD: [], BACKWARD: [], "too large": set()}

    def largest(self, key: Any) -> float:
        return float(self[key].abs().max())


def deviations(*losses: float) -> tuple[Deviation, ...]:
    truth: Any = Truth({(LOSS, 0): torch.tensor(2.0, dtype=torch.float64)})
    return judge(truth, 0, [Seen(loss=loss) for loss in losses], lambda key: 1e-8, ()).deviations


@pytest.mark.parametrize("losses", [(2.0, 2.0), (1.0, 3.0), (0.5, 1.5)], ids=["each", "mean", "sum"])
def test_a_loss_may_be_whole_on_each_rank_or_a_part_of_a_mean_or_of_a_sum(losses: tuple[float, ...]) -> None:
    assert not deviations(*losses)


def test_a_loss_that_is_neither_deviates() -> None:
    (found,) = deviations(2.0, 3.0)
    assert (found.kind, found.error) == ("loss", 0.25)


@pytest.mark.parametrize("losses", [(2.0, math.nan), (math.nan, 2.0)], ids=["last", "first"])
def test_a_loss_that_is_not_finite_on_one_rank_deviates(losses: tuple[float, ...]) -> None:
    (found,) = deviations(*losses)
    assert found.pattern is not None
    assert (found.pattern.id, found.error) == ("nan", math.inf)
