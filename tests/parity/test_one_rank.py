"""With reference="one rank" the user's own code in a world of one stands in the place of a plain model."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Parted, Report, Unusable, parity
from everyrank.parity.setup.alone import lone_world
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

pytestmark = pytest.mark.world(2)


class Sum(torch.autograd.Function):
    """The sum over ranks; its gradient is the same on each."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor) -> torch.Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


class Cut(nn.Module):
    """A layer that knows no whole: each rank has a part of the hidden features, however many ranks there are."""

    def __init__(self) -> None:
        super().__init__()
        part = 8 // dist.get_world_size()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, part), nn.Linear(part, 4, bias=False)
        self.head = nn.Linear(4, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.up(self.norm(rows)))
        output: torch.Tensor = self.head(rows + Sum.apply(self.down(hidden)))
        return output


def load(model: Any, whole: dict[str, torch.Tensor]) -> None:
    """Take this rank's part of a state dict of one rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.no_grad():
        for name, each in model.named_parameters():
            cut = {"up.weight": 0, "up.bias": 0, "down.weight": 1}.get(name)
            each.copy_(whole[name] if cut is None else whole[name].chunk(size, cut)[rank])


def batch(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {"rows": torch.randn(8, 4, generator=generator), "labels": torch.arange(8) % 3}


def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["rows"]), batch["labels"])


def step(model: Any, optimizer: Any, batch: dict[str, torch.Tensor], lost: str = "") -> torch.Tensor:
    """Train on the whole batch; what lies before the cut has a part of its gradient on each rank."""
    found = loss(model, batch)
    found.backward()
    for name in sorted({"norm.weight", "norm.bias"} - {lost}):
        dist.all_reduce(model.get_parameter(name).grad)
    optimizer.step()
    optimizer.zero_grad()
    return found.detach()


def compare(**changed: Any) -> Report:
    arguments = {"model": Cut, "parallelize": lambda model: model, "batch": batch, "loss": loss, "steps": 2}
    return parity(**{**arguments, "reference": "one rank", **changed})


def test_code_without_a_plain_model_is_compared_with_itself_on_one_rank(process_group: Any) -> None:
    report = compare(step=step, load=load)
    assert report.passed
    assert report.not_compared == ("forward down",)  # each rank has its part of the sum there


def test_a_rogue_of_it_is_found(process_group: Any) -> None:
    with pytest.raises(Parted, match=r"gradient of `norm\.bias` is not reduced over ranks"):
        compare(step=lambda *arguments: step(*arguments, lost="norm.bias"), load=load)


def test_wrappers_are_built_in_the_lone_world_too(process_group: Any) -> None:
    def parallelize(model: nn.Module) -> Any:
        return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))

    def whole() -> nn.Module:
        return nn.ModuleDict({"a": nn.Linear(4, 6), "b": nn.Linear(6, 3)})

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = whole()

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.parts["b"](torch.tanh(self.parts["a"](rows)))
            return output

    assert compare(model=Net, parallelize=parallelize).passed


def test_a_model_of_another_size_on_one_rank_needs_load(process_group: Any) -> None:
    with pytest.raises(Unusable, match=r"model\(\) makes up.weight of another size in a world of one: pass load="):
        compare(step=step)


def test_another_reference_is_refused(process_group: Any) -> None:
    with pytest.raises(Unusable, match='reference= is "two": pass "plain" or "one rank"'):
        compare(reference="two")


def test_a_lone_world_leaves_the_ranks_as_they_were(process_group: Any) -> None:
    before = dist.get_rank(), dist.get_world_size(), set(dist.distributed_c10d._world.pg_names)
    with lone_world():
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        dist.new_group([0])
        init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    assert (dist.get_rank(), dist.get_world_size(), set(dist.distributed_c10d._world.pg_names)) == before
    total, group = torch.ones(1), dist.new_group([0, 1])
    dist.all_reduce(total, group=group)
    dist.destroy_process_group(group)
    assert total == 2


@functools.cache
def is_distributed() -> bool:
    """Ask once, as many libraries do."""
    return dist.get_world_size() > 1


def test_what_code_has_once_asked_of_the_world_stays_true(process_group: Any) -> None:
    class Mean(nn.Module):
        """A layer whose gradients are the mean over all ranks, if there are others."""

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)
            for each in self.head.parameters():
                each.register_hook(self._over_ranks)

        def _over_ranks(self, gradient: torch.Tensor) -> torch.Tensor:
            gradient = gradient.clone()
            if is_distributed():
                dist.all_reduce(gradient)
            return gradient / dist.get_world_size()

        def forward(self, rows: torch.Tensor) -> Any:
            return self.head(rows)

    is_distributed.cache_clear()
    assert compare(model=Mean, split="rows").passed
    assert is_distributed()


def test_a_model_that_fails_on_one_rank_is_one_sentence(process_group: Any) -> None:
    def model() -> nn.Module:
        return nn.Linear(4, 3) if dist.get_world_size() > 1 else nn.Linear(4, {}["none"])

    with pytest.raises(
        Unusable, match=r"^model\(\) fails in a world of one: KeyError: 'none', at \S*test_one_rank\.py:"
    ):
        compare(model=model)


def test_code_that_ends_its_process_on_one_rank_is_one_sentence(process_group: Any) -> None:
    def model() -> nn.Module:
        if dist.get_world_size() == 1:
            os._exit(3)
        return nn.Linear(4, 3)

    with pytest.raises(Unusable, match=r"^model\(\) fails in a world of one: its process has ended"):
        compare(model=model)


@pytest.mark.parametrize(("end", "text"), [(sys.exit, "SystemExit: enough"), (pytest.skip, "Skipped: enough")])
def test_code_that_ends_its_test_on_one_rank_does_not_go_on_as_a_rank(
    end: Callable[[str], Any], text: str, process_group: Any
) -> None:
    def model() -> nn.Module:
        if dist.get_world_size() == 1:
            end("enough")
        return nn.Linear(4, 3)

    with pytest.raises(Unusable, match=rf"^model\(\) fails in a world of one: {text}, at "):
        compare(model=model)


def test_a_loss_that_fails_in_a_world_of_one_is_named(process_group: Any) -> None:
    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        other = [*range(dist.get_world_size())][1]
        out: torch.Tensor = model(batch["rows"]).mean() + other
        return out

    with pytest.raises(Unusable) as caught:
        compare(model=lambda: nn.Linear(4, 3), load=None, loss=loss)
    assert re.fullmatch(
        r"your own code does not train in a world of one, with which ranks are compared: loss= raises "
        r"IndexError: list index out of range, at tests/parity/test_one_rank\.py:\d+",
        str(caught.value),
    )
