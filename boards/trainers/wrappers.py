"""torch's wrappers, each with the optimizers of a package: a row of the board is a package under one wrapper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from everyrank.fixtures.models import FEATURES, Model
from everyrank.fixtures.optimizers import Row, Variant
from everyrank.suites import Subject
from everyrank.suites.trainer.subjects.ddp import DDP, ZERO
from everyrank.suites.trainer.subjects.sharded import FSDP2
from torch import nn

WRAPPERS = {"ddp": DDP, "fsdp2": FSDP2, "zero": ZERO}

#: Two ranks hold equal parts of the laws' models, and three do not.
SIZES = (2, 3)


class Wide(nn.Module):
    """Finds blocks of a shard that are not those of the whole: each rank has whole blocks of a matrix, in fp32."""

    def __init__(self, _: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 1024 * max(SIZES))
        self.last = nn.Linear(1024 * max(SIZES), FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.last(torch.tanh(self.first(x.float())))
        return outputs.to(x.dtype) / 8


#: For optimizers that keep a state in few bits, if a rank has 4,096 elements of a parameter.
WIDE = Model("wide", Wide, frozenset())


def under(wrapper: str, package: str, optimizers: Sequence[Row], **fields: Any) -> Subject:
    """Return the subject that trains by these optimizers under a wrapper, and deviates as the wrapper does.

    What the package does otherwise stands in the ledger of its own name, if there is one.
    """
    own = f"{package.replace('-', '_')}_{wrapper}.toml"
    known = [f"torch:{wrapper}", *([own] if Path(__file__).with_name(own).exists() else [])]
    as_usual = {"lacks": (), "variant_of": None, "touches": (), "sizes": SIZES, "known": known, "package": package}
    return replace(WRAPPERS[wrapper], name=f"{package}.{wrapper}", optimizers=optimizers, **{**as_usual, **fields})


def of_muon(parameters: Iterable[Any], **of_others: Any) -> list[dict[str, Any]]:
    """Return the groups that a Muon wants, and options of the second: matrices, and the rest, which Adam trains."""
    parameters = list(parameters)
    matrices, others = ([each for each in parameters if (each.ndim >= 2) is wanted] for wanted in (True, False))
    groups = ({"params": matrices, "use_muon": True}, {"params": others, "use_muon": False, **of_others})
    return [group for group in groups if group["params"]]


def row(optimizer: type, arguments: Mapping[str, Any] | None = None, name: str = "", **fields: Any) -> Row:
    """Return the row of a class, under another name if another package has a class of that name."""
    named = type(name, (optimizer,), {}) if name else optimizer
    return Row(named, (Variant("defaults", dict(arguments or {})),), **fields)
