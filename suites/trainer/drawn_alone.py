"""The reference of a draw of ``trainer``: one plain model in each process, trained with the mean of all parts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from everyrank.fixtures.optimizers import row
from everyrank.suites.compare.reference import SEED, mean, sum_in_order
from everyrank.suites.trainer import grammar as g
from everyrank.suites.trainer.arena import first_names
from everyrank.suites.trainer.drawn_model import layer_names, make, microbatches, set_frozen
from torch import nn


class DrawnAlone:
    """The model of a draw with a plain optimizer, which has the microbatches of all parts."""

    def __init__(self, draw: g.Draw, frozen: Iterable[int]) -> None:
        self.draw = draw
        self.model = make(draw, SEED, frozen)
        self.optimizer = self._optimizer()

    def _optimizer(self) -> Any:
        found = row(self.draw.optimizer)
        construct: Any = found.optimizer
        arguments = found.variant(self.draw.variant).make()
        if not self.draw.groups:
            return construct(self.model.parameters(), **arguments)
        return construct([self._tensors(group) for group in self.named(self.draw.groups)], **arguments)

    def _tensors(self, group: dict[str, Any]) -> dict[str, Any]:
        return {**group, "params": [self.model.get_parameter(name) for name in group["params"]]}

    def named(self, groups: Sequence[g.Group]) -> list[dict[str, Any]]:
        """Return the first groups of a training with the names of their parameters."""
        first = first_names(self.model)
        found = []
        start = 0
        for number, group in enumerate(groups):
            end = start + group.count
            options = {"lr": group.lr, "weight_decay": group.weight_decay}
            given = {name: value for name, value in options.items() if value is not None}
            layers = [] if number else layer_names(self.draw)
            params = [*layers, *(first[param.name] for param in self.draw.params[start:end])]
            found.append({"params": params, **given})
            start = end
        return found

    def add_param_group(self, group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(self._tensors(group))

    @property
    def values(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def copy(self) -> DrawnAlone:
        """Return a copy that goes on from here."""
        self.model.zero_grad()
        return copy.deepcopy(self)

    def freeze(self, frozen: Iterable[int]) -> None:
        set_frozen(self.model, self.draw, frozen)

    def step(self, action: g.Step, number: int, time: int, parts: int) -> torch.Tensor:
        """Do one step with the mean of all parts' gradients, in the order of the parts; return the mean loss."""

        def closure() -> torch.Tensor:
            found = [self._part(action, number, time, index) for index in range(parts)]
            for position, parameter in enumerate(self.model.parameters()):
                parameter.grad = mean([gradients[position] for _, gradients in found])
            if action.max_norm:
                nn.utils.clip_grad_norm_(self.model.parameters(), action.max_norm)
            return sum_in_order([loss for loss, _ in found]) / parts

        return torch.as_tensor(self.optimizer.step(closure))

    def _part(
        self, action: g.Step, number: int, time: int, index: int
    ) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        self.model.skips = action.skips if index in action.skipped_by else ()
        self.model.zero_grad()
        losses = []
        for batch in microbatches(action, number, time, index):
            loss = batch.loss(self.model)
            loss.backward()
            losses.append(loss.detach())
        gradients = [parameter.grad for parameter in self.model.parameters()]
        return sum_in_order(losses), [
            each.coalesce() if each is not None and each.is_sparse else each for each in gradients
        ]
