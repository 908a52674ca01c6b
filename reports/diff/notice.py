"""Cases that notice fewer changes of their collectives than before: ``--mutate``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from everyrank.model.mutation import MutantPart, MutationPart
from everyrank.reports.runfile.model import CaseLine


@dataclass(frozen=True)
class NoticesLess:
    """A case that did not notice a change in the new run, of a kind that it noticed each time in the old one."""

    case: CaseLine
    old: MutationPart
    new: MutationPart
    survivors: tuple[str, ...]  # the changes, as clauses


def notices_less(both: Iterable[tuple[CaseLine, CaseLine]]) -> Iterator[NoticesLess]:
    """Yield the cases in which a change survives now, and such a change was tried before and never survived.

    Lines of code move from run to run, so a change is known by its way, its collective and its file.
    """
    for before, now in both:
        if before.mutation is None or now.mutation is None:
            continue
        survived = {_kind(mutant) for mutant in before.mutation.mutants if mutant.outcome == "survived"}
        killed = {_kind(mutant) for mutant in before.mutation.mutants if mutant.outcome == "killed"} - survived
        texts = [
            mutant.text for mutant in now.mutation.mutants if mutant.outcome == "survived" and _kind(mutant) in killed
        ]
        if texts:
            yield NoticesLess(now, before.mutation, now.mutation, tuple(dict.fromkeys(texts)))


def noticed(part: MutationPart) -> str:
    """Return how many of its changes a test noticed: 12 of 14."""
    killed = part.count("killed")
    return f"{killed} of {killed + part.count('survived')}"


def _kind(mutant: MutantPart) -> tuple[str, str, str]:
    return mutant.way, mutant.name, mutant.location.rpartition(":")[0]
