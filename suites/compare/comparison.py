"""Compare with the reference, step by step: find the first difference, and how large it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from everyrank.rank.context import notes
from everyrank.suites.compare.explain import FirstDeviation, Mistakes
from everyrank.suites.compare.patterns.evidence import Values as Values
from everyrank.suites.engine.subject import Bound
from everyrank.suites.errors import Deviation, Vacuous

#: From this number of ULPs on, it says no more than that the values differ.
MOST_ULPS = 1e6


@dataclass(frozen=True)
class Tolerance:
    """How far values may be off. No tolerance is wider than the exemplar needs."""

    relative: float = 0.0
    ulps: int = 0


EXACT = Tolerance()
#: For sums whose order differs.
CLOSE_FP64 = Tolerance(relative=1e-12)


@dataclass(frozen=True)
class Difference:
    """The largest difference in one parameter at one step."""

    step: int
    name: str
    ulps: float
    absolute: float
    relative: float

    def __str__(self) -> str:
        return f"step {self.step}, {self.name}: {self.off}"

    @property
    def off(self) -> str:
        """How large it is. Many ULPs say nothing that the relative error does not."""
        ulps = f", {self.ulps:g} ULPs" if self.ulps < MOST_ULPS else ""
        return f"off by {self.absolute:.3g}{ulps} ({self.relative:.1e} relative)"


@dataclass
class Comparison:
    """The comparison of one case. It collects the differences of all steps: the first must not hide the next."""

    tolerance: Tolerance = EXACT
    bound: Bound | None = None
    differences: list[Difference] = field(default_factory=list)
    largest: float = 0.0
    approximate: bool = False
    keeps_first: bool = False
    """Whether the values of the first step are kept, for another law."""
    ranks: int = 0
    """How many ranks train together, if that matters for what is compared."""
    mistakes: Mistakes | None = None
    """What the values would be after a step with a mistake of this rank, if that can be computed."""
    deviated: FirstDeviation | None = None
    """All values at the first step that deviates."""
    _first: tuple[int, Values, Values] | None = None
    _start: dict[str, torch.Tensor] = field(default_factory=dict)
    _before: dict[str, torch.Tensor] = field(default_factory=dict)
    _right: list[int] = field(default_factory=list)
    """The steps that were compared before the first that deviates."""
    _moved: float = 0.0
    _in_a_step: float = 0.0

    def start(self, reference: Values) -> None:
        """Note the reference's values at the start, to check later that it moves."""
        self._start = _copies(reference)
        self._before = dict(self._start)

    def step(self, number: int, values: Values, reference: Values) -> None:
        """Compare all parameters after this step."""
        if set(values) != set(reference):
            raise Deviation(f"step {number}: parameters {sorted(values)} instead of {sorted(reference)}")
        if self.keeps_first and self._first is None:
            self._first = number, _copies(values), _copies(reference)
        worst, so_far = None, len(self.differences)
        for name, expected in reference.items():
            difference = self._compare_parameter(number, name, values[name].detach(), expected.detach())
            worst = max(filter(None, (worst, difference)), key=_size, default=None)
            if self._vacuous and name in self._start and expected.numel():
                moved = (expected.detach() - self._start[name]).abs().max()
                self._moved = max(self._moved, float(moved))
            if self.bound is not None and name in self._start and expected.numel():
                moved_in_step = _difference(number, name, expected.detach(), self._before[name])
                self._in_a_step = max(self._in_a_step, moved_in_step.relative)
        if so_far == 0 and self.differences:
            self.deviated = self._all_at(number, values, reference)
        if not self.differences and number not in self._right:
            self._right.append(number)
        self._before.update(_copies(reference))
        note(number, worst, self.allowed)

    def _all_at(self, step: int, values: Values, reference: Values) -> FirstDeviation:
        names = tuple(difference.name for difference in self.differences)
        actual, expected, before = map(_on_the_host, (values, reference, self._before))
        relative = self.allowed.relative
        return FirstDeviation(step, actual, expected, before, names, relative, self.ranks, self.mistakes)

    @property
    def _vacuous(self) -> bool:
        """Whether the reference has not yet moved so far that an error of 1 % of it would exceed the tolerance."""
        return self._moved <= self.tolerance.relative * 100

    @property
    def allowed(self) -> Tolerance:
        """The tolerance up to which no deviation is counted; the subject's own bound is included."""
        bound = self.bound.relative if self.bound is not None else 0.0
        return Tolerance(max(self.tolerance.relative, bound), self.tolerance.ulps)

    def _compare_parameter(
        self, step: int, name: str, values: torch.Tensor, expected: torch.Tensor
    ) -> Difference | None:
        """Compare one parameter; return the difference, whether or not it is allowed."""
        if values.shape != expected.shape or values.dtype != expected.dtype:
            raise Deviation(
                f"step {step}, {name}: {tuple(values.shape)} of {values.dtype} instead of "
                f"{tuple(expected.shape)} of {expected.dtype}"
            )
        if torch.equal(values, expected) or _equal_with_nans(values, expected):
            return None
        difference = _difference(step, name, values, expected)
        self.largest = max(self.largest, difference.relative)
        if difference.relative <= self.tolerance.relative or difference.ulps <= self.tolerance.ulps:
            return difference
        if self.bound is not None and difference.relative <= self.bound.relative:
            self.approximate = True
            return difference
        self.differences.append(difference)
        return difference

    def repeat_first(self) -> None:
        """Compare the first step alone, by its kept values, and come to a verdict on it."""
        assert self._first is not None
        alone = Comparison(self.tolerance, self.bound)
        alone.start(self._start)
        alone.step(*self._first)
        alone.verdict()

    def raise_first(self, label: str = "") -> None:
        """Raise Deviation with the first difference, if there is one, without the number of its step."""
        if self.differences:
            assert self.deviated is not None
            first = self.differences[0]
            location = label + first.name
            explain = self.deviated.explainer(location)
            raise Deviation(f"{location}: {first.off}", off=first.relative, explain=explain)

    def verdict(self) -> None:
        """Raise Deviation with the first difference, or Vacuous if the reference did not move."""
        if self.differences:
            raise self._deviation()
        if self._start and self._vacuous:
            raise Vacuous("the reference did not move, so there is nothing that could differ")
        if self.approximate and self.bound is not None:
            if self._start and self._in_a_step <= self.bound.relative:
                raise Vacuous(f"no step moved the reference by more than the bound, {self.bound.relative:g}")
            notes()["approximate"] = True

    def _deviation(self) -> Deviation:
        assert self.deviated is not None
        first = self.differences[0]
        steps = sorted({difference.step for difference in self.differences})
        names = sorted({difference.name for difference in self.differences})
        right = [step for step in self._right if step not in steps]
        before = f"right in {_steps(right)}, " if right else ""
        text = f"{first}\n  {before}wrong in {_steps(steps)}: {', '.join(names)}"
        at_first = [name for name in names if name in self.deviated.names]
        if len(at_first) < len(names):
            text += f"\n  at first, in step {first.step}: {', '.join(at_first)} alone"
        off = max(difference.relative for difference in self.differences)
        return Deviation(text, off=off, explain=self.deviated.explainer(f"step {first.step}, {first.name}"))


def _steps(numbers: Sequence[int]) -> str:
    """Return numbers of steps in a few words: ``step 3``, ``steps 1, 2``, ``steps 1-10``."""
    if len(numbers) == 1:
        return f"step {numbers[0]}"
    first, last = numbers[0], numbers[-1]
    run = len(numbers) > 2 and last - first == len(numbers) - 1
    return f"steps {first}-{last}" if run else f"steps {', '.join(map(str, numbers))}"


def _copies(values: Values) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in values.items()}


def _on_the_host(values: Values) -> Values:
    return {name: value.detach().cpu().clone() for name, value in values.items()}


def note(step: int, difference: Difference | None, allowed: Tolerance) -> None:
    """Note for reports the largest error of each step, and of all comparisons of this rank in its test.

    The largest error is noted with the tolerance there; if all values agree, with the widest tolerance of all.
    """
    noted = notes()
    steps = noted.setdefault("steps", {})
    relative, ulps = steps.get(str(step), (0.0, 0.0))
    if difference is None:
        steps[str(step)] = (relative, ulps)
        exact = {"ulps": 0.0, "absolute": 0.0, "relative": 0.0, "step": step, "name": "", "allowed": vars(EXACT)}
        error = noted.setdefault("error", exact)
        if not error["relative"]:
            error["allowed"] = {name: max(most, error["allowed"][name]) for name, most in vars(allowed).items()}
        return
    steps[str(step)] = (max(relative, _finite(difference.relative)), max(ulps, _finite(difference.ulps)))
    if _size(difference) >= (noted.get("error", {}).get("relative", 0.0), 0.0):
        noted["error"] = {name: _finite(value) for name, value in vars(difference).items()}
        noted["error"]["allowed"] = dict(vars(allowed))


def _size(difference: Difference) -> tuple[float, float]:
    return difference.relative, difference.ulps


def _finite(value: Any) -> Any:
    """Replace infinity, which JSON does not have, by the largest float."""
    return min(value, sys.float_info.max) if isinstance(value, float) else value


def _difference(step: int, name: str, values: torch.Tensor, expected: torch.Tensor) -> Difference:
    wide = torch.complex128 if expected.is_complex() else torch.float64
    mine, other = values.to(wide), expected.to(wide)
    off, size = (mine - other).abs().nan_to_num_(nan=float("inf")), other.abs().nan_to_num_()
    largest = float(off.max())
    scale = max(float(size.max()), torch.finfo(torch.float64).tiny)
    if not (expected.is_floating_point() or expected.is_complex()):
        return Difference(step, name, largest, largest, largest / scale)
    limits = torch.finfo(expected.dtype)
    spacing = size.mul_(limits.eps).clamp_(min=limits.tiny)
    return Difference(step, name, round(float(off.div_(spacing).max()), 1), largest, largest / scale)


def _equal_with_nans(values: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether both have NaNs, at the same indices, and are equal elsewhere."""
    nans = values.isnan()
    if not nans.any() or not torch.equal(nans, expected.isnan()):
        return False
    return torch.equal(values.nan_to_num(), expected.nan_to_num())


def same(values: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """Raise a Deviation that names the tensor unless both are equal bit for bit."""
    comparison = Comparison()
    comparison.step(0, {name: values}, {name: expected})
    if comparison.differences:
        (difference,) = comparison.differences
        assert comparison.deviated is not None
        explain = comparison.deviated.explainer(name)
        raise Deviation(f"{name}: {difference.off}", off=difference.relative, explain=explain)


def check(holds: bool, text: str) -> None:
    """Raise a Deviation with this text unless the law's condition holds."""
    if not holds:
        raise Deviation(text)
