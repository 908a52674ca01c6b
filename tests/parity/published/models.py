"""The published models: tiny, random, built without a download. Where their parts are, under the packages' names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

# Nothing is to be looked up on a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCABULARY = 64


@dataclass(frozen=True)
class Published:
    """A model of a package, and the names of its parts."""

    name: str
    package: str
    """The module that is imported."""
    build: Callable[[], Any]
    root: str = "model"
    """What the layers are in."""
    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    columns: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """In a layer, what tensor parallelism cuts by column."""
    rows: tuple[str, ...] = ("self_attn.o_proj",)
    """In a layer, what it cuts by row; the first is the attention's."""
    head_norms: tuple[str, ...] = ()
    """In a layer, the norms that run over single heads, so that each rank has a part of their gradients."""
    heads: tuple[str, ...] = ()
    """In a layer, the modules that have the number of heads written down."""

    @property
    def attention(self) -> str:
        """In a layer, the attention."""
        return self.rows[0].partition(".")[0]

    def layers(self, model: Any) -> Iterator[nn.Module]:
        """Yield the layers of a model."""
        yield from model.get_submodule(self.root).layers


def batch(step: int) -> dict[str, torch.Tensor]:
    return {"tokens": torch.randint(0, VOCABULARY, (8, 12), generator=torch.Generator().manual_seed(step))}


def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    returned = model(batch["tokens"])
    logits = getattr(returned, "logits", returned)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())


def of_transformers(config: str, **more: Any) -> Any:
    """Return a model of transformers: its experts, if it has any, without a fused kernel, which takes no fp64."""
    import transformers

    made = getattr(transformers, config)(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="eager",
        experts_implementation="eager",
        **more,
    )
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(made).train()


def llama_of_fms() -> Any:
    from fms.models.llama import LLaMA, LLaMAConfig

    torch.manual_seed(0)
    model = LLaMA(
        LLaMAConfig(
            src_vocab_size=VOCABULARY + 1,  # the last is its padding
            emb_dim=32,
            nheads=4,
            kvheads=2,
            nlayers=2,
            max_expected_seq_len=64,
            multiple_of=16,
            fused_weights=False,
        )
    )
    model.reset_parameters()
    return model.train()


QWEN3 = Published(
    "qwen3",
    "transformers",
    lambda: of_transformers("Qwen3Config", head_dim=8),
    columns=(*Published.columns, "mlp.gate_proj", "mlp.up_proj"),
    rows=(*Published.rows, "mlp.down_proj"),
    head_norms=("self_attn.q_norm", "self_attn.k_norm"),
)
MIXTRAL = Published(
    "mixtral",
    "transformers",
    lambda: of_transformers("MixtralConfig", num_local_experts=4, num_experts_per_tok=2),
)
FMS = Published(
    "fms-llama",
    "fms",
    llama_of_fms,
    root="base_model",
    embedding="base_model.embedding",
    norm="base_model.dec_norm",
    columns=(
        *(f"attn.in_proj.{name}" for name in ("query", "key", "value")),
        *(f"ff_sub_layer.{name}" for name in ("wg", "w1")),
    ),
    rows=("attn.dense", "ff_sub_layer.w2"),
    heads=("attn", "attn.in_proj"),
)
MODELS = (QWEN3, MIXTRAL, FMS)


def param(model: Published, *values: Any, id: str) -> Any:
    """Return a parameter of a test that is skipped without the model's package."""
    lacks = pytest.mark.skipif(
        find_spec(model.package) is None, reason=f"{model.package} is not installed: make test-models"
    )
    return pytest.param(model, *values, id=f"{model.name}-{id}", marks=lacks)
