"""In which dtypes a fault is said to show."""

from __future__ import annotations

import pytest
import torch
from everyrank.parity import Parted, parity
from torch import nn

pytestmark = pytest.mark.world(2)


class Chaotic(nn.Module):
    """In fp32 rounding decides what leaves the head, and so every gradient; what leaves the first layer is exact."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(torch.sin(1e9 * self.first(rows)))
        return output


def roll(model: nn.Module) -> nn.Module:
    model.get_submodule("first").register_forward_hook(lambda layer, inputs, output: output.roll(1, -1))
    return model


def batch(step: int) -> dict[str, torch.Tensor]:
    return {"rows": torch.randn(8, 4, generator=torch.Generator().manual_seed(step)), "labels": torch.arange(8) % 3}


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["rows"]), batch["labels"])


def test_an_output_that_is_off_in_both_is_right_in_none(process_group: object) -> None:
    with pytest.raises(Parted) as parted:
        parity(model=Chaotic, parallelize=roll, batch=batch, loss=loss, split="none", microbatches=1)
    first = parted.value.report.findings[0]
    assert (first.kind, first.tensor) == ("forward", "first")
    assert first.dtypes == ("fp64", "fp32")
    assert first.pattern != "other-dtype-only"
