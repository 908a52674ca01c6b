"""The file with a player's crossings, one on a line, and what it holds."""

from __future__ import annotations

import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

from everyrank.suites.moves.crossing import Crossing, crossings, events_in, further, text_of
from everyrank.suites.moves.flow import flowing, flowing_again, flowing_further
from everyrank.suites.moves.player import Player


@cache
def stored(player: Any) -> list[tuple[Crossing, bool]]:
    """Return the crossings of a player, each with whether it is for the full profile alone.

    They stand in the file that the player names, or else they are made now.
    """
    if not player.crossings:
        return [(script, False) for script in crossings(player).scripts]
    return [_read(line) for line in file_of(player).read_text().splitlines()]


def file_of(player: type[Player]) -> Path:
    """Return the file with a player's crossings."""
    return Path(inspect.getfile(player)).parent / player.crossings


def written(player: type[Player]) -> str:
    """Return the text of the file with a player's crossings.

    Those of the full profile follow the others, then those for flows, those of each layer and for its flows, those
    for flows that come again, and those of the layers since: an id has the number of its line.
    """
    chosen: Any = player
    first, every = crossings(chosen).scripts, crossings(chosen, 4).scripts
    lines = [_line(script, number >= len(first)) for number, script in enumerate(every)]
    more = flowing(player, first)
    for layer in range(1, len(player.further) + 1):
        if layer == player.layers_before_again + 1:
            more += flowing_again(player)
        more += further(player, (*first, *more), layer)
        more += flowing_further(player, (*first, *more), layer)
    if player.layers_before_again >= len(player.further):
        more += flowing_again(player)
    lines += [_line(script, False) for script in more]
    return "".join(f"{line}\n" for line in lines)


def _line(script: Crossing, full: bool) -> str:
    """Write a crossing on a line: its profile, its traits, and its events, each with the number of its kind."""
    return f"{'full' if full else 'default'} {json.dumps(script.traits)} {text_of(script.events)}"


def _read(line: str) -> tuple[Crossing, bool]:
    profile, _, rest = line.partition(" ")
    traits, end = json.JSONDecoder().raw_decode(rest)
    return Crossing(traits, events_in(rest[end:])), profile == "full"
