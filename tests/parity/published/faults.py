"""Faults to plant: each is a way with one method changed, as people get it wrong, and where it must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel

from tests.parity.published.models import MIXTRAL, MODELS, QWEN3, Published
from tests.parity.published.ways import Fsdp, Library, LibraryAtOnce, Made, Tensor


@dataclass(frozen=True)
class Fault:
    """A fault, and what parity must name."""

    name: str
    source: str
    made: Made
    models: tuple[Published, ...]
    kind: str
    tensor: Callable[[Published], str]
    """The tensor: patterns, one of which it fits, with spaces between them."""
    pattern: str


FAULTS: list[Fault] = []


def planted(
    source: str,
    kind: str,
    tensor: str | Callable[[Published], str],
    pattern: str,
    models: tuple[Published, ...] = MODELS,
) -> Callable[[Any], Any]:
    """Declare a way to be faulty."""

    def declare(made: Any) -> Any:
        patterns = tensor if callable(tensor) else lambda _: tensor
        FAULTS.append(Fault(made.__name__, source, made, models, kind, patterns, pattern))
        return made

    return declare


# -- FSDP2


@planted(
    "torchtitan#2972: a factor on one layer",
    "gradient",
    lambda published: f"{published.root}.layers.1.*",
    "sum-for-mean",
)
class FactorOfOneLayer(Fsdp):
    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        layer: Any = list(self.published.layers(model))[1]
        layer.set_gradient_divide_factor(1.0)
        layer.set_force_sum_reduction_for_comms(True)
        return model


@planted(
    "pytorch#98281: a parameter is left out, and nobody reduces it",
    "gradient",
    lambda published: f"{published.norm}.weight",
    "not-reduced",
)
class NormIsIgnored(Fsdp):
    def parallelize(self, model: Any) -> Any:
        for layer in self.published.layers(model):
            fully_shard(layer)
        return fully_shard(model, ignored_params=set(model.get_submodule(self.published.norm).parameters()))


@planted("pytorch#149205: the optimizer has other parameters than the model trains", "update", "*", "zero")
class OptimizerOfTheOldParameters(Fsdp):
    def parallelize(self, model: Any) -> Any:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return super().parallelize(model), optimizer


# -- torch's tensor parallelism


@planted(
    "common mistake: a row-wise product whose sum is left to somebody else",
    "forward",
    lambda model: f"{model.root}.layers.0.{model.rows[0]} {model.root}.layers.0.{model.attention}",
    "not-reduced",
)
class OutputIsNotSummed(Tensor):
    def rules(self) -> dict[str, ParallelStyle]:
        return {**super().rules(), self.published.rows[0]: RowwiseParallel(output_layouts=Partial())}


@planted(
    "common mistake: the first rank loads a checkpoint, and nobody broadcasts it",
    "initialization",
    lambda published: f"{published.embedding}.weight",
    "replicas-differ",
)
class FirstRankAloneLoads(Tensor):
    def parallelize(self, model: Any) -> Any:
        if dist.get_rank() > 0:
            nn.init.normal_(model.get_submodule(self.published.embedding).weight)
        return super().parallelize(model)


@planted(
    "common mistake: a gradient that is whole on each rank is summed over them",
    "gradient",
    lambda published: f"{published.norm}.weight",
    "sum-for-mean",
)
class LastNormIsSummed(Tensor):
    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        self.reduce(model.get_submodule(self.published.norm), dist.group.WORLD)
        return model


@planted(
    "NeMo-RL#3716: a norm over heads has each rank's part",
    "gradient",
    "model.layers.1.self_attn.?_norm.weight",
    "not-reduced",
    (QWEN3,),
)
class HeadNormsAreNotReduced(Tensor):
    def reduce(self, norm: nn.Module, group: Any) -> None:
        pass


# -- transformers' tensor parallelism


@planted(
    "a plan of before there was a rule for norms over heads",
    "gradient",
    "model.layers.1.self_attn.?_norm.weight",
    "not-reduced",
    (QWEN3,),
)
class HeadNormsHaveNoRule(LibraryAtOnce):
    def plan(self) -> dict[str, str]:
        return {f"model.layers.*.self_attn.{name}_norm": "replicate" for name in "qk"}


@planted(
    "common mistake: a block is reduced whose last product already is",
    "forward",
    "model.layers.0.mlp",
    "sum-for-mean",
    (QWEN3, MIXTRAL),
)
class PerceptronIsSummedAgain(LibraryAtOnce):
    def plan(self) -> dict[str, str]:
        return {"model.layers.*.mlp": "all_reduce"}


@planted(
    "common mistake: a gradient that is whole on each rank is summed over them",
    "gradient",
    "model.layers.1.post_attention_layernorm.weight",
    "sum-for-mean",
    (QWEN3,),
)
class LayerNormIsSummed(LibraryAtOnce):
    def plan(self) -> dict[str, str]:
        return {"model.layers.*.post_attention_layernorm": "replicated_with_grad_allreduce"}


@planted(
    "a plan that cuts experts, and forgets the module that sums them",
    "forward",
    "model.layers.0.mlp*",
    "not-reduced",
    (MIXTRAL,),
)
class ExpertsAreNotSummed(Library):
    def plan(self) -> dict[str, str]:
        return {"model.layers.*.mlp.experts": "local_params"}


@planted(
    "common mistake: a gradient that is whole on each rank is summed over them",
    "gradient",
    "model.layers.1.mlp.gate.weight",
    "sum-for-mean",
    (MIXTRAL,),
)
class RouterIsSummed(LibraryAtOnce):
    def plan(self) -> dict[str, str]:
        return {"model.layers.*.mlp.gate": "replicated_with_grad_allreduce"}
