"""The reference of a script of ``trainer``: one plain model in each process, trained with the mean of all parts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from everyrank.fixtures.optimizers import row
from everyrank.suites.compare.reference import SEED, mean, sum_in_order
from everyrank.suites.trainer.arena import first_names
from everyrank.suites.trainer.model import Group, Model, Step, layer_names, make, microbatches, set_frozen
from torch import nn


class ModelAlone:
    """A model with a plain optimizer, which has the microbatches of all parts."""

    def __init__(self, made_of: Model, frozen: Iterable[int]) -> None:
        self.made_of = made_of
        self.model = make(made_of, SEED, frozen)
        self.optimizer = self._optimizer()

    def _optimizer(self) -> Any:
        found = row(self.made_of.optimizer)
        construct: Any = found.optimizer
        arguments = found.variant(self.made_of.variant).make()
        if not self.made_of.groups:
            return construct(self.model.parameters(), **arguments)
        return construct([self._tensors(group) for group in self.named(self.made_of.groups)], **arguments)

    def _tensors(self, group: dict[str, Any]) -> dict[str, Any]:
        return {**group, "params": [self.model.get_parameter(name) for name in group["params"]]}

    def named(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """Return the first groups of a training with the names of their parameters."""
        first = first_names(self.model)
        found = []
        start = 0
        for number, group in enumerate(groups):
            end = start + group.count
            options = {"lr": group.lr, "weight_decay": group.weight_decay}
            given = {name: value for name, value in options.items() if value is not None}
            layers = [] if number else layer_names(self.made_of)
            params = [*layers, *(first[param.name] for param in self.made_of.params[start:end])]
            found.append({"params": params, **given})
            start = end
        return found

    def add_param_group(self, group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(self._tensors(group))

    @property
    def values(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def copy(self) -> ModelAlone:
        """Return a copy that goes on from here."""
        self.model.zero_grad()
        return copy.deepcopy(self)

    def freeze(self, frozen: Iterable[int]) -> None:
        set_frozen(self.model, self.made_of, frozen)

    def step(self, step: Step, number: int, time: int, parts: int) -> torch.Tensor:
        """Do one step with the mean of all parts' gradients, in the order of the parts; return the mean loss."""

        def closure() -> torch.Tensor:
            found = [self._part(step, number, time, index) for index in range(parts)]
            for position, parameter in enumerate(self.model.parameters()):
                parameter.grad = mean([gradients[position] for _, gradients in found])
            if step.max_norm:
                nn.utils.clip_grad_norm_(self.model.parameters(), step.max_norm)
            return sum_in_order([loss for loss, _ in found]) / parts

        return torch.as_tensor(self.optimizer.step(closure))

    def _part(self, step: Step, number: int, time: int, index: int) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        self.model.skips = step.skipped_on(index)
        self.model.zero_grad()
        losses = []
        for batch in microbatches(step, number, time, index):
            loss = batch.loss(self.model)
            loss.backward()
            losses.append(loss.detach())
        gradients = [parameter.grad for parameter in self.model.parameters()]
        return sum_in_order(losses), [
            each.coalesce() if each is not None and each.is_sparse else each for each in gradients
        ]
