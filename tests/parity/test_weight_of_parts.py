"""A run of the plain model in parts shows rounding alone if the losses of the parts add up to the whole batch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from everyrank.parity.run.plain import Keeper, play, weight_of_parts
from everyrank.parity.run.store import Store, Writer
from everyrank.parity.setup.given import Setup
from torch import nn

ROWS = 8
COUNTS = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0])


def batch(step: int) -> dict[str, torch.Tensor]:
    rows = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(step))
    return {"rows": rows, "counts": COUNTS}


def mean(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(batch["rows"]).square().mean()


def share_of_the_whole(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(batch["rows"]).square().sum() / ROWS


def share_in_a_microbatch(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Give what the rows of two ranks add, each with a mean over its microbatches."""
    ranks = 1 if len(batch["rows"]) == ROWS else 2
    return mean(model, batch) / ranks


def mean_of_what_counts(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (model(batch["rows"])[:, 0].square() * batch["counts"]).sum() / batch["counts"].sum()


def weight(loss: Callable[[Any, Any], Any], parts: int) -> float | None:
    setup = Setup(lambda: nn.Linear(4, 1), lambda model: model, batch, loss)
    writer = Writer()
    play(setup, Keeper(writer), torch.float64, exact=True, steps=1, counts=[parts])
    store = Store(writer.end())
    writer.close()
    return weight_of_parts(store, parts)


@pytest.mark.parametrize(
    ("loss", "expected"), [(mean, 1 / 4), (share_of_the_whole, 1.0), (share_in_a_microbatch, 1 / 2)]
)
def test_parts_count_as_their_loss_is_meant(loss: Callable[[Any, Any], Any], expected: float) -> None:
    assert weight(loss, 4) == expected


def test_parts_of_unequal_weight_do_not_count() -> None:
    assert weight(mean_of_what_counts, 4) is None


def test_the_whole_batch_counts_once() -> None:
    assert weight(mean_of_what_counts, 1) == 1


def test_a_batch_that_cannot_be_cut_so_has_no_parts() -> None:
    assert weight(mean, 3) is None
