"""Which ledgers a subject names: its own file, and those of other subjects, which a contract offers by name."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from everyrank.suites.engine.contract import Contract
from everyrank.suites.engine.ledger import Entry, Ledger, read
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import DeclarationError, LedgerError


@dataclass(frozen=True)
class Ledgers:
    """The ledgers of one subject."""

    own: Ledger = field(default_factory=Ledger)
    file: Path | None = None
    """The file of its own ledger."""
    shared: tuple[Ledger, ...] = ()

    def assign(self, cases: Collection[str]) -> dict[str, Entry]:
        """Return the entry of each case that has one: its own entry, or that of the first ledger that has one.

        Raise LedgerError for what is wrong with its own ledger: an entry of another subject may match no case.
        """
        by_case = self.own.assign(cases)
        for ledger in self.shared:
            by_case = {**ledger.lend(cases), **by_case}
        return by_case


def ledgers(subject: Subject, chosen: Contract, folder: Path | None) -> Ledgers:
    """Read the ledgers that a subject names. A relative path is looked up in the folder."""
    named = [subject.known] if isinstance(subject.known, (str, Path)) else [*(subject.known or ())]
    files = [name for name in named if _prefix(name) not in chosen.ledgers]
    if len(files) > 1:
        problem = f"it names {' and '.join(map(str, files))}"
        raise DeclarationError(f"{subject.name}: known: a subject has one ledger of its own at most, and {problem}")
    shared = tuple(_shared(subject, chosen, str(name)) for name in named if name not in files)
    if not files:
        return Ledgers(shared=shared)
    path = Path(files[0])
    file = path if path.is_absolute() or folder is None else folder / path
    return Ledgers(read(file), file, shared)


def _prefix(name: str | Path) -> str:
    """Return the owner of a shared ledger, ``torch`` of ``torch:fsdp2``; empty for the path of a file."""
    owner, colon, _ = str(name).partition(":")
    return owner if colon else ""


def _shared(subject: Subject, chosen: Contract, name: str) -> Ledger:
    files = _files(chosen, _prefix(name))
    if name in files:
        return read(files[name]).shared(name)
    close = get_close_matches(name, files, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    there = ", ".join(sorted(files))
    raise LedgerError(f"{subject.name}: {chosen.name} has no ledger {name!r}.{hint} There are {there}")


def _files(chosen: Contract, owner: str) -> Mapping[str, Path]:
    """Return the files of an owner's ledgers, by the names that a subject gives them."""
    package = importlib.import_module(chosen.ledgers[owner])
    return {f"{owner}:{file.stem}": file for file in Path(package.__path__[0]).glob("*.toml")}


def builds_on_others(subject: Subject, chosen: Contract) -> bool:
    """Return whether a subject names a ledger that is not its own."""
    named = [subject.known] if isinstance(subject.known, (str, Path)) else [*(subject.known or ())]
    return any(_prefix(name) in chosen.ledgers for name in named)


@functools.cache
def offered(chosen: Contract) -> tuple[Ledger, ...]:
    """Return all ledgers that a subject may build on, the plainest first.

    Most others include it, or its name is short: the names of variants are longer.
    """
    named: list[tuple[str, Ledger]] = []
    for owner in chosen.ledgers:
        for name, file in _files(chosen, owner).items():
            with contextlib.suppress(LedgerError):  # a subject that names it is told what is wrong with it
                named.append((file.name, read(file).shared(name)))
    including = [{name for entry in ledger.entries for name in entry.source[:-1]} for _, ledger in named]

    def plainness(each: tuple[str, Ledger]) -> tuple[int, int, int, str]:
        name, ledger = each
        return -sum(name in names for names in including), len(name), len(ledger.entries), name

    return tuple(ledger for _, ledger in sorted(named, key=plainness))
