"""A ledger: a subject's known deviations, in TOML, checked both ways.

An entry that matches no case is an error at collection; a case that passes in spite of its entry is stale, and red.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everyrank.suites.errors import LedgerError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KINDS = ("fail", "error", "timeout", "crash")


@dataclass(frozen=True)
class Entry:
    """One known deviation: which cases, how they end, and where it is reported."""

    case: str
    kind: str
    issue: str
    note: str = ""


@dataclass(frozen=True)
class Ledger:
    """What a subject is known to get wrong."""

    entries: tuple[Entry, ...] = ()
    file: str = ""

    def entry(self, case: str) -> Entry | None:
        """The entry for this case id (without the contract)."""
        return next((entry for entry in self.entries if matches(entry.case, case)), None)

    def check(self, cases: Iterable[str]) -> None:
        """Refuse entries that match nothing, and cases that two entries claim."""
        ids = list(cases)
        for entry in self.entries:
            if not any(matches(entry.case, case) for case in ids):
                raise LedgerError(f"{self.file}: the entry {entry.case!r} matches no case: mend or remove it")
        for case in ids:
            named = [entry.case for entry in self.entries if matches(entry.case, case)]
            if len(named) > 1:
                raise LedgerError(f"{self.file}: {case} is claimed twice, by {named[0]!r} and {named[1]!r}")


def matches(pattern: str, case: str) -> bool:
    """Stars and question marks as in file names; brackets are brackets."""
    return _expression(pattern).fullmatch(case) is not None


@functools.cache
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile("".join({"*": ".*", "?": "."}.get(one, re.escape(one)) for one in pattern))


def read(path: Path) -> Ledger:
    """Read a ledger, or say in one sentence what is wrong with it."""
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except FileNotFoundError:
        raise LedgerError(f"there is no ledger {path.name}: a subject without known deviations names none") from None
    except tomllib.TOMLDecodeError as error:
        raise LedgerError(f"{path.name}: not TOML: {error}") from None
    unknown = set(data) - {"subject", "known"}
    if unknown:
        raise LedgerError(f"{path.name}: unknown key {sorted(unknown)[0]!r}: a ledger holds `subject` and [[known]]")
    return Ledger(tuple(_entry(path.name, raw) for raw in data.get("known", [])), path.name)


def _entry(file: str, raw: dict[str, Any]) -> Entry:
    name = raw.get("case")
    if not isinstance(name, str) or not name:
        raise LedgerError(f"{file}: an entry without `case`")
    unknown = set(raw) - {"case", "kind", "issue", "note"}
    if unknown:
        raise LedgerError(f"{file}: {name}: unknown key {sorted(unknown)[0]!r}")
    if raw.get("kind") not in KINDS:
        raise LedgerError(f"{file}: {name}: kind must be one of {', '.join(KINDS)}, not {raw.get('kind')!r}")
    issue = raw.get("issue")
    if not isinstance(issue, str) or not (issue == "unreported" or issue.startswith("https://")):
        raise LedgerError(f'{file}: {name}: issue must be a link or "unreported", not {issue!r}')
    return Entry(name, raw["kind"], issue, str(raw.get("note", "")))
