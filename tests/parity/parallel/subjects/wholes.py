"""Optimizers that look at whole tensors, of which ranks hold shards: they bring these together first.

They are written anew after their papers: LAMB (arXiv 1904.00962), LARS (arXiv 1708.03888), Adafactor (arXiv
1804.04235) and Shampoo (arXiv 1802.09568).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from tests.parity.parallel.subjects.sharded import Fsdp

State = dict[str, torch.Tensor]


class OfWholes(torch.optim.Optimizer):
    """An optimizer whose change of a tensor is made of the whole tensor and its whole gradient."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    change = self.change(state, self.seen(parameter), self.seen(parameter.grad))
                    self.apply(parameter, -group["lr"] * change)

    def seen(self, x: torch.Tensor) -> torch.Tensor:
        return x.full_tensor() if isinstance(x, DTensor) else x

    def apply(self, parameter: torch.Tensor, change: torch.Tensor) -> None:
        if isinstance(parameter, DTensor):
            change = distribute_tensor(change, parameter.device_mesh, parameter.placements)
        parameter.add_(change)

    def change(self, state: State, values: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Lamb(OfWholes):
    """Adam's direction, as long as the weights are."""

    def change(self, state: State, values: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        mean = state["mean"] = state.get("mean", torch.zeros_like(gradient)).lerp(gradient, 0.1)
        square = state["square"] = state.get("square", torch.zeros_like(gradient)).lerp(gradient.square(), 0.01)
        direction = mean / (square.sqrt() + 1e-6) + 0.1 * values
        longer: torch.Tensor = direction * values.norm() / direction.norm()
        return longer


class Lars(OfWholes):
    """Momentum of gradients that are as long as the weights are."""

    def change(self, state: State, values: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        trust = values.norm() / (gradient.norm() + 0.1 * values.norm())
        before = 0.9 * state.get("momentum", torch.zeros_like(gradient))
        state["momentum"] = before + trust * (gradient + 0.1 * values)
        return state["momentum"]


class Adafactor(OfWholes):
    """Gradients over the roots of their mean squares by rows and columns, clipped by their own mean square."""

    def change(self, state: State, values: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        square = gradient.square() + 1e-30
        if square.ndim == 2:
            rows, columns = square.mean(1, keepdim=True), square.mean(0, keepdim=True)
            square = rows * columns / rows.mean()
        direction = gradient / square.sqrt()
        return direction / direction.square().mean().sqrt().clamp(min=1.0)


class Shampoo(OfWholes):
    """Gradients between the fourth roots of what they have spread over, on either side."""

    def change(self, state: State, values: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        if gradient.ndim != 2:
            return gradient
        for name, spread in (("left", gradient @ gradient.T), ("right", gradient.T @ gradient)):
            state[name] = state.get(name, 1e-2 * torch.eye(len(spread), dtype=spread.dtype)) + spread
        return fourth_root(state["left"]) @ gradient @ fourth_root(state["right"])


def fourth_root(x: torch.Tensor) -> torch.Tensor:
    """Return one over the fourth root of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(x)
    root: torch.Tensor = vectors * values.pow(-0.25) @ vectors.T
    return root


class FsdpLamb(Fsdp):
    """LAMB of whole tensors."""

    plain: ClassVar[type[OfWholes]] = Lamb
    #: The optimizer of what ranks hold.
    ranks_kind: ClassVar[type[OfWholes]] = Lamb

    def optimizer(self, params: Iterable[Any]) -> torch.optim.Optimizer:
        params = [*params]
        return (self.ranks_kind if any(isinstance(each, DTensor) for each in params) else self.plain)(params)


class FsdpLars(FsdpLamb):
    """LARS of whole tensors."""

    plain = ranks_kind = Lars


class FsdpAdafactor(FsdpLamb):
    """Adafactor of whole tensors."""

    plain = ranks_kind = Adafactor


class FsdpShampoo(FsdpLamb):
    """Shampoo of whole tensors."""

    dtypes = ("float64", "float32")
    plain = ranks_kind = Shampoo
