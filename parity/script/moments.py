"""The moments of a round that a rank keeps, until all optimizers have stepped and they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from everyrank.parity.script.kept import Moment, part_of
from everyrank.parity.script.remarks import Remarks
from everyrank.parity.values.exact import is_narrow
from everyrank.parity.values.lines import line_of_caller
from everyrank.suites.compare.patterns.texts import short
from torch import Tensor


class Moments:
    """What is kept of tensors, each with the script's line; what cannot be kept is a remark."""

    def __init__(self, remarks: Remarks) -> None:
        self._remarks = remarks
        self._moments: list[Moment] = []

    def have(self, kind: str) -> bool:
        return any(moment.kind == kind for moment in self._moments)

    def take(self) -> list[Moment]:
        """Return the moments of this round, and begin the next one."""
        taken, self._moments = self._moments, []
        return taken

    def keep(self, kind: str, tensors: Mapping[str, Tensor], absent: Iterable[str] = ()) -> Moment:
        moment = Moment(kind, line_of_caller(), absent=list(absent))
        for name, tensor in tensors.items():
            with torch.no_grad():
                part = part_of(tensor)
            if part is None:
                self._remarks.note(f"not compared: {kind} {name}, which cannot be read as it stands")
            else:
                moment.parts[name] = part
                if self._remarks.facts.wide and is_narrow(part.values.dtype):
                    self._remarks.narrow(f"{kind} `{name}` is {short(part.values.dtype)} ({moment.line})")
        self._moments.append(moment)
        return moment

    def keep_new(self, kind: str, tensors: Mapping[str, Tensor]) -> None:
        """Keep those tensors of which this round has no moment of the kind."""
        kept = {name for moment in self._moments if moment.kind == kind for name in moment.parts}
        self.keep(kind, {name: each for name, each in tensors.items() if name not in kept})

    def keep_gradients(self, kind: str, wanted: Mapping[str, Tensor]) -> None:
        found = {name: each.grad for name, each in wanted.items() if each.grad is not None}
        self.keep(kind, found, [name for name, each in wanted.items() if each.grad is None and each.requires_grad])
