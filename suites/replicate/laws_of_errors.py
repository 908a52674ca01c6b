"""The laws of ``replicate`` about ranks that have nothing more to do, and ranks that fail."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from everyrank import current_world
from everyrank.fixtures.failing import InjectedError
from everyrank.suites.acts import subject_acts
from everyrank.suites.contract import Point
from everyrank.suites.reference import Plan, order_matched
from everyrank.suites.replicate import points
from everyrank.suites.replicate.arena import Arena, Group, collect, error_of
from everyrank.suites.replicate.laws import CONTRACT
from torch import nn

law = CONTRACT.law


def _uneven() -> Iterator[Point]:
    for label, batches in {
        "last-fewer": (3, 3, 1), "first-fewer": (1, 3, 3), "all-different": (2, 3, 1), "two": (3, 2), "none": (2, 0),
    }.items():  # fmt: skip
        size = len(batches)
        core = (size,) if label in ("last-fewer", "first-fewer") else ()
        model = "buffers" if label == "all-different" else "plain"
        yield from points.plain(size, label=label, model=model, steps=max(batches), batches=batches, core=core)
    # The only rank that goes on: no other is slow, all that it waits for are idle.
    for label, batches in {"last-idle": (2, 1), "others-idle": (1, 2, 1)}.items():
        core = (2,) if label == "last-idle" else ()
        more = {"idle": True}
        yield from points.plain(len(batches), label=label, steps=2, batches=batches, core=core, more=more)


@law("uneven", _uneven)
def uneven(place: Arena, point: Point) -> None:
    """A rank without a batch counts as zero, and all end equal; or the others raise, naming it. Never a hang.

    A rank that is done enters ``join()`` where there is one, else it goes. One that stays and does nothing at all is
    an error to the others by the time limit of their group.
    """
    plan: Plan = point.values["plan"]
    with place.group() as group:
        module: Any = place.built(plan)
        if point.values.get("idle"):
            _left_waiting(place, plan, module, group)
        elif callable(getattr(module, "join", None)):
            _joined(place, plan, module)
        else:
            _left_alone(place, plan, module, group)
        del module
        collect()


def _joined(place: Arena, plan: Plan, module: Any) -> None:
    reference = order_matched(plan)
    comparison = place.comparison(reference)
    optimizer = plan.optimize(module)
    with subject_acts(), module.join():
        for step, expected in enumerate(reference.steps[: plan.batches[place.rank]], 1):
            found = place.step(plan, module, optimizer, step)
            place.compare_gradients(comparison, step, found, expected.gradients)
            comparison.step(step, place.values(module), expected.values)
            place.load(module, expected.values)
    comparison.step(plan.steps, place.values(module), reference.steps[-1].values)
    comparison.verdict()


def _left_alone(place: Arena, plan: Plan, module: nn.Module, group: Group) -> None:
    """Who is done goes: its process has nothing more to do."""
    optimizer = plan.optimize(module)
    error = None
    for step in range(1, plan.batches[place.rank] + 1):
        error = error_of(partial(place.step, plan, module, optimizer, step))
        if error is not None:
            break
    group.leave()
    _must_raise(place, plan, error)


def _left_waiting(place: Arena, plan: Plan, module: nn.Module, group: Group) -> None:
    """Who is done stays, and does nothing."""
    optimizer = plan.optimize(module)
    for step in range(1, min(plan.batches) + 1):
        place.step(plan, module, optimizer, step)
    current_world().barrier()
    error = None
    for step in range(min(plan.batches) + 1, plan.batches[place.rank] + 1):
        group.hurry()
        error = error_of(partial(place.step, plan, module, optimizer, step))
    current_world().barrier()
    _must_raise(place, plan, error)


def _must_raise(place: Arena, plan: Plan, error: Exception | None) -> None:
    """Who had more batches than others raised, and named one of them."""
    fewest = min(plan.batches)
    done = [rank for rank, batches in enumerate(plan.batches) if batches == fewest]
    if place.rank not in done:
        place.check(error is not None, "trained on, though another rank had no more batches")
        named = any(names_rank(error, rank) for rank in done)
        place.check(named, f"the error names none of ranks {done}, which had no more batches: {text_of(error)}")


def _failures() -> Iterator[Point]:
    for where in ("forward", "backward", "between"):
        for size in (2, 3, 4):
            for culprit in {0, size - 1}:
                label = f"{where}-{'first' if culprit == 0 else 'last'}"
                core = (3,) if (where, culprit) in (("forward", 0), ("between", 2)) else ()
                more = {"where": where, "culprit": culprit}
                yield from points.plain(size, label=label, steps=3, core=core, more=more)


@law("errors.rank", _failures)
def errors_rank(place: Arena, point: Point) -> None:
    """When one rank fails and goes, its error is its own, and all others end with one that names it, in time."""
    plan: Plan = point.values["plan"]
    culprit: int = point.values["culprit"]
    with place.group() as group:
        module = place.built(plan)
        optimizer = plan.optimize(module)
        error = None
        for step in range(1, plan.steps + 1):
            fails = step == 2 and place.rank == culprit
            with sabotage(place.inside(module), point.values["where"]) if fails else contextlib.nullcontext():
                error = error_of(partial(place.step, plan, module, optimizer, step))
            if error is not None:
                break
            if fails:
                error = InjectedError("between two steps")
                break
        group.leave()
        if place.rank == culprit:
            own = isinstance(_root(error), InjectedError)
            place.check(own, f"rank {culprit}'s own error did not reach it: {text_of(error)}")
        else:
            place.check(error is not None, f"trained on, though rank {culprit} had failed")
            place.check(names_rank(error, culprit), f"the error does not name rank {culprit}: {text_of(error)}")
        del module, optimizer, error
        collect()


@contextlib.contextmanager
def sabotage(module: nn.Module, where: str) -> Iterator[None]:
    """A failure of the training script, at one place."""

    def fail(*_: Any) -> None:
        raise InjectedError(f"in {where}")

    def fail_in_backward(layer: nn.Module, args: Any, output: Any) -> None:
        output.register_hook(fail)

    hook = {"forward": fail, "backward": fail_in_backward}.get(where)
    if hook is None:
        yield
        return
    handle = module.get_submodule("first").register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _root(error: BaseException | None) -> BaseException | None:
    return next((one for one in _chain(error) if isinstance(one, InjectedError)), error)


def names_rank(error: BaseException | None, rank: int) -> bool:
    return any(re.search(rf"\brank\s*{rank}\b", str(one), re.IGNORECASE) for one in _chain(error))


def text_of(error: BaseException | None) -> str:
    return " / ".join(f"{type(one).__name__}: {str(one)[:160]}" for one in _chain(error)) or "none"
