"""The generated cases of a subject, in addition to those of its contract's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everyrank import current_world
from everyrank.rank.context import current_rank
from everyrank.suites.engine.case import Case
from everyrank.suites.engine.contract import Law, Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.generate.grammar import Grammar
from everyrank.suites.generate.options import GENERATE
from everyrank.suites.generate.plan import SearchPlan
from everyrank.suites.generate.printing import counted
from everyrank.suites.generate.search import SHRINKING, Search

#: The time limit of a case in seconds: for its start, and for each draw.
_START, _PER_DRAW = 20.0, 1.0


def generated(table: Sequence[Case], plan: SearchPlan) -> list[Case]:
    """Return one case for each world size of the grammar; ``table`` has the other cases of the subject."""
    if not table or table[0].contract.grammar is None:
        return []
    found: Grammar = table[0].contract.part("grammar")
    features = frozenset(found.features) - found.left_out(table)
    sizes = [size for size in found.sizes if table[0].subject.sizes is None or size in table[0].subject.sizes]

    def check(subject: Subject, point: Point) -> None:
        """After each action of each drawn sequence, the subject has the values of the reference."""
        __tracebackhide__ = True
        _check(subject, plan, found, features)

    law = Law(GENERATE, check, lambda: (), timeout=_START + SHRINKING + plan.draws * _PER_DRAW, crosses=True)
    points = [Point("", size, fixtures=found.fixtures) for size in sizes]
    return [replace(table[0], law=law, point=point, entry=None, lack=None, needs=(), claims=()) for point in points]


def _check(subject: Subject, plan: SearchPlan, found: Grammar, features: frozenset[str]) -> None:
    __tracebackhide__ = True
    search = Search(found, subject, features, current_world())
    result = search.run(plan)
    rank = current_rank()
    rank.item.user_properties += [("generate-draws", result.draws), ("generate-actions", result.actions)]
    rank.item.user_properties += [("generate-seconds", round(result.seconds, 3))]
    if result.draw is None:
        return
    rank.item.user_properties.append(("generate-draw", search.encoded))
    raise Deviation(_text(result, found, subject, plan, search.encoded))


def _text(result: Any, found: Grammar, subject: Any, plan: SearchPlan, encoded: str) -> str:
    lines = [
        result.problem,
        counted(result, plan),
        "",
        "as a test:",
        "",
        found.printed(subject, result.draw),
        "",
        f"again: --generate-draw='{encoded}'",
    ]
    return "\n".join(lines)
