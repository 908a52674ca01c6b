"""The laws of ``trainer`` about saving and loading."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from everyrank.fixtures.optimizers import rows
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.reference import Plan
from everyrank.suites.errors import NotApplicable
from everyrank.suites.trainer import points
from everyrank.suites.trainer.arena import Arena
from everyrank.suites.trainer.as_torch import NUMBERED
from everyrank.suites.trainer.contract import CONTRACT
from everyrank.suites.trainer.law_player import playing
from everyrank.suites.trainer.model import Step
from everyrank.suites.trainer.points import TrainingPoint
from everyrank.suites.trainer.sides import FRESH
from everyrank.suites.trainer.wrong_states import Mutation, Part

law = CONTRACT.law


def _each_optimizer(core: tuple[str, ...] = ()) -> Iterator[TrainingPoint]:
    for row in rows():
        if not row.needs & {"closure", "sparse"}:
            plan = Plan(2, 4, row.model, row.name, row.fullest.name)
            yield TrainingPoint(row.name, 2, core=row.name in core, optimizer=row.name, plan=plan)


@dataclass(frozen=True, kw_only=True)
class RoundTripPoint(TrainingPoint):
    """A point that may change the learning rate before the state is saved, or do something after it was loaded.

    A group is added then, or what was loaded is overwritten.
    """

    rate: float | None = None
    added: bool = False
    overwritten: bool = False


def _round_trips() -> Iterator[RoundTripPoint]:
    for point in _each_optimizer(core=("Adam",)):
        yield RoundTripPoint(point.label, point.size, core=point.core, optimizer=point.optimizer, plan=point.plan)
    for model in ("tied", "frozen", "unused", "buffers", "equal-shapes"):
        make = partial(RoundTripPoint)
        core = (3,) if model == "equal-shapes" else ()
        yield from points.each_size(make, 2, 3, label=model, model=model, steps=4, variant="momentum", core=core)
    for size in (1, 4):
        yield from points.each_size(RoundTripPoint, size, label="plain", steps=4, core=())
    yield from points.each_size(
        partial(RoundTripPoint, rate=0.25), 2, 3, label="rate", steps=4, variant="momentum", core=(2,)
    )
    yield from points.each_size(
        RoundTripPoint, 2, label="groups", steps=4, optimizer="Adam", variant="groups", core=(2,)
    )
    yield from points.each_size(
        partial(RoundTripPoint, added=True), 2, label="added", steps=4, variant="momentum", core=()
    )
    yield from points.each_size(partial(RoundTripPoint, overwritten=True), 2, label="overwritten", steps=4, core=())


@law("state.round-trip", _round_trips, groups=("TRAINED", "SCALED", "STATE"))
def round_trip(arena: Arena, point: RoundTripPoint) -> None:
    """A state, loaded into a fresh trainer of another model, goes on as if the training had never stopped.

    The state has the parameters, the optimizer's state with its step counts, and the options of the groups. If the
    optimizer itself, plain torch.optim's, parts by saving and loading, as NAdam does, the trainer may part alike. A
    group may be added after a state of the others was loaded. The parameters and buffers in that state may be
    overwritten then: the trainer has copied them, as torch's modules do.
    """
    if point.added:
        _add_after_loading(arena, point)
        return
    with playing(arena, point.plan) as player:
        player.step()
        player.save()  # also before the state that counts
        player.step()
        if point.rate is not None:
            player.change(factor=point.rate)
        player.save()
        player.step()  # what was saved does not change any more
        player.load(fresh=True, overwritten=point.overwritten)
        if point.overwritten and not player.overwrote:
            raise NotApplicable("the state has no dict with a tensor for each parameter, by its name")
        player.step(times=2)


def _add_after_loading(arena: Arena, point: RoundTripPoint) -> None:
    groups: list[dict[str, Any]] = [{"params": ["first.weight", "last.bias"]}]
    added = {"params": ["first.bias", "last.weight"], "lr": 0.25}
    with playing(arena, point.plan, given=groups) as player:
        player.step()
        player.save()
        player.load(fresh=True)
        player.sides.add(added)
        groups.append(added)
        player.step()
        player.save()
        player.load(fresh=True)
        player.step(times=2)


When = Literal["fresh", "between", "always"]


@dataclass(frozen=True, kw_only=True)
class InertPoint(TrainingPoint):
    """A point that asks for the state before the first step, after it, or always."""

    when: When


def _inert() -> Iterator[InertPoint]:
    for point in _each_optimizer():
        yield InertPoint(
            point.label, point.size, core=point.core, optimizer=point.optimizer, plan=point.plan, when="always"
        )
    for when in get_args(When):
        make = partial(InertPoint, when=when)
        core = (3,) if when == "always" else (2,)
        yield from points.each_size(
            make, 2, 3, label=when, steps=3, optimizer="Adam", variant="everything", core=core
        )


@law("state.inert", _inert, groups=("TRAINED", "SCALED"))
def inert(arena: Arena, point: InertPoint) -> None:
    """To save, or to ask for the state of a fresh trainer, changes nothing."""
    with playing(arena, point.plan) as player:
        for number in range(1, point.plan.steps + 1):
            if point.when == "always" or (point.when == "fresh") == (number == 1):
                player.save()
            player.step()


@dataclass(frozen=True, kw_only=True)
class ReshardPoint(TrainingPoint):
    """A point at which a state is saved on some ranks and loaded on fewer or more."""

    before: int
    after: int


def _reshards() -> Iterator[ReshardPoint]:
    for before, after in ((2, 3), (3, 2), (1, 4), (4, 1), (2, 4)):
        make = partial(ReshardPoint, before=before, after=after)
        for optimizer in ("Adam", "SGD"):
            core = (3,) if optimizer == "Adam" and {before, after} == {2, 3} else ()
            plan = {"steps": 4, "optimizer": optimizer, "variant": "everything"}
            label = f"{optimizer}-{before}-to-{after}"
            yield from points.each_size(make, max(before, after), label=label, core=core, **plan)


@law("state.reshard", _reshards, groups=("TRAINED", "SCALED", "STATE"))
def reshard(arena: Arena, point: ReshardPoint) -> None:
    """A state that was saved on W ranks goes on on another number of ranks, where each loads that of rank 0."""
    sizes = arena.subject.sizes
    if sizes is not None and not {point.before, point.after} <= set(sizes):
        raise NotApplicable(f"the subject runs on {' or '.join(map(str, sizes))} ranks")
    with playing(arena, point.plan) as player:
        player.reshard(point.before, point.after)


@dataclass(frozen=True, kw_only=True)
class MutationPoint(TrainingPoint):
    """A point with a state that is wrong: an entry of the model or of the optimizer."""

    part: Part
    mutation: Mutation


def _mutations() -> Iterator[MutationPoint]:
    for part in get_args(Part):
        for mutation in get_args(Mutation):
            if (part, mutation) == ("model", "transposed"):
                continue  # it fails as a misshapen one does
            make = partial(MutationPoint, part=part, mutation=mutation)
            label = f"{part}-{mutation}"
            yield from points.each_size(make, 2, label=label, variant="momentum", steps=4, core=(2,))


@law("state.strict", _mutations)
def strict(arena: Arena, point: MutationPoint) -> None:
    """A state with an entry that is missing, extra or misshapen is refused with an error on every rank.

    A parameter that never had a gradient has no entry in the optimizer's state. A missing entry may be taken for
    that, as torch.optim does: then this parameter starts anew, and all others go on. A trainer that saves its
    optimizer in the form of torch.optim, which checks neither entries nor shapes, may load what that loads: an entry
    that is too many counts for nothing.
    """
    with playing(arena, point.plan) as player:
        player.load_wrong(point.part, point.mutation)


@law(
    "state.in-order",
    lambda: points.plain(2, 3, model="equal-shapes", optimizer="Adam", variant="everything", steps=4),
    groups=("TRAINED", "SCALED", "STATE"),
)
def state_in_order(arena: Arena, point: TrainingPoint) -> None:
    """A state, loaded by a model that has registered its parameters in another order, reaches the right ones.

    A trainer that saves its optimizer in the form of torch.optim is not asked: that numbers the parameters.
    """
    with playing(arena, point.plan) as player:
        player.step()
        player.save()
        if player.saved_numbers:
            raise NotApplicable(NUMBERED)
        player.step()
        player.save()
        player.load(fresh=True, reordered=True)
        player.step(times=2)


@law("state.resume", lambda: points.plain(2, steps=4, core=(2,)))
def resume(arena: Arena, point: TrainingPoint) -> None:
    """A state that is saved in the middle of an epoch goes on with the batches that are left, once each and in order.

    It is asked of a trainer that has a ``loader``. The epoch after that has all batches.
    """
    with playing(arena, point.plan, compared="nothing") as player:
        sides = player.sides
        if not callable(getattr(sides.training.trainer, "loader", None)):
            raise NotApplicable("the subject has no loader")
        batches = [sides.training.batches(Step(), number, 0)[0] for number in range(point.plan.steps)]

        def train(trainer: Any, most: int) -> list[int]:
            """Train on the next batches of an epoch; return their numbers."""
            numbers = []
            with subject_acts("loader"):
                for batch in itertools.islice(trainer.loader(copy.deepcopy(batches)), most):
                    found = [number for number, each in enumerate(batches) if torch.equal(each.inputs, batch.inputs)]
                    numbers += found or [-1]
                    trainer.step(batch)
            return numbers

        begun = train(sides.training.trainer, 2)
        state = sides.state()
        sides.load(state, sides.begin(FRESH))
        left, again = (train(sides.training.trainer, len(batches) + 1) for _ in range(2))
        arena.check(begun == [0, 1], f"an epoch begins with the batches {begun}, not with 0 and 1")
        arena.check(left == [2, 3], f"after a load in the middle of an epoch {left} came, and 2 and 3 were left")
        arena.check(again == [0, 1, 2, 3], f"the epoch after that had the batches {again}, not 0 to 3")
