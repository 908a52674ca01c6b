"""Blind spots: rogues that stay green if they are judged under a subject's ledger, and the entries that hide them.

Only laws with a core case in the ledger are tried: all other laws kill a rogue as in the matrix without a ledger.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from everyrank.model.counts import count
from everyrank.suites.engine.case import Case, cases
from everyrank.suites.engine.contract import contracts
from everyrank.suites.engine.ledger import Ledger, read
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import LedgerError
from everyrank.suites.kill.matrix import EXEMPLAR, NO_KILL, controls, rogues

#: Outcomes that are no kill. "stale" is none of them: a rogue may pass a known case, which is another subject's.
_FAULTY = NO_KILL - {"stale"}


def requested_ledger() -> Path | None:
    """Return the ledger of this run. It is in the environment, where xdist's workers find it too."""
    named = os.environ.get("EVERYRANK_LEDGER", "")
    return Path(named) if named else None


def contract_of(path: Path) -> str:
    """Return the contract of a ledger's subject: the one in which each entry of the ledger matches a case."""
    fitting = []
    for name in contracts():
        try:
            cases(Subject("any", name, build=print, known=path.absolute()))
        except LedgerError:
            read(path)  # raises if the file itself is wrong
        else:
            fitting.append(name)
    if len(fitting) != 1:
        found = f"fits {' and '.join(fitting)}" if fitting else "has entries that match no case of any contract"
        raise LedgerError(f"{path.name} {found}: name its subject's contract with --contract")
    return fitting[0]


def tried_under(name: str, path: Path) -> list[Case]:
    """Return the core cases of each rogue, for the laws that it breaks and that have a core case in the ledger."""
    exemplar = replace(controls(name)[EXEMPLAR], known=path.absolute())
    core = [case for case in cases(exemplar) if case.point.core and not case.point.not_applicable]
    known = {case.law.id for case in core if case.entry is not None}
    return [
        replace(case, subject=replace(exemplar, name=rogue.name, build=rogue.build, sabotage=rogue.name))
        for rogue in rogues(name)
        for case in core
        if case.law.id in known and case.law.id in rogue.breaks
    ]


@dataclass(frozen=True)
class Hidden:
    """A law that a rogue breaks but that does not kill it under the ledger."""

    rogue: str
    law: str
    entries: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.law} is hidden by {' and '.join(map(repr, self.entries))}"


@dataclass(frozen=True)
class BlindSpots:
    """The rogues of one contract that a ledger hides. ``cells`` maps (rogue, case id) to the outcome."""

    contract: str
    path: Path
    cells: Mapping[tuple[str, str], str]

    @cached_property
    def _ledger(self) -> Ledger:
        return read(self.path)

    @cached_property
    def _tried(self) -> dict[tuple[str, str], dict[str, str]]:
        """For each rogue and law, the outcomes by the case's id without the contract."""
        ends_of: dict[tuple[str, str], dict[str, str]] = {}
        for case in tried_under(self.contract, self.path):
            ends = ends_of.setdefault((case.subject.name, case.law.id), {})
            ends[case.short_id] = self.cells.get((case.subject.name, case.id), "")
        return ends_of

    @cached_property
    def hidden(self) -> list[Hidden]:
        return [
            Hidden(rogue, law, entries)
            for (rogue, law), ends in self._tried.items()
            if "fail" not in ends.values() and (entries := self._entries(ends))
        ]

    def _entries(self, ends: Mapping[str, str]) -> tuple[str, ...]:
        """Return the entries that make these cases known, in the ledger's order."""
        known = {self._ledger.entry(case) for case, end in ends.items() if end == "known"}
        return tuple(entry.case for entry in self._ledger.entries if entry in known)

    @cached_property
    def spots(self) -> dict[str, list[Hidden]]:
        """The rogues that stay green, since no law that they break kills them."""
        by_rogue: dict[str, list[Hidden]] = {}
        for rogue in rogues(self.contract):
            hidden = [spot for spot in self.hidden if spot.rogue == rogue.name]
            if {spot.law for spot in hidden} == set(rogue.breaks):
                by_rogue[rogue.name] = hidden
        return by_rogue

    @cached_property
    def faults(self) -> list[str]:
        """What a person must correct or give a reason for, one sentence each."""
        return [*self._without_outcome(), *self._listed_wrongly(), *self._unlisted()]

    def _without_outcome(self) -> Iterator[str]:
        for (rogue, law), ends in self._tried.items():
            if "" in ends.values():
                yield f"{rogue} was not tried on {law}"
            for end in sorted(set(ends.values()) & _FAULTY):
                yield f"{rogue} ends {law} by {end}, which is no kill"

    def _listed_wrongly(self) -> Iterator[str]:
        names = {rogue.name for rogue in rogues(self.contract)}
        for name in self._ledger.blind:
            if name not in names:
                yield f"the ledger lists {name} as a blind spot, but there is no such rogue"
            elif name not in self.spots:
                yield f"the ledger lists {name} as a blind spot, but it is killed: remove it from the list"

    def _unlisted(self) -> Iterator[str]:
        for name, hidden in self.spots.items():
            if name not in self._ledger.blind:
                yield f"{name} stays green: {', '.join(map(str, hidden))}"

    def text(self) -> str:
        """Render the blind spots, and the laws that are hidden while another law kills the rogue."""
        tried = {rogue for rogue, _ in self._tried}
        every = count(len(rogues(self.contract)), "rogue")
        stay = "stays" if len(self.spots) == 1 else "stay"
        lines = [
            f"{self.contract} under {self.path.name}: {len(tried)} of {every} break laws of which the ledger knows "
            f"cases; {len(self.spots)} {stay} green"
        ]
        for name, hidden in self.spots.items():
            lines += [f"  blind: {name} ({self._ledger.blind.get(name, 'no reason is given')})"]
            lines += [f"    {spot}" for spot in hidden]
        others = [spot for spot in self.hidden if spot.rogue not in self.spots]
        lines += [f"  killed by another law: {spot.rogue}: {spot}" for spot in others]
        return "\n".join(lines)
