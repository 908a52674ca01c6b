"""The reference of ``trainer``: one plain model in each process, trained with the mean of all parts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from everyrank.suites.compare.reference import SEED, Plan, mean, order_matched, sum_in_order
from everyrank.suites.trainer.generators import Generators
from everyrank.suites.trainer.model import Group, Model, Step, set_frozen
from everyrank.suites.trainer.parameters import first_names
from torch import nn


class ModelAlone:
    """A model with a plain optimizer, which has the microbatches of all parts."""

    def __init__(self, made_of: Model, frozen: Iterable[int] = ()) -> None:
        self.made_of = made_of
        self.model = made_of.build(SEED, frozen)
        self.generators: Generators = {}
        construct: Any = made_of.row.optimizer
        groups = [self._tensors(group) for group in self.named(made_of.groups)]
        self.optimizer = construct(groups or self.model.parameters(), **made_of.choice.make())

    def _tensors(self, group: dict[str, Any]) -> dict[str, Any]:
        return {**group, "params": [self.model.get_parameter(name) for name in group["params"]]}

    def named(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """Return the first groups of a training with the names of their parameters."""
        return self.made_of.named(groups, first_names(self.model))

    def add_param_group(self, group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(self._tensors(group))

    @property
    def values(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def copy(self) -> ModelAlone:
        """Return a copy that goes on from here."""
        self.model.zero_grad()
        memo: dict[int, Any] = {id(self.made_of): self.made_of}  # nobody changes it
        copied = copy.deepcopy(self, memo)
        # torch copies an optimizer's groups and state alone, and a class of another package may have more, parameters
        # among it. What a scheduler has put in place of step() is bound to this optimizer.
        for name in vars(self.optimizer).keys() - vars(copied.optimizer).keys() - {"step"}:
            setattr(copied.optimizer, name, copy.deepcopy(getattr(self.optimizer, name), memo))
        return copied

    def start_anew(self) -> None:
        """Give the optimizer the state of a new one."""
        fresh = ModelAlone(self.made_of)
        self.optimizer.state.clear()
        for name, param in fresh.model.named_parameters():
            if param in fresh.optimizer.state:
                self.optimizer.state[self.model.get_parameter(name)] = fresh.optimizer.state[param]

    def follow(self, other: ModelAlone) -> None:
        """Take over what was done to another reference since: its groups, their options, and what is frozen."""
        names = {param: name for name, param in other.model.named_parameters()}
        groups = self.optimizer.param_groups
        for number, group in enumerate(other.optimizer.param_groups):
            options = {key: value for key, value in group.items() if key != "params"}
            if number < len(groups):
                groups[number].update(options)
            else:
                self.add_param_group({**options, "params": [names[param] for param in group["params"]]})
        for param, name in names.items():
            self.model.get_parameter(name).requires_grad_(param.requires_grad)

    def freeze(self, frozen: Iterable[int]) -> None:
        set_frozen(self.model, self.made_of, frozen)

    def step(self, step: Step, number: int, time: int, parts: int) -> torch.Tensor:
        """Do one step with the mean of all parts' gradients, in the order of the parts; return the mean loss."""

        def closure() -> torch.Tensor:
            buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
            found = []
            for index in range(parts):
                for name, value in buffers.items():  # each part has a model of its own
                    self.model.get_buffer(name).copy_(value)
                found.append(self._part(step, number, time, index))
            for position, parameter in enumerate(self.model.parameters()):
                parameter.grad = mean([gradients[position] for _, gradients in found])
            if step.max_norm is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), step.max_norm)
            return sum_in_order([loss for loss, _ in found]) / parts

        if "closure" in self.made_of.row.needs:
            return torch.as_tensor(self.optimizer.step(closure))
        loss = closure()
        self.optimizer.step()  # that of another package may take no closure
        return loss

    def _part(self, step: Step, number: int, time: int, index: int) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        batches = self.made_of.batches(self.model, step, number, time, index)
        self.model.zero_grad()
        losses = []
        with self.made_of.drawing(index, self.generators):
            for batch in batches:
                loss = batch.loss(self.model)
                loss.backward()
                losses.append(loss.detach())
        gradients = [parameter.grad for parameter in self.model.parameters()]
        return sum_in_order(losses), [
            each.coalesce() if each is not None and each.is_sparse else each for each in gradients
        ]


class Stored:
    """The reference of a plan that is done as it stands: it is trained once in a run, whichever cases need it."""

    def __init__(self, plan: Plan) -> None:
        self.run = order_matched(plan)
        self.done = 0

    def step(self, *_: Any) -> None:
        self.done += 1

    @property
    def values(self) -> dict[str, torch.Tensor]:
        return self.run.steps[self.done - 1].values if self.done else self.run.start
