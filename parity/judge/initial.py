"""Faults of the initialization, which the dye shows: what a rank holds that it should not, and what no rank has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from everyrank.parity.judge.steps import Deviation, Fault
from everyrank.parity.run.activations import LIMIT
from everyrank.parity.run.plain import BACKWARD, PARAMETER, START
from everyrank.parity.run.store import Store
from everyrank.parity.setup.given import Setup
from everyrank.parity.values.claims import Claim
from everyrank.parity.values.dye import Holdings, Share, alike
from everyrank.suites.compare.patterns.fit import Fit
from everyrank.suites.compare.patterns.texts import ranks_text


def initial(held: Sequence[Holdings], store: Store, setup: Setup, deviates: bool) -> Fault | None:
    """Return the first fault of the initialization, if there is one, from what each rank holds.

    Values in another order are one only if something deviates: the user's code may know of it.
    """
    claims = _wrong_claims(held)
    for name in reversed(store.notes[BACKWARD]):
        fault = None if setup.skips(name) else _fault_of(name, held, store, deviates) or _of_claim(name, claims)
        if fault is not None:
            return fault
    return None


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


def _wrong_claims(held: Sequence[Holdings]) -> dict[str, Claim]:
    """Return the claims, by the plain model's names, to be whole on ranks that hold different elements."""
    shares = [_by_key(holdings) for holdings in held]
    found: dict[str, Claim] = {}
    for claim in dict.fromkeys(claim for holdings in held for claim in holdings.claims if claim.whole):
        known = [mine for rank in claim.ranks if (mine := shares[rank].get(claim.key))]
        if any(not _same_elements(known[0], other) for other in known[1:]):
            found |= {share.name: claim for mine in known for share in mine}
    return found


def _by_key(holdings: Holdings) -> dict[str, list[Share]]:
    found: dict[str, list[Share]] = {}
    for share in holdings.shares:
        found.setdefault(share.key, []).append(share)
    return found


def _same_elements(mine: list[Share], other: list[Share]) -> bool:
    return [each.name for each in mine] == [each.name for each in other] and all(
        alike(a.plain, b.plain) for a, b in zip(mine, other, strict=True)
    )


def _of_claim(name: str, claims: Mapping[str, Claim]) -> Fault | None:
    if (claim := claims.get(name)) is None:
        return None
    words = f"claims Replicate() over {claim.axis}, and is not the same"
    return _fault(name, claim.ranks, "wrong-annotation", words)


def _ranks_with(kind: str, name: str, held: Sequence[Holdings]) -> tuple[int, ...]:
    return tuple(
        rank for rank, holdings in enumerate(held) if any(each[1] == name for each in getattr(holdings, kind))
    )


def _fault(name: str, ranks: tuple[int, ...], pattern: str, words: str) -> Fault:
    key = (PARAMETER, START, name)
    deviation = Deviation("initialization", name, START, math.inf, LIMIT, ranks, key)
    return Fault(deviation, Fit(pattern, f"{words} on {ranks_text(ranks)}"))
