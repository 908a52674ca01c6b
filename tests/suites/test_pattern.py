"""The patterns of deviations, as a table: what each looks like, and where nothing is said."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from everyrank.suites.compare.patterns.evidence import OneRank
from everyrank.suites.compare.patterns.fit import PATTERNS, Fit, common_factor, of_one_rank

BEFORE = torch.tensor([[1.0, 2.0], [-1.5, 0.25], [0.7, -3.0], [0.1, 0.4]], dtype=torch.float64)
STEP = torch.tensor([[0.013, -0.2], [0.31, 0.027], [-0.4, 0.11], [0.09, -0.17]], dtype=torch.float64)
AFTER = BEFORE + STEP
OTHER = AFTER.flip(1) + 0.3


def deviating(found: torch.Tensor, **changes: object) -> OneRank:
    plain = OneRank(found, AFTER, before=BEFORE, others={"twin": OTHER}, ranks=3, relative=1e-12)
    return replace(plain, **changes)  # type: ignore[arg-type]


def changed(row: int, column: int, value: float) -> torch.Tensor:
    values = AFTER.clone()
    values[row, column] = value
    return values


def wrong_from(row: int) -> torch.Tensor:
    return torch.cat([AFTER[:row], AFTER[row:] + torch.linspace(0.2, 0.9, 4 - row)[:, None]])


SEEN = {
    "nan": (changed(1, 0, nan), "nan in 1 of 8 elements, first at [1, 0]"),
    "infinite": (changed(2, 1, -inf), "infinite in 1 of 8 elements, first at [2, 1]"),
    "all nan": (AFTER * nan, "nan everywhere"),
    "zero": (AFTER * 0, "zero, and the reference is not"),
    "stale": (BEFORE, "as it was a step before"),
    "sum": (BEFORE + 3 * STEP, "3 times the reference's step, as a sum over the 3 ranks"),
    "divided twice": (BEFORE + STEP / 3, "1/3 of the reference's step, as if divided by the 3 ranks once too often"),
    "sum of gradients": (3 * AFTER, "3 times the reference, as a sum over the 3 ranks"),
    "twice": (BEFORE + 2 * STEP, "2 times the reference's step"),
    "half": (AFTER / 2, "1/2 of the reference"),
    "sign": (BEFORE - STEP, "the reference's step with the other sign"),
    "rounded": (AFTER.bfloat16().double(), "the reference, rounded to bfloat16"),
    "rounded once": (AFTER.float().double(), "the reference, rounded to float32"),
    "other": (OTHER, "the reference of twin"),
    "shifted": (AFTER.roll(1, 0), "the reference's rows, moved down by 1 row"),
    "shifted up": (AFTER.roll(-1, 0), "the reference's rows, moved up by 1 row"),
    "from a row": (wrong_from(2), "right up to row 1 of 4, and wrong from row 2 on"),
}


@pytest.mark.parametrize("name", SEEN)
def test_a_pattern_is_named_if_its_values_were_found(name: str) -> None:
    found, text = SEEN[name]
    seen = of_one_rank(deviating(found))
    assert seen is not None
    assert seen.text == text


def test_the_ids_are_those_of_the_list() -> None:
    ids = {name: seen.id for name, (found, _) in SEEN.items() if (seen := of_one_rank(deviating(found))) is not None}
    assert ids == {
        **dict.fromkeys(("nan", "infinite", "all nan"), "nan"),
        "zero": "zero",
        "stale": "stale",
        **dict.fromkeys(("sum", "divided twice", "sum of gradients"), "sum-for-mean"),
        **dict.fromkeys(("twice", "half", "sign"), "factor"),
        **dict.fromkeys(("rounded", "rounded once"), "rounded"),
        "other": "other-parameter",
        **dict.fromkeys(("shifted", "shifted up"), "shifted"),
        "from a row": "from-index",
    }
    assert set(ids.values()) <= set(PATTERNS)


def test_a_pattern_outside_the_list_is_refused() -> None:
    with pytest.raises(ValueError, match="no pattern is called 'guess'"):
        Fit("guess", "it looks odd")


NOTHING = {
    "noise": deviating(AFTER + torch.linspace(-0.3, 0.4, 8, dtype=torch.float64).reshape(4, 2) ** 3),
    "one wrong element": deviating(changed(3, 1, 9.0)),
    "a factor that is no small number": deviating(BEFORE + 2.3 * STEP),
    "nearly twice": deviating(BEFORE + 2.001 * STEP),
    "twice, but for a row": deviating(torch.cat([BEFORE[:3] + 2 * STEP[:3], AFTER[3:]])),
    "another shape": deviating(AFTER[:2]),
    "another dtype": deviating(AFTER.float()),
    "whole numbers": deviating(AFTER.long() * 2, expected=AFTER.long(), before=None, others={}),
    "complex numbers": deviating(AFTER.cfloat() * 2, expected=AFTER.cfloat(), before=None, others={}),
    "no elements": deviating(AFTER[:0], expected=AFTER[:0], before=None, others={}),
    "a number, of which any other is a multiple": deviating(
        AFTER[0, :1] * 2, expected=AFTER[0, :1], before=None, others={}
    ),
    "two parameters that are equal": deviating(OTHER, others={"twin": OTHER, "third": OTHER}),
    "a parameter of one value": deviating(AFTER * 0 + 7, others={"twin": AFTER * 0 + 7}),
    "two rows, of which one is wrong": deviating(wrong_from(2)[1:3], expected=AFTER[1:3], before=None, others={}),
    "rounding, if the comparison allows it": deviating(AFTER.float().double(), relative=1e-5),
    "a step of the size of the tolerance": deviating(AFTER + 1e-5 * STEP, before=AFTER - 1e-5 * STEP, relative=1e-6),
}


@pytest.mark.parametrize("name", NOTHING)
def test_values_that_fit_nothing_have_no_pattern(name: str) -> None:
    assert of_one_rank(NOTHING[name]) is None


def test_a_step_that_rounding_has_changed_is_still_a_multiple() -> None:
    before, after = BEFORE.float(), AFTER.float()
    found = before + 3 * (after - before) * (1 + 1e-6)
    seen = of_one_rank(OneRank(found, after, before=before, ranks=3, relative=1e-6))
    assert seen is not None
    assert seen.id == "sum-for-mean"


def test_tensors_of_one_element_have_a_factor_only_together() -> None:
    numbers = [
        OneRank(value + 3 * step, value + step, before=value, ranks=3)
        for value, step in zip(BEFORE[:, :1], STEP[:, :1], strict=True)
    ]
    assert of_one_rank(numbers[0]) is None
    common = common_factor(numbers)
    assert common is not None
    assert common.id == "sum-for-mean"


def test_tensors_with_different_factors_have_none_in_common() -> None:
    tensors = [deviating(BEFORE + number * STEP) for number in (2, 3)]
    assert common_factor(tensors) is None
