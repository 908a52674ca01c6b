"""The contract ``losses``: a loss that gathers over ranks trains the encoders as one process does on the whole batch.

A subject is ``build()``, on every rank: it returns the loss, a function or module of ``left``, ``right``, ``labels``
and ``scale``, by their names: this rank's rows as two encoders see them, their classes, and a learned number. It is
built anew for each model, and may ask for the rank and the world. The reference is the same code in a world of one,
which has all rows and nothing to gather. `subjects` makes a row of the board of each loss of a package.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from everyrank.parity import Parted, parity
from everyrank.suites import Contract, Deviation, Point, Subject
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.engine.contract import Law
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

#: Builds a loss, on every rank.
Build = Callable[[], Callable[..., torch.Tensor]]

ROWS, INPUTS, FEATURES, CLASSES = 16, 6, 4, 4
#: The second step has what the first has left behind.
STEPS = 2
#: The time limit of a case in seconds.
TIMEOUT = 120.0


class Encoders(nn.Module):
    """Two encoders and a learned number; the loss of what they make of a rank's rows stands beside them."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(INPUTS, FEATURES), nn.Linear(INPUTS, FEATURES)
        self.scale = nn.Parameter(torch.zeros(()))
        self.loss = build()

    def forward(self, rows: torch.Tensor, others: torch.Tensor) -> dict[str, torch.Tensor]:
        left, right = F.normalize(self.left(rows), dim=-1), F.normalize(self.right(others), dim=-1)
        return {"left": left, "right": right, "scale": self.scale.exp()}


def batch(step: int) -> dict[str, torch.Tensor]:
    """Return two views of the rows, and their classes, of which every rank has all."""
    generator = torch.Generator().manual_seed(step)
    rows = torch.randn(ROWS, INPUTS, generator=generator)
    others = rows + torch.randn(ROWS, INPUTS, generator=generator)
    return {"rows": rows, "others": others, "labels": torch.arange(ROWS) % CLASSES}


def wrapped(model: nn.Module) -> nn.Module:
    # Most losses do not look at the learned number.
    return DistributedDataParallel(model, find_unused_parameters=True)


def of_rank(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    found: torch.Tensor = model.module.loss(**model(batch["rows"], batch["others"]), labels=batch["labels"])
    return found


@contextlib.contextmanager
def arena(subject: Subject, point: Point) -> Iterator[Build]:
    """Give the law the subject's build."""
    yield subject.build


CONTRACT = Contract("losses", arena, fixtures=("process_group",), ledgers={"cause": "losses.ledgers"})


def trains(build: Build, point: Point) -> None:
    """Under DDP, a loss that gathers trains the encoders as one process does on the whole batch."""
    try:
        with subject_acts("ddp"):
            # A microbatch would have its own pairs alone.
            parity(
                model=partial(Encoders, build),
                parallelize=wrapped,
                batch=batch,
                loss=of_rank,
                steps=STEPS,
                microbatches=1,
                reference="one rank",
            )
    except Deviation as deviation:
        if isinstance(deviation.__cause__, Parted):
            raise Deviation(str(deviation.__cause__)) from None
        raise


CONTRACT.register(Law("ddp", trains, lambda: [Point("one-microbatch", 2, core=True)], timeout=TIMEOUT))


def subjects(
    package: str, losses: Mapping[str, Build], causes: Mapping[str, list[str]] | None = None
) -> list[Subject]:
    """Return a row of the board for each loss of a package; ``causes`` has the names of those with a known cause."""
    known = {name: f"cause:{cause}" for cause, names in (causes or {}).items() for name in names}
    return [
        Subject(f"{package}.{name}", CONTRACT, build, known=known.get(name), package=package)
        for name, build in losses.items()
    ]
