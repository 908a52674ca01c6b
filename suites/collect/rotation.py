"""Choose the cases of the profiles quick and default out of all cases of a subject, which are the profile full.

The default profile rotates instead of multiplying. Of each law it has the core cases, which kill the law's rogues,
and then as many as it takes until each value of each field of the law's points occurs. Of a law that varies the
arguments of optimizers, it has each optimizer at each world size, in each dtype and without arguments, and a third
of the variants; of another law with optimizers, a third of these. Which third, and which variant meets which size,
is a matter of the subject's name: another subject has others. A subject has all scripts. Subjects that are numbered
share them, core cases or not: each has one of any three in a row, and three whose turns follow each other have each
script once between them. The choice depends on declarations alone, so it is the same on every machine, and a row that
is registered later changes nothing for the rows before it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby

from everyrank.fixtures.optimizers import TABLE
from everyrank.model.ledger import matches
from everyrank.suites.arena.first_step import longer
from everyrank.suites.collect.profile import DEFAULT, QUICK
from everyrank.suites.engine.case import Case
from everyrank.suites.engine.subject import Subject
from everyrank.suites.options import GENERATE

#: One thing that the cases of a profile must have between them.
Target = tuple[str, ...]

#: A law of so few cases has all of them: to choose would save little.
_FEW = 4

#: The fields of which each value meets each optimizer.
_WITH_EACH_OPTIMIZER = ("size", "dtype")

#: How many subjects it takes, one of each turn, until each value that takes turns has occurred.
_TURNS = 3

#: World sizes from this one on are not claimed by every subject.
_MANY = 4

_OF_TORCH = frozenset(row.name for row in TABLE)


def in_profile(profile: str, cases: Sequence[Case]) -> set[str]:
    """Return the ids of those cases of one subject that are in a profile. Drawn sequences are in all of them."""
    table = [case for case in cases if case.law.id != GENERATE]
    chosen = {QUICK: quick, DEFAULT: default}.get(profile, _full)(table)
    return chosen | {case.id for case in cases if case.law.id == GENERATE}


def _full(cases: Sequence[Case]) -> set[str]:
    return {case.id for case in cases}


def quick(cases: Sequence[Case]) -> set[str]:
    """Return the ids of the cases in the quick profile: each law once, and each optimizer once.

    A variant of another subject, and an exemplar, have one case: the other subject and the kill matrix have the rest.
    """
    laws = [law for law in _by_law(cases) if _is_touched(law[0])]
    if laws and not _is_on_its_own(laws[0][0].subject):
        return {_plainest_of(laws[0]).id}
    chosen = [_plainest_of(law) for law in laws]
    trained = {target for case in chosen for target in _optimizer_of(case)}
    # The laws come in the order of their registration: the first that names an optimizer trains with it.
    chosen += _cover(sorted(cases, key=_is_weak), _optimizer_of, trained)
    return {case.id for case in chosen}


def default(cases: Sequence[Case]) -> set[str]:
    """Return the ids of the cases in the default profile.

    What is known to deviate or to be lacking takes no part in the rotation: each statement of the ledger and each
    lack has a case. A subject that is a variant of another has the rotation of the laws that its difference touches,
    and one case of a third of the others, in turn. An exemplar has its core cases, on which the kill matrix tries it.
    """
    chosen = quick(cases)
    for law in _by_law(cases):
        law = [case for case in law if case.point.turns]
        few = len(law) <= _FEW
        strong = [case for case in (law if few else _dealt(law)) if not _is_settled(case)]
        core = [case for case in strong if few or (case.point.core and case.point.turns == 1)]
        if not _is_touched(law[0]):
            chosen |= {_plainest_of(law).id} if _in_turn(law[0], law[0].law.id) else set()
        elif law[0].subject.exemplar:
            chosen |= {case.id for case in law if case.point.core}
        else:
            chosen |= {case.id for case in (*core, *_rotate(strong, core))}
    declared = sorted(cases, key=lambda case: (case.id not in chosen, *_turn(case)))
    return chosen | {case.id for case in _cover(declared, _declared, ())}


def _by_law(cases: Iterable[Case]) -> list[list[Case]]:
    by_law: dict[str, list[Case]] = {}
    for case in cases:
        by_law.setdefault(case.law.id, []).append(case)
    return list(by_law.values())


def _is_on_its_own(subject: Subject) -> bool:
    return subject.variant_of is None and not subject.exemplar


def _is_touched(case: Case) -> bool:
    """Return whether the case's law is asked of the subject although it may be a variant of another."""
    subject = case.subject
    return subject.variant_of is None or any(matches(pattern, case.law.id) for pattern in subject.touches)


def _plainest_of(law: Iterable[Case]) -> Case:
    """Return the case of a law that stands for all of them: if possible, one that kills rogues and should pass."""
    return min(law, key=lambda case: (_is_weak(case), not case.point.core, *_turn(case)))


def _rotate(law: Collection[Case], core: Iterable[Case]) -> Iterator[Case]:
    """Yield the cases of a law that bring the targets which its core cases lack, as few as possible of each row."""
    varied = _is_varied(law)
    covered = {target for case in core for target in _targets(case, varied)}
    for _, row in groupby(sorted(law, key=_row), _row):
        left = [(case, set(_targets(case, varied)) - covered) for case in sorted(row, key=_turn)]
        while left := [(case, targets) for case, targets in left if targets]:
            best, brought = max(left, key=lambda each: len(each[1]))
            yield best
            covered |= brought
            left = [(case, targets - covered) for case, targets in left]


def _dealt(law: Sequence[Case]) -> list[Case]:
    """Return the cases of a law without those that are another subject's turn, by the number of each.

    Those of many ranks come last: not every subject has them, and the others have one number for all subjects.
    """
    turn, law = law[0].subject.turn, sorted(law, key=lambda case: case.point.size >= _MANY)
    return [case for number, case in enumerate(law) if turn is None or (number + turn) % case.point.turns == 0]


def _is_varied(law: Iterable[Case]) -> bool:
    """Return whether the law is about the arguments of optimizers: it trains with more than two variants of one."""
    variants: dict[str, set[str]] = {}
    for case in law:
        variants.setdefault(case.point.optimizer, set()).add(case.point.fields.get("variant", ""))
    return any(len(names) > 2 for optimizer, names in variants.items() if optimizer)


def _cover(
    cases: Iterable[Case], targets: Callable[[Case], Iterable[Target]], covered: Collection[Target]
) -> list[Case]:
    """Return the cases that bring a target that none before them has."""
    covered, chosen = set(covered), []
    for case in cases:
        if fresh := set(targets(case)) - covered:
            covered |= fresh
            chosen.append(case)
    return chosen


def _targets(case: Case, varied: bool) -> Iterator[Target]:
    """Yield what a case contributes to the default profile."""
    point = case.point
    if not point.optimizer:
        yield "label", point.label
        yield "size", str(point.claimed_size)
    elif case.law.check in longer:  # it judges the first step of a case of that law
        yield from _optimizer_of(case)
    else:
        # Of a law that varies an optimizer's arguments, the variants take turns, and of another, the optimizers do.
        takes_turns = "variant" if varied else "optimizer"
        # The row of an optimizer is no value besides its name.
        fields = {name: value for name, value in point.fields.items() if name != "row"}
        yield from (item for item in fields.items() if item[0] != takes_turns or _in_turn(case, item[1]))
        if varied:
            yield from ((point.optimizer, name, fields[name]) for name in _WITH_EACH_OPTIMIZER if name in fields)
        if varied and fields.get("variant") == "defaults":
            yield point.optimizer, "defaults"


def _in_turn(case: Case, value: str) -> bool:
    """Return whether this subject has the value in this law: each has a third of them, and others the rest."""
    return (_hash(value) + _hash(case.subject.name, case.law.id)) % _TURNS == 0


def _optimizer_of(case: Case) -> Iterator[Target]:
    if case.point.optimizer:
        yield ("optimizer", case.point.optimizer)


def _declared(case: Case) -> Iterator[Target]:
    """Yield what the subject declares of a case: what an entry of its ledger states, or a lack."""
    if case.entry is not None:
        yield "entry", repr(case.entry.statement)
    if case.lack is not None:
        yield "lack", str(id(case.lack))  # one declaration is one object


def _is_weak(case: Case) -> bool:
    """Return whether the case needs no run, or is known to fail."""
    return bool(case.point.not_applicable or case.entry or case.lack)


def _is_settled(case: Case) -> bool:
    """Return whether the case must end as its subject declares. An entry of another subject may not hold."""
    return case.lack is not None or (case.entry is not None and not case.entry.shared)


def _row(case: Case) -> tuple[bool, int]:
    """Return the order in which rows choose: torch's in the subject's turn, then those that were registered."""
    name = case.point.optimizer
    return name not in _OF_TORCH, _hash(case.subject.name, name) if name in _OF_TORCH else 0


def _turn(case: Case) -> tuple[int, str]:
    """Return the order in which the cases of a row are chosen, which is another one for each subject."""
    return _hash(case.subject.name, case.point.label, str(case.point.size)), case.id


def _hash(*texts: str) -> int:
    """Return a number that is the same in every process, which Python's own hash is not."""
    return zlib.crc32("/".join(texts).encode())
