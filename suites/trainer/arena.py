"""The arena of ``trainer``: on each rank it builds a trainer, trains with it and compares it with the reference."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from everyrank import current_world
from everyrank.suites.arena.base import BaseArena
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import CLOSE_FP64, Comparison, Tolerance
from everyrank.suites.compare.mistakes import would_be
from everyrank.suites.compare.reference import SEED, Plan, order_matched
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import BrokenAdapter, Deviation, NotApplicable
from everyrank.suites.trainer.alone import Alone
from everyrank.suites.trainer.batches import Batches, planned
from torch import nn
from torch.distributed.tensor import DTensor

Values = dict[str, torch.Tensor]
Groups = Sequence[Mapping[str, Any]]

#: Choices that a subject may declare: all ranks must start with equal models; and use the same parameters in a step.
TRUSTS_INIT, SAME_GRAPH = "trusts-init", "same-graph"
#: The parts of a parameter go in another order than that of the ranks.
ANY_ORDER = "any-order"

#: In fp32 the sum of three ranks has an error of its own in each order, and ten steps amplify it.
CLOSE_FP32 = Tolerance(relative=1e-5)
#: LBFGS looks for the minimum twenty times a step: two orders of a sum are 1e-12 apart after two steps.
AMPLIFIED = Tolerance(relative=1e-9)

#: What a subject does after a step has returned, it does within this time (in seconds).
_A_WHILE = 0.1


@dataclass
class Training:
    """A trainer of the subject on this rank, with the plan of its training."""

    trainer: Any
    model: nn.Module
    """The model as it was given to ``build``."""
    plan: Plan
    index: int
    """Which of the ``plan.size`` parts of each batch this rank trains on."""
    batches: Batches
    names: Mapping[str, str]
    """For each name of a parameter the first name of that parameter: a tied one has two."""

    def step(self, number: int, **options: Any) -> Any:
        """Train for one step on this rank's microbatches."""
        self.plan.prepare(self.model, self.index, number)
        with subject_acts("step"):
            return self.trainer.step(*self.batches(self.index, number), **options)

    @property
    def values(self) -> Values:
        """The full parameters, by the first name of each."""
        return full_parameters(self.trainer, self.names)

    @property
    def own(self) -> Values:
        """Copies of what this rank has of the model's parameters."""
        return own_parameters(self.model)

    def reference(self, groups: Groups | None = None, batches: Batches | None = None) -> Alone:
        """Return the same training, alone in one process."""
        return Alone(self.plan, batches or planned(self.plan, torch.device("cpu")), groups)


@dataclass
class Arena(BaseArena):
    """The subject and the point of one case, and what the laws do with them, on one rank."""

    deviations: list[str] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        return torch.device(self.world.device if self.subject.device == "cuda" else "cpu")

    @functools.cached_property
    def plain_trainer(self) -> Any:
        """A trainer of the subject as the plainest use builds it, to be asked what it has."""
        return self.subject.build(self.model(Plan(self.size, steps=1, variant="defaults")), torch.optim.SGD)

    def check(self, holds: bool, text: str) -> None:
        """Note a deviation if a condition fails. It is raised at the end: others may need this rank until then."""
        if not holds:
            self.deviations.append(text)

    def wait_a_while(self) -> None:
        """Give what is still under way on any rank the time to happen."""
        time.sleep(_A_WHILE)

    def model(self, plan: Plan, seed: int = SEED) -> nn.Module:
        """Return the plan's model on this rank's device."""
        return plan.build(seed).to(self.device)

    def begin(
        self, plan: Plan, model: nn.Module | None = None, groups: Groups | None = None, batches: Batches | None = None
    ) -> Training:
        """Let the subject build on a model, as planned. It has no reason to raise."""
        if SAME_GRAPH in self.subject.declares and plan.skips and len(plan.skips) < plan.size:
            raise NotApplicable("the subject needs ranks that use the same parameters in each step")
        model = self.model(plan) if model is None else model
        names = first_names(model)
        if groups is None and plan.choice.group_arguments:
            dealt = plan.choice.split(list(dict.fromkeys(names.values())))  # type: ignore[arg-type]
            groups = dealt
        asked = {} if groups is None else {"groups": [dict(group) for group in groups]}
        with subject_acts("build"):
            trainer = self.subject.build(model, plan.row.optimizer, **plan.choice.make(), **asked)
        if not callable(getattr(trainer, "step", None)) or not callable(getattr(trainer, "parameters", None)):
            made = f"build of {self.subject.name} returned a {type(trainer).__name__}"
            raise BrokenAdapter(f"{made}, which has no step(*batches) or no parameters()")
        index, count = getattr(trainer, "part", (dist.get_rank(), dist.get_world_size()))
        plan = replace(plan, size=count)
        return Training(trainer, model, plan, index, batches or planned(plan, self.device), names)

    def tolerance(self, plan: Plan) -> Tolerance:
        exact = plan.size == self.size <= 2  # of two summands there is one sum; other cuts sum within a layer
        mixed = "mixed-dtypes" in plan.made.properties and not exact
        if plan.dtype == torch.float32 or mixed:
            return CLOSE_FP32
        return AMPLIFIED if "closure" in plan.row.needs else CLOSE_FP64

    def comparison(self, plan: Plan, start: Mapping[str, torch.Tensor] | None = None) -> Comparison:
        """Return a new comparison for this case."""
        comparison = Comparison(self.tolerance(plan), self.subject.bound, ranks=plan.size)
        if start is not None:
            comparison.start(start)
        return comparison

    def follow(self, training: Training, **options: Any) -> None:
        """Train as planned, and compare with the reference after each step."""
        reference = order_matched(training.plan)
        comparison = self.comparison(training.plan, reference.start)
        comparison.mistakes = partial(would_be, training.plan, training.index)
        for number, expected in enumerate(reference.steps, 1):
            training.step(number, **options)
            comparison.step(number, training.values, expected.values)
        comparison.verdict()

    def follow_alone(self, training: Training, alone: Alone, steps: range, **options: Any) -> None:
        """Train beside a reference that is at the same point, and compare with it after each step."""
        comparison = self.comparison(training.plan, alone.values)
        for number in steps:
            training.step(number, **options)
            alone.step(number, **options)
            comparison.step(number, training.values, alone.values)
        comparison.verdict()


def full_parameters(trainer: Any, names: Mapping[str, str]) -> Values:
    """Return what ``parameters()`` returns, by the first name of each; ``names`` has that for each name."""
    with subject_acts("parameters()"):
        found = dict(trainer.parameters())
    return {
        names.get(name, name): value.detach().cpu().clone()
        for name, value in found.items()
        if names.get(name, name) == name or names[name] not in found
    }


def own_parameters(model: nn.Module) -> Values:
    """Return copies of what this rank has of a model's parameters."""
    return {name: _local(value.detach()).clone() for name, value in model.named_parameters()}


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_names(model: nn.Module) -> dict[str, str]:
    first = {parameter: name for name, parameter in model.named_parameters()}
    return {name: first[parameter] for name, parameter in model.named_parameters(remove_duplicate=False)}


@contextlib.contextmanager
def open_arena(subject: Subject, point: Point) -> Iterator[Arena]:
    """Give this rank its arena. All ranks do the same, over the default group.

    A deviation on one rank is raised on all: a case has one outcome, and any rank may be asked for it.
    """
    arena = Arena(subject, point, current_world())
    with arena.agreeing():
        yield arena
        if arena.deviations:
            raise Deviation(arena.deviations[0])
