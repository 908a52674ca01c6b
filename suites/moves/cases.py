"""The generated cases of a subject, in addition to those of its contract's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from everyrank import current_world
from everyrank.rank.context import current_rank
from everyrank.suites.engine.case import Case
from everyrank.suites.engine.contract import Law, Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.player import Player
from everyrank.suites.moves.printing import printed
from everyrank.suites.moves.search import SHRINKING, Found, Search
from everyrank.suites.options import GENERATE, SearchPlan

#: The time limit of a case in seconds: for its start, and for each draw.
_START, _PER_DRAW = 20.0, 1.0


def generated(table: Sequence[Case], plan: SearchPlan) -> list[Case]:
    """Return one case for each world size of draws; ``table`` has the other cases of the subject."""
    if not table or table[0].contract.player is None:
        return []
    player: type[Player] = table[0].contract.part("player")
    features = frozenset(player.features) - player.left_out(table)
    sizes = [size for size in player.sizes if table[0].subject.sizes is None or size in table[0].subject.sizes]

    def check(subject: Subject, point: Point) -> None:
        """After each action of each drawn sequence, the subject has the values of the reference."""
        __tracebackhide__ = True
        _check(subject, plan, features)

    law = Law(GENERATE, check, lambda: (), timeout=_START + SHRINKING + plan.draws * _PER_DRAW, crosses=True)
    points = [Point("", size, fixtures=player.fixtures_for(size)) for size in sizes]
    return [replace(table[0], law=law, point=point, entry=None, lack=None, needs=(), claimed=()) for point in points]


def _check(subject: Subject, plan: SearchPlan, features: frozenset[str]) -> None:
    __tracebackhide__ = True
    search = Search(subject, features, current_world())
    found = search.run(plan)
    rank = current_rank()
    rank.item.user_properties += [("generate-draws", found.draws), ("generate-actions", found.actions)]
    rank.item.user_properties += [("generate-seconds", round(found.seconds, 3))]
    if found.draw is None:
        return
    rank.item.user_properties.append(("generate-draw", search.encoded))
    raise Deviation(_text(found, subject, plan, search.encoded))


def _text(found: Found, subject: Subject, plan: SearchPlan, encoded: str) -> str:
    lines = [
        found.problem,
        _counted(found, plan),
        "",
        "as a test:",
        "",
        printed(subject, found.draw),
        "",
        f"again: --generate-draw='{encoded}'",
    ]
    return "\n".join(lines)


def _counted(found: Found, plan: SearchPlan) -> str:
    """Describe after how many draws the search found its draw."""
    if plan.draw:
        return "found by carrying out one draw"
    return f"found by draw {found.draws} of {plan.draws} (seed {plan.seed})"
