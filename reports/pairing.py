"""Which case of one run is which of another: by its id, or by its subject and case where something was renamed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from everyrank.reports.errors import BadAlias
from everyrank.reports.inputs import read_input
from everyrank.reports.model import CaseLine
from everyrank.reports.reading import Run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Aliases:
    """What is called otherwise now. A law's old name may say its contract: ``replicate/sync``."""

    laws: dict[str, str] = field(default_factory=dict)
    subjects: dict[str, str] = field(default_factory=dict)

    def law(self, contract: str, law: str) -> str:
        """What this law is called now."""
        now = _now(self.laws, f"{contract}/{law}")
        return now.rpartition("/")[2] if now != f"{contract}/{law}" else _now(self.laws, law).rpartition("/")[2]

    def subject(self, name: str) -> str:
        """What this subject is called now."""
        return _now(self.subjects, name)

    def key(self, case: CaseLine) -> tuple[str, str]:
        """The subject and the case, as they are called now; for a test of no subject its id."""
        if not case.subject:
            return "", case.id
        if not self.laws:
            return self.subject(case.subject), case.case
        rest = case.case.partition("[")[2]
        return self.subject(case.subject), f"{case.contract}/{self.law(case.contract, case.law)}[{rest}"


def read_aliases(path: Path | None, pairs: Sequence[str], old: Iterable[Run]) -> Aliases:
    """The table in a file, and what was given as ``OLD=NEW``; the latter must name laws that there were."""
    laws, subjects = _table(path) if path is not None else ({}, {})
    known = {name for run in old for case in run.told for name in (case.law, f"{case.contract}/{case.law}")}
    for pair in pairs:
        before, equals, now = pair.partition("=")
        if not (before and equals and now):
            raise BadAlias(f"an alias is OLD=NEW, two names of a law, not {pair!r}")
        if before not in known:
            raise BadAlias(f"the alias {pair!r} names a law that no case of the older run is of")
        laws[before] = now
    for names in (laws, subjects):
        for name in names:
            _now(names, name)
    return Aliases(laws, subjects)


def _table(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    try:
        data = tomllib.loads(read_input(path).decode("utf-8"))
    except OSError as error:
        raise BadAlias(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise BadAlias(f"{path}: not TOML: {str(error).splitlines()[0]}") from None
    for name, table in data.items():
        if name not in ("laws", "subjects"):
            raise BadAlias(f"{path}: unknown table {name!r}: a table of aliases holds [laws] and [subjects]")
        if not isinstance(table, dict) or not all(isinstance(now, str) and now for now in table.values()):
            raise BadAlias(f'{path}: [{name}] holds lines such as "old" = "new"')
    return dict(data.get("laws", {})), dict(data.get("subjects", {}))


def _now(names: dict[str, str], name: str) -> str:
    """The last name in a chain of renames."""
    seen = [name]
    while name in names:
        name = names[name]
        if name in seen:
            raise BadAlias(f"the aliases go round in a circle: {' = '.join([*seen, name])}")
        seen.append(name)
    return name


@dataclass(frozen=True)
class Pairs:
    """The cases of two runs."""

    both: list[tuple[CaseLine, CaseLine]]
    gone: list[CaseLine]
    new: list[CaseLine]


def _known_by(old: CaseLine, new: CaseLine) -> CaseLine:
    """A case that was never told is known by its id alone; the older run knows more of it."""
    if new.outcome != "not-run" or new.optimizer:
        return new
    return msgspec.structs.replace(
        new, subject=old.subject, contract=old.contract, law=old.law, case=old.case, optimizer=old.optimizer
    )


def pair(old: Run, new: Run, aliases: Aliases) -> Pairs:
    """Pair the cases. Of what the old run never came to nothing is known: it counts as not there."""
    both: list[tuple[CaseLine, CaseLine]] = []
    left: dict[str, list[CaseLine]] = {}
    for case in old.told:
        if case.outcome != "not-run" or case.started:  # what a broken adapter kept from running has a time
            left.setdefault(case.id, []).append(case)
    unpaired = []
    for case in new.cases:
        before = left.get(case.id)
        if before:
            both.append((before[0], _known_by(before.pop(0), case)))
        else:
            unpaired.append(case)
    by_key: dict[tuple[str, str], list[CaseLine]] = {}
    gone = [case for cases in left.values() for case in cases]
    for case in gone:
        by_key.setdefault(aliases.key(case), []).append(case)
    plain = Aliases()
    added = []
    for case in unpaired:
        before = by_key.get(plain.key(case)) if case.subject else None
        if before:
            both.append((before.pop(0), case))
        else:
            added.append(case)
    return Pairs(both, [case for cases in by_key.values() for case in cases], added)
