"""What the first deviating step of a comparison looks like, from all its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from everyrank.suites.compare.patterns.evidence import OneRank, Values, close
from everyrank.suites.compare.patterns.fit import Fit, common_factor, of_one_rank
from everyrank.suites.errors import Explanation

#: What all values would be after a step with a mistake: a pair for each mistake. The first has None, for no mistake.
Mistakes = Callable[[int], Iterable[tuple[Fit | None, Values]]]

#: By how many times the tolerance two references of a training may be apart: batches in one piece, and in parts.
_NEAR = 10.0


@dataclass(frozen=True)
class FirstDeviation:
    """All values of the first step that deviates, and which of them do."""

    step: int
    values: Values
    expected: Values
    before: Values
    """The reference a step before."""
    names: tuple[str, ...]
    relative: float
    """The tolerance of the comparison."""
    ranks: int = 0
    mistakes: Mistakes | None = None

    def explainer(self, location: str) -> Callable[[], Explanation | None]:
        """Return a function that explains the deviation, for a text that names its location so."""

        def explain() -> Explanation | None:
            fit = self.fit()
            return None if fit is None else Explanation(location, fit.id, fit.text)

        return explain

    def fit(self) -> Fit | None:
        """Return what the first deviating value looks like, together with the others."""
        deviating = [self._deviating(name) for name in self.names]
        first = of_one_rank(deviating[0])
        if first is not None and first.id == "nan":
            return first
        return self._mistake(deviating) or (common_factor(deviating) if first is None else first)

    def _deviating(self, name: str) -> OneRank:
        others = {other: value for other, value in self.expected.items() if other != name}
        values, expected = self.values[name], self.expected[name]
        return OneRank(values, expected, self.before.get(name), others, self.ranks, self.relative)

    def _mistake(self, deviating: list[OneRank]) -> Fit | None:
        """Return the mistake with which all values of the step that deviate would be as they were found.

        A mistake is made with every gradient, or with those of some parameters: all others are right then.
        """
        if self.mistakes is None or not deviating[0].is_clear:
            return None
        seen = dict(zip(self.names, deviating, strict=True))
        fitting: dict[Fit, bool] = {}
        for mistake, values in self.mistakes(self.step):
            if mistake is None:
                if not self._is_expected(values):
                    return None
            elif all(name in values and tensor.is_like(values[name]) for name, tensor in seen.items()):
                fitting.setdefault(mistake, self._all_fit(values))
        if not fitting:
            return None
        # What explains all values is more than what explains some.
        best = [mistake for mistake, all_fit in fitting.items() if all_fit] or list(fitting)
        text = ", or ".join(mistake.text for mistake in best)
        return replace(best[0], text=text if fitting[best[0]] else f"{text}; the others are right")

    def _is_expected(self, values: Values) -> bool:
        """Return whether these are the values of the reference, of which the mistakes know no other."""
        return all(
            name not in values or close(values[name], expected, _NEAR * self._deviating(name).slack)
            for name, expected in self.expected.items()
            if expected.is_floating_point()
        )

    def _all_fit(self, values: Values) -> bool:
        return all(name in values and self._deviating(name).is_like(values[name]) for name in self.expected)
