"""How far the tensors of a rank are from the parts of the plain model that they hold, and how far they may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from everyrank.parity.run.plain import Key, scale
from everyrank.parity.run.store import Store
from everyrank.parity.setup.given import Setup
from everyrank.parity.values.dye import Holdings, Share
from everyrank.suites.compare.patterns.likeness import distance


class Distances:
    """The distances of one pass on this rank."""

    def __init__(self, setup: Setup, store: Store, holdings: Holdings, limit: Callable[[Key], float | None]) -> None:
        self._setup, self._store, self._limit = setup, store, limit
        self.shares: dict[str, list[Share]] = {}
        """The parts that each tensor of this rank holds, by its key."""
        for share in holdings.shares:
            self.shares.setdefault(share.key, []).append(share)

    def names(self, key: str) -> set[str]:
        """Return the plain model's parameters of which a tensor of this rank has parts."""
        return {share.name for share in self.shares[key]}

    def parts(self, kind: str, step: int, key: str, *more: str) -> Iterator[tuple[Share, Key, torch.Tensor]]:
        """Yield the parts that a tensor holds and that are compared, each with the truth that it should have."""
        for share in self.shares[key]:
            known = (kind, step, share.name, *more)
            if not self._setup.skips(share.name) and (truth := self._store.get(known)) is not None:
                yield share, known, share.expected(truth)

    def errors(self, kind: str, step: int, key: str, values: torch.Tensor, *more: str) -> Iterator[tuple[Key, float]]:
        """Yield how far each part of the plain model that a tensor holds is from the truth."""
        for share, known, expected in self.parts(kind, step, key, *more):
            yield known, distance(share.read(values), expected) / scale(self._store, known)

    def is_right(self, kind: str, step: int, key: str, values: torch.Tensor) -> bool:
        """Return whether these values are the plain model's in all parts that a tensor holds."""
        return not any(self.is_wrong(*pair) for pair in self.errors(kind, step, key, values))

    def is_wrong(self, key: Key, error: float) -> bool:
        """Return whether an error is more than rounding makes."""
        allowed = self._limit(key)
        return allowed is not None and not error <= allowed
