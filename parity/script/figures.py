"""How far each tensor of a size is off, step by step, and how far it may be: what the page of a run file shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from everyrank.model.parity import ROWS, STEPS, ParityRowPart, most_urgent, two_figures

#: The kinds of moments as run files call them; whatever an optimizer keeps of a parameter is one row.
KINDS = {
    "weight": "initialization",
    "buffer": "buffer",
    "loss": "loss",
    "gradient at the clip": "clip",
    "norm": "norm",
    "gradient": "gradient",
    "rate": "rate",
    "state": "state",
    "parameter": "update",
}


@dataclass(frozen=True)
class _Value:
    """The error of a tensor in a step and its bound, both relative to its largest value; none if not compared."""

    error: float | None
    limit: float = 0.0

    @property
    def is_off(self) -> bool:
        return self.error is not None and not self.error <= self.limit


_NOTHING = _Value(None)


@dataclass
class Figures:
    """The figures of one size beside the reference."""

    _values: dict[tuple[str, str], dict[int, _Value]] = field(default_factory=dict)

    def note(self, step: int, kind: str, name: str, error: float, allowed: float, scale: float) -> None:
        """Note how far a tensor is off; of several values of one row in a step the one that is worst stays."""
        scale = scale or 1.0
        mine = _Value(error / scale, allowed / scale)
        row = self._values.setdefault(row_of(kind, name), {})
        known = row.get(step)
        if known is None or known.error is None or _share(mine) > _share(known):
            row[step] = mine

    def miss(self, step: int, kind: str, name: str) -> None:
        """Note that a tensor cannot be compared."""
        self._values.setdefault(row_of(kind, name), {}).setdefault(step, _Value(None))

    def error(self, step: int, kind: str, name: str) -> float:
        """Return how far a tensor is off."""
        value = self._values.get(row_of(kind, name), {}).get(step, _NOTHING)
        return value.error or 0.0

    def rows(self, first: tuple[int, str, tuple[str, ...]] | None) -> tuple[list[ParityRowPart], int]:
        """Return the rows in the order of the run, and the number of their first step.

        ``first`` is what parts first: its step, its kind and its names.
        """
        last = max((step for row in self._values.values() for step in row), default=0)
        begin = max(0, last + 1 - STEPS)
        kinds = list(KINDS.values())
        ordered = sorted(self._values, key=lambda row: kinds.index(row[0]))
        made = [self._row(*row, range(begin, last + 1), first) for row in ordered]
        return most_urgent(made, ROWS), begin + 1

    def _row(
        self, kind: str, name: str, steps: range, first: tuple[int, str, tuple[str, ...]] | None
    ) -> ParityRowPart:
        found = self._values[kind, name]
        if kind == "initialization":
            values = list(found.values())[:1]
            steps = range(next(iter(found)), next(iter(found)) + 1)
        else:
            values = [found.get(step, _NOTHING) for step in steps]
        while len(values) > 1 and steps[len(values) - 1] not in found:
            values.pop()  # the step in which sizes part may end before it
        states = [self._state(kind, name, step, value, first) for step, value in zip(steps, values, strict=False)]
        limits = [two_figures(value.limit) for value in values]
        return ParityRowPart(
            kind,
            name,
            [None if value.error is None else two_figures(value.error) for value in values],
            limits if len(set(limits)) > 1 else limits[:1],
            states if set(states) != {"ok"} else [],
        )

    @staticmethod
    def _state(kind: str, name: str, step: int, value: _Value, first: tuple[int, str, tuple[str, ...]] | None) -> str:
        if value.error is None:
            return "nothing" if value is _NOTHING else "not-compared"
        if not value.is_off:
            return "ok"
        if first is None or first[:2] != (step, kind) or name not in first[2]:
            return "follows"
        return "first" if name == first[2][0] else "same"

    @property
    def counts(self) -> tuple[int, int]:
        """How many tensors of all were compared."""
        compared = sum(any(value.error is not None for value in row.values()) for row in self._values.values())
        return compared, len(self._values)


def row_of(kind: str, name: str) -> tuple[str, str]:
    """Return the kind and the tensor of a row."""
    return KINDS[kind], name.rpartition("` of `")[2]


def _share(value: _Value) -> float:
    assert value.error is not None
    return value.error / value.limit if value.limit else (float("inf") if value.error else 0.0)
