"""The reference for laws that do more than a plan states: the same training, alone in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from everyrank.suites.compare.reference import Gradients, Plan, mean, sum_in_order
from everyrank.suites.trainer.batches import Batches
from torch import nn


class Alone:
    """A trainer that has the batches of all parts, with a plain optimizer."""

    def __init__(self, plan: Plan, batches: Batches, groups: Sequence[Mapping[str, Any]] | None = None) -> None:
        self.plan = plan
        self.batches = batches
        self.model = plan.build()
        arguments: Any = self.model.parameters() if groups is None else [self._group(group) for group in groups]
        if plan.choice.group_arguments and groups is None:
            self.optimizer = plan.optimize(self.model)
        else:
            construct: Any = plan.row.optimizer
            self.optimizer = construct(arguments, **plan.choice.make())

    def _group(self, group: Mapping[str, Any]) -> dict[str, Any]:
        return {**group, "params": [self.model.get_parameter(name) for name in group["params"]]}

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        self.optimizer.add_param_group(self._group(group))

    @property
    def values(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def step(self, number: int, max_norm: float | None = None) -> torch.Tensor:
        """Do one step with the mean of all parts' gradients, in the order of the parts; return the mean loss."""

        def closure() -> torch.Tensor:
            found = [self._part(index, number) for index in range(self.plan.size)]
            for name, parameter in self.model.named_parameters():
                parameter.grad = mean([gradients[name] for _, gradients in found])
            if max_norm is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
            return sum_in_order([loss for loss, _ in found]) / self.plan.size

        loss: Any = self.optimizer.step(closure)  # type: ignore[arg-type]
        return torch.as_tensor(loss)

    def _part(self, index: int, number: int) -> tuple[torch.Tensor, Gradients]:
        self.plan.prepare(self.model, index, number)
        self.model.zero_grad()
        losses = []
        for batch in self.batches(index, number):
            loss = batch.loss(self.model)
            loss.backward()
            losses.append(loss.detach())
        return sum_in_order(losses), {name: value.grad for name, value in self.model.named_parameters()}
