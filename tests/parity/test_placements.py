"""Which placements the dye shows, and claims of DTensors that are untrue."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Parted
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from tests.parity.parallel.collectives import Gather
from tests.parity.small import compare


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(torch.tanh(self.first(rows)))
        return output


@pytest.mark.world(4)
def test_the_placements_over_a_mesh_are_those_of_torch(process_group: Any) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.last = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 3)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.last(self.down(torch.relu(self.up(rows))))
            return output

    def both(model: Any) -> Any:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        return parallelize_module(model, mesh["tp"], plan)

    report = compare(model=Net, parallelize=both, split="none")
    assert report.placements(mesh) == {
        "up.weight": (Replicate(), Shard(0)),
        "up.bias": (Replicate(), Shard(0)),
        "down.weight": (Replicate(), Shard(1)),
        "down.bias": (Replicate(), Replicate()),
        "last.weight": (Replicate(), Replicate()),
        "last.bias": (Replicate(), Replicate()),
    }
    assert report.placements()["up.weight"] == (None,)
    for name in ("dp", "tp"):
        dist.destroy_process_group(mesh.get_group(name))


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
@pytest.mark.world(4)
def test_what_is_cut_twice_is_strided_and_outputs_are_where_they_were_seen(process_group: Any) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def both(model: Any) -> Any:
        parallelize_module(
            model, mesh["tp"], {"first": ColwiseParallel(use_local_output=False), "last": RowwiseParallel()}
        )
        return fully_shard(model, mesh=mesh["dp"])

    def mine(batch: Any) -> Any:
        return {name: each.chunk(2)[mesh.get_local_rank("dp")] for name, each in batch.items()}

    report = compare(model=Wide, parallelize=both, split=mine, microbatches=1)
    assert report.placements(mesh) == {
        "first.weight": (_StridedShard(0, split_factor=2), Shard(0)),
        "first.bias": (_StridedShard(0, split_factor=2), Shard(0)),
        "last.weight": (Shard(0), Shard(1)),
        "last.bias": (Shard(0), Replicate()),
    }
    assert report.placements(mesh, kind="outputs") == {
        "first": (Shard(0), Shard(1)),
        "last": (Shard(0), Replicate()),
    }
    for name in ("dp", "tp"):
        dist.destroy_process_group(mesh.get_group(name))


@pytest.mark.world(2)
def test_what_a_row_wise_layer_returns_is_a_term_of_a_sum(process_group: Any) -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    plan = {
        "first": ColwiseParallel(),
        "last": RowwiseParallel(output_layouts=Partial(), use_local_output=False),
    }

    def summed(model: Any, batch: Any) -> torch.Tensor:
        scores = model(batch["rows"])
        scores = scores.full_tensor() if isinstance(scores, DTensor) else scores
        return nn.functional.cross_entropy(scores, batch["labels"])

    report = compare(parallelize=lambda model: parallelize_module(model, mesh, plan), loss=summed, split="none")
    assert report.placements(mesh, kind="outputs") == {"first": (Shard(1),), "last": (Partial(),)}


@pytest.mark.world(2)
def test_what_fsdp_has_cut_is_cut_by_rows(process_group: Any) -> None:
    report = compare(parallelize=lambda model: fully_shard(model))
    assert set(report.placements().values()) == {(Shard(0),)}


@pytest.mark.world(2)
def test_parts_in_another_order_have_no_placement(process_group: Any) -> None:
    class Backwards(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.rest = nn.ModuleList([model.first, model.last])
            self.first = nn.Parameter(model.first.weight.detach().chunk(2)[1 - dist.get_rank()].clone())
            model.first.weight = None

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            whole = torch.cat(Gather.apply(self.first, 0, dist.group.WORLD).chunk(2)[::-1])
            first, last = self.rest
            output: torch.Tensor = last(torch.tanh(nn.functional.linear(rows, whole, first.bias)))
            return output

    report = compare(
        parallelize=Backwards, rename=lambda name: {"first": "first.weight"}.get(name, name), split="none"
    )
    assert report.placements()["first.weight"] == (None,)


@pytest.mark.world(2)
def test_a_parameter_that_claims_to_be_whole_and_is_a_part_is_a_finding(process_group: Any) -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))

    class Cut(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            weight, bias = (each.to_local() for each in (self.weight, self.bias))
            output: torch.Tensor = Gather.apply(nn.functional.linear(rows, weight, bias), -1, dist.group.WORLD)
            return output

    def cut(model: Any, placement: Any) -> Any:
        for name, each in [*model.first.named_parameters()]:
            part = each.detach().chunk(2)[dist.get_rank()].clone()
            setattr(model.first, name, nn.Parameter(DTensor.from_local(part, mesh, [placement], run_check=False)))
        model.first.__class__ = Cut
        return model

    sgd = {"optimizer": lambda params: torch.optim.SGD(params, 0.1, foreach=False), "split": "none"}
    with pytest.raises(
        Parted,
        match=r"^parity: initialization of `first\.weight` claims Replicate\(\) over tp, and is not the same on "
        r"ranks 0 and 1 \(before the first step",
    ) as caught:
        compare(parallelize=lambda model: cut(model, Replicate()), **sgd)
    assert caught.value.report.findings[0].pattern == "wrong-annotation"
    assert caught.value.report.placements()["first.weight"] == (Shard(0),)


class Local(nn.Linear):
    """A layer whose weights are DTensors, and which computes with local ones."""

    gradients: Any = None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        weights: Any = self
        weight, bias = (each.to_local(grad_placements=self.gradients) for each in (weights.weight, weights.bias))
        return nn.functional.linear(rows, weight, bias)


@pytest.mark.world(2)
@pytest.mark.parametrize("gradients", [[Replicate()], None, [Partial("avg")], [Partial()]], ids=str)
def test_a_gradient_that_each_rank_has_is_no_term_of_a_sum(process_group: Any, gradients: Any) -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))

    def local(model: Any) -> Any:
        for name, each in [*model.first.named_parameters()]:
            setattr(model.first, name, nn.Parameter(distribute_tensor(each.detach(), mesh, [Replicate()])))
        model.first.__class__, model.first.gradients = Local, gradients
        return model

    call = {
        "parallelize": local,
        "optimizer": lambda params: torch.optim.SGD(params, 0.1, foreach=False),
        "split": "none",
        "steps": 1,
    }
    if gradients != [Partial()]:
        assert compare(**call).passed
        return
    with pytest.raises(
        Parted,
        match=r"^parity: gradient of `first\.bias` claims Partial\('sum'\) over tp, and is summed already on "
        r"ranks 0 and 1: it is 2 times the plain model's",
    ) as caught:
        compare(**call)
    assert caught.value.report.findings[0].pattern == "wrong-annotation"
