"""Which element of the model is in which of the other's weights: weights are digits of their numbers, handed over.

An element's number has digits of base 64, and each digit is handed over alone: small whole numbers are exact in each
dtype that a converter may go through. Two passes before show by which factor and summand it changes them.
"""

from __future__ import annotations

import copy
import itertools
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import torch
from everyrank.parity.handed.given import Pair, held, moved, narrowest, wide
from everyrank.parity.values.tree import module_in
from everyrank.suites.compare.patterns.texts import index_text
from torch import nn

_BASE = 64

#: What stands for the number of an element that is none of the model's, or that is made of several.
NOTHING, MIXED = -1, -2

#: Dtypes through which values may go without a word.
_NARROW = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Sources:
    """The tensors of the model, whose elements are numbered through."""

    shapes: dict[str, torch.Size]
    trained: frozenset[str]

    @cached_property
    def starts(self) -> list[int]:
        return [*itertools.accumulate((each.numel() for each in self.shapes.values()), initial=0)]

    @cached_property
    def _names(self) -> list[str]:
        return [*self.shapes]

    @cached_property
    def _spans(self) -> dict[str, slice]:
        return dict(zip(self.shapes, itertools.starmap(slice, itertools.pairwise(self.starts)), strict=True))

    @property
    def total(self) -> int:
        return self.starts[-1]

    def name(self, number: int) -> str:
        """Return the tensor that has an element."""
        return self._names[bisect_right(self.starts, number) - 1]

    def text(self, number: int) -> str:
        """Return the tensor and the index of an element, as words."""
        if number < 0:
            return "nothing of the model" if number == NOTHING else "what is made of several"
        name = self.name(number)
        return f"`{name}`{index_text(number - self._spans[name].start, self.shapes[name])}"

    def span(self, name: str) -> slice:
        """Return the numbers of a tensor's elements."""
        return self._spans[name]


@dataclass(frozen=True)
class Traced:
    """A tensor of the other module on this rank: of which elements of the model it is made."""

    name: str
    numbers: torch.Tensor
    """Of each element the number of the model's, or NOTHING or MIXED."""
    factor: torch.Tensor
    summand: torch.Tensor

    def values(self, flat: torch.Tensor) -> torch.Tensor:
        """Return what its values should be, of all values of the model; NaN where that is not known."""
        known = self.numbers >= 0
        found = flat[self.numbers.clamp(min=0)] * self.factor + self.summand
        return torch.where(known, found, torch.nan)


@dataclass(frozen=True)
class Handed:
    """The model and the other with values that are all different, handed over as the user does it."""

    model: nn.Module
    """A copy, in fp64: handing over may change the model itself, as by sharding it."""
    other: nn.Module
    flat: torch.Tensor
    """The model's values, in the order of its elements' numbers."""
    built: dict[str, torch.dtype]
    """The dtypes of the other's tensors as it is built."""


def sources_of(pair: Pair) -> Sources:
    """Return the tensors of the model that are traced."""
    model = pair.model()
    trained = {name for name, _ in model.named_parameters()}
    return Sources({name: each.shape for name, each in held(model)}, frozenset(trained))


def trace(pair: Pair, sources: Sources) -> list[Traced]:
    """Hand numbered weights over, and return of what each tensor of the other is made."""
    __tracebackhide__ = True
    numbers = torch.arange(sources.total)
    first, second = (_pass(pair, sources, torch.full((sources.total,), value)) for value in (1.0, 2.0))
    digits = []
    for power in range(_digits(sources.total)):
        digits.append(_pass(pair, sources, 1.0 + (numbers // _BASE**power) % _BASE))
    found = []
    for name, at_first in first.items():
        factor = second[name] - at_first
        summand = at_first - factor
        is_known = factor != 0
        divisor = torch.where(is_known, factor, 1.0)
        number = torch.zeros(at_first.shape, dtype=torch.int64)
        is_mixed = torch.zeros(at_first.shape, dtype=torch.bool)
        for power, values in enumerate(digits):
            digit = (values[name] - summand) / divisor - 1
            whole = digit.round()
            is_mixed |= ~((digit - whole).abs() < 0.3) | (whole < 0) | (whole >= _BASE)
            number += whole.nan_to_num(0.0).clamp(0, _BASE - 1).to(torch.int64) * _BASE**power
        number[is_mixed | (number >= sources.total)] = MIXED
        number[~is_known] = NOTHING
        found.append(Traced(name, number, factor, summand))
    return found


def _digits(total: int) -> int:
    return next(count for count in itertools.count(1) if _BASE**count >= total)


@torch.no_grad()
def _pass(pair: Pair, sources: Sources, flat: torch.Tensor) -> dict[str, torch.Tensor]:
    """Hand values over in fp64; return those of each tensor of the other, on the CPU."""
    __tracebackhide__ = True
    model, other = module_in(pair.model(), torch.float64), pair.other()
    for name, values in held(model):
        values.copy_(flat[sources.span(name)].view(values.shape))
    for _, values in held(other):
        values.fill_(-1)  # What was not written must not look like a digit.
    return {name: values.double().cpu().clone() for name, values in held(pair.handed(model, other))}


def hand_over(pair: Pair) -> Handed:
    """Hand over values that are all different, in the dtypes in which the modules are built."""
    __tracebackhide__ = True
    other = pair.other()
    model = moved(pair.model(), narrowest(other))
    flat = torch.cat([torch.zeros(0).double(), *(each.double().cpu().reshape(-1) for _, each in held(model))])
    built = {name: each.dtype for name, each in held(other)}
    return Handed(wide(copy.deepcopy(model)), pair.handed(model, other), flat, built)


@dataclass(frozen=True)
class Rounded:
    """Values of the other that have lost bits on their way."""

    name: str
    first: int
    dtype: torch.dtype
    count: int


def checked(traced: list[Traced], handed: Handed) -> tuple[list[Traced], list[Rounded]]:
    """Check by values that tensors are made as traced; return them, and those that have lost bits."""
    found, rounded, values = [], [], dict(held(handed.other))
    for each in traced:
        mine = values[each.name].double().cpu()
        built = handed.built.get(each.name, torch.float64)
        expected = each.values(handed.flat)
        near = 4 * torch.finfo(values[each.name].dtype).eps
        is_plain = (each.factor == 1) & (each.summand == 0)
        is_off = torch.where(is_plain, mine != expected, (mine - expected).abs() > near * expected.abs())
        is_off &= each.numbers >= 0
        through = _through(mine, expected, is_off, built)
        if through is not None:
            first = int(is_off.reshape(-1).nonzero()[0])
            rounded.append(Rounded(each.name, first, through, int(is_off.sum())))
        elif bool(is_off.any()):
            each = Traced(each.name, each.numbers.masked_fill(is_off, MIXED), each.factor, each.summand)
        if through is None and torch.finfo(values[each.name].dtype).eps > torch.finfo(built).eps:
            rounded.append(Rounded(each.name, 0, values[each.name].dtype, mine.numel()))
        found.append(each)
    return found, rounded


def _through(
    mine: torch.Tensor, expected: torch.Tensor, is_off: torch.Tensor, built: torch.dtype
) -> torch.dtype | None:
    """Return the narrow dtype through which values went, if they are what it makes of the right ones."""
    if not bool(is_off.any()):
        return None
    for dtype in _NARROW:
        if torch.finfo(dtype).eps > torch.finfo(built).eps:
            narrow = expected[is_off].to(dtype).double()
            if torch.allclose(narrow, mine[is_off], rtol=1e-6, atol=0.0):
                return dtype
    return None
