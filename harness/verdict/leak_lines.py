"""Lists what the ranks of a test left behind, for its report: in full, or briefly beside a failure."""

from __future__ import annotations

import re
from collections import Counter

from everyrank.leaks.describe import KINDS
from everyrank.model.counts import count
from everyrank.model.ranks import ranks_text
from everyrank.rank.warnings_filed import folded
from everyrank.verdict.fates import Fates

#: The number of lines for leaks beside a failure.
_LINES_BESIDE_FAILURE = 2

#: The verbosity (-vv) from which all leaks are listed there, too.
ALL_LEAKS = 2

#: How many of each thing each rank left, by kind and description.
LeftBehind = dict[tuple[str, str], Counter[int]]


def left_behind(fates: Fates) -> LeftBehind:
    """Count the leaks of all ranks."""
    left: LeftBehind = {}
    for fate in fates.ranks:
        for leak in fate.record.leaks if fate.record else ():
            description = re.sub(r"^(socket|pipe):\[\d+\]", r"\1", leak.description)
            left.setdefault((leak.kind, description), Counter())[fate.rank] += 1
    return left


def leak_lines(fates: Fates) -> list[str]:
    """Return lines such as ``ranks 0-3 left a thread: Thread-1``, one for all equal leaks of all ranks."""
    return _lines(left_behind(fates))


def folded_leak_lines(fates: Fates) -> list[str]:
    """Return the same lines, but ignore differences that chance makes, such as a port that the system chose."""
    left: LeftBehind = {}
    for (kind, description), counts in left_behind(fates).items():
        left.setdefault((kind, folded(description)), Counter()).update(counts)
    return _lines(left)


def lines_beside_failure(fates: Fates) -> list[str]:
    """Return one or two lines, so that the failure stays visible: an exception leaves much behind that the test
    would have closed without it."""
    left = left_behind(fates)
    raised = {fate.rank for fate in fates.ranks if fate.phases("failed") or fate.phases("xfailed")}
    explained = {key: counts for key, counts in left.items() if counts.keys() <= raised}
    lines = [_when_failed(explained)] if explained else []
    rest = sorted(left.keys() - explained.keys(), key=lambda key: (list(KINDS).index(key[0]), key[1]))
    others = _lines({key: left[key] for key in rest})
    room = _LINES_BESIDE_FAILURE - len(lines)
    if len(others) > room:
        more = len(others) - room
        others[room - 1 :] = [f"{others[room - 1]}, and {count(more, 'more leak')} (-vv shows all)"]
    return lines + others


def _lines(left: LeftBehind) -> list[str]:
    lines = []
    for (kind, description), counts in left.items():
        for number in sorted(set(counts.values())):
            ranks = [rank for rank, counted in counts.items() if counted == number]
            each = " each" if number > 1 and len(ranks) > 1 else ""
            lines.append(f"{ranks_text(ranks)} left {_noun(kind, number)}{each}: {description}")
    return lines


def _when_failed(left: LeftBehind) -> str:
    ranks = sorted(set().union(*left.values()))
    kinds: dict[str, Counter[int]] = {}
    for (kind, _), counts in left.items():
        kinds.setdefault(kind, Counter()).update(counts)
    things = ", ".join(_noun(kind, max(kinds[kind].values())) for kind in KINDS if kind in kinds)
    if len(left) == 1:
        things += f": {next(iter(left))[1]}"
    return f"{ranks_text(ranks)} left when {'it' if len(ranks) == 1 else 'they'} failed: {things}"


def _noun(kind: str, count: int) -> str:
    single, many = KINDS[kind]
    return single if count == 1 else f"{count} {many}"
