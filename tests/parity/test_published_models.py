"""Models that were not written for parity, from transformers: tiny, random, built without a download.

`make test-models` installs transformers and runs them. The two findings are silent faults of its tensor parallelism.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Finding, Parted, parity
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-models")

pytestmark = [
    pytest.mark.world(2),
    # transformers warns of its own ways, and leaves groups and a progress bar's thread behind.
    pytest.mark.filterwarnings("ignore"),
]

CONFIGS: dict[str, Callable[..., Any]] = {
    "qwen3": lambda **sizes: transformers.Qwen3Config(**sizes, head_dim=8),
    "apertus": lambda **sizes: transformers.ApertusConfig(**sizes),
}


def build(name: str) -> Any:
    config = CONFIGS[name](
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).train()


def batch(step: int) -> dict[str, torch.Tensor]:
    return {"tokens": torch.randint(0, 64, (8, 12), generator=torch.Generator().manual_seed(step))}


def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(input_ids=batch["tokens"], use_cache=False).logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())


def findings(name: str, parallelize: Callable[[Any], Any], **more: Any) -> tuple[Finding, ...]:
    try:
        return parity(
            model=lambda: build(name), parallelize=parallelize, batch=batch, loss=loss, **more
        ).findings  # fmt: skip
    except Parted as parted:
        return parted.report.findings


@pytest.fixture
def tensor_parallel(process_group: Any, tmp_path: Path) -> Callable[[Any], Any]:
    """Return transformers' own way: it loads its shards from a folder."""
    folder = [str(tmp_path / "model")]
    dist.broadcast_object_list(folder, 0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))

    def parallelize(model: Any) -> Any:
        if dist.get_rank() == 0:
            model.save_pretrained(folder[0])
        dist.barrier()
        made = transformers.AutoModelForCausalLM.from_pretrained(
            folder[0], tp_plan="auto", device_mesh=mesh, dtype=model.dtype, attn_implementation="eager"
        )
        dist.barrier()
        return made.train()

    return parallelize


@pytest.mark.parametrize("name", CONFIGS)
def test_fsdp2_trains_them_as_one_process_does(name: str, process_group: Any) -> None:
    def parallelize(model: Any) -> Any:
        for layer in model.model.layers:
            fully_shard(layer)
        return fully_shard(model)

    assert findings(name, parallelize) == ()


def test_qwen3_under_tensor_parallelism_with_one_microbatch_is_right(tensor_parallel: Any) -> None:
    assert findings("qwen3", tensor_parallel, split="none", microbatches=1) == ()


def test_qwen3_under_tensor_parallelism_reduces_two_norms_again_with_each_microbatch(tensor_parallel: Any) -> None:
    found = findings("qwen3", tensor_parallel, split="none")
    assert [(each.kind, each.pattern) for each in found] == [("gradient", "reduced-twice")]
    names = {found[0].tensor, *found[0].same}
    assert names == {f"model.layers.{layer}.self_attn.{norm}_norm.weight" for layer in (0, 1) for norm in "qk"}
    assert found[0].words.startswith("is 2 * g1 + 1 * g2 on ranks 0 and 1")


def test_apertus_under_tensor_parallelism_never_reduces_its_activations(tensor_parallel: Any) -> None:
    (first,) = findings("apertus", tensor_parallel, split="none", microbatches=1)
    assert (first.kind, first.pattern) == ("gradient", "not-reduced")
    names = {first.tensor, *first.same}
    assert names == {f"model.layers.{layer}.mlp.act_fn.alpha_{sign}" for layer in (0, 1) for sign in "pn"}
