"""Look for the faults: the first tensor that deviates, and what is left when the truth is put in its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from everyrank.parity.judge.besides import clipped, lacking, of_own_rows, of_the_optimizer, own_mean
from everyrank.parity.judge.claims import of_gradient
from everyrank.parity.judge.initial import initial
from everyrank.parity.judge.outputs import wrong_outputs
from everyrank.parity.judge.patterns import Patterns
from everyrank.parity.judge.steps import Fault, in_order
from everyrank.parity.judge.training import Healed, Pass, Training
from everyrank.parity.run.plain import BACKWARD, FORWARD
from everyrank.parity.values.gathers import cut_gradients, dropped_results
from everyrank.suites.compare.patterns.fit import Fit
from everyrank.suites.compare.patterns.texts import ranks_text

#: How many faults are looked for: each takes another pass.
_FAULTS = 3

#: How many tensors are asked whether the same has happened to them.
_ALIKE = 64


class Search:
    """The search of one call on this rank; every rank does the same at the same time."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.patterns = Patterns(training)

    def faults(self, wide: Pass) -> Iterator[Fault]:
        """Yield the first deviation, then what is left when the truth is put in its place, and so on."""
        training = self._training
        sizes, store = training.known.sizes, training.truth.store
        at_start = initial(training.found.everywhere, store, training.setup, sizes, wide.deviates)
        if at_start is not None:
            yield at_start
            return
        if untrue := self._untrue(wide):
            yield from untrue
            return
        healed: set[tuple[str, str]] = set()
        for _ in range(_FAULTS):
            wide = self._without_conventions(wide, frozenset(healed))
            if not wide.deviates:
                return
            fault = self._unreduced(wide, frozenset(healed)) or self._cut_and_wrong(wide, frozenset(healed))
            fault = fault or self._first(wide)
            names = {(fault.deviation.key[0], name) for name in (fault.deviation.name, *fault.same)}
            if names <= healed:
                return
            if names & {(FORWARD, name) for name in training.known.batch_norms}:
                yield fault
                # Its backward goes through its own rows, too: the truth in its place heals no gradient.
                yield from self._without_statistics()
                return
            cuts, dropped = list[str](), list[str]()
            with cut_gradients(cuts), dropped_results(dropped):
                wide = training.wide(frozenset(healed | names))
            fault, again = self._lost(fault, cuts, dropped, frozenset(healed))
            healed |= names
            if again is None and fault.deviation.kind == "activation-gradient":
                fault, wide = self._with_others(fault, wide, healed)
            yield fault
            if again is not None and not again.deviates:
                return

    def _untrue(self, wide: Pass) -> list[Fault]:
        """Return the outputs that are not where they are claimed to be, if nothing deviates before the first."""
        store = self._training.truth.store
        wrong = self._training.ranks.decide(wide.trace.claims, partial(wrong_outputs, store))
        order = in_order(store.notes)
        first = next((each for judged in wide.judged for each in judged.deviations), None)
        if first is not None and first.step == 0 and wrong:
            location = order.index(("forward", wrong[0].name))
            if (first.kind, first.name) in order[:location]:
                return []
        return [Fault(each, each.pattern) for each in wrong[:_FAULTS]]

    def _with_others(self, fault: Fault, wide: Pass, healed: set[tuple[str, str]]) -> tuple[Fault, Pass]:
        """Return a fault with the other outputs whose gradients come to them wrong, and the pass without these.

        What looks at several outputs, as a loss over pairs does, gives a wrong gradient to each: that is one fault.
        """
        first = fault.deviation
        for _ in range(_FAULTS):
            wide = self._without_conventions(wide, frozenset(healed))
            other = wide.judged[-1].deviations[0] if wide.deviates else None
            if other is None or (other.kind, other.step, other.ranks) != (first.kind, first.step, first.ranks):
                break
            pattern = self.patterns.explain(wide, other)
            if pattern != fault.pattern:
                break
            healed.add((BACKWARD, other.name))
            fault = replace(fault, same=(*fault.same, other.name))
            wide = self._training.wide(frozenset(healed))
        return fault, wide

    def _without_statistics(self) -> Iterator[Fault]:
        """Yield what is wrong besides batch statistics: what differs if batch norms take their running ones."""
        training = self._training.with_still_norms()
        wide = training.wide()
        first = wide.judged[-1].deviations[0] if wide.deviates else None
        if first is not None and first.name not in self._training.known.batch_norms:
            for fault in Search(training).faults(wide):
                words = fault.pattern.text if fault.pattern is not None else fault.deviation.differs
                kind = fault.pattern.id if fault.pattern is not None else ""
                yield replace(fault, pattern=Fit(kind, f"{words}, with batch norms in .eval()"))

    def _lost(self, fault: Fault, cuts: list[str], dropped: list[str], healed: Healed) -> tuple[Fault, Pass | None]:
        """Return a fault with the collective that gets what other ranks give lost, and the pass in which none is."""
        first, training = fault.deviation, self._training
        cut, drop = (
            training.ranks.decide(lines, lambda every: next((each[0] for each in every if each), ""))
            for lines in (cuts, dropped)
        )
        ways = [
            (drop, dropped_results, "returns the sum over ranks, and nothing takes it: it is right with that sum"),
            (cut, cut_gradients, "gives no gradient back to other ranks: it is right with one that does"),
        ]
        for found, watched, words in ways if first.kind in ("gradient", "activation-gradient") else ways[:1]:
            if not found:
                continue
            with watched([], healed=True):
                again = training.wide(healed)
            if first.key not in {each.key for each in again.judged[-1].deviations}:
                pattern = fault.pattern or Fit("", first.differs)
                return replace(fault, pattern=Fit(pattern.id, f"{pattern.text}, since {found} {words}")), again
        return fault, None

    def _without_conventions(self, wide: Pass, healed: Healed) -> Pass:
        """Leave out gradients of outputs that differ without consequence: the truth in their place heals nothing."""
        if not wide.deviates or wide.judged[-1].deviations[0].kind != "activation-gradient":
            return wide
        first = wide.judged[-1].deviations[0]
        again = self._training.wide(healed | {(BACKWARD, first.name)})
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
        pattern = self.patterns.explain(wide, first)
        if (
            first.kind in ("forward", "loss")
            and (own := of_own_rows(self._training, wide, first, pattern)) is not None
        ):
            return Fault(first, own)
        if first.kind == "loss" and not others and pattern is not None and not pattern.id:
            return Fault(first, own_mean(self._training, pattern))
        if first.kind == "gradient" and (by_clip := clipped(self._training, wide, pattern)) is not None:
            return Fault(first, by_clip, tuple(each.name for each in others if each.kind == first.kind))
        if first.kind == "activation-gradient" and pattern is None:
            pattern = lacking(self._training, wide, first)
        alike = [each for each in others if each.kind == first.kind and each.kind in ("gradient", "update")]
        same = [each.name for each in alike[:_ALIKE] if self.patterns.explain(wide, each) == pattern]
        if first.kind == "gradient":
            claims = wide.trace.seen.gradient_claims.get(first.name)
            pattern = self._training.ranks.decide(claims, partial(of_gradient, pattern=pattern)) or pattern
        return Fault(first, of_the_optimizer(self._training, wide, first, pattern), tuple(same))

    def _unreduced(self, wide: Pass, healed: Healed) -> Fault | None:
        """Return the partial output that is the cause of the first deviation, if putting the truth there heals it.

        A partial output is no fault in itself: the sum may come later.
        """
        judged = wide.judged[-1]
        first = judged.deviations[0]
        kind = {"forward": FORWARD, "activation-gradient": BACKWARD}.get(first.kind)
        order = [*dict.fromkeys(output[0] for output in self._training.truth.store.notes[FORWARD])]
        if kind is None or first.name not in order:
            return None
        index = order.index(first.name)
        before = order[:index] if kind == FORWARD else order[index + 1 :]
        names = {name for name in before if any(seat[0] == kind and seat[1][0] == name for seat in judged.partial)}
        # In the forward the sum before is missing, and in a backward the first one: all that follow are partial, too.
        for name in sorted(names, key=order.index, reverse=True)[:2]:
            again = self._training.wide(healed | {(kind, name)})
            left = {each.key for each in again.judged[-1].deviations}
            if first.key not in left:
                words = f"is not reduced: the sum over {ranks_text(first.ranks)} is the plain model's"
                if kind == BACKWARD:
                    words = f"is not reduced over ranks: each of {ranks_text(first.ranks)} has its own part"
                deviation = replace(first, name=name, key=(kind, first.step, (name, 0, 0)))
                return Fault(deviation, Fit("not-reduced", words))
        return None

    def _cut_and_wrong(self, wide: Pass, healed: Healed) -> Fault | None:
        """Return an output that is cut and wrong, and so found nowhere, if the truth there heals the first."""
        judged = wide.judged[-1]
        first = judged.deviations[0]
        if first.kind not in ("forward", "loss"):
            return None
        order = [*dict.fromkeys(output[0] for output in self._training.truth.store.notes[FORWARD])]
        end = order.index(first.name) if first.kind == "forward" else len(order)
        guesses = [each for each in judged.guesses if each.kind == "forward" and each.error > each.limit]
        before = [each for each in guesses if each.name in order[:end]]
        for each in before[:_FAULTS]:
            again = self._training.wide(healed | {(FORWARD, each.name)})
            if first.key not in {left.key for left in again.judged[-1].deviations}:
                return Fault(each, self.patterns.explain(wide, each))
        return None
