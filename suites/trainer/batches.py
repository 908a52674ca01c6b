"""The microbatches that a trainer is given."""

from __future__ import annotations

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

    def criterion(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return this microbatch's part of the loss."""
        return (outputs - self.targets).square().mean() / self.parts

    def loss(self, model: nn.Module) -> torch.Tensor:
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
    """A microbatch whose loss raises."""

    asked: list[torch.Tensor] = field(default_factory=list, kw_only=True)
    """The losses that were asked for: not every rank of a pipeline computes a loss."""
    message: str = field(default=MESSAGE, kw_only=True)

    def criterion(self, outputs: torch.Tensor) -> torch.Tensor:
        self.asked.append(super().criterion(outputs).detach())
        raise InjectedError(self.message)
