"""One case that an entry of a ledger lists, and how entries are written as TOML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everyrank.model.ledger import KEYS, is_pattern, matches
from everyrank.reports.ledger.statement import NOTHING, Statement

#: The longest line of a list, in characters.
_WIDTH = 120


@dataclass(frozen=True)
class FileEntry:
    """A case that an entry lists, and the range of the entry's lines: from its ``[[known]]`` to its last key.

    An entry that lists several cases is as many of these.
    """

    case: str
    kind: str
    issue: str = "unreported"
    note: str = ""
    link: str = ""
    states: Statement = NOTHING
    first: int = -1
    end: int = -1
    torch: str = ""
    included: str = ""
    """The ledger that the file includes for it, if it stands there."""

    @property
    def law(self) -> str:
        return self.case.partition("[")[0]

    @property
    def is_pattern(self) -> bool:
        return is_pattern(self.case)

    def matches(self, case: str) -> bool:
        """Return whether the case is meant: stars and question marks as in file names, brackets as themselves."""
        return matches(self.case, case) if self.is_pattern else self.case == case

    def lines(self, cases: Sequence[str]) -> list[str]:
        """Return the lines of an entry that says of all these cases what this one says of its own."""
        keys = [f"{key} = {toml_value(value)}" for key, value in self.data.items() if key != "case"]
        return ["[[known]]", *list_lines("case", cases), *keys]

    @property
    def shape(self) -> object:
        """What it must have in common with another, to be listed with it; its own case, if it states nothing."""
        keys = {key: value for key, value in self.data.items() if key != "case"}
        return self.case if self.states == NOTHING else ordered(keys)

    @property
    def data(self) -> dict[str, Any]:
        values = {**vars(self), **vars(self.states)}
        match = list(self.states.match)
        values["match"] = match[0] if len(match) == 1 else match
        return {key: value for key in KEYS if (value := values[key])}


def ordered(entry: dict[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True, default=str)


def list_lines(key: str, values: Sequence[str]) -> list[str]:
    """Return a list of cases as TOML: on one line if it fits, else each law on a line, or on several."""
    if key == "case" and len(values) == 1:
        return [f"{key} = {quoted(values[0])}"]
    laws = list(dict.fromkeys(value.partition("[")[0] for value in values))
    values = sorted(values, key=lambda value: laws.index(value.partition("[")[0]))
    if len(line := f"{key} = {toml_value(list(values))}") <= _WIDTH:
        return [line]
    lines = [f"{key} = ["]
    law = ""
    for value in values:
        if value.partition("[")[0] == law and len(lines[-1]) + len(quoted(value)) + 2 <= _WIDTH:
            lines[-1] += f" {quoted(value)},"
        else:
            lines.append(f"    {quoted(value)},")
        law = value.partition("[")[0]
    return [*lines, "]"]


def toml_value(value: str | float | list[str]) -> str:
    """Return a text, a number or a list of texts as TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(quoted, value))}]"
    return quoted(value) if isinstance(value, str) else repr(value)


def quoted(text: str) -> str:
    """Return a text as a basic string of TOML, which has the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
