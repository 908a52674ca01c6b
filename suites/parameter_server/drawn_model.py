"""The model of a draw of ``parameter-server``: parameters in modules, and no forward."""

from __future__ import annotations

import math

import torch
from everyrank.fixtures.models import fill
from everyrank.suites.parameter_server import grammar as g
from torch import nn

#: The length of the storage that parameters share.
_STORAGE = 256


def make(draw: g.Draw) -> tuple[nn.Module, list[int]]:
    """Return a fresh model, always with the same values, and the draw's number of each parameter, in its order."""
    root = nn.Module()
    shared: dict[str, torch.Tensor] = {}
    numbers: dict[int, int] = {}
    used = 0
    for number, param in enumerate(draw.params):
        dtype = getattr(torch, param.dtype)
        storage = shared.setdefault(param.dtype, torch.zeros(_STORAGE, dtype=dtype))
        made = nn.Parameter(_laid_out(param, storage[used:]), requires_grad=not param.frozen)
        used += math.prod(param.shape) + 1 if param.layout == "shared" else 0
        numbers[id(made)] = number
        for name in filter(None, (param.name, param.also)):
            path, _, last = name.rpartition(".")
            _module(root, path).register_parameter(last, made)
    if draw.buffer:
        root.register_buffer("passed", torch.tensor(2**40 + 1))
    fill(root, seed=3)
    return root, [numbers[id(parameter)] for parameter in root.parameters()]


def _module(root: nn.Module, path: str) -> nn.Module:
    """Return the module at this path; add modules that are missing."""
    inside = root
    for name in filter(None, path.split(".")):
        if name not in dict(inside.named_children()):
            inside.add_module(name, nn.Module())
        inside = inside.get_submodule(name)
    return inside


def _laid_out(param: g.Param, storage: torch.Tensor) -> torch.Tensor:
    dtype = storage.dtype
    if param.layout == "transposed":
        return torch.empty(param.shape[::-1], dtype=dtype).t()
    if param.layout == "gaps":
        *other, last = param.shape
        return torch.empty((*other, 2 * last), dtype=dtype)[..., ::2]
    if param.layout == "shared":
        return storage[: math.prod(param.shape)].view(param.shape)
    return torch.empty(param.shape, dtype=dtype)
