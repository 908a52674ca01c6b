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
from everyrank.suites.compare.mistakes import would_be
from everyrank.suites.compare.reference import Plan, order_matched
from everyrank.suites.trainer import points
from everyrank.suites.trainer.arena import Arena, Training
from everyrank.suites.trainer.contract import CONTRACT
from everyrank.suites.trainer.points import TrainingPoint

law = CONTRACT.law


def plainest(arena: Arena) -> None:
    """Build on a small model and train it for one step of SGD."""
    plan = Plan(arena.size, steps=1, variant="defaults")
    with plainly("build, of a small model,"):
        trainer = arena.subject.build(arena.model(plan), torch.optim.SGD)
    training = arena.begin(plan)
    with plainly("step"):
        index, _ = getattr(trainer, "part", (arena.rank, arena.size))
        trainer.step(*training.batches(index, 1))
    with plainly("parameters()"):
        found = dict(trainer.parameters())
    for name, value in found.items():
        stayed(name, value.device, arena.device)


@law("parity.train", points.training, groups=("TRAINED", "SCALED"))
def train(arena: Arena, point: TrainingPoint) -> None:
    """After each step the parameters are those of one process that follows the unweighted mean over ranks."""
    arena.follow(arena.begin(point.plan))


@law("parity.closure", points.closures, groups=("TRAINED",))
def closure(arena: Arena, point: TrainingPoint) -> None:
    """An optimizer that computes the loss again trains as in one process, and sees the mean loss of all ranks.

    The order of a sum is amplified: two steps are compared, within 1e-9.
    """
    arena.follow(arena.begin(point.plan))


@law("parity.sparse", points.sparse, groups=("TRAINED", "SCALED"))
def sparse(arena: Arena, point: TrainingPoint) -> None:
    """Sparse gradients are averaged row by row, also beside dense ones."""
    arena.follow(arena.begin(point.plan))


@law("loss", lambda: points.plain(1, 2, 3, 4, steps=3), groups=("TRAINED", "SCALED"))
def loss(arena: Arena, point: TrainingPoint) -> None:
    """If a step returns a loss, it is the mean loss of all ranks before the step."""
    training = arena.begin(point.plan)
    alone = training.reference()
    for number in range(1, 4):
        found, expected = training.step(number), alone.step(number)
        if found is not None:
            comparison = arena.comparison(training.plan)
            ours = torch.as_tensor(found).detach().cpu().reshape(())
            comparison.step(number, {"the loss": ours}, {"the loss": expected.reshape(())})
            comparison.verdict()


@dataclass(frozen=True, kw_only=True)
class AddedPoint(TrainingPoint):
    """A point that adds a group of parameters; without a step that is when the trainer is built."""

    after: int | None


def _groups() -> Iterator[AddedPoint]:
    for point in points.grouped():
        yield AddedPoint(
            point.label, point.size, core=point.core, optimizer=point.optimizer, plan=point.plan, after=None
        )
    for after in (0, 1, 2):
        core = (3,) if after == 2 else ()
        make = partial(AddedPoint, after=after)
        yield from points.each_size(make, 2, 3, label=f"added-after-{after}", steps=4, variant="momentum", core=core)


@law("parity.groups", _groups, groups=("TRAINED", "SCALED"))
def groups(arena: Arena, point: AddedPoint) -> None:
    """Each group of parameters is stepped with its own options, also one that is added while training."""
    if point.after is None:
        arena.follow(arena.begin(point.plan))
        return
    first: list[dict[str, Any]] = [{"params": ["first.weight", "last.bias"]}]
    added = {"params": ["first.bias", "last.weight"], "lr": 0.25, "weight_decay": 0.5}
    training = arena.begin(point.plan, groups=first)
    alone = training.reference(groups=first)
    comparison = arena.comparison(training.plan, alone.values)
    for number in range(1, point.plan.steps + 1):
        if number == point.after + 1:
            with subject_acts("add_param_group"):
                training.trainer.add_param_group(dict(added))
            alone.add_param_group(added)
        training.step(number)
        alone.step(number)
        comparison.step(number, training.values, alone.values)
    comparison.verdict()


@law("parity.schedule", lambda: points.plain(1, 2, 3, 4, steps=4, schedule=True), groups=("TRAINED", "SCALED"))
def schedule(arena: Arena, point: TrainingPoint) -> None:
    """A scheduler of torch, attached to the trainer's optimizer, has the effect that it has in one process."""
    training = arena.begin(point.plan)
    with subject_acts():
        scheduler = point.plan.scheduler(training.trainer.optimizer)
    after_each_step(arena, training, lambda: scheduler.step())


def after_each_step(arena: Arena, training: Training, act: Any) -> None:
    """Train with an action after each step, which the plan has as well, and compare with the reference."""
    reference = order_matched(training.plan)
    comparison = arena.comparison(training.plan, reference.start)
    comparison.mistakes = partial(would_be, training.plan, training.index)
    for number, expected in enumerate(reference.steps, 1):
        training.step(number)
        with subject_acts():
            act()
        comparison.step(number, training.values, expected.values)
    comparison.verdict()


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
    training = arena.begin(point.plan)
    trainer, alone = training.trainer, training.reference()
    if point.when in ("between", "after-load", "scheduler-after-load"):
        training.step(1)
        alone.step(1)
    with subject_acts():
        if point.when in ("after-load", "scheduler-after-load"):
            state = trainer.state_dict()
            trainer.load_state_dict(state)
        if point.when == "scheduler-after-load":
            torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda count: 0.5)
        else:
            _halve(trainer.param_groups, point)
    _halve(alone.optimizer.param_groups, point)
    arena.follow_alone(training, alone, range(2, 4))


def _halve(groups: list[dict[str, Any]], point: RatePoint) -> None:
    halves = [group[point.option] * 0.5 for group in groups]  # groups may share a tensor
    for group, half in zip(groups, halves, strict=True):
        if point.in_place:
            group[point.option].fill_(half)
        else:
            group[point.option] = half


def _resume(arena: Arena, point: RatePoint) -> None:
    """Train with a scheduler, and go on with fresh objects: another trainer, and another scheduler on it."""
    training = arena.begin(point.plan)
    alone = training.reference()
    expected = _scheduler(alone.optimizer)
    with subject_acts():
        scheduler = _scheduler(training.trainer.optimizer)
    for number in (1, 2):
        training.step(number)
        alone.step(number)
        scheduler.step()
        expected.step()
    with subject_acts():
        state = copy.deepcopy(training.trainer.state_dict())
        fresh = arena.begin(point.plan)
        if point.when == "scheduler-resumed":
            scheduler, saved = _scheduler(fresh.trainer.optimizer), scheduler.state_dict()
            fresh.trainer.load_state_dict(state)
            scheduler.load_state_dict(saved)
        else:
            fresh.trainer.load_state_dict(state)
            # It starts with a step, which counts as the next: the rate of that has been set already.
            scheduler = _scheduler(fresh.trainer.optimizer, last=1)
    comparison = arena.comparison(fresh.plan, alone.values)
    for number in (3, 4):
        fresh.step(number)
        alone.step(number)
        comparison.step(number, fresh.values, alone.values)
        with subject_acts():
            scheduler.step()
        expected.step()
    comparison.verdict()


def _scheduler(optimizer: Any, last: int = -1) -> Any:
    """Return a scheduler that computes each rate from the initial one."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 0.5**count, last_epoch=last)


@law("late", lambda: points.plain(1, 2, 3, steps=3, core=(2,)))
def late(arena: Arena, point: TrainingPoint) -> None:
    """Nothing changes after a step has returned."""
    training = arena.begin(point.plan)
    start = training.values
    for number in range(1, 5):
        training.step(number)
        if number in (2, 3):  # its own start, and the usual: that is enough
            continue
        before, full = training.own, training.values
        arena.meet("all ranks have returned from the step")
        arena.wait_a_while()
        for name, own in training.own.items():
            same(own, before[name], f"{name} of rank {arena.rank}, some time after step {number}")
        for name, value in training.values.items():
            same(value, full[name], f"{name}, some time after step {number}")
    moved = any(not torch.equal(value, start[name]) for name, value in training.values.items())
    arena.check(moved, "the steps have changed nothing")
