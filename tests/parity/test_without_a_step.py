"""The plain loop takes what users reduce, divide and cut by hand: no step= is needed for it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Parted, Unusable
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.parity.small import Batch, Net, batch, compare, loss
from tests.parity.test_plain_code import averaged, clipped

pytestmark = pytest.mark.world(2)


def summed(model: nn.Module) -> None:
    for each in model.parameters():
        assert each.grad is not None
        dist.all_reduce(each.grad)


def as_it_is(model: nn.Module) -> nn.Module:
    return model


# -- finish= ---------------------------------------------------------------------------------------------------------


def test_gradients_are_averaged_by_hand(process_group: Any) -> None:
    report = compare(parallelize=as_it_is, finish=averaged)
    assert report.passed
    assert report.split == "rows over all ranks"


def test_gradients_are_summed_by_hand(process_group: Any) -> None:
    assert compare(parallelize=as_it_is, finish=summed, gradients="sum").passed


def test_a_sum_that_is_taken_for_a_mean_is_found(process_group: Any) -> None:
    with pytest.raises(
        Parted,
        match=r"^parity: gradient of `last\.bias` is 2 times the plain model's(.|\n)*add them up, pass gradients=",
    ):
        compare(parallelize=as_it_is, finish=summed)


def test_a_parameter_that_finish_forgets_is_found(process_group: Any) -> None:
    def finish(model: Any) -> None:
        averaged(model.first)

    with pytest.raises(Parted, match=r"^parity: gradient of `last\.bias` is not reduced over ranks"):
        compare(parallelize=as_it_is, finish=finish)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_finish_clips_by_hand(epsilon: float, process_group: Any) -> None:
    def finish(model: nn.Module) -> torch.Tensor:
        averaged(model)
        return clipped(model, 0.2, epsilon)

    report = compare(parallelize=as_it_is, finish=finish, clip=0.2)
    assert report.passed
    assert "norm" in {line.kind for line in report.lines}


def test_a_clip_before_the_reduce_is_found(process_group: Any) -> None:
    def finish(model: nn.Module) -> torch.Tensor:
        norm = clipped(model, 0.2)
        averaged(model)
        return norm

    with pytest.raises(Parted, match=r"^parity: "):
        compare(parallelize=as_it_is, finish=finish, clip=0.2)


def test_torchs_clip_in_finish_is_seen(process_group: Any) -> None:
    def finish(model: nn.Module) -> torch.Tensor:
        averaged(model)
        return nn.utils.clip_grad_norm_(model.parameters(), 0.2)

    assert compare(parallelize=as_it_is, finish=finish).passed


def test_a_clip_that_nobody_has_named_is_asked_for(process_group: Any) -> None:
    def finish(model: nn.Module) -> None:
        averaged(model)
        clipped(model, 0.01)

    with pytest.raises(Parted, match=r"as every gradient: finish divides by another number, or it clips by hand to"):
        compare(parallelize=as_it_is, finish=finish)


# -- a loss that is a sum and a number -------------------------------------------------------------------------------


def tokens(step: int, of_last_rank: int = 8) -> Batch:
    """Return rows of which few count: of those of rank 1, ``of_last_rank``."""
    rows = batch(step, 16)
    counts = torch.arange(16) % 3 > 0
    counts[8 + of_last_rank :] = False
    return {**rows, "labels": rows["labels"].where(counts, -100)}


def of_tokens(model: Any, batch: Batch) -> Any:
    total = nn.functional.cross_entropy(model(batch["rows"]), batch["labels"], reduction="sum")
    return total, (batch["labels"] >= 0).sum()


@pytest.mark.parametrize("of_last_rank", [0, 3, 8])
@pytest.mark.parametrize(
    "manner",
    [
        {"parallelize": DistributedDataParallel},
        {"parallelize": as_it_is, "finish": summed},
        {"parallelize": as_it_is, "finish": averaged, "gradients": "mean"},
    ],
)
def test_unequal_numbers_of_tokens(manner: Any, of_last_rank: int, process_group: Any) -> None:
    assert compare(batch=lambda step: tokens(step, of_last_rank), loss=of_tokens, **manner).passed


def unequal(batch: Batch) -> Batch:
    """Return twelve rows for rank 0, and four for rank 1."""
    chosen = slice(12) if dist.get_rank() == 0 else slice(12, 16)
    return {name: each[chosen] for name, each in batch.items()}


def nothing_for_the_last(batch: Batch) -> Batch:
    return batch if dist.get_rank() == 0 else {name: each[:0] for name, each in batch.items()}


@pytest.mark.parametrize("split", [unequal, nothing_for_the_last])
@pytest.mark.parametrize(
    "manner", [{"parallelize": DistributedDataParallel}, {"parallelize": as_it_is, "finish": summed}]
)
def test_unequal_numbers_of_rows(manner: Any, split: Any, process_group: Any) -> None:
    assert compare(batch=tokens, loss=of_tokens, split=split, **manner).passed


def test_ranks_that_average_a_sum_learn_of_gradients(process_group: Any) -> None:
    with pytest.raises(
        Parted,
        match=r"gradient of `last\.bias` is 1/2 of the plain model's(.|\n)*average them, pass gradients=\"mean\"",
    ):
        compare(parallelize=as_it_is, finish=averaged, batch=tokens, loss=of_tokens)


def test_a_mean_over_unequal_numbers_learns_of_a_sum(process_group: Any) -> None:
    with pytest.raises(Parted, match=r"as with a mean over unequal numbers of tokens: return the sum and the number"):
        compare(batch=tokens)


# -- sequences -------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """Each token is judged by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(5, 4), nn.Linear(4, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(torch.tanh(self.tokens(tokens)))
        return output


def sequences(step: int) -> Batch:
    made = torch.randint(5, (4, 7), generator=torch.Generator().manual_seed(step))
    return {"tokens": made[:, :-1], "labels": made[:, 1:]}


def next_tokens(model: Any, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten())


def test_a_batch_is_cut_along_its_sequences(process_group: Any) -> None:
    report = compare(model=Recurrent, batch=sequences, loss=next_tokens, split="sequence")
    assert report.passed
    assert report.split == "tokens over all ranks"


# -- what cannot be done is one sentence -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"finish": averaged, "step": lambda *_: None}, "finish= is for the plain loop, and step= stands for it"),
        ({"gradients": "sum", "step": lambda *_: None}, "gradients= is for the plain loop, and step= stands for it"),
        ({"gradients": "all"}, 'gradients= is \'all\': pass "mean" or "sum"'),
        ({"split": "columns"}, 'split= is "columns": pass "rows", "sequence", "none", or a function'),
        (
            {"split": "sequence", "batch": lambda step: {"rows": torch.ones(4)}},
            "the batch has no tensor with two dim",
        ),
        ({"split": "sequence", "batch": lambda step: torch.ones(4, 3)}, "the batch has sequences of 3 tokens, which"),
        (
            {"loss": lambda model, batch: (1, 2, 3)},
            "returned a tuple of 3: return a tensor with one number, or a sum",
        ),
        ({"parallelize": as_it_is}, "or pass finish= or step=, which reduces them"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(changed: Any, words: str, process_group: Any) -> None:
    with pytest.raises(Unusable, match=re.escape(words)):
        compare(**changed)


def test_a_loss_without_a_number_stays_what_it_was(process_group: Any) -> None:
    assert compare(model=Net, loss=loss).passed
