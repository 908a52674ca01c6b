"""The kill matrix, a table of rogues and laws. It proves that each law can fail, and only for its own reason."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from everyrank.fixtures.rogues import Rogue
from everyrank.model.counts import count
from everyrank.model.outcome import RED
from everyrank.suites.engine.case import Case, cases
from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.kill.sample import ALL, Sample
from everyrank.suites.moves.cases import generated
from everyrank.suites.options import SearchPlan

EXEMPLAR, NOTHING = "(exemplar)", "(nothing)"

#: A matrix of so many rogues and laws is soon done, and needs no sample.
_SMALL = 100

#: Outcomes that say nothing about the law.
NO_KILL = RED - {"fail"}


def requested() -> list[str]:
    """Return the contracts of this run. They are in the environment, where xdist's workers find them too."""
    return [name for name in os.environ.get("EVERYRANK_CONTRACTS", "").split(",") if name]


def rogues(name: str) -> tuple[Rogue, ...]:
    """Return the rogues of a contract, with the laws of each group that they break."""
    chosen = contract(name)
    return tuple(replace(rogue, breaks=chosen.expand(rogue.breaks)) for rogue in chosen.part("rogues"))


def controls(name: str) -> dict[str, Subject]:
    """Return the subject that must pass every law, and the one that must fail every law."""
    chosen = contract(name)
    return {EXEMPLAR: chosen.part("exemplar"), NOTHING: chosen.part("nothing")}


def drawn(name: str, plan: SearchPlan) -> list[Case]:
    """Return the generated cases of all rogues and controls."""
    subjects = controls(name)
    exemplar = subjects[EXEMPLAR]
    subjects |= {rogue.name: _sabotaged(exemplar, rogue) for rogue in rogues(name)}
    tables = [cases(replace(subject, name=row)) for row, subject in subjects.items()]
    return [case for table in tables for case in generated(table, plan)]


def tried(name: str, sample: Sample) -> list[Case]:
    """Return the core cases of both controls, and those of each rogue that are in the sample."""
    subjects = controls(name)
    core = _core(subjects[EXEMPLAR])
    sample = sampled(name, sample)
    table = [replace(case, subject=replace(subject, name=row)) for row, subject in subjects.items() for case in core]
    for rogue in rogues(name):
        subject = replace(_sabotaged(subjects[EXEMPLAR], rogue), name=rogue.name)
        laws = {law for law in contract(name).laws if sample.has(rogue.name, law, rogue.breaks)}
        table += [replace(case, subject=subject) for case in core if case.law.id in laws]
    return table


def sampled(name: str, sample: Sample) -> Sample:
    """Return the sample of a contract: a small contract has all."""
    laws = contract(name).laws
    chosen = ALL if len(laws) * len(rogues(name)) <= _SMALL else sample
    # A law that asks what all laws ask may kill any rogue.
    return replace(chosen, named=frozenset(law.id for law in laws.values() if law.crosses))


def _core(subject: Subject) -> list[Case]:
    return [case for case in cases(subject) if case.point.core and not case.point.not_applicable]


def _sabotaged(exemplar: Subject, rogue: Rogue) -> Subject:
    return replace(exemplar, build=rogue.build, sabotage=rogue.name)


@dataclass(frozen=True)
class Matrix:
    """The outcomes of one contract's rogues. ``cells`` maps (subject, case id) to the outcome."""

    contract: str
    cells: Mapping[tuple[str, str], str]
    sample: Sample = ALL

    @cached_property
    def laws(self) -> list[str]:
        return list(contract(self.contract).laws)

    @cached_property
    def _ends(self) -> dict[tuple[str, str], set[str]]:
        """The outcomes in this contract, by row and law."""
        ends: dict[tuple[str, str], set[str]] = {}
        for (row, case), end in self.cells.items():
            name, _, rest = case.partition("/")
            if name == self.contract:
                ends.setdefault((row, rest.partition("[")[0]), set()).add(end)
        return ends

    def ends(self, row: str, law: str) -> set[str]:
        """Return the outcomes of a law's core cases for a rogue."""
        return self._ends.get((row, law), set())

    def killed(self, row: str) -> set[str]:
        """Return the laws that a rogue failed: a crash or a hang is no kill."""
        return {law for law in self.laws if "fail" in self.ends(row, law)}

    @cached_property
    def faults(self) -> list[str]:
        """What keeps the matrix from being perfect, one sentence each."""
        known = [*self._faults_of_controls()]
        killers: set[str] = set()
        for rogue in rogues(self.contract):
            killed = self.killed(rogue.name)
            killers |= killed
            unknown = set(rogue.breaks) - set(self.laws)
            known += [f"{rogue.name} names the law {law}, which is not there" for law in sorted(unknown)]
            known += [f"{rogue.name} survives {law}" for law in sorted(set(rogue.breaks) - killed - unknown)]
            known += [f"{rogue.name} is killed by {law} too" for law in sorted(killed - set(rogue.breaks))]
            known += self._untried(rogue.name, {law for law in self.laws if not self._reports(rogue, law)})
            known += self._not_kills(rogue.name)
        known += [f"no rogue is killed by {law}" for law in self.laws if law not in killers]
        return known

    def _reports(self, rogue: Rogue, law: str) -> bool:
        """Return whether silence of a law is a fault of its own: a law that the rogue names is reported already."""
        return law not in rogue.breaks and self.sample.has(rogue.name, law, ())

    def _faults_of_controls(self) -> list[str]:
        red = [f"the exemplar fails {law}" for law in sorted(self.killed(EXEMPLAR))]
        green = [f"doing nothing passes {law}" for law in self.laws if law not in self.killed(NOTHING)]
        return [*red, *self._untried(EXEMPLAR, set()), *self._not_kills(EXEMPLAR), *green, *self._not_kills(NOTHING)]

    def _untried(self, row: str, reported: set[str]) -> list[str]:
        """Return a fault for each law without an outcome; those in ``reported`` have a fault already."""
        return [
            f"{row} was not tried on {law}" for law in self.laws if law not in reported and not self.ends(row, law)
        ]

    def _not_kills(self, row: str) -> list[str]:
        return [
            f"{row} ends {law} by {end}, which is no kill"
            for law in self.laws
            for end in sorted(self.ends(row, law) & NO_KILL)
        ]

    def text(self) -> str:
        """Render a row for each rogue: ``x`` is a kill, ``.`` is none, ``!`` is neither; blank: not in the sample."""
        names = [EXEMPLAR, NOTHING, *(rogue.name for rogue in rogues(self.contract))]
        width = max(map(len, names))
        lines = [f"{self.contract}: {count(len(names) - 2, 'rogue')}, {count(len(self.laws), 'law')}"]
        for number, law in enumerate(self.laws):
            lines.append(f"{'':{width}} {'| ' * number}{law}")
        lines += [f"{name:{width}} {' '.join(self._mark(name, law) for law in self.laws)}" for name in names]
        killed = "exactly the laws that it names" if self.sample.parts == 1 else "the laws that it names"
        lines += [str(self.sample)]
        lines += [] if self.faults else [f"perfect: each rogue is killed by {killed}"]
        return "\n".join(lines)

    def _mark(self, row: str, law: str) -> str:
        ends = self.ends(row, law)
        if not ends:
            return " "
        if ends & NO_KILL:
            return "!"
        return "x" if "fail" in ends else "."
