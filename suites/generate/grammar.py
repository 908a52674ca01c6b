"""The grammar of a contract: the dataclasses of its draws, how to draw them and how to carry one out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from everyrank.model.ledger import matches
from everyrank.suites.engine.subject import Subject

if TYPE_CHECKING:
    from everyrank.suites.engine.case import Case


class Drawn(Protocol):
    """A draw of any contract."""

    @property
    def size(self) -> int:
        """The world size of the draw."""

    @property
    def actions(self) -> tuple[Any, ...]: ...


class Rejected(Exception):
    """The reference itself refuses the draw, so there is nothing to compare."""


@dataclass(frozen=True)
class Grammar:
    """The draws of one contract.

    ``play`` carries a draw out on all ranks. It returns, on all alike, a text that states what differs, an empty
    text, or None if the reference refuses the draw.
    """

    module: str
    """The module that a printed test imports ``kinds`` from."""
    kinds: tuple[type, ...]
    sizes: tuple[int, ...]
    features: Mapping[str, str]
    """Features, each with a pattern: it is not drawn if the subject's ledger or lacks match such a case, or if the
    subject has no such case: then no ledger could speak of it."""
    strategy: Callable[[int, frozenset[str]], Any]
    """A function of world size and features that returns a Hypothesis strategy of draws. It imports Hypothesis."""
    play: Callable[[Subject, Any], str | None]
    shorten: Callable[[Subject, Any, frozenset[str], int], tuple[Any, str]]
    """Returns a shorter draw that fails as well, and what differs there, after as many attempts at the most; the
    subject has these features. All ranks call it alike."""
    printed: Callable[[Subject, Any], str]
    """Renders a draw as a test."""
    fixtures: tuple[str, ...] | None = None
    """Rank fixtures that are needed, where those are not the contract's."""
    choices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each choice of the contract the features that are not drawn for a subject that declares it."""
    claims: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each choice the features that are drawn for a subject that declares it, and for no other."""

    @property
    def by_name(self) -> dict[str, type]:
        return {kind.__name__: kind for kind in self.kinds}

    def left_out(self, cases: Sequence[Case]) -> frozenset[str]:
        """Return the features that are not drawn for the subject of these cases."""
        excused = [case.short_id for case in cases if case.entry is not None or case.lack is not None]
        known = [case.short_id for case in cases]
        declared = [self.choices.get(choice, frozenset()) for case in cases[:1] for choice in case.subject.declares]
        claimed = cases[0].subject.declares if cases else frozenset()
        declared += [names for choice, names in self.claims.items() if choice not in claimed]
        return frozenset().union(*declared) | {
            feature
            for feature, pattern in self.features.items()
            if any(matches(pattern, short_id) for short_id in excused)
            or not any(matches(pattern, short_id) for short_id in known)
        }
