"""Decide from what all ranks have seen of a step which tensors part from the plain model's, and in which order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from everyrank.parity.judge.conventions import convention, is_factor, other_factors, stand_ins, without
from everyrank.parity.judge.numbers import of_numbers
from everyrank.parity.run.activations import LIMIT, Seen
from everyrank.parity.run.plain import (
    BACKWARD,
    BUFFER,
    FORWARD,
    GRADIENT,
    LOSS,
    NORM,
    PARAMETER,
    RATES,
    START,
    STATE,
    Key,
    scale,
)
from everyrank.parity.run.store import Store
from everyrank.parity.values.parts import Part, locate
from everyrank.parity.values.watch import Output, Seat
from everyrank.suites.compare.patterns.fit import Fit
from everyrank.suites.compare.patterns.texts import ranks_text

#: The kinds of tensors, in the order of a step.
KINDS = ("initialization", "forward", "loss", "activation-gradient", "gradient", "norm", "update")

Limit = Callable[[Key], float | None]

#: All calls of a module together.
_ALL = -1


@dataclass(frozen=True)
class Deviation:
    """One tensor that is not the plain model's."""

    kind: str
    name: str
    step: int
    error: float
    limit: float
    ranks: tuple[int, ...]
    """The ranks on which it differs."""
    key: Key
    words: str = ""
    """What is known beyond values."""
    pattern: Fit | None = None
    """The pattern, where it is known without a look at all values."""

    @property
    def differs(self) -> str:
        """What is said of it where nothing more is known."""
        return f"differs by {self.error:.2g} of its largest value on {ranks_text(self.ranks)}"

    def order(self, forward: dict[str, int], backward: dict[str, int]) -> tuple[int, int]:
        """Return where it stands in the plain model's run of a step."""
        by_name = {"forward": forward, "activation-gradient": {name: -index for name, index in forward.items()}}
        return KINDS.index(self.kind), by_name.get(self.kind, backward).get(self.name, 0)


@dataclass(frozen=True)
class Fault:
    """A deviation that follows from no other."""

    deviation: Deviation
    pattern: Fit | None
    same: tuple[str, ...] = ()
    """Other tensors of its kind to which the same has happened."""


@dataclass(frozen=True)
class Judged:
    """One step on all ranks."""

    step: int
    deviations: tuple[Deviation, ...]
    """In the order of the plain model's run."""
    compared: frozenset[tuple[str, str]]
    """The tensors that were compared: kind and name."""
    not_compared: frozenset[tuple[str, str]]
    errors: dict[tuple[str, str], float]
    """The error of each tensor that was compared: the one that is nearest to its limit, or furthest beyond it."""
    limits: dict[tuple[str, str], float]
    """How large each of these may be; a tensor without a limit is missing."""
    partial: frozenset[Seat] = frozenset()
    """Outputs that are right if they are summed over ranks."""
    stand_ins: frozenset[str] = frozenset()
    """Modules that give on what they get on some ranks, and are themselves on others."""
    convention: float | None = None
    """The factor that gradients of outputs have, if any was found."""
    rates: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """The learning rates of the ranks' optimizers and of the plain one, where these are others."""
    is_scheduled: bool = False
    """Whether a scheduler has taken over the rates of a rank's optimizer."""
    guesses: tuple[Deviation, ...] = ()
    """Outputs that differ if they are the part of the plain model's that weights let guess."""


def in_order(notes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the kinds and names of all tensors, in the order of the plain model's run."""
    forward = [*dict.fromkeys(output[0] for output in notes[FORWARD])]
    backward = [*notes[BACKWARD]]
    names = {"forward": forward, "activation-gradient": forward[::-1], "gradient": backward, "update": backward}
    names |= {"initialization": backward[::-1], "loss": [""], "norm": [""]}
    return [(kind, name) for kind in KINDS for name in names[kind]]


def judge(store: Store, step: int, seen: list[Seen], limit: Limit, groups: Iterable[tuple[int, ...]]) -> Judged:
    """Judge one step; each rank comes to the same judgement."""
    forward = {name: index for index, (name, _, _) in enumerate(store.notes[FORWARD])}
    backward = {name: index for index, name in enumerate(store.notes[BACKWARD])}
    held = list(_held(step, seen, limit))
    scalars = list(_scalars(store, step, seen, limit))
    standing = stand_ins(seen)
    seen = [without(each, standing) for each in seen]
    matched = _matched(store, step, seen, set(groups))
    factor = convention(seen)
    partial, guesses, missing = _outputs(store, step, seen, limit, matched, factor)
    deviations = [*held, *(each.deviation for each in scalars if each.deviation is not None)]
    if not any(each.kind == "activation-gradient" for each in partial):
        # A loss inside of a model is a mean over what a rank has, which its caller may weigh.
        numbers = {each.key for each in partial if not store[each.key].ndim}
        missing |= {(each.kind, each.name) for each in partial if each.key in numbers}
        partial = [each for each in partial if each.key not in numbers]
    if deviations:
        # An output that differs while all that is trained agrees is a convention, and no fault.
        deviations += [each for each in partial if each.error > LIMIT or each.words]
    else:
        missing |= {(each.kind, each.name) for each in partial}
    errors = _nearest(seen, limit, {each.key for each in held})
    errors.update({(each.kind, ""): (each.error, each.limit) for each in scalars})
    errors.update({(deviation.kind, deviation.name): (deviation.error, deviation.limit) for deviation in deviations})
    ordered = sorted(deviations, key=lambda each: each.order(forward, backward))
    return Judged(
        step,
        tuple(ordered),
        frozenset(errors) - missing,
        frozenset(missing),
        {name: error for name, (error, _) in errors.items()},
        {name: allowed for name, (_, allowed) in errors.items() if allowed is not None},
        frozenset(matched),
        standing,
        factor,
        _other_rates(store, step, seen),
        any(each.is_scheduled for each in seen),
        tuple(sorted(guesses, key=lambda each: each.order(forward, backward))),
    )


def _other_rates(store: Store, step: int, seen: list[Seen]) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    known = store.get((RATES, step))
    plain = () if known is None else tuple(known.tolist())
    mine = tuple(sorted({rate for each in seen for rate in each.rates}))
    return (mine, plain) if mine and plain and mine != plain else None


def _nearest(seen: list[Seen], limit: Limit, wrong: set[Key]) -> dict[tuple[str, str], tuple[float, float | None]]:
    """Return the error and the limit of each tensor where they are nearest; ``wrong`` is what ranks hold wrongly."""
    nearest: dict[tuple[str, str], tuple[float, float | None]] = {}
    for each in seen:
        for key, error in each.errors.items():
            allowed, name = limit(key), (kind_of(key), name_of(key))
            if key[0] == GRADIENT and key not in wrong and allowed is not None and not error <= allowed:
                continue  # This rank does not step with it.
            before = nearest.get(name, (-math.inf, None))
            if _share_of(error, allowed) >= _share_of(*before):
                nearest[name] = error, allowed
    return nearest


def _share_of(error: float, allowed: float | None) -> float:
    """Return how large an error is beside what is allowed; those without a limit come first."""
    return error / allowed if allowed else error


def kind_of(key: Key) -> str:
    """Return the kind of a value, in the words of a report."""
    if key[0] in (PARAMETER, BUFFER, STATE):
        return "initialization" if key[1] == START else "update"
    return {FORWARD: "forward", BACKWARD: "activation-gradient", GRADIENT: "gradient"}.get(key[0], str(key[0]))


def name_of(key: Key) -> str:
    """Return the name of the tensor in the plain model."""
    if len(key) < 3:
        return ""
    return str(key[2][0] if key[0] in (FORWARD, BACKWARD) else key[2])


def _held(step: int, seen: list[Seen], limit: Limit) -> Iterator[Deviation]:
    """Yield what ranks hold and differs: gradients, and parameters and buffers after the step."""
    wrong: dict[Key, dict[int, float]] = {}
    right: dict[Key, set[int]] = {}
    for rank, each in enumerate(seen):
        for key, error in each.errors.items():
            if key[0] not in (GRADIENT, PARAMETER, BUFFER, STATE):
                continue
            allowed = limit(key)
            if allowed is None:
                continue
            if error <= allowed:
                right.setdefault(key, set()).add(rank)
            else:
                wrong.setdefault(key, {})[rank] = error
    gradients = {key[2] for key in wrong if key[0] == GRADIENT}
    updated = {key[2] for key in wrong if key[0] == PARAMETER}
    for key, errors in wrong.items():
        if key[0] == GRADIENT and key[2] not in updated and key in right:
            continue  # The ranks that step with it have it right: others reduce to an owner.
        if key[0] == PARAMETER and key[1] != START and key[2] in gradients:
            continue  # The optimizer did with a wrong gradient what it had to.
        if key[0] == STATE and key[2] in gradients | updated:
            continue  # It is made of these.
        worst, ranks, kept = max(errors.values()), tuple(sorted(errors)), None
        if key[0] == STATE:
            words = f"is right, but the optimizer's `{key[3]}` of it is not the plain one's on {ranks_text(ranks)}"
            kept = Fit("", words)
        yield Deviation(kind_of(key), key[2], step, worst, limit(key) or 0.0, ranks, key, pattern=kept)


@dataclass(frozen=True)
class _Scalar:
    """The loss or the norm of a step on all ranks."""

    kind: str
    error: float
    limit: float
    deviation: Deviation | None


def _scalars(store: Store, step: int, seen: list[Seen], limit: Limit) -> Iterator[_Scalar]:
    """Yield the loss and the norm; they differ only if they do under each convention: on each rank, a mean, a sum."""
    if step == START:
        return
    for kind, values in ((LOSS, [each.loss for each in seen]), (NORM, [each.norm for each in seen])):
        numbers = [value for value in values if value is not None]
        truth = store.get((kind, step))
        if not numbers or truth is None:
            continue
        allowed = limit((kind, step))
        if allowed is None:
            continue
        # Who sends a number to a log may round it before, in the pass in fp64, too.
        allowed = max(allowed, *(2 * each.rounding.get(kind, 0.0) for each in seen))
        unit = scale(store, (kind, step))
        # Of a number that is not one, `max` says what it likes.
        finite = all(math.isfinite(number) for number in numbers)
        each = max(abs(number - float(truth)) for number in numbers) / unit if finite else math.inf
        total = sum(numbers)
        others = [abs(total / len(numbers) - float(truth)) / unit, abs(total - float(truth)) / unit]
        error = min(
            [each, *(others if kind == LOSS else [])], key=lambda value: math.inf if math.isnan(value) else value
        )
        deviation = None
        if not error <= allowed:
            ranks = tuple(rank for rank, value in enumerate(values) if value is not None)
            own = [each.own_norm for each, value in zip(seen, values, strict=True) if value is not None]
            pattern = of_numbers(numbers, float(truth), len(seen), own if kind == NORM else [])
            deviation = Deviation(kind, "", step, error, allowed, ranks, (kind, step), pattern.text, pattern)
        yield _Scalar(kind, error, allowed, deviation)


def _matched(store: Store, step: int, seen: list[Seen], groups: set[tuple[int, ...]]) -> dict[Seat, set[int]]:
    """Return the outputs that are right if they are summed over ranks, and gradients over calls: partial values.

    A number that a module returns is summed over calls, too: of a loss inside of a model each part has its own.
    """
    matched: dict[Seat, set[int]] = {}
    sums: dict[tuple[str, Output, int], dict[int, list[tuple[Output, torch.Tensor]]]] = {}
    for rank, each in enumerate(seen):
        for (kind, output), value in each.unmatched.items():
            # A gradient is summed over ranks in each call, or over calls, too.
            calls = {output[1], _ALL} if kind == BACKWARD else {output[1] if value.ndim else _ALL}
            for call in calls:
                sums.setdefault((kind, each.whole[output], call), {}).setdefault(rank, []).append(
                    (output, value.double())
                )
    for (kind, whole, _), having in sums.items():
        truth = store.get((kind, step, whole))
        if truth is None or len({value.shape for values in having.values() for _, value in values}) > 1:
            continue
        near = LIMIT * scale(store, (kind, step, whole))
        for group in sorted({(rank,) for rank in having} | {tuple(sorted(having))} | groups, key=len):
            if not set(group) <= set(having):
                continue
            mine = [(rank, output, value) for rank in group for output, value in having[rank]]
            total = torch.stack([value for _, _, value in mine]).sum(0)
            hints = [part for rank, output, _ in mine for part in _parts_of(seen[rank], output)]
            if any(_is_sum(kind, total, truth, near, count, hints) for count in {len(group), len(mine)}):
                for rank, output, _ in mine:
                    matched.setdefault((kind, output), set()).add(rank)
    return matched


def _is_sum(kind: str, total: torch.Tensor, truth: torch.Tensor, near: float, count: int, hints: list[Part]) -> bool:
    """Return whether a sum is a part of the truth; gradients of outputs may have a uniform factor."""
    if any(locate(each, truth, near, hints) is not None for each in (total, total / count)):
        return True
    if kind == FORWARD or total.shape != truth.shape:
        return False
    square = float((truth.double() * truth.double()).sum())
    factor = float((total * truth.double()).sum()) / square if square else 0.0
    return bool(factor) and locate(total / factor, truth, near) is not None


def _parts_of(seen: Seen, output: Output) -> list[Part]:
    return [
        part
        for (kind, other), part in seen.parts.items()
        if other == output or (kind == FORWARD and other[1] == output[1])
    ][:4]


def _outputs(
    store: Store, step: int, seen: list[Seen], limit: Limit, matched: dict[Seat, set[int]], usual: float | None
) -> tuple[list[Deviation], list[Deviation], set[tuple[str, str]]]:
    """Return the outputs that differ, those that do by a guess, and all that cannot be compared."""
    wrong: dict[Key, dict[int, float]] = {}
    by_guess: dict[Key, dict[int, float]] = {}
    missing: set[tuple[str, str]] = {("forward", name) for name in store.notes["too large"]}
    for rank, each in enumerate(seen):
        for (kind, output), error in each.unmatched_errors.items():
            if rank in matched.get((kind, output), ()):
                continue
            key = (kind, step, each.whole[output])
            if error is None or (kind, output) in each.guessed:
                missing.add((kind_of(key), name_of(key)))
            if error is not None and (kind, output) in each.guessed:
                by_guess.setdefault(key, {})[rank] = error
            elif error is not None:
                wrong.setdefault(key, {})[rank] = error
        for seat, factor in each.factors.items():
            if usual is not None and not is_factor(factor, usual):
                key = (BACKWARD, step, each.whole[seat[1]])
                wrong.setdefault(key, {})[rank] = abs(factor / usual - 1)
        for key, error in each.errors.items():
            if key[0] in (FORWARD, BACKWARD) and (allowed := limit(key)) is not None and not error <= allowed:
                wrong.setdefault(key, {})[rank] = error
    others = other_factors(seen, usual)

    def deviation(key: Key, errors: dict[int, float]) -> Deviation:
        ranks, pattern = tuple(sorted(errors)), others.get(key[2]) if key[0] == BACKWARD else None
        worst, allowed = max(errors.values()), limit(key) or LIMIT
        return Deviation(kind_of(key), name_of(key), step, worst, allowed, ranks, key, pattern=pattern)

    guesses = [deviation(*each) for each in by_guess.items()]
    every = [deviation(*each) for each in wrong.items()]
    deviations = [each for each in every if (each.kind, each.name) not in missing]
    return [*deviations, *_uncovered(store, step, seen, {each.key for each in deviations})], guesses, missing


def _uncovered(store: Store, step: int, seen: list[Seen], wrong: set[Key]) -> Iterator[Deviation]:
    """Yield the outputs of which no rank has some rows or positions, although each is right where it is."""
    parts: dict[Output, list[Part]] = {}
    for each in seen:
        for (kind, output), part in each.parts.items():
            if kind == FORWARD:
                parts.setdefault(each.whole[output], []).append(part)
    unmatched = {each.whole[output] for each in seen for kind, output in each.unmatched if kind == FORWARD}
    for output, held in parts.items():
        key = (FORWARD, step, output)
        truth = store.get(key)
        if truth is None or output in unmatched or key in wrong or any(_is_whole(part) for part in held):
            continue
        covered = torch.zeros(truth.shape, dtype=torch.bool)
        for part in held:
            part.mark(covered)
        lacking = _lacking(truth, covered)
        if lacking:
            words = f"has {lacking} of its {covered.numel()} elements on no rank, and others more than once"
            ranks = tuple(range(len(seen)))
            yield Deviation("forward", output[0], step, 0.0, LIMIT, ranks, key, words, Fit("shifted", words))


def _lacking(truth: torch.Tensor, covered: torch.Tensor) -> int:
    """Return how many elements are on no rank, without those whose values are on one at another row, too."""
    if covered.all() or not truth.ndim:
        return 0
    rows, seen = truth.reshape(-1, truth.shape[-1]), covered.reshape(-1, truth.shape[-1])
    known = {tuple(row) for row in rows[seen.all(dim=1)].tolist()}
    return sum(
        int((~mine).sum())
        for row, mine in zip(rows, seen, strict=True)
        if not mine.all() and tuple(row.tolist()) not in known
    )


def _is_whole(part: Part) -> bool:
    return all(indices is None for indices in part.indices)
