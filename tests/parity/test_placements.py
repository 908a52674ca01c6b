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
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.parity.parallel.collectives import Gather
from tests.parity.small import compare


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
