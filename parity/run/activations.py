"""Compare what the modules of a parallel model return, and the gradients of it, with the plain model's."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from everyrank.parity.run.factors import Convention, Factors
from everyrank.parity.run.guesses import guessed, of_another_batch, pieces_of_weights
from everyrank.parity.run.plain import BACKWARD, FORWARD, Key, scale
from everyrank.parity.run.store import Store
from everyrank.parity.setup.given import Setup
from everyrank.parity.values.claims import Claim
from everyrank.parity.values.dye import Holdings
from everyrank.parity.values.exact import aside
from everyrank.parity.values.names import known_name
from everyrank.parity.values.parts import Part, largest, locate, whole
from everyrank.parity.values.tree import local
from everyrank.parity.values.watch import Output, Seat, watchable
from everyrank.suites.compare.patterns.likeness import distance
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

#: How far correct versions may be off in fp64: they stay below 2e-11, and the smallest of 46 faults began at 8e-5.
LIMIT = 1e-8

#: Which part of the plain model's output each output of a rank is: by step, kind and output.
Parts = dict[tuple[int, str, Output], Part]


@dataclass(frozen=True)
class GradientClaim:
    """What a DTensor claims of a parameter's gradient."""

    claim: Claim
    is_whole: bool
    """Whether this rank's values are the plain model's, before anybody lays them out as the parameter is."""


@dataclass
class Seen:
    """What this rank has seen of one step."""

    errors: dict[Key, float] = field(default_factory=dict)
    """How far each tensor is from the truth, relative to the truth's largest value."""
    parts: dict[Seat, Part] = field(default_factory=dict)
    """Which part of the plain model's output each output is."""
    whole: dict[Output, Output] = field(default_factory=dict)
    """The output of the plain model that each output belongs to."""
    unmatched: dict[Seat, torch.Tensor] = field(default_factory=dict)
    """Outputs that are no part of the plain model's, with their values."""
    unmatched_errors: dict[Seat, float | None] = field(default_factory=dict)
    """How far those are from what their neighbours' parts say that they should be; None if these do not."""
    expected_parts: dict[Seat, Part] = field(default_factory=dict)
    """Which part of the plain model's output an output should be that differs."""
    guessed: set[Seat] = field(default_factory=set)
    """Those of which this is a guess, by how weights are cut."""
    kept: dict[Key, torch.Tensor] = field(default_factory=dict)
    """The values of this rank where they are beyond a limit, by the key of the rank's own tensor."""
    loss: float | None = None
    norm: float | None = None
    of_others: set[str] = field(default_factory=set)
    """Parameters whose update is wrong, and made of another gradient than was there before the optimizer's step."""
    of_parts: set[str] = field(default_factory=set)
    """Parameters whose update is wrong, and what the plain optimizer makes of this rank's part of the gradient."""
    rates: tuple[float, ...] = ()
    """The learning rates with which the optimizer steps."""
    is_scheduled: bool = False
    """Whether a scheduler has noted the rates with which it began."""
    rounding: dict[str, float] = field(default_factory=dict)
    """How the loss and the norm were rounded that the user's step returned."""
    own_norm: float = 0.0
    """The norm of the plain model's gradients of what this rank holds."""

    gradient_claims: dict[str, GradientClaim] = field(default_factory=dict)
    """What DTensors claim of the parameters' gradients."""

    passed_on: set[Output] = field(default_factory=set)
    """Outputs that are what the module was given: it may stand for one that another rank holds."""

    factors: dict[Seat, float] = field(default_factory=dict)
    """The factor of each gradient of an output that is the plain model's but for a factor."""

    def note(self, key: Key, error: float) -> None:
        """Keep the largest error of a tensor."""
        self.errors[key] = max(self.errors.get(key, 0.0), error)


class Activations:
    """The outputs of one pass on this rank: found in the plain model's by value, or where an earlier pass has."""

    def __init__(
        self,
        setup: Setup,
        store: Store,
        near: float | None,
        limit: Callable[[Key], float | None],
        parts: Parts,
        healed: frozenset[tuple[str, str]],
        convention: Convention,
        holdings: Holdings,
    ) -> None:
        self._setup, self._store, self._near, self._limit = setup, store, near, limit
        self._parts, self._healed = parts, healed
        self._pieces = cache(partial(pieces_of_weights, holdings, store))
        self._hints: dict[int, list[Part]] = {}
        self._factors = Factors(convention)
        self._first_calls = Counter((name, number) for name, _, number in store.notes[FORWARD])
        self.begin(0, Seen(), None)

    def begin(self, step: int, seen: Seen, batch: Any) -> None:
        """Begin a step, with the whole batch."""
        self._step, self._seen = step, seen
        self._batch = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.ndim]
        self._roots = 0
        self._calls = {
            pair: _calls_in(self._store, step, *pair) or count for pair, count in self._first_calls.items()
        }
        #: Of each output, the modules that have returned this very tensor.
        self._returned: Any = WeakTensorKeyDictionary()

    def named(self, modules: list[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules of this rank that the plain model has, under its names."""
        known = {output[0] for output in self._store.notes[FORWARD]}
        for module in modules:
            for name, each in watchable(module):
                found = known_name(name, self._setup.rename, known)
                if found is not None and not self._setup.skips(found):
                    yield found, each

    @aside
    def called(self, inputs: Any) -> None:
        """Take the inputs of a whole module: where they stand in the batch shows which tokens this rank has."""
        if self._near is None:
            return
        number, self._roots = self._roots, self._roots + 1
        for mine in tree_leaves(inputs):
            if not isinstance(mine, torch.Tensor) or not mine.ndim or torch._C._current_graph_task_id() != -1:
                continue
            for leaf in self._batch:
                if leaf.ndim != mine.ndim or leaf.dtype != mine.dtype:
                    continue
                found = locate(local(mine.detach()).double(), local(leaf).double(), 0.0)
                if found is not None:
                    self._hints.setdefault(number, []).insert(0, found[0])
                    return

    @aside
    def output(self, output: Output, value: torch.Tensor, is_passed_on: bool) -> torch.Tensor | None:
        """Compare an output of a module, and the gradient that comes for it; return the truth if it is to heal."""
        name, call, number = output
        calls = self._calls.get((name, number), 0)
        if not calls:
            return None
        # The plain model calls a module once where the ranks call it for each microbatch.
        truth = self._seen.whole[output] = (name, call % calls, number)
        if is_passed_on:
            self._seen.passed_on.add(output)
        (names := self._returned.setdefault(value, set())).add(name)
        healed = self._truth_for((FORWARD, output), truth, value, {name})
        if healed is not None:
            value = value + (healed - value.detach())
        self._compare((FORWARD, output), truth, local(value.detach()))
        if value.requires_grad:

            @aside
            def hook(gradient: torch.Tensor | None) -> torch.Tensor | None:
                if gradient is None:  # the loss does not use this output
                    return None
                healed = self._truth_for((BACKWARD, output), truth, gradient, names)
                self._compare((BACKWARD, output), truth, local((gradient if healed is None else healed).detach()))
                return healed

            with contextlib.suppress(RuntimeError):  # a view of a custom function takes no hook
                value.register_hook(hook)
        return None if healed is None else value

    def end(self) -> None:
        """Note how far outputs without a match are from what their neighbours' parts say that they should be."""
        for seat, mine in self._seen.unmatched.items() if self._near is not None else ():
            key = (seat[0], self._step, self._seen.whole[seat[1]])
            self._seen.unmatched_errors[seat] = None
            if (expected := self._store.get(key)) is None:
                continue
            hints = self._hints.get(seat[1][1], [])
            found = _neighbours(self._seen, seat, hints, mine, expected)
            if found is None and seat[0] == FORWARD:
                before = (self._parts.get((step, *seat)) for step in reversed(range(self._step)))
                found = of_another_batch(mine, expected, before) or guessed(mine, expected, hints, self._pieces())
                self._seen.guessed |= {seat} if found is not None else set()
            if (FORWARD, seat[1]) in self._seen.guessed:
                self._seen.guessed.add(seat)  # of a guessed output, the gradient is guessed, too
            if found is not None:
                self._seen.expected_parts[seat] = found[0]
                self._seen.unmatched_errors[seat] = distance(mine, found[1]) / scale(self._store, key)

    def _truth_for(self, seat: Seat, truth: Output, value: torch.Tensor, names: set[str]) -> torch.Tensor | None:
        """Return the truth that is to stand in place of an output or its gradient, or None.

        ``names`` are the modules whose output it is: of a gradient, all that have returned the same tensor.
        """
        kind, output = seat
        if not any((kind, name) in self._healed for name in names):
            return None
        kinds = (kind, f"partial {kind}", f"guessed {kind}", FORWARD)
        known = next((part for each in kinds if (part := self._parts.get((self._step, each, output)))), None)
        piece = known.select(self._store[kind, self._step, truth]) if known is not None else None
        mine = local(value.detach())
        if piece is None or piece.shape != mine.shape:
            return None
        piece = piece.to(mine) * (self._factors.likely(mine, piece) if kind == BACKWARD else 1.0)
        piece = torch.view_as_complex(piece.contiguous()) if value.is_complex() else piece
        if isinstance(value, DTensor):
            return DTensor.from_local(piece, value.device_mesh, value.placements, run_check=False)
        return piece

    def _compare(self, seat: Seat, truth: Output, mine: torch.Tensor) -> None:
        """Find the part of the truth that a value is, and how far it is from it."""
        key = (seat[0], self._step, truth)
        expected = self._store.get(key)
        if expected is None:
            return
        if self._near is not None:
            self._search(seat, key, mine, expected, self._near * scale(self._store, key))
            return
        known = self._parts.get((self._step, *seat))
        piece = known.select(expected) if known is not None else None
        if known is None or piece is None or piece.shape != mine.shape:
            return
        factor = self._factors.allowed(self._step, seat, mine, piece)
        error = distance(mine.double() / factor, piece) / scale(self._store, key)
        self._seen.parts[seat] = known
        self._seen.note(key, error)
        allowed = self._limit(key)
        if allowed is not None and not error <= allowed:
            self._seen.unmatched[seat] = mine.clone()

    def _search(self, seat: Seat, key: Key, mine: torch.Tensor, expected: torch.Tensor, near: float) -> None:
        kind, output = seat
        hints = self._hints.setdefault(output[1], [])
        if kind == BACKWARD:
            forward = self._seen.parts.get((FORWARD, output))
            hints = [forward] if forward is not None else []
        found = self._with_factor(seat, hints[0], mine, expected, near) if kind == BACKWARD and hints else None
        found = found or locate(mine, expected, near, reversed(hints))
        if found is None:
            self._seen.unmatched[seat] = mine.clone()
            return
        part, off = found
        self._seen.parts[seat] = part
        if kind == FORWARD and not any(part is hint for hint in hints):
            hints.append(part)
        error, allowed = off / scale(self._store, key), self._limit(key)
        # Where fp64 cannot run, a match by value is wider than the bound, and counts as right all the same.
        self._seen.note(key, error if allowed is None else min(error, allowed))

    def _with_factor(
        self, seat: Seat, part: Part, mine: torch.Tensor, expected: torch.Tensor, near: float
    ) -> tuple[Part, float] | None:
        """Return this part if the gradient is the plain model's there, but for a factor."""
        piece = part.select(expected)
        if piece is None or piece.shape != mine.shape or (fit := self._factors.fit(mine, piece, near)) is None:
            return None
        if largest(piece) > 1e6 * near:  # of what is all but zero, every factor is right
            self._seen.factors[seat] = fit[0]
        return part, fit[1]


def _neighbours(
    seen: Seen, seat: Seat, hints: list[Part], mine: torch.Tensor, expected: torch.Tensor
) -> tuple[Part, torch.Tensor] | None:
    """Return the part that an output should be, with the truth there."""
    kind, output = seat
    if kind == BACKWARD:
        forward = seen.parts.get((FORWARD, output), seen.expected_parts.get((FORWARD, output)))
        hints = [forward] if forward is not None else []
    moved = [part for hint in hints if mine.ndim == expected.ndim for part in hint.moved(expected.shape)]
    pairs = [(part, piece) for part in (*hints, *moved) if (piece := part.select(expected)) is not None]
    pairs = [pair for pair in pairs if pair[1].shape == mine.shape]
    if not pairs and mine.shape == expected.shape:
        pairs = [(whole(mine.shape), expected)]
    return min(pairs, key=lambda pair: distance(mine, pair[1]), default=None)


def _calls_in(store: Store, step: int, name: str, number: int) -> int:
    """Return how often the plain model calls a module in a step: sides that take turns are not called alike."""
    return next(call for call in itertools.count() if (FORWARD, step, (name, call, number)) not in store)
