"""The passes of one call: each uses what those before it have found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from everyrank.parity import passes
from everyrank.parity.judging.steps import Deviation, Limit
from everyrank.parity.passes import Known, Pass, Truth
from everyrank.parity.ranks import Ranks
from everyrank.parity.runs.activations import LIMIT, Parts
from everyrank.parity.setup import Setup
from everyrank.parity.split import Cut
from everyrank.parity.values.dye import Holdings

#: What the truth is put in place of: kind and name.
Healed = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Training:
    """The user's training on all ranks; every rank calls the same passes at the same time."""

    setup: Setup
    ranks: Ranks
    known: Known
    truth: Truth
    holdings: Holdings
    cut: Cut
    mixed: torch.dtype | None
    """The dtype in which FSDP2's modules compute, if it is another than their parameters'."""
    groups: Mapping[str, list[list[int]]]
    parts: Parts = field(default_factory=dict)
    """Which part of the plain model's output each output of this rank is, once a pass has found it."""
    _limits: dict[tuple[torch.dtype, int], Limit] = field(default_factory=dict)

    def dtypes(self) -> list[torch.dtype]:
        """Return the dtypes in which the ranks train besides the truth's."""
        wanted = self.setup.dtypes or (self.known.dtype,)
        return [dtype for dtype in wanted if dtype != self.truth.dtype]

    def hides(self, dtype: torch.dtype, deviation: Deviation) -> bool:
        """Return whether rounding in a dtype may hide a deviation of this size."""
        allowed = [limit(deviation.key) for (each, _), limit in self._limits.items() if each == dtype]
        return not any(each is not None and each < deviation.error for each in allowed)

    def wide(self, healed: Healed = frozenset()) -> Pass:
        """Run in the truth's dtype, with the truth in place of some tensors."""
        dtype, steps = self.truth.dtype, self.setup.steps
        if self.truth.exact:
            return self._run(dtype, passes.exactly, steps, LIMIT, healed)
        return self._run(dtype, self._limit(dtype, steps), steps, 1e3 * torch.finfo(dtype).eps, healed)

    def own(self, dtype: torch.dtype, wide: Pass) -> Pass:
        """Run in the user's dtype, as far as the pass in fp64 came."""
        steps = max(len(wide.judged) - 1, 1)
        return self._run(dtype, self._limit(dtype, steps), steps, None)

    def _run(
        self, dtype: torch.dtype, limit: Limit, steps: int, near: float | None, healed: Healed = frozenset()
    ) -> Pass:
        groups = {tuple(group) for groups in self.groups.values() for group in groups}
        exact = near is not None and self.truth.exact
        return passes.run(
            self.setup, self.ranks, self.truth, self.holdings, self.cut, dtype, limit, groups,
            exact=exact, near=near, parts=self.parts, steps=steps, healed=healed,
        )  # fmt: skip

    def _limit(self, dtype: torch.dtype, steps: int) -> Limit:
        """Return how far tensors may be off in a dtype, from what rounding does to one process."""
        if (dtype, steps) not in self._limits:
            noise = passes.noise(self.setup, self.ranks, self.truth, dtype, self.cut, self.mixed, steps)
            self._limits[dtype, steps] = passes.within(noise, self.mixed or dtype)
        return self._limits[dtype, steps]
