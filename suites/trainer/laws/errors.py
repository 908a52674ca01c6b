"""The laws of ``trainer`` about errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from everyrank.fixtures.failing import InjectedError
from everyrank.fixtures.optimizers import Row, rows
from everyrank.suites.arena.groups import NAMES_RANKS, collect, error_of, names_rank, own_group, root, text_of
from everyrank.suites.arena.subject_errors import in_a_line
from everyrank.suites.compare.comparison import same
from everyrank.suites.compare.reference import Plan
from everyrank.suites.engine.contract import Point
from everyrank.suites.errors import NotApplicable
from everyrank.suites.trainer import points
from everyrank.suites.trainer.arena import Arena
from everyrank.suites.trainer.batches import Failing
from everyrank.suites.trainer.contract import CONTRACT
from everyrank.suites.trainer.points import TrainingPoint

law = CONTRACT.law


@dataclass(frozen=True, kw_only=True)
class FailurePoint(TrainingPoint):
    """A point that fixes which rank fails."""

    culprit: int


def _failures() -> Iterator[FailurePoint]:
    for size in (2, 3):
        for culprit in (0, size - 1):
            label = "first" if culprit == 0 else "last"
            core = (3,) if culprit else ()
            yield from points.each_size(partial(FailurePoint, culprit=culprit), size, label=label, core=core)


@law("errors.rank", _failures)
def errors_rank(arena: Arena, point: FailurePoint) -> None:
    """If the loss raises on one rank, that rank gets its own error, and all others soon get one too.

    Nobody has changed its parameters in that step. If the subject declares `names-ranks`, the error of the others
    names the rank.
    """
    with own_group() as group:
        training = arena.begin(point.plan)
        training.step(1)
        before = training.own
        batches = training.batches(training.index, 2)
        failing = [Failing(batch.inputs, batch.targets) for batch in batches]
        error = error_of(partial(training.trainer.step, *(failing if arena.rank == point.culprit else batches)))
        group.leave()
        failed = error is not None or any(batch.asked for batch in failing)
        computed = arena.meet("the step has ended", "computed" if failed else "")[point.culprit]
        if not computed and training.plan.size < arena.size:  # ranks that share a part need not all compute its loss
            raise NotApplicable(f"rank {point.culprit} computes no loss")
        if arena.rank == point.culprit:
            own = isinstance(root(error), InjectedError)
            arena.check(own, f"rank {point.culprit}'s own error did not reach it: {text_of(error)}")
        else:
            arena.check(error is not None, f"trained on, though rank {point.culprit} had failed")
            named = NAMES_RANKS not in arena.subject.declares or names_rank(error, point.culprit)
            arena.check(named, f"the error does not name rank {point.culprit}: {text_of(error)}")
        for name, value in training.own.items():
            if value.shape == before[name].shape:  # else it was put together for the step that was interrupted
                same(value, before[name], f"{name}, after the step that failed,")
        del training, error
        collect()


@dataclass(frozen=True, kw_only=True)
class ArgumentsPoint(Point):
    """A point with an optimizer whose invalid arguments are passed."""

    row: Row


def _arguments() -> Iterator[ArgumentsPoint]:
    for row in rows():
        core = row.name == "SGD"
        yield ArgumentsPoint(row.name, 2, core=core, optimizer=row.name, row=row)


@law("errors.arguments", _arguments)
def errors_arguments(arena: Arena, point: ArgumentsPoint) -> None:
    """Invalid arguments are refused when the trainer is built, on every rank, with the error of torch.optim."""
    plan = Plan(point.size, model=points.model_for(point.row), optimizer=point.row.name, variant="defaults")
    arena.begin(plan)  # a subject that refuses every argument has not refused the invalid ones
    for invalid in point.row.invalid:
        model = arena.model(plan)
        error = error_of(partial(arena.subject.build, model, point.row.optimizer, **invalid.make()))
        as_due = isinstance(error, invalid.error) and re.search(invalid.match, str(error)) is not None
        raised = "nothing" if error is None else in_a_line(error)
        due = f"{invalid.error.__name__}: {invalid.match}"
        arena.check(as_due, f"{invalid.name}: raised {raised} instead of {due}")
