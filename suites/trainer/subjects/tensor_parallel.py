"""torch's tensor parallel: the linear layers of a model are cut by columns, by rows, or in turn by both."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from everyrank.suites.engine.subject import Subject
from everyrank.suites.trainer.arena import SAME_GRAPH, TRUSTS_INIT, TRUSTS_ORDER
from everyrank.suites.trainer.subjects.common import FullState
from everyrank.suites.trainer.subjects.meshes import mesh_of_pairs
from everyrank.suites.trainer.subjects.ownership import Ownership, owned_parameters
from everyrank.suites.trainer.subjects.sharded import FSDP2
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)


class TensorParallel(FullState):
    """Every rank trains on all rows; a pair of linear layers is cut by columns, then by rows."""

    part = (0, 1)

    def wrap(self, model: nn.Module) -> Any:
        return self.cut(model, init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),)))

    def cut(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        styles = self.styles(len(layers))
        return parallelize_module(model, mesh, dict(zip(layers, styles, strict=False)))

    def styles(self, count: int) -> Sequence[ParallelStyle]:
        """Return how each linear layer is cut, in order; the last layers stay whole if the styles are fewer."""
        return [ColwiseParallel(), RowwiseParallel()] * (count // 2)

    def mean(self, loss: torch.Tensor) -> torch.Tensor:
        return loss  # every rank has the whole batch

    def parameters(self) -> dict[str, torch.Tensor]:
        full: dict[str, torch.Tensor] = {}
        for name, value in self.named().items():
            full[name] = value.full_tensor().detach() if isinstance(value, DTensor) else value.detach()
        return full

    def owns(self) -> dict[str, Ownership]:
        return owned_parameters(self.named())


class Columns(TensorParallel):
    """Each linear layer is cut by columns, and its outputs are gathered."""

    def styles(self, count: int) -> Sequence[ParallelStyle]:
        return [ColwiseParallel(output_layouts=Replicate())] * count


class Rows(TensorParallel):
    """Each linear layer is cut by rows, and its inputs are cut for it."""

    def styles(self, count: int) -> Sequence[ParallelStyle]:
        return [RowwiseParallel(input_layouts=Replicate())] * count


class SequenceParallel(TensorParallel):
    """A pair of linear layers, before and after which each rank has some of the rows only."""

    def cut(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        # What is cut by rows stays a DTensor: a tensor of one rank would not say how many rows the others have.
        inputs = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=False)
        return parallelize_module(super().cut(model, mesh), mesh, inputs)

    def styles(self, count: int) -> Sequence[ParallelStyle]:
        first = ColwiseParallel(input_layouts=Shard(0))
        second = RowwiseParallel(output_layouts=Shard(0), use_local_output=False)
        last = RowwiseParallel(input_layouts=Shard(0)) if count % 2 else RowwiseParallel()
        return [*([first, second] * count)[: count - 1], last]


class ShardedTensorParallel(TensorParallel):
    """A mesh of two dimensions: ``fully_shard`` over pairs of ranks that cut each layer in two."""

    def wrap(self, model: nn.Module) -> Any:
        device = next(model.parameters()).device.type
        mesh = mesh_of_pairs(device, ("data", "tensor"))
        self.part = (mesh.get_local_rank("data"), dist.get_world_size() // 2)
        return fully_shard(self.cut(model, mesh["tensor"]), mesh=mesh["data"])

    def step(self, *batches: Any, max_norm: float | None = None) -> Any:
        with warnings.catch_warnings():
            # The layer cut by rows returns a view; nothing here changes it in place.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
            return super().step(*batches, max_norm=max_norm)

    def mean(self, loss: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(loss)  # both ranks of a pair have the loss of their part
        return loss / dist.get_world_size()


_DECLARES = frozenset({TRUSTS_INIT, TRUSTS_ORDER})


COLUMNS = Subject(
    "torch.tensor.parallel(ColwiseParallel)",
    contract="trainer",
    build=Columns,
    declares=_DECLARES,
    sizes=(2,),
    known="columns.toml",
    turn=4,
)


def _with_another_plan(
    name: str, build: type[TensorParallel], known: str, *touches: str, sizes: tuple[int, ...] = (2,)
) -> Subject:
    return replace(COLUMNS, name=name, build=build, known=known, sizes=sizes, variant_of=COLUMNS, touches=touches)


TENSOR_PARALLEL = _with_another_plan(
    "torch.tensor.parallel",
    TensorParallel,
    "tensor_parallel.toml",
    "clip",
    "large-world",
    "parity.models",
    sizes=(3, 256, 1024),
)
ROWS = _with_another_plan(
    "torch.tensor.parallel(RowwiseParallel)", Rows, "rows.toml", "clip", "parity.models", "state.reshard"
)
SEQUENCE_PARALLEL = _with_another_plan(
    "torch.tensor.parallel(sequence)",
    SequenceParallel,
    "sequence_parallel.toml",
    "accumulate",
    "loss",
    "mean",
    "parity.models",
)
FSDP2_TENSOR_PARALLEL = Subject(
    "torch.fully_shard(tensor.parallel)",
    contract="trainer",
    build=ShardedTensorParallel,
    declares=frozenset({TRUSTS_INIT, TRUSTS_ORDER, SAME_GRAPH}),
    sizes=(4,),
    known="fsdp2_tensor_parallel.toml",
    variant_of=FSDP2,
    touches=("mean", "clip", "equal", "parity.models"),
)
