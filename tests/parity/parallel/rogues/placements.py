"""Rogues whose placements are not as they say: of parameters, of gradients, and of what modules return."""

from __future__ import annotations

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

from tests.parity.parallel.collectives import Sum, own_part
from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subjects.annotated import (
    AnnotatedRow,
    MegatronAnnotatedWhole,
    RowByHand,
    TorchRowByHand,
    TorchSequenceByHand,
    TorchTensorByHand,
)
from tests.parity.parallel.subjects.dtensors import TorchSequence, TorchTensor
from tests.parity.parallel.subjects.megatron import AnnotatedColumn

ROGUES = Rogues()


class _OtherDimension(AnnotatedRow):
    def placement(self, name: str) -> Placement:
        return Shard(0) if name == "weight" else super().placement(name)


@ROGUES.add(
    "common mistake: the placement of a column-wise layer, copied to a row-wise one",
    "initialization",
    "blocks.0.mlp.down.weight",
    "wrong-annotation",
)
class ClaimsTheOtherDimension(MegatronAnnotatedWhole):
    annotated_row = _OtherDimension


class _Cut(AnnotatedRow):
    def placement(self, name: str) -> Placement:
        return Shard(0) if name == "bias" else super().placement(name)


@ROGUES.add(
    "common mistake: all of a layer's parameters are said to be cut, and its bias is not",
    "initialization",
    "blocks.0.mlp.down.bias",
    "wrong-annotation",
)
class ClaimsToBeCut(MegatronAnnotatedWhole):
    annotated_row = _Cut


class _OtherOrder(AnnotatedColumn):
    def take(self, whole: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Return the part of a rank in a group that was made in another order."""
        return own_part(whole.detach().flip(0), 0, self.group).flip(0).clone()


@ROGUES.add(
    "common mistake: parts are dealt out by a list of ranks that is not the mesh's",
    "initialization",
    "blocks.0.mlp.up.*",
    "wrong-annotation",
)
class ClaimsTheOtherOrder(MegatronAnnotatedWhole):
    annotated = _OtherOrder


@ROGUES.add(
    "common mistake: to_local() without grad_placements, of a weight that sees a part of the sequence",
    "gradient",
    "norm.*",
    "wrong-annotation",
)
class GradientClaimsToBeWhole(TorchSequenceByHand):
    gradients = None


@ROGUES.add(
    "common mistake: grad_placements of sequence parallelism, where each rank has the whole sequence",
    "gradient",
    "norm.*",
    "wrong-annotation",
)
class GradientClaimsToBeATerm(TorchTensorByHand):
    gradients = Partial()


@ROGUES.add(
    "common mistake: a row-wise product by hand that is said to be whole",
    "forward",
    "blocks.0.mlp.down",
    "wrong-annotation",
)
class ProductClaimsToBeWhole(TorchRowByHand):
    layout = Replicate()


class _Summing(RowByHand):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Sum.apply(super().forward(x), None)
        return out


@ROGUES.add(
    "common mistake: a product that the layer has summed is said to be a term of a sum",
    "forward",
    "blocks.0.mlp.down",
    "wrong-annotation",
)
class ProductClaimsToBeATerm(TorchRowByHand):
    layer = _Summing


@ROGUES.add(
    "common mistake: a norm of sequence parallelism, where each rank has the whole sequence",
    "forward",
    "blocks.1",
    "wrong-annotation",
)
class WholeClaimsToBeASequence(TorchTensor):
    def edges(self) -> dict[str, ParallelStyle]:
        return {**super().edges(), "norm": SequenceParallel(use_local_output=True)}


@ROGUES.add(
    "common mistake: the perceptron of a block with sequence parallelism takes its input as if it were whole",
    "forward",
    "blocks.0.ln2",
    "wrong-annotation",
)
class SequenceClaimsToBeWhole(TorchSequence):
    def perceptron(self) -> dict[str, ParallelStyle]:
        norm = SequenceParallel(use_local_output=True)
        return {"ln2": norm, "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
