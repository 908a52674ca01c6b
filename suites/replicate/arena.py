"""The arena of ``replicate``: on each rank it builds a module, trains it and compares it with the reference."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from everyrank import current_world
from everyrank.fixtures.data import loss
from everyrank.suites.arena.base import BaseArena
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import CLOSE_FP64, EXACT, Comparison, Tolerance
from everyrank.suites.compare.mistakes import would_be
from everyrank.suites.compare.reference import (
    SEED,
    Gradients,
    Plan,
    Trajectory,
    order_matched,
    rank_gradients,
    step_with,
    sum_in_order,
)
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import BrokenAdapter, NotApplicable
from everyrank.suites.replicate.wrappers import Wrappers, names_of
from torch import nn

Values = Mapping[str, torch.Tensor]

#: Which backwards of a step are synced: the last, all, or none; ``after-all``: all, once all forwards are done.
Sync = Literal["last", "all", "none", "after-all"]

#: A choice that a subject may declare: each rank keeps its own buffers.
LOCAL_BUFFERS = "local-buffers"


@dataclass
class Arena(BaseArena):
    """The subject and the point of one case, and what the laws do with them, on one rank."""

    wrappers: Wrappers = field(default_factory=Wrappers)

    @property
    def local_buffers(self) -> bool:
        """Whether the subject leaves each rank its own buffers."""
        return LOCAL_BUFFERS in self.subject.declares

    @property
    def tolerance(self) -> Tolerance:
        """Return how far values may be off: on two ranks not at all, as halves are exact and sums have one order."""
        return EXACT if self.size <= 2 else CLOSE_FP64

    def build(self, module: nn.Module, **options: Any) -> nn.Module:
        """Let the subject build on a module; return that module or its wrapper. Let its errors pass."""
        names = names_of(module)
        built = self.subject.build(module, **options)
        if not isinstance(built, nn.Module):
            raise BrokenAdapter(f"build of {self.subject.name} returned a {type(built).__name__}, not a module")
        self.wrappers.add(built, module, names, self.subject.name)
        return built

    def build_model(self, plan: Plan, seed_by_rank: bool = False, **options: Any) -> nn.Module:
        """Let the subject build on the plan's model. It has no reason to raise."""
        module = plan.build(SEED + self.rank if seed_by_rank else SEED)
        with subject_acts():
            return self.build(module, **options)

    def build_if_accepted(self, plan: Plan, **options: Any) -> nn.Module:
        """Build with options. If the subject refuses one by a TypeError that names it, the case is not applicable."""
        module = plan.build()
        with subject_acts():
            try:
                return self.build(module, **options)
            except TypeError as error:
                if not any(name in str(error) for name in options):
                    raise
                refusal = error
        raise NotApplicable(f"the subject does not take {', '.join(options)}") from refusal

    def inside(self, module: nn.Module) -> nn.Module:
        """Return the module that has the local names: the one that `build` returned, or the one inside it."""
        return self.wrappers.inside(module)

    def values(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Return the parameters' values by their local names."""
        return {name: value.detach() for name, value in self.wrappers.parameters(module)}

    def gradients(self, module: nn.Module) -> Gradients:
        """Return copies of the gradients by their parameters' local names."""
        return {
            name: None if value.grad is None else value.grad.detach().clone()
            for name, value in self.wrappers.parameters(module)
        }

    def load(self, module: nn.Module, reference: Values) -> None:
        """Copy the reference's values into the module. Otherwise one divergence would hide the next."""
        with torch.no_grad():
            for name, parameter in self.wrappers.parameters(module):
                parameter.copy_(reference[name])

    def comparison(self, reference: Trajectory | None = None, tolerance: Tolerance | None = None) -> Comparison:
        """Return a new comparison for this case, from the reference's start if there is one."""
        comparison = Comparison(tolerance or self.tolerance, self.subject.bound, ranks=self.size)
        if reference is not None:
            comparison.start(reference.start)
        return comparison

    def backward(self, plan: Plan, module: nn.Module, step: int, sync: Sync = "last") -> torch.Tensor:
        """Run forward and backward on this rank's part of a step; return the sum of its microbatches' losses."""
        plan.prepare(self.inside(module), self.rank, step)
        losses = []
        for part in range(plan.parts):
            alone = sync == "none" or (sync == "last" and part < plan.parts - 1)
            with unsynced(module) if alone else contextlib.nullcontext(), subject_acts():
                losses.append(loss(module, plan.batch(self.rank, step, part)) / plan.parts)
                if sync != "after-all":
                    losses[-1].backward()
        if sync == "after-all":
            with subject_acts():
                for each in losses:
                    each.backward()
        return sum_in_order([each.detach() for each in losses])

    def step(self, plan: Plan, module: nn.Module, optimizer: Any, step: int, sync: Sync = "last") -> Gradients:
        """Train the subject for one step; return the gradients of its first backward, before any clipping."""
        found: Gradients = {}

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            total = self.backward(plan, module, step, sync)
            found.update({} if found else self.gradients(module))
            plan.after_backward(module)
            # The optimizers that look at the loss must see the same loss on every rank.
            return self.mean(total) if "closure" in plan.row.needs else total

        step_with(plan, optimizer, closure)
        return found

    def follow(
        self,
        plan: Plan,
        module: nn.Module,
        reference: Trajectory | None = None,
        tolerance: Tolerance | None = None,
        sync: Sync = "last",
    ) -> Comparison:
        """Train as planned. After each step compare with the reference, then go on from the reference's values."""
        reference = reference or order_matched(plan)
        comparison = self.comparison(reference, tolerance)
        comparison.mistakes = partial(would_be, plan, self.rank)
        optimizer = plan.optimize(module)
        scheduler = plan.scheduler(optimizer)
        for step, expected in enumerate(reference.steps, 1):
            found = self.step(plan, module, optimizer, step, sync)
            self.compare_gradients(comparison, step, found, expected.gradients)
            if scheduler is not None:
                scheduler.step()
            comparison.step(step, self.values(module), expected.values)
            self.load(module, expected.values)
        return comparison

    def compare_gradients(self, comparison: Comparison, step: int, ours: Gradients, reference: Gradients) -> None:
        """Compare gradients: each must be None in both, or the same in both."""
        found: dict[str, torch.Tensor] = {}
        wanted: dict[str, torch.Tensor] = {}
        for name, expected in reference.items():
            mine = ours.get(name)
            if mine is None or expected is None:
                have, want = ("None" if gradient is None else "a gradient" for gradient in (mine, expected))
                self.check(have == want, f"step {step}, {name}.grad is {have} instead of {want}")
            else:
                found[f"{name}.grad"], wanted[f"{name}.grad"] = dense(mine), dense(expected)
        if wanted:
            comparison.step(step, found, wanted)

    def check_gradients(self, plan: Plan, found: Gradients, own: Callable[[str], bool] = lambda name: False) -> None:
        """Compare gradients of the first step with the mean, and those that are not averaged with this rank's own."""
        together = order_matched(plan).steps[0].gradients
        _, alone = rank_gradients(plan, plan.build(), self.rank, 1)
        comparison = self.comparison()
        expected = {name: (alone if own(name) else together)[name] for name in found}
        self.compare_gradients(comparison, 1, found, expected)
        comparison.verdict()

    def check_training(self, plan: Plan, **options: Any) -> None:
        """Check that a module built with these options trains as the reference does."""
        self.follow(plan, self.build_model(plan, **options)).verdict()

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Return the mean over ranks, computed by the kit in rank order."""
        parts = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(parts, value)
        return sum_in_order(parts) / self.size


@contextlib.contextmanager
def unsynced(module: Any) -> Iterator[None]:
    """Turn communication off for forward and backward, by the method of torch's replicate or by that of DDP."""
    if callable(getattr(module, "set_requires_gradient_sync", None)):
        module.set_requires_gradient_sync(False)
        yield
        module.set_requires_gradient_sync(True)
    elif callable(getattr(module, "no_sync", None)):
        with module.no_sync():
            yield
    else:
        with subject_acts():
            check_can_be_unsynced(module)


def check_can_be_unsynced(module: Any) -> None:
    """Raise an AttributeError, which a subject may declare as a lack, if communication cannot be turned off."""
    if not any(callable(getattr(module, name, None)) for name in ("set_requires_gradient_sync", "no_sync")):
        kind = type(module).__name__
        raise AttributeError(f"the module, a {kind}, has neither set_requires_gradient_sync(on) nor no_sync()")


@contextlib.contextmanager
def open_arena(subject: Subject, point: Point) -> Iterator[Arena]:
    """Give this rank its arena. All ranks do the same, over the default group.

    A deviation on one rank is raised on all: a case has one outcome, and any rank may be asked for it.
    """
    arena = Arena(subject, point, current_world())
    with arena.agreeing():
        yield arena


def dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient
