"""The laws of ``parameter-server`` about rounds that go well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed.rpc as rpc
from everyrank.fixtures.data import batch, loss, whole_batch
from everyrank.fixtures.models import MODELS
from everyrank.fixtures.optimizers import row
from everyrank.suites.arena.subject_errors import in_a_line, plainly, stayed, subject_acts
from everyrank.suites.compare.comparison import CLOSE_FP64, Comparison, check, same
from everyrank.suites.engine.contract import Point
from everyrank.suites.errors import Unusable
from everyrank.suites.parameter_server import points
from everyrank.suites.parameter_server.arena import Arena, Served
from everyrank.suites.parameter_server.contract import CONTRACT
from everyrank.suites.parameter_server.points import sgd
from everyrank.suites.parameter_server.reports import GRACE, PATIENCE

law = CONTRACT.law


def plainest(place: Arena) -> None:
    """A server for one trainer, with SGD, and one report."""
    with plainly("build, for one trainer and with SGD,"):
        served = place.built(MODELS["plain"].build(3), 1, sgd())
    report = served.report(0, served.gradients(0))
    if report.answered.wait(PATIENCE) and report.error is not None:
        raise Unusable(f"a report of the only trainer was answered with {in_a_line(report.error)}")
    for answer in [] if report.model is None else report.values():
        stayed("a parameter of the answer", answer.device, "cpu")


def _of_variant(place: Arena, point: Point) -> Served:
    values = point.values
    model = MODELS[values["model"]].build(3, values["dtype"])
    return place.serve(model, values["trainers"], points.optimizer(values["row"], values["variant"]))


def _sparse(point: Point) -> bool:
    return point.values.get("sparse", False) or "sparse" in point.values["row"].needs


def plain(place: Arena, point: Point, **options: Any) -> Served:
    """A server with plain SGD, for a law that is not about optimizers."""
    model = MODELS["plain"].build(3)
    return place.serve(model, point.values["trainers"], point.values.get("optimizer") or sgd(), **options)


@law("parity.round", points.variants)
def one_round(place: Arena, point: Point) -> None:
    """After one round the new model is that of a local optimizer on the mean gradient, bit for bit."""
    _of_variant(place, point).train(1, _sparse(point))


def _rounds() -> Iterator[Point]:
    yield from points.variants()
    yield from points.far()
    for trainers in (1, 2, 3, 7):
        yield points.point("training", trainers, core=False, rpc=True)


@law("parity.rounds", _rounds)
def ten_rounds(place: Arena, point: Point) -> None:
    """After each of 10 rounds the new model is that of a local optimizer on the mean gradient, bit for bit.

    Trainers that train on a part of a batch each, on workers of their own, train as one process on the whole batch.
    """
    if "row" in point.values:
        _of_variant(place, point).train(10, _sparse(point))
        return
    trainers = point.values["trainers"]
    momentum = points.optimizer(row("SGD"), row("SGD").variant("momentum"))
    served = place.serve(MODELS["plain"].build(3), trainers, momentum)
    asked = [
        rpc.rpc_async(f"worker{1 + trainer}", training, args=(served.far, trainer, 10)) for trainer in range(trainers)
    ]
    with subject_acts():
        models = [one.wait() for one in asked]
    comparison = Comparison(CLOSE_FP64, place.subject.bound)
    comparison.start(served.expected())
    for step in range(10):
        served.reference.zero_grad()
        loss(served.twin, whole_batch(5, step, trainers)).backward()
        served.reference.step()
        for of_trainer in models:
            comparison.step(step + 1, dict(zip(served.names, of_trainer[step], strict=True)), served.expected())
    comparison.verdict()


def training(server: Any, trainer: int, rounds: int) -> list[list[torch.Tensor]]:
    """On a trainer's worker: train, each round from the model of the round before; returns the models."""
    model, models = MODELS["plain"].build(3), []
    for step in range(rounds):
        loss(model, batch(5, trainer, step)).backward()
        model = server.rpc_sync().update_and_fetch([one.grad for one in model.parameters()], trainer)
        model.zero_grad()
        models.append([one.detach().clone() for one in model.parameters()])
    return models


def _orders() -> Iterator[Point]:
    for trainers in (2, 3, 7):
        there = list(range(trainers))
        for name, order in {
            "in-order": there,
            "reversed": there[::-1],
            "last-first": [*there[-1:], *there[:-1]],
        }.items():
            yield points.point(name, trainers, trainers == 3, order=order)
        yield points.point("reversed", trainers, core=False, rpc=True, order=there[::-1])


@law("wait", _orders)
def wait(place: Arena, point: Point) -> None:
    """No trainer is answered before the round is full, and none later than it, in whatever order they come."""
    served = plain(place, point)
    for _ in range(2):
        parts = [served.gradients(trainer) for trainer in range(served.trainers)]
        *early, last = point.values["order"]
        reports = [served.report(trainer, parts[trainer]) for trainer in early]
        reports[0].answered.wait(GRACE)
        for report in reports:
            check(
                not report.answered.is_set(),
                f"trainer {report.trainer} was answered when {len(early)} of {served.trainers} had reported",
            )
        reports.append(served.report(last, parts[last]))
        for report in reports:
            report.values()
        served.applied(parts)


@law("same-model", lambda: _numbers(core=2))
def same_model(place: Arena, point: Point) -> None:
    """All trainers of a round get the same parameters: those after the update."""
    served = plain(place, point)
    for _ in range(3):
        parts = [served.gradients(trainer) for trainer in range(served.trainers)]
        for report in served.round(parts):
            for name, ours, expected in zip(served.names, report.values(), served.twins, strict=True):
                same(ours, expected, f"round {served.rounds}, {name} of trainer {report.trainer}")


def _numbers(core: int) -> Iterator[Point]:
    for trainers in (2, 3, 7):
        yield points.point("", trainers, trainers == core)
    yield points.point("", 3, core=False, rpc=True)


#: In each round, the trainers that have no gradient for the first parameter.
_NONE = {
    "first": [[0], [0], []],
    "middle": [[1], [1], []],
    "last": [[2], [2], []],
    "all": [[0, 1, 2], [], [0, 1, 2]],
    "all-later": [[], [0, 1, 2], []],
    "all-but-last": [[0, 1], [0, 1], []],
}


def _nones() -> Iterator[Point]:
    decay = sgd(lr=0.1, momentum=0.9, weight_decay=0.5)
    for name, missing in _NONE.items():
        yield points.point(name, 3, optimizer=decay, missing=missing, order=[0, 1, 2])
        yield points.point(f"{name}-reversed", 3, core=False, optimizer=decay, missing=missing, order=[2, 1, 0])
        if name in ("first", "all"):
            yield points.point(name, 3, core=False, rpc=True, optimizer=decay, missing=missing, order=[0, 1, 2])
        for each, variant in points.rows():
            yield points.of(each, variant, 3, label=name, missing=missing, order=[0, 1, 2])
    yield points.point("everything", 3, optimizer=decay, missing=[[0], [1], [0, 1, 2]], order=[0, 1, 2], whole=True)


@law("none", _nones)
def none(place: Arena, point: Point) -> None:
    """A None gradient adds nothing and the divisor stays N; None from all leaves the parameter and its state alone.

    Nobody is stranded, whoever reports first.
    """
    served = _of_variant(place, point) if "row" in point.values else plain(place, point)
    for missing in point.values["missing"]:
        parts = [served.gradients(trainer) for trainer in range(served.trainers)]
        for trainer in missing:
            parts[trainer] = (
                [None] * len(parts[trainer]) if point.values.get("whole") else [None, *parts[trainer][1:]]
            )
        served.compare(served.round(parts, point.values["order"])[0].values())
    served.verdict()


def _leaks() -> Iterator[Point]:
    for name, without in {"large": [], "none-of-one": [0], "none-of-all": [0, 1]}.items():
        yield points.point(name, without=without)
    yield points.point("none-of-all", core=False, rpc=True, without=[0, 1])


@law("clean-round", _leaks)
def clean_round(place: Arena, point: Point) -> None:
    """Gradients do not leak into the next round, whether that has others of its own, fewer or none."""
    served = plain(place, point)
    parts = [served.gradients(trainer) for trainer in range(served.trainers)]
    large = [[None if one is None else one * 1024 for one in part] for part in parts]
    served.compare(served.round(large)[0].values())
    for _ in range(2):
        parts = [served.gradients(trainer) for trainer in range(served.trainers)]
        for trainer in point.values["without"]:
            parts[trainer] = [None, *parts[trainer][1:]]
        served.compare(served.round(parts)[0].values())
    served.verdict()
