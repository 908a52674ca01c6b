"""The plain optimizer on what this rank holds, with the gradients that the rank's own optimizer gets.

A step divides by the size of a gradient: where that is zero but for rounding, two correct versions part. Rounding of
gradients is then no measure for updates. If the plain optimizer makes of a rank's gradients what the rank has made
of them, the update is right if the gradients are. Of an optimizer that looks at more than an element, `assembled` has
what it makes of whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from everyrank.parity.setup.models import Parallel
from everyrank.parity.setup.optimizers import optimizers_of, twin_of
from everyrank.parity.values.names import parameters
from everyrank.parity.values.tree import gradient_of, local
from torch import nn

#: How many roundings two ways to write the same step may be apart.
_ROUNDINGS = 16


class Shadow:
    """Copies of the parameters, with an optimizer of their own."""

    def __init__(self, optimizer: Callable[[Any], Any], parallel: Parallel) -> None:
        self._modules = parallel.modules
        trained = {key: each for key, each in parameters(self._modules) if each.requires_grad}
        self._copies = {key: nn.Parameter(local(each.detach()).clone()) for key, each in trained.items()}
        twin = twin_of(parallel.root, {id(each): self._copies[key] for key, each in trained.items()})
        self._optimizer = optimizers_of(optimizer, twin, parallel.names, parallel.rename) if self._copies else None

    def take(self) -> None:
        """Take parameters and gradients as they are before a step."""
        for key, parameter in parameters(self._modules):
            copy = self._copies.get(key)
            if copy is not None:
                values = local(parameter.detach())
                if values.shape == copy.shape:
                    copy.data.copy_(values)
                copy.grad = None if parameter.grad is None else gradient_of(parameter).clone()

    def step(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Step, with these gradients in place of those that were taken."""
        for key, gradient in gradients.items():
            if key in self._copies:
                self._copies[key].grad = gradient.clone()
        if self._optimizer is None:
            return
        try:
            self._optimizer.step()
            self._optimizer.end()
        except (RuntimeError, TypeError, ValueError):  # it takes no part of a tensor, or needs a closure
            self._copies.clear()
            self._optimizer = None

    def differs(self, key: str, values: torch.Tensor) -> bool:
        """Return whether the copy is known, and not where the parameter is: a step was made with other gradients."""
        copy = self._copies.get(key)
        return copy is not None and copy.shape == values.shape and not self.agrees(key, values)

    def agrees(self, key: str, values: torch.Tensor) -> bool:
        """Return whether the copy is where the parameter is."""
        copy = self._copies.get(key)
        return copy is not None and copy.shape == values.shape and are_near(copy.detach(), values)


def are_near(values: torch.Tensor, others: torch.Tensor) -> bool:
    """Return whether two tensors are the same, but for the way in which the same step is written."""
    if values.dtype != others.dtype:
        return False
    near = _ROUNDINGS * torch.finfo(values.dtype).eps
    return torch.allclose(values, others, rtol=near, atol=near * _largest(others))


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().nan_to_num().max()) if values.numel() else 0.0
