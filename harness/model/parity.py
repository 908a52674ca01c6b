"""What a call of parity has compared and found, from the ranks to the page."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from everyrank.model.result import ResultPart

#: The name under which a rank notes the calls of its test: a list of parts as plain data.
NOTE = "parity"

#: How much a record has at most: rows of a pass, steps of a row (the last), names of a list.
ROWS, STEPS, NAMES = 1000, 8, 40


class ParityFaultPart(ResultPart, frozen=True, omit_defaults=True):
    """A fault: the first tensor at which it shows."""

    #: initialization, forward, loss, activation-gradient, gradient, norm, update; of a script besides: buffer, clip
    #: (gradients, as it gets them), rate, state; empty if ranks do another thing than the reference
    kind: str
    tensor: str  # the name in the plain model; empty for the loss and the norm
    step: int  # from 1; 0 is the initialization
    text: str  # one sentence
    error: float
    limit: float
    pattern: str = ""  # the id of the pattern; empty if none explains it
    meaning: str = ""  # of the pattern
    ranks: list[int] = []
    dtypes: list[str] = []  # in which it shows
    same: list[str] = []  # other tensors of the kind to which the same has happened
    same_left_out: int = 0


class ParityRowPart(ResultPart, frozen=True, omit_defaults=True):
    """One tensor in one kind, over the steps of a pass: a list has a value for each step, from the first."""

    kind: str
    tensor: str
    errors: list[float | None] = []  # the largest of all ranks, by the largest value; None if not compared
    limits: list[float] = []  # the bound of each error; a single value if all steps have the same
    states: list[
        str
    ] = []  # empty if all are "ok"; first, same, also, follows, sum, not-compared, nothing (in this step)


class ParityPassPart(ResultPart, frozen=True, omit_defaults=True):
    """The training on all ranks in one dtype, up to the first step that deviates."""

    dtype: str
    rows: list[ParityRowPart]  # in the order of the plain model's run
    first: int = 1  # the number of the first step of the rows; a long run's first ones are left out
    steps: int = 0  # the number of the last step that was compared
    left_out: int = 0  # how many rows are left out; those that deviate are left out last


class ParityRegionPart(ResultPart, frozen=True):
    """A rectangle of a tensor that the same ranks hold."""

    ranks: list[int]  # empty: no rank holds it
    box: list[int]  # from, and the first after: of the dimension that is drawn down, then of the one across


class ParityMapPart(ResultPart, frozen=True, omit_defaults=True):
    """Which rank holds which part of a tensor, seen along two of its dimensions."""

    shape: list[int]
    drawn: list[int]  # the dimensions that are drawn, down and across; a vector has one
    regions: list[ParityRegionPart] = []  # empty if the parts are too many or too fine to draw
    also_cut: list[int] = []  # dimensions that are cut and not drawn
    partial: bool = False  # each rank has a term of a sum over ranks
    alike: bool = False  # what no rank holds is equal to what one holds: it was looked for by value


class ParityPlacementPart(ResultPart, frozen=True, omit_defaults=True):
    """Where tensors of a kind were seen to be over the axes of a call."""

    kind: str  # parameter or output
    seen: list[str]  # over each axis, as DTensor writes it; empty if it has no word, or it was not seen
    tensors: list[str]
    left_out: int = 0


class ParityPart(ResultPart, frozen=True, omit_defaults=True):
    """One call of parity."""

    compared: int  # the tensors that were compared
    tensors: int  # all that could have been
    dtypes: list[str]
    ranks: int
    steps: int
    split: str = ""  # how the batch is shared out among ranks
    faults: list[ParityFaultPart] = []  # the first one first
    passes: list[ParityPassPart] = []
    maps: list[ParityMapPart] = []
    mapped: dict[str, int] = {}  # the index of a tensor's map, by the name of the parameter or module
    not_compared: list[str] = []  # kind and name
    not_compared_left_out: int = 0
    remarks: list[str] = []
    axes: list[str] = []  # the names of groups over which placements were looked at
    placements: list[ParityPlacementPart] = []


def two_figures(value: float) -> float:
    """Return the value with two figures; infinity and nan, which JSON does not have, as the largest float."""
    return float(f"{value:.2g}") if abs(value) < sys.float_info.max / 2 else sys.float_info.max


#: Which states need a person, the most urgent first.
_URGENT = ("first", "also", "same", "follows", "not-compared")


def most_urgent(rows: Sequence[ParityRowPart], limit: int) -> list[ParityRowPart]:
    """Return as many rows, in their order: those that deviate before others, then the largest errors."""
    ranked = sorted(range(len(rows)), key=lambda index: _urgency(rows[index]))
    return [rows[index] for index in sorted(ranked[:limit])]


def _urgency(row: ParityRowPart) -> tuple[int, float]:
    worst = min((_URGENT.index(state) for state in row.states if state in _URGENT), default=len(_URGENT))
    limits = row.limits * len(row.errors) if len(row.limits) == 1 else row.limits
    shares = ((error or 0.0) / limit for error, limit in zip(row.errors, limits, strict=False) if limit)
    return worst, -max(shares, default=0.0)
