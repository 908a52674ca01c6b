"""What crossings have covered: how many pairs, triples and flows of what scripts can have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from everyrank.suites.moves.crossing import Covering, Crossing, events_in, text_of
from everyrank.suites.moves.file import stored
from everyrank.suites.moves.flow import all_flows, flows_of


@dataclass
class Covered:
    """What scripts have covered, as bits, so that what several processes have seen is easily put together."""

    pairs: list[int] = field(default_factory=list)
    """For each event those that have followed it in a row."""
    triples: list[int] = field(default_factory=list)
    """For each event the pairs that have come before it, in their order."""
    flows: int = 0
    scripts: int = 0

    def __or__(self, other: Covered) -> Covered:
        return Covered(
            [mine | theirs for mine, theirs in zip(self.pairs, other.pairs, strict=True)],
            [mine | theirs for mine, theirs in zip(self.triples, other.triples, strict=True)],
            self.flows | other.flows,
            self.scripts + other.scripts,
        )

    def counts(self) -> dict[str, int]:
        """Return how many pairs, triples and flows there are."""
        return {"pairs": _bits(self.pairs), "triples": _bits(self.triples), "flows": self.flows.bit_count()}


def _bits(bits: Iterable[int]) -> int:
    return sum(each.bit_count() for each in bits)


def covered(player: Any, texts: Iterable[str]) -> Covered:
    """Return what scripts cover, whatever their models are like: each is given by its events on a line."""
    covering = Covering(player, 3)
    scripts = [Crossing({}, events_in(text)) for text in texts]
    for script in scripts:
        covering.note(script)
    found = flows_of(player, scripts)
    flows = sum(1 << number for number, flow in enumerate(_numbered(player)) if flow in found)
    return Covered(covering.pairs, covering.tuples, flows, len(scripts))


@cache
def _numbered(player: Any) -> list[Any]:
    return sorted(all_flows(player), key=repr)


@cache
def asked(player: Any) -> dict[str, int]:
    """Return how many there are in the scripts of the full profile, for a subject that claims everything."""
    return covered(player, [text_of(script.events) for script, _ in stored(player)]).counts()
