"""megatron-core: a transformer of its tensor parallel layers and its loss, beside one of torch's own layers.

Its whole models draw the masks of dropout from the generator of CUDA, and its sequence parallelism gathers into a
buffer there, so neither runs on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.suites import Subject, conformance
from torch import nn

pytest.importorskip("megatron.core", reason="pip install megatron-core")
from megatron.core import ModelParallelConfig, parallel_state
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)

from models import tokens
from models.contract import CONTRACT

WIDTH, HEAD = 32, 8


class Torch:
    """Torch's own layers, each of which names what it stands for."""

    embedding = nn.Embedding
    columns = rows = nn.Linear

    @staticmethod
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Megatron:
    """Megatron's layers, of which each rank has its part."""

    def __init__(self, dtype: torch.dtype) -> None:
        config = ModelParallelConfig(
            tensor_model_parallel_size=dist.get_world_size(),
            use_cpu_initialization=True,
            params_dtype=dtype,
        )
        common: dict[str, Any] = {"config": config, "init_method": nn.init.zeros_}
        self.embedding = partial(VocabParallelEmbedding, **common)
        self.columns = partial(ColumnParallelLinear, gather_output=False, bias=True, **common)
        self.rows = partial(RowParallelLinear, input_is_parallel=True, bias=True, skip_bias_add=False, **common)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # It writes into the logits.
        return vocab_parallel_cross_entropy(logits.clone(), labels).mean()


class Block(nn.Module):
    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.attends, self.feeds = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (layers.columns(WIDTH, WIDTH) for _ in range(3))
        self.out, self.up, self.down = (
            layers.rows(WIDTH, WIDTH),
            layers.columns(WIDTH, 2 * WIDTH),
            layers.rows(2 * WIDTH, WIDTH),
        )

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        normed = self.attends(values)
        parts = (_output(layer, normed).unflatten(-1, (-1, HEAD)) for layer in (self.query, self.key, self.value))
        # Megatron's tokens come first, then its rows.
        attended = nn.functional.scaled_dot_product_attention(
            *(part.permute(1, 2, 0, 3) for part in parts), is_causal=True
        )
        values = values + _output(self.out, attended.permute(2, 0, 1, 3).flatten(2))
        inner = nn.functional.gelu(_output(self.up, self.feeds(values)))
        return values + _output(self.down, inner)


class Transformer(nn.Module):
    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.embedding = layers.embedding(tokens.VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block(layers) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(WIDTH), layers.columns(WIDTH, tokens.VOCABULARY)
        self.measure: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = layers.loss

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        values = self.blocks(self.embedding(ids).transpose(0, 1))
        return _output(self.head, self.norm(values))


def _output(layer: nn.Module, values: torch.Tensor) -> torch.Tensor:
    """Return a layer's output: Megatron's have a bias beside it, for what would add it elsewhere."""
    output: Any = layer(values)
    return output[0] if isinstance(output, tuple) else output


def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model.measure(model(batch["tokens"])[:-1], batch["tokens"][:, 1:].t().contiguous())


def plain() -> Any:
    torch.manual_seed(0)
    return tokens.moved(Transformer(Torch))


def cut(model: Any) -> Any:
    """Return Megatron's model with this rank's parts of the plain one's weights, which say where they are cut."""
    parallel = Transformer(Megatron(model.norm.weight.dtype)).to(model.norm.weight.dtype)
    with torch.no_grad():
        for name, parameter in parallel.named_parameters():
            whole = model.get_parameter(name)
            if getattr(parameter, "tensor_model_parallel", False):
                whole = whole.chunk(dist.get_world_size(), parameter.partition_dim)[dist.get_rank()]
            parameter.copy_(whole)
    return parallel


def build(mode: str, folder: Path) -> dict[str, Any]:
    if mode != "tensor":
        raise NotImplementedError("its data and expert parallelism need CUDA")
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(dist.get_world_size(), create_gloo_process_groups=False)
    return {"model": plain, "parallelize": cut, "batch": tokens.batch, "loss": loss, "split": "none"}


@pytest.mark.filterwarnings("ignore")
@conformance(Subject("megatron-core.layers", CONTRACT, build, package="megatron-core"))
def test_megatron_core(case: Any) -> None:
    case.run()
