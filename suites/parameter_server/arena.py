"""Where the laws of ``parameter-server`` are checked: a server on rank 0, and trainers near and far.

A trainer is *far* where a point says ``rpc``: on a worker of its own, from where it reports over RPC. Else it is
*near*: a thread of the server's process. What a server gets wrong it mostly gets wrong for both, and near is cheap.

A subject's ``build(module, trainers, optimizer, *, timeout, non_finite)`` makes a server that trains ``module``.
``optimizer(parameters)`` makes its optimizer, ``timeout`` is how many seconds a round may stay open, and
``non_finite`` says whether infinite and undefined gradients are taken; a subject has defaults for both. The server's
``update_and_fetch(gradients, trainer)`` takes one gradient, or None, for each parameter of ``module``, and returns
a future of the new model (or of its parameters in order). It is called as it stands, and over an RRef to its door. A
subject whose server returns the new model itself, when it is there, declares that it ``blocks``.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it; here once, instead of in every rank
import torch.distributed.rpc as rpc
from everyrank import current_world
from everyrank.rank.context import current_rank
from everyrank.rpc.agents import let_go
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import EXACT, Comparison
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import BrokenAdapter, Deviation
from everyrank.suites.parameter_server.door import door_of
from everyrank.suites.parameter_server.reports import GRACE, PATIENCE, Report, relay, settle

#: What a subject may declare: its server returns the new model itself, when it is there.
BLOCKS = "blocks"

Gradient = torch.Tensor | None
#: Divisible by whatever number of trainers there is: see ``exact``.
_DIVISIBLE = 420


@dataclass
class Arena:
    """What the driver has in hand."""

    subject: Subject
    point: Point

    def serve(self, model: torch.nn.Module, trainers: int, optimizer: Callable[[Any], Any], **options: Any) -> Served:
        """The subject, over a copy of this model, and the reference over another."""
        with subject_acts():
            return self.built(model, trainers, optimizer, **options)

    def built(self, model: torch.nn.Module, trainers: int, optimizer: Callable[[Any], Any], **options: Any) -> Served:
        """The same; what the subject raises is raised."""
        server = self.subject.build(copy.deepcopy(model), trainers, optimizer, **options)
        if not callable(getattr(server, "update_and_fetch", None)):
            raise BrokenAdapter(
                f"build of {self.subject.name} returned a {type(server).__name__}, which has no "
                "update_and_fetch(gradients, trainer)"
            )
        return Served(self, server, trainers, copy.deepcopy(model), optimizer)


class Served:
    """One server with its trainers, beside the reference: one optimizer on the mean of the gradients."""

    def __init__(
        self,
        place: Arena,
        server: Any,
        trainers: int,
        twin: torch.nn.Module,
        optimizer: Callable[[Any], Any],
    ) -> None:
        self.server, self.trainers, self.twin = server, trainers, twin
        self.names = [name for name, _ in twin.named_parameters()]
        self.twins = list(twin.parameters())
        self.reference = optimizer(list(twin.parameters()))
        self.comparison = Comparison(EXACT, place.subject.bound)
        self.comparison.start(self.expected())
        self.place = place
        self.rounds = 0
        self.blocks = BLOCKS in place.subject.declares
        self.door = door_of(server, self.blocks)
        self.far = rpc.RRef(self.door) if place.point.values.get("rpc") else None
        self.tried = False  # whether it returned when it was first called

    def gradients(self, trainer: int, round: int | None = None, sparse: bool = False) -> list[Gradient]:
        """What this trainer reports in this round (the coming one): new for each, and for each parameter."""
        number = self.rounds + 1 if round is None else round
        generator = torch.Generator().manual_seed(1 + trainer + 100 * number)
        return [exact(one, generator, sparse) if one.requires_grad else None for one in self.twins]

    def report(self, trainer: int, gradients: Sequence[Gradient], own: bool = False) -> Report:
        """Report, and go on when the server has it. It gets copies, unless these shall be its ``own``."""
        gradients = gradients if own else [None if one is None else one.clone() for one in gradients]
        aside, self.tried = self.blocks or not self.tried, True
        taken = None
        if self.far is not None:
            self.door.awaits(trainer, taken := threading.Event())
        report = Report(trainer, lambda: self.ask(trainer, gradients, own), aside, taken)
        if not report.accepted.wait(GRACE if self.blocks else PATIENCE) and not self.blocks:
            raise BrokenAdapter(
                f"update_and_fetch of {self.place.subject.name} did not return within {PATIENCE:g} s: it returns a "
                "future before the round is full, or the subject declares that it `blocks`"
            )
        return report

    def ask(self, trainer: int, gradients: Sequence[Gradient], own: bool) -> Any:
        if self.far is None:
            return self.server.update_and_fetch(gradients, trainer)
        if own:
            return self.far.rpc_async().update_and_fetch(gradients, trainer)
        return rpc.rpc_async(f"worker{1 + trainer}", relay, args=(self.far, gradients, trainer))

    def round(self, parts: Sequence[Sequence[Gradient]], order: Sequence[int] | None = None) -> list[Report]:
        """All trainers report their part, one after another, and are answered."""
        reports = [self.report(trainer, parts[trainer]) for trainer in order or range(self.trainers)]
        settle(reports)
        self.applied(parts)
        return sorted(reports, key=lambda one: one.trainer)

    def applied(self, parts: Sequence[Sequence[Gradient]]) -> None:
        """The same round in the reference: the sum in the trainers' order, divided by their number."""
        for twin, given in zip(self.twins, zip(*parts, strict=True), strict=True):
            present = [gradient for gradient in given if gradient is not None]
            twin.grad = sum(present[1:], start=present[0]) / self.trainers if present else None
        self.reference.step()
        self.rounds += 1

    def expected(self) -> dict[str, torch.Tensor]:
        """The reference's parameters."""
        return dict(zip(self.names, self.twins, strict=True))

    def compare(self, values: Sequence[torch.Tensor]) -> None:
        """Compare one answer of the round that is just over."""
        if len(values) != len(self.names):
            raise Deviation(f"the new model has {len(values)} parameters, not {len(self.names)}")
        self.comparison.step(self.rounds, dict(zip(self.names, values, strict=True)), self.expected())

    def verdict(self) -> None:
        self.comparison.verdict()

    def train(self, rounds: int, sparse: bool = False) -> None:
        """Rounds with new gradients, in the trainers' order; what trainer 0 is answered is compared."""
        for _ in range(rounds):
            parts = [self.gradients(trainer, sparse=sparse) for trainer in range(self.trainers)]
            self.compare(self.round(parts)[0].values())
        self.verdict()


def exact(like: torch.Tensor, generator: torch.Generator, sparse: bool = False) -> torch.Tensor:
    """A gradient whose sum over trainers is exact in any order, and whose mean is too, however it is taken.

    Whole numbers, all divisible by 420, that use the digits of the dtype: arithmetic in a narrower one would show.
    """
    if like.is_complex():
        real = torch.empty(like.shape, dtype=like.real.dtype)
        return torch.complex(exact(real, generator), exact(real, generator)).to(like.dtype)
    digits = {torch.float64: 38, torch.float32: 10}[like.dtype]
    magnitude = torch.randint(2 ** (digits - 4), 2**digits, like.shape, generator=generator, dtype=torch.int64)
    sign = torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int64) * 2 - 1
    dense = (magnitude * sign * _DIVISIBLE).to(like.dtype) * 2.0 ** -(digits + 9)
    if not sparse:
        return dense
    rows = torch.randperm(like.shape[0], generator=generator)[: max(1, like.shape[0] // 2)]
    return torch.sparse_coo_tensor(rows.unsqueeze(0), dense[rows], like.shape, check_invariants=True)


@contextlib.contextmanager
def arena(subject: Subject, point: Point) -> Iterator[Arena | None]:
    """The server's rank drives. Where trainers are far the other ranks serve it until it is done."""
    inside = Arena(subject, point)
    if not point.values.get("rpc"):
        yield inside
        return
    if current_world().rank != 0:
        yield None
        return
    try:
        yield inside
    except BaseException:
        # The end of the case would wait for trainers that were never answered.
        let_go(current_rank())
        raise
    gc.collect()  # the law's server, and the reference to it
