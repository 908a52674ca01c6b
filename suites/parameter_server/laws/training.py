"""The laws of ``parameter-server`` about rounds that go well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed.rpc as rpc
from everyrank.fixtures.data import batch, loss, whole_batch
from everyrank.fixtures.models import MODELS
from everyrank.fixtures.optimizers import row
from everyrank.suites.arena import first_step
from everyrank.suites.arena.subject_errors import in_a_line, plainly, stayed, subject_acts
from everyrank.suites.compare.comparison import CLOSE_FP64, Comparison
from everyrank.suites.errors import NotApplicable, Unusable
from everyrank.suites.parameter_server import points
from everyrank.suites.parameter_server.arena import Arena
from everyrank.suites.parameter_server.contract import CONTRACT
from everyrank.suites.parameter_server.law_player import playing
from everyrank.suites.parameter_server.points import ServerPoint, VariantPoint, sgd
from everyrank.suites.parameter_server.reports import GRACE, PATIENCE, parameters

law = CONTRACT.law


def plainest(arena: Arena) -> None:
    """Build a server for one trainer, with SGD, and report once."""
    with plainly("build, for one trainer and with SGD,"):
        served = arena.built(MODELS["plain"].build(3), 1, sgd())
    report = served.report(0, [torch.ones_like(twin) for twin in served.twins])
    if report.answered.wait(PATIENCE) and report.error is not None:
        raise Unusable(f"a report of the only trainer was answered with {in_a_line(report.error)}")
    for answer in [] if report.model is None else report.values():
        stayed("a parameter of the answer", answer.device, "cpu")


@law("parity.round", points.variants)
@first_step.first_step_of("parity.rounds")
def one_round(arena: Arena, point: VariantPoint) -> None:
    """After one round the new model is that of a local optimizer on the mean gradient, bit for bit."""
    if first_step.judged(arena.subject, point):
        return
    with playing(arena, point) as player:
        player.fill()


def _rounds() -> Iterator[ServerPoint]:
    yield from points.variants()
    yield from points.with_far_trainers()
    for trainers in (1, 2, 3, 7):
        yield points.plain("training", trainers, core=False, far=True)


@law("parity.rounds", _rounds)
def ten_rounds(arena: Arena, point: ServerPoint) -> None:
    """After each of 10 rounds the new model is that of a local optimizer on the mean gradient, bit for bit.

    Trainers that train on a part of a batch each, on workers of their own, train as one process on the whole batch.
    """
    if isinstance(point, VariantPoint):
        with playing(arena, point) as player:
            player.sides.comparison.keeps_first = True
            for _ in range(10):
                player.fill()
        first_step.keep(arena.subject, point, player.sides.comparison)
        return
    trainers = point.trainers
    momentum = points.optimizer(row("SGD"), row("SGD").variant("momentum"))
    served = arena.serve(MODELS["plain"].build(3), trainers, momentum)
    futures = [
        rpc.rpc_async(f"worker{1 + trainer}", training, args=(served.far, trainer, 10)) for trainer in range(trainers)
    ]
    with subject_acts():
        models = [future.wait() for future in futures]
    comparison = Comparison(CLOSE_FP64, arena.subject.bound)
    comparison.start(served.expected())
    for step in range(10):
        served.reference.zero_grad()
        loss(served.twin, whole_batch(5, step, trainers)).backward()
        served.reference.step()
        for trained in models:
            comparison.step(step + 1, dict(zip(served.names, trained[step], strict=True)), served.expected())
    comparison.verdict()


def training(server: Any, trainer: int, rounds: int) -> list[list[torch.Tensor]]:
    """Train, on a trainer's worker, each round from the model of the last one; return the models."""
    model, models = MODELS["plain"].build(3), []
    names = [name for name, _ in model.named_parameters()]
    for step in range(rounds):
        loss(model, batch(5, trainer, step)).backward()
        answer = server.rpc_sync().update_and_fetch([parameter.grad for parameter in model.parameters()], trainer)
        models.append([value.detach().clone() for value in parameters(answer, trainer)])
        model.load_state_dict(dict(zip(names, models[-1], strict=True)))
        model.zero_grad()
    return models


@dataclass(frozen=True, kw_only=True)
class OrderPoint(ServerPoint):
    """A point with the order in which trainers report, and whether all but the last report twice."""

    order: Sequence[int]
    again: bool = False


def _orders() -> Iterator[OrderPoint]:
    for trainers in (2, 3, 7):
        numbers = list(range(trainers))
        for name, order in {
            "in-order": numbers,
            "reversed": numbers[::-1],
            "last-first": [*numbers[-1:], *numbers[:-1]],
        }.items():
            yield points.point(OrderPoint, name, trainers, core=trainers == 3, order=order)
        yield points.point(OrderPoint, "reversed", trainers, core=False, far=True, order=numbers[::-1])
    yield points.point(OrderPoint, "again", 3, core=False, order=range(3), again=True)


@law("wait", _orders)
def wait(arena: Arena, point: OrderPoint) -> None:
    """No trainer is answered before the round is full, and none later than it, in whatever order they come.

    One that reports again while it waits counts once.
    """
    first, *others, last = point.order
    with playing(arena, point, compared="nobody") as player:
        if point.again and player.sides.served.blocks:
            raise NotApplicable("nobody knows when a server that blocks has taken a report")
        for _ in range(2):
            for trainer in (first, *others):
                player.report(trainer)
            player.sides.waiting[first].answered.wait(GRACE)
            player.sides.none_answered()
            player.report(last, again=point.again)


@law("same-model", lambda: _numbers(core=2))
def same_model(arena: Arena, point: ServerPoint) -> None:
    """All trainers of a round get the same parameters: those after the update."""
    with playing(arena, point, compared="all") as player:
        for _ in range(3):
            player.fill()


def _numbers(core: int) -> Iterator[ServerPoint]:
    for trainers in (2, 3, 7):
        yield points.plain(trainers=trainers, core=trainers == core)
    yield points.plain(trainers=3, core=False, far=True)


#: In each round, the trainers that have no gradient for the first parameter.
_NONE = {
    "first": [[0], [0], []],
    "middle": [[1], [1], []],
    "last": [[2], [2], []],
    "all": [[0, 1, 2], [], [0, 1, 2]],
    "all-later": [[], [0, 1, 2], []],
    "all-but-last": [[0, 1], [0, 1], []],
}


@dataclass(frozen=True, kw_only=True)
class NonePoint(ServerPoint):
    """A point with the trainers that have no gradient in each round, and the order in which trainers report."""

    missing: Sequence[Sequence[int]]
    order: Sequence[int] = (0, 1, 2)
    whole: bool = False
    """Whether these trainers have no gradient for any parameter."""


@dataclass(frozen=True, kw_only=True)
class NoneVariantPoint(NonePoint, VariantPoint):
    """The same with an optimizer of the table."""


def _nones() -> Iterator[NonePoint]:
    for name, missing in _NONE.items():
        make = partial(points.point, partial(NonePoint, missing=missing))
        yield make(name, 3)
        yield make(f"{name}-reversed", 3, core=False, order=[2, 1, 0])
        if name in ("first", "all"):
            yield make(name, 3, core=False, far=True)
        for other, variant in points.rows():
            yield points.variant_point(NoneVariantPoint, other, variant, 3, label=name, missing=missing)
    yield points.point(NonePoint, "everything", 3, missing=[[0], [1], [0, 1, 2]], whole=True)


@law("none", _nones)
def none(arena: Arena, point: NonePoint) -> None:
    """A None gradient adds nothing and the divisor stays N; None from all leaves the parameter and its state alone.

    Nobody is stranded, whoever reports first.
    """
    with playing(arena, point, sgd(lr=0.1, momentum=0.9, weight_decay=0.5)) as player:
        lacks = tuple(player.sides.model.trained) if point.whole else (0,)
        for missing in point.missing:
            for trainer in point.order:
                player.report(trainer, missing=lacks if trainer in missing else ())


@dataclass(frozen=True, kw_only=True)
class LeakPoint(ServerPoint):
    """A point with the trainers that have no gradient for the first parameter in the rounds after the first."""

    without: Sequence[int]


def _leaks() -> Iterator[LeakPoint]:
    none: list[int] = []
    for name, without in {"large": none, "none-of-one": [0], "none-of-all": [0, 1]}.items():
        yield points.point(LeakPoint, name, without=without)
    yield points.point(LeakPoint, "none-of-all", core=False, far=True, without=[0, 1])


@law("clean-round", _leaks)
def clean_round(arena: Arena, point: LeakPoint) -> None:
    """Gradients do not leak into the next round, whether that has others of its own, fewer or none."""
    with playing(arena, point) as player:
        player.fill(large=True)
        for _ in range(2):
            for trainer in range(point.trainers):
                player.report(trainer, missing=(0,) if trainer in point.without else ())
