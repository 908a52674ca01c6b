"""The parameters of a trainer and of a model: by which names, how they are read, and in which order they stand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from everyrank.suites.arena.subject_errors import subject_acts
from torch import nn
from torch.distributed.tensor import DTensor

Values = dict[str, torch.Tensor]


def full_parameters(trainer: Any, names: Mapping[str, str]) -> Values:
    """Return what ``parameters()`` returns, by the first name of each; ``names`` has that for each name."""
    with subject_acts("parameters()"):
        found = dict(trainer.parameters())
    return {
        names.get(name, name): value.detach().cpu().clone()
        for name, value in found.items()
        if names.get(name, name) == name or names[name] not in found
    }


def own_parameters(model: nn.Module) -> Values:
    """Return copies of what this rank has of a model's parameters."""
    return {name: _local(value.detach()).clone() for name, value in model.named_parameters()}


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_names(model: nn.Module) -> dict[str, str]:
    """Return for each name of a parameter the first name of that parameter: a tied one has two."""
    first = {parameter: name for name, parameter in model.named_parameters()}
    return {name: first[parameter] for name, parameter in model.named_parameters(remove_duplicate=False)}


def digests(values: Values) -> dict[str, str]:
    """Return for each parameter a short text, equal for values that are equal bit for bit."""
    return {
        name: hashlib.sha256(_packed(value).view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, value in sorted(values.items())
    }


def _packed(value: torch.Tensor) -> torch.Tensor:
    # Torch takes one element for contiguous whatever its stride is, and then refuses to view it as bytes.
    return value.reshape(-1).clone(memory_format=torch.contiguous_format)


def reordered(model: nn.Module) -> nn.Module:
    """Register the parts of a model, and their parameters, in the opposite order. Its forward is the same."""
    forward = list(model.children()) if isinstance(model, nn.Sequential) else []
    for module in model.modules():
        _reverse(module._parameters)
        _reverse(module._modules)
    if forward:
        order = forward
        model.forward = lambda x: _through(order, x)
    return model


def _reverse(registered: dict[str, Any]) -> None:
    items = list(registered.items())
    registered.clear()
    registered.update(reversed(items))


def _through(layers: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = layer(x)
    return x
