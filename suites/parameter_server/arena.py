"""The arena of ``parameter-server``: a server on rank 0, and trainers near and far.

In a world of one rank trainers are *near*: they report from the server's process. In a larger one each is on its own
worker, from which it reports over RPC. Most faults of a server show with both, and near trainers are cheap.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed.rpc as rpc
from everyrank import current_world
from everyrank.rank.context import current_rank
from everyrank.rpc.agents import let_go
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import BrokenAdapter, Deviation
from everyrank.suites.parameter_server.door import door_of
from everyrank.suites.parameter_server.locks import Locks
from everyrank.suites.parameter_server.reports import GRACE, PATIENCE, Report, relay

#: A choice that a subject may declare: its server returns the new model itself, after the round.
BLOCKS = "blocks"

#: How long, in seconds, to wait for a report that may wait for a lock which the kit does not see. The expected values
#: are the same whether that report arrives in this time or later.
UNSEEN = 1.0

Gradient = torch.Tensor | None
Part = list[Gradient]
Optimizer = Callable[[Any], torch.optim.Optimizer]
#: Divisible by each number of trainers that a point has: see ``exact``.
_DIVISIBLE = 420


@dataclass
class Arena:
    """The subject and the point of one case, at the driver."""

    subject: Subject
    point: Point

    def serve(self, model: torch.nn.Module, trainers: int, optimizer: Optimizer, **options: Any) -> Served:
        """Build the subject on a copy of this model, and the reference on another. It has no reason to raise."""
        with subject_acts():
            return self.built(model, trainers, optimizer, **options)

    def built(self, model: torch.nn.Module, trainers: int, optimizer: Optimizer, **options: Any) -> Served:
        """Build the subject and the reference. Let the subject's errors pass."""
        workers = [1 + trainer if self.point.size > 1 else None for trainer in range(trainers)]
        return Served(self.subject, copy.deepcopy(model), copy.deepcopy(model), optimizer, workers, options)


class Served:
    """A server with its trainers, and the reference: one optimizer on the mean of the gradients.

    ``workers``: for each trainer None, if it is in the server's process; or the worker from which it reports over
    RPC, which for 0 is the server's own.
    """

    def __init__(
        self,
        subject: Subject,
        model: torch.nn.Module,
        twin: torch.nn.Module,
        optimizer: Optimizer,
        workers: Sequence[int | None],
        options: Mapping[str, Any],
    ) -> None:
        server = subject.build(model, len(workers), optimizer, **options)
        if not callable(getattr(server, "update_and_fetch", None)):
            raise BrokenAdapter(
                f"build of {subject.name} returned a {type(server).__name__}, which has no "
                "update_and_fetch(gradients, trainer)"
            )
        self.subject, self.server, self.twin, self.workers = subject, server, twin, list(workers)
        self.trainers = len(workers)
        self.names = [name for name, _ in twin.named_parameters()]
        self.twins = list(twin.parameters())
        self.reference = optimizer(self.twins)
        self.rounds = 0
        self.blocks = BLOCKS in subject.declares
        self.door = door_of(server, self.blocks)
        self.far = None if set(workers) == {None} else rpc.RRef(self.door)
        self.relay: Callable[[Any, Part, int], Any] = relay
        """The function by which trainers report from their workers."""
        self.aside = self.blocks
        """Whether each report has a thread of its own; the first one has, since nobody knows whether it returns."""
        self._locks: Locks | None = None
        self._tried = False  # whether it was called before

    def report(self, trainer: int, gradients: Part) -> Report:
        """Report, and return when the server has the report."""
        return self.taken(self.send(trainer, gradients))

    def send(self, trainer: int, gradients: Part) -> Report:
        """Report without waiting for the server, if the report has a thread of its own."""
        taken, aside = None, self.aside or not self._tried
        if self.workers[trainer] is not None:
            self.door.awaits(trainer, taken := threading.Event())
        return Report(trainer, lambda: self.ask(trainer, gradients), aside=aside, taken=taken)

    def send_again(self, report: Report, gradients: Part) -> None:
        """Let a trainer that waits for its answer report once more, and return when the server has that."""
        taken = None
        if self.workers[report.trainer] is not None:
            self.door.awaits(report.trainer, taken := threading.Event())
        report.again(partial(self.ask, report.trainer, gradients), taken)
        self.taken(report)

    def taken(self, report: Report) -> Report:
        """Wait until the server has the report; nobody knows when, if it blocks."""
        tried, self._tried = self._tried, True
        patience = 4 * PATIENCE if tried else PATIENCE
        if report.accepted.wait(GRACE if self.blocks else patience) or self.blocks:
            return report
        if tried:
            raise Deviation(f"the report of trainer {report.trainer} was not taken within {patience:g} s")
        raise BrokenAdapter(
            f"update_and_fetch of {self.subject.name} did not return within {PATIENCE:g} s: it returns a "
            "future before the round is full, or the subject declares that it `blocks`"
        )

    def ask(self, trainer: int, gradients: Part) -> Any:
        """Call the server as this trainer does. In one process, the server gets the trainer's own tensors."""
        worker = self.workers[trainer]
        if worker is None:
            return self.server.update_and_fetch(gradients, trainer)
        assert self.far is not None
        if worker == 0:
            return self.far.rpc_async().update_and_fetch(gradients, trainer)
        return rpc.rpc_async(f"worker{worker}", self.relay, args=(self.far, gradients, trainer))

    def beside(self, trainer: int, gradients: Part) -> Report:
        """Report, and return when the call has returned, or when it waits for a lock of the server.

        If a server makes it wait in a way that is not seen here, this takes longer, and the outcome is the same.
        """
        self._locks = self._locks or Locks(self.server)
        calling, arrived = self._locks.calling, threading.Event()
        ask = partial(self.ask, trainer, gradients)
        report = Report(trainer, lambda: calling(ask, arrived), aside=True)
        arrived.wait(GRACE if self.blocks else UNSEEN)
        return report

    def applied(self, parts: Sequence[Part]) -> None:
        """Do the round in the reference: with the sum in the trainers' order, divided by their number."""
        for twin, given in zip(self.twins, zip(*parts, strict=True), strict=True):
            present = [gradient for gradient in given if gradient is not None]
            twin.grad = sum(present[1:], start=present[0]) / self.trainers if present else None
        self.reference.step()
        self.rounds += 1

    def expected(self) -> dict[str, torch.Tensor]:
        """Return the reference's parameters."""
        return dict(zip(self.names, self.twins, strict=True))


def cancelling(part: Part, sign: float) -> Part:
    """Return extreme gradients of this sign, of which twice as much is infinite; sparse ones stay as they are."""

    def extreme(like: torch.Tensor) -> torch.Tensor:
        exponent = math.frexp(torch.finfo(like.dtype).max)[1]
        return torch.full_like(like, 1.5 * 2.0 ** (exponent - 1)) * sign

    return [given if given is None or given.is_sparse else extreme(given) for given in part]


def without_rows(part: Part) -> Part:
    """Return the part with no row in each sparse gradient."""
    return [torch.zeros_like(given) if given is not None and given.is_sparse else given for given in part]


def copied(part: Part) -> Part:
    return [None if gradient is None else gradient.clone() for gradient in part]


def exact(like: torch.Tensor, generator: torch.Generator, sparse: bool = False) -> torch.Tensor:
    """Return a gradient whose sum and mean over trainers are exact, in any order of operations.

    Its numbers are whole multiples of 420, times a power of two. They use the digits of the dtype, so that arithmetic
    in a narrower one shows. A sparse one is coalesced, not coalesced, or has a row twice.
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
    kind = int(torch.randint(3, (), generator=generator))
    rows = torch.cat([rows, rows[:1]]) if kind == 2 else rows
    made = torch.sparse_coo_tensor(rows.unsqueeze(0), dense[rows], like.shape, check_invariants=True)
    return made.coalesce() if kind == 1 else made


@contextlib.contextmanager
def open_arena(subject: Subject, point: Point) -> Iterator[Arena | None]:
    """Give the server's rank its arena. If trainers are far, the other ranks serve it until it is done."""
    arena = Arena(subject, point)
    if point.size == 1:
        yield arena
        return
    if current_world().rank != 0:
        yield None
        return
    try:
        yield arena
    except BaseException:
        # The end of the case would wait for trainers that were never answered.
        let_go(current_rank())
        raise
    gc.collect()  # the law's server, and the RRef to it
