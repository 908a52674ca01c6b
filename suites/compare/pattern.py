"""What a tensor that deviates looks like: a closed list of patterns, each a pure function of values.

Nothing is said where nothing fits. A pattern fits if its values are those that were found, up to the tolerance of the
comparison; and a deviation that is not far larger than this tolerance has no pattern, since rounding looks like many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from everyrank.model.counts import count
from everyrank.suites.compare.likeness import all_of, index_text, moved, multiple, spoilt, wrong_from

Values = Mapping[str, torch.Tensor]

#: Every pattern, and what it says of values.
PATTERNS: Mapping[str, str] = {
    "nan": "not finite, where the reference is",
    "zero": "zero, where the reference is not",
    "stale": "as they were a step before, or made from gradients of the step before",
    "sum-for-mean": "the reference or its step, times the number of ranks or divided by it",
    "factor": "the reference or its step, times another small number or divided by it",
    "not-reduced": "made from one rank's part alone",
    "reduced-twice": "made from gradients of which a part was reduced twice",
    "clipped": "made from gradients that were not clipped, or not as one",
    "twice": "made by an optimizer that has stepped twice",
    "anew": "made by an optimizer that has forgotten its state",
    "decay": "made with weight decay where there is none, or without",
    "none-as-zero": "made from a gradient of zeros where there is none",
    "rounded": "the reference, but for a dtype on the way",
    "other-parameter": "the reference of another tensor",
    "shifted": "the reference's rows, moved",
    "from-index": "right up to a row, and wrong from there on",
}

#: By how much a deviation must exceed the tolerance.
_CLEARLY = 100.0
#: How many units in the last place one may be off, even if the comparison is exact.
_ROUNDING = 16.0
#: The factors that are looked for, besides the number of ranks; and the parts of one.
_FACTORS = (2, 3, 4, 5, 6, 7, 8)
#: The dtypes to which values may have been rounded, the widest first.
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Pattern:
    """A pattern that fits, and what it says of this tensor."""

    id: str
    text: str

    def __post_init__(self) -> None:
        if self.id not in PATTERNS:
            raise ValueError(f"no pattern is called {self.id!r}: there are {', '.join(PATTERNS)}")


@dataclass(frozen=True)
class Deviating:
    """A tensor as it was found, what it should be, and what else it might be."""

    found: torch.Tensor
    expected: torch.Tensor
    before: torch.Tensor | None = None
    """The reference a step before, if there was one."""
    others: Values = field(default_factory=dict)
    """The reference's other tensors, by name."""
    ranks: int = 0
    """How many ranks train together; 0 if that is not known."""
    relative: float = 0.0
    """The tolerance of the comparison."""

    @property
    def slack(self) -> float:
        """How far values may be apart that are the same, relative to the largest."""
        return max(self.relative, _ROUNDING * torch.finfo(self.expected.dtype).eps)

    @property
    def near(self) -> float:
        """How far values may be apart that are the same."""
        return self.slack * max(float(self.found.abs().max()), float(self.expected.abs().max()))

    def is_like(self, values: torch.Tensor) -> bool:
        """Return whether these values are those that were found."""
        return close(self.found, values, self.slack)


def pattern(seen: Deviating) -> Pattern | None:
    """Return the first pattern of the list that fits, or None."""
    if not _has_numbers(seen):
        return None
    if (spoilt := _nan(seen)) is not None:
        return spoilt
    if not is_clear(seen):
        return None
    return next((found for rule in _RULES if (found := rule(seen)) is not None), None)


def common_factor(tensors: Sequence[Deviating]) -> Pattern | None:
    """Return the factor that all these tensors have in common, if they have one.

    A tensor alone needs two elements for a factor, since any number is a multiple of another. Several tensors are
    evidence for each other.
    """
    if not all(_has_numbers(seen) and is_clear(seen) for seen in tensors):
        return None
    found = {_factor(seen, fewest=1) for seen in tensors}
    elements = sum(seen.expected.numel() for seen in tensors)
    return found.pop() if len(found) == 1 and elements > 1 else None


def close(found: torch.Tensor, other: torch.Tensor, relative: float) -> bool:
    """Return whether two tensors are the same, up to a part of their largest element."""
    if found.shape != other.shape or not found.numel():
        return found.shape == other.shape
    found, other = found.double(), other.double()
    scale = max(float(found.abs().max()), float(other.abs().max()))
    return float((found - other).abs().max()) <= relative * scale


def is_clear(seen: Deviating) -> bool:
    """Return whether the deviation is so large that it cannot be rounding."""
    return not close(seen.found, seen.expected, _CLEARLY * seen.slack)


def _has_numbers(seen: Deviating) -> bool:
    alike = seen.found.shape == seen.expected.shape and seen.found.dtype == seen.expected.dtype
    return alike and seen.expected.is_floating_point() and not seen.expected.is_sparse and seen.expected.numel() > 0


# --- the rules, in their order ---------------------------------------------------------------------------------


def _nan(seen: Deviating) -> Pattern | None:
    bad = spoilt(all_of(seen.found), seen.expected)
    if not len(bad):
        return None
    first = int(bad[0])
    kind = "nan" if bool(seen.found.flatten()[first].isnan()) else "infinite"
    if len(bad) == seen.expected.numel():
        return Pattern("nan", f"{kind} everywhere")
    index = index_text(first, seen.expected.shape)
    return Pattern("nan", f"{kind} in {len(bad)} of {seen.expected.numel()} elements, first at {index}")


def _zero(seen: Deviating) -> Pattern | None:
    return Pattern("zero", "zero, and the reference is not") if not seen.found.any() else None


def _stale(seen: Deviating) -> Pattern | None:
    if seen.before is None or not seen.is_like(seen.before):
        return None
    return Pattern("stale", "as it was a step before")


def _factor(seen: Deviating, fewest: int = 2) -> Pattern | None:
    if (number := _multiple(seen, torch.zeros_like(seen.expected), fewest)) is not None:
        return _as_factor(number, "the reference", seen.ranks)
    if seen.before is not None and (number := _multiple(seen, seen.before, fewest)) is not None:
        return _as_factor(number, "the reference's step", seen.ranks)
    return None


def _multiple(seen: Deviating, origin: torch.Tensor, fewest: int) -> float | None:
    """Return by what number the way from this origin to the reference was multiplied."""
    start, found, expected = origin.double(), seen.found.double(), seen.expected.double()
    way, gone = expected - start, found - start
    if int((way.abs() > _CLEARLY * seen.slack * float(way.abs().max())).sum()) < fewest:
        return None
    ratio = multiple(gone, way)
    numbers = {-1.0, *map(float, (*_FACTORS, *[seen.ranks] * (seen.ranks > 1)))}
    nearest = min(numbers | {1 / number for number in numbers}, key=lambda number: abs(number - ratio))
    return nearest if seen.is_like(start + nearest * way) else None


def _as_factor(number: float, target: str, ranks: int) -> Pattern:
    if number == -1.0:
        return Pattern("factor", f"{target} with the other sign")
    parts = round(1 / number)
    text = f"{number:g} times {target}" if number > 1 else f"1/{parts} of {target}"
    if ranks > 1 and number == ranks:
        return Pattern("sum-for-mean", f"{text}, as a sum over the {ranks} ranks")
    if ranks > 1 and number == 1 / ranks:
        return Pattern("sum-for-mean", f"{text}, as if divided by the {ranks} ranks once too often")
    return Pattern("factor", text)


def _rounded(seen: Deviating) -> Pattern | None:
    for dtype in _NARROW:
        rounded = seen.expected.to(dtype).to(seen.expected.dtype)
        if not torch.equal(rounded, seen.expected) and torch.equal(rounded, seen.found):
            return Pattern("rounded", f"the reference, rounded to {str(dtype).removeprefix('torch.')}")
    return None


def _other_parameter(seen: Deviating) -> Pattern | None:
    like = [
        name
        for name, other in seen.others.items()
        if other.shape == seen.expected.shape and other.unique().numel() > 1 and seen.is_like(other)
    ]
    return Pattern("other-parameter", f"the reference of {like[0]}") if len(like) == 1 else None


def _shifted(seen: Deviating) -> Pattern | None:
    if _rows(seen.expected) < 3 or seen.expected.unique().numel() < 3:
        return None
    if (found := moved([(all_of(seen.found), seen.near)], seen.expected)) is None:
        return None
    dimension, by = found
    if dimension:
        return Pattern("shifted", f"the reference's values, moved by {-by} along dimension {dimension}")
    rows = count(abs(by), "row")
    return Pattern("shifted", f"the reference's rows, moved {'down' if by < 0 else 'up'} by {rows}")


def _from_index(seen: Deviating) -> Pattern | None:
    rows, held = _rows(seen.expected), all_of(seen.found)
    bad = (held.values.double() - seen.expected.reshape(-1).double()).abs() > seen.near
    dimension, first = wrong_from([(held.ids, bad)], seen.expected.shape) or (0, 0)
    # Two rows on each side at the least: of three rows, one may be wrong for many reasons.
    if dimension or not 2 <= first <= rows - 2:
        return None
    return Pattern("from-index", f"right up to row {first - 1} of {rows}, and wrong from row {first} on")


_RULES: Sequence[Callable[[Deviating], Pattern | None]] = (
    _zero,
    _stale,
    _factor,
    _rounded,
    _other_parameter,
    _shifted,
    _from_index,
)


def _rows(tensor: torch.Tensor) -> int:
    return tensor.shape[0] if tensor.dim() else 0
