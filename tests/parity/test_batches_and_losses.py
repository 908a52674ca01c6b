"""What is said of a batch or a loss that cannot be compared, before ranks run, with the line in the user's code."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Parted, Unusable
from torch.distributed._functional_collectives import all_reduce

from tests.parity.small import Batch, Net, batch, compare, loss

pytestmark = pytest.mark.world(2)


def test_a_collective_in_the_loss_is_named_with_its_line(process_group: Any) -> None:
    def reduced(model: Any, batch: Batch) -> torch.Tensor:
        found = loss(model, batch)
        count = torch.ones(())
        dist.all_reduce(count)
        return found / count

    with pytest.raises(Unusable) as caught:
        compare(loss=reduced)
    line = rf"tests/parity/test_batches_and_losses\.py:{reduced.__code__.co_firstlineno + 3}: "
    assert re.match(f"loss= calls a collective, allreduce, at {line}", str(caught.value))
    assert "step=" in str(caught.value)


@pytest.mark.parametrize("kind", ["functional", "object", "barrier", "group"])
def test_each_kind_of_collective_in_the_loss_is_seen(kind: str, process_group: Any) -> None:
    group = dist.new_group([0, 1])

    def calls(model: Any, batch: Batch) -> torch.Tensor:
        found = loss(model, batch)
        if kind == "functional":
            found = all_reduce(found, "avg", group)
        if kind == "object":
            dist.all_gather_object([None, None], 3)
        if kind == "barrier":
            dist.barrier()
        if kind == "group":
            dist.broadcast(found.detach(), 0, group=group)
        return found

    with pytest.raises(Unusable, match="loss= calls a collective"):
        compare(loss=calls)
    dist.destroy_process_group(group)


def test_a_collective_in_the_plain_model_is_named_with_its_line(process_group: Any) -> None:
    class Reduces(Net):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            found = super().forward(rows)
            dist.all_reduce(found)
            return found

    with pytest.raises(Unusable) as caught:
        compare(model=Reduces)
    line = rf"tests/parity/test_batches_and_losses\.py:{Reduces.forward.__code__.co_firstlineno + 2}: "
    assert re.match(f"the plain model calls a collective, allreduce, at {line}", str(caught.value))
    assert 'pass reference="one rank"' in str(caught.value)


def test_a_group_that_the_loss_makes_is_named_with_its_line(process_group: Any) -> None:
    def grouped(model: Any, batch: Batch) -> torch.Tensor:
        dist.new_group([0, 1])
        return loss(model, batch)

    with pytest.raises(Unusable) as caught:
        compare(loss=grouped)
    line = rf"tests/parity/test_batches_and_losses\.py:{grouped.__code__.co_firstlineno + 1}"
    assert re.match(
        rf"loss= calls new_group, at {line}: .* Instead, make the group once, before parity or in parallelize\.$",
        str(caught.value),
    )


def test_a_collective_of_a_single_rank_waits_for_nobody(process_group: Any) -> None:
    groups = [dist.new_group([rank]) for rank in range(2)]
    alone = groups[dist.get_rank()]

    class Reduces(Net):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            found = super().forward(all_reduce(rows, "sum", alone))
            count = torch.ones(())
            dist.all_reduce(count, group=alone)
            return found * count

    assert compare(model=Reduces).passed
    dist.destroy_process_group(alone)


def test_a_loss_may_ask_for_the_world(process_group: Any) -> None:
    def asks(model: Any, batch: Batch) -> torch.Tensor:
        return loss(model, batch) * dist.get_world_size() / 2 + 0 * dist.get_rank()

    assert compare(loss=asks).passed


def test_an_error_in_the_loss_has_its_line(process_group: Any) -> None:
    def wrong(model: Any, batch: Batch) -> torch.Tensor:
        return loss(model, batch) + batch["weight"].mean()

    with pytest.raises(Unusable) as caught:
        compare(loss=wrong)
    line = rf"tests/parity/test_batches_and_losses\.py:{wrong.__code__.co_firstlineno + 1}$"
    assert re.search(f"KeyError: 'weight', at {line}", str(caught.value))


class Explodes(Net):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows).log()


def test_a_plain_model_whose_loss_is_nan_is_refused_before_ranks_run(process_group: Any) -> None:
    with pytest.raises(Unusable, match=r"the plain model's loss is nan in step 1, in one process"):
        compare(model=Explodes)


def test_a_plain_model_whose_loss_becomes_nan_is_named_with_its_step(process_group: Any) -> None:
    with pytest.raises(Unusable, match=r"the plain model's loss is nan in step 2"):
        compare(batch=lambda step: {**batch(step), "rows": batch(step)["rows"] / (1 - step)})


def test_a_batch_that_is_another_each_time_is_named(process_group: Any) -> None:
    batches = iter([batch(number) for number in range(100)])
    with pytest.raises(Unusable, match=re.escape("batch(0) returns another batch each time")):
        compare(batch=lambda step: next(batches))


def test_a_batch_that_is_another_on_each_rank_is_named(process_group: Any) -> None:
    with pytest.raises(Unusable, match=re.escape("batch(0) returns another batch on rank 1 than on rank 0")):
        compare(batch=lambda step: batch(step + dist.get_rank()))


def test_a_batch_of_random_numbers_is_seeded(process_group: Any) -> None:
    assert compare(batch=lambda step: {"rows": torch.randn(8, 4), "labels": torch.arange(8) % 3}).passed


def test_rows_that_cannot_be_cut_are_stated_whole_and_part(process_group: Any) -> None:
    with pytest.raises(Unusable) as caught:
        compare(batch=lambda step: batch(step, 10))
    assert str(caught.value).startswith(
        "the batch has 10 rows, of which a rank has 5, and 5 rows cannot be cut into 2 microbatches: return another"
    )


def test_ranks_and_microbatches_are_of_another_number_where_the_rows_allow_it(process_group: Any) -> None:
    def summed(model: Any) -> Any:
        for each in model.parameters():
            each.register_hook(lambda gradient: all_reduce(gradient, "sum", dist.group.WORLD))
        return model

    for rows, meaning in ((12, "the number of ranks"), (8, "the number of ranks, or of microbatches")):
        with pytest.raises(Parted, match=f"ranks 0 and 1: {meaning} \\(step 1"):
            compare(parallelize=summed, split="rows", batch=lambda step, rows=rows: batch(step, rows))
