"""The parts of the law ``surface``: each works on torch.optim itself, and what raises is a refusal."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from everyrank.suites.arena.surface import ARGUMENTS, LABELS, OPTIMIZER, PARTS, Pair, use
from everyrank.suites.compare.comparison import same
from everyrank.suites.errors import Deviation

#: What an object has that is nothing but a step.
ALWAYS_THERE = {"deepcopy", "repr"}


def used(label: str, wrap: Any) -> dict[str, str]:
    """Return what an optimizer that is wrapped so refuses, in one process."""
    values = [torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)]
    ours, reference = wrap(OPTIMIZER(values[:1], **ARGUMENTS)), OPTIMIZER(values[1:], **ARGUMENTS)

    def step(number: int) -> None:
        for value in values:
            value.grad = torch.full((3,), float(number))
        ours.step()
        reference.step()
        same(values[0], values[1], f"step {number}")

    return use(label, Pair(ours, reference, lambda other: other.step()), step)


class StepOnly:
    """It has a step and nothing else."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.step = optimizer.step


class Hidden:
    """Everything is handed on but a copy of the groups."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.step = optimizer.step
        self.param_groups = copy.deepcopy(optimizer.param_groups)


@pytest.mark.parametrize("label", LABELS)
def test_torch_refuses_nothing(label: str) -> None:
    assert used(label, lambda optimizer: optimizer) == {}


@pytest.mark.parametrize("part", ["pre-hook", "post-hook"])
def test_hooks_may_be_called_as_often_as_torch_calls_them(part: str) -> None:
    class Signed(OPTIMIZER):  # type: ignore[misc, valid-type]
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    def made(kind: Any) -> Any:
        return kind([torch.ones(3, requires_grad=True)], **ARGUMENTS)

    made(OPTIMIZER)  # from now on, torch calls the hooks of a subclass that calls super().step() twice
    ours, reference = made(Signed), made(Signed)

    def step(number: int) -> None:
        ours.step()
        reference.step()

    assert use(part, Pair(ours, reference, lambda other: other.step()), step) == {}


@pytest.mark.parametrize("times", [0, 2])
def test_hooks_that_are_not_called_once_break_the_law(times: int) -> None:
    class Hooked(StepOnly):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.given, self.hooks = optimizer, []  # type: ignore[var-annotated]

        def register_step_pre_hook(self, hook: Any) -> None:
            self.hooks += [hook] * times

        def step(self) -> None:  # type: ignore[no-redef, misc]
            for hook in self.hooks:
                hook(self)
            self.given.step()

    with pytest.raises(Deviation, match=f"called {times} times in 1 step"):
        used("pre-hook", Hooked)


def test_what_is_not_there_is_refused() -> None:
    assert set(used("all", StepOnly)) | ALWAYS_THERE == set(PARTS)


def test_groups_that_nobody_reads_are_no_refusal() -> None:
    with pytest.raises(Deviation, match="step 1: off by"):
        used("param-groups", Hidden)
