"""The microbatches that a trainer is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from everyrank.fixtures.failing import MESSAGE, InjectedError
from torch import nn


@dataclass(frozen=True)
class Microbatch:
    """Inputs, targets, and how many microbatches the step has: each counts for that part of the loss."""

    inputs: torch.Tensor
    targets: torch.Tensor
    parts: int = 1
    asked: list[torch.Tensor] = field(default_factory=list, kw_only=True, compare=False)
    """The losses that were asked for: not every rank of a pipeline computes a loss."""

    prepare: Callable[[], None] | None = field(default=None, kw_only=True, compare=False)
    """What is done to the model before its forward: not every microbatch of a step uses the same parameters."""

    def criterion(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return this microbatch's part of the loss."""
        loss = self._loss(outputs)
        self.asked.append(loss.detach())
        return loss

    def _loss(self, outputs: torch.Tensor) -> torch.Tensor:
        return (outputs - self.targets).square().mean() / self.parts

    def loss(self, model: nn.Module) -> torch.Tensor:
        if self.prepare is not None:
            self.prepare()
        return self.criterion(model(self.inputs))

    def rows(self) -> list[Microbatch]:
        """Return a microbatch of each row; their losses add up to this one's."""
        count = len(self.inputs)
        pairs = zip(self.inputs.split(1), self.targets.split(1), strict=True)
        return [replace(self, inputs=inputs, targets=targets, parts=self.parts * count) for inputs, targets in pairs]

    def to(self, device: torch.device) -> Microbatch:
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


@dataclass(frozen=True)
class Failing(Microbatch):
    """A microbatch whose loss raises, or whose backward does."""

    message: str = field(default=MESSAGE, kw_only=True)
    in_backward: bool = field(default=False, kw_only=True)

    def criterion(self, outputs: torch.Tensor) -> torch.Tensor:
        loss = super().criterion(outputs)
        if not self.in_backward:
            self.fail(loss)
        loss.register_hook(self.fail)
        return loss

    def fail(self, _: torch.Tensor) -> None:
        raise InjectedError(self.message)
