"""Changes of a ledger's lines: remove, add and restate entries, and keep every other line as it is."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everyrank.model.toml import tomllib
from everyrank.reports.errors import BadLedger
from everyrank.reports.ledger.entry import FileEntry, list_lines

#: The line above an entry.
ENTRY = re.compile(r"[ \t]*\[\[[ \t]*known[ \t]*\]\][ \t]*(#.*)?")

#: The tables above the entries, each about another ledger.
_INCLUDE = re.compile(r"[ \t]*\[\[[ \t]*include[ \t]*\]\][ \t]*(#.*)?")

_COMMENT = re.compile(r"(^|[\s,\[])#")

#: The table below the entries.
_BLIND = re.compile(r"[ \t]*\[[ \t]*blind[ \t]*\][ \t]*(#.*)?")

_KIND = re.compile(r"[ \t]*kind[ \t]*=.*")

_STATEMENT = re.compile(r"[ \t]*(match|raises|at_most)[ \t]*=.*")


class LineEdit:
    """Changes of the lines of one ledger."""

    def __init__(self, path: Path, entries: Sequence[FileEntry], lines: list[str]) -> None:
        self._path = path
        self._entries = entries
        self._lines = lines
        self._gone: set[int] = set()
        self._after: dict[int, list[str]] = {}

    def entry(self, cases: Sequence[FileEntry], removed: Collection[str], restated: Mapping[str, FileEntry]) -> None:
        """Change one entry of the file: remove cases from its list, and give others a new statement."""
        start, end = cases[0].first, cases[0].end
        kept = [entry.case for entry in cases if entry.case not in removed and entry.case not in restated]
        new = list(restated.values())
        if len(restated) == len(cases) and len({entry.shape for entry in new}) == 1:
            self._restate(new[0])
            return
        if new:
            self._after.setdefault(end, []).extend(_grouped(new))
        if not kept:
            self._gone.update(_cut(self._lines, start, end))
        elif len(kept) < len(cases):
            self._replace(range(start, end), "case", kept)

    def _restate(self, entry: FileEntry) -> None:
        numbers = range(entry.first, entry.end)
        before = [number for number in numbers if _STATEMENT.fullmatch(self._lines[number])]
        self._gone.update(before)
        kind = [number for number in numbers if _KIND.fullmatch(self._lines[number])]
        position = next(iter(before), (kind or [entry.end - 1])[0] + 1)
        written = entry.lines([entry.case])
        self._after.setdefault(position, [])[:0] = [line for line in written if _STATEMENT.fullmatch(line)]

    def take_away(self, entries: Sequence[FileEntry], includes: Sequence[Mapping[str, Any]]) -> None:
        """Take entries away from the ledgers that the file includes by these tables."""
        heads = [number for number, line in enumerate(self._lines) if _INCLUDE.fullmatch(line)]
        for start, table in zip(heads, includes, strict=False):
            cases = [entry.case for entry in entries if entry.included == table["ledger"]]
            if cases:
                self._replace(
                    range(start, end_of_table(self._lines, start)),
                    "without",
                    [*table.get("without", []), *dict.fromkeys(cases)],
                )

    def _replace(self, numbers: range, key: str, values: Sequence[str]) -> None:
        """Write a key of a table anew, which may take several lines; below its last key if it is not there."""
        heads = [number for number in numbers if re.match(rf"[ \t]*{key}[ \t]*=", self._lines[number])]
        if heads:
            there = range(heads[0], _end_of_value(self._lines, heads[0], numbers.stop))
            if any(_COMMENT.search(self._lines[number]) for number in there):
                raise BadLedger(f"{self._path}: a comment inside of the list `{key}`: put it above the table")
            self._gone.update(there)
            position = there.stop
        else:
            position = numbers.stop
        self._after.setdefault(position, [])[:0] = list_lines(key, values)

    def add(self, entries: Sequence[FileEntry], removed: Collection[FileEntry]) -> None:
        """Add entries, each group below the last entry of the law of its first case."""
        for group in _groups(entries):
            kin = [old.end for old in self._entries if old.law == group[0].law and old not in removed]
            position = max([end for end in kin if end >= 0], default=len(self._lines))
            self._after.setdefault(position, []).extend(_grouped(group))

    def result(self) -> list[str]:
        kept: list[str] = []
        for number in range(len(self._lines) + 1):
            if number == len(self._lines):
                _trim(kept)
            kept += self._after.get(number, [])
            if number < len(self._lines) and number not in self._gone:
                kept.append(self._lines[number])
        return kept


def _groups(entries: Iterable[FileEntry]) -> list[list[FileEntry]]:
    """Return the entries that state the same together."""
    groups: dict[object, list[FileEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.shape, []).append(entry)
    return list(groups.values())


def _grouped(entries: Iterable[FileEntry]) -> list[str]:
    """Return the lines of new entries, each with a blank line above."""
    return [line for group in _groups(entries) for line in ("", *group[0].lines([entry.case for entry in group]))]


def end_of_table(lines: Sequence[str], first: int) -> int:
    """Return where a table ends: after its last key. Blank lines and comments above the next belong to that one."""
    headers = (number for number in range(first + 1, len(lines)) if _is_header(lines[number]))
    end = next(headers, len(lines))
    while end > first + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return end


def _is_header(line: str) -> bool:
    return bool(ENTRY.fullmatch(line) or _INCLUDE.fullmatch(line) or _BLIND.fullmatch(line))


def _end_of_value(lines: Sequence[str], first: int, stop: int) -> int:
    """Return where the value ends that begins on this line: at the first line that makes it whole."""
    for end in range(first + 1, stop + 1):
        with contextlib.suppress(tomllib.TOMLDecodeError):
            tomllib.loads("\n".join(lines[first:end]))
            return end
    return first + 1


def _cut(lines: list[str], first: int, end: int) -> range:
    """Return the lines to remove: those of the entry, and the blank lines below if a blank line above stays."""
    if first == 0 or not lines[first - 1].strip():
        while end < len(lines) and not lines[end].strip():
            end += 1
    return range(first, end)


def _trim(lines: list[str]) -> None:
    """Remove blank lines from the end."""
    while lines and not lines[-1].strip():
        lines.pop()
