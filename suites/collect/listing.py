"""What a contract asks for, as text: its laws, the names of what a subject may lack, and what its moves change."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from everyrank.suites.engine.capability import capabilities
from everyrank.suites.engine.contract import Contract
from everyrank.suites.errors import DeclarationError
from everyrank.suites.moves import states
from everyrank.suites.moves.file import stored
from everyrank.suites.moves.flow import all_flows, flows_of


def lacks(chosen: Contract) -> Iterator[str]:
    """Yield a line for each name that a subject may give in its ``lacks``: what it would have otherwise."""
    known = capabilities(chosen)
    width = max(map(len, known), default=0)
    for name, capability in known.items():
        yield f"{name:{width}}  {capability.text}"


def laws(chosen: Contract) -> Iterator[str]:
    """Yield the lines of each law, by its id."""
    for law in chosen.laws.values():
        yield law.id
        yield from (f"    {line}".rstrip() for line in inspect.cleandoc(law.check.__doc__ or "").splitlines())
        yield ""


def moves(chosen: Contract) -> Iterator[str]:
    """Yield the table of the kinds of state by moves, and how many flows of state the crossings have.

    Raise DeclarationError if the contract has no moves.
    """
    if chosen.player is None:
        raise DeclarationError(f"{chosen.name} has no moves")
    player = chosen.part("player")
    yield from states.table(player)
    asked, found = all_flows(player), flows_of(player, (script for script, full in stored(player) if not full))
    text = f"{len(found)} of {len(asked)} are in the crossings of the default profile"
    yield f"flows from a change to what looks at it: {text}"
