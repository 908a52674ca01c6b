"""Bring together what all ranks know of a tensor that parts from the plain model's, and ask for its pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from everyrank.parity.judge.steps import Deviation
from everyrank.parity.run.activations import LIMIT
from everyrank.parity.run.parallel import Trace
from everyrank.parity.run.plain import BACKWARD, BUFFER, FORWARD, GRADIENT, PARAMETER, START, Key, scale
from everyrank.parity.run.store import Store
from everyrank.parity.setup.ranks import Ranks
from everyrank.parity.values.dye import MOST, Share
from everyrank.suites.compare.patterns.evidence import AllRanks
from everyrank.suites.compare.patterns.fit import Fit, of_all_ranks
from everyrank.suites.compare.patterns.likeness import Held, all_of, distance, multiple


class Witnesses:
    """The ranks of a pass, as those who know what they hold."""

    def __init__(
        self,
        ranks: Ranks,
        trace: Trace,
        groups: Mapping[str, list[list[int]]],
        pieces: Callable[[str], list[list[torch.Tensor]]],
        microbatches: int,
        rates: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
        convention: float | None = None,
        tokens: Sequence[Sequence[float]] = (),
    ) -> None:
        self._ranks, self._trace, self._groups, self._pieces = ranks, trace, groups, pieces
        self._microbatches, self._rates, self._convention = microbatches, rates, convention or 1.0
        self._tokens = tokens

    def pattern(self, deviation: Deviation) -> Fit | None:
        """Return the pattern that explains a deviation; every rank asks for the same."""
        key = deviation.key
        if deviation.pattern is not None:
            return deviation.pattern
        if len(key) < 3 or deviation.words or not deviation.ranks:
            return None
        mine = self._mine(key)
        return self._ranks.decide(mine, lambda every: self._recognized(deviation, every))

    def _recognized(self, deviation: Deviation, every: list[Held | None]) -> Fit | None:
        held = {rank: part for rank, part in enumerate(every) if part is not None}
        wrong = [rank for rank in deviation.ranks if rank in held]
        if not wrong:
            return None
        evidence = self._evidence(deviation.key, held, wrong)
        if deviation.kind == "update" and self._rates is not None:
            return self._of_rates(evidence, deviation.step, *self._rates)
        return of_all_ranks(evidence)

    def _of_rates(self, seen: AllRanks, step: int, mine: tuple[float, ...], plain: tuple[float, ...]) -> Fit | None:
        """Return that an update was made with another learning rate, if that explains it, or nothing else does.

        A rate that is another from the first step on is no scheduler's: what it is a multiple by is said, too.
        """
        rates, others = (" and ".join(f"{rate:g}" for rate in each) for each in (mine, plain))
        if step == 0 and (fit := of_all_ranks(seen)) is not None:
            return Fit(fit.id, f"{fit.text}; its learning rate is {rates}, and the plain optimizer's {others}")
        for factor in (rate / other for rate in mine for other in plain if other and rate != other):
            if seen.explains(partial(_times, seen, factor)):
                words = f"is made with the learning rate {rates} on {seen.location}, where the plain optimizer has"
                return Fit("", f"{words} {others}")
        words = f"differs on {seen.location}, with the learning rate {rates}, where the plain optimizer has {others}"
        return of_all_ranks(seen) or Fit("", words)

    def _evidence(self, key: Key, held: Mapping[int, Held], wrong: list[int]) -> AllRanks:
        store = self._trace.store
        kind, step, name = key
        truth = _moved(store, key)
        before = None
        if step > 0 and kind in (GRADIENT, PARAMETER) and (kind, step - 1, name) in store:
            before = _moved(store, (kind, step - 1, name))
        others = {}
        if kind == GRADIENT or (kind == PARAMETER and step == START):
            others = {
                other: value
                for other in store.notes[BACKWARD]
                if other != name
                and (value := store.get((kind, step, other))) is not None
                and value.shape == truth.shape
            }
        times = 100.0 if torch.finfo(self._trace.dtype).eps < 1e-4 else 20.0
        return AllRanks(
            truth,
            held,
            wrong,
            self._ranks.size,
            self._microbatches,
            self._groups,
            lambda: self._pieces(name),
            before,
            others,
            self._tokens,
            times,
        )

    def _mine(self, key: Key) -> Held | None:
        """Return what this rank holds of a tensor."""
        if key[0] in (FORWARD, BACKWARD):
            return self._of_outputs(key)
        if key[0] == BUFFER:
            return all_of(self._trace.seen.kept.get(key, self._trace.store[key]).clone())
        return _joined(self._of_share(key, share) for share in self._trace.holdings.shares if share.name == key[2])

    def _of_share(self, key: Key, share: Share) -> tuple[torch.Tensor, torch.Tensor]:
        store, seen = self._trace.store, self._trace.seen
        values = seen.kept.get((*key, share.key))
        values = share.looked_at(share.expected(store[key])) if values is None else values
        if key[0] == PARAMETER and key[1] != START:
            before = share.looked_at(share.expected(store[PARAMETER, key[1] - 1, key[2]]))
            values = values.double() - before.double()
        return share.looked_at(share.plain.ids()), values

    def _of_outputs(self, key: Key) -> Held | None:
        seen, store = self._trace.seen, self._trace.store
        truth = store[key]
        numbers = torch.arange(truth.numel()).view(truth.shape)
        pieces = []
        for output, belongs in seen.whole.items():
            if belongs != key[2]:
                continue
            kind = (key[0], output)
            part = seen.parts.get(kind, seen.expected_parts.get(kind))
            if part is None:
                continue
            ids = part.select(numbers)
            values = seen.unmatched.get(kind)
            if ids is None or (values is not None and values.shape != ids.shape):
                continue
            ids = ids.reshape(-1)
            if values is None:
                factor = seen.factors.get(kind, self._convention) / self._convention
                values = truth.reshape(-1)[ids] * factor
            elif key[0] == BACKWARD:
                values = values / self._convention
            pieces.append((ids, values.reshape(-1)))
        return _joined(pieces)


def _times(seen: AllRanks, factor: float, rank: int) -> torch.Tensor:
    return seen.expected(rank) * factor


def of_all_gradients(trace: Trace, step: int) -> float | None:
    """Return the factor that all gradients of this rank have alike; 1 if it has none, and None if they have none."""
    pairs = [
        (values.double(), share.looked_at(share.expected(truth)).double(), scale(trace.store, key))
        for share in trace.holdings.shares
        if (truth := trace.store.get(key := (GRADIENT, step, share.name))) is not None and truth.any()
        for values in [trace.seen.kept.get((*key, share.key), torch.empty(0))]
    ]
    if not pairs:
        return 1.0
    if any(values.shape != expected.shape for values, expected, _ in pairs):
        return None  # one of them is right
    factor = multiple(*(torch.cat(each) for each in list(zip(*pairs, strict=True))[:2]))
    near = 100 * torch.finfo(trace.dtype).eps if torch.finfo(trace.dtype).eps > LIMIT else LIMIT
    is_alike = all(distance(values, factor * expected) <= near * factor * unit for values, expected, unit in pairs)
    return factor if is_alike else None


def alike(factors: Sequence[float | None]) -> float | None:
    """Return the factor that all ranks have, without those that have no gradient."""
    known = {factor for factor in factors if factor != 1.0}
    first = next(iter(known), None)
    if first is None or any(each is None or abs(each / first - 1) > 1e-3 for each in known):
        return None
    return first


def _moved(store: Store, key: Key) -> torch.Tensor:
    """Return the truth of a tensor; of a parameter after a step, what the step changed in it."""
    truth = store[key]
    if key[0] == PARAMETER and key[1] != START:
        return truth.double() - store[PARAMETER, key[1] - 1, key[2]].double()
    return truth.clone()


def _joined(pieces: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Held | None:
    pieces = [(ids[ids < MOST], values.reshape(-1)[ids < MOST]) for ids, values in pieces]
    pieces = [(ids, values) for ids, values in pieces if len(ids)]
    if not pieces:
        return None
    return Held(torch.cat([ids for ids, _ in pieces]), torch.cat([values for _, values in pieces]))
