"""The laws of ``replicate`` about ranks that have no more batches, and ranks that fail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from everyrank import current_world
from everyrank.fixtures.failing import InjectedError
from everyrank.suites.arena.groups import NAMES_RANKS, Group, collect, error_of, names_rank, own_group, root, text_of
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.reference import Plan, order_matched
from everyrank.suites.replicate import points
from everyrank.suites.replicate.arena import Arena
from everyrank.suites.replicate.contract import CONTRACT
from everyrank.suites.replicate.points import TrainingPoint
from torch import nn

law = CONTRACT.law


@dataclass(frozen=True, kw_only=True)
class UnevenPoint(TrainingPoint):
    """A point at which ranks have different numbers of batches."""

    idle: bool = False
    """Whether a rank that is done stays and does nothing."""


def _uneven() -> Iterator[UnevenPoint]:
    for label, batches in {
        "last-fewer": (3, 3, 1), "first-fewer": (1, 3, 3), "all-different": (2, 3, 1), "two": (3, 2), "none": (2, 0),
    }.items():  # fmt: skip
        size = len(batches)
        core = (size,) if label in ("last-fewer", "first-fewer") else ()
        model = "buffers" if label == "all-different" else "plain"
        yield from points.each_size(
            UnevenPoint, size, label=label, model=model, steps=max(batches), batches=batches, core=core
        )
    # Only one rank goes on. No other is slow: all that it waits for are idle.
    for label, batches in {"last-idle": (2, 1), "others-idle": (1, 2, 1)}.items():
        core = (2,) if label == "last-idle" else ()
        make = partial(UnevenPoint, idle=True)
        yield from points.each_size(make, len(batches), label=label, steps=2, batches=batches, core=core)


@law("uneven", _uneven, groups=("TRAINED",))
def uneven(arena: Arena, point: UnevenPoint) -> None:
    """A rank without a batch counts as zero and all end equal, or the others raise. None hangs.

    A rank that is done enters ``join()`` if the module has it, otherwise it leaves. If it stays and does nothing at
    all, the others get an error after the time limit of their group. If the subject declares `names-ranks`, their
    error names a rank that is done.
    """
    plan = point.plan
    with own_group() as group:
        module: Any = arena.build_model(plan)
        if point.idle:
            _done_ranks_stay(arena, plan, module, group)
        elif callable(getattr(module, "join", None)):
            _done_ranks_join(arena, plan, module)
        else:
            _done_ranks_leave(arena, plan, module, group)
        del module
        collect()


def _done_ranks_join(arena: Arena, plan: Plan, module: Any) -> None:
    reference = order_matched(plan)
    comparison = arena.comparison(reference)
    optimizer = plan.optimize(module)
    with subject_acts(), module.join():
        for step, expected in enumerate(reference.steps[: plan.batches[arena.rank]], 1):
            found = arena.step(plan, module, optimizer, step)
            arena.compare_gradients(comparison, step, found, expected.gradients)
            comparison.step(step, arena.values(module), expected.values)
            arena.load(module, expected.values)
    comparison.step(plan.steps, arena.values(module), reference.steps[-1].values)
    comparison.verdict()


def _done_ranks_leave(arena: Arena, plan: Plan, module: nn.Module, group: Group) -> None:
    """Let a rank that is done leave its group, as if its process had ended."""
    optimizer = plan.optimize(module)
    error = None
    for step in range(1, plan.batches[arena.rank] + 1):
        error = error_of(partial(arena.step, plan, module, optimizer, step))
        if error is not None:
            break
    group.leave()
    _must_raise(arena, plan, error)


def _done_ranks_stay(arena: Arena, plan: Plan, module: nn.Module, group: Group) -> None:
    """Let a rank that is done stay and do nothing."""
    optimizer = plan.optimize(module)
    for step in range(1, min(plan.batches) + 1):
        arena.step(plan, module, optimizer, step)
    current_world().barrier()
    error = None
    for step in range(min(plan.batches) + 1, plan.batches[arena.rank] + 1):
        group.shorten_patience()
        error = error_of(partial(arena.step, plan, module, optimizer, step))
    current_world().barrier()
    _must_raise(arena, plan, error)


def _must_raise(arena: Arena, plan: Plan, error: Exception | None) -> None:
    """Check that each rank with more batches than others raised an error that names one of those."""
    fewest = min(plan.batches)
    done = [rank for rank, batches in enumerate(plan.batches) if batches == fewest]
    if arena.rank not in done:
        arena.check(error is not None, "trained on, though another rank had no more batches")
        named = NAMES_RANKS not in arena.subject.declares or any(names_rank(error, rank) for rank in done)
        arena.check(named, f"the error names none of ranks {done}, which had no more batches: {text_of(error)}")


#: The phase of a step in which a training script fails; ``between``: between two steps.
Phase = Literal["forward", "backward", "between"]


@dataclass(frozen=True, kw_only=True)
class FailurePoint(TrainingPoint):
    """A point that fixes which rank fails, and when."""

    phase: Phase
    culprit: int


def _failures() -> Iterator[FailurePoint]:
    phase: Phase
    for phase in get_args(Phase):
        for size in (2, 3, 4):
            for culprit in {0, size - 1}:
                label = f"{phase}-{'first' if culprit == 0 else 'last'}"
                core = (3,) if (phase, culprit) in (("forward", 0), ("between", 2)) else ()
                make = partial(FailurePoint, phase=phase, culprit=culprit)
                yield from points.each_size(make, size, label=label, steps=3, core=core)


@law("errors.rank", _failures)
def errors_rank(arena: Arena, point: FailurePoint) -> None:
    """When one rank fails and leaves, it gets its own error, and all others soon get an error.

    If the subject declares `names-ranks`, their error names the rank.
    """
    plan, culprit = point.plan, point.culprit
    with own_group() as group:
        module = arena.build_model(plan)
        optimizer = plan.optimize(module)
        error = None
        for step in range(1, plan.steps + 1):
            fails = step == 2 and arena.rank == culprit
            with sabotage(arena.inside(module), point.phase) if fails else contextlib.nullcontext():
                error = error_of(partial(arena.step, plan, module, optimizer, step))
            if error is not None:
                break
            if fails:
                error = InjectedError("between two steps")
                break
        group.leave()
        if arena.rank == culprit:
            own = isinstance(root(error), InjectedError)
            arena.check(own, f"rank {culprit}'s own error did not reach it: {text_of(error)}")
        else:
            arena.check(error is not None, f"trained on, though rank {culprit} had failed")
            named = NAMES_RANKS not in arena.subject.declares or names_rank(error, culprit)
            arena.check(named, f"the error does not name rank {culprit}: {text_of(error)}")
        del module, optimizer, error
        collect()


@contextlib.contextmanager
def sabotage(module: nn.Module, phase: str) -> Iterator[None]:
    """Let the training script fail in ``forward`` or ``backward``; do nothing for any other word."""

    def fail(*_: Any) -> None:
        raise InjectedError(f"in {phase}")

    def fail_in_backward(layer: nn.Module, args: Any, output: Any) -> None:
        output.register_hook(fail)

    hook = {"forward": fail, "backward": fail_in_backward}.get(phase)
    if hook is None:
        yield
        return
    handle = module.get_submodule("first").register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
