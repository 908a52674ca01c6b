"""Ask the witnesses of a world that did not finish: what each main thread waits in, and what its GPU waits for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from everyrank.wire.messages import OnNccl, Order, WitnessStatement
from everyrank.wire.witness_pipe import NCCL, WAIT, ask, path

#: Ranks must answer within this many seconds. They cannot if the main thread holds the GIL.
ANSWER = 0.5


class Witnesses:
    """The witnesses of the ranks of one test. With ``nccl``, NCCL's flight recorders are read, too."""

    def __init__(self, run_folder: str, test: int, nccl: bool) -> None:
        self.stated: dict[int, WitnessStatement] = {}
        self._on_nccl: dict[int, OnNccl] = {}
        self._asked: set[int] = set()
        self._folder = run_folder
        self._test = test
        self._nccl = nccl

    @classmethod
    def for_orders(cls, orders: Sequence[Order]) -> Witnesses | None:
        if not orders:
            return None
        nccl = any("nccl" in order.backend or order.device.startswith("cuda") for order in orders)
        return cls(os.path.dirname(orders[0].folder), orders[0].number, nccl)

    def ask(self, pids: Mapping[int, int | None]) -> None:
        """Ask these ranks. A rank that has made no group has no witness to ask."""
        questions = WAIT + NCCL if self._nccl else WAIT
        self._asked = {rank for rank, pid in pids.items() if ask(path(self._folder, pid), questions)}
        self.stated, self._on_nccl = {}, {}

    def hear(self, rank: int, answer: WitnessStatement | OnNccl) -> None:
        if answer.test == self._test:
            if isinstance(answer, OnNccl):
                self._on_nccl[rank] = answer
            else:
                self.stated[rank] = answer

    def on_nccl(self, rank: int) -> OnNccl | None:
        """Return what NCCL's flight recorder shows of this rank; None if it was not asked."""
        silent = OnNccl(self._test, problem="it did not answer") if self._nccl and rank in self._asked else None
        return self._on_nccl.get(rank, silent)

    def all_answered(self) -> bool:
        return self._asked <= self.stated.keys() and (not self._nccl or self._asked <= self._on_nccl.keys())
