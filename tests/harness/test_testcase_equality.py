"""``assertEqual`` of everyrank.testcase accepts the same values as torch's ``assertEqual``."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from everyrank.testcase import TestCase
from torch.testing._internal.common_utils import TestCase as TorchTestCase

ONE = torch.tensor([1.0, 2.0])
SPARSE = torch.sparse_coo_tensor([[0, 0]], [1.0, 1.0], (2,))

#: name -> both values, and keywords
PAIRS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "equal tensors": (ONE, ONE.clone(), {}),
    "different tensors": (ONE, ONE + 1, {}),
    "close tensors": (ONE, ONE + 1e-6, {}),
    "tensors that are not close": (ONE, ONE + 1e-4, {}),
    "close doubles": (ONE.double(), ONE.double() + 1e-8, {}),
    "doubles that are as close as floats": (ONE.double(), ONE.double() + 1e-6, {}),
    "within a tolerance": (ONE, ONE + 1e-2, {"atol": 0.1, "rtol": 0}),
    "beyond a tolerance": (ONE, ONE + 1e-2, {"atol": 1e-3, "rtol": 0}),
    "a tolerance of nothing": (ONE, ONE + 1e-6, {"atol": 0, "rtol": 0}),
    "shapes": (ONE, ONE[:1], {}),
    "dtypes": (ONE, ONE.double(), {}),
    "dtypes, not exact": (ONE, ONE.double(), {"exact_dtype": False}),
    "integers": (torch.tensor([1, 2]), torch.tensor([1, 3]), {}),
    "nan": (torch.tensor(float("nan")), torch.tensor(float("nan")), {}),
    "nan, not equal": (torch.tensor(float("nan")), torch.tensor(float("nan")), {"equal_nan": False}),
    "nan as a number": (float("nan"), float("nan"), {}),
    "strides": (torch.ones(2, 3), torch.ones(3, 2).t(), {}),
    "strides, exact": (torch.ones(2, 3), torch.ones(3, 2).t(), {"exact_stride": True}),
    "layouts": (torch.ones(2), torch.ones(2).to_sparse(), {}),
    "layouts, exact": (torch.ones(2), torch.ones(2).to_sparse(), {"exact_layout": True}),
    "sparse": (torch.ones(2).to_sparse(), torch.ones(2).to_sparse(), {}),
    "sparse, not coalesced": (SPARSE, SPARSE.coalesce(), {}),
    "sparse, not coalesced, exact": (SPARSE, SPARSE.clone(), {"exact_is_coalesced": True}),
    "sparse, other values": (SPARSE, SPARSE.coalesce() * 2, {}),
    "a tensor and a list": (ONE, [1, 2], {}),
    "a list and a tensor": ([1, 2], ONE, {}),
    "a tensor and another list": (ONE, [1, 3], {}),
    "a tensor and a number": (torch.tensor(3), 3, {}),
    "a tensor of one element and a number": (torch.tensor([3.0]), 3, {}),
    "a tensor and another number": (torch.tensor(3), 4, {}),
    "arrays": (np.array([1.0]), np.array([1.0]), {}),
    "different arrays": (np.array([1.0]), np.array([2.0]), {}),
    "an array and a tensor": (np.array([1.0]), torch.tensor([1.0], dtype=torch.float64), {}),
    "numbers": (1, 1, {}),
    "different numbers": (1, 2, {}),
    "an integer and a float": (1, 1.0, {}),
    "close floats": (1.0, 1.000001, {}),
    "floats that are not close": (1.0, 1.001, {}),
    "complex": (1 + 1j, 1 + 1j, {}),
    "different complex": (1 + 1j, 1 - 1j, {}),
    "a bool and a number": (True, 1, {}),
    "a bool and zero": (True, 0, {}),
    "texts": ("a", "a", {}),
    "different texts": ("a", "b", {}),
    "a text and a number": ("1", 1, {}),
    "None": (None, None, {}),
    "None and zero": (None, 0, {}),
    "None and a tensor": (None, ONE, {}),
    "a list and a tuple": ([1, 2], (1, 2), {}),
    "lists of different lengths": ([1, 2], [1], {}),
    "lists of tensors": ([ONE, ONE], [ONE, ONE + 1e-7], {}),
    "lists with another tensor": ([ONE, ONE], [ONE, ONE + 1], {}),
    "nested lists": ([[1, [2]]], [[1, [3]]], {}),
    "dictionaries": ({"a": ONE}, OrderedDict(a=ONE.clone()), {}),
    "dictionaries with other keys": ({"a": 1}, {"b": 1}, {}),
    "dictionaries with other values": ({"a": 1}, {"a": 2}, {}),
    "sets": ({1, 2}, {2, 1}, {}),
    "different sets": ({1}, {2}, {}),
    "dtypes themselves": (torch.float32, torch.float32, {}),
    "different dtypes themselves": (torch.float32, torch.float64, {}),
    "devices": (torch.device("cpu"), torch.device("cpu"), {}),
    "shapes themselves": (torch.Size([2]), torch.Size([2]), {}),
    "a shape and a tuple": (torch.Size([2]), (2,), {}),
    "types": (int, int, {}),
    "different types": (int, float, {}),
    "objects": (object, object(), {}),
    "bytes": (b"a", b"a", {}),
    "ranges": (range(3), [0, 1, 2], {}),
}


def holds(case: Any, x: Any, y: Any, keywords: dict[str, Any], assertion: str = "assertEqual") -> bool:
    try:
        getattr(case, assertion)(x, y, **keywords)
    except AssertionError:
        return False
    return True


def test_the_same_values_are_equal_as_with_torch() -> None:
    ours, theirs = (
        {name: holds(case(), *pair) for name, pair in PAIRS.items()} for case in (TestCase, TorchTestCase)
    )
    assert ours == theirs
    assert set(ours.values()) == {True, False}


def test_equal_values_are_not_unequal() -> None:
    equal, unequal = (
        [name for name, pair in PAIRS.items() if holds(TestCase(), *pair, assertion=assertion)]
        for assertion in ("assertEqual", "assertNotEqual")
    )
    assert sorted([*equal, *unequal]) == sorted(PAIRS)


@pytest.mark.parametrize("precision", [1e-5, 1.0])
def test_the_precision_of_a_case_is_a_floor(precision: float) -> None:
    ours, theirs = TestCase(), TorchTestCase()
    ours.precision = theirs.precision = precision
    assert holds(ours, ONE, ONE + 0.1, {}) == holds(theirs, ONE, ONE + 0.1, {}) == (precision == 1.0)


def test_one_tolerance_without_the_other_is_refused() -> None:
    with pytest.raises(ValueError, match="both rtol and atol"):
        TestCase().assertEqual(ONE, ONE, atol=1.0)


def test_a_difference_in_containers_is_reported_with_its_path() -> None:
    with pytest.raises(AssertionError, match=r"at \['a'\]\[1\]: 2 != 3\nso be it"):
        TestCase().assertEqual({"a": [1, 2]}, {"a": [1, 3]}, "so be it")


def test_warnings_are_seen() -> None:
    case = TestCase()

    def warns() -> None:
        import warnings

        warnings.warn("take care", UserWarning, stacklevel=1)

    with case.assertWarnsOnceRegex(UserWarning, "take"):
        warns()
    with pytest.raises(AssertionError, match="warned: take care"):
        case.assertNotWarn(warns)
    with pytest.raises(AssertionError, match="no DeprecationWarning"), case.assertWarnsOnceRegex(DeprecationWarning):
        warns()
