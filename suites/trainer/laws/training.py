"""The laws of ``trainer`` about optimizers: W ranks do what one process does."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from everyrank.suites.arena.subject_errors import plainly, stayed, subject_acts
from everyrank.suites.compare.comparison import same
from everyrank.suites.trainer import points
from everyrank.suites.trainer.arena import Arena
from everyrank.suites.trainer.contract import CONTRACT
from everyrank.suites.trainer.law_player import follow, playing
from everyrank.suites.trainer.model import Step
from everyrank.suites.trainer.points import TrainingPoint
from everyrank.suites.trainer.sides import FRESH

law = CONTRACT.law


def plainest(arena: Arena) -> None:
    """Build on a small model and train it for one step of SGD."""
    with plainly("build, of a small model,"):
        trainer = arena.plain_trainer
    arena.check_trainer(trainer)
    with plainly("step"):
        trainer.step(arena.plain_batch(trainer))
    with plainly("parameters()"):
        found = dict(trainer.parameters())
    for name, value in found.items():
        stayed(name, value.device, arena.device)


@law("parity.train", points.training, groups=("TRAINED", "SCALED"))
def train(arena: Arena, point: TrainingPoint) -> None:
    """After each step the parameters are those of one process that follows the unweighted mean over ranks."""
    follow(arena, point.plan)


@law("parity.closure", points.closures, groups=("TRAINED",))
def closure(arena: Arena, point: TrainingPoint) -> None:
    """An optimizer that computes the loss again trains as in one process, and sees the mean loss of all ranks.

    The order of a sum is amplified: two steps are compared, within 1e-9.
    """
    follow(arena, point.plan)


@law("parity.sparse", points.sparse, groups=("TRAINED", "SCALED"))
def sparse(arena: Arena, point: TrainingPoint) -> None:
    """Sparse gradients are averaged row by row, also beside dense ones."""
    follow(arena, point.plan)


@law("loss", lambda: points.plain(1, 2, 3, 4, steps=3), groups=("TRAINED", "SCALED"))
def loss(arena: Arena, point: TrainingPoint) -> None:
    """If a step returns a loss, it is the mean loss of all ranks before the step."""
    with playing(arena, point.plan, compared="loss") as player:
        player.step(times=3)


@dataclass(frozen=True, kw_only=True)
class AddedPoint(TrainingPoint):
    """A point that adds a group of parameters; without a step that is when the trainer is built."""

    after: int | None
    by_default: bool = False
    """Whether the group states no option, and its rate is changed before it has been stepped."""


def _groups() -> Iterator[AddedPoint]:
    for point in points.grouped():
        yield AddedPoint(
            point.label, point.size, core=point.core, optimizer=point.optimizer, plan=point.plan, after=None
        )
    for after in (0, 1, 2):
        core = (3,) if after == 2 else ()
        make = partial(AddedPoint, after=after)
        yield from points.each_size(make, 2, 3, label=f"added-after-{after}", steps=4, variant="momentum", core=core)
    make = partial(AddedPoint, after=1, by_default=True)
    yield from points.each_size(
        make, 2, 3, label="added-by-default", steps=4, optimizer="AdamW", variant="defaults", core=()
    )


@law("parity.groups", _groups, groups=("TRAINED", "SCALED"))
def groups(arena: Arena, point: AddedPoint) -> None:
    """Each group of parameters is stepped with its own options, also one that is added while training."""
    if point.after is None:
        follow(arena, point.plan)
        return
    first: dict[str, Any] = {"params": ["first.weight", "last.bias"]}
    added: dict[str, Any] = {"params": ["first.bias", "last.weight"]}
    if not point.by_default:
        added |= {"lr": 0.25, "weight_decay": 0.5}
    with playing(arena, point.plan, given=[first]) as player:
        player.step(times=point.after)
        player.sides.add(added)
        if point.by_default:
            player.change()
        player.step(times=point.plan.steps - point.after)


@law("parity.schedule", lambda: points.plain(1, 2, 3, 4, steps=4, schedule=True), groups=("TRAINED", "SCALED"))
def schedule(arena: Arena, point: TrainingPoint) -> None:
    """A scheduler of torch, attached to the trainer's optimizer, has the effect that it has in one process."""
    with playing(arena, point.plan) as player:
        player.schedule(gamma=0.5)
        player.step(times=4)


@dataclass(frozen=True, kw_only=True)
class RatePoint(TrainingPoint):
    """A point that sets an option: before the first step, between steps, or after loading a state."""

    when: str
    option: str = "lr"
    in_place: bool = False
    """Whether the option is a tensor, which is filled."""


def _rates() -> Iterator[RatePoint]:
    for when in ("at-once", "between", "after-load", "scheduler-after-load"):
        core = (3,) if when != "at-once" else ()
        yield from points.each_size(partial(RatePoint, when=when), 1, 2, 3, label=when, steps=3, core=core)
    for when in ("scheduler-resumed", "resumed-by-count"):
        yield from points.each_size(partial(RatePoint, when=when), 2, label=when, steps=4, core=(2,))
    for when, option in (("between", "weight_decay"), ("after-load", "momentum")):
        label = f"{when}-{option.replace('_', '-')}"
        yield from points.each_size(partial(RatePoint, when=when, option=option), 2, label=label, steps=3, core=(2,))
    filled = partial(RatePoint, when="between", in_place=True)
    yield from points.each_size(filled, 2, label="filled-in-place", variant="tensor-lr", steps=3, core=(2,))


@law("alias", _rates, groups=("TRAINED", "SCALED"))
def alias(arena: Arena, point: RatePoint) -> None:
    """``param_groups`` stay live: an option that is set there, or by a scheduler, counts, also after loading a state.

    So does a scheduler that is resumed: one that was attached before the load, or one that goes on from a count.
    """
    if point.when in ("scheduler-resumed", "resumed-by-count"):
        _resume(arena, point)
        return
    with playing(arena, point.plan) as player:
        if point.when != "at-once":
            player.step()
        if "after-load" in point.when:
            player.save()
            player.load()
        if point.when == "scheduler-after-load":
            player.schedule(gamma=0.5)
        else:
            player.change(point.option, factor=0.5, in_place=point.in_place)
        player.step(times=2)


def _resume(arena: Arena, point: RatePoint) -> None:
    """Train with a scheduler, and go on with fresh objects: another trainer, and another scheduler on it."""
    with playing(arena, point.plan) as player:
        sides = player.sides
        with subject_acts():
            player.schedulers += [_scheduler(sides.training.trainer.optimizer), _scheduler(sides.alone.optimizer)]
        player.step(times=2)
        state, counts = sides.state(), player.schedulers[0].state_dict()
        fresh = sides.begin(FRESH)
        with subject_acts():
            if point.when == "scheduler-resumed":
                player.schedulers[0] = _scheduler(fresh.trainer.optimizer)
                sides.load(state, fresh)
                player.schedulers[0].load_state_dict(counts)
            else:
                sides.load(state, fresh)
                # It starts with a step, which counts as the next: the rate of that has been set already.
                player.schedulers[0] = _scheduler(fresh.trainer.optimizer, last=1)
        player.step(times=2)


def _scheduler(optimizer: Any, last: int = -1) -> Any:
    """Return a scheduler that computes each rate from the initial one."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 0.5**count, last_epoch=last)


@law("late", lambda: points.plain(1, 2, 3, steps=3, core=(2,)))
def late(arena: Arena, point: TrainingPoint) -> None:
    """Nothing changes after a step has returned."""
    with playing(arena, point.plan, compared="nothing") as player:
        for number in range(1, 5):
            player.step(waits=number in (1, 4))  # its own start, and the usual: that is enough


@law("batches", lambda: points.plain(1, 2, 3, core=(2,)))
def batches(arena: Arena, point: TrainingPoint) -> None:
    """A step leaves the inputs and the targets of its microbatches as they were."""
    with playing(arena, point.plan, compared="nothing") as player:
        training = player.sides.training
        given = training.batches(Step(), 0, 0)
        kept = copy.deepcopy(given)
        with subject_acts("step"):
            training.trainer.step(*given)
        for batch, before in zip(given, kept, strict=True):
            same(batch.inputs, before.inputs, "the inputs, after the step,")
            same(batch.targets, before.targets, "the targets, after the step,")
        player.step()
