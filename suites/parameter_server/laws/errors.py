"""The laws of ``parameter-server`` about reports that are wrong, that never come, and that change under its hands."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.distributed.rpc as rpc
from everyrank.suites.arena.subject_errors import in_a_line
from everyrank.suites.arena.workers import drive_workers
from everyrank.suites.compare.comparison import check
from everyrank.suites.engine.contract import Point
from everyrank.suites.errors import NotApplicable
from everyrank.suites.parameter_server import points, wrong_gradients
from everyrank.suites.parameter_server.arena import Arena, Served
from everyrank.suites.parameter_server.contract import CONTRACT
from everyrank.suites.parameter_server.laws.training import plain
from everyrank.suites.parameter_server.reports import PATIENCE, Report, parameters
from everyrank.suites.parameter_server.wrong_gradients import FINITE, Gradients

law = CONTRACT.law

#: How long a round may stay open, where one does not become full; and how long the error may take, in seconds.
SHORT, BOUND = 0.1, 3.0
#: How often a full round is tried, that a busy machine may keep from being full in time.
ATTEMPTS = 10


def _second(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Gradients], Gradients]:
    """The last parameter's gradient is wrong, so that the others' could be applied before it is seen."""
    return lambda gradients: [*gradients[:-2], change(gradients[-2]), gradients[-1]]


_WRONG: dict[str, tuple[Callable[[Gradients], Gradients], str]] = {
    **{name: (_second(change), words) for name, (change, words) in wrong_gradients.ONE.items()},
    **wrong_gradients.ALL,
}
_CORE = {"shape-more-rows", "shape-broadcasts", "count-fewer", "dtype-narrower", "nan", "inf"}


def _wrongs() -> Iterator[Point]:
    for name, (change, words) in _WRONG.items():
        for when, order in {"": [0, 1], "when-last": [1, 0]}.items():
            label = f"{name}-{when}" if when else name
            yield points.point(label, core=name in _CORE and not when, change=change, words=words, order=order)
        if name in ("shape-broadcasts", "count-fewer", "dtype-narrower", "nan"):
            yield points.point(name, core=False, rpc=True, change=change, words=words, order=[0, 1])
    for name in ("nan", "inf"):
        yield points.point(f"{name}-taken", core=name == "nan", change=_WRONG[name][0], taken=True)


@law("errors.gradient", _wrongs)
def wrong_gradient(place: Arena, point: Point) -> None:
    """A wrong gradient is an error to its trainer, and the round is as if it had not reported: it may report again.

    Wrong are another shape (one that would broadcast, too), count or dtype, and values that are not finite, unless
    the server was told to take them; it is told that it shall not where a law reports some.
    """
    if point.values.get("taken"):
        _taken(place, point)
        return
    asked = {"non_finite": False} if point.values["words"] is FINITE else {}
    served = plain(place, point, **asked)
    _good_round(served)
    parts = [served.gradients(trainer) for trainer in range(served.trainers)]
    reports: dict[int, Report] = {}
    for trainer in point.values["order"]:
        report = point.values["change"](parts[trainer]) if trainer == 0 else parts[trainer]
        reports[trainer] = served.report(trainer, report)
    error = reports[0].refusal()
    line = in_a_line(error)
    named = re.search(point.values["words"], line.lower())
    check(named is not None, f"the error does not say what is wrong: {line}")
    check(not reports[1].answered.is_set(), "trainer 1 was answered though trainer 0's report had been refused")
    again = served.report(0, parts[0])
    served.applied(parts)
    for report in (again, reports[1]):
        served.compare(report.values())
    _good_round(served)
    served.verdict()


def _taken(place: Arena, point: Point) -> None:
    served = plain(place, point, non_finite=True)
    _good_round(served)
    parts = [served.gradients(trainer) for trainer in range(served.trainers)]
    parts[0] = point.values["change"](parts[0])
    served.compare(served.round(parts)[0].values())
    served.verdict()


def _good_round(served: Served) -> None:
    parts = [served.gradients(trainer) for trainer in range(served.trainers)]
    served.compare(served.round(parts)[0].values())


def _deaths() -> Iterator[Point]:
    yield points.point("last", 2, there=[0])
    for name, there in {"last": [0, 1], "first": [2, 1], "all-but-one": [1]}.items():
        yield points.point(name, 3, core=False, there=there)
    yield points.point("late", 3, core=False, there=[0, 1], late=2)
    yield points.point("last", 3, core=False, rpc=True, there=[0, 1])
    yield points.point("killed", core=False, killed=True)


@law("errors.dead-trainer", _deaths)
def dead_trainer(place: Arena, point: Point) -> None:
    """When a trainer never reports, the others get an error within the timeout; the expired round leaves nothing."""
    if point.values.get("killed"):
        drive_workers(3, lambda: _killed(replace(place, point=points.point("", rpc=True))), PATIENCE, 3 * PATIENCE)
        return
    served = plain(place, point, timeout=SHORT)
    for there in (point.values["there"], point.values["there"][:1]):
        lost = [served.gradients(trainer, round=50) for trainer in range(served.trainers)]
        waiting = [served.report(trainer, lost[trainer]) for trainer in there]
        for report in waiting:
            report.refusal(BOUND)
    # Who comes too late opens the next round.
    first = point.values.get("late", 0)
    for _ in range(2):
        _round_in_time(served, sorted(range(served.trainers), key=lambda trainer: trainer != first))
    served.verdict()


def _round_in_time(served: Served, order: Sequence[int], own: bool = False) -> None:
    """A full round. Where a busy machine makes it too late, all are refused, and may report again."""
    parts = [served.gradients(trainer) for trainer in range(served.trainers)]
    for _ in range(ATTEMPTS):
        reports = [served.report(trainer, parts[trainer], own) for trainer in order]
        for report in reports:
            report.due(BOUND)
        if any(report.error is None for report in reports):
            break
    served.applied(parts)
    models = {report.trainer: report.values() for report in reports}
    served.compare(models[0])


def _killed(place: Arena) -> None:
    """On workers that may be killed, as that of trainer 1 is."""
    served = plain(place, place.point, timeout=SHORT)
    _round_in_time(served, [0, 1])
    os.kill(rpc.rpc_sync("worker2", os.getpid), signal.SIGKILL)
    served.report(0, served.gradients(0, round=50)).refusal(BOUND)
    # Another takes its place, and both report from the server's own worker.
    _round_in_time(served, [0, 1], own=True)
    served.verdict()


def _aliases() -> Iterator[Point]:
    for name in ("answer", "gradients", "gradients-later"):
        yield points.point(name, what=name)
        yield points.point(name, 3, core=False, what=name)
    for name in ("answer", "gradients-later"):
        # Its trainer 0 calls over RPC from the server's own process. RPC itself reads gradients until they are sent,
        # so they may change when the answer is there, and no earlier.
        yield points.point(f"{name}-near", core=False, rpc=True, what=name)


@law("alias", _aliases)
def alias(place: Arena, point: Point) -> None:
    """A trainer that changes its copy, or its gradients after reporting, changes nothing on the server or at others.

    Nor does the server change a copy that it has given away; also when both live in one process.
    """
    served = plain(place, point)
    if served.blocks and point.values["what"] == "gradients":
        raise NotApplicable("when a server that blocks has taken the gradients is nobody's to know")
    for _ in range(3):
        parts = [served.gradients(trainer) for trainer in range(served.trainers)]
        mine = [None if one is None else one.clone() for one in parts[0]]
        reports = [served.report(0, mine, own=True)]
        if point.values["what"] == "gradients":
            spoil(mine)
        reports += [served.report(trainer, parts[trainer]) for trainer in range(1, served.trainers)]
        models = [report.answer() for report in reports]
        served.applied(parts)
        if point.values["what"] == "gradients-later":
            spoil(mine)
        if point.values["what"] == "answer":
            spoil(parameters(models[0], 0))
        for report in reports[1:] if point.values["what"] == "answer" else reports:
            served.compare(report.values())
    served.verdict()


def spoil(tensors: Sequence[torch.Tensor | None]) -> None:
    """Overwrite what is a trainer's own."""
    with torch.no_grad():
        for one in tensors:
            if one is not None:
                (one._values() if one.is_sparse else one).fill_(1000.0)
