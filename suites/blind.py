"""Blind spots: rogues that stay green when a subject's ledger judges them, and the entries that hide them.

Only the laws of which the ledger knows a core case are tried: by any other a rogue is killed as in the plain matrix.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from everyrank.suites.case import Case, cases
from everyrank.suites.contract import contracts
from everyrank.suites.errors import LedgerError
from everyrank.suites.kill import EXEMPLAR, NO_KILL, controls, rogues
from everyrank.suites.ledger import Ledger, read

#: A rogue that passes a case which the ledger knows is stale there: it is not the ledger's subject.
_FAULTY = NO_KILL - {"stale"}


def asked_ledger() -> Path | None:
    """The ledger that this run is for: xdist's workers must know it too."""
    named = os.environ.get("EVERYRANK_LEDGER", "")
    return Path(named) if named else None


def contract_of(path: Path) -> str:
    """The contract of a ledger's subject: the one whose cases all of its entries match."""
    fitting = []
    for name in contracts():
        try:
            cases(replace(controls(name)[EXEMPLAR], known=path.absolute()))
        except LedgerError:
            read(path)  # says what is wrong with the file itself
        else:
            fitting.append(name)
    if len(fitting) != 1:
        found = f"fits {' and '.join(fitting)}" if fitting else "has entries that match no case of any contract"
        raise LedgerError(f"{path.name} {found}: --contract names the one of its subject")
    return fitting[0]


def tried_under(name: str, path: Path) -> list[Case]:
    """Every rogue of a contract, on the laws that it breaks and of which the ledger knows a core case."""
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
    """A law that a rogue breaks, and that does not kill it under the ledger."""

    rogue: str
    law: str
    entries: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.law} is hidden by {' and '.join(map(repr, self.entries))}"


@dataclass(frozen=True)
class BlindSpots:
    """What a ledger hides of one contract's rogues. ``cells`` maps (rogue, case id) to the outcome."""

    contract: str
    path: Path
    cells: Mapping[tuple[str, str], str]

    @cached_property
    def _ledger(self) -> Ledger:
        return read(self.path)

    @cached_property
    def _tried(self) -> dict[tuple[str, str], dict[str, str]]:
        """The cells of each rogue and law: the outcome by the case's id without the contract."""
        found: dict[tuple[str, str], dict[str, str]] = {}
        for case in tried_under(self.contract, self.path):
            ends = found.setdefault((case.subject.name, case.law.id), {})
            ends[case.short_id] = self.cells.get((case.subject.name, case.id), "")
        return found

    @cached_property
    def hidden(self) -> list[Hidden]:
        return [
            Hidden(rogue, law, entries)
            for (rogue, law), ends in self._tried.items()
            if "fail" not in ends.values() and (entries := self._entries(ends))
        ]

    def _entries(self, ends: Mapping[str, str]) -> tuple[str, ...]:
        """The entries by which cases are known, in the ledger's order."""
        known = {self._ledger.entry(case) for case, end in ends.items() if end == "known"}
        return tuple(entry.case for entry in self._ledger.entries if entry in known)

    @cached_property
    def spots(self) -> dict[str, list[Hidden]]:
        """The rogues that stay green: no law that they break kills them."""
        found: dict[str, list[Hidden]] = {}
        for rogue in rogues(self.contract):
            hidden = [one for one in self.hidden if one.rogue == rogue.name]
            if {one.law for one in hidden} == set(rogue.breaks):
                found[rogue.name] = hidden
        return found

    @cached_property
    def faults(self) -> list[str]:
        """What a person has to mend, or to give a reason for, a sentence each."""
        return [*self._not_told(), *self._listed_wrongly(), *self._unlisted()]

    def _not_told(self) -> Iterator[str]:
        for (rogue, law), ends in self._tried.items():
            if "" in ends.values():
                yield f"{rogue} was not tried on {law}"
            for end in sorted(set(ends.values()) & _FAULTY):
                yield f"{rogue} ends {law} by {end}, which is no kill"

    def _listed_wrongly(self) -> Iterator[str]:
        names = {rogue.name for rogue in rogues(self.contract)}
        for name in self._ledger.blind:
            if name not in names:
                yield f"the ledger lists {name} as a blind spot, and no rogue is called that"
            elif name not in self.spots:
                yield f"the ledger lists {name} as a blind spot, and it is killed: remove it from the list"

    def _unlisted(self) -> Iterator[str]:
        for name, hidden in self.spots.items():
            if name not in self._ledger.blind:
                yield f"{name} stays green: {', '.join(map(str, hidden))}"

    def text(self) -> str:
        """The blind spots, and the laws that are hidden while another kills the rogue."""
        tried = {rogue for rogue, _ in self._tried}
        lines = [
            f"{self.contract} under {self.path.name}: {len(tried)} of {len(rogues(self.contract))} rogues break laws "
            f"of which the ledger knows cases; {len(self.spots)} stay green"
        ]
        for name, hidden in self.spots.items():
            lines += [f"  blind: {name} ({self._ledger.blind.get(name, 'no reason is given')})"]
            lines += [f"    {one}" for one in hidden]
        others = [one for one in self.hidden if one.rogue not in self.spots]
        lines += [f"  killed by another law: {one.rogue}: {one}" for one in others]
        return "\n".join(lines)
