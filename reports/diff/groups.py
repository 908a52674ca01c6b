"""Which changes of a diff are one: cases of a law whose outcome changed alike, also in subjects that fail alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from everyrank.model.counts import count
from everyrank.model.outcome import Ending
from everyrank.reports.cause import signature
from everyrank.reports.diff.diff import Change
from everyrank.reports.runfile.model import CaseLine


@dataclass(frozen=True)
class ChangeGroup:
    """Cases of one law whose outcome changed in the same way: of one subject, or of several that broke it alike."""

    name: str
    step: tuple[Ending | None, Ending | None]
    changes: list[Change]
    subjects: tuple[str, ...] = ()  # if there are several

    @property
    def step_text(self) -> str:
        before, now = self.step
        return f"{before} -> {now}" if before and now else f"new: {now}" if now else f"was {before}"


def groups(changes: Iterable[Change]) -> list[ChangeGroup]:
    """Group the changes by law and step, and subjects that the first message shows to be alike. Keep their order."""
    by_law: dict[tuple[str, tuple[Ending | None, Ending | None]], ChangeGroup] = {}
    for change in changes:
        key = (_name(change.case), change.step)
        by_law.setdefault(key, ChangeGroup(*key, [])).changes.append(change)
    alike: dict[tuple[object, ...], list[ChangeGroup]] = {}
    for group in by_law.values():
        case = group.changes[0].case
        law = (case.contract, case.law) if case.law else group.name
        alike.setdefault((law, group.step, signature(case)), []).append(group)
    return [_joined(together) for together in alike.values()]


def _joined(groups: list[ChangeGroup]) -> ChangeGroup:
    """Return the groups of several subjects as one."""
    if len(groups) == 1:
        return groups[0]
    case = groups[0].changes[0].case
    subjects = tuple(group.changes[0].case.subject for group in groups)
    name = f"{count(len(groups), 'subject')} {case.contract}/{case.law}"
    return ChangeGroup(name, groups[0].step, [change for group in groups for change in group.changes], subjects)


def short_names(group: ChangeGroup) -> list[str]:
    """Return what distinguishes the cases of a group; a case of several subjects once."""
    shorts = [_short(change.case) for change in group.changes]
    return list(dict.fromkeys(shorts)) if group.subjects else shorts


def _name(case: CaseLine) -> str:
    """Return the subject and the law. A test without a subject is named by its function."""
    return f"{case.subject} {case.contract}/{case.law}" if case.subject or case.law else case.id.partition("[")[0]


def _short(case: CaseLine) -> str:
    """Return the part of the id that distinguishes a case from the others of its group, or nothing."""
    _, bracket, rest = (case.case or case.id).partition("[")
    return bracket + rest
