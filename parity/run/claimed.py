"""What DTensors claim of the outputs of modules in the first step: those that modules return, and those made of them.

Styles of torch's take local tensors for parts of a DTensor, as their layouts say. They call `DTensor.from_local`, for
a module's input as for its output: there the claim is made.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from everyrank.parity.run.activations import LIMIT, Seen
from everyrank.parity.run.plain import FORWARD, scale
from everyrank.parity.run.store import Store
from everyrank.parity.values.claims import Claim, claim_of
from everyrank.parity.values.exact import aside
from everyrank.parity.values.parts import Part, largest, locate
from everyrank.parity.values.tree import has_numbers, local
from everyrank.parity.values.watch import Output
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakTensorKeyDictionary

#: How many claims are noted, and how many bytes of values that are no part of the plain model's.
_CLAIMS, _BYTES = 512, 16 << 20
#: How many parts that were seen are tried first.
_HINTS = 8


@dataclass(frozen=True, eq=False)
class OutputClaim:
    """A claim of where an output is, with what this rank has of it."""

    output: Output
    """The output of the plain model."""
    number: tuple[Output, int]
    """The output of this rank, and the number of the claim of it: ranks make the same claims."""
    claim: Claim
    part: Part | None
    """Which part of the plain model's output it is; None if it is found nowhere there."""
    value: torch.Tensor | None
    """The values, where they are found nowhere."""


class Claimed:
    """The claims of one pass on this rank."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.found: list[OutputClaim] = []
        self._known: Any = WeakTensorKeyDictionary()
        self._inside: list[str] = []
        self._calls: Counter[str] = Counter()
        self._numbers: Counter[Output] = Counter()
        self._left = _BYTES

    @contextlib.contextmanager
    def watching(self, seen: Seen) -> Iterator[None]:
        """Note the claims of a step, of which this is what the rank sees."""
        original, self._seen = DTensor.from_local, seen

        @functools.wraps(original)
        def watched(local_tensor: torch.Tensor, *arguments: Any, **named: Any) -> DTensor:
            made = original(local_tensor, *arguments, **named)
            if not named.get("run_check"):
                self._take(local_tensor, made)
            return made

        with patch.object(DTensor, "from_local", staticmethod(watched)):
            yield

    def enter(self, name: str) -> None:
        """Take note that a module is called."""
        self._inside.append(name)
        self._calls[name] += 1

    @aside
    def leave(self, output: Output, value: torch.Tensor) -> None:
        """Take what a module has returned."""
        name, _, number = output
        if not number and name in self._inside:
            del self._inside[self._inside.index(name) :]
        self._known.setdefault(value, output)
        if isinstance(value, DTensor):
            self._note(output, value)

    @aside
    def _take(self, given: torch.Tensor, made: DTensor) -> None:
        """Take a DTensor that is made of a local tensor: an output that is known, or what will be one."""
        is_traced = isinstance(given, FakeTensor) or torch.compiler.is_compiling()
        if is_traced or torch._C._current_graph_task_id() != -1 or not has_numbers(made):
            return
        if (known := self._known.get(given)) is not None:
            self._note(known, made)
        elif self._inside:
            name = self._inside[-1]
            self._note((name, self._calls[name] - 1, 0), made)

    def _note(self, output: Output, value: DTensor) -> None:
        name, call, number = output
        calls = sum(1 for other, _, each in self._store.notes[FORWARD] if (other, each) == (name, number))
        claim = claim_of(name, value)
        if claim is None or not calls or len(self.found) == _CLAIMS:
            return
        truth: Output = (name, call % calls, number)
        mine, key = local(value.detach()), (FORWARD, 0, truth)
        expected = self._store.get(key)
        if expected is None or not mine.numel() or not largest(mine):
            return
        hints = [part for seat, part in self._seen.parts.items() if seat[0] == FORWARD and seat[1][1] == call]
        hints = [*(part for part in [self._seen.parts.get((FORWARD, output))] if part), *hints[: -_HINTS - 1 : -1]]
        found = locate(mine, expected, LIMIT * scale(self._store, key), hints)
        kept = None
        if found is None and mine.nbytes <= self._left:
            self._left -= mine.nbytes
            kept = mine.clone()
        self._numbers[output] += 1
        number_of = (output, self._numbers[output])
        self.found.append(OutputClaim(truth, number_of, claim, found[0] if found is not None else None, kept))
