"""What happened to a tensor that parts: its pattern, in the words of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everyrank.parity.judge.numbers import of_numbers
from everyrank.parity.script.runs import GRADIENTS, Run, tensors, whole
from everyrank.suites.compare.patterns.evidence import AllRanks
from everyrank.suites.compare.patterns.fit import Fit, of_all_ranks
from everyrank.suites.compare.patterns.likeness import Held
from everyrank.suites.compare.patterns.texts import ranks_text
from torch import Tensor


def text_of(
    reference: Run,
    other: Run,
    location: tuple[int, int, str, str],
    expected: Tensor,
    held: Mapping[int, Held],
    bad: Sequence[int],
    off: float,
) -> Fit:
    """Return what happened to a tensor; its location is a step, the index of a moment, its kind and a name."""
    step, index, kind, name = location
    if kind == "rate":
        mine, wanted = (
            " and ".join(f"{value:g}" for value in each.reshape(-1).tolist())
            for each in (held[bad[0]].values, expected)
        )
        return Fit("", f"is {mine} instead of {wanted} on {ranks_text(bad)}")
    if kind == "norm" and held[bad[0]].values.isfinite().all():
        numbers = [float(each.values.reshape(-1)[0]) for each in held.values()]
        return of_numbers(numbers, float(expected.reshape(-1)[0]), other.size, [])
    if lost := [rank for rank in bad if not held[rank].values.isfinite().all()]:
        kind = "nan" if any(held[rank].values.isnan().any() for rank in lost) else "inf"
        return Fit("nan", f"is {kind} on {ranks_text(lost)}")
    others, before = {}, None
    if kind in GRADIENTS or kind == "weight":
        others = {
            neighbour: value
            for neighbour, parts in tensors(reference, step, index).items()
            if neighbour != name and (value := whole(parts)) is not None and value.shape == expected.shape
        }
    if kind in GRADIENTS and step:
        before = whole(tensors(reference, step - 1, index - _shift(reference, step)).get(name, []))
    if expected.numel() < 1 << 20:
        seen = AllRanks(expected, held, bad, other.size, other.microbatches, before=before, others=others, times=20.0)
        if (fit := of_all_ranks(seen)) is not None:
            return fit
    scale = float(expected.abs().max())
    by = f"{off / scale:.2g} of its largest value" if scale else f"{off:.2g}, where the plain model has zeros,"
    return Fit("", f"differs by {by} on {ranks_text(bad)}")


def _shift(run: Run, step: int) -> int:
    """Return by how many moments a step is longer than the one before: the first has the weights besides."""
    mine, before = (
        sum(moment.kind != "loss" for moment in run.steps[number].moments[0]) for number in (step, step - 1)
    )
    return mine - before
