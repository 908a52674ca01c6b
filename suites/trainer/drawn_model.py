"""The model of a draw of ``trainer``: a chain of linear layers, to whose output every other parameter adds a term."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence

import torch
from everyrank.fixtures.models import fill
from everyrank.suites.generate.models import new_parameters, put
from everyrank.suites.trainer import grammar as g
from everyrank.suites.trainer.batches import Microbatch
from torch import nn

#: How many numbers the model takes and returns for a row, the rows of a microbatch, and those of an embedding.
FEATURES, WIDTH, ROWS, VOCABULARY = 4, 2, 4, 3


class DrawnModel(nn.Module):
    """The forward follows the draw, so that the order of registration makes no difference."""

    def __init__(self, draw: g.Draw) -> None:
        super().__init__()
        self.draw = draw
        self.skips: tuple[int, ...] = ()
        """The parameters that the next forwards do not use."""
        widths = (FEATURES, *draw.layers, WIDTH)
        for number, (wide, next_wide) in enumerate(itertools.pairwise(widths)):
            self.add_module(f"layer{number}", nn.Linear(wide, next_wide, dtype=torch.float64))
        for param, made in new_parameters(draw.params):
            for name in filter(None, (param.name, param.also)):
                put(self, name, made)
        if draw.buffer:
            self.register_buffer("shift", torch.arange(WIDTH, dtype=torch.float64) / 8)

    @property
    def layers(self) -> int:
        return len(self.draw.layers) + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x
        for number in range(self.layers):
            out = self.get_submodule(f"layer{number}")(torch.tanh(out) if number else out)
        if self.draw.buffer:
            out = out + self.get_buffer("shift")
        for index, param in enumerate(self.draw.params):
            if param.unused or index in self.skips:
                continue
            for again, name in enumerate(filter(None, (param.name, param.also))):
                # Where a trainer keeps parameters elsewhere, the attribute is a tensor in its place.
                value: torch.Tensor = functools.reduce(getattr, name.split("."), self)  # type: ignore[assignment]
                out = out + _term(param, value, x, index + again)
        return out


def _term(param: g.Param, parameter: torch.Tensor, x: torch.Tensor, index: int) -> torch.Tensor:
    """Return a term to which each element, and each name of one parameter, contributes in its own way."""
    if param.layout == "embedding":
        ids = (x[:, index % FEATURES] * 4).floor().long() % VOCABULARY
        return nn.functional.embedding(ids, parameter, sparse=True)
    flat, count = parameter.reshape(-1), parameter.numel()
    phases = torch.arange(1, count * WIDTH + 1, dtype=x.dtype) + index
    factors = torch.sin(x[:, :1] * phases).view(len(x), count, WIDTH).to(parameter.dtype)
    term = (flat[None, :, None] * factors).sum(1) / math.sqrt(max(count, 1))
    return (term.real + term.imag / 2 if term.is_complex() else term).to(x.dtype)


def make(draw: g.Draw, seed: int, frozen: Iterable[int]) -> DrawnModel:
    """Return a fresh model with these parameters frozen; equal seeds give equal values."""
    with torch.random.fork_rng(devices=[]):
        model = DrawnModel(draw)
    fill(model, seed)
    set_frozen(model, draw, frozen)
    return model


def set_frozen(model: nn.Module, draw: g.Draw, frozen: Iterable[int]) -> None:
    """Freeze these parameters of a draw, and thaw the others."""
    numbers = set(frozen)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for number, param in enumerate(draw.params):
        parameters[param.name].requires_grad_(number not in numbers)


def layer_names(draw: g.Draw) -> list[str]:
    """Return the names of the layers' parameters."""
    return [f"layer{number}.{kind}" for number in range(len(draw.layers) + 1) for kind in ("weight", "bias")]


def microbatches(action: g.Step, number: int, time: int, index: int) -> Sequence[Microbatch]:
    """Return the microbatches of a part, which differ for each action, each step of it and each part."""
    return [_microbatch(action, number, time, index, part) for part in range(action.parts)]


def _microbatch(action: g.Step, number: int, time: int, index: int, part: int) -> Microbatch:
    generator = torch.Generator().manual_seed(1 + index + 4 * (part + 4 * (time + 8 * number)))
    inputs = torch.randn(8, FEATURES, dtype=torch.float64, generator=generator) * (1 + 0.25 * index)
    targets = torch.randn(8, WIDTH, dtype=torch.float64, generator=generator) + 0.5 * (index + 1)
    rows = action.rows[index] if action.rows else ROWS
    if action.spoiled and index == action.by:
        targets = torch.full_like(targets, float(action.spoiled))
    return Microbatch(inputs[:rows], targets[:rows], action.parts)
