"""Change a ledger as lines of text: add and remove entries, and keep every other line as a person wrote it.

tomlkit does not keep comments where they belong: 0.15.2 counts a comment above an entry to the entry before, so it
removes the next entry's comment with an entry, and puts a new entry between the next one and its comment. It would
replace about 35 lines of this module, and need as many to move comments. So this module changes lines, then parses
the result and compares it with the entries that it must hold. No other module of this folder edits TOML.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everyrank.model.versions import is_in_force, is_specifier
from everyrank.reports.errors import BadLedger
from everyrank.reports.ledger.statement import NOTHING, Statement
from everyrank.reports.runfile.inputs import read_input
from everyrank.reports.text import plain

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HEADER = re.compile(r"[ \t]*\[\[[ \t]*known[ \t]*\]\][ \t]*(#.*)?")

#: The keys of an entry, in the order in which they are written.
_KEYS = ("case", "kind", "torch", "match", "raises", "at_most", "issue", "note", "link")

#: The table below the entries.
_BLIND = re.compile(r"[ \t]*\[[ \t]*blind[ \t]*\][ \t]*(#.*)?")

#: Keys above the entries, each on a line.
_SUBJECT, _LACKS = re.compile(r"[ \t]*subject[ \t]*=.*"), re.compile(r"[ \t]*lacks[ \t]*=[ \t]*\[[^]]*\][ \t]*(#.*)?")

_KIND = re.compile(r"[ \t]*kind[ \t]*=.*")

_STATEMENT = re.compile(r"[ \t]*(match|raises|at_most)[ \t]*=.*")


@dataclass(frozen=True)
class FileEntry:
    """One known deviation, and the range of its lines: from its ``[[known]]`` to its last key."""

    case: str
    kind: str
    issue: str = "unreported"
    note: str = ""
    link: str = ""
    states: Statement = NOTHING
    first: int = -1
    end: int = -1
    torch: str = ""

    @property
    def law(self) -> str:
        return self.case.partition("[")[0]

    @property
    def is_pattern(self) -> bool:
        return "*" in self.case or "?" in self.case

    def matches(self, case: str) -> bool:
        """Return whether the pattern matches: stars and question marks as in file names, brackets as themselves."""
        if not self.is_pattern:
            return self.case == case
        expression = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in self.case)
        return re.fullmatch(expression, case) is not None

    @property
    def lines(self) -> list[str]:
        return ["[[known]]", *(f"{key} = {_value(value)}" for key, value in self.data.items())]

    @property
    def statement(self) -> list[str]:
        """The lines of its statement."""
        return [line for line in self.lines if _STATEMENT.fullmatch(line)]

    @property
    def data(self) -> dict[str, Any]:
        values = {**vars(self), **vars(self.states)}
        match = list(self.states.match)
        values["match"] = match[0] if len(match) == 1 else match
        return {key: value for key in _KEYS if (value := values[key])}


@dataclass(frozen=True)
class LedgerFile:
    """The contents of a ledger; empty if the file does not exist yet."""

    path: Path
    text: str
    entries: tuple[FileEntry, ...]
    torch: str = ""  # the version under which its entries are in force, or not

    def entry(self, case: str) -> FileEntry | None:
        """Return the entry that is in force for this case (given without its contract)."""
        return next((entry for entry in self._about(case) if is_in_force(entry.torch, self.torch)), None)

    def is_for_other_versions(self, case: str) -> bool:
        """Return whether this case has an entry that is not in force."""
        return any(not is_in_force(entry.torch, self.torch) for entry in self._about(case))

    def _about(self, case: str) -> Iterable[FileEntry]:
        return (entry for entry in self.entries if entry.matches(case))

    @property
    def lacks(self) -> list[str]:
        """The names of the capabilities that the subject lacks."""
        return list(map(str, _loaded(self.path, self.text).get("lacks", [])))

    def lacking(self, names: Collection[str]) -> LedgerFile:
        """Return the ledger with these names as well, on a line of their own above the entries."""
        wanted, lines = sorted({*self.lacks, *names}), _lines(self.text)
        old = [number for number, text in enumerate(lines) if _LACKS.fullmatch(text)][:1]
        above = [number + 1 for number, text in enumerate(lines) if _SUBJECT.fullmatch(text)][:1] or [0]
        start, end = (old[0], old[0] + 1) if old else (above[0], above[0])
        lines[start:end] = [f"lacks = {_value(wanted)}"]
        newline = "\r\n" if "\r\n" in self.text else "\n"
        with contextlib.suppress(BadLedger):  # such as a key that is there twice
            changed = _read(self.path, newline.join([*lines, ""]), self.torch)
            if changed.lacks == wanted and changed.data == self.data:
                return changed
        raise BadLedger(f"{self.path}: cannot be changed line by line: write lacks = [...] on one line")

    @property
    def data(self) -> list[dict[str, Any]]:
        """What the entries hold."""
        return [entry.data for entry in self.entries]

    def changed(
        self, removed: Collection[FileEntry], added: Sequence[FileEntry], restated: Sequence[FileEntry] = ()
    ) -> str:
        """Return the text without the removed entries, with the added ones, and with the new statements.

        An added entry follows the last entry of its law.
        """
        newline = "\r\n" if "\r\n" in self.text else "\n"
        lines = _lines(self.text)
        gone = {number for entry in removed for number in _cut(lines, entry)}
        after: dict[int, list[str]] = {}
        for entry in added:
            kin = [old.end for old in self.entries if old.law == entry.law and old not in removed]
            position = max(kin, default=len(lines))
            after.setdefault(position, []).extend(["", *entry.lines])
        for entry in restated:
            before = [number for number in range(entry.first, entry.end) if _STATEMENT.fullmatch(lines[number])]
            gone.update(before)
            kind = [number for number in range(entry.first, entry.end) if _KIND.fullmatch(lines[number])]
            position = next(iter(before), (kind or [entry.end - 1])[0] + 1)
            after.setdefault(position, [])[:0] = entry.statement
        kept: list[str] = []
        for number in range(len(lines) + 1):
            if number == len(lines):
                _trim(kept)
            kept += after.get(number, [])
            if number < len(lines) and number not in gone:
                kept.append(lines[number])
        text = newline.join([*kept, ""])
        self._check(text, [*removed, *restated], [*added, *restated])
        return text

    def _check(self, text: str, removed: Collection[FileEntry], added: Sequence[FileEntry]) -> None:
        """Parse the new text, and check that it holds the old entries without the removed, and the added entries."""
        before, now = _loaded(self.path, self.text), _loaded(self.path, text)
        firsts = [entry.first for entry in self.entries]
        gone = [firsts.index(entry.first) for entry in removed]
        left = [raw for number, raw in enumerate(before.pop("known", [])) if number not in gone]
        expected = [*left, *(entry.data for entry in added)]
        found = now.pop("known", [])
        if before != now or sorted(map(_ordered, found)) != sorted(map(_ordered, expected)):
            raise BadLedger(
                f"{self.path}: cannot be changed line by line: write its entries as plain [[known]] tables"
            )


def new_ledger(path: Path, subject: str, torch: str) -> LedgerFile:
    """Return a new ledger without entries."""
    head = f"# Known deviations of {plain(subject)}, torch {plain(torch)}.\nsubject = {_quoted(subject)}\n"
    return LedgerFile(path, head, (), torch)


def read_ledger(path: Path, torch: str = "") -> LedgerFile:
    """Read a ledger, and find the lines of each entry. Raise `BadLedger`.

    Of its entries, those are in force that are about this version of torch; all, if it is unknown.
    """
    try:
        text = read_input(path).decode("utf-8")
    except OSError as error:
        raise BadLedger(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadLedger(f"{path}: not TOML: it is no UTF-8 text") from None
    return _read(path, text, torch)


def _read(path: Path, text: str, torch: str) -> LedgerFile:
    known = _loaded(path, text).get("known", [])
    lines = _lines(text)
    heads = [number for number, line in enumerate(lines) if _HEADER.fullmatch(line)]
    if not isinstance(known, list) or len(heads) != len(known):
        raise BadLedger(f"{path}: cannot be changed line by line: write its entries as plain [[known]] tables")
    return LedgerFile(path, text, tuple(_entries(path, lines, heads, known)), torch)


def _entries(path: Path, lines: list[str], heads: list[int], known: list[Any]) -> Iterable[FileEntry]:
    last = next((number for number, line in enumerate(lines) if _BLIND.fullmatch(line)), len(lines))
    ends = [*heads, max(last, heads[-1] + 1) if heads else last][1:]
    for first, following, raw in zip(heads, ends, known, strict=True):
        end = following
        while end > first + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1  # blank lines and comments above the next entry belong to that entry
        if not {"case", "kind"} <= raw.keys() <= set(_KEYS):
            raise BadLedger(f"{path}:{first + 1}: not an entry: it holds {', '.join(_KEYS)}")
        case, kind, issue, note, link = (str(raw.get(key, "")) for key in ("case", "kind", "issue", "note", "link"))
        torch = raw.get("torch", "")
        if torch and not is_specifier(torch):
            raise BadLedger(f'{path}:{first + 1}: torch must name versions as pip does, such as "<2.14"')
        yield FileEntry(case, kind, issue, note, link, _stated(raw), first, end, torch)


def _stated(raw: dict[str, Any]) -> Statement:
    """Return the statement of an entry, as far as it can be read. The kit reports its faults."""
    match, at_most = raw.get("match", []), raw.get("at_most")
    patterns = match if isinstance(match, list) else [match]
    bound = float(at_most) if isinstance(at_most, (int, float)) else None
    return Statement(tuple(map(str, patterns)), str(raw.get("raises", "")), bound)


def _ordered(entry: dict[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True, default=str)


def _lines(text: str) -> list[str]:
    """Split the text into lines as TOML does: strings may hold other separators."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def _loaded(path: Path, text: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadLedger(f"{path}: not TOML: {str(error).splitlines()[0]}") from None
    return data


def _cut(lines: list[str], entry: FileEntry) -> range:
    """Return the lines to remove: those of the entry, and the blank lines below if a blank line above stays."""
    end = entry.end
    if entry.first == 0 or not lines[entry.first - 1].strip():
        while end < len(lines) and not lines[end].strip():
            end += 1
    return range(entry.first, end)


def _trim(lines: list[str]) -> None:
    """Remove blank lines from the end."""
    while lines and not lines[-1].strip():
        lines.pop()


def _value(value: str | float | list[str]) -> str:
    """Return a text, a number or a list of texts as TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(_quoted, value))}]"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """Return a text as a basic string of TOML, which has the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
