"""Faults of the initialization, which the dye shows: what a rank holds that it should not, and what no rank has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from everyrank.parity.judge.claims import Wrong, wrong_claims
from everyrank.parity.judge.steps import Deviation, Fault
from everyrank.parity.run.activations import LIMIT
from everyrank.parity.run.plain import BACKWARD, PARAMETER, START
from everyrank.parity.run.store import Store
from everyrank.parity.setup.given import Setup
from everyrank.parity.values.dye import Holdings
from everyrank.suites.compare.patterns.fit import Fit
from everyrank.suites.compare.patterns.texts import ranks_text


def initial(
    held: Sequence[Holdings], store: Store, setup: Setup, sizes: Mapping[str, torch.Size], deviates: bool
) -> Fault | None:
    """Return the first fault of the initialization, if there is one, from what each rank holds.

    Values in another order are one only if something deviates: the user's code may know of it.
    """
    claims = wrong_claims(held, sizes)
    for name in reversed(store.notes[BACKWARD]):
        fault = None if setup.skips(name) else _fault_of(name, held, store, deviates) or _of_claim(name, claims)
        if fault is not None:
            return fault
    frozen = (name for name in claims if name not in store.notes[BACKWARD] and not setup.skips(name))
    return next((_of_claim(name, claims) for name in frozen), None)


def _fault_of(name: str, held: Sequence[Holdings], store: Store, deviates: bool) -> Fault | None:
    elsewhere = _ranks_with("misplaced", name, held)
    if elsewhere:
        other = next(each[2] for holdings in held for each in holdings.misplaced if each[1] == name)
        return _fault(name, elsewhere, "other-parameter", f"holds the values of {other}")
    if lost := _ranks_with("lost", name, held):
        return _fault(name, lost, "", "holds no value of the plain model")
    if deviates and (mixed := _ranks_with("mixed", name, held)):
        return _fault(name, mixed, "shifted", "holds its values in another order")
    covered = torch.zeros(store[PARAMETER, START, name].numel(), dtype=torch.bool)
    for share in (share for holdings in held for share in holdings.shares if share.name == name):
        share.plain.mark(covered)
    lacking = int((~covered).sum())
    if not lacking:
        return None
    if lacking == covered.numel():
        # If no rank has it under any name, it is not compared, and counts as such.
        empty = _ranks_with("empty", name, held)
        return _fault(name, empty, "zero", "is zero") if empty else None
    holders = tuple(rank for rank, each in enumerate(held) if any(share.name == name for share in each.shares))
    return _fault(
        name, holders, "", f"is not whole: {lacking} of its {covered.numel()} elements are on no rank; parts are"
    )


def _of_claim(name: str, claims: Mapping[str, Wrong]) -> Fault | None:
    wrong = claims.get(name)
    return None if wrong is None else _worded(name, wrong.ranks, Fit("wrong-annotation", wrong.text))


def _ranks_with(kind: str, name: str, held: Sequence[Holdings]) -> tuple[int, ...]:
    return tuple(
        rank for rank, holdings in enumerate(held) if any(each[1] == name for each in getattr(holdings, kind))
    )


def _fault(name: str, ranks: tuple[int, ...], pattern: str, words: str) -> Fault:
    return _worded(name, ranks, Fit(pattern, f"{words} on {ranks_text(ranks)}"))


def _worded(name: str, ranks: tuple[int, ...], fit: Fit) -> Fault:
    key = (PARAMETER, START, name)
    return Fault(Deviation("initialization", name, START, math.inf, LIMIT, ranks, key), fit)
