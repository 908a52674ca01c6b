"""The model of a draw of ``replicate``: every parameter adds its own term to the output."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from everyrank.fixtures.models import fill
from everyrank.suites.generate.models import new_parameters
from everyrank.suites.replicate import grammar as g
from torch import nn

#: How many numbers the model returns for a row, how many rows a batch has, and how many rows an embedding has.
WIDTH, ROWS, VOCABULARY = 2, 4, 3

#: Parameters with more elements get one factor per element, not one per element and row.
_SMALL = 64


class Rows(NamedTuple):
    """The model's input: numbers and ids, row by row."""

    numbers: torch.Tensor
    ids: torch.Tensor


class Part(nn.Module):
    """A module of the tree. Its layer ``first`` is always used, so that each backward reaches each replica."""

    def __init__(self) -> None:
        super().__init__()
        self.first: nn.Module = nn.Linear(1, WIDTH, dtype=torch.float64)
        self.own: list[tuple[int, str, bool]] = []
        """Its parameters by each of their names: the number in the draw, the name, and whether it is an embedding."""
        self.parts: list[str] = []

    def part(self, path: str) -> Part:
        """Return the module at this path; make it if there is none."""
        if not path:
            return self
        name, _, rest = path.partition(".")
        if name not in self.parts:
            self.add_module(name, Part())
            self.parts.append(name)
        inside = self.get_submodule(name)
        assert isinstance(inside, Part)
        return inside.part(rest)

    def forward(self, rows: Rows, skips: tuple[int, ...] = ()) -> torch.Tensor:
        out: torch.Tensor = self.first(rows.numbers[:, None])
        for name, buffer in self.named_buffers(recurse=False):
            if buffer.is_floating_point():
                out = out + buffer.double().sum() / 64
            elif buffer.dtype == torch.int64 and self.training:
                self.get_buffer(name).add_(1)
        for index, (number, name, embedding) in enumerate(self.own):
            if number in skips:
                continue
            parameter = self.get_parameter(name)
            if embedding:
                term = nn.functional.embedding(rows.ids, parameter, sparse=True)
            else:
                term = _term(parameter, rows, index)
            # The last term's gradient is the memory of the sum's gradient, which the backward goes on to read.
            out = out / 2 + term
        for name in self.parts:
            out = out + self.get_submodule(name)(rows, skips=skips)
        return out


def _term(parameter: torch.Tensor, rows: Rows, index: int) -> torch.Tensor:
    """Return a term to which each element, and each name of one parameter, contributes in its own way."""
    flat, count = parameter.reshape(-1), parameter.numel()
    x = rows.numbers.to(parameter.dtype)
    if count > _SMALL:
        scale = torch.linspace(0.5, 1, count, dtype=torch.float64).to(parameter.dtype)
        term = (x * (flat @ scale) / math.sqrt(count))[:, None].expand(-1, WIDTH)
    else:
        phases = torch.arange(1, count * WIDTH + 1, dtype=torch.float64).to(parameter.dtype) + index
        factors = torch.sin(x[:, None] * phases).view(len(x), count, WIDTH)
        term = (flat[None, :, None] * factors).sum(1) / math.sqrt(max(count, 1))
    return (term.real + term.imag / 2 if term.is_complex() else term).double()


def make(draw: g.Draw, seed: int) -> Part:
    """Return a fresh model; equal seeds give equal values."""
    with torch.random.fork_rng(devices=[]):
        root = Part()
        if draw.apart:
            root.first = nn.Identity()  # only submodules are replicated: this layer would not be averaged
        for number, (param, made) in enumerate(new_parameters(draw.params)):
            for name in filter(None, (param.name, param.also)):
                path, _, last = name.rpartition(".")
                part = root.part(path)
                part.register_parameter(last, made)
                part.own.append((number, last, param.layout == "embedding"))
    for buffer in draw.buffers:
        dtype = getattr(torch, buffer.dtype)
        value = torch.zeros(6, dtype=dtype)[::2] if buffer.gaps else torch.zeros(3, dtype=dtype)
        root.register_buffer(buffer.name, value)
    fill(root, seed)
    return root


def batch(number: int, time: int, rank: int, rowless: bool) -> tuple[Rows, torch.Tensor]:
    """Return one rank's rows and targets, which differ for each action and each time."""
    generator = torch.Generator().manual_seed(1 + rank + 8 * (time + 64 * number))
    count = 0 if rowless else ROWS
    numbers = torch.randn(ROWS, dtype=torch.float64, generator=generator) * (1 + 0.25 * rank)
    ids = torch.randint(VOCABULARY, (ROWS,), generator=generator)
    targets = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator) + 0.5 * (rank + 1)
    return Rows(numbers[:count], ids[:count]), targets[:count]


def loss(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss. A row counts the same on every rank: the ranks' mean is the whole batch's loss."""
    return (out - targets).square().sum() / (ROWS * WIDTH)


def buffer_values(buffer: torch.Tensor, number: int, rank: int) -> torch.Tensor:
    """Return values that no other rank has at any action."""
    if buffer.dtype == torch.bool:
        return torch.tensor([bool((rank + number) >> bit & 1) for bit in range(buffer.numel())])
    base = 2**40 + 1 if buffer.dtype == torch.int64 else 0  # too large for a float32 to hold exactly
    return torch.zeros_like(buffer) + base + 4 * (number % 32) + rank
