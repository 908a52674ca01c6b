"""The contract ``models``: a model that is made parallel trains as the plain model does.

A subject is ``build(mode, folder)``, on every rank. It returns the arguments of `everyrank.parity` for that mode: of
these, ``model``, ``parallelize``, ``batch`` and ``loss`` are needed; the laws add the optimizer, and the numbers of
steps and microbatches. A ``step`` takes the latter by its name, too. ``folder`` is one and the same on all ranks, for
a model that is loaded from a file. A subject that has no such mode raises NotImplementedError with a sentence, which
the board shows. A model that trains as the plain one is red all the same if each rank has all of what the mode cuts.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from everyrank.parity import Parted, parity
from everyrank.rank.context import current_rank
from everyrank.suites import Contract, Deviation, Point, Subject
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.engine.contract import Law
from everyrank.suites.errors import NotApplicable

#: The modes, a law and so a column of the board each: how ranks share the work, as the law says it.
MODES = {
    "tensor": "Under its tensor parallel plan, a model trains as the plain model in one process.",
    "fsdp2": "Under FSDP2, a model trains as the plain model in one process.",
    "experts": "With its experts over ranks that share the batch, a model trains as the plain model in one process.",
    "fsdp2-experts": "Under FSDP2, with its experts over ranks, a model trains as the plain model in one process.",
    "pipeline": "With its layers over ranks, a model trains as the plain model in one process.",
    "sequence": "With each row's tokens over ranks, a model trains as the plain model in one process.",
}
#: What a rank must not have all of, or else nothing is parallel: of the other modes it is weights.
CUT = {"sequence": "tokens"}

#: The worlds of more than two ranks. On a group of one rank FSDP2 divides twice in fp64, and one would see no more:
#: each expert is sharded over two ranks (docs/findings/fsdp-divide-factor-of-one.md).
RANKS = {"fsdp2-experts": 4}
#: The second step has what the first has left behind.
STEPS = 2
#: The time limit of a case in seconds.
TIMEOUT = 240.0


@dataclass(frozen=True, kw_only=True)
class Microbatches(Point):
    """A point with the number of parts that a step's batch is cut into."""

    microbatches: int


def _points(size: int) -> Iterator[Microbatches]:
    # With two, most is seen at once: it is the one that the quick profile has.
    yield Microbatches("two-microbatches", size, core=True, microbatches=2)
    yield Microbatches("one-microbatch", size, core=True, microbatches=1)


@contextlib.contextmanager
def arena(subject: Subject, point: Point) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Give a law the subject's arguments of parity for a mode."""
    shared = [tempfile.mkdtemp(dir=current_rank().run_folder) if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(shared, 0)
    yield lambda mode: subject.build(mode, Path(shared[0]))
    # Where a rank has failed, the folder stays until the run ends: another rank may still read it.
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(shared[0])


CONTRACT = Contract("models", arena, fixtures=("process_group",), ledgers={"cause": "models.ledgers"})


def _law(mode: str) -> Callable[[Any, Microbatches], None]:
    def trains(build: Any, point: Microbatches) -> None:
        try:
            with subject_acts(mode):
                arguments = build(mode)
        except Deviation as refused:
            if isinstance(refused.__cause__, NotImplementedError):
                raise NotApplicable(str(refused.__cause__)) from None
            raise
        settled: dict[str, Any] = {"steps": STEPS, "microbatches": point.microbatches, "optimizer": _momentum}
        if point.microbatches == 1:
            # What shows in fp32 shows with two as well.
            settled["dtypes"] = (torch.float64,)
        if "step" in arguments:
            arguments = {**arguments, "step": partial(arguments["step"], microbatches=point.microbatches)}
        try:
            with subject_acts(mode):
                report = parity(**{**settled, **arguments})
        except Deviation as deviation:
            if isinstance(deviation.__cause__, Parted):
                raise Deviation(str(deviation.__cause__)) from None
            raise
        needed = CUT.get(mode, "weights")
        if needed not in report.cut:
            raise Deviation(f"nothing is parallel: each rank has all {needed}")

    trains.__doc__ = MODES[mode]
    return trains


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    # The gradients are what a way to be parallel gets wrong; AdamW takes five times the operations on DTensors, of
    # which each is propagated anew for each model.
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


for each in MODES:
    CONTRACT.register(Law(each, _law(each), partial(_points, RANKS.get(each, 2)), timeout=TIMEOUT))
