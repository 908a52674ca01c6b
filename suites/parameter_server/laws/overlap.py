"""The law of ``parameter-server`` about reports that come before the last round is over.

Nothing here depends on how long anything takes. An update is halted halfway, and goes on when the late report's
call has returned, or when it waits for a lock of the server: a server may keep reports out during an update.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from everyrank.fixtures.models import MODELS
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import NotApplicable
from everyrank.suites.parameter_server import points
from everyrank.suites.parameter_server.arena import Arena, Part, Served
from everyrank.suites.parameter_server.contract import CONTRACT
from everyrank.suites.parameter_server.reports import PATIENCE, Report, settle

law = CONTRACT.law


class Halt:
    """Halts one update, if that is ``wanted``, until it may ``go_on``."""

    def __init__(self) -> None:
        self.wanted = False
        self.under_way, self.go_on = threading.Event(), threading.Event()

    def here(self) -> None:
        if self.wanted:
            self.wanted = False
            self.under_way.set()
            self.go_on.wait(4 * PATIENCE)


class Halting(torch.optim.SGD):
    """Gradient descent that can halt when the first parameter is stepped and the others are not."""

    def __init__(self, parameters: Any, halt: Halt) -> None:
        super().__init__(parameters, lr=0.5)
        self.halt = halt

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for number, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad * group["lr"])
                if number == 0:
                    self.halt.here()


@dataclass(frozen=True, kw_only=True)
class OverlapPoint(points.ServerPoint):
    """A point that fixes whether the report comes while the round before is updated, or while it is answered."""

    moment: Literal["updated", "answered"]


def _moments() -> Iterator[OverlapPoint]:
    for trainers in (2, 3):
        for moment in ("updated", "answered"):
            yield points.point(OverlapPoint, moment, trainers, core=trainers == 2, moment=moment)


@law("overlap", _moments)
def overlap(arena: Arena, point: OverlapPoint) -> None:
    """A report that comes while the round before is updated or answered counts once, in its own round.

    A trainer that has been answered may report at once, though others have not been answered yet. A report that comes
    earlier, while the model is updated, may be refused; then its trainer may report again when it has been answered.
    The answers of each round are of that round alone.
    """
    halt, refusable = Halt(), point.moment == "updated"
    served = arena.serve(MODELS["plain"].build(3), point.trainers, lambda given: Halting(given, halt))
    _compare(served, _all_report(served))
    reports, late = _while_updated(served, halt) if refusable else _while_answered(served)
    _compare(served, reports)
    trainer = late.trainer
    reports = [_report(served, other) for other in range(served.trainers) if other != trainer]
    check(
        late.answered.wait(PATIENCE),
        f"trainer {trainer}'s report was lost, which came while the round before was {point.moment}",
    )
    again = refusable and late.error is not None
    reports.append(_report(served, trainer) if again else late)
    _compare(served, reports)
    _compare(served, _all_report(served))
    served.verdict()


def _while_updated(served: Served, halt: Halt) -> tuple[list[Report], Report]:
    """Halt the update, and let trainer 0 report for the next round; return its report beside those of the round."""
    last = served.trainers - 1
    halt.wanted = True
    try:
        reports = [_report(served, trainer) for trainer in range(last)]
        ask = partial(served.ask, last, served.gradients(last))
        reports.append(Report(last, ask, aside=True, taken=halt.under_way))
        if not reports[last].accepted.wait(PATIENCE):
            raise reports[last].unanswered(PATIENCE)
        late = served.beside(0, _of_next(served, 0))
    finally:
        halt.wanted = False
        halt.go_on.set()
    return reports, late


def _while_answered(served: Served) -> tuple[list[Report], Report]:
    """Report for the next round after the first answer, in the thread that answers the other trainers."""
    first, late = threading.Lock(), list[Report]()
    if served.blocks:
        raise NotApplicable("a server that blocks answers each trainer on a thread of its own")

    def ask(trainer: int) -> Any:
        future = served.ask(trainer, served.gradients(trainer))
        if isinstance(future, torch._C.Future):
            future.add_done_callback(lambda _: answered(trainer))
        else:
            answered(trainer)
        return future

    def answered(trainer: int) -> None:
        if first.acquire(blocking=False):
            late.append(served.beside(trainer, _of_next(served, trainer)))

    reports = [Report(trainer, partial(ask, trainer)) for trainer in range(served.trainers)]
    settle(reports)
    return reports, late[0]


def _of_next(served: Served, trainer: int) -> Part:
    """Return the gradients of a trainer in the round after the one that is open."""
    return served.gradients(trainer, served.rounds + 2)


def _report(served: Served, trainer: int) -> Report:
    return served.report(trainer, served.gradients(trainer))


def _all_report(served: Served) -> list[Report]:
    return [_report(served, trainer) for trainer in range(served.trainers)]


def _compare(served: Served, reports: Sequence[Report]) -> None:
    """Compare all answers of the round."""
    settle(reports)
    served.applied([served.gradients(trainer) for trainer in range(served.trainers)])
    for report in reports:
        served.compare(report.values())
