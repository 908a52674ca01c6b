"""Averages of weights that an optimizer keeps, for a teacher or an evaluation: no step uses them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from tests.parity.parallel.subjects.replicas import Averaged


class Averaging(torch.optim.AdamW):
    """AdamW that keeps an average of the weights after each step, for a teacher or an evaluation."""

    def step(self, closure: Any = None) -> Any:
        before = self.weights()
        super().step()
        self.average(self.averaged(before))

    def weights(self) -> list[torch.Tensor]:
        return [each.detach() for group in self.param_groups for each in group["params"]]

    def averaged(self, before: list[torch.Tensor]) -> list[torch.Tensor]:
        return self.weights()

    def average(self, weights: list[torch.Tensor]) -> None:
        for each, weight in zip(self.param_groups[0]["params"], weights, strict=True):
            state = self.state[each]
            state["ema"] = state.get("ema", torch.zeros_like(weight)).lerp(weight, 0.1)


class AveragesBefore(Averaging):
    """Its average is of the weights before the step."""

    def weights(self) -> list[torch.Tensor]:
        return [each.clone() for each in super().weights()]

    def averaged(self, before: list[torch.Tensor]) -> list[torch.Tensor]:
        return before


class Teacher(Averaged):
    """Gradients averaged by hand, and an average of the weights after each step."""

    dtypes = ("float64", "float32")
    ranks_optimizer: ClassVar[type[Averaging]] = Averaging

    def optimizer(self, params: Iterable[Any]) -> torch.optim.Optimizer:
        return Averaging(params, lr=1e-2, weight_decay=0.1)

    def parallelize(self, model: nn.Module) -> Any:
        made = super().parallelize(model)
        return made, self.ranks_optimizer(made.parameters(), lr=1e-2, weight_decay=0.1)
