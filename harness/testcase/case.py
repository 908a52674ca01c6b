"""``TestCase``: unittest's test case, with assertions for tensors."""

from __future__ import annotations

import contextlib
import re
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from everyrank.rank.seeds import seed_generators
from everyrank.testcase.equality import Strictness, difference

#: The seed of torch's test cases.
SEED = 1234

_Base: Any = unittest.TestCase
with contextlib.suppress(ImportError):
    # For tests that use assertExpectedInline.
    from expecttest import TestCase as _Base


def set_rng_seed(seed: int | None = None) -> None:
    """Seed torch, Python and numpy, equally on all ranks: tests of this kind rely on it."""
    seed_generators(SEED if seed is None else seed)


class TestCase(_Base):  # type: ignore[misc]
    """The base of all test cases here; its tests run in one process."""

    maxDiff = None

    #: The least tolerances of assertEqual, absolute and relative, if the dtypes imply smaller ones.
    precision: float = 0.0
    rel_tol: float = 0.0

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:
        super().__init__(methodName if methodName != "runTest" else method_name)

    def setUp(self) -> None:
        super().setUp()
        set_rng_seed()

    def assertEqual(
        self,
        x: Any,
        y: Any,
        msg: str | Callable[[str], str] | None = None,
        *,
        atol: float | None = None,
        rtol: float | None = None,
        equal_nan: bool = True,
        exact_dtype: bool = True,
        exact_device: bool = False,
        exact_layout: bool = False,
        exact_stride: bool = False,
        exact_is_coalesced: bool = False,
    ) -> None:
        """Fail unless both are equal; tensors, arrays and numbers, also in containers, may differ by a tolerance."""
        __tracebackhide__ = True
        strictness = Strictness(
            rtol,
            atol,
            self.rel_tol,
            self.precision,
            equal_nan,
            exact_dtype,
            exact_device,
            exact_layout,
            exact_stride,
            exact_is_coalesced,
        )
        if text := difference(x, y, strictness):
            raise AssertionError(msg(text) if callable(msg) else f"{text}\n{msg}" if msg else text)

    def assertNotEqual(self, x: Any, y: Any, msg: Any = None, **tolerances: Any) -> None:
        """Fail if assertEqual would pass."""
        __tracebackhide__ = True
        try:
            self.assertEqual(x, y, **tolerances)
        except AssertionError:
            return
        raise AssertionError(f"both are {x!r}" + (f"\n{msg}" if msg else ""))

    def assertEqualIgnoreType(self, *arguments: Any, **keywords: Any) -> None:
        """Like assertEqual, but ignore the dtypes."""
        __tracebackhide__ = True
        self.assertEqual(*arguments, exact_dtype=False, **keywords)

    def assertEqualBroadcasting(self, x: torch.Tensor, y: Any, *arguments: Any, **keywords: Any) -> None:
        """Like assertEqual, with ``y`` in the shape of ``x``."""
        __tracebackhide__ = True
        self.assertEqual(x, torch.ones_like(x) * torch.as_tensor(y, dtype=x.dtype), *arguments, **keywords)

    def assertObjectIn(self, obj: Any, iterable: Iterable[Any]) -> None:
        """Fail unless the object itself is among the others."""
        if not any(other is obj for other in iterable):
            raise AssertionError(f"{obj!r} is none of them")

    def assertNotWarn(self, callable: Callable[[], Any], msg: str = "") -> None:
        """Fail if the call warns."""
        with _all_warnings() as caught:
            callable()
        if caught:
            raise AssertionError(f"warned: {caught[0].message}" + (f"\n{msg}" if msg else ""))

    @contextlib.contextmanager
    def assertWarnsOnceRegex(self, category: type[Warning], regex: str = "") -> Iterator[None]:
        """Fail unless a warning of this category begins like this; also notice torch's warnings that appear once."""
        with _all_warnings() as caught:
            yield
        texts = [str(warning.message) for warning in caught if warning.category is category]
        if not any(re.match(regex, text) for text in texts):
            raise AssertionError(f"no {category.__name__} begins like {regex!r}; there were {texts}")


@contextlib.contextmanager
def _all_warnings() -> Iterator[list[warnings.WarningMessage]]:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield caught
    finally:
        torch.set_warn_always(before)
