"""``TestCase``: unittest's, with assertions that know tensors."""

from __future__ import annotations

import contextlib
import re
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from everyrank.seeds import seed_generators
from everyrank.testcase.equality import Strictness, difference

#: What torch's test cases seed with.
SEED = 1234

_Base: Any = unittest.TestCase
with contextlib.suppress(ImportError):
    # assertExpectedInline, for those who use it.
    from expecttest import TestCase as _Base


def set_rng_seed(seed: int | None = None) -> None:
    """Seed torch, Python and numpy: all ranks alike, as tests of this kind count on."""
    seed_generators(SEED if seed is None else seed)


@contextlib.contextmanager
def freeze_rng_state() -> Iterator[None]:
    """The generators go on afterwards from where they are now."""
    with torch.random.fork_rng():
        yield


@contextlib.contextmanager
def set_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class TestCase(_Base):  # type: ignore[misc]
    """The base of all test cases here; by itself it runs in one process."""

    maxDiff = None

    #: Floors of the tolerances that assertEqual takes from the dtypes.
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
        """Equal, or close enough where they are tensors, arrays or numbers, also inside of containers."""
        __tracebackhide__ = True
        how = Strictness(
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
        if told := difference(x, y, how):
            raise AssertionError(msg(told) if callable(msg) else f"{told}\n{msg}" if msg else told)

    def assertNotEqual(self, x: Any, y: Any, msg: Any = None, **tolerances: Any) -> None:
        __tracebackhide__ = True
        try:
            self.assertEqual(x, y, **tolerances)
        except AssertionError:
            return
        raise AssertionError(f"both are {x!r}" + (f"\n{msg}" if msg else ""))

    def assertEqualIgnoreType(self, *arguments: Any, **keywords: Any) -> None:
        """As assertEqual, whatever the dtypes."""
        __tracebackhide__ = True
        self.assertEqual(*arguments, exact_dtype=False, **keywords)

    def assertEqualBroadcasting(self, x: torch.Tensor, y: Any, *arguments: Any, **keywords: Any) -> None:
        """As assertEqual, with ``y`` in the shape of ``x``."""
        __tracebackhide__ = True
        self.assertEqual(x, torch.ones_like(x) * torch.as_tensor(y, dtype=x.dtype), *arguments, **keywords)

    def assertObjectIn(self, obj: Any, iterable: Iterable[Any]) -> None:
        """The very object is among them."""
        if not any(one is obj for one in iterable):
            raise AssertionError(f"{obj!r} is none of them")

    def assertNotWarn(self, callable: Callable[[], Any], msg: str = "") -> None:
        with _all_warnings() as caught:
            callable()
        if caught:
            raise AssertionError(f"warned: {caught[0].message}" + (f"\n{msg}" if msg else ""))

    @contextlib.contextmanager
    def assertWarnsOnceRegex(self, category: type[Warning], regex: str = "") -> Iterator[None]:
        """One warning at least is of this category, and its text begins so; also one that torch gives but once."""
        with _all_warnings() as caught:
            yield
        said = [str(one.message) for one in caught if one.category is category]
        if not any(re.match(regex, text) for text in said):
            raise AssertionError(f"no {category.__name__} that begins like {regex!r}; there were {said}")


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
