"""What optimizer= may take and return: names, a model, several optimizers, groups and schedulers."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Parted, Unusable
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.parity.parallel.rogues.variants import OfShards
from tests.parity.parallel.subjects.variants import Muon
from tests.parity.small import Batch, compare, loss, over_ranks, own_rows

pytestmark = pytest.mark.world(2)


def groups(named: Any, decay: float = 0.5) -> list[dict[str, Any]]:
    """Return two groups: no bias decays."""
    named = [*named]
    return [
        {"params": [each for name, each in named if not name.endswith("bias")], "weight_decay": decay},
        {"params": [each for name, each in named if name.endswith("bias")], "weight_decay": 0.0, "lr": 0.05},
    ]


def of_model(model: Any) -> torch.optim.Optimizer:
    assert isinstance(model.first, nn.Linear)  # also where a wrapper is around it
    return torch.optim.AdamW(groups(model.named_parameters()), lr=0.1)


def of_names(named_parameters: Any) -> torch.optim.Optimizer:
    assert {name for name, _ in named_parameters} <= {"first.weight", "first.bias", "last.weight", "last.bias"}
    return torch.optim.AdamW(groups(named_parameters), lr=0.1)


def of_annotated(net: nn.Module) -> torch.optim.Optimizer:
    return of_model(net)


def two(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return an optimizer of matrices and one of all else."""
    matrices = [each for each in model.parameters() if each.ndim == 2]
    return [
        torch.optim.SGD(matrices, lr=0.1, momentum=0.9, nesterov=True),
        torch.optim.AdamW([each for each in model.parameters() if each.ndim < 2], lr=0.1),
    ]


def scheduled(model: nn.Module) -> Any:
    """Return what Lightning's modules do."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=10)
    return {"optimizer": optimizer, "lr_scheduler": scheduler}


def two_scheduled(model: nn.Module) -> Any:
    optimizers = two(model)
    return optimizers, [torch.optim.lr_scheduler.StepLR(each, 1, gamma=0.5) for each in optimizers]


EVERY = [of_model, of_names, of_annotated, two, scheduled, two_scheduled]


def sharded(model: nn.Module) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return model


def cut(model: nn.Module) -> nn.Module:
    plan = {"first": ColwiseParallel(), "last": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (2,)), plan)


@pytest.mark.parametrize("optimizer", EVERY)
@pytest.mark.parametrize("parallelize", [DistributedDataParallel, sharded, cut])
def test_each_kind_is_silent_on_each_way_to_be_parallel(parallelize: Any, optimizer: Any, process_group: Any) -> None:
    report = compare(parallelize=parallelize, optimizer=optimizer, steps=3)
    assert report.passed
    assert not report.not_compared


def matrices_apart(muon: type[Muon]) -> Any:
    """Return what makes an optimizer of matrices by the model's names, and another one of all else."""

    def make(model: nn.Module) -> list[torch.optim.Optimizer]:
        named = dict(model.named_parameters())
        matrices = [each for name, each in named.items() if name.endswith("weight")]
        kind = muon if any(isinstance(each, DTensor) for each in matrices) else Muon
        return [kind(matrices), torch.optim.SGD([each for each in named.values() if each.ndim == 1], lr=0.1)]

    return make


def test_one_of_several_optimizers_may_look_at_whole_matrices(process_group: Any) -> None:
    assert compare(parallelize=sharded, optimizer=matrices_apart(Muon)).passed
    with pytest.raises(Parted, match=r"update of `last\.weight` is made of each rank's part of the gradient"):
        compare(parallelize=sharded, optimizer=matrices_apart(OfShards))


class Turns(nn.Module):
    """Two sides, of which one is trained in a step; the first one is looked at twice in its own."""

    def __init__(self) -> None:
        super().__init__()
        self.judge, self.maker = nn.Linear(4, 1), nn.Linear(4, 4)

    def forward(self, rows: torch.Tensor, step: int) -> torch.Tensor:
        if step % 2 == 0:
            return (self.judge(self.maker(rows).detach()) - self.judge(rows)).square().mean()
        fixed = {name: each.detach() for name, each in self.judge.named_parameters()}
        return torch.func.functional_call(self.judge, fixed, self.maker(rows)).square().mean()


def doubled(model: Any) -> Any:
    model.maker.bias.register_hook(lambda gradient: 2 * gradient)
    return DistributedDataParallel(model, find_unused_parameters=True)


def test_a_fault_of_a_side_that_takes_turns_is_named_in_its_own_step(process_group: Any) -> None:
    with pytest.raises(Parted, match=r"^parity: gradient of `maker\.bias` is 2 times .* \(step 2, fp64 and fp32\)"):
        compare(
            model=Turns,
            parallelize=doubled,
            batch=lambda step: {"rows": torch.randn(8, 4), "step": step},
            loss=lambda model, batch: model(**batch),
            optimizer=lambda model: [torch.optim.Adam(each.parameters()) for each in (model.judge, model.maker)],
        )


class Stage(nn.Module):
    """The first layer, or the last."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        setattr(self, *(("first", model.first) if dist.get_rank() == 0 else ("last", model.last)))


def piped(model: Any, optimizer: Any, batch: Batch) -> Any:
    """A pipeline of two stages, without microbatches; the first returns no loss."""
    if dist.get_rank() == 0:
        hidden = torch.tanh(model.first(batch["rows"]))
        dist.send(hidden.detach(), 1)
        dist.recv(gradient := torch.empty_like(hidden), 1)
        hidden.backward(gradient)
        found = None
    else:
        dist.recv(hidden := torch.empty(len(batch["rows"]), 6, dtype=batch["rows"].dtype), 0)
        found = nn.functional.cross_entropy(model.last(hidden.requires_grad_()), batch["labels"])
        found.backward()
        assert hidden.grad is not None
        dist.send(hidden.grad, 0)
    optimizer.step()
    optimizer.zero_grad()
    return found


def by_name(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups(model.named_parameters()), lr=0.1)


@pytest.mark.parametrize("optimizer", [by_name, of_names])
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_pipelines_stage_has_the_plain_names(optimizer: Any, chunks: int, process_group: Any) -> None:
    def parallelize(model: nn.Module) -> Any:
        return Stage(model) if chunks == 1 else [Stage(model), nn.Identity()]

    def step(made: Any, optimizer: Any, batch: Batch) -> Any:
        return piped(made if chunks == 1 else made[0], optimizer, batch)

    assert compare(parallelize=parallelize, optimizer=optimizer, step=step).passed


# -- faults are found ------------------------------------------------------------------------------------------------


def test_a_rank_whose_groups_are_others_is_found(process_group: Any) -> None:
    def parallelize(model: Any) -> Any:
        # The names have the wrapper's before them here, so that no name of the list is found.
        model = DistributedDataParallel(model)
        decayed = [each for name, each in model.named_parameters() if name in ("first.weight", "last.weight")]
        others = [each for name, each in model.named_parameters() if name not in ("first.weight", "last.weight")]
        assert not decayed
        return model, torch.optim.AdamW([{"params": others, "weight_decay": 0.0}], lr=0.1)

    def plain(named: Any) -> torch.optim.Optimizer:
        decayed = [each for name, each in named if name.endswith("weight")]
        others = [each for name, each in named if name.endswith("bias")]
        return torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}], 0.1
        )

    with pytest.raises(Parted, match=r"^parity: update of `last\.weight` .*; 1 other of its kind differs, too"):
        compare(parallelize=parallelize, optimizer=plain)


@pytest.mark.parametrize("forgotten", [0, 1])
def test_one_of_two_optimizers_that_does_not_step_is_found(forgotten: int, process_group: Any) -> None:
    def step(model: Any, optimizers: Any, batch: Batch) -> torch.Tensor:
        found = loss(model, own_rows(batch))
        found.backward()
        for number, optimizer in enumerate(optimizers):
            if number != forgotten:
                optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        return over_ranks(found)

    tensor = ("weight", "bias")[forgotten]
    with pytest.raises(Parted, match=rf"^parity: update of `last\.{tensor}` .*, as 1 other of its kind"):
        compare(optimizer=two, step=step)


def test_a_scheduler_that_a_step_forgets_is_found(process_group: Any) -> None:
    def step(model: Any, made: Any, batch: Batch, forgets: bool = False) -> torch.Tensor:
        found = loss(model, own_rows(batch))
        found.backward()
        made["optimizer"].step()
        made["optimizer"].zero_grad()
        if not forgets:
            made["lr_scheduler"].step()
        return over_ranks(found)

    assert compare(optimizer=scheduled, step=step).passed
    with pytest.raises(Parted, match=r"^parity: update of .* the learning rate "):
        compare(optimizer=scheduled, step=functools.partial(step, forgets=True), steps=3)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda parameters: [], "optimizer= returned no optimizer: return one, or a list"),
        (lambda parameters: None, "optimizer= returned NoneType: return an optimizer, or a list"),
        (lambda model: [torch.optim.SGD(model.parameters(), 0.1), "step"], "optimizer= returned str: return an"),
        (
            lambda parameters: torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD(parameters, 0.1)),
            "optimizer= returned no optimizer",
        ),
    ],
)
def test_what_is_no_optimizer_is_one_sentence(returned: Any, words: str, process_group: Any) -> None:
    with pytest.raises(Unusable, match=re.escape(words)):
        compare(optimizer=returned)


def test_a_scheduler_that_needs_a_number_is_one_sentence(process_group: Any) -> None:
    def plateau(parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, 0.1)
        return optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    with pytest.raises(Unusable, match="ReduceLROnPlateau needs a number in its step, of which parity knows none"):
        compare(optimizer=plateau)


# -- a GAN -----------------------------------------------------------------------------------------------------------


class Gan(nn.Module):
    """Both sides in one module. The judge's parameters have no part in the maker's loss."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        made = self.maker(rows)
        fixed = {name: each.detach() for name, each in self.judge.named_parameters()}
        judged = torch.func.functional_call(self.judge, fixed, made)
        apart = nn.functional.softplus(self.judge(made.detach())) + nn.functional.softplus(-self.judge(rows))
        return (apart + nn.functional.softplus(-judged)).mean()


def of_both(model: Any) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.Adam(model.maker.parameters(), lr=0.01, betas=(0.0, 0.9)),
        torch.optim.Adam(model.judge.parameters(), lr=0.04, betas=(0.0, 0.9)),
    ]


def test_the_two_optimizers_of_a_gan(process_group: Any) -> None:
    report = compare(model=Gan, loss=lambda model, batch: model(batch["rows"]), optimizer=of_both)
    assert report.passed
