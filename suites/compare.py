"""Comparing with the reference, step by step: what differs first, where, and by how much."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from everyrank.rank import notes
from everyrank.suites.errors import Deviation, Vacuous
from everyrank.suites.subject import Bound

Values = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Tolerance:
    """What the comparison allows. Nothing is wider than what the exemplar needs."""

    relative: float = 0.0
    ulps: int = 0


EXACT = Tolerance()
#: Where the order of a sum differs.
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
        off = f"off by {self.absolute:.3g}, {self.ulps:g} ULPs ({self.relative:.1e} relative)"
        return f"step {self.step}, {self.name}: {off}"


@dataclass
class Comparison:
    """One case's comparison; collects the differences of all steps, so that the first does not hide the next."""

    tolerance: Tolerance = EXACT
    bound: Bound | None = None
    differences: list[Difference] = field(default_factory=list)
    largest: float = 0.0
    approximate: bool = False
    _start: dict[str, torch.Tensor] = field(default_factory=dict)
    _before: dict[str, torch.Tensor] = field(default_factory=dict)
    _moved: float = 0.0
    _in_a_step: float = 0.0

    def start(self, reference: Values) -> None:
        """Note where the reference starts, to see that it moves."""
        self._start = {name: value.detach().clone() for name, value in reference.items()}
        self._before = dict(self._start)

    def step(self, number: int, ours: Values, reference: Values) -> None:
        """Compare all parameters after this step."""
        if set(ours) != set(reference):
            raise Deviation(f"step {number}: parameters {sorted(ours)} instead of {sorted(reference)}")
        worst: Difference | None = None
        for name, expected in reference.items():
            found = self._one(number, name, ours[name].detach(), expected.detach())
            worst = max((one for one in (worst, found) if one is not None), key=_size, default=None)
            if name in self._start and expected.numel():
                moved = (expected.detach() - self._start[name]).abs().max()
                self._moved = max(self._moved, float(moved))
            if self.bound is not None and name in self._before and expected.numel():
                one = _difference(number, name, expected.detach(), self._before[name])
                self._in_a_step = max(self._in_a_step, one.relative)
                self._before[name] = expected.detach().clone()
        note(number, worst, self.allowed)

    @property
    def allowed(self) -> Tolerance:
        """What is not counted as a deviation, the subject's own bound included."""
        bound = self.bound.relative if self.bound is not None else 0.0
        return Tolerance(max(self.tolerance.relative, bound), self.tolerance.ulps)

    def _one(self, step: int, name: str, ours: torch.Tensor, expected: torch.Tensor) -> Difference | None:
        """Compare one parameter; returns how they differ, whether or not that is allowed."""
        if ours.shape != expected.shape or ours.dtype != expected.dtype:
            raise Deviation(
                f"step {step}, {name}: {tuple(ours.shape)} of {ours.dtype} instead of "
                f"{tuple(expected.shape)} of {expected.dtype}"
            )
        if torch.equal(ours, expected) or (
            ours.numel()
            and torch.equal(ours.isnan(), expected.isnan())
            and torch.equal(ours.nan_to_num(), expected.nan_to_num())
        ):
            return None
        difference = _difference(step, name, ours, expected)
        self.largest = max(self.largest, difference.relative)
        if difference.relative <= self.tolerance.relative or difference.ulps <= self.tolerance.ulps:
            return difference
        if self.bound is not None and difference.relative <= self.bound.relative:
            self.approximate = True
            return difference
        self.differences.append(difference)
        return difference

    def verdict(self) -> None:
        """Raise with the first difference of all, or because the reference stood still."""
        if self.differences:
            first = self.differences[0]
            steps = sorted({one.step for one in self.differences})
            names = sorted({one.name for one in self.differences})
            text = f"{first}\n  differs at steps {steps} in {', '.join(names)}"
            raise Deviation(text, off=max(one.relative for one in self.differences))
        if self._start and self._moved <= max(self.tolerance.relative * 1000, 0.0):
            raise Vacuous("the reference did not move, so there is nothing that could differ")
        if self.approximate and self.bound is not None:
            if self._start and self._in_a_step <= self.bound.relative:
                raise Vacuous(f"no step moved the reference by more than the bound, {self.bound.relative:g}")
            notes()["approximate"] = True


def note(step: int, difference: Difference | None, allowed: Tolerance) -> None:
    """Note the largest error, and that of each step, for reports: of all that this rank compares in its test.

    With the largest error goes what was allowed there; where all agree, the most that was allowed anywhere.
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
    """JSON has no infinity."""
    return min(value, sys.float_info.max) if isinstance(value, float) else value


def _difference(step: int, name: str, ours: torch.Tensor, expected: torch.Tensor) -> Difference:
    wide = torch.complex128 if expected.is_complex() else torch.float64
    mine, other = ours.to(wide), expected.to(wide)
    off = (mine - other).abs().nan_to_num(nan=float("inf"))
    largest = float(off.max())
    scale = max(float(other.abs().nan_to_num().max()), torch.finfo(torch.float64).tiny)
    if not (expected.is_floating_point() or expected.is_complex()):
        return Difference(step, name, largest, largest, largest / scale)
    limits = torch.finfo(expected.dtype)
    spacing = (other.abs().nan_to_num() * limits.eps).clamp(min=limits.tiny)
    return Difference(step, name, round(float((off / spacing).max()), 1), largest, largest / scale)


def same(ours: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Bit for bit, or a Deviation that says what differs."""
    comparison = Comparison()
    comparison.step(0, {what: ours}, {what: expected})
    if comparison.differences:
        (difference,) = comparison.differences
        raise Deviation(str(difference).removeprefix("step 0, "), off=difference.relative)


def check(holds: bool, text: str) -> None:
    """A law's own condition."""
    if not holds:
        raise Deviation(text)
