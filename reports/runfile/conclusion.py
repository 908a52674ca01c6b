"""Conclude the state of a whole run by one table, which the page, the badge, `diff` and `history` share.

Green needs proof here, too. A run is as declared only if it ended, something ran, no case is red, and nothing went
wrong beside the cases, such as a file that could not be collected, Ctrl-C, a failed single-process test, or an exit
status of pytest's that no line explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from everyrank.model.counts import count
from everyrank.model.outcome import NOT_TRIED, RED, Ending
from everyrank.reports.runfile.model import Footer

State = Literal["as-declared", "nothing-ran", "not-whole", "not-as-declared"]

#: From the best to the worst. Several runs that are shown as one have the state of the worst of them.
STATES: tuple[State, ...] = ("as-declared", "nothing-ran", "not-whole", "not-as-declared")

ReasonKind = Literal["not-whole", "cases", "troubles", "interrupted", "single-process", "exit", "nothing-ran"]

#: Reasons that are not about cases.
BESIDE: frozenset[ReasonKind] = frozenset(("troubles", "interrupted", "single-process", "exit"))

#: How many details are named in one sentence.
_NAMED = 3

#: The meaning of pytest's exit statuses.
_EXITS = {
    1: "tests failed",
    2: "interrupted",
    3: "an internal error",
    4: "a usage error",
    5: "no tests were collected",
}


@dataclass(frozen=True)
class Reason:
    """Why a run is not as declared: one sentence. A page shows its start, ``lead``, in bold."""

    kind: ReasonKind
    lead: str
    rest: str = ""
    details: tuple[str, ...] = ()  # each thing that the sentence is about; `diff` compares two nights by them
    brief: str = ""  # a few words, for a badge

    @property
    def text(self) -> str:
        return self.lead + self.rest


@dataclass(frozen=True)
class Conclusion:
    """The state of a whole run, with the reasons in the order of the table."""

    state: State
    reasons: tuple[Reason, ...] = ()

    @property
    def as_declared(self) -> bool:
        return self.state == "as-declared"

    @property
    def beside(self) -> tuple[Reason, ...]:
        """The reasons that are not about cases."""
        return tuple(reason for reason in self.reasons if reason.kind in BESIDE)

    @property
    def not_in_counts(self) -> tuple[Reason, ...]:
        """The reasons that are neither in the counts of a whole run nor in the progress of a cut run."""
        return tuple(reason for reason in self.reasons if reason.kind not in ("cases", "not-whole"))


def conclude(counts: Mapping[Ending, int], footer: Footer | None, progress: str = "") -> Conclusion:
    """Conclude from the number of cases by outcome and the footer. ``progress`` is the progress of a cut run."""
    reasons = [reason for rule in _TABLE if (reason := rule(counts, footer, progress)) is not None]
    return Conclusion(_state(reasons), tuple(reasons))


def conclude_together(
    parts: Sequence[tuple[str, Conclusion]], counts: Mapping[Ending, int], noun: str = "case"
) -> tuple[State, list[tuple[str, str]]]:
    """Conclude from named runs that are parts of one run. Return the state and the sentences, as lead and rest.

    ``noun`` is the word for a case: "test" if no case has a subject.
    """
    state = max((conclusion.state for _, conclusion in parts), key=STATES.index)
    sentences = []
    cases = _need_a_person(counts, noun)
    for name, conclusion in parts:
        for reason in conclusion.reasons:
            if reason.kind != "cases":
                lead = f"{name}: {reason.lead}" if len(parts) > 1 else reason.lead[:1].upper() + reason.lead[1:]
                sentences.append((lead, reason.rest))
            elif cases is not None:
                sentences.append((cases.lead, cases.rest))  # of all parts, once
                cases = None
    if state == "as-declared":
        total = sum(counts.values())
        sentences.append((f"The one {noun}" if total == 1 else f"All {count(total, noun)}", " ended as declared"))
    return state, sentences


def _state(reasons: Iterable[Reason]) -> State:
    kinds = {reason.kind for reason in reasons}
    if kinds & {"cases", *BESIDE}:
        return "not-as-declared"
    if "not-whole" in kinds:
        return "not-whole"
    return "nothing-ran" if kinds else "as-declared"


# --- the table: each row looks at the counts and the footer, and says what is wrong or nothing -----------


def _not_whole(counts: Mapping[Ending, int], footer: Footer | None, progress: str) -> Reason | None:
    if footer is not None:
        return None
    return Reason("not-whole", "the run did not finish", f": {progress}", brief="run not whole")


def _red_cases(counts: Mapping[Ending, int], footer: Footer | None, progress: str) -> Reason | None:
    return _need_a_person(counts, "case")


def _need_a_person(counts: Mapping[Ending, int], noun: str) -> Reason | None:
    red = sum(number for ending, number in counts.items() if ending in RED)
    if not red:
        return None
    lead = f"{red:,} of {count(sum(counts.values()), noun)}"
    return Reason("cases", lead, f" {'needs' if red == 1 else 'need'} a person")


def _troubles(counts: Mapping[Ending, int], footer: Footer | None, progress: str) -> Reason | None:
    if footer is None or not footer.troubles:
        return None
    lead = f"{count(len(footer.troubles), 'trouble')} beside the cases"
    return Reason("troubles", lead, f": {_named(footer.troubles, '; ')}", tuple(footer.troubles), lead)


def _interrupted(counts: Mapping[Ending, int], footer: Footer | None, progress: str) -> Reason | None:
    if footer is None or not footer.interrupted:
        return None
    detail = f"interrupted: {footer.interrupted}"
    return Reason("interrupted", "the run was interrupted", f": {footer.interrupted}", (detail,), "interrupted")


def _single_process(counts: Mapping[Ending, int], footer: Footer | None, progress: str) -> Reason | None:
    if footer is None or footer.single is None or not footer.single.failed:
        return None
    part = footer.single
    lead = f"{count(part.failed, 'single-process test')} failed"
    more = part.failed - len(part.failures)
    details = tuple(f"{id} failed, in one process" for id in part.failures) or (lead,)
    names = _named(part.failures, ", ", more)
    return Reason("single-process", lead, f": {names}" if part.failures else "", details, lead)


def _exit(counts: Mapping[Ending, int], footer: Footer | None, progress: str) -> Reason | None:
    """Return a reason for an exit status that is not 0 and that no other row explains."""
    if footer is None or not footer.exit:
        return None
    failed = any(row(counts, footer, progress) for row in (_red_cases, _troubles, _single_process))
    explained = {
        1: failed,
        2: bool(footer.interrupted or footer.troubles),
        5: not counts and (footer.single is None or not footer.single.total),
    }
    if explained.get(footer.exit, bool(footer.interrupted)):  # pytest.exit() may ask for any status
        return None
    lead = f"pytest ended with {footer.exit}"
    meaning = _EXITS.get(footer.exit, "")
    unexplained = ", for a reason that is in no line of the run file" if footer.exit == 1 else ""
    return Reason("exit", lead, f"{f' ({meaning})' if meaning else ''}{unexplained}", (lead,), lead)


def _nothing_ran(counts: Mapping[Ending, int], footer: Footer | None, progress: str) -> Reason | None:
    if any(number for ending, number in counts.items() if ending not in NOT_TRIED):
        return None
    total = sum(counts.values())
    if total:
        rest = f": none of {count(total, 'case')} was tried"
    elif footer is not None and footer.single is not None and footer.single.total:
        rest = f" on several ranks: {count(footer.single.total, 'single-process test')}"
    else:
        rest = ""
    return Reason("nothing-ran", "nothing ran", rest, brief="nothing ran")


_TABLE = (_not_whole, _red_cases, _troubles, _interrupted, _single_process, _exit, _nothing_ran)


def _named(details: Sequence[str], separator: str, more: int = 0) -> str:
    """Return the first details and the number of the others. ``more`` counts those that were not listed."""
    unnamed = len(details) - _NAMED + more if len(details) > _NAMED else more
    return separator.join([*details[:_NAMED], *([f"and {unnamed:,} more"] if unnamed else [])])
