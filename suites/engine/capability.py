"""A capability: something that a contract asks for and that a subject may lack, by a short name.

A subject that lacks one declares its name. One that does not is asked for all of them at once, before the first case
that needs one, so that a missing method is reported once and not by each law that calls it. What cannot be asked for
in so plain a way, such as sparse gradients, is left to the laws: their red cases name the lack that would declare it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from everyrank.model.ledger import matching
from everyrank.rank.context import current_rank
from everyrank.suites.engine.contract import Contract, Point
from everyrank.suites.engine.subject import Lack, Subject
from everyrank.suites.errors import DeclarationError

#: What Python raises if a method, an argument or an attribute is not there, and what a refusal raises.
REFUSALS = (AttributeError, NotImplementedError, TypeError)


@dataclass(frozen=True)
class Capability:
    """Something that a subject may lack."""

    name: str
    cases: tuple[str, ...]
    """The cases that need it, as patterns over case ids without the contract; first those that are about it."""
    use: Callable[[Any], object] | None = None
    """Uses it in the plainest way, given what the arena yields, on all ranks. It raises one of ``refusals`` if the
    subject lacks it; whatever else it raises is left to the laws. None if only its laws show whether it is there."""

    part_of: str = ""
    """The capability without which this is of no use, and is not asked for."""
    text: str = ""
    """What a subject has that has it, in a sentence."""
    words: tuple[str, ...] = ()
    """Words of which an error has one that is about it: a case that needs it says so."""
    refusals: tuple[type[Exception], ...] = REFUSALS
    """What a subject raises that lacks it."""
    seen: str = ""
    """What is seen of a subject that lacks it where there is nothing to refuse: a part of a deviation's text."""
    unless_stated: bool = False
    """Whether it is asked for only if no ledger to build on states how the subject ends without it."""

    @property
    def lack(self) -> Lack:
        return Lack(self.refusals, f"no {self.name}", self.seen)

    def needed_by(self, ids: Collection[str]) -> set[str]:
        """Return those of the case ids that need it."""
        return {id for pattern in self.cases for id in matching(pattern, ids)}

    def is_missing_in(self, text: str, raised: Collection[str], needed: bool) -> bool:
        """Return whether a subject that deviates so may just lack it: it refuses, or is silent.

        What is raised may be a mistake as well, so it must be about this: by the name of a method or an argument, or
        in a case that needs it (``needed``).
        """
        if self.seen and self.seen in text:
            return True
        if {kind.__name__ for kind in self.refusals}.isdisjoint(raised):
            return False
        if re.search(rf"\b(attribute|argument) '{self.name}'|\b(no|neither) {self.name}\b", text):
            return True
        words = any(re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in self.words)
        return needed and (words or "NotImplementedError" in raised)


def capabilities(chosen: Contract) -> Mapping[str, Capability]:
    """Return the capabilities of a contract, by name."""
    return {each.name: each for each in chosen.part("capabilities")}


def lacks(subject: Subject, chosen: Contract, ids: Collection[str], further: Sequence[str] = ()) -> dict[str, Lack]:
    """Return the lack of each case that has one: the first that the subject declares, or its ledger (``further``)."""
    known = capabilities(chosen)
    declared = subject.declared_lacks
    by_case: dict[str, Lack] = {}
    mistakes: list[str] = []
    for name, lack in {**declared, **dict.fromkeys(name for name in further if name not in declared)}.items():
        if name in known:
            covered: Collection[str] = known[name].needed_by(ids)
            lack = lack or known[name].lack
        elif lack is None:
            mistakes.append(_unknown(subject, chosen, name, known))
            continue
        else:
            covered = matching(name, ids)
        if not covered and name not in known:
            mistakes.append(f"{subject.name}: lacks[{name!r}] matches no case of {chosen.name}")
        by_case = {**dict.fromkeys(covered, lack), **by_case}
    if mistakes:
        raise DeclarationError("\n".join(mistakes))
    return by_case


def declarable(chosen: Contract, case_id: str, crosses: bool, text: str, raised: Collection[str]) -> list[Capability]:
    """Return the capabilities that a subject may just lack which deviates so in a case; none for what is a mistake.

    A case that crosses (``crosses``) may need any; its text begins with the law of the move that deviates.
    """
    needing = f"{text.partition(':')[0]}[]" if crosses else case_id
    lacking = []
    for each in capabilities(chosen).values():
        needed = bool(each.needed_by((needing,)))
        if (needed or crosses) and each.is_missing_in(text, raised, needed):
            lacking.append(each)
    return lacking


def _unknown(subject: Subject, chosen: Contract, name: str, known: Iterable[str]) -> str:
    """Return the text of the error for a name that is no capability."""
    close = get_close_matches(name, known, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    names = ", ".join(known) or "none"
    pattern = " A pattern over case ids needs an error: lacks={'the pattern': Lack(TypeError, 'why')}."
    return (
        f"{subject.name}: lacks {name!r}: {chosen.name} has no capability of that name.{hint} It has {names}."
        f"{pattern if '[' in name or '*' in name else ''}"
    )


def claimed_capabilities(
    chosen: Contract, subject: Subject, ids: Collection[str], free: Collection[str], stated: Collection[str]
) -> dict[str, set[str]]:
    """Return the capabilities that a subject claims and can be asked for, each with those cases that need it.

    ``free`` are the ids of cases of which the subject declares nothing, but for what a ledger to build on states
    (``stated``). If it declares those that are about a capability, by patterns, it has found out itself what it
    lacks, and its further cases are left to the laws.
    """
    known = capabilities(chosen)
    patterns = [pattern for pattern in subject.declared_lacks if pattern not in known]
    declared = {id for pattern in patterns for id in matching(pattern, ids)}
    claimed = {}
    for name, each in known.items():
        needed = each.needed_by(free)
        is_left_out = each.unless_stated and needed.intersection(stated)
        if (
            each.use is not None
            and needed
            and not is_left_out
            and not declared.issuperset(matching(each.cases[0], ids))
        ):
            claimed[name] = needed
    return claimed


def missing(chosen: Contract, subject: Subject, point: Point, names: Sequence[str]) -> dict[str, str]:
    """Return those of the capabilities that the subject turns out to lack, each with the error. Ask once in a run.

    Without names, return what was found before.
    """
    rank = current_rank()
    key = hashlib.sha256(repr((chosen.name, subject.name)).encode()).hexdigest()
    answer = Path(rank.run_folder, f"missing-{key}")
    # Another rank may not see the file, or see it at another time: rank 0 decides, also about what was found.
    before = rank.gather("capabilities", answer.read_text() if answer.exists() else "")
    if before and before[0]:
        return _loaded(before[0])
    if not names:
        return {}
    answers = json.dumps(_asked(chosen, subject, point, names))
    if agreed := rank.gather("capabilities were asked for", answers):
        answers = agreed[0]
    if rank.world.rank == 0:
        part = answer.with_suffix(".part")
        part.write_text(answers)
        part.rename(answer)  # worlds that run at the same time read a whole file, or none
    return _loaded(answers)


def _loaded(text: str) -> dict[str, str]:
    errors: dict[str, str] = json.loads(text)
    return errors


def _asked(chosen: Contract, subject: Subject, point: Point, names: Iterable[str]) -> dict[str, str]:
    """Use each capability, in one arena."""
    errors: dict[str, str] = {}
    known = capabilities(chosen)
    with torch.random.fork_rng(devices=[]), chosen.arena(subject, point) as arena:
        for name in names if arena is not None else ():
            use = known[name].use
            if use is None or known[name].part_of in errors:
                continue
            with contextlib.suppress(Exception):  # the laws will find it
                try:
                    use(arena)
                except known[name].refusals as error:
                    errors[name] = " ".join(f"{type(error).__name__}: {error}".split())
    return errors
