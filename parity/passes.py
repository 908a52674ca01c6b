"""The passes of a call: the plain model's run, the dye, the user's training in fp64 and in the user's dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from everyrank.parity.errors import Unusable
from everyrank.parity.judging.evidence import named_groups
from everyrank.parity.judging.steps import Deviation, Judged, judge
from everyrank.parity.memory import collect
from everyrank.parity.ranks import Ranks, groups_of_torch
from everyrank.parity.runs.activations import LIMIT, Parts, Seen
from everyrank.parity.runs.made import parallelize, plain
from everyrank.parity.runs.plain import START, Keeper, Key, Noise, play, weight_of_parts
from everyrank.parity.runs.run import Rank, Trace
from everyrank.parity.setup import Setup, own_dtype
from everyrank.parity.split import Cut, choose, cuts_weights
from everyrank.parity.values import dye
from everyrank.parity.values.dye import Holdings
from everyrank.parity.values.store import Shelf, Store

#: How many times the error of one process in the same dtype the ranks may be off.
TIMES = 4

#: How much of what a run does not carry over to others is sent: partial values of outputs.
_MOST_SENT = 64 << 20


@dataclass(frozen=True)
class Truth:
    """The plain model's run, and what is measured against it."""

    store: Store
    dtype: torch.dtype
    exact: bool


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
class Known:
    """What is known of the plain model without building it again, which takes long if it is large."""

    dtype: torch.dtype
    """The dtype in which the user trains."""
    sizes: dict[str, torch.Size]
    """The sizes of its parameters, by name."""
    sums: dict[str, float]
    """The sums of their first values."""

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return sum(size.numel() for size in self.sizes.values())


def same_model(setup: Setup, ranks: Ranks) -> Known:
    """Check that the plain model is the same on each rank; that it is so each time is seen when it is built again."""
    model = plain(setup)
    sizes = {name: each.shape for name, each in model.named_parameters()}
    known = Known(own_dtype(model), sizes, _sums(model))
    del model
    if setup.one_rank:
        # What is built next is built on all ranks, and may be another.
        _check_again(ranks, known, _sums(plain(setup)))
    for rank, other in enumerate(ranks.gather(known.sums)):
        for name, value in known.sums.items():
            if other.get(name) != value:
                raise Unusable(
                    f"model() returns other values of {name} on rank {rank} than on rank {ranks.rank}: the plain "
                    "model is the same on every rank; what differs by rank belongs into parallelize."
                )
    return known


def _check_again(ranks: Ranks, known: Known, sums: dict[str, float]) -> None:
    """Raise Unusable on all ranks if a rank's model has other values than the first time."""
    other = next((name for name, value in known.sums.items() if sums.get(name) != value), None)
    for name in ranks.gather(other):
        if name is not None:
            raise Unusable(f"model() returns other values of {name} each time: build it from the same numbers.")


def _sums(model: torch.nn.Module) -> dict[str, float]:
    return {name: float(each.detach().sum(dtype=torch.float64)) for name, each in model.named_parameters()}


def counts_of_parts(setup: Setup, cut: Cut) -> list[int]:
    """Return into how many parts a step's batch is cut: by ranks, and by microbatches, too."""
    return sorted({cut.pieces, cut.pieces * setup.microbatches} - {1})


def truth(setup: Setup, ranks: Ranks, own: torch.dtype, cut: Cut, remarks: list[str]) -> Truth:
    """Run the plain model in fp64; where its code takes no fp64, in its own dtype."""
    counts = counts_of_parts(setup, cut)
    store, failure = _kept(setup, ranks, torch.float64, counts, exact=True)
    if store is not None:
        return Truth(store, torch.float64, True)
    if own == torch.float64:
        raise Unusable(f"the plain model does not train, in one process and without parallelize: {failure}")
    store, again = _kept(setup, ranks, own, counts, exact=False)
    if store is None:
        raise Unusable(f"the plain model does not train, in one process and without parallelize: {again}")
    remarks.append(f"not in fp64, which the plain model does not take: {failure}")
    return Truth(store, own, False)


def _kept(
    setup: Setup, ranks: Ranks, dtype: torch.dtype, counts: list[int], *, exact: bool
) -> tuple[Store | None, str]:
    """Run the plain model on the first rank of each host; return its values, or why there are none."""
    shelf = Shelf(ranks)
    failure: BaseException | None = None
    if shelf.writer is not None:
        try:
            play(setup, Keeper(shelf.writer), dtype, exact=exact, steps=setup.steps, counts=counts)
        except Exception as error:
            failure = error
    failures = [each for each in ranks.gather(_sendable(failure)) if each is not None]
    if not failures:
        return shelf.open(), ""
    shelf.discard()
    if isinstance(failures[0], Unusable):
        raise failures[0]
    return None, str(failures[0])


def _sendable(error: BaseException | None) -> Unusable | str | None:
    if error is None or isinstance(error, Unusable):
        return error
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def noise(
    setup: Setup, ranks: Ranks, truth: Truth, dtype: torch.dtype, cut: Cut, mixed: Any, steps: int
) -> dict[Key, float]:
    """Measure what rounding does to one process in a dtype.

    The batch is in one piece, or in the ranks' parts, or the weights are moved by a rounding.

    The runs are shared out among ranks.
    """
    runs = [(1, 0), *((count, 0) for count in counts_of_parts(setup, cut)), (1, 1)]
    measured = Noise(truth.store)
    for number, (parts, jitter) in enumerate(runs):
        if number % ranks.size != ranks.rank:
            continue
        weight = weight_of_parts(truth.store, parts)
        if weight is not None:
            play(
                setup, measured, mixed or dtype, exact=False, steps=steps, parts=parts, weight=weight,
                cast=mixed is not None, jitter=jitter,
            )  # fmt: skip
    errors: dict[Key, float] = {}
    for each in ranks.gather(measured.errors):
        for key, error in each.items():
            errors[key] = max(errors.get(key, 0.0), error)
    return errors


def unequal_parts(setup: Setup, truth: Truth, cut: Cut) -> tuple[str, ...]:
    """Return what a user must know whose loss is no mean of the losses of parts, and who has no step of their own."""
    parts = cut.pieces * setup.microbatches
    if setup.step is not None or callable(setup.split):
        return ()
    if weight_of_parts(truth.store, parts) is not None:
        return ()
    return (
        f"the mean of the losses of {parts} equal parts of the batch is not the whole's, as with a mean over unequal "
        "numbers of tokens: divide by the whole batch's number in loss=, or pass step=",
    )


@dataclass(frozen=True)
class Found:
    """What the dye shows of the parallel model on this rank."""

    holdings: Holdings
    cut: Cut
    mixed: torch.dtype | None
    """The dtype in which FSDP2's modules compute, if it is another than their parameters'."""
    groups: Mapping[str, list[list[int]]]
    """The groups of all ranks, by name."""


def dyed(setup: Setup, ranks: Ranks, known: Known) -> Found:
    """Dye the plain model, make it parallel, and read what this rank holds; also how it cuts a batch."""

    def prepare(fresh: torch.nn.Module) -> None:
        if not setup.one_rank:
            _check_again(ranks, known, _sums(fresh))
        dye.dye(fresh)

    parallel = parallelize(setup, torch.float64, exact=True, prepare=prepare)
    held = dye.read(parallel.modules, known.sizes, dye.offsets(known.sizes), parallel.rename)
    cut = any(ranks.gather(cuts_weights(held, known.sizes)))
    chosen = choose(setup, parallel.modules, cut, ranks.rank, ranks.size)
    found = Found(held, chosen, parallel.mixed, named_groups(ranks, groups_of_torch(parallel.modules)))
    del parallel
    collect(known.elements)
    return found


def run(
    setup: Setup,
    ranks: Ranks,
    truth: Truth,
    held: Holdings,
    cut: Cut,
    dtype: torch.dtype,
    limit: Callable[[Key], float | None],
    groups: set[tuple[int, ...]],
    *,
    exact: bool,
    near: float | None,
    parts: Parts,
    steps: int,
    healed: frozenset[tuple[str, str]] = frozenset(),
) -> Pass:
    """Run the user's training; stop after the first step that deviates.

    ``near`` is how near an output must be to the part of the truth that it is; None if an earlier pass has found it.
    """
    rank = Rank(setup, truth.store, held, dtype, limit, parts, exact, near, healed)
    judged = []
    for step in range(START, steps):
        seen = rank.start() if step == START else rank.step(step, cut.apply)
        if near is not None:
            parts.update({(step, *seat): part for seat, part in {**seen.expected_parts, **seen.parts}.items()})
        # One rank judges for all: ranks that round in another way would part here, and wait for each other.
        judged.append(ranks.decide(_light(seen), partial(judge, truth.store, step, limit=limit, groups=groups)))
        if near is not None:
            for seat in judged[-1].partial:
                part = parts.pop((step, *seat), None)
                if part is not None:
                    parts[step, f"partial {seat[0]}", seat[1]] = part
        if judged[-1].deviations:
            break
    trace = rank.trace()
    del rank
    collect(sum(share.elements for share in held.shares))
    return Pass(trace, tuple(judged))


def _light(seen: Seen) -> Seen:
    """Return what other ranks need of it: not the values, but those that may be partial."""
    left, values = _MOST_SENT, {}
    for output, value in seen.unmatched.items():
        left -= value.numel() * value.element_size()
        if left < 0:
            break
        values[output] = value
    return replace(seen, kept={}, unmatched=values)


def exactly(key: Key) -> float | None:
    """Return how far a tensor may be off in fp64."""
    return LIMIT


def within(noise: Mapping[Key, float], dtype: torch.dtype) -> Callable[[Key], float | None]:
    """Return how far a tensor may be off in a dtype; None if one process does not say it."""
    floor = 8 * torch.finfo(dtype).eps

    def limit(key: Key) -> float | None:
        return TIMES * noise[key] + floor if key in noise else None

    return limit
