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


def test_what_is_not_there_is_refused() -> None:
    assert set(used("all", StepOnly)) | ALWAYS_THERE == set(PARTS)


def test_groups_that_nobody_reads_are_no_refusal() -> None:
    with pytest.raises(Deviation, match="step 1: off by"):
        used("param-groups", Hidden)
