"""The reference of scripts of ``replicate``."""

from __future__ import annotations

import pytest
import torch
from everyrank.suites.replicate.twins import Twins
from torch import nn


def _gradient(first: float) -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 2]], [[first, 1.0]] * 2, (3, 2), dtype=torch.float64).coalesce()


@pytest.mark.parametrize(("found", "left"), [(2.0, [2.0, 2.0]), (1.0, [1.0, 3.0])], ids=["averaged", "stays"])
def test_a_sparse_gradient_that_no_loss_has_used_stays_or_is_averaged(found: float, left: list[float]) -> None:
    models = [nn.Embedding(3, 2, sparse=True, dtype=torch.float64) for _ in range(2)]
    twins = Twins(models, lambda name: False, local_buffers=False)
    for model, value in zip(models, (1.0, 3.0), strict=True):
        model.weight.grad = _gradient(value)
    twins.let_average("weight", _gradient(found), bound=0.0)
    assert [float(model.weight.grad.to_dense()[0, 0]) for model in models if model.weight.grad is not None] == left
