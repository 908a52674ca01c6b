"""The model of a draw of ``parameter-server``: parameters in modules, and no forward."""

from __future__ import annotations

import torch
from everyrank.fixtures.models import fill
from everyrank.suites.generate.models import new_parameters, put
from everyrank.suites.parameter_server import grammar as g
from torch import nn


def make(draw: g.Draw) -> tuple[nn.Module, list[int]]:
    """Return a fresh model, always with the same values, and the draw's number of each parameter, in its order."""
    root = nn.Module()
    numbers: dict[int, int] = {}
    for number, (param, made) in enumerate(new_parameters(draw.params)):
        numbers[id(made)] = number
        for name in filter(None, (param.name, param.also)):
            put(root, name, made)
    if draw.buffer:
        root.register_buffer("passed", torch.tensor(2**40 + 1))
    fill(root, seed=3)
    return root, [numbers[id(parameter)] for parameter in root.parameters()]
