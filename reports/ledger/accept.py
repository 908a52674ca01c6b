"""Update the ledgers from a run: add new deviations, remove stale entries, and hide no fault.

Only a case that ended and broke its law is accepted, by its own id, as unreported: a person writes the link to the
report. The entry states the deviation that was seen; an entry that stated another deviation is restated. A crash, a
timeout, an error, a case that was not run or a red test without a subject is not accepted, and printed.

What a subject lacks without declaring it is another matter: whether it is to lack that is a person's decision
(``--lacks``), which accepts nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from everyrank.model.outcome import HOLDS, RED, Ending
from everyrank.model.versions import minor_release
from everyrank.reports.errors import BadLedger, NoSubject
from everyrank.reports.ledger.entry import FileEntry
from everyrank.reports.ledger.ledger_file import LedgerFile, new_ledger, read_ledger
from everyrank.reports.ledger.statement import NOTHING, Statement, statement
from everyrank.reports.runfile.model import CaseLine
from everyrank.reports.runfile.read import Run
from everyrank.reports.text import plain

#: The limit of a note, in characters.
_NOTE = 200

_NEVER: dict[Ending, str] = {
    "crash": "a crash is never accepted",
    "timeout": "a timeout is never accepted",
    "error": "an error is never accepted",
    "interrupted": "its run was interrupted",
    "not-run": "it was not run",
}

_NO_SUBJECT = "a test without a subject has no ledger: correct it, or mark it xfail"

_NO_LEDGER = "its subject names no ledger: give its path with --ledger"

#: A stale entry may be removed if all of its cases have one of these outcomes: none of them deviates.
_CLEAR: frozenset[Ending] = HOLDS | {"stale", "unsupported", "not-applicable"}

#: Options that choose cases. Such a run shows nothing of the other cases that a pattern matches.
_CHOOSING = ("--law", "--optimizer", "--lf", "--last-failed", "--deselect", "--sw", "--stepwise")


@dataclass(frozen=True)
class Edit:
    """The changes of one ledger, and its new text."""

    ledger: LedgerFile
    added: tuple[FileEntry, ...]
    removed: tuple[FileEntry, ...]
    restated: tuple[FileEntry, ...]
    text: str
    lacks: tuple[str, ...] = ()
    """The capabilities that the subject declares as lacking from now on."""


@dataclass(frozen=True)
class NotAccepted:
    """A case that no ledger accepts, and the reason."""

    case: CaseLine
    reason: str


def accept(
    run: Run, ledgers: Mapping[str, Path], subjects: Collection[str] | None = None
) -> tuple[list[Edit], list[NotAccepted]]:
    """Return the edits to the ledgers of these subjects (None for all), and the cases not accepted. Write nothing."""
    cases: dict[Path, list[CaseLine]] = {}
    refused: list[NotAccepted] = []
    for case in run.cases:
        if subjects is not None and case.subject not in subjects:
            continue
        if not case.subject:
            refused += [NotAccepted(case, _NEVER.get(case.outcome, _NO_SUBJECT))] if case.outcome in RED else []
        elif case.subject in ledgers:
            cases.setdefault(ledgers[case.subject], []).append(case)
        elif case.outcome in RED:
            refused.append(NotAccepted(case, _undeclared(case) or _NEVER.get(case.outcome, _no_ledger(case))))
    edits = []
    for path, its_cases in cases.items():
        edit, refused_here = _edit(run, path, its_cases)
        refused += refused_here
        if edit is not None:
            edits.append(edit)
    return edits, refused


def declare_lacks(
    run: Run, ledgers: Mapping[str, Path], subjects: Collection[str] | None = None
) -> tuple[list[Edit], list[NotAccepted]]:
    """Return the edits that declare what subjects lack, and a case of each that has no ledger. Write nothing."""
    missing: dict[str, CaseLine] = {}
    for case in run.cases:
        is_meant = case.missing and (subjects is None or case.subject in subjects)
        if is_meant and len(case.missing) > len(missing.get(case.subject, CaseLine("", "error")).missing):
            missing[case.subject] = case
    edits, refused = [], []
    for subject, case in missing.items():
        if subject not in ledgers:
            refused.append(NotAccepted(case, _undeclared(case)))
            continue
        path = ledgers[subject]
        before = read_ledger(path) if path.exists() else new_ledger(path, subject, run.header.torch)
        if names := tuple(name for name in case.missing if name not in before.lacks):
            edits.append(Edit(before, (), (), (), before.lacking(names).text, names))
    return edits, refused


@dataclass(frozen=True)
class Siblings:
    """The laws of which deviations were accepted from a part of their cases: another run may take the others."""

    filter: str
    laws: tuple[str, ...]
    tests: tuple[str, ...]
    """The tests that have them, as pytest names them."""


def siblings(run: Run, edits: Iterable[Edit]) -> Siblings | None:
    """Return the laws of what is added from a profile that leaves cases out: it takes those that are not listed."""
    profiles = [part.filter for part in run.header.left_out if part.filter.startswith("--profile=")]
    added = {entry.case for edit in edits for entry in edit.added}
    cases = [case for case in run.cases if case.outcome == "fail" and short(case) in added]
    if not profiles or not cases:
        return None
    laws = dict.fromkeys(case.law for case in cases)
    tests = dict.fromkeys(case.id.partition("[")[0] for case in cases)
    return Siblings(profiles[0], tuple(laws), tuple(tests))


def _undeclared(case: CaseLine) -> str:
    """Return why a case was not tried whose subject lacks what it does not declare; an empty text for any other."""
    if not case.missing:
        return ""
    names = ", ".join(f'"{name}"' for name in case.missing)
    return f"{case.subject} lacks what it does not declare: add it, or paste lacks=[{names}] into its Subject"


def _no_ledger(case: CaseLine) -> str:
    """Return what to do for a case whose subject names no ledger."""
    names = " or ".join(f'known="{name}"' for name in case.stated_by)
    return f"{_NO_LEDGER}, or, if it builds on that, write {names} into its Subject" if names else _NO_LEDGER


def chosen_ledgers(run: Run, subjects: Sequence[str] | None, ledger: Path | None) -> dict[str, Path]:
    """Return the ledger of each subject: as the run names it, or as ``--ledger`` does for one subject."""
    there = {case.subject for case in run.cases if case.subject}
    for name in subjects or ():
        if name not in there:
            raise NoSubject(
                f"{run.path}: no case of a subject {name!r}; its subjects: {', '.join(sorted(there)) or 'none'}"
            )
    ledgers = _named_ledgers(run)
    if ledger is None:
        concerned = {case.subject for case in run.cases if case.outcome in ("fail", "stale")}
        for name, path in ledgers.items():
            if name in concerned and name in (subjects or there) and not path.exists():
                raise BadLedger(f"{path}: this ledger does not exist: run this where pytest ran, or use --ledger")
        return ledgers
    meant = sorted(set(subjects) if subjects else there - set(ledgers))
    if not there:
        raise NoSubject(f"{run.path}: --ledger is for a subject, and this run has no case of one")
    if len(meant) != 1:
        which = f"{len(meant)} are meant ({', '.join(meant)})" if meant else "each subject of this run names a ledger"
        raise NoSubject(f"--ledger is for one subject, but {which}: choose it with --subject")
    return {**ledgers, meant[0]: ledger}


def _named_ledgers(run: Run) -> dict[str, Path]:
    """Return the ledger of each subject that names one: in the header, or in the entry of a case."""
    ledgers = {name: Path(file) for name, file in run.header.subjects.items() if file}
    for case in run.reported:
        if case.subject and case.ledger is not None and case.ledger.file:
            ledgers.setdefault(case.subject, Path(case.ledger.file))
    return ledgers


def _edit(run: Run, path: Path, cases: Sequence[CaseLine]) -> tuple[Edit | None, list[NotAccepted]]:
    listed = {id: index for index, id in enumerate(run.header.cases)}
    red = sorted((case for case in cases if case.outcome in RED), key=lambda case: listed[case.id])
    if not red:
        return None, []
    ledger = (
        read_ledger(path, run.header.torch) if path.exists() else new_ledger(path, red[0].subject, run.header.torch)
    )
    added, restated, refused = _new(ledger, red)
    removed, kept = _stale(run, ledger, cases)
    if not (added or removed or restated):
        return None, refused + kept
    text = ledger.changed(removed, added, restated)
    return Edit(ledger, tuple(added), tuple(removed), tuple(restated), text), refused + kept


def _new(ledger: LedgerFile, red: Iterable[CaseLine]) -> tuple[list[FileEntry], list[FileEntry], list[NotAccepted]]:
    """Return the entries that are new, those that state another deviation now, and the cases not accepted."""
    added: dict[str, FileEntry] = {}
    restated: dict[str, FileEntry] = {}
    notes: dict[tuple[str, Statement], str] = {}
    refused = []
    for case in red:
        if case.outcome == "stale":
            continue
        reason = _refusal(ledger, case)
        entry, seen = ledger.entry(short(case)), statement(case.deviations)
        if reason:
            refused.append(NotAccepted(case, reason))
        elif entry is None:
            torch = _torch(ledger, case)
            # Cases that state the same become one entry, with the note of the first.
            note = _note(case) if seen == NOTHING else notes.setdefault((torch, seen), _note(case))
            added[short(case)] = FileEntry(short(case), "fail", note=note, states=seen, torch=torch)
        elif case.ledger is not None and entry.states != seen:  # else an entry that this run did not know
            restated[short(case)] = replace(entry, states=seen)
    return list(added.values()), list(restated.values()), refused


def _refusal(ledger: LedgerFile, case: CaseLine) -> str:
    """Return why a case is not accepted; an empty text if it is, or was before."""
    if reason := _undeclared(case) or _NEVER.get(case.outcome, ""):
        return reason
    if case.lack:
        return "it is declared as lacking, but the subject did not refuse it as declared: correct the declaration"
    if case.passes_alone:
        return "it passes alone: the cause is something that its neighbours left behind, not the subject"
    if "*" in short(case) or "?" in short(case):
        return "its id would be read as a pattern"
    entry = ledger.entry(short(case))
    if entry is not None and entry.kind not in ("fail", "documented"):
        return f"the entry {entry.case!r} expects {entry.kind!r}, but the outcome is 'fail': correct the entry"
    if entry is not None and entry.is_pattern and case.ledger is not None:
        return f"the entry {entry.case!r} matches more cases, and states another deviation: narrow or correct it"
    return ""


def _stale(run: Run, ledger: LedgerFile, cases: Sequence[CaseLine]) -> tuple[list[FileEntry], list[NotAccepted]]:
    removed: list[FileEntry] = []
    refused = []
    for case in cases:
        if case.outcome != "stale":
            continue
        entry = ledger.entry(short(case))
        if case.lack:
            refused.append(NotAccepted(case, "it is declared as lacking, but it works: remove the declaration"))
        elif entry is not None and entry not in removed:
            reason = _still_wanted(run, entry, cases)
            if reason:
                refused.append(NotAccepted(case, reason))
            else:
                removed.append(entry)
    return removed, refused


def _still_wanted(run: Run, entry: FileEntry, cases: Iterable[CaseLine]) -> str:
    """Return why a stale entry is kept; an empty text if none of its cases deviates."""
    matched = [case for case in cases if entry.matches(short(case))]
    others = sum(case.outcome not in _CLEAR for case in matched)
    if others:
        return f"the entry {entry.case!r} also matches {others} of {len(matched)} cases that do not pass: narrow it"
    if entry.is_pattern and (run.header.left_out or _chosen(run.header.command)):
        return f"the entry {entry.case!r} matches more cases than this run chose: run them all"
    if entry.is_pattern and run.footer is not None and run.footer.troubles:
        return f"the entry {entry.case!r} may match more cases than were collected: {run.footer.troubles[0]}"
    return ""


def _chosen(command: Iterable[str]) -> bool:
    """Return whether the command asked pytest to run only some of the cases."""
    words = list(command)
    for index, word in enumerate(words):
        if Path(word).name in ("pytest", "py.test"):
            words = words[index + 1 :]  # the words before are Python's: -m pytest
            break
    return any("::" in word or word.partition("=")[0] in _CHOOSING or word[:2] in ("-k", "-m") for word in words)


def short(case: CaseLine) -> str:
    """Return the id of a case as its ledger has it: without the contract."""
    return case.case.partition("/")[2]


def _torch(ledger: LedgerFile, case: CaseLine) -> str:
    """Return the versions of torch that a new entry is about: the run's own, if other versions have another entry."""
    return minor_release(ledger.torch) if ledger.is_for_other_versions(short(case)) else ""


def _note(case: CaseLine) -> str:
    return plain(case.message.strip(), _NOTE)
