"""Faults of the initialization, which the dye shows: what a rank holds that it should not, and what no rank has."""

from __future__ import annotations

import math

import torch
from everyrank.parity.judge.steps import Deviation, Fault
from everyrank.parity.run.activations import LIMIT
from everyrank.parity.run.plain import BACKWARD, PARAMETER, START
from everyrank.parity.run.store import Store
from everyrank.parity.setup.given import Setup
from everyrank.parity.setup.ranks import Ranks
from everyrank.parity.values.dye import Holdings, Share, alike
from everyrank.suites.compare.patterns.fit import Fit
from everyrank.suites.compare.patterns.texts import ranks_text


def initial(ranks: Ranks, held: Holdings, store: Store, setup: Setup, deviates: bool) -> Fault | None:
    """Return the first fault of the initialization, if there is one.

    Values in another order are one only if something deviates: the user's code may know of it.
    """
    gathered = ranks.gather(held)
    for name in reversed(store.notes[BACKWARD]):
        fault = None if setup.skips(name) else _fault_of(name, gathered, store, deviates)
        if fault is not None:
            return fault
    return None


def _fault_of(name: str, gathered: list[Holdings], store: Store, deviates: bool) -> Fault | None:
    elsewhere = _ranks_with("misplaced", name, gathered)
    if elsewhere:
        other = next(each[2] for holdings in gathered for each in holdings.misplaced if each[1] == name)
        return _fault(name, elsewhere, "other-parameter", f"holds the values of {other}")
    if lost := _ranks_with("lost", name, gathered):
        return _fault(name, lost, "", "holds no value of the plain model")
    if deviates and (mixed := _ranks_with("mixed", name, gathered)):
        return _fault(name, mixed, "shifted", "holds its values in another order")
    if (claimed := _wrong_claim(name, gathered)) is not None:
        return claimed
    covered = torch.zeros(store[PARAMETER, START, name].numel(), dtype=torch.bool)
    for share in (share for holdings in gathered for share in holdings.shares if share.name == name):
        share.plain.mark(covered)
    lacking = int((~covered).sum())
    if not lacking:
        return None
    if lacking == covered.numel():
        # If no rank has it under any name, it is not compared, and counts as such.
        empty = _ranks_with("empty", name, gathered)
        return _fault(name, empty, "zero", "is zero") if empty else None
    holders = tuple(rank for rank, each in enumerate(gathered) if any(share.name == name for share in each.shares))
    return _fault(
        name, holders, "", f"is not whole: {lacking} of its {covered.numel()} elements are on no rank; parts are"
    )


def _wrong_claim(name: str, gathered: list[Holdings]) -> Fault | None:
    """Return the fault of a parameter that is said to be whole on ranks that hold different elements of it."""
    for holdings in gathered:
        for claim in holdings.claims:
            if not claim.whole:
                continue
            shares = {rank: _shares_of(claim.key, name, gathered[rank]) for rank in claim.ranks}
            known = [each for each in shares.values() if each]
            if any(not _same_elements(known[0], each) for each in known[1:]):
                words = f"claims Replicate() over {claim.axis}, and is not the same"
                return _fault(name, claim.ranks, "wrong-annotation", words)
    return None


def _shares_of(key: str, name: str, holdings: Holdings) -> list[Share]:
    return [share for share in holdings.shares if share.key == key and share.name == name]


def _same_elements(mine: list[Share], other: list[Share]) -> bool:
    return len(mine) == len(other) and all(alike(a.plain, b.plain) for a, b in zip(mine, other, strict=True))


def _ranks_with(kind: str, name: str, gathered: list[Holdings]) -> tuple[int, ...]:
    return tuple(
        rank for rank, holdings in enumerate(gathered) if any(each[1] == name for each in getattr(holdings, kind))
    )


def _fault(name: str, ranks: tuple[int, ...], pattern: str, words: str) -> Fault:
    key = (PARAMETER, START, name)
    deviation = Deviation("initialization", name, START, math.inf, LIMIT, ranks, key)
    return Fault(deviation, Fit(pattern, f"{words} on {ranks_text(ranks)}"))
