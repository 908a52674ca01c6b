"""The models of laws: those of a plan, whose model, optimizer and batches have names in the tables of fixtures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from everyrank.suites.compare.reference import Plan
from everyrank.suites.replicate.building import Build
from everyrank.suites.replicate.model import Model, Param
from torch import nn

#: How a law packs the inputs of a forward, together with values that are not tensors.
Packing = Literal["positional", "keyword", "both", "nested"]


@dataclass(frozen=True, kw_only=True)
class Planned(Model):
    """The model of a plan."""

    plan: Plan
    options: Mapping[str, Any] = field(default_factory=dict)
    replicated: tuple[str, ...] = ("",)
    alone: str = ""
    own_values: bool = False
    """Whether each rank begins with values of its own, which replicas must not keep."""
    own_buffers: bool = False
    """Whether each rank begins with buffers of its own."""
    taking: bool = False
    """Whether a module around the model takes packed inputs, and notes them."""
    device: str = "cpu"

    @property
    def build(self) -> Build:
        return Build(self.replicated, self.alone, self.options, super().build.offers)


def planned(plan: Plan, **start: Any) -> Planned:
    """Return the model of a plan; ``start`` are further fields of it."""
    params = tuple(
        Param(name, tuple(value.shape), frozen=not value.requires_grad)
        for name, value in plan.build().named_parameters()
    )
    return Planned(size=plan.size, params=params, plan=plan, **start)


class Pair(NamedTuple):
    """A tuple with names."""

    left: Any
    right: Any


class Taker(nn.Module):
    """A module around a model that notes the arguments of its forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.taken: tuple[Any, Any] = ((), {})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.taken = (args, kwargs)
        x = kwargs["x"] if "x" in kwargs else args[0]
        while not isinstance(x, torch.Tensor):
            x = x["x"] if isinstance(x, dict) else x[0]
        return self.inner(x)


def packed(packing: Packing, x: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the same input in this packing, together with values that are not tensors."""
    plain = torch.arange(3)
    packings: dict[Packing, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "positional": ((x, plain, None, "text", 7), {}),
        "keyword": ((), {"x": x, "more": plain, "flag": True, "nothing": None}),
        "both": ((x,), {"more": [plain, 1.5]}),
        "nested": (([{"x": Pair(x, (plain, "text"))}, [plain]],), {"deep": {"a": (plain, None, {"b": [plain]})}}),
    }
    return packings[packing]
