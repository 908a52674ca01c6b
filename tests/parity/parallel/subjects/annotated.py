"""Layers by hand amid DTensors: what they are given, compute and return says where it is."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, PrepareModuleOutput

from tests.parity.parallel.subject import Batch
from tests.parity.parallel.subjects.dtensors import TorchSequence, TorchTensor
from tests.parity.parallel.subjects.megatron import Megatron, MegatronAnnotated, Row, annotate


class AnnotatedRow(Row):
    """A row-wise layer whose parts are DTensors."""

    def __init__(self, subject: Megatron, layer: nn.Linear) -> None:
        super().__init__(subject, layer)
        annotate(self, subject.size, self.placement)

    def placement(self, name: str) -> Placement:
        return Shard(1) if name == "weight" else Replicate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part: Any = self
        out: torch.Tensor = self.leave(F.linear(x, part.weight.to_local())) + part.bias.to_local()
        return out


class MegatronAnnotatedWhole(MegatronAnnotated):
    """Both layers of perceptrons say where their parts are."""

    annotated_row: type[AnnotatedRow] = AnnotatedRow

    def cut_perceptron(self, mlp: Any) -> None:
        mlp.up, mlp.down = self.annotated(self, mlp.up), self.annotated_row(self, mlp.down)


class LocalNorm(nn.Module):
    """A layer norm by hand, whose weights are DTensors: it computes with local tensors."""

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, norm: nn.LayerNorm, mesh: DeviceMesh, gradients: Placement | None) -> None:
        super().__init__()
        self.width, self.gradients = norm.normalized_shape, None if gradients is None else [gradients]
        for name, each in norm.named_parameters():
            setattr(self, name, nn.Parameter(distribute_tensor(each.detach(), mesh, [Replicate()])))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights: Any = self
        weight, bias = (each.to_local(grad_placements=self.gradients) for each in (weights.weight, weights.bias))
        return F.layer_norm(x, self.width, weight, bias)


class TorchSequenceByHand(TorchSequence):
    """The last norm is by hand: its gradient is a sum over the ranks' parts of the sequence."""

    gradients: Placement | None = Partial()

    def edges(self) -> dict[str, ParallelStyle]:
        return {name: style for name, style in super().edges().items() if name != "norm"}

    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        model.norm = LocalNorm(model.norm, self.mesh, self.gradients)
        return model


class TorchTensorByHand(TorchTensor):
    """The last norm is by hand: each rank has its whole gradient."""

    gradients: Placement | None = Replicate()

    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        model.norm = LocalNorm(model.norm, self.mesh, self.gradients)
        return model


class RowByHand(nn.Module):
    """A row-wise layer by hand: what it returns is a term of a sum, as those who take it must know."""

    def __init__(self, layer: Any, rank: int, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Shard(1)]))
        self.bias = nn.Parameter(layer.bias.detach().clone())
        self.size = mesh.size()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: Any = self.weight
        return F.linear(x, weight.to_local(), self.bias / self.size)


class _SummedBias(RowByHand):
    """The gradient of the bias is that of the whole: each rank adds a part of it."""

    def __init__(self, layer: Any, rank: int, mesh: DeviceMesh) -> None:
        super().__init__(layer, rank, mesh)
        self.bias.register_hook(lambda gradient: gradient * self.size)


class TorchRowByHand(TorchTensor):
    """A style of torch's takes what a row-wise layer by hand returns for terms of a sum, and sums them."""

    layout: Placement = Partial()
    layer: type[RowByHand] = _SummedBias

    def perceptron(self) -> dict[str, ParallelStyle]:
        summed = PrepareModuleOutput(output_layouts=self.layout, desired_output_layouts=Replicate())
        return {"mlp.up": super().perceptron()["mlp.up"], "mlp.down": summed}

    def parallelize(self, model: Any) -> Any:
        for block in model.blocks.values():
            block.mlp.down = self.layer(block.mlp.down, self.rank, self.mesh)
        return super().parallelize(model)


class TorchGrid(TorchTensor):
    """FSDP2 over the data dimension of a mesh, and torch's tensor parallelism over the other: strided shards."""

    sizes = (4,)

    def __init__(self) -> None:
        super().__init__()
        self.grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        self.mesh = self.grid["tp"]

    def made_groups(self) -> list[Any]:
        return self.grid.get_all_groups()

    def mine(self, batch: Batch) -> Batch:
        return {key: value.chunk(2)[self.rank // 2] for key, value in batch.items()}

    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        for block in model.blocks.values():
            fully_shard(block, mesh=self.grid["dp"])
        fully_shard(model, mesh=self.grid["dp"])
        return model

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        torch.distributed.all_reduce(loss, group=self.grid["dp"].get_group())
        return loss / 2


class TorchGridOfOne(TorchGrid):
    """A mesh with an axis of one rank."""

    sizes = (2,)

    def __init__(self) -> None:
        TorchTensor.__init__(self)
        self.grid = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        self.mesh = self.grid["tp"]

    def mine(self, batch: Batch) -> Batch:
        return batch

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        return loss
