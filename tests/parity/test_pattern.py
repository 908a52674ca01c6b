"""The closed list of patterns: each explains what it should, and nothing is named where nothing fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from everyrank.parity.judge.numbers import of_numbers
from everyrank.suites.compare.patterns.evidence import AllRanks
from everyrank.suites.compare.patterns.fit import PATTERNS, Fit, of_all_ranks
from everyrank.suites.compare.patterns.likeness import Held
from everyrank.suites.compare.patterns.pattern import Pattern

SHAPE = torch.Size((6, 4))
ALL = torch.arange(24)


def random(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


TRUTH = random(0)


def found(*values: torch.Tensor, wrong: Sequence[int] | None = None, **more: Any) -> Fit | None:
    """Return the pattern of a tensor that each rank holds whole."""
    held = {rank: Held(ALL, value.reshape(-1)) for rank, value in enumerate(values)}
    more = {"size": len(values), "microbatches": 2, **more}
    return of_all_ranks(AllRanks(TRUTH, held, range(len(values)) if wrong is None else wrong, **more))


def with_nan(value: torch.Tensor) -> torch.Tensor:
    value = value.clone()
    value[2, 1] = float("nan")
    return value


def wrong_from(row: int) -> torch.Tensor:
    return torch.cat([TRUTH[:row], random(5)[row:]])


def without_rows(*rows: int) -> torch.Tensor:
    value = TRUTH.clone()
    value[list(rows)] = 0
    return value


G1, G2 = random(1), random(2)
PIECES = [[G1, TRUTH - G1]]

CASES: dict[str, tuple[str, str, Callable[[], Fit | None]]] = {
    "twice on two ranks": (
        "sum-for-mean",
        "is 2 times the plain model's on ranks 0 and 1: the number of ranks, or of microbatches",
        lambda: found(2 * TRUTH, 2 * TRUTH),
    ),
    "a third on three": (
        "sum-for-mean",
        "is 1/3 of the plain model's on ranks 0, 1 and 2: the number of ranks",
        lambda: found(*[TRUTH / 3] * 3),
    ),
    "a third of microbatches": (
        "sum-for-mean",
        "is 3 times the plain model's on ranks 0 and 1: the number of microbatches",
        lambda: found(3 * TRUTH, 3 * TRUTH, microbatches=3),
    ),
    "half as much again on three": (
        "sum-for-mean",
        "is 1.5 times the plain model's on ranks 0, 1 and 2",
        lambda: found(*[TRUTH * 1.5] * 3),
    ),
    "each its own part": (
        "not-reduced",
        "is not reduced over ranks: each of ranks 0 and 1 has its own part",
        lambda: found(G1, TRUTH - G1),
    ),
    "each its own part of a mean": (
        "not-reduced",
        "is not reduced over ranks: each of ranks 0 and 1 has its own part",
        lambda: found(2 * G1, 2 * (TRUTH - G1)),
    ),
    "not over the tensor dimension": (
        "not-reduced",
        "is not reduced over tp: each of ranks 0 and 1 and ranks 2 and 3 has its own part",
        lambda: found(G1, TRUTH - G1, G1, TRUTH - G1, groups={"tp": [[0, 1], [2, 3]], "dp": [[0, 2], [1, 3]]}),
    ),
    "not over a dimension that has all ranks": (
        "not-reduced",
        "is not reduced over tp: each of ranks 0 and 1 has its own part",
        lambda: found(G1, TRUTH - G1, groups={"tp": [[0, 1]]}),
    ),
    "one microbatch alone": (
        "not-reduced",
        "has the gradient of part 2 of 2 of the batch alone, on ranks 0 and 1",
        lambda: found(TRUTH - G1, TRUTH - G1, pieces=lambda: PIECES),
    ),
    "the first microbatch again": (
        "reduced-twice",
        "is 2 * g1 + 1 * g2 on ranks 0 and 1, with g1 of the first part of the batch, which is reduced again with "
        "each that follows",
        lambda: found(G1 + TRUTH, G1 + TRUTH, pieces=lambda: PIECES),
    ),
    "parts of unequal weight count alike": (
        "",
        "is the mean over parts of the batch, each of which counts alike, on ranks 0 and 1",
        lambda: found(G1 + G2, G1 + G2, pieces=lambda: [[G1, G2]]),
    ),
    "one rank has another value": (
        "replicas-differ",
        "is right on rank 0 and wrong on rank 1",
        lambda: found(TRUTH, G2, wrong=[1]),
    ),
    "another tensor": (
        "other-parameter",
        "is blocks.0.weight on rank 1",
        lambda: found(TRUTH, G2, wrong=[1], others={"blocks.1.weight": G1, "blocks.0.weight": G2}),
    ),
    "the step before": ("stale", "is that of the step before on ranks 0 and 1", lambda: found(G2, G2, before=G2)),
    "the step before, and this one": (
        "not-cleared",
        "is this step's and that of the step before, which was not cleared, on ranks 0 and 1",
        lambda: found(TRUTH + G2, TRUTH + G2, before=G2),
    ),
    "a clipped step before, and this one": (
        "not-cleared",
        "is this step's and that of the step before, which was not cleared, on rank 1",
        lambda: found(TRUTH, TRUTH + 0.3 * G2, before=G2, wrong=[1]),
    ),
    "two rows of zeros": (
        "zero-rows",
        "is zero in 2 rows, the first is 1, of 6, and right in the others, on rank 0",
        lambda: found(without_rows(1, 4), TRUTH, wrong=[0]),
    ),
    "divided by a rank's own tokens": (
        "own-tokens",
        "is divided by a rank's own number of tokens: 4 times the plain model's on rank 0 and 1.33333 on rank 1",
        lambda: found(4 * TRUTH, 4 / 3 * TRUTH, tokens=[[5.0, 15.0]]),
    ),
    "divided by the first rank's tokens": (
        "own-tokens",
        "is divided by a rank's own number of tokens: 2.85714 times the plain model's on rank 0 and "
        "2.85714 on rank 1",
        lambda: found(20 / 7 * TRUTH, 20 / 7 * TRUTH, tokens=[[7.0, 13.0]]),
    ),
    "nothing": ("zero", "is zero on rank 1", lambda: found(TRUTH, TRUTH * 0, wrong=[1])),
    "one row further": (
        "shifted",
        "is right but 1 position further in dimension 0, on ranks 0 and 1",
        lambda: found(TRUTH.roll(-1, 0), TRUTH.roll(-1, 0)),
    ),
    "two columns back": (
        "shifted",
        "is right but 2 positions further in dimension 1, on rank 0",
        lambda: found(TRUTH.roll(2, 1), TRUTH, wrong=[0]),
    ),
    "wrong from a row on": (
        "from-index",
        "is right up to index 3 of dimension 0, and wrong from 4 on",
        lambda: found(wrong_from(4), wrong_from(4)),
    ),
    "not a number": (
        "nan",
        "is not finite on rank 0, first at [2, 1]",
        lambda: found(with_nan(TRUTH), TRUTH, wrong=[0]),
    ),
    "through bfloat16": (
        "rounded",
        "has gone through bf16 on ranks 0 and 1",
        lambda: found(TRUTH.bfloat16().double(), TRUTH.bfloat16().double()),
    ),
    "through float32": (
        "rounded",
        "has gone through fp32 on ranks 0 and 1",
        lambda: found(TRUTH.float().double(), TRUTH.float().double()),
    ),
    "a factor that counts nothing": (
        "",
        "is 1.37 times the plain model's on ranks 0 and 1",
        lambda: found(TRUTH * 1.37, TRUTH * 1.37),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pattern_is_named_where_it_explains_the_values(case: str) -> None:
    pattern, words, find = CASES[case]
    assert find() == Fit(pattern, words)


def test_each_pattern_of_values_has_a_case() -> None:
    of_values = {id for id, pattern in PATTERNS.items() if type(pattern).of_all_ranks is not Pattern.of_all_ranks}
    assert {pattern for pattern, _, _ in CASES.values()} - {""} == of_values


def test_nothing_is_named_where_nothing_fits() -> None:
    assert found(random(7), random(7), pieces=lambda: PIECES, before=G2, others={"other": G1}) is None


def test_a_pattern_that_explains_half_of_the_values_is_none() -> None:
    half = torch.cat([TRUTH[:3] * 2, random(8)[3:]])
    assert found(half, half) is None


def test_ranks_that_hold_other_elements_have_nothing_to_sum() -> None:
    rows = {0: Held(ALL[:12], random(3).reshape(-1)[:12]), 1: Held(ALL[12:], random(4).reshape(-1)[12:])}
    assert of_all_ranks(AllRanks(TRUTH, rows, [0, 1], 2)) is None


def test_as_many_parts_as_values_explain_any_values() -> None:
    held = {rank: Held(torch.tensor([0]), torch.tensor([7.0])) for rank in range(2)}
    pieces = [[torch.tensor([2.0]), torch.tensor([1.0])]]
    assert of_all_ranks(AllRanks(torch.tensor([3.0]), held, [0, 1], 2, 2, pieces=lambda: pieces)) is None


@pytest.mark.parametrize(("values", "pattern"), [([-1.7, 1.0, 0.7], None), ([4.0, 0.0, -4.0], "reduced-twice")])
def test_three_values_that_add_up_to_nothing_are_a_mixture_of_two_parts_by_whole_factors(
    values: list[float], pattern: str | None
) -> None:
    pieces = [[torch.tensor([1.0, 1.0, -2.0]), torch.tensor([2.0, -2.0, 0.0])]]
    held = {rank: Held(torch.arange(3), torch.tensor(values)) for rank in range(2)}
    fit = of_all_ranks(AllRanks(torch.tensor([3.0, -1.0, -2.0]), held, [0, 1], 2, 2, pieces=lambda: pieces))
    assert (fit and fit.id) == pattern


def test_any_number_is_a_multiple_of_any_other() -> None:
    held = {rank: Held(torch.tensor([0]), torch.tensor([3.0])) for rank in range(2)}
    assert of_all_ranks(AllRanks(torch.tensor([1.5]), held, [0, 1], 2)) == Fit(
        "sum-for-mean", "is 2 times the plain model's on ranks 0 and 1: the number of ranks"
    )
    held = {rank: Held(torch.tensor([0]), torch.tensor([3.0])) for rank in range(2)}
    assert of_all_ranks(AllRanks(torch.tensor([1.0]), held, [0, 1], 2)) is None


@pytest.mark.parametrize(
    ("numbers", "own", "pattern"),
    [
        ([4.0, 4.0], [], "sum-for-mean"),
        ([1.0, 1.0], [], "sum-for-mean"),
        ([6.0, 6.0], [], "sum-for-mean"),
        ([1.2, 1.6], [1.2, 1.6], "not-reduced"),
        ([1.2, 1.6], [1.1, 1.6], ""),
        ([float("nan"), 2.0], [], "nan"),
        ([0.0, 0.0], [], "zero"),
        ([2.2, 2.2], [], ""),
    ],
)
def test_a_loss_or_a_norm_has_a_pattern(numbers: list[float], own: list[float], pattern: str) -> None:
    assert of_numbers(numbers, 2.0, 2, own).id == pattern


def test_parts_without_a_mean_explain_nothing() -> None:
    nothing = torch.full(SHAPE, float("nan"), dtype=torch.float64)
    assert found(random(7), random(7), pieces=lambda: [[G1, nothing]]) is None


def test_a_table_that_is_right_but_for_rounding_has_no_rows_of_zeros() -> None:
    near = TRUTH + 1e-8
    assert found(near, near) is None
