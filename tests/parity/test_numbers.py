"""Models with their loss inside return a number, of which each part of a batch has its own."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Parted
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.parity.test_use_and_misuse import Net, compare

pytestmark = pytest.mark.world(2)

Batch = dict[str, torch.Tensor]


class Criterion(nn.Module):
    def forward(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, labels)


class WithLoss(Net):
    def __init__(self) -> None:
        super().__init__()
        self.criterion = Criterion()

    def forward(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        found: torch.Tensor = self.criterion(super().forward(rows), labels)
        return found


class Adapted(nn.Module):
    """As peft has it: the model with its loss is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.base_model = WithLoss()

    def forward(self, rows: torch.Tensor, labels: torch.Tensor) -> Any:
        return self.base_model(rows, labels)


def inside(model: Any, batch: Batch) -> Any:
    return model(batch["rows"], batch["labels"])


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("model", [WithLoss, Adapted])
def test_a_loss_inside_of_the_model_is_compared_too(
    model: type[nn.Module], microbatches: int, process_group: Any
) -> None:
    report = compare(model=model, loss=inside, microbatches=microbatches)
    assert report.passed
    assert [each for each in report.not_compared if "criterion" not in each and each != "forward base_model"] == []


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_part_of_the_batch_has_another_number_and_that_is_no_fault(microbatches: int, process_group: Any) -> None:
    def wrong(model: nn.Module) -> nn.Module:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["base_model.first.bias"])
        return DistributedDataParallel(model)

    with pytest.raises(Parted, match=r"^parity: gradient of `base_model\.first\.bias` is not reduced over ranks"):
        compare(model=Adapted, loss=inside, microbatches=microbatches, parallelize=wrong)


def test_a_number_that_is_weighed_outside_of_the_model_is_no_fault(process_group: Any) -> None:
    """Rank 0 has six of eight rows, and the loss inside is the mean over them."""

    def step(model: Any, optimizer: Any, batch: Batch, forgotten: str = "") -> torch.Tensor:
        part = slice(6) if dist.get_rank() == 0 else slice(6, 8)
        found = (
            inside(model, {name: each[part] for name, each in batch.items()}) * (part.stop - (part.start or 0)) / 8
        )
        found.backward()
        for name, each in model.named_parameters():
            if name != forgotten:
                dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()
        loss: torch.Tensor = found.detach()
        return loss

    assert compare(model=Adapted, loss=inside, parallelize=lambda model: model, step=step).passed
    forgets = functools.partial(step, forgotten="base_model.last.bias")
    with pytest.raises(Parted, match=r"^parity: gradient of `base_model\.last\.bias` is not reduced over ranks"):
        compare(model=Adapted, loss=inside, parallelize=lambda model: model, step=forgets)


def test_a_wrong_number_inside_of_the_model_is_found(process_group: Any) -> None:
    class Smoothed(Criterion):
        def forward(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(output, labels, label_smoothing=0.1 * dist.get_rank())

    def wrong(model: Any) -> nn.Module:
        model.base_model.criterion = Smoothed()
        return DistributedDataParallel(model)

    with pytest.raises(Parted, match=r"^parity: output of `base_model\.criterion` "):
        compare(model=Adapted, loss=inside, parallelize=wrong)
