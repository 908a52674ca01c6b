"""A ledger: a subject's known deviations, in TOML, checked in both directions.

An entry that matches no case is an error at collection. A case that passes although it has an entry is stale and red.
An entry states how the case deviates: a case that deviates in another way is red too. An entry may name the versions
of torch that it is about; under another version it is not in force, and is not read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from everyrank.model.ledger import KEYS, LedgerFault, Listed, contents, holds, load, matches, matching
from everyrank.model.versions import is_in_force, is_specifier
from everyrank.suites.errors import LedgerError

#: The kind of a limit that the library itself documents, with a link. Its cases fail, as their law is broken.
DOCUMENTED = "documented"

KINDS = ("fail", "error", "timeout", "crash", DOCUMENTED)

#: The kinds of cases that leave no text.
_SILENT = ("crash", "timeout")


@dataclass(frozen=True)
class SeenDeviation:
    """How a case deviates on one rank."""

    kind: str  # fail or error
    text: str
    raised: tuple[str, ...] = ()  # the class of the exception that the subject raised instead, and its bases
    off: float | None = None  # the largest relative error, if values were compared

    def as_note(self) -> dict[str, Any]:
        """Return the first line and all that an entry can state, for reports. JSON has no infinity."""
        off = None if self.off is None else min(self.off, sys.float_info.max)
        return {"text": (self.text.splitlines() or [""])[0], "raised": list(self.raised), "off": off}

    def __str__(self) -> str:
        off = "" if self.off is None else f", off by {self.off:.2g} relative"
        raised = f"raised {self.raised[0]}" if self.raised else "nothing raised"
        return f"{self.kind!r}, {raised}{off}"


@dataclass(frozen=True)
class Entry:
    """A known deviation of one case, or of those of one pattern: how they end and deviate, and where it is reported.

    An entry of the file that lists several cases is as many of these.
    """

    case: str
    kind: str
    issue: str = ""
    note: str = ""
    link: str = ""
    match: tuple[str, ...] = ()
    """Texts: the deviation's text must contain one of them; a star stands for anything."""
    raises: str = ""
    """The exception that the subject raises. Without it, an entry with a statement is about values."""
    at_most: float | None = None
    """The largest relative error."""
    shared: str = ""
    """The name of the ledger if it is another subject's, such as ``torch:fsdp2``: then the case may as well pass."""
    torch: str = ""
    """The versions of torch for which it is in force, as PEP 440 specifies them; empty for all."""
    source: tuple[str, ...] = ()
    """The ledgers through which it was included, and which entry of the last of them it is."""

    @property
    def statement(self) -> Entry:
        """What it has in common with the other cases that are listed with it."""
        return replace(self, case="")

    @property
    def name(self) -> str:
        return f"{self.case!r} of {self.source[0]}" if len(self.source) > 1 else repr(self.case)

    @property
    def remedy(self) -> str:
        """What to do if it is not wanted."""
        return f"take it away from {self.source[0]}, by `without`" if len(self.source) > 1 else "remove it"

    @property
    def documented(self) -> bool:
        return self.kind == DOCUMENTED

    @property
    def ends(self) -> str:
        """How its cases end."""
        return "fail" if self.documented else self.kind

    @property
    def states(self) -> bool:
        """Whether it states how its cases deviate, not only how they end."""
        return bool(self.match or self.raises) or self.at_most is not None

    @property
    def expects(self) -> str:
        """A description of the deviation that it states."""
        parts = [f"{self.ends!r}"]
        if self.ends == "fail" and self.states:
            parts.append(f"raises {self.raises}" if self.raises else "nothing raised")
        if self.match:
            parts.append(f"a text with {' or '.join(map(repr, self.match))}")
        if self.at_most is not None:
            parts.append(f"off by at most {self.at_most:g} relative")
        return ", ".join(parts)

    def covers(self, seen: SeenDeviation) -> bool:
        """Return whether this is the deviation that the entry states."""
        if seen.kind != self.ends:
            return False
        if not self.states:
            return True
        if self.raises:
            if self.raises not in seen.raised:
                return False
        elif seen.raised and self.ends == "fail":
            return False
        if self.match and not any(holds(seen.text, pattern) for pattern in self.match):
            return False
        return self.at_most is None or (seen.off is not None and seen.off <= self.at_most)

    @property
    def reason(self) -> str:
        """The text of this entry in reports."""
        return f"documented: {self.note} ({self.link})" if self.documented else f"known: {self.note} ({self.issue})"


@dataclass(frozen=True)
class Ledger:
    """The known deviations of one subject."""

    entries: tuple[Entry, ...] = ()
    file: str = ""
    lacks: tuple[str, ...] = ()
    """The capabilities that the subject lacks, besides those that it declares itself."""
    blind: Mapping[str, str] = field(default_factory=dict)
    """Rogues that stay green under this ledger, as ``everyrank kill-matrix --ledger`` shows, each with a reason."""

    def entry(self, case: str) -> Entry | None:
        """Return the entry for this case id (without the contract)."""
        return next((entry for entry in self.entries if matches(entry.case, case)), None)

    def assign(self, cases: Collection[str]) -> dict[str, Entry]:
        """Return the entry of each case that has one.

        Raise LedgerError for entries that match no case, or several without a statement, and for a case that two
        entries match: with all of these at once.
        """
        by_case: dict[str, Entry] = {}
        mistakes: list[str] = []
        for entry in self.entries:
            covered = matching(entry.case, cases)
            if not covered:
                mistakes.append(f"{self.file}: the entry {entry.case!r} matches no case: correct or {entry.remedy}")
            if len(covered) > 1 and not entry.states and entry.kind not in _SILENT:
                mistakes.append(
                    f"{self.file}: the entry {entry.case!r} covers {len(covered)} cases: say what is seen, by match, "
                    "raises or at_most"
                )
            others: dict[str, str] = {}  # another entry, and the first case of both
            for case in covered:
                if (other := by_case.setdefault(case, entry)) is not entry:
                    others.setdefault(other.name, case)
            mistakes += [
                f"{self.file}: {case} is claimed twice, by {other} and {entry.name}: narrow one, or {entry.remedy}"
                for other, case in others.items()
            ]
        if mistakes:
            raise LedgerError("\n".join(mistakes))
        return by_case

    def shared(self, name: str) -> Ledger:
        """Return what another subject may use of this ledger: a crash or a hang is never excused for another."""
        entries = [replace(entry, shared=name) for entry in self.entries if entry.kind not in _SILENT]
        return Ledger(tuple(entries), name)

    def lend(self, cases: Collection[str]) -> dict[str, Entry]:
        """Return the first entry of each case that has one. An entry may match no case of another subject."""
        by_case: dict[str, Entry] = {}
        for entry in self.entries:
            for case in matching(entry.case, cases):
                by_case.setdefault(case, entry)
        return by_case


def read(path: Path, version: str | None = None) -> Ledger:
    """Read what is in force under this version of torch, or the installed one.

    Raise an error with one sentence that says what is wrong with the ledger.
    """
    try:
        listed = contents(path, load(path))
    except FileNotFoundError:
        raise LedgerError(f"there is no ledger {path}: a subject without known deviations names none") from None
    except LedgerFault as fault:
        raise LedgerError(str(fault)) from None
    entries = _entries(path.name, listed.cases)
    version = _installed() if version is None else version
    in_force = tuple(entry for entry in entries if is_in_force(entry.torch, version))
    return Ledger(in_force, path.name, listed.lacks, listed.blind)


def _installed() -> str:
    import torch

    return str(torch.__version__)


def _entries(file: str, cases: Iterable[Listed]) -> list[Entry]:
    """Return the entry of each case that is listed. Raise LedgerError with what is wrong with each of them."""
    entries: list[Entry] = []
    mistakes: list[str] = []
    for case in cases:
        try:
            entries.append(_entry(file, case))
        except LedgerError as error:
            mistakes.append(str(error))
    if mistakes:
        raise LedgerError("\n".join(mistakes))
    return entries


def _entry(file: str, case: Listed) -> Entry:
    raw = case.keys
    source = f"{case.included[-1] if case.included else file}: {case.case}"
    if unknown := sorted(set(raw) - set(KEYS)):
        raise LedgerError(f"{source}: unknown key {unknown[0]!r}: an entry holds {', '.join(KEYS)}")
    if raw.get("kind") not in KINDS:
        raise LedgerError(f"{source}: kind must be one of {', '.join(KINDS)}, not {raw.get('kind')!r}")
    torch = raw.get("torch", "")
    if "torch" in raw and not is_specifier(torch):
        raise LedgerError(f'{source}: torch must name versions as pip does, such as "<2.14", not {torch!r}')
    issue, link = _reported(source, raw)
    note, (match, raises, at_most) = str(raw.get("note", "")), _statement(source, raw)
    index = (*case.included, str(case.index))
    entry = Entry(case.case, raw["kind"], issue, note, link, match, raises, at_most, torch=torch, source=index)
    if isinstance(raw["case"], list) and len(raw["case"]) > 1 and not entry.states and entry.kind not in _SILENT:
        raise LedgerError(f"{source}: its entry lists several cases: say what is seen, by match, raises or at_most")
    return entry


def _reported(source: str, raw: Mapping[str, Any]) -> tuple[str, str]:
    """Return the issue and the link of an entry: it has one of them."""
    issue, link = raw.get("issue"), raw.get("link")
    if raw["kind"] == DOCUMENTED:
        if not isinstance(link, str) or not link.startswith("https://"):
            raise LedgerError(f"{source}: link must lead to where the limit is documented, not be {link!r}")
        if issue is not None:
            raise LedgerError(f"{source}: a documented limit has a link, and no issue")
        return "", link
    if link is not None:
        raise LedgerError(f'{source}: link is for kind = "documented"; where it is reported is the issue')
    if not isinstance(issue, str) or not (issue == "unreported" or issue.startswith("https://")):
        raise LedgerError(f'{source}: issue must be a link or "unreported", not {issue!r}')
    return issue, ""


def _statement(source: str, raw: Mapping[str, Any]) -> tuple[tuple[str, ...], str, float | None]:
    """Return what an entry states about the deviation: match, raises and at_most."""
    match, raises, at_most = raw.get("match", []), raw.get("raises", ""), raw.get("at_most")
    patterns = [match] if isinstance(match, str) else match
    if raw["kind"] in _SILENT and raw.keys() & {"match", "raises", "at_most"}:
        raise LedgerError(f"{source}: a {raw['kind']} leaves no text: match, raises and at_most are for other kinds")
    if not isinstance(patterns, list) or not all(isinstance(text, str) and text.strip("* ") for text in patterns):
        raise LedgerError(f"{source}: match must be a part of the deviation's text, or a list of such, not {match!r}")
    if "match" in raw and not patterns:
        raise LedgerError(f"{source}: match must have a text in it")
    named = isinstance(raises, str) and (raises.isidentifier() or "raises" not in raw)
    if not named or raises in ("Exception", "BaseException"):
        raise LedgerError(f"{source}: raises must be the name of the exception's class, not {raises!r}")
    number = isinstance(at_most, (int, float)) and not isinstance(at_most, bool) and 0 < at_most < math.inf
    if at_most is not None and (not number or raises):
        problem = "goes with values that differ, not with raises" if number else f"must be a number, not {at_most!r}"
        raise LedgerError(f"{source}: at_most, the largest relative error, {problem}")
    return tuple(patterns), raises, at_most
