"""Losses that gather rows over ranks: what is right is silent, and what cuts a gradient is named with its line."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn
from everyrank.parity import Parted, parity
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from tests.parity.parallel.collectives import GatherForParts
from tests.parity.parallel.rogues.pairs import GathersBackItsOwnSlice
from tests.parity.small import Batch, compare

pytestmark = [
    pytest.mark.world(2),
    pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered:UserWarning"),
]


class Sides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.normalize(self.left(rows), dim=-1), F.normalize(self.right(rows), dim=-1)


def with_gradient(x: torch.Tensor) -> torch.Tensor:
    gathered: torch.Tensor = GatherForParts.apply(x, 0, None)
    return gathered


def in_a_list(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    parts[dist.get_rank()] = x
    return torch.cat(parts)


def pairs(gather: Any) -> Any:
    """Return a loss that is written once: for the reference in a world of one, and for ranks."""

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        left, right = model(batch["rows"])
        labels = torch.arange(len(left)) + dist.get_rank() * len(left)
        scores = left @ gather(right).T, right @ gather(left).T
        return (F.cross_entropy(scores[0], labels) + F.cross_entropy(scores[1], labels)) / 2

    return loss


def correlation(reduce: Any) -> Any:
    """Return a loss of a statistic that is summed over ranks: each rank has the whole batch's."""

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        left, right = model(batch["rows"])
        return (reduce(left.T @ right / 8) - torch.eye(3, dtype=left.dtype)).square().sum()

    return loss


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return Summed.forward(ctx, gradients[0])


def in_place(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x


def run(loss: Any) -> Any:
    return compare(model=Sides, parallelize=DistributedDataParallel, loss=loss, microbatches=1, reference="one rank")


@pytest.mark.parametrize("loss", [pairs(with_gradient), correlation(Summed.apply)])
def test_what_gathers_with_a_gradient_is_silent(loss: Any, process_group: Any) -> None:
    report = run(loss)
    assert report.passed
    assert not report.remarks


@pytest.mark.parametrize(
    ("loss", "words", "name"),
    [
        (pairs(in_a_list), "the output of `module` differs by ", "all_gather"),
        (
            correlation(in_place),
            r"`right\.bias` is 1/2 of the plain model's on ranks 0 and 1: the number of ranks",
            "all_reduce",
        ),
    ],
)
def test_a_collective_that_cuts_a_gradient_is_named(loss: Any, words: str, name: str, process_group: Any) -> None:
    with pytest.raises(Parted) as caught:
        run(loss)
    first, *rest = str(caught.value).splitlines()
    assert re.match(
        rf"parity: gradient of {words}.*, since `{name}` at \S*test_pairs\.py:\d+ gives no gradient "
        "back to other ranks: it is right with one that does ",
        first,
    )
    assert "unequal numbers of tokens" not in "".join(rest)


def test_a_gather_that_gives_a_wrong_gradient_to_several_outputs_is_one_fault(process_group: Any) -> None:
    with pytest.raises(Parted) as caught:
        parity(**GathersBackItsOwnSlice().arguments())
    assert len(caught.value.report.findings) == 1
    assert "(step 1, fp64 and fp32); 1 other of its kind differs, too" in str(caught.value)


class Entropy(nn.Module):
    """How much of each feature there is, over all ranks' rows."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        mean = rows.softmax(-1).mean(0)
        if dist.get_world_size() > 1:
            torch.distributed.nn.all_reduce(mean)
            mean = mean / dist.get_world_size()
        return (mean * mean.log()).sum()


@pytest.mark.filterwarnings("ignore:.*all_reduce is deprecated:FutureWarning")
def test_a_sum_over_ranks_that_nothing_takes_is_named(process_group: Any) -> None:
    class Spread(Sides):
        def __init__(self) -> None:
            super().__init__()
            self.entropy = Entropy()

        def forward(self, rows: torch.Tensor) -> Any:
            return *super().forward(rows), self.entropy(self.left(rows))

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        left, right, entropy = model(batch["rows"])
        return (left - right).square().mean() + entropy

    with pytest.raises(Parted) as caught:
        compare(model=Spread, loss=loss, microbatches=1, reference="one rank")
    assert re.match(
        r"parity: output of `entropy` .*, since `torch\.distributed\.nn\.functional\.all_reduce` at "
        r"\S*test_pairs\.py:\d+ returns the sum over ranks, and nothing takes it: it is right with that sum \(step 1",
        str(caught.value),
    )


def test_a_gradient_that_is_cut_beside_another_fault_is_not_its_cause(process_group: Any) -> None:
    def loss(model: Any, batch: Batch) -> torch.Tensor:
        in_a_list(model(batch["rows"])[0])  # for a log
        found: torch.Tensor = pairs(with_gradient)(model, batch)
        return found

    def wrong(model: Any) -> Any:
        if dist.get_world_size() > 1:
            model.right.bias.register_hook(lambda gradient: 2 * gradient)
        return DistributedDataParallel(model, find_unused_parameters=True)

    with pytest.raises(Parted, match=r"^parity: gradient of `right\.bias` is 2 times") as caught:
        compare(model=Sides, parallelize=wrong, loss=loss, microbatches=1, reference="one rank")
    assert "gives no gradient back" not in str(caught.value)


def test_negatives_of_own_rows_alone_are_named_as_that(process_group: Any) -> None:
    def loss(model: Any, batch: Batch) -> torch.Tensor:
        left, right = model(batch["rows"])
        return F.cross_entropy(left @ right.T, torch.arange(len(left)))

    with pytest.raises(Parted) as caught:
        compare(model=Sides, parallelize=DistributedDataParallel, loss=loss, microbatches=1)
    assert re.match(
        r"parity: the loss is .* instead of .*: each rank's loss is that of its own rows alone \(", str(caught.value)
    )
    assert "a loss over pairs of rows, or a statistic of them: gather rows over ranks" in str(caught.value)
