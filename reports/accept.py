"""Bring the ledgers to what a run has shown: new deviations in, stale entries out, and nothing that hides a fault.

Only a case that came to its end and broke its law is accepted, by its own id, as unreported: where it is reported is
for a person to write. Its entry states what was seen; one that stated something else is restated. A crash, a timeout,
an error, a case that was not run or a red test of no subject is left, and told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from everyrank.reports.errors import BadLedger, NoSubject
from everyrank.reports.ledgers import Entry, LedgerFile, new_ledger, read_ledger
from everyrank.reports.model import RED, CaseLine, Ending
from everyrank.reports.reading import Run
from everyrank.reports.statement import statement
from everyrank.reports.words import plain

#: Characters of a note.
_NOTE = 200

_NEVER: dict[Ending, str] = {
    "crash": "a crash is never accepted",
    "timeout": "a timeout is never accepted",
    "error": "an error is never accepted",
    "not-run": "it was not run",
}

_NO_SUBJECT = "a test of no subject has no ledger: mend it, or mark it xfail"

_NO_LEDGER = "its subject names no ledger: --ledger says where it is to be"

#: Outcomes beside which a stale entry may go: nothing that it stands for deviates.
_CLEAR: frozenset[Ending] = frozenset(("stale", "pass", "approximate", "unsupported", "not-applicable"))

#: What makes a run one of chosen cases, so that it says little of the others that a pattern stands for.
_CHOOSING = ("--law", "--optimizer", "--lf", "--last-failed", "--deselect", "--sw", "--stepwise")


@dataclass(frozen=True)
class Edit:
    """What becomes of one ledger."""

    ledger: LedgerFile
    added: tuple[Entry, ...]
    removed: tuple[Entry, ...]
    restated: tuple[Entry, ...]
    text: str


@dataclass(frozen=True)
class Left:
    """A case that no ledger takes, and why."""

    case: CaseLine
    why: str


def accept(
    run: Run, ledgers: Mapping[str, Path], subjects: Collection[str] | None = None
) -> tuple[list[Edit], list[Left]]:
    """The edits to the ledgers of these subjects (None for all), and what they leave. Writes nothing."""
    cases: dict[Path, list[CaseLine]] = {}
    left: list[Left] = []
    for case in run.cases:
        if subjects is not None and case.subject not in subjects:
            continue
        if not case.subject:
            left += [Left(case, _NEVER.get(case.outcome, _NO_SUBJECT))] if case.outcome in RED else []
        elif case.subject in ledgers:
            cases.setdefault(ledgers[case.subject], []).append(case)
        elif case.outcome in RED:
            left.append(Left(case, _NEVER.get(case.outcome, _NO_LEDGER)))
    edits = []
    for path, of_it in cases.items():
        edit, not_taken = _edit(run, path, of_it)
        left += not_taken
        if edit is not None:
            edits.append(edit)
    return edits, left


def chosen_ledgers(run: Run, subjects: Sequence[str] | None, ledger: Path | None) -> dict[str, Path]:
    """The ledger of each subject: as the run says, or as a person does for the one that is meant."""
    there = {case.subject for case in run.cases if case.subject}
    for name in subjects or ():
        if name not in there:
            raise NoSubject(
                f"no case of this run is of a subject {name!r}: there are {', '.join(sorted(there)) or 'none'}"
            )
    found = _named_ledgers(run)
    if ledger is None:
        concerned = {case.subject for case in run.cases if case.outcome in ("fail", "stale")}
        for name, path in found.items():
            if name in concerned and name in (subjects or there) and not path.exists():
                raise BadLedger(f"{path}: there is no such ledger here: run this where pytest ran, or use --ledger")
        return found
    meant = sorted(set(subjects) if subjects else there - set(found))
    if len(meant) != 1:
        which = f"{len(meant)} are meant ({', '.join(meant)})" if meant else "each subject of this run names one"
        raise NoSubject(f"--ledger is for one subject, and {which}: choose it with --subject")
    return {**found, meant[0]: ledger}


def _named_ledgers(run: Run) -> dict[str, Path]:
    """The ledger of each subject that names one: the header says so, or an entry that spoke of a case."""
    found = {name: Path(file) for name, file in run.header.subjects.items() if file}
    for case in run.told:
        if case.subject and case.ledger is not None and case.ledger.file:
            found.setdefault(case.subject, Path(case.ledger.file))
    return found


def _edit(run: Run, path: Path, cases: Sequence[CaseLine]) -> tuple[Edit | None, list[Left]]:
    listed = {id: place for place, id in enumerate(run.header.cases)}
    red = sorted((case for case in cases if case.outcome in RED), key=lambda case: listed[case.id])
    if not red:
        return None, []
    ledger = read_ledger(path) if path.exists() else new_ledger(path, red[0].subject, run.header.torch)
    added, restated, left = _new(ledger, red)
    removed, kept = _stale(run, ledger, cases)
    if not (added or removed or restated):
        return None, left + kept
    text = ledger.changed(removed, added, restated)
    return Edit(ledger, tuple(added), tuple(removed), tuple(restated), text), left + kept


def _new(ledger: LedgerFile, red: Iterable[CaseLine]) -> tuple[list[Entry], list[Entry], list[Left]]:
    """The entries that are new, and those that state something else now."""
    added: dict[str, Entry] = {}
    restated: dict[str, Entry] = {}
    left = []
    for case in red:
        if case.outcome == "stale":
            continue
        why = _refusal(ledger, case)
        entry, seen = ledger.entry(short(case)), statement(case.deviations)
        if why:
            left.append(Left(case, why))
        elif entry is None:
            added[short(case)] = Entry(short(case), "fail", note=_note(case), states=seen)
        elif case.ledger is not None and entry.states != seen:  # else an entry that this run did not know
            restated[short(case)] = replace(entry, states=seen)
    return list(added.values()), list(restated.values()), left


def _refusal(ledger: LedgerFile, case: CaseLine) -> str:
    """Why a case is not accepted; empty if it is, or has been."""
    if case.outcome in _NEVER:
        return _NEVER[case.outcome]
    if case.lack:
        return "it is declared as lacking, and not refused as declared: mend the declaration"
    if case.passes_alone:
        return "it passes alone: what its neighbours left is at fault, not the subject"
    if "*" in short(case) or "?" in short(case):
        return "its id would be read as a pattern"
    entry = ledger.entry(short(case))
    if entry is not None and entry.kind not in ("fail", "documented"):
        return f"the entry {entry.case!r} expects {entry.kind!r}, and it ends in 'fail': mend the entry"
    if entry is not None and entry.is_pattern and case.ledger is not None:
        return f"the entry {entry.case!r} stands for more cases, and states another deviation: narrow or mend it"
    return ""


def _stale(run: Run, ledger: LedgerFile, cases: Sequence[CaseLine]) -> tuple[list[Entry], list[Left]]:
    removed: list[Entry] = []
    left = []
    for case in cases:
        if case.outcome != "stale":
            continue
        entry = ledger.entry(short(case))
        if case.lack:
            left.append(Left(case, "it is declared as lacking, and it works: remove the declaration"))
        elif entry is not None and entry not in removed:
            why = _still_wanted(run, entry, cases)
            if why:
                left.append(Left(case, why))
            else:
                removed.append(entry)
    return removed, left


def _still_wanted(run: Run, entry: Entry, cases: Iterable[CaseLine]) -> str:
    """Why a stale entry is kept; empty if nothing that it stands for deviates."""
    matched = [case for case in cases if entry.matches(short(case))]
    others = sum(case.outcome not in _CLEAR for case in matched)
    if others:
        return (
            f"the entry {entry.case!r} also stands for {others} of {len(matched)} cases that do not pass: narrow it"
        )
    if entry.is_pattern and _chosen(run.header.command):
        return f"the entry {entry.case!r} stands for more cases than this run chose: run them all"
    if entry.is_pattern and run.footer is not None and run.footer.troubles:
        return f"the entry {entry.case!r} may stand for more cases than were collected: {run.footer.troubles[0]}"
    return ""


def _chosen(command: Iterable[str]) -> bool:
    """Whether pytest was told to run some of the cases only."""
    given = list(command)
    for place, one in enumerate(given):
        if Path(one).name in ("pytest", "py.test"):
            given = given[place + 1 :]  # what stood before is Python's: -m pytest
            break
    return any("::" in one or one.partition("=")[0] in _CHOOSING or one[:2] in ("-k", "-m") for one in given)


def short(case: CaseLine) -> str:
    """The id of a case in its ledger: without the contract."""
    return case.case.partition("/")[2]


def _note(case: CaseLine) -> str:
    return plain(case.message.strip(), _NOTE)
