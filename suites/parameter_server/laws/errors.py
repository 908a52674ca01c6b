"""The laws of ``parameter-server`` about reports that are wrong, that never come, and that change later."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.distributed.rpc as rpc
from everyrank.suites.arena.subject_errors import in_a_line
from everyrank.suites.arena.workers import drive_workers
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import NotApplicable
from everyrank.suites.parameter_server import points, wrong_gradients
from everyrank.suites.parameter_server.arena import Arena, Served
from everyrank.suites.parameter_server.contract import CONTRACT
from everyrank.suites.parameter_server.laws.training import plain
from everyrank.suites.parameter_server.reports import PATIENCE, Report, parameters
from everyrank.suites.parameter_server.wrong_gradients import FINITE, Gradients

law = CONTRACT.law

#: For a round that does not become full: how many seconds it may stay open, and how long the error may take.
SHORT, BOUND = 0.1, 3.0
#: How often a full round is tried: on a busy machine it may not be full in time.
ATTEMPTS = 10


def _second(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Gradients], Gradients]:
    """Return a function that changes the last gradient but one: others could be applied before it is seen."""
    return lambda gradients: [*gradients[:-2], change(gradients[-2]), gradients[-1]]


_WRONG: dict[str, tuple[Callable[[Gradients], Gradients], str]] = {
    **{name: (_second(change), pattern) for name, (change, pattern) in wrong_gradients.ONE.items()},
    **wrong_gradients.ALL,
}
_CORE = {"shape-more-rows", "shape-broadcasts", "count-fewer", "dtype-narrower", "nan", "inf"}


@dataclass(frozen=True, kw_only=True)
class ChangePoint(points.ServerPoint):
    """A point with a change of trainer 0's gradients, which the server accepts."""

    change: Callable[[Gradients], Gradients]


@dataclass(frozen=True, kw_only=True)
class WrongPoint(ChangePoint):
    """A point with a change that the server refuses, a pattern of its error, and the order of the trainers."""

    pattern: str
    order: Sequence[int]


def _wrongs() -> Iterator[WrongPoint | ChangePoint]:
    for name, (change, pattern) in _WRONG.items():
        make = partial(points.point, partial(WrongPoint, change=change, pattern=pattern))
        yield make(name, core=name in _CORE, order=[0, 1])
        yield make(f"{name}-when-last", core=False, order=[1, 0])
        if name in ("shape-broadcasts", "count-fewer", "dtype-narrower", "nan"):
            yield make(name, core=False, far=True, order=[0, 1])
    for name in ("nan", "inf"):
        yield points.point(ChangePoint, f"{name}-taken", core=name == "nan", change=_WRONG[name][0])


@law("errors.gradient", _wrongs)
def wrong_gradient(arena: Arena, point: WrongPoint | ChangePoint) -> None:
    """A wrong gradient is an error to its trainer, and the round is as if it had not reported: it may report again.

    Wrong are another shape (one that would broadcast, too), count or dtype, and values that are not finite, unless
    the server was built to accept them. ``non_finite`` is passed only if a law reports such values.
    """
    if not isinstance(point, WrongPoint):
        _accepted(arena, point)
        return
    options: dict[str, Any] = {"non_finite": False} if point.pattern is FINITE else {}
    served = plain(arena, point, **options)
    _good_round(served)
    parts = [served.gradients(trainer) for trainer in range(served.trainers)]
    reports: dict[int, Report] = {}
    for trainer in point.order:
        gradients = point.change(parts[trainer]) if trainer == 0 else parts[trainer]
        reports[trainer] = served.report(trainer, gradients)
    error = reports[0].refusal()
    line = in_a_line(error)
    named = re.search(point.pattern, line.lower())
    check(named is not None, f"the error does not say what is wrong: {line}")
    check(not reports[1].answered.is_set(), "trainer 1 was answered though trainer 0's report had been refused")
    again = served.report(0, parts[0])
    served.applied(parts)
    for report in (again, reports[1]):
        served.compare(report.values())
    _good_round(served)
    served.verdict()


def _accepted(arena: Arena, point: ChangePoint) -> None:
    served = plain(arena, point, non_finite=True)
    _good_round(served)
    parts = [served.gradients(trainer) for trainer in range(served.trainers)]
    parts[0] = point.change(parts[0])
    served.compare(served.round(parts)[0].values())
    served.verdict()


def _good_round(served: Served) -> None:
    parts = [served.gradients(trainer) for trainer in range(served.trainers)]
    served.compare(served.round(parts)[0].values())


@dataclass(frozen=True, kw_only=True)
class DeadPoint(points.ServerPoint):
    """A point with the trainers that report, in this order, and the first that reports in the next round."""

    present: Sequence[int]
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class KilledPoint(points.ServerPoint):
    """A point at which a trainer's worker is killed."""


def _deaths() -> Iterator[DeadPoint | KilledPoint]:
    yield points.point(DeadPoint, "last", 2, present=[0])
    for name, present in {"last": [0, 1], "first": [2, 1], "all-but-one": [1]}.items():
        yield points.point(DeadPoint, name, 3, core=False, present=present)
    yield points.point(DeadPoint, "late", 3, core=False, present=[0, 1], first=2)
    yield points.point(DeadPoint, "last", 3, core=False, far=True, present=[0, 1])
    yield points.point(KilledPoint, "killed", core=False)


@law("errors.dead-trainer", _deaths)
def dead_trainer(arena: Arena, point: DeadPoint | KilledPoint) -> None:
    """When a trainer never reports, the others get an error within the timeout; the expired round leaves nothing."""
    if isinstance(point, KilledPoint):
        far = points.plain(far=True)
        drive_workers(3, lambda: _killed(replace(arena, point=far), far), PATIENCE, 3 * PATIENCE)
        return
    served = plain(arena, point, timeout=SHORT)
    for present in (point.present, point.present[:1]):
        lost = [served.gradients(trainer, round=50) for trainer in range(served.trainers)]
        waiting = [served.report(trainer, lost[trainer]) for trainer in present]
        for report in waiting:
            report.refusal(BOUND)
    # A trainer that reports too late opens the next round.
    for _ in range(2):
        _round_in_time(served, sorted(range(served.trainers), key=lambda trainer: trainer != point.first))
    served.verdict()


def _round_in_time(served: Served, order: Sequence[int]) -> None:
    """Do a full round. If a busy machine makes it too late, all trainers are refused, and report again."""
    parts = [served.gradients(trainer) for trainer in range(served.trainers)]
    for _ in range(ATTEMPTS):
        reports = [served.report(trainer, parts[trainer]) for trainer in order]
        for report in reports:
            report.due(BOUND)
        if any(report.error is None for report in reports):
            break
    served.applied(parts)
    models = {report.trainer: report.values() for report in reports}
    served.compare(models[0])


def _killed(arena: Arena, point: points.ServerPoint) -> None:
    """Kill the worker of trainer 1. These workers are not ranks, so they may be killed."""
    served = plain(arena, point, timeout=SHORT)
    _round_in_time(served, [0, 1])
    os.kill(rpc.rpc_sync("worker2", os.getpid), signal.SIGKILL)
    served.report(0, served.gradients(0, round=50)).refusal(BOUND)
    # Another trainer takes its place, and both report from the server's own worker.
    served.workers = [0, 0]
    _round_in_time(served, [0, 1])
    served.verdict()


_Changed = Literal["answer", "gradients", "gradients-later"]


@dataclass(frozen=True, kw_only=True)
class AliasPoint(points.ServerPoint):
    """A point that fixes what trainer 0 changes: its answer, or its gradients, at once or after the round."""

    changed: _Changed


def _aliases() -> Iterator[AliasPoint]:
    changed: _Changed
    for changed in get_args(_Changed):
        yield points.point(AliasPoint, changed, changed=changed)
        yield points.point(AliasPoint, changed, 3, core=False, changed=changed)
    for changed in get_args(_Changed):
        # Trainer 0 calls over RPC from the server's own process. RPC itself reads gradients until they are sent,
        # so they may change after the answer, and no earlier.
        if changed != "gradients":
            yield points.point(AliasPoint, f"{changed}-near", core=False, far=True, changed=changed)


@law("alias", _aliases)
def alias(arena: Arena, point: AliasPoint) -> None:
    """A trainer that changes its copy, or its gradients after reporting, changes nothing on the server or at others.

    Nor does the server change a copy that it has given away; also when both live in one process.
    """
    served, changed = plain(arena, point), point.changed
    if served.blocks and changed == "gradients":
        raise NotApplicable("nobody knows when a server that blocks has taken the gradients")
    if served.far is not None:
        served.workers[0] = 0
    for _ in range(3):
        parts = [served.gradients(trainer) for trainer in range(served.trainers)]
        mine = [None if gradient is None else gradient.clone() for gradient in parts[0]]
        reports = [served.report(0, mine, own=True)]
        if changed == "gradients":
            spoil(mine)
        reports += [served.report(trainer, parts[trainer]) for trainer in range(1, served.trainers)]
        models = [report.answer() for report in reports]
        served.applied(parts)
        if changed == "gradients-later":
            spoil(mine)
        if changed == "answer":
            spoil(parameters(models[0], 0))
        for report in reports[1:] if changed == "answer" else reports:
            served.compare(report.values())
    served.verdict()


def spoil(tensors: Sequence[torch.Tensor | None]) -> None:
    """Overwrite the tensors of a trainer."""
    with torch.no_grad():
        for tensor in tensors:
            if tensor is not None:
                (tensor._values() if tensor.is_sparse else tensor).fill_(1000.0)
