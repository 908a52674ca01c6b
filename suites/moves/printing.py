"""Render a script as a test to paste: its moves are calls of the player."""

from __future__ import annotations

import sys

import pytest
from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.data import code, names_in
from everyrank.suites.moves.script import Script

_TEST = """\
import pytest
from everyrank.suites.moves.player import playing
from {module} import {names}
{subject}


@pytest.mark.world({size})
{marks}def test_found({fixtures}):
    with playing({name}, {model}) as player:
{moves}
"""


def printed(subject: Subject, script: Script) -> str:
    """Return a whole test file that plays this script on this subject."""
    subject_line, name = _home_of(subject)
    chosen = contract(subject.contract)
    fixtures = chosen.part("player").fixtures_for(script.size)
    return _TEST.format(
        module=type(script.model).__module__,
        names=", ".join(sorted(names_in(script.model))),
        subject=subject_line,
        name=name,
        size=script.size,
        model=code(script.model, "    "),
        marks="".join(f"@pytest.mark.{_mark_of(decorator.mark)}\n" for decorator in chosen.marks),
        fixtures=", ".join(chosen.fixtures if fixtures is None else fixtures),
        moves="\n".join(f"        player.{each}" for each in script.moves) or "        pass",
    )


def _mark_of(mark: pytest.Mark) -> str:
    """Return a mark as code."""
    given = [*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())]
    return f"{mark.name}({', '.join(given)})"


def _home_of(subject: Subject) -> tuple[str, str]:
    """Return the line that imports a subject, and its name there."""
    module, name = _home(subject)
    line = f"from {module} import {name}"
    return line if module else f"from ... import {name}  # where {subject.name} is declared", name


def _home(subject: Subject) -> tuple[str, str]:
    """Return a module and a name by which a subject can be imported, preferably the module that declares it."""
    homes = [
        (name, key)
        for name, module in list(sys.modules.items())
        for key, value in list(vars(module).items() if hasattr(module, "__dict__") else ())
        if value is subject and key.isidentifier() and not name.startswith("__")
    ]
    return min(homes, key=lambda home: ("test_" in home[0], home), default=("", "SUBJECT"))
