"""Models of scripts: parameters in memory of several layouts, and nested modules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

#: The length of the storage that parameters share.
_STORAGE = 1024


class _Param(Protocol):
    """What a script states of a parameter."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def layout(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def frozen(self) -> bool: ...


AnyParam = TypeVar("AnyParam", bound=_Param)


def new_parameters(params: Sequence[AnyParam]) -> Iterator[tuple[AnyParam, nn.Parameter]]:
    """Yield each parameter of a model with a new one of its layout, dtype and shape, whose values are not set yet."""
    used = 0
    shared: dict[str, torch.Tensor] = {}
    for param in params:
        storage = shared.setdefault(param.dtype, torch.empty(_STORAGE, dtype=getattr(torch, param.dtype)))
        yield param, nn.Parameter(_laid_out(param, storage[used:]), requires_grad=not param.frozen)
        used += math.prod(param.shape) + 1 if param.layout == "shared" else 0


def _laid_out(param: _Param, storage: torch.Tensor) -> torch.Tensor:
    dtype = storage.dtype
    if param.layout == "transposed":
        return torch.empty(param.shape[::-1], dtype=dtype).t()
    if param.layout == "gaps":
        *other, last = param.shape
        return torch.empty((*other, 2 * last), dtype=dtype)[..., ::2]
    if param.layout == "shared":
        return storage[: math.prod(param.shape)].view(param.shape)
    return torch.empty(param.shape, dtype=dtype)


def put(module: nn.Module, name: str, value: Any) -> None:
    """Set a parameter, or a bare ShardedTensor, under a dotted name; add the modules that the name needs."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = getattr(module, part)
    setattr(module, last, value)
