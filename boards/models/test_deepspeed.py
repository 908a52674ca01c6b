"""DeepSpeed's AutoTP: models of transformers, as it cuts them by their plan or by its own rules."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from everyrank.suites import Subject, conformance

os.environ.setdefault("DS_ACCELERATOR", "cpu")
pytest.importorskip("deepspeed", reason="pip install deepspeed")
pytest.importorskip("transformers", reason="pip install transformers")
import deepspeed

from models import tiny
from models.contract import CONTRACT
from models.ways import loss

#: What it cuts by the model's plan or by its own rules, and what it has rules of a model type for.
MODEL_TYPES = ("llama", "qwen3", "gpt_neox", "opt", "falcon")
PRESETS = ("phi3", "mixtral", "bloom")
NO_DATA = "the board takes FSDP2; DeepSpeed's own data parallelism has an optimizer in it, and is for the other board"


@dataclass(frozen=True)
class ModelType:
    """The subject's build of one model type of transformers."""

    name: str

    def __call__(self, mode: str, folder: Path) -> dict[str, Any]:
        if mode != "tensor":
            raise NotImplementedError(NO_DATA)
        config = tiny.config(self.name)
        # Its kernel over shared memory is compiled at first use; gloo does the same.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
        return {
            "model": lambda: tiny.of_config(config),
            "parallelize": self.cut,
            "batch": tiny.inputs(tiny.of_config(config)),
            "loss": loss,
            "split": "none",
        }

    def cut(self, model: Any) -> Any:
        """Return the engine's module: without an optimizer and data parallelism, the engine does no more to it."""
        dtype = model.dtype
        rules = {"preset_model": self.name} if self.name in PRESETS else {}
        settings = {
            "train_micro_batch_size_per_gpu": 1,
            "tensor_parallel": {"autotp_size": dist.get_world_size(), **rules},
            "zero_optimization": {"stage": 0},
        }
        engine, *_ = deepspeed.initialize(model=model, config=settings)
        return engine.module.to(dtype).train()


CAUSES = {"bloom": "alibi-of-fewer-heads", "falcon": "one-key-for-all-heads", "phi3": "heads-of-the-config"}


def subject(name: str) -> Subject:
    known = f"cause:{CAUSES[name]}" if name in CAUSES else None
    return Subject(f"deepspeed.{name}", CONTRACT, ModelType(name), known=known, package="deepspeed")


@pytest.mark.filterwarnings("ignore")
@conformance(*map(subject, MODEL_TYPES + PRESETS))
def test_deepspeed(case: Any) -> None:
    case.run()
