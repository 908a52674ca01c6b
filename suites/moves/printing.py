"""Render a script as a test to paste: its moves are calls of the player."""

from __future__ import annotations

from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.data import code, names_in
from everyrank.suites.generate.printing import home_of, mark_of
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
    subject_line, name = home_of(subject)
    chosen = contract(subject.contract)
    fixtures = chosen.part("player").fixtures_for(script.size)
    return _TEST.format(
        module=type(script.model).__module__,
        names=", ".join(sorted(names_in(script.model))),
        subject=subject_line,
        name=name,
        size=script.size,
        model=code(script.model, "    "),
        marks="".join(f"@pytest.mark.{mark_of(decorator.mark)}\n" for decorator in chosen.marks),
        fixtures=", ".join(chosen.fixtures if fixtures is None else fixtures),
        moves="\n".join(f"        player.{each}" for each in script.moves) or "        pass",
    )
