"""Change a ledger as lines of text: add and remove entries, and keep every other line as a person wrote it.

tomlkit does not keep comments where they belong: 0.15.2 counts a comment above an entry to the entry before, so it
removes the next entry's comment with an entry, and puts a new entry between the next one and its comment. It would
replace about 35 lines of `line_edit`, and need as many to move comments. So lines are changed there, and this module
parses the result and compares it with the entries that it must hold. No other module of this folder edits TOML.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everyrank.model.ledger import KEYS, LedgerFault, Listed, contents
from everyrank.model.toml import tomllib
from everyrank.model.versions import is_in_force, is_specifier
from everyrank.reports.errors import BadLedger
from everyrank.reports.ledger.entry import FileEntry, ordered, quoted, toml_value
from everyrank.reports.ledger.line_edit import ENTRY, LineEdit, end_of_table
from everyrank.reports.ledger.statement import Statement
from everyrank.reports.runfile.inputs import read_input
from everyrank.reports.text import plain

#: Keys above the entries, each on a line.
_SUBJECT, _LACKS = re.compile(r"[ \t]*subject[ \t]*=.*"), re.compile(r"[ \t]*lacks[ \t]*=[ \t]*\[[^]]*\][ \t]*(#.*)?")


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
        names_now, lines = sorted({*self.lacks, *names}), _lines(self.text)
        old = [number for number, text in enumerate(lines) if _LACKS.fullmatch(text)][:1]
        above = [number + 1 for number, text in enumerate(lines) if _SUBJECT.fullmatch(text)][:1] or [0]
        start, end = (old[0], old[0] + 1) if old else (above[0], above[0])
        lines[start:end] = [f"lacks = {toml_value(names_now)}"]
        newline = "\r\n" if "\r\n" in self.text else "\n"
        with contextlib.suppress(BadLedger):  # such as a key that is there twice
            changed = _read(self.path, newline.join([*lines, ""]), self.torch)
            if changed.lacks == names_now and changed.data == self.data:
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

        An added entry follows the last entry of its law. New entries that state the same become one.
        """
        newline = "\r\n" if "\r\n" in self.text else "\n"
        lines = _lines(self.text)
        edit = LineEdit(self.path, self.entries, lines)
        for first in sorted({entry.first for entry in self.entries if entry.first >= 0}):
            edit.entry(
                [entry for entry in self.entries if entry.first == first],
                {entry.case for entry in removed if entry.first == first},
                {entry.case: entry for entry in restated if entry.first == first},
            )
        edit.take_away([entry for entry in (*removed, *restated) if entry.included], _include(self))
        edit.add([*added, *(entry for entry in restated if entry.included)], removed)
        text = newline.join([*edit.result(), ""])
        self._check(text, [*removed, *restated], [*added, *restated])
        return text

    def _check(self, text: str, removed: Collection[FileEntry], added: Sequence[FileEntry]) -> None:
        """Read the new text, and check that it lists the old cases without the removed, and the added cases."""
        with contextlib.suppress(BadLedger):
            now = _read(self.path, text, self.torch)
            gone = {(entry.first, entry.included, entry.case) for entry in removed}
            kept = [entry for entry in self.entries if (entry.first, entry.included, entry.case) not in gone]
            expected = sorted(ordered(entry.data) for entry in (*kept, *added))
            if sorted(map(ordered, now.data)) == expected and _rest(self) == _rest(now):
                return
        raise BadLedger(f"{self.path}: cannot be changed line by line: write its entries as plain [[known]] tables")


def _include(ledger: LedgerFile) -> list[dict[str, Any]]:
    return list(_loaded(ledger.path, ledger.text).get("include", []))


def _rest(ledger: LedgerFile) -> dict[str, Any]:
    """Return what a ledger holds besides entries."""
    data = _loaded(ledger.path, ledger.text)
    return {key: value for key, value in data.items() if key not in ("known", "include")}


def new_ledger(path: Path, subject: str, torch: str) -> LedgerFile:
    """Return a new ledger without entries."""
    head = f"# Known deviations of {plain(subject)}, torch {plain(torch)}.\nsubject = {quoted(subject)}\n"
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
    data = _loaded(path, text)
    known = data.get("known", [])
    lines = _lines(text)
    heads = [number for number, line in enumerate(lines) if ENTRY.fullmatch(line)]
    if not isinstance(known, list) or len(heads) != len(known):
        raise BadLedger(f"{path}: cannot be changed line by line: write its entries as plain [[known]] tables")
    spans = [(first, end_of_table(lines, first)) for first in heads]
    for (first, _), raw in zip(spans, known, strict=True):
        _check_keys(f"{path}:{first + 1}", raw)
    try:
        cases = contents(path, data).cases
    except (LedgerFault, OSError) as fault:
        raise BadLedger(str(fault).splitlines()[0]) from None
    return LedgerFile(path, text, tuple(_entry(case, spans) for case in cases), torch)


def _check_keys(location: str, raw: Mapping[str, Any]) -> None:
    if not {"case", "kind"} <= raw.keys() <= set(KEYS):
        raise BadLedger(f"{location}: not an entry: it holds {', '.join(KEYS)}")
    if raw.get("torch", "") and not is_specifier(raw["torch"]):
        raise BadLedger(f'{location}: torch must name versions as pip does, such as "<2.14"')


def _entry(case: Listed, spans: Sequence[tuple[int, int]]) -> FileEntry:
    first, end = (-1, -1) if case.included else spans[case.index]
    kind, issue, note, link = (str(case.keys.get(key, "")) for key in ("kind", "issue", "note", "link"))
    torch, included = case.keys.get("torch", ""), next(iter(case.included), "")
    return FileEntry(case.case, kind, issue, note, link, _stated(case.keys), first, end, torch, included)


def _stated(raw: Mapping[str, Any]) -> Statement:
    """Return the statement of an entry, as far as it can be read. The kit reports its faults."""
    match, at_most = raw.get("match", []), raw.get("at_most")
    patterns = match if isinstance(match, list) else [match]
    bound = float(at_most) if isinstance(at_most, (int, float)) else None
    return Statement(tuple(map(str, patterns)), str(raw.get("raises", "")), bound)


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
