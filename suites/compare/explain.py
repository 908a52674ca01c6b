"""What the first deviating step of a comparison looks like, from all its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from everyrank.suites.compare.pattern import Deviating, Pattern, Values, common_factor, is_clear, pattern
from everyrank.suites.errors import Explanation

#: What all values would be after this step, if a mistake had been made in it: one pair for each mistake.
Mistakes = Callable[[int], Iterable[tuple[Pattern, Values]]]


@dataclass(frozen=True)
class FirstDeviation:
    """All values of the first step that deviates, and which of them do."""

    step: int
    found: Values
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
            found = self.pattern()
            return None if found is None else Explanation(location, found.id, found.text)

        return explain

    def pattern(self) -> Pattern | None:
        """Return what the first deviating value looks like, together with the others."""
        deviating = [self._deviating(name) for name in self.names]
        first = pattern(deviating[0])
        if first is not None and first.id == "nan":
            return first
        return self._mistake(deviating) or (common_factor(deviating) if first is None else first)

    def _deviating(self, name: str) -> Deviating:
        others = {other: value for other, value in self.expected.items() if other != name}
        found, expected = self.found[name], self.expected[name]
        return Deviating(found, expected, self.before.get(name), others, self.ranks, self.relative)

    def _mistake(self, deviating: list[Deviating]) -> Pattern | None:
        """Return the mistake with which all values of the step that deviate would be as they were found.

        A mistake is made with every gradient, or with those of some parameters: all others are right then.
        """
        if self.mistakes is None or not is_clear(deviating[0]):
            return None
        seen = dict(zip(self.names, deviating, strict=True))
        for fitting, values in self.mistakes(self.step):
            if all(name in values and tensor.is_like(values[name]) for name, tensor in seen.items()):
                return (
                    fitting
                    if self._all_fit(values)
                    else replace(fitting, text=f"{fitting.text}; the others are right")
                )
        return None

    def _all_fit(self, values: Values) -> bool:
        return all(name in values and self._deviating(name).is_like(values[name]) for name in self.expected)
