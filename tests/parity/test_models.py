"""Models of other kinds: numbers drawn at random."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from everyrank.parity import Unusable
from torch import nn

from tests.parity.small import Batch, Net, compare

pytestmark = pytest.mark.world(2)


class Noisy(Net):
    """It adds noise inside of a module that has no name of dropout."""

    class Noise(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows + 0.1 * torch.randn_like(rows)

    def __init__(self) -> None:
        super().__init__()
        self.noise = self.Noise()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(self.noise(rows))


class NoisyItself(Net):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows + torch.randn_like(rows))


@pytest.mark.parametrize(
    ("model", "text"),
    [(Noisy, "`noise` (Noise) draws random numbers in its forward"), (NoisyItself, "the plain model draws random")],
)
def test_what_draws_random_numbers_is_named(model: type[Net], text: str, process_group: Any) -> None:
    with pytest.raises(Unusable, match=re.escape(text)):
        compare(model=model)


def test_a_loss_that_draws_random_numbers_is_named(process_group: Any) -> None:
    def noisy(model: Any, batch: Batch) -> torch.Tensor:
        found = nn.functional.cross_entropy(model(batch["rows"]), batch["labels"])
        return found * (1 + torch.rand(()))

    with pytest.raises(Unusable, match="loss= draws random numbers"):
        compare(loss=noisy)
