"""What a rank keeps of a script's run, in files that the command reads: moments, each with a line and its tensors."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: Of a tensor with more elements than this, every n-th is kept.
MOST = 1 << 22


@dataclass
class Part:
    """What a rank has of a tensor: values, and their positions in the whole if they are not all of it."""

    values: Tensor
    shape: tuple[int, ...]
    ids: Tensor | None = None

    @property
    def positions(self) -> Tensor:
        return torch.arange(self.values.numel()) if self.ids is None else self.ids


@dataclass
class Moment:
    """Something that happened in a step: a backward, a clip, the optimizer's step."""

    kind: str
    line: str
    parts: dict[str, Part] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    """Names of tensors that this rank knows and that have no value: a parameter without a gradient."""


@dataclass
class Facts:
    """What is known of a rank's run besides."""

    torch: bool = True
    steps: int = 0
    rounds: int = 0
    """How many of all optimizers' steps are whole."""
    done: bool = False
    modules: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    """The modules of Python from which the classes of `modules` can be imported; empty if from none."""
    wrappers: list[str] = field(default_factory=list)
    optimizers: list[str] = field(default_factory=list)
    rate: float = 0.0
    """The first learning rate."""
    backwards: int = 0
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What is wrong at any size, with its line."""
    written: dict[str, str] = field(default_factory=dict)
    """The files that rank 0 has opened for writing, each with the line."""
    batch_norms: list[str] = field(default_factory=list)
    eps: float = 0.0
    """The rounding of the dtype in which autocast or FSDP lets modules compute; 0 without."""
    draws: bool = False
    """Whether the first module draws random numbers in its forward."""
    wide: bool = False
    """Whether it ran all in double."""
    narrow: list[str] = field(default_factory=list)
    """What is not in double then, each with its line."""
    moves: bool = False
    """Whether something else than an optimizer's step has changed parameters between two."""
    listens: bool = False
    """Whether a schedule of learning rates goes by the loss."""
    rank: int = 0
    """Of a record, as the four that follow: the rank that has left it, and the size of its world."""
    size: int = 0
    script: str = ""
    began: float = 0.0
    ended: float = 0.0
    moved: bool = False
    """Whether its weights were moved by a rounding."""


def part_of(tensor: Tensor) -> Part | None:
    """Return what this rank has of a tensor, without a word to other ranks; None for what cannot be read."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return _sampled(tensor.detach(), None, tuple(tensor.shape))
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if any(each.is_partial() for each in placements):
        return None
    local: Tensor = tensor._local_tensor.detach()  # type: ignore[attr-defined]
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, placements)  # type: ignore[attr-defined]
    if tuple(shape) != tuple(local.shape):
        return None
    return _sampled(local, tuple(offset), tuple(tensor.shape))


def _sampled(local: Tensor, offset: tuple[int, ...] | None, shape: tuple[int, ...]) -> Part | None:
    if local.layout != torch.strided or not (local.is_floating_point() or local.numel() < MOST):
        return None
    size = int(torch.Size(shape).numel())
    values, ids = local.reshape(-1), None
    if offset is not None and tuple(local.shape) != shape:
        ids = torch.zeros((), dtype=torch.int64)
        stride = 1
        for dimension in reversed(range(len(shape))):
            along = torch.arange(local.shape[dimension]) + offset[dimension]
            ids = ids + (along * stride).view(-1, *[1] * (len(shape) - 1 - dimension))
            stride *= shape[dimension]
        ids = ids.expand(local.shape).reshape(-1)
    if size > MOST:
        every = size // MOST + 1
        ids = torch.arange(len(values)) if ids is None else ids
        keep = ids % every == 0
        values, ids = values[keep], ids[keep]
    return Part(values.to("cpu", copy=True), shape, ids)


class Kept:
    """The files of one rank."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def write_facts(self, facts: Facts) -> None:
        half = self._folder / "half"
        half.write_text(json.dumps(asdict(facts)))
        half.replace(self._folder / "facts.json")

    def write_done(self) -> None:
        (self._folder / "done").touch()

    def facts(self) -> Facts | None:
        try:
            return Facts(**json.loads((self._folder / "facts.json").read_text()))
        except OSError:
            return None

    def write(self, step: int, rows: list[list[str]], moments: list[Moment]) -> None:
        data: dict[str, Any] = {"rows": rows, "moments": [_plain(moment) for moment in moments]}
        half = self._folder / "half"
        torch.save(data, half)
        half.replace(self._folder / f"step-{step}.pt")

    def read(self, step: int) -> tuple[list[list[str]], list[Moment]] | None:
        path = self._folder / f"step-{step}.pt"
        if not path.exists():
            return None
        data = torch.load(path, weights_only=True)
        return data["rows"], [_moment(plain) for plain in data["moments"]]


def _plain(moment: Moment) -> dict[str, Any]:
    parts = {name: (part.values, list(part.shape), part.ids) for name, part in moment.parts.items()}
    return {"kind": moment.kind, "line": moment.line, "parts": parts, "absent": moment.absent}


def _moment(plain: dict[str, Any]) -> Moment:
    parts = {name: Part(values, tuple(shape), ids) for name, (values, shape, ids) in plain["parts"].items()}
    return Moment(plain["kind"], plain["line"], parts, plain["absent"])
