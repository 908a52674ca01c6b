"""sentence-transformers: its contrastive losses with ``gather_across_devices=True``, given embeddings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from everyrank.suites import conformance
from torch import nn

pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")
from sentence_transformers.sentence_transformer import losses
from transformers import PreTrainedTokenizerBase

from losses.contract import subjects

DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


class Tokenizer(PreTrainedTokenizerBase):
    """What a guided loss asks its models for."""

    def __init__(self) -> None:
        pass

    def get_vocab(self) -> dict[str, int]:
        return {}


class Embedded(nn.Module):
    """A model whose features are embeddings."""

    tokenizer, max_seq_length = Tokenizer(), 1

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": features[self.key]}


def ranking(**options: Any) -> Callable[..., torch.Tensor]:
    loss = losses.MultipleNegativesRankingLoss(Embedded("side"), gather_across_devices=True, **options)
    return lambda left, right, labels, scale: loss.compute_loss_from_embeddings([left, right], None)


def symmetric() -> Callable[..., torch.Tensor]:
    loss = losses.MultipleNegativesSymmetricRankingLoss(Embedded("side"), gather_across_devices=True)
    return lambda left, right, labels, scale: loss.compute_loss_from_embeddings([left, right], None)


def guided(**options: bool) -> Callable[..., torch.Tensor]:
    # The guide has half of each embedding.
    loss = losses.GISTEmbedLoss(Embedded("side"), Embedded("half"), gather_across_devices=True, **options)
    return lambda left, right, labels, scale: loss(
        [{"side": each, "half": each.detach()[:, :2]} for each in (left, right)], None
    )


LOSSES = {
    "ranking": ranking,
    "ranking-all-directions": partial(ranking, directions=DIRECTIONS),
    "ranking-hard": partial(ranking, hardness_mode="in_batch_negatives", hardness_strength=2.0),
    "ranking-per-direction": partial(ranking, directions=DIRECTIONS[::2], partition_mode="per_direction"),
    "symmetric": symmetric,
    "guided": guided,
    "guided-pairs": partial(guided, contrast_anchors=False, contrast_positives=False),
}


@pytest.mark.filterwarnings("ignore")
@conformance(*subjects("sentence-transformers", LOSSES, {"own-anchors": ["guided"]}))
def test_sentence_transformers(case: Any) -> None:
    case.run()
