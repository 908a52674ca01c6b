"""ring-attention-pytorch: each rank has its rows, the ranks share each row's tokens, and FSDP2 has the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.suites import Subject, conformance
from torch.distributed.fsdp import fully_shard

pytest.importorskip("ring_attention_pytorch", reason="pip install ring-attention-pytorch")
from ring_attention_pytorch import RingTransformer

from models import tokens
from models.contract import CONTRACT

LENGTH = tokens.TOKENS


@dataclass(frozen=True)
class Model:
    """The subject's build of a transformer whose loss is taken as here."""

    loss: Callable[[Any, dict[str, torch.Tensor]], torch.Tensor]
    known: str
    """The ledger that states its cause."""

    def __call__(self, mode: str, folder: Path) -> dict[str, Any]:
        if mode != "sequence":
            raise NotImplementedError("it cuts each row's tokens, and nothing else of its own")
        return {
            "model": plain,
            "parallelize": self.ring,
            "batch": batch if self.loss is inside else tokens.batch,
            "loss": self.loss,
            "split": "rows",
        }

    def ring(self, model: Any) -> Any:
        part = LENGTH // dist.get_world_size()
        parallel = transformer(ring_attn=True, ring_seq_size=part, bucket_size=part)
        parallel.load_state_dict(model.state_dict())
        return fully_shard(parallel.to(model.token_emb.weight.dtype))


def transformer(**more: Any) -> Any:
    sizes = {"num_tokens": tokens.VOCABULARY, "dim": 32, "depth": 2, "dim_head": 8, "heads": 4}
    return RingTransformer(causal=True, num_grouped_query_heads=2, **sizes, **more)


def plain() -> Any:
    torch.manual_seed(0)
    return tokens.moved(transformer(bucket_size=LENGTH, force_regular_attn=True))


def batch(step: int) -> dict[str, torch.Tensor]:
    """Return rows with a label for each token that ranks share: what they pad would lose its last label."""
    rows = tokens.batch(step)["tokens"]
    return {"tokens": torch.cat((rows, rows[:, :1]), 1)}


def inside(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss that the model takes of a rank's tokens. Without a mask it raises where nothing is padded."""
    return model(batch["tokens"], mask=torch.ones_like(batch["tokens"], dtype=torch.bool), return_loss=True)


MODELS = {
    "ring-attention-pytorch.loss": Model(inside, "cause:keys-have-gradients-of-values"),
    "ring-attention-pytorch.logits": Model(tokens.loss, "cause:gathered-outputs-not-reduced"),
}


@pytest.mark.filterwarnings("ignore")
@conformance(
    *(
        Subject(name, CONTRACT, model, known=model.known, package="ring-attention-pytorch")
        for name, model in MODELS.items()
    )
)
def test_ring_attention_pytorch(case: Any) -> None:
    case.run()
