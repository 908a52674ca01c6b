"""What correct code does in its own way hides no fault, and is none: modules that stand for others, and factors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Parted
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.parity.small import Batch, compare

pytestmark = pytest.mark.world(2)


class Chain(nn.Module):
    """Layers of one size, so that the output of each could be that of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(self.first(rows))
        return output


def stage(model: Any) -> Any:
    """Leave one layer, and let another module stand for that of the other rank."""
    if dist.get_rank():
        model.first = nn.Identity()
    else:
        model.last = nn.Identity()
    return model


def staged(factor: float) -> Any:
    """Return a step of a pipeline, in which the gradient is sent back with a factor."""

    def step(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor | None:
        found = None
        if dist.get_rank():
            entered = torch.empty(8, 4, dtype=batch["rows"].dtype)
            dist.recv(entered, 0)
            found = nn.functional.cross_entropy(model(entered.requires_grad_()), batch["labels"])
            found.backward()
            assert entered.grad is not None
            dist.send(entered.grad * factor, 0)
        else:
            left = model(batch["rows"])
            dist.send(left.detach(), 1)
            gradient = torch.empty_like(left)
            dist.recv(gradient, 1)
            left.backward(gradient)
        optimizer.step()
        optimizer.zero_grad()
        return found

    return step


def test_a_module_that_stands_for_another_ranks_is_no_output_to_compare(process_group: Any) -> None:
    report = compare(model=Chain, parallelize=stage, step=staged(1))
    assert report.passed
    assert not report.not_compared


def test_a_fault_of_a_stage_is_named_and_not_what_stands_for_others(process_group: Any) -> None:
    with pytest.raises(Parted) as caught:
        compare(model=Chain, parallelize=stage, step=staged(3))
    assert str(caught.value).startswith(
        "parity: gradient of the output of `first` is 3 times the plain model's on rank 0 (step 1, fp64 and fp32)\n"
    )
    assert len(caught.value.report.findings) == 1


def test_where_nothing_was_right_before_the_truth_has_the_size_of_what_it_replaces(process_group: Any) -> None:
    def turned(model: Any) -> Any:
        def hook(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
            output.register_hook(lambda gradient: gradient.roll(1, 1))
            return output

        model.last.register_forward_hook(hook)
        return DistributedDataParallel(model)

    with pytest.raises(Parted) as caught:
        compare(model=Chain, parallelize=turned)
    assert "gradient of the output of `last`" in str(caught.value).splitlines()[0]
    assert len(caught.value.report.findings) == 1
