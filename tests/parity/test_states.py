"""What an optimizer keeps of parameters is compared after the last step, even if no step has used it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from everyrank.parity import Parted
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.parity.parallel.subjects.teachers import AveragesBefore, Averaging
from tests.parity.small import compare

pytestmark = pytest.mark.world(2)


class AveragesBeforeOnce(AveragesBefore):
    """The average of the first step alone is of the weights before it."""

    calls = 0

    def averaged(self, before: list[torch.Tensor]) -> list[torch.Tensor]:
        self.calls += 1
        return before if self.calls == 1 else self.weights()


def averaging(parameters: Any) -> torch.optim.Optimizer:
    return Averaging(parameters, lr=0.1)


def sharded(model: nn.Module) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return model


@pytest.mark.parametrize("parallelize", [DistributedDataParallel, sharded])
def test_an_average_that_is_the_plain_one_is_silent(parallelize: Any, process_group: Any) -> None:
    report = compare(parallelize=parallelize, optimizer=averaging)
    assert report.passed
    assert not report.not_compared


@pytest.mark.parametrize("kind", [AveragesBefore, AveragesBeforeOnce])
@pytest.mark.parametrize("parallelize", [DistributedDataParallel, sharded])
def test_an_average_before_the_step_is_found(parallelize: Any, kind: Any, process_group: Any) -> None:
    def with_its_optimizer(model: nn.Module) -> Any:
        made = parallelize(model)
        return made, kind(made.parameters(), lr=0.1)

    with pytest.raises(Parted) as caught:
        compare(parallelize=with_its_optimizer, optimizer=averaging)
    assert re.match(
        r"parity: update of `last\.bias` is right, but the optimizer's `ema` of it is not the plain one's on ranks 0 "
        r"and 1 \(step 2, fp64.*\), as 3 others of its kind",
        str(caught.value),
    )


class Narrow(torch.optim.AdamW):
    """Moments in bfloat16."""

    def step(self, closure: Any = None) -> Any:
        super().step()
        for state in self.state.values():
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16())


def test_moments_that_are_rounded_in_the_last_step_are_found(process_group: Any) -> None:
    def parallelize(model: nn.Module) -> Any:
        made = DistributedDataParallel(model)
        return made, Narrow(made.parameters(), lr=0.1)

    with pytest.raises(
        Parted, match=r"`exp_avg_sq` of it is not the plain one's on ranks 0 and 1 in fp32, and not in fp64 \(step 1"
    ):
        compare(parallelize=parallelize, optimizer=lambda each: torch.optim.AdamW(each, lr=0.1), steps=1)
