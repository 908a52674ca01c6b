"""The modes of transformers: each is a DistributedConfig, with which every rank loads its parts from a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from models import tiny
from models.pipeline import staged


@dataclass(frozen=True)
class Mode:
    """How transformers is asked for a mode."""

    distributed: Callable[[int], Mapping[str, Any]]
    plans: tuple[str, ...]
    """The plans that a model type needs for it."""
    split: str = "none"
    """As parity takes it: every rank has the whole batch, or its own rows."""


MODES = {
    "tensor": Mode(lambda size: {"tp_plan": "auto", "tp_size": size}, ("tp",)),
    "fsdp2": Mode(lambda size: {"fsdp_size": size}, ("fsdp",), "rows"),
    "experts": Mode(lambda size: {"tp_plan": "auto", "tp_size": size, "ep_size": size}, ("tp", "ep")),
    "fsdp2-experts": Mode(lambda size: {"fsdp_size": size, "ep_size": size // 2}, ("fsdp", "ep"), "rows"),
    "pipeline": Mode(lambda size: {"pp_size": size}, ("pp",)),
}


@dataclass(frozen=True)
class ModelType:
    """The subject's build of one model type."""

    name: str
    made: bool = True
    """False if it is known that no rule makes it tiny, or that it does not train in one process."""

    def __call__(self, mode: str, folder: Path) -> dict[str, Any]:
        if mode not in MODES:
            raise NotImplementedError(f"transformers has no {mode} parallelism")
        way = MODES[mode]
        for needed in way.plans:
            if not tiny.plan(self.name, needed):
                raise NotImplementedError(f"its config has no base_model_{needed}_plan")
        config, inputs = self._tried()

        def parallelize(model: Any) -> Any:
            if dist.get_rank() == 0:
                model.save_pretrained(folder)
            dist.barrier()
            loaded = loads(tiny.model_class(config), folder, way.distributed(dist.get_world_size()), model.dtype)
            dist.barrier()
            # What transformers keeps in fp32 would not meet the rest in parity's pass in fp64.
            return loaded.to(model.dtype).train()

        common = {"model": lambda: tiny.of_config(config), "batch": inputs, "loss": loss}
        if mode == "pipeline":
            whole = tiny.of_config(config)
            if whole.base_model is whole:
                raise NotImplementedError("the model of its config has no head, and transformers' stages are of one")
            return {**common, **staged(parallelize, of_logits)}
        return {**common, "parallelize": parallelize, "split": way.split}

    def _tried(self) -> tuple[Any, Callable[[int], dict[str, torch.Tensor]]]:
        """Return the config and the batches of a tiny model that trains, and draws nothing."""
        try:
            config = tiny.config(self.name)
            inputs = tiny.inputs(tiny.of_config(config))
            model = tiny.of_config(config)
            drawn = torch.get_rng_state()
            loss(model, inputs(0)).backward()
            if not torch.equal(drawn, torch.get_rng_state()):
                raise ValueError("its forward draws random numbers")
        except Exception as error:
            why = f"it is not made tiny: {type(error).__name__}: {error}"
            if not self.made:
                raise NotImplementedError(why) from error
            raise RuntimeError(f"{why}. Mend models/tiny.py, or add it to not-made in ledgers/causes.toml") from error
        if not self.made:
            raise RuntimeError("it is made tiny by now, and trains: remove it from not-made in ledgers/causes.toml")
        return config, inputs


def loads(auto: Any, folder: Path, distributed: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """Return this rank's part of the model in a folder."""
    from transformers.distributed import DistributedConfig

    return auto.from_pretrained(
        folder,
        distributed_config=DistributedConfig(**distributed),
        dtype=dtype,
        attn_implementation="eager",
        experts_implementation="eager",
    )


def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss of the next token; a model without a head has its features in place of logits."""
    output = model(**batch)
    return of_logits(output.logits if hasattr(output, "logits") else output[0], batch["input_ids"])


def of_logits(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    labels = tokens[:, 1:] % logits.shape[-1]
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten())
