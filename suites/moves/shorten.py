"""Make a script that fails shorter. All ranks do the same, since a script fails on all of them alike."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from everyrank import current_world
from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.move import Writing, moves_of
from everyrank.suites.moves.player import Player, play
from everyrank.suites.moves.script import Call, Script
from everyrank.suites.moves.together import meet

#: How many scripts are tried.
_MOST = 200

#: For how many seconds scripts are tried: one that fails by a wait in vain takes seconds each time.
_SECONDS = 60.0


@dataclass
class Shortened:
    """A script that fails, and what differs there."""

    script: Script
    problem: str


def shortest(subject: Subject, script: Script, features: frozenset[str], most: int = _MOST) -> Shortened:
    """Return a short script that fails for this subject, given one that does.

    It needs no feature but these: a subject fails with what it lacks, too, for another reason.
    """
    player: type[Player] = contract(subject.contract).part("player")
    found = Shortened(script, "it did not fail again")
    tried, until = 0, time.monotonic() + _SECONDS
    again = True
    while again and tried < most:
        again = False
        for shorter in _shorter(player, found.script, found.problem):
            if tried >= most or _passed(until):
                break
            tried += 1
            if makes_sense(player, shorter, features) and (problem := play(subject, shorter)):
                found, again = Shortened(shorter, problem), True
                break
    if found.script is script:
        found.problem = play(subject, script) or found.problem
    return found


def _passed(until: float) -> bool:
    """Return whether rank 0's clock has passed a time: each rank has its own."""
    texts = meet(current_world(), "the time for shortening", json.dumps(time.monotonic() > until))
    return bool(json.loads(texts[0]))


def makes_sense(player: type[Player], script: Script, features: frozenset[str]) -> bool:
    """Return whether each move makes sense where it stands, and a subject with these features has all of it."""
    writing = Writing(moves_of(player), features, player.outline(script.model))
    return features.issuperset(player.needed(script.model)) and all(
        writing.try_to_add(each.move, dict(each.arguments)) for each in script.moves
    )


def _shorter(player: type[Player], script: Script, problem: str) -> Iterator[Script]:
    """Yield scripts that are shorter or simpler: without the moves after the one that failed, without many, ..."""
    moves = script.moves
    failed = re.search(r": move (\d+), ", problem)
    if failed is not None and int(failed[1]) < len(moves):
        yield replace(script, moves=moves[: int(failed[1])])
    size = len(moves) // 2
    while size:
        for start in range(len(moves) - size, -1, -size):
            yield replace(script, moves=moves[:start] + moves[start + size :])
        size //= 2
    for number, each in enumerate(moves):
        for fewer in _simpler(each.arguments):
            yield replace(script, moves=(*moves[:number], Call(each.move, fewer), *moves[number + 1 :]))
    for model in player.simpler(script.model):
        if model != script.model:
            yield replace(script, model=model)


def _simpler(arguments: Sequence[tuple[str, object]]) -> Iterator[tuple[tuple[str, object], ...]]:
    for number in range(len(arguments)):
        yield (*arguments[:number], *arguments[number + 1 :])
