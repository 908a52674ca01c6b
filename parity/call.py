"""One call of parity: the passes in their order, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from everyrank.parity import passes, record
from everyrank.parity.errors import Unusable
from everyrank.parity.judging.evidence import Witnesses, named_groups
from everyrank.parity.judging.fault import Fault
from everyrank.parity.judging.initial import initial
from everyrank.parity.judging.pattern import Pattern, ranks_text
from everyrank.parity.judging.steps import Deviation, Limit
from everyrank.parity.passes import Pass, Truth
from everyrank.parity.ranks import Ranks, groups_of_torch
from everyrank.parity.report import Finding, Report, short
from everyrank.parity.reporting import finding, written
from everyrank.parity.runs.activations import LIMIT, Parts
from everyrank.parity.runs.plain import BACKWARD, FORWARD, START, microbatch_gradients
from everyrank.parity.setup import Setup, own_dtype

#: How many faults are looked for: each takes another pass.
_FAULTS = 3

#: How many tensors are asked whether the same has happened to them.
_ALIKE = 64


class Call:
    """What a call of parity does on this rank; every rank does the same at the same time."""

    def __init__(self, setup: Setup, ranks: Ranks) -> None:
        self._setup, self._ranks = setup, ranks
        self._remarks: list[str] = []
        self._microbatches: dict[tuple[torch.dtype, int], list[dict[str, torch.Tensor]]] = {}
        self._limits: dict[tuple[torch.dtype, int], Limit] = {}
        self._parts: Parts = {}

    def report(self) -> Report:
        """Run all passes and say what they have found."""
        passes.same_model(self._setup, self._ranks)
        truth = passes.truth(self._setup, self._ranks, self._remarks)
        self._held, self._cut, self._mixed = passes.holdings(self._setup, self._ranks, truth)
        self._check_names(truth)
        self._groups = named_groups(self._ranks, groups_of_torch())
        wide = self._pass(truth)
        clip = self._found_clip(wide)
        if clip is not None:
            # The plain model clips as the ranks do.
            self._setup = replace(self._setup, clip=clip)
            self._parts.clear()
            truth = passes.truth(self._setup, self._ranks, [])
            wide = self._pass(truth)
        shown = wide.judged[-1]
        faults = list(self._faults(truth, wide))
        own = [self._own(truth, wide, dtype) for dtype in self._dtypes(truth)]
        findings = self._findings(truth, faults, own)
        if findings and not faults:
            # The user's dtype alone deviates: its pass is shown.
            shown = next(each for _, each in own if each.deviates).judged[-1]
        report = written(
            self._setup,
            truth.store.notes,
            [judged.compared for judged in wide.judged],
            shown,
            findings,
            dtypes=(short(truth.dtype), *(short(dtype) for dtype in self._dtypes(truth))),
            ranks=self._ranks.size,
            split=self._cut.words,
            remarks=tuple(self._remarks),
        )
        runs = [(truth.dtype, wide.judged), *((dtype, each.judged) for dtype, each in own)]
        record.note(self._ranks, report, runs, record.Held(self._held, self._parts, truth.store))
        return report

    def _check_names(self, truth: Truth) -> None:
        """Raise Unusable if too few parameters of the plain model are on any rank."""
        held = {name for each in self._ranks.gather(self._held.names()) for name in each}
        trained = [name for name in truth.store.notes[BACKWARD] if not self._setup.skips(name)]
        lost = [name for name in trained if name not in held]
        if len(lost) > (1 - self._setup.compared) * len(trained):
            raise Unusable(
                f"only {len(trained) - len(lost)} of {len(trained)} parameters can be compared, as no rank holds "
                f"values of {', '.join(sorted(lost)[:4])}: pass load= or rename=, or lower "
                f"compared={self._setup.compared:g}."
            )

    def _dtypes(self, truth: Truth) -> list[torch.dtype]:
        wanted = self._setup.dtypes or (own_dtype(self._setup.fresh()),)
        return [dtype for dtype in wanted if dtype != truth.dtype]

    def _pass(self, truth: Truth, healed: frozenset[tuple[str, str]] = frozenset()) -> Pass:
        near: float = LIMIT
        limit: Limit = passes.exactly
        if not truth.exact:
            near, limit = 1e3 * torch.finfo(truth.dtype).eps, self._limit(truth, truth.dtype, self._setup.steps)
        return self._run(truth, truth.dtype, limit, self._setup.steps, near, healed)

    def _run(
        self,
        truth: Truth,
        dtype: torch.dtype,
        limit: Limit,
        steps: int,
        near: float | None,
        healed: frozenset[tuple[str, str]] = frozenset(),
    ) -> Pass:
        groups = {tuple(group) for groups in self._groups.values() for group in groups}
        return passes.run(
            self._setup, self._ranks, truth, self._held, self._cut, dtype, limit, groups,
            exact=near is not None and truth.exact, near=near, parts=self._parts, steps=steps, healed=healed,
        )  # fmt: skip

    def _found_clip(self, wide: Pass) -> float | None:
        """Return to which norm the user's step clips, if nobody has said it."""
        if self._setup.clip is not None:
            return None
        clips = {each for each in self._ranks.gather(wide.rank.clipped) if each is not None}
        if len(clips) > 1:
            raise Unusable(f"the ranks clip to other norms: {sorted(clips)}.")
        return clips.pop() if clips else None

    def _faults(self, truth: Truth, wide: Pass) -> Iterator[Fault]:
        """Yield the first deviation, then what is left when the truth is put in its place, and so on."""
        found = initial(self._ranks, self._held, truth.store, self._setup, wide.deviates)
        if found is not None:
            yield found
            return
        healed: set[tuple[str, str]] = set()
        for _ in range(_FAULTS):
            wide = self._without_conventions(truth, wide, frozenset(healed))
            if not wide.deviates:
                return
            fault = self._unreduced(truth, wide, frozenset(healed)) or self._first(wide)
            names = {(fault.deviation.key[0], name) for name in (fault.deviation.name, *fault.same)}
            if names <= healed:
                return
            yield fault
            healed |= names
            wide = self._pass(truth, frozenset(healed))

    def _without_conventions(self, truth: Truth, wide: Pass, healed: frozenset[tuple[str, str]]) -> Pass:
        """Leave out gradients of outputs that differ without consequence: the truth in their place heals nothing."""
        if not wide.deviates or wide.judged[-1].deviations[0].kind != "activation-gradient":
            return wide
        first = wide.judged[-1].deviations[0]
        again = self._pass(truth, healed | {(BACKWARD, first.name)})
        before, after = (
            {each.key for each in judged.deviations if each.kind not in ("forward", "activation-gradient")}
            for judged in (wide.judged[-1], again.judged[-1])
        )
        if not before <= after or first.key in {each.key for each in again.judged[-1].deviations}:
            return wide
        left = tuple(each for each in wide.judged[-1].deviations if each.kind != "activation-gradient")
        return replace(wide, judged=(*wide.judged[:-1], replace(wide.judged[-1], deviations=left)))

    def _first(self, wide: Pass) -> Fault:
        """Return the first deviation, with the others of its kind to which the same has happened."""
        first, *others = wide.judged[-1].deviations
        pattern = self._pattern(wide, first)
        alike = [each for each in others if each.kind == first.kind and each.kind in ("gradient", "update")]
        same = [each.name for each in alike[:_ALIKE] if self._pattern(wide, each) == pattern]
        return Fault(first, pattern, tuple(same))

    def _unreduced(self, truth: Truth, wide: Pass, healed: frozenset[tuple[str, str]]) -> Fault | None:
        """Return the partial output that is the cause of the first deviation, if putting the truth there heals it.

        A partial output is no fault in itself: the sum may come later.
        """
        judged = wide.judged[-1]
        first = judged.deviations[0]
        if first.kind != "forward":
            return None
        order = [output[0] for output in truth.store.notes[FORWARD]]
        before = order[: order.index(first.name)]
        names = {name for name in before if any(seat[0] == FORWARD and seat[1][0] == name for seat in judged.partial)}
        for name in sorted(names, key=order.index, reverse=True)[:2]:
            again = self._pass(truth, healed | {(FORWARD, name)})
            left = {each.key for each in again.judged[-1].deviations}
            if first.key not in left:
                words = f"is not reduced: the sum over {ranks_text(first.ranks)} is the plain model's"
                key = (FORWARD, first.step, (name, 0, 0))
                deviation = replace(first, name=name, key=key)
                return Fault(deviation, Pattern("not-reduced", words))
        return None

    def _pieces(self, dtype: torch.dtype, count: int) -> list[dict[str, torch.Tensor]]:
        if (dtype, count) not in self._microbatches:
            self._microbatches[dtype, count] = microbatch_gradients(self._setup, dtype, count)
        return self._microbatches[dtype, count]

    def _pattern(self, wide: Pass, deviation: Deviation) -> Pattern | None:
        pieces: list[list[dict[str, torch.Tensor]]] = []
        if deviation.kind == "gradient" and deviation.step == 0:
            pieces = [
                self._pieces(wide.rank.dtype, count) for count in sorted({1, self._cut.pieces, self._ranks.size})
            ]
        witnesses = Witnesses(self._ranks, wide.rank, self._groups, pieces, self._setup.microbatches)
        return witnesses.pattern(deviation)

    def _own(self, truth: Truth, wide: Pass, dtype: torch.dtype) -> tuple[torch.dtype, Pass]:
        """Run in the user's dtype, as far as the pass in fp64 came."""
        steps = max(len(wide.judged) - 1, 1)
        return dtype, self._run(truth, dtype, self._limit(truth, dtype, steps), steps, None)

    def _limit(self, truth: Truth, dtype: torch.dtype, steps: int) -> Limit:
        """Return how far tensors may be off in a dtype, from what rounding does to one process."""
        if (dtype, steps) not in self._limits:
            noise = passes.noise(self._setup, self._ranks, truth, dtype, self._cut.pieces, self._mixed, steps)
            self._limits[dtype, steps] = passes.within(noise, self._mixed or dtype)
        return self._limits[dtype, steps]

    def _hides(self, dtype: torch.dtype, deviation: Deviation) -> bool:
        """Return whether rounding in a dtype may hide a deviation of this size."""
        allowed = [limit(deviation.key) for (each, _), limit in self._limits.items() if each == dtype]
        return not any(each is not None and each < deviation.error for each in allowed)

    def _findings(self, truth: Truth, faults: list[Fault], own: list[tuple[torch.dtype, Pass]]) -> list[Finding]:
        """Return the faults, each with the dtypes in which it shows."""
        findings = []
        for fault in faults:
            deviation, pattern = fault.deviation, fault.pattern
            seen = [short(truth.dtype)]
            absent: list[str] = []
            for dtype, each in own:
                names = {(found.kind, found.name) for judged in each.judged for found in judged.deviations}
                shows = (deviation.kind, deviation.name) in names or deviation.step == START
                (seen if shows else absent).append(short(dtype))
            if absent and not any(each.deviates or self._hides(dtype, deviation) for dtype, each in own):
                # That it is there in one dtype alone says more than what it is: a test in the other sees nothing.
                words = pattern.words if pattern is not None else "differs"
                words = f"in {' and '.join(seen)}, and not in {' and '.join(absent)}, {words}"
                pattern = Pattern("other-dtype-only", words)
            findings.append(finding(deviation, pattern, tuple(seen), fault.same))
        if findings:
            return findings
        for dtype, each in own:
            if each.deviates:
                first = each.judged[-1].deviations[0]
                pattern = self._pattern(each, first)
                if pattern is None or not pattern.id:
                    words = f"differs in {short(dtype)}, and not in {short(truth.dtype)}"
                    pattern = Pattern("other-dtype-only", words)
                findings.append(finding(first, pattern, (short(dtype),), ()))
        return findings
