"""The models of scripts of ``replicate``: a tree of modules, to whose output every parameter adds its own term."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from everyrank.fixtures.models import fill
from everyrank.suites.moves.model import Param as Param
from everyrank.suites.moves.model import new_parameters
from everyrank.suites.replicate.building import Build
from everyrank.suites.trainer.model import term
from torch import nn

#: How many numbers the model takes and returns for a row, and how many rows a batch has.
FEATURES, WIDTH, ROWS = 4, 2, 4

#: The submodules that every model has.
PARTS = ("inner", "other")


@dataclass(frozen=True)
class Buffer:
    """One buffer of the whole module. One of int64 counts the forwards in training."""

    name: str
    dtype: str
    gaps: bool = False
    scalar: bool = False
    moving: bool = False
    """Whether each forward in training moves it towards what it is given, as batch norm does."""
    saved: bool = field(default=True, repr=False)
    """Whether it is in a state dict."""


#: What buffers a model may have.
BUFFERS: dict[str, tuple[Buffer, ...]] = {
    "": (),
    "counts": (Buffer("b0", "float64"), Buffer("b1", "int64")),
    "gaps": (Buffer("b0", "bfloat16", gaps=True), Buffer("b1", "bool")),
    "batches": (Buffer("b0", "int64", scalar=True), Buffer("b1", "float32", moving=True)),
    "narrow": (Buffer("b0", "uint8"), Buffer("b1", "int64", scalar=True), Buffer("b2", "float16")),
}

#: Those of further crossings.
MORE_BUFFERS = BUFFERS | {"unsaved": (Buffer("b0", "float64", saved=False), Buffer("b1", "int64"))}


#: What ``build`` is asked for by these names.
_OPTIONS: dict[str, dict[str, Any]] = {
    "small-buckets": {"bucket_cap_mb": 0.0001},
    "bucket-view": {"gradient_as_bucket_view": True},
    "static-graph": {"static_graph": True},
    "device": {"device_id": torch.device("cpu")},
    "own-buffers": {"broadcast_buffers": False},
}


@dataclass(frozen=True)
class Model:
    """A tree of modules, how the subject is built on it, and an optimizer over its parameters."""

    size: int
    params: tuple[Param, ...] = ()
    """The parameters besides those of the layers: each module has a layer."""
    buffers: tuple[Buffer, ...] = ()
    optimizer: str = "SGD"
    """SGD, momentum or Adam."""
    built: str = ""
    """What ``build`` is asked for: small-buckets, bucket-view, static-graph, device or own-buffers; apart: each
    submodule is replicated on its own; ignored: ``inner`` is not replicated."""
    asked: bool = False
    """Whether ``build`` is asked for ``find_unused_parameters``: without it no script leaves a parameter out."""
    alike: bool = field(default=False, repr=False)
    """Whether the ranks start with the same values."""
    equal_at_once: bool = True
    """Whether values are compared as soon as the module is built; otherwise from the first forward on."""

    @property
    def build(self) -> Build:
        """What the subject is asked for."""
        asked = {"find_unused_parameters": True} if self.asked else {}
        return Build(
            PARTS if self.built == "apart" else ("",),
            "inner" if self.built == "ignored" else "",
            offers={**_OPTIONS.get(self.built, {}), **asked},
        )


class Steep(torch.autograd.Function):
    """Zero, with gradients near the largest number of the dtype, whatever comes back."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor) -> torch.Tensor:
        ctx.like = parameter.detach()
        return torch.zeros((), dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        parts = torch.linspace(0.6, 0.8, ctx.like.numel(), dtype=torch.float64)
        return (parts * torch.finfo(ctx.like.dtype).max).view(ctx.like.shape).to(ctx.like.dtype)


class Part(nn.Module):
    """A module of the tree. Its layer ``first`` is always used, so that each backward reaches each replica."""

    def __init__(self) -> None:
        super().__init__()
        self.first: nn.Module = nn.Linear(1, WIDTH, dtype=torch.float64)
        self.own: list[tuple[int, str, Param]] = []
        """Its parameters by each of their names: the number in the model, the name, and what it is like."""
        self.parts: list[str] = []
        self.moving: list[str] = []
        """Its buffers that a forward moves."""

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

    def forward(self, given: Any, skips: tuple[int, ...] = ()) -> torch.Tensor:
        x = given["deep"][0] if isinstance(given, dict) else given
        out: torch.Tensor = self.first(x[:, :1])
        for name, buffer in self.named_buffers(recurse=False):
            if buffer.is_floating_point():
                out = out + buffer.double().sum() / 64
            elif buffer.dtype == torch.int64 and self.training:
                self.get_buffer(name).add_(1)
            if name in self.moving and self.training:
                self.get_buffer(name).mul_(0.75).add_(x.detach().sum() / 8)
        for index, (number, name, param) in enumerate(self.own):
            if param.unused or number in skips:
                continue
            parameter = self.get_parameter(name)
            if param.huge:
                out = out + Steep.apply(parameter)
                continue
            found = term(param, parameter, x, index)
            # The last term's gradient is the memory of the sum's gradient, which the backward goes on to read.
            out = out / 2 + (found * 0.0 if param.zero else found)
        for name in self.parts:
            out = out + self.get_submodule(name)(given, skips=skips)
        return out


def make(made_of: Model, seed: int) -> Part:
    """Return a fresh model; equal seeds give equal values."""
    with torch.random.fork_rng(devices=[]):
        root = Part()
        if made_of.built == "apart":
            root.first = nn.Identity()  # only submodules are replicated: this layer would not be averaged
        for name in PARTS:
            root.part(name)
        for number, (param, parameter) in enumerate(new_parameters(made_of.params)):
            for name in filter(None, (param.name, param.also)):
                path, _, last = name.rpartition(".")
                part = root.part(path)
                part.register_parameter(last, parameter)
                part.own.append((number, last, param))
    for buffer in made_of.buffers:
        dtype = getattr(torch, buffer.dtype)
        value = torch.zeros(6, dtype=dtype)[::2] if buffer.gaps else torch.zeros(3, dtype=dtype)
        root.register_buffer(buffer.name, value[0].clone() if buffer.scalar else value, buffer.saved)
        root.moving += [buffer.name] if buffer.moving else []
    fill(root, seed)
    return root


def batch(number: int, time: int, rank: int, rowless: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one rank's rows and targets, which differ for each move and each time."""
    generator = torch.Generator().manual_seed(1 + rank + 8 * (time + 64 * number))
    count = 0 if rowless else ROWS
    rows = torch.randn(ROWS, FEATURES, dtype=torch.float64, generator=generator) * (1 + 0.25 * rank)
    targets = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator) + 0.5 * (rank + 1)
    return rows[:count], targets[:count]


def packed(rows: torch.Tensor, packing: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments of a forward: plain, by keyword, or nested."""
    if packing == "nested":
        return ({"deep": [rows, ("text", None)]},), {}
    return ((), {"given": rows}) if packing == "keyword" else ((rows,), {})


def loss(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss. A row counts the same on every rank: the ranks' mean is the whole batch's loss."""
    return (out - targets).square().sum() / (ROWS * WIDTH)


def buffer_values(buffer: torch.Tensor, number: int, rank: int) -> torch.Tensor:
    """Return values that no other rank has at any move."""
    if buffer.dtype == torch.bool:
        return torch.tensor([bool((rank + number) >> bit & 1) for bit in range(buffer.numel())])
    # Too large for a float32 to hold exactly; one without dimensions is too large for a float64.
    base = 0 if buffer.dtype != torch.int64 else 2**40 + 1 if buffer.dim() else 2**53 + 1
    return torch.zeros_like(buffer) + base + 4 * (number % 32) + rank
