"""Pair the cases of two runs: by id, or by subject and case if something was renamed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from everyrank.model.toml import tomllib
from everyrank.reports.errors import BadAlias
from everyrank.reports.runfile.inputs import read_input
from everyrank.reports.runfile.model import CaseLine
from everyrank.reports.runfile.read import Run


@dataclass(frozen=True)
class Aliases:
    """The names that changed. A law's old name may include its contract: ``replicate/sync``."""

    laws: dict[str, str] = field(default_factory=dict)
    subjects: dict[str, str] = field(default_factory=dict)

    def law(self, contract: str, law: str) -> str:
        """Return the current name of this law."""
        now = _now(self.laws, f"{contract}/{law}")
        return now.rpartition("/")[2] if now != f"{contract}/{law}" else _now(self.laws, law).rpartition("/")[2]

    def subject(self, name: str) -> str:
        """Return the current name of this subject."""
        return _now(self.subjects, name)

    def key(self, case: CaseLine) -> tuple[str, str]:
        """Return the current names of the subject and the case; for a test without a subject, its id."""
        if not case.subject:
            return "", case.id
        if not self.laws:
            return self.subject(case.subject), case.case
        rest = case.case.partition("[")[2]
        return self.subject(case.subject), f"{case.contract}/{self.law(case.contract, case.law)}[{rest}"


def read_aliases(path: Path | None, pairs: Sequence[str], old: Iterable[Run]) -> Aliases:
    """Read the table in a file and the ``OLD=NEW`` pairs. A pair must name a law of an older run."""
    laws, subjects = _table(path) if path is not None else ({}, {})
    known = {name for run in old for case in run.reported for name in (case.law, f"{case.contract}/{case.law}")}
    for pair in pairs:
        before, equals, now = pair.partition("=")
        if not (before and equals and now):
            raise BadAlias(f"an alias is written OLD=NEW, with two names of a law; got {pair!r}")
        if before not in known:
            raise BadAlias(f"the alias {pair!r} names a law of which the older run has no case")
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
    """Return the last name in a chain of renames."""
    seen = [name]
    while name in names:
        name = names[name]
        if name in seen:
            raise BadAlias(f"the aliases form a circle: {' = '.join([*seen, name])}")
        seen.append(name)
    return name


@dataclass(frozen=True)
class Pairs:
    """The cases of two runs."""

    both: list[tuple[CaseLine, CaseLine]]
    gone: list[CaseLine]
    new: list[CaseLine]


def _known_by(old: CaseLine, new: CaseLine) -> CaseLine:
    """Return the new case. If it was not run, only its id is known: copy the rest from the older run."""
    if new.outcome != "not-run" or new.optimizer:
        return new
    return msgspec.structs.replace(
        new, subject=old.subject, contract=old.contract, law=old.law, case=old.case, optimizer=old.optimizer
    )


def pair(old: Run, new: Run, aliases: Aliases) -> Pairs:
    """Pair the cases. A case that the old run did not run to its end counts as missing in it."""
    both: list[tuple[CaseLine, CaseLine]] = []
    old_by_id: dict[str, list[CaseLine]] = {}
    for case in old.reported:
        if case.outcome == "interrupted":
            continue
        if case.outcome != "not-run" or case.started:  # a case that a broken adapter kept from running has a time
            old_by_id.setdefault(case.id, []).append(case)
    unpaired = []
    for case in new.cases:
        before = old_by_id.get(case.id)
        if before:
            both.append((before[0], _known_by(before.pop(0), case)))
        else:
            unpaired.append(case)
    by_key: dict[tuple[str, str], list[CaseLine]] = {}
    gone = [case for cases in old_by_id.values() for case in cases]
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
