"""The file of a ledger as plain data: what it includes, which cases each of its entries lists, and how texts match.

The kit and ``everyrank accept`` both read ledgers. What they have in common stands here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from everyrank.model.toml import tomllib

#: The keys of an entry, in the order in which they are written.
KEYS = ("case", "kind", "torch", "match", "raises", "at_most", "issue", "note", "link")


class LedgerFault(Exception):
    """What is wrong with the file of a ledger: a sentence for each fault, each on a line."""


@dataclass(frozen=True)
class Listed:
    """One case, or a pattern of cases, that an entry lists."""

    case: str
    keys: Mapping[str, Any]
    """The entry as the file has it."""
    index: int
    """Which entry of the file it is."""
    included: tuple[str, ...] = ()
    """The ledgers through which it was included, the outermost first; none for an entry of the file itself."""


@dataclass(frozen=True)
class Contents:
    """What a ledger says, with what it includes."""

    cases: tuple[Listed, ...]
    blind: Mapping[str, str]
    lacks: tuple[str, ...] = ()


def load(path: Path) -> dict[str, Any]:
    """Return the tables of a ledger's file."""
    try:
        with path.open("rb") as file:
            data: dict[str, Any] = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LedgerFault(f"{path.name}: not TOML: {error}") from None
    return data


def contents(path: Path, data: Mapping[str, Any], includers: Sequence[Path] = ()) -> Contents:
    """Return what these tables of a ledger's file say, with what they include. Raise LedgerFault."""
    unknown = set(data) - {"subject", "lacks", "include", "known", "blind"}
    if unknown:
        holds = "a ledger holds `subject`, `lacks`, [[include]], [[known]] and [blind]"
        raise LedgerFault(f"{path.name}: unknown key {sorted(unknown)[0]!r}: {holds}")
    lacks = data.get("lacks", [])
    if not isinstance(lacks, list) or not all(isinstance(name, str) for name in lacks):
        raise LedgerFault(f"{path.name}: lacks is a list of the names of capabilities, not {lacks!r}")
    cases, blind = list(_listed(path.name, data.get("known", []))), dict(_blind(path.name, data.get("blind", {})))
    chain = (*includers, path.resolve())
    for table in _includes(path, data.get("include", [])):
        more = _included(path, table, chain)
        cases += more.cases
        blind = {**more.blind, **blind}
    return Contents(tuple(cases), blind, tuple(lacks))


def _listed(file: str, entries: Any) -> Iterator[Listed]:
    """Yield each case of each entry. Raise LedgerFault with what is wrong with all of them."""
    if not isinstance(entries, list):
        raise LedgerFault(f"{file}: write each entry as a table, [[known]]")
    mistakes = []
    for index, keys in enumerate(entries):
        case = keys.get("case")
        names = case if isinstance(case, list) else [case]
        if not names or not all(isinstance(name, str) and name for name in names):
            mistakes.append(f"{file}: an entry without `case`: name a case, or a list of cases")
            continue
        twice = sorted({name for name in names if names.count(name) > 1})
        mistakes += [f"{file}: an entry lists {name!r} twice: remove one of them" for name in twice]
        yield from (Listed(name, keys, index) for name in names)
    if mistakes:
        raise LedgerFault("\n".join(mistakes))


def _blind(file: str, blind: Any) -> Mapping[str, str]:
    if not isinstance(blind, dict) or not all(isinstance(reason, str) and reason for reason in blind.values()):
        raise LedgerFault(f"{file}: [blind] names rogues, each with the reason why it stays green")
    return blind


@dataclass(frozen=True)
class _Include:
    """Another ledger, and what is taken away of it: cases as it lists them, and rogues of its [blind]."""

    ledger: str
    without: tuple[str, ...]


def _includes(path: Path, tables: Any) -> Iterator[_Include]:
    """Yield what a ledger includes."""
    plain = 'write [[include]], below it ledger = "other.toml", and what is taken away as without = ["law[label-*]"]'
    seen: set[str] = set()
    for table in tables if isinstance(tables, list) else [None]:
        if not isinstance(table, dict) or not {"ledger"} <= table.keys() <= {"ledger", "without"}:
            raise LedgerFault(f"{path.name}: {plain}")
        ledger, without = table["ledger"], table.get("without", [])
        names = [ledger, *without] if isinstance(without, list) else [None]
        if not all(isinstance(name, str) and name for name in names):
            raise LedgerFault(f"{path.name}: {plain}")
        if ledger in seen:
            raise LedgerFault(f"{path.name} includes {ledger} twice: make one [[include]] of both")
        seen.add(ledger)
        yield _Include(ledger, tuple(without))


def _included(path: Path, include: _Include, chain: Sequence[Path]) -> Contents:
    """Return what a ledger includes of another, without what it takes away."""
    other = path.parent / include.ledger
    if other.resolve() in chain:
        circle = " -> ".join(each.name for each in (*chain, other))
        raise LedgerFault(f"ledgers include each other in a circle, {circle}: remove one of these [[include]]")
    if not other.is_file():
        raise LedgerFault(f"{path.name} includes {include.ledger}, which is not there: name a ledger beside this one")
    included = contents(other, load(other), chain)
    there = {*(item.case for item in included.cases), *included.blind}
    for name in include.without:
        if name not in there:
            close = get_close_matches(name, sorted(there), 1)
            hint = f"did you mean {close[0]!r}?" if close else "remove it from `without`"
            raise LedgerFault(
                f"{path.name} takes {name!r} away from {include.ledger}, which does not list it: {hint}"
            )
    kept = [item for item in included.cases if item.case not in include.without]
    blind = {rogue: reason for rogue, reason in included.blind.items() if rogue not in include.without}
    return Contents(tuple(replace(item, included=(include.ledger, *item.included)) for item in kept), blind)


def is_pattern(case: str) -> bool:
    return "*" in case or "?" in case


def matches(pattern: str, case: str) -> bool:
    """Return whether a case id matches: stars and question marks as in file names, brackets literally."""
    return _expression(pattern).fullmatch(case) is not None


def matching(pattern: str, cases: Iterable[str]) -> list[str]:
    """Return the case ids that match."""
    start = re.split(r"[*?]", pattern, maxsplit=1)[0]
    fits = _expression(pattern).fullmatch
    return [case for case in cases if case.startswith(start) and fits(case)]


@functools.cache
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile("".join({"*": ".*", "?": "."}.get(character, re.escape(character)) for character in pattern))


def holds(text: str, pattern: str) -> bool:
    """Return whether the text contains the pattern: a star stands for anything, white space for any white space."""
    parts = [re.escape(" ".join(part.split())) for part in pattern.split("*")]
    return re.search(".*".join(parts), " ".join(text.split())) is not None
