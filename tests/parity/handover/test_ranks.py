"""The other side is parallel: each rank has a part of it, or each rank must have all."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Unlike, handover
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.parity.handover.models import Trainer, tokens


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(torch.relu(self.up(rows)))
        return found


def _inputs() -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


class Cut(nn.Module):
    """The net cut by hand: each rank has some of the hidden features."""

    def __init__(self) -> None:
        super().__init__()
        size = 8 // dist.get_world_size()
        self.up, self.down = nn.Linear(6, size), nn.Linear(size, 6, bias=False)
        self.bias = nn.Parameter(torch.zeros(6))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        part = self.down(torch.relu(self.up(rows)))
        dist.all_reduce(part)
        found: torch.Tensor = part + self.bias
        return found


def _cut(state: dict[str, Any], rank: int) -> dict[str, Any]:
    size = dist.get_world_size()
    return {
        "up.weight": state["up.weight"].chunk(size)[rank],
        "up.bias": state["up.bias"].chunk(size)[rank],
        "down.weight": state["down.weight"].chunk(size, dim=1)[rank],
        "bias": state["down.bias"],
    }


@pytest.mark.world(2)
def test_parts_by_hand_are_the_model(process_group: Any) -> None:
    report = handover(model=Net, other=Cut, convert=lambda state: _cut(state, dist.get_rank()), inputs=_inputs())
    assert (report.traced, report.elements) == (110, 110)


@pytest.mark.world(2)
def test_a_part_that_each_rank_has_is_lost_to_the_other(process_group: Any) -> None:
    with pytest.raises(Unlike) as caught:
        handover(model=Net, other=Cut, convert=lambda state: _cut(state, 0), inputs=_inputs())
    assert re.match(r"handover: `up\.weight`\[4, 0\] is lost: .* \(so 24 of its 48 elements\)", str(caught.value))


@pytest.mark.world(2)
def test_an_element_that_differs_on_one_rank_is_found_on_both(process_group: Any) -> None:
    def convert(state: dict[str, Any]) -> dict[str, Any]:
        if dist.get_rank() == 1:
            state["down.bias"] = state["down.bias"].roll(1)
        return _cut(state, dist.get_rank())

    with pytest.raises(Unlike, match=r"^handover: the outputs part in 4 of 4 rows"):
        handover(model=Net, other=Cut, convert=convert, inputs=_inputs())


def _tensor_parallel() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(Net(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def _copied(model: nn.Module, other: nn.Module) -> None:
    """Copy each rank's part, as torch lays it out."""
    from torch.distributed.tensor import distribute_tensor

    whole = dict(model.named_parameters())
    for name, each in other.named_parameters():
        part: Any = each.detach()
        part.copy_(distribute_tensor(whole[name].detach().to(part.dtype), part.device_mesh, part.placements))


@pytest.mark.world(2)
def test_a_tensor_parallel_engine_is_the_model(process_group: Any) -> None:
    assert handover(model=Net, other=_tensor_parallel, transfer=_copied, inputs=_inputs()).passed


@pytest.mark.world(2)
def test_a_trainer_that_is_sharded_is_handed_over_from_its_parts(process_group: Any) -> None:
    def transfer(model: nn.Module, other: nn.Module) -> None:
        sharded: Any = fully_shard(model)
        other.load_state_dict({name: each.full_tensor() for name, each in sharded.state_dict().items()})

    assert handover(model=Trainer, other=Trainer, transfer=transfer, inputs=tokens()).passed
