"""ibm-fms: models under its own tensor parallelism, and each layer under FSDP2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from everyrank.suites import Subject, conformance
from torch.distributed.fsdp import fully_shard

pytest.importorskip("fms", reason="pip install ibm-fms")
from fms.distributed.strategy import TensorParallelStrategy
from fms.models.granite import Granite, GraniteConfig
from fms.models.llama import LLaMA, LLaMAConfig
from fms.utils.serialization import load_state_dict_into_model

from models import tokens
from models.contract import CONTRACT

CAUSE = "cause:no-backward-of-its-tensor-parallelism"
SIZES = {
    "src_vocab_size": tokens.VOCABULARY + 1,  # the last is the padding of both
    "emb_dim": 32,
    "nheads": 4,
    "kvheads": 2,
    "nlayers": 2,
    "max_expected_seq_len": tokens.TOKENS,
    "pad_id": tokens.VOCABULARY,
    "fused_weights": False,
}


@dataclass(frozen=True)
class Model:
    """The subject's build of a model."""

    make: Callable[..., Any]
    architecture: str
    """What its checkpoints are called."""

    def __call__(self, mode: str, folder: Path) -> dict[str, Any]:
        if mode not in ("tensor", "fsdp2"):
            raise NotImplementedError("it has no experts, and cuts neither layers nor tokens")
        own = mode == "fsdp2"
        return {
            "model": self.plain,
            "parallelize": shard if own else self.cut,
            "batch": tokens.batch,
            "loss": tokens.loss,
            "split": "rows" if own else "none",
        }

    def plain(self) -> Any:
        torch.manual_seed(0)
        model = self.make()
        model.reset_parameters()
        return tokens.moved(model)

    def cut(self, model: Any) -> Any:
        parallel = self.make(distributed_strategy=TensorParallelStrategy()).to(model.head.weight.dtype)
        load_state_dict_into_model(
            parallel, dict(model.state_dict()), self.architecture, "fms", distributed_strategy="tp"
        )
        return parallel.train()


def shard(model: Any) -> Any:
    for layer in model.base_model.layers:
        fully_shard(layer)
    return fully_shard(model)


def llama(**more: Any) -> Any:
    return LLaMA(LLaMAConfig(multiple_of=16, **SIZES), **more)


def granite(**more: Any) -> Any:
    scales = {"embedding_multiplier": 2.0, "logits_scaling": 2.0, "residual_multiplier": 0.5}
    return Granite(GraniteConfig(head_dim=8, hidden_grow_factor=2.0, **SIZES, **scales), **more)


MODELS = {"ibm-fms.llama": Model(llama, "llama"), "ibm-fms.granite": Model(granite, "granite")}


@pytest.mark.filterwarnings("ignore")
@conformance(*(Subject(name, CONTRACT, model, known=CAUSE, package="ibm-fms") for name, model in MODELS.items()))
def test_ibm_fms(case: Any) -> None:
    case.run()
