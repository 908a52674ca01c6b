"""The laws of ``parameter-server`` about reports that are wrong, that never come, and that change later."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch.distributed.rpc as rpc
from everyrank.suites.arena.workers import drive_workers
from everyrank.suites.errors import NotApplicable
from everyrank.suites.parameter_server import points, wrong_gradients
from everyrank.suites.parameter_server.arena import Arena
from everyrank.suites.parameter_server.contract import CONTRACT
from everyrank.suites.parameter_server.law_player import playing
from everyrank.suites.parameter_server.reports import PATIENCE, Report
from everyrank.suites.parameter_server.wrong_gradients import NOT_FINITE

law = CONTRACT.law

#: How many seconds a round may stay open that does not become full.
SHORT = 0.1


_CORE = {"shape-more-rows", "shape-broadcasts", "count-fewer", "dtype-narrower", "nan", "inf"}


@dataclass(frozen=True, kw_only=True)
class ChangePoint(points.ServerPoint):
    """A point with a defect of trainer 0's gradients, which the server accepts."""

    defect: str


@dataclass(frozen=True, kw_only=True)
class WrongPoint(ChangePoint):
    """A point with a defect that the server refuses, and the order of the trainers."""

    order: Sequence[int]


def _wrongs() -> Iterator[WrongPoint | ChangePoint]:
    for name in (*wrong_gradients.ONE, *wrong_gradients.ALL):
        make = partial(points.point, partial(WrongPoint, defect=name))
        yield make(name, core=name in _CORE, order=[0, 1])
        yield make(f"{name}-when-last", core=False, order=[1, 0])
        if name in ("shape-broadcasts", "count-fewer", "dtype-narrower", "nan"):
            yield make(name, core=False, far=True, order=[0, 1])
    for name in ("nan", "inf"):
        yield points.point(ChangePoint, f"{name}-taken", core=name == "nan", defect=name)


@law("errors.gradient", _wrongs)
def wrong_gradient(arena: Arena, point: WrongPoint | ChangePoint) -> None:
    """A wrong gradient is an error to its trainer, and the round is as if it had not reported: it may report again.

    Wrong are another shape (one that would broadcast, too), count or dtype, and values that are not finite, unless
    the server was built to accept them. ``non_finite`` is passed only if a law reports such values.
    """
    if not isinstance(point, WrongPoint):
        with playing(arena, point, non_finite=True) as player:
            player.fill()
            player.report(0, value=point.defect)
            player.fill()
        return
    options: dict[str, Any] = {"non_finite": False} if point.defect in NOT_FINITE else {}
    with playing(arena, point, compared="all", **options) as player:
        player.fill()
        sides, refused = player.sides, list[Report]()
        for trainer in point.order:
            if trainer == 0:
                refused.append(sides.send(0, sides.gradients.changed(sides.gradients.part(), point.defect, 0)))
            else:
                sides.report(trainer, sides.gradients.part())
        sides.refused(refused[0], point.defect)
        sides.none_answered()
        player.fill()
        player.fill()


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
    with playing(arena, point, timeout=SHORT) as player:
        for present in (point.present, point.present[:1]):
            for trainer in present:
                player.report(trainer)
            player.expire()
        # A trainer that reports too late opens the next round.
        for _ in range(2):
            player.report(point.first)
            player.fill()


def _killed(arena: Arena, point: points.ServerPoint) -> None:
    """Kill the worker of trainer 1. These workers are not ranks, so they may be killed."""
    with playing(arena, point, timeout=SHORT) as player:
        player.fill()
        os.kill(rpc.rpc_sync("worker2", os.getpid), signal.SIGKILL)
        player.report(0)
        player.expire()
        # Another trainer takes its place, and both report from the server's own worker.
        player.sides.served.workers = [0, 0]
        player.fill()


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
    with playing(arena, point, compared="all") as player:
        served = player.sides.served
        if served.blocks and point.changed == "gradients":
            raise NotApplicable("nobody knows when a server that blocks has taken the gradients")
        if served.far is not None:
            served.workers[0] = 0
        for _ in range(3):
            player.report(0)
            if point.changed == "gradients":
                player.overwrite(0)
            player.fill()
            if point.changed != "gradients":
                player.overwrite(0, answer=point.changed == "answer")
