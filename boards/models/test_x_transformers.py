"""x-transformers: decoders with what it is used for, each block under FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from everyrank.suites import Subject, conformance
from torch.distributed.fsdp import fully_shard

pytest.importorskip("x_transformers", reason="pip install x-transformers")
from x_transformers import Decoder, TransformerWrapper

from models import tokens
from models.contract import CONTRACT


@dataclass(frozen=True)
class Model:
    """The subject's build of a decoder with these options."""

    layers: Mapping[str, Any]
    wrapper: Mapping[str, Any]

    def __call__(self, mode: str, folder: Path) -> dict[str, Any]:
        if mode != "fsdp2":
            raise NotImplementedError("it has no tensor or expert parallelism of its own")
        return {
            "model": self.plain,
            "parallelize": shard,
            "batch": tokens.batch,
            "loss": tokens.loss,
            "split": "rows",
        }

    def plain(self) -> Any:
        torch.manual_seed(0)
        decoder = Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **self.layers)
        return tokens.moved(
            TransformerWrapper(
                num_tokens=tokens.VOCABULARY, max_seq_len=tokens.TOKENS, attn_layers=decoder, **self.wrapper
            )
        )


def shard(model: Any) -> Any:
    # A block that several layers share is there once.
    for block in {id(block): block for _, block, _ in model.attn_layers.layers}.values():
        fully_shard(block)
    return fully_shard(model)


LLAMA = {"rotary_pos_emb": True, "use_rmsnorm": True, "ff_glu": True, "ff_swish": True, "ff_no_bias": True}
MODELS = {
    "x-transformers.llama": Model({**LLAMA, "attn_kv_heads": 2, "attn_qk_norm": True}, {"use_abs_pos_emb": False}),
    "x-transformers.tied": Model({"alibi_pos_bias": True, "attn_pre_talking_heads": True}, {"tie_embedding": True}),
    "x-transformers.shared": Model({"weight_tie_layers": True, "sandwich_norm": True}, {"num_memory_tokens": 2}),
    "x-transformers.residuals": Model({"add_value_residual": True, "macaron": True}, {}),
}


@pytest.mark.filterwarnings("ignore")
@conformance(*(Subject(name, CONTRACT, model, package="x-transformers") for name, model in MODELS.items()))
def test_x_transformers(case: Any) -> None:
    case.run()
