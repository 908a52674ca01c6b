"""Ask the ranks of a world what NCCL's flight recorder shows, when the world did not finish."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from everyrank.wire.messages import OnNccl, Order
from everyrank.wire.witness_pipe import NCCL, ask, path

#: Ranks must answer within this many seconds. They cannot if the main thread holds the GIL.
ANSWER = 0.5


class Recorders:
    """The flight recorders of the ranks of one test, which has GPUs."""

    def __init__(self, run_folder: str, test: int) -> None:
        self.heard: dict[int, OnNccl] = {}
        self.asked: set[int] = set()
        self._folder = run_folder
        self._test = test

    @classmethod
    def for_orders(cls, orders: Sequence[Order]) -> Recorders | None:
        """Return the recorders of a world whose ranks may use NCCL; None for others."""
        if not any("nccl" in order.backend or order.device.startswith("cuda") for order in orders):
            return None
        return cls(os.path.dirname(orders[0].folder), orders[0].number)

    def ask(self, pids: Mapping[int, int | None]) -> None:
        """Ask these ranks. A rank that has made no group has no recorder to ask."""
        self.asked = {rank for rank, pid in pids.items() if ask(path(self._folder, pid), NCCL)}

    def hear(self, rank: int, seen: OnNccl) -> None:
        if seen.test == self._test:
            self.heard[rank] = seen

    def shown_by(self, rank: int) -> OnNccl | None:
        """Return what this rank's recorder shows; None if it was not asked."""
        silent = OnNccl(self._test, problem="it did not answer") if rank in self.asked else None
        return self.heard.get(rank, silent)

    def all_answered(self) -> bool:
        return self.asked <= self.heard.keys()
