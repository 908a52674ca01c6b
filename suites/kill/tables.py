"""Tables of rogues that belong to no contract, and take part in ``everyrank kill-matrix`` beside the contracts.

A distribution offers a table by an entry point of the group ``everyrank.kill_tables``; a project that does not ship
its rogues names theirs in its ``pyproject.toml``, and the command is run in the folder of that file. The kit imports
none by name.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol

from everyrank.model.toml import tomllib
from everyrank.suites.kill.sample import Sample

#: The group of entry points, and the section of ``pyproject.toml`` below ``tool``: ``name = "package.module:table"``.
#: pytest runs the tests of the module, and the function makes of the sample of a run a `Table`.
GROUP = "everyrank.kill_tables"

_VARIABLE = "EVERYRANK_KILL_TABLES"


class Table(Protocol):
    """The outcomes of one run. It is registered as a plugin of pytest, and collects them by its hooks."""

    @property
    def contract(self) -> str:
        """The name of the table, which stands in the place of a contract's."""

    @property
    def faults(self) -> list[str]:
        """What keeps the table from being perfect, one sentence each."""

    def text(self) -> str:
        """Render the table."""


@cache
def _offers() -> dict[str, EntryPoint]:
    own = [EntryPoint(*line, group=GROUP) for line in _lines(Path("pyproject.toml")).items()]
    return {entry.name: entry for entry in [*entry_points(group=GROUP), *own]}


def _lines(file: Path) -> dict[str, str]:
    """Return what a project offers. What is no TOML offers nothing: pytest reads the file too, and refuses it."""
    tool, name = GROUP.split(".")
    try:
        tables: dict[str, str] = tomllib.loads(file.read_text()).get("tool", {}).get(tool, {}).get(name, {})
    except (FileNotFoundError, tomllib.TOMLDecodeError):
        return {}
    return tables


def tables() -> list[str]:
    """Return the names of all tables that installed distributions and the project of this folder offer."""
    return sorted(_offers())


def tests_of(name: str) -> str:
    """Return the module of a table's tests."""
    return _offers()[name].module


def table(name: str, sample: Sample) -> Table:
    """Return the table of a run that tries this sample."""
    offered: Table = _offers()[name].load()(sample)
    return offered


def as_environment(names: list[str]) -> dict[str, str]:
    """Return the variable by which the processes of a run know its tables."""
    return {_VARIABLE: ",".join(names)}


def requested() -> list[str]:
    """Return the tables of this run."""
    return [name for name in os.environ.get(_VARIABLE, "").split(",") if name]
