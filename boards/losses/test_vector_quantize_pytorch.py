"""vector-quantize-pytorch: quantizers whose codebook, or whose entropy, is that of all ranks' rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from everyrank.suites import conformance
from torch import nn

pytest.importorskip("vector_quantize_pytorch", reason="pip install vector-quantize-pytorch")
from vector_quantize_pytorch import LFQ, ResidualVQ, VectorQuantize

from losses.contract import FEATURES, subjects


class Quantized(nn.Module):
    """The quantizer's own loss, and how far what it makes of one side is from the other side."""

    def __init__(self, quantizer: Callable[..., nn.Module], options: dict[str, Any]) -> None:
        super().__init__()
        self.quantizer = quantizer(dim=FEATURES, codebook_size=16, **options)

    def forward(self, left: torch.Tensor, right: torch.Tensor, **_: torch.Tensor) -> torch.Tensor:
        quantized, _indices, loss = self.quantizer(left[:, None])
        return loss.sum() + (quantized[:, 0] - right).square().mean()


LOSSES = {
    name: partial(Quantized, kind, options)
    for name, kind, options in (
        ("vq", VectorQuantize, {}),
        ("vq-cosine", VectorQuantize, {"use_cosine_sim": True}),
        ("vq-residual", ResidualVQ, {"num_quantizers": 2}),
        ("lfq", LFQ, {}),
    )
}


@pytest.mark.filterwarnings("ignore")
@conformance(*subjects("vector-quantize-pytorch", LOSSES, {"mean-not-reduced": ["lfq"]}))
def test_vector_quantize_pytorch(case: Any) -> None:
    case.run()
