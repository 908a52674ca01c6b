"""The user's training on all ranks: in fp64 and in the user's dtype, as it is and with the truth in some places."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from everyrank.parity.errors import Unusable
from everyrank.parity.judge.conventions import is_factor
from everyrank.parity.judge.steps import Deviation, Judged, Limit, judge
from everyrank.parity.run.activations import LIMIT, Parts, Seen
from everyrank.parity.run.assembled import looks_at_elements
from everyrank.parity.run.factors import Convention
from everyrank.parity.run.parallel import Rank, Trace
from everyrank.parity.run.plain import BACKWARD, FORWARD, START, Key
from everyrank.parity.run.truth import Truth, noise, truth
from everyrank.parity.setup.given import Setup
from everyrank.parity.setup.known import Found, Known, still
from everyrank.parity.setup.memory import collect
from everyrank.parity.setup.ranks import Ranks
from everyrank.parity.setup.split import cuts_tokens, cuts_weights, lacks_weights

#: How many times the error of one process in the same dtype the ranks may be off.
TIMES = 4

#: How much of what a run does not carry over to others is sent: partial values of outputs.
_MOST_SENT = 64 << 20

#: What the truth is put in place of: kind and name.
Healed = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Pass:
    """One run of the user's training on all ranks, judged step by step up to the first that deviates."""

    trace: Trace
    judged: tuple[Judged, ...]

    @property
    def deviates(self) -> bool:
        return bool(self.judged[-1].deviations)

    def shows(self, deviation: Deviation) -> bool:
        """Return whether a tensor is beyond its limit here too, be it an output while all that is trained agrees."""
        tensor = (deviation.kind, deviation.name)
        return any(
            tensor in {(each.kind, each.name) for each in judged.deviations}
            or judged.errors.get(tensor, 0.0) > judged.limits.get(tensor, math.inf)
            for judged in self.judged
        )


@dataclass(frozen=True)
class Training:
    """The user's training on all ranks; every rank calls the same passes at the same time."""

    setup: Setup
    ranks: Ranks
    known: Known
    found: Found
    truth: Truth
    parts: Parts = field(default_factory=dict)
    """Which part of the plain model's output each output of this rank is, once a pass has found it."""
    conventions: list[Convention] = field(default_factory=list)
    """What was seen of the factor of gradients of outputs; the last one stands."""
    unseen: set[str] = field(default_factory=set)
    """Parameters of this rank whose gradients the optimizer reduces where nobody sees them."""
    _whole: list[bool] = field(default_factory=list)
    _limits: dict[tuple[torch.dtype, int], Limit] = field(default_factory=dict)

    def check_names(self) -> None:
        """Raise Unusable if too few parameters of the plain model are on any rank."""
        held = {name for each in self.ranks.gather(self.found.holdings.names()) for name in each}
        trained = [name for name in self.truth.store.notes[BACKWARD] if not self.setup.skips(name)]
        lost = [name for name in trained if name not in held]
        if len(lost) > (1 - self.setup.compared) * len(trained):
            raise Unusable(
                f"only {len(trained) - len(lost)} of {len(trained)} parameters can be compared, as no rank holds "
                f"values of {', '.join(sorted(lost)[:4])}: pass load= or rename=, or lower "
                f"compared={self.setup.compared:g}."
            )

    def clipped_as(self, wide: Pass) -> Training:
        """Return the training whose plain model clips as the ranks do: to which norm or value, and how."""
        norm = self._alike("norms", wide.trace.clipped) if self.setup.clip is None else None
        value = self._alike("values", wide.trace.clamped)
        epsilons = {each for each in self.ranks.gather(wide.trace.epsilon) if each is not None}
        setup = replace(
            self.setup,
            clip=self.setup.clip if norm is None else norm,
            clamp=value,
            epsilon=epsilons.pop() if len(epsilons) == 1 else self.setup.epsilon,
        )
        if setup == self.setup:
            return self
        return Training(
            setup, self.ranks, self.known, self.found, truth(setup, self.ranks, self.truth.dtype, self.found.cut, [])
        )

    def with_still_norms(self) -> Training:
        """Return the training with batch norms that normalize by their running statistics."""
        setup = replace(self.setup, model=partial(still, self.setup.model))
        known = replace(self.known, batch_norms=())
        plain = truth(setup, self.ranks, self.truth.dtype, self.found.cut, [])
        return Training(setup, self.ranks, known, self.found, plain)

    def _alike(self, kind: str, clipped: float | None) -> float | None:
        """Return to what all ranks clip that do."""
        clips = sorted({each for each in self.ranks.gather(clipped) if each is not None})
        if len(clips) > 1:
            different = " and ".join(f"{clip:g}" for clip in clips)
            raise Unusable(f"the ranks clip to different {kind}, {different}: clip to the same on all of them.")
        return clips[0] if clips else None

    def lacking(self) -> frozenset[str]:
        """Return what a rank has not all of."""
        parts = [part for (_, kind, _), part in self.parts.items() if kind == FORWARD]
        mine = {
            "weights": lacks_weights(self.found.holdings, self.known.sizes),
            "tokens": cuts_tokens(parts),
        }
        return frozenset(name for each in self.ranks.gather(mine) for name, lacks in each.items() if lacks)

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
            return self._run(dtype, _exactly, steps, LIMIT, healed)
        return self._run(dtype, self._limit(dtype, steps), steps, 1e3 * torch.finfo(dtype).eps, healed)

    def own(self, dtype: torch.dtype, wide: Pass) -> Pass:
        """Run in the user's dtype, as far as the pass in fp64 came."""
        steps = max(len(wide.judged) - 1, 1)
        return self._run(dtype, self._limit(dtype, steps), steps, None)

    def _run(
        self, dtype: torch.dtype, limit: Limit, steps: int, near: float | None, healed: Healed = frozenset()
    ) -> Pass:
        """Run the user's training; stop after the first step that deviates.

        ``near`` is how near an output must be to the part of the truth that it is; None if an earlier pass has found
        it.
        """
        store, holdings, parts = self.truth.store, self.found.holdings, self.parts
        groups = {tuple(group) for groups in self.found.groups.values() for group in groups}
        exact = near is not None and self.truth.exact
        sizes = {self.ranks.size, *(len(group) for group in groups)}
        counts = frozenset(sizes | {size * self.setup.microbatches for size in {1, *sizes}})
        if not self.conventions:
            self.conventions.append(Convention(counts=counts))
        rank = Rank(
            self.setup, store, holdings, dtype, limit, parts, exact, near, healed, self.unseen, self.conventions[-1],
            self.ranks if self._assembles() else None,
        )  # fmt: skip
        judged = []
        for step in range(START, steps):
            seen = rank.start() if step == START else rank.step(step, self.found.cut)
            if near is not None:
                for seat, found in {**seen.expected_parts, **seen.parts}.items():
                    kind = f"guessed {seat[0]}" if seat in seen.guessed else seat[0]
                    parts[step, kind, seat[1]] = found
            # One rank judges for all: ranks that round in another way would part here, and wait for each other.
            judged.append(self.ranks.decide(_light(seen), partial(judge, store, step, limit=limit, groups=groups)))
            if near is not None:
                self.conventions.append(_convention(self.conventions[-1], seen, judged[-1]))
                for seat in judged[-1].partial:
                    part = parts.pop((step, *seat), None)
                    if part is not None:
                        parts[step, f"partial {seat[0]}", seat[1]] = part
                for output in seen.passed_on:
                    for kind in (FORWARD, BACKWARD) if output[0] in judged[-1].stand_ins else ():
                        parts.pop((step, kind, output), None)
            if judged[-1].deviations:
                break
        trace = rank.trace()
        del rank
        collect(sum(share.plain.count for share in holdings.shares))
        return Pass(trace, tuple(judged))

    def _assembles(self) -> bool:
        """Return whether the optimizer looks at more than an element, of tensors of which ranks have parts."""
        if not self._whole:
            sizes = self.known.sizes
            mine = cuts_weights(self.found.holdings, sizes) and not looks_at_elements(self.setup)
            self._whole.append(any(self.ranks.gather(mine)))
        return self._whole[0]

    def _limit(self, dtype: torch.dtype, steps: int) -> Limit:
        """Return how far tensors may be off in a dtype, from what rounding does to one process."""
        if (dtype, steps) not in self._limits:
            mixed = self.found.mixed
            measured = noise(self.setup, self.ranks, self.truth, dtype, self.found.cut, mixed, steps)
            self._limits[dtype, steps] = _within(measured, mixed or dtype)
        return self._limits[dtype, steps]


def _convention(before: Convention, seen: Seen, judged: Judged) -> Convention:
    """Return what is known of the convention after a step."""
    usual = judged.convention
    if usual is None:
        return before
    other = {(judged.step, seat) for seat, factor in seen.factors.items() if not is_factor(factor, usual)}
    return replace(before, factor=usual, apart=before.apart | other)


def _light(seen: Seen) -> Seen:
    """Return what other ranks need of it: not the values, but those that may be partial."""
    left, values = _MOST_SENT, {}
    for output, value in seen.unmatched.items():
        left -= value.numel() * value.element_size()
        if left < 0:
            break
        values[output] = value
    return replace(seen, kept={}, unmatched=values)


def _exactly(key: Key) -> float | None:
    """Return how far a tensor may be off in fp64."""
    return LIMIT


def _within(noise: Mapping[Key, float], dtype: torch.dtype) -> Limit:
    """Return how far a tensor may be off in a dtype; None if one process does not say it."""
    floor = 8 * torch.finfo(dtype).eps

    def limit(key: Key) -> float | None:
        return TIMES * noise[key] + floor if key in noise else None

    return limit
