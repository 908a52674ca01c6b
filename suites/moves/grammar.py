"""The grammar of a player: its draws are random scripts."""

from __future__ import annotations

from typing import Any

from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.grammar import Grammar
from everyrank.suites.moves.player import Player, play
from everyrank.suites.moves.printing import printed
from everyrank.suites.moves.script import Call, Script
from everyrank.suites.moves.shorten import shortest


def _shorten(subject: Subject, script: Script, features: frozenset[str], most: int) -> tuple[Script, str]:
    found = shortest(subject, script, features, most)
    return found.script, found.problem


def grammar_of(player: type[Player]) -> Grammar:
    """Return the grammar of these moves, for ``--generate``."""

    def strategy(size: int, features: frozenset[str]) -> Any:
        from everyrank.suites.moves.drawing import scripts_of

        return scripts_of(player)(size, features)

    return Grammar(
        module=player.kinds[0].__module__,
        kinds=(Script, Call, *player.kinds),
        sizes=player.sizes,
        features=player.features,
        claims=player.claims,
        choices=player.choices,
        strategy=strategy,
        play=play,
        shorten=_shorten,
        printed=printed,
        fixtures=player.fixtures_for(player.sizes[0]),
    )
