"""The line of one test: made of the reports that all see, and of what the harness told beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec
from everyrank.reports.cutting import cut_middle
from everyrank.reports.failure_message import failure_message
from everyrank.reports.model import (
    RED,
    BlamePart,
    CaseLine,
    DeviationPart,
    Ending,
    ErrorPart,
    LeakPart,
    LedgerPart,
    OutputPart,
    PhasePart,
    RankPart,
    StancePart,
    StepPart,
)

#: Of a longer text, this much of the start and as much of the end is kept, in characters.
TEXT, OUTPUT, BRIEF = 8_000, 2_000, 300
#: Of captured texts, of leaks, and of what ranks deviate by, so many are kept.
OUTPUTS, LEAKS, DEVIATIONS = 16, 50, 8

_RANKS = re.compile(r".*, ranks? ([0-9]{1,6}(?:[,-][0-9]{1,6})*)", re.DOTALL)

_ENDINGS = frozenset(get_args(Ending))
#: Rules of the verdict that are an outcome by themselves, where the kit says nothing else.
_RULES: dict[str, Ending] = {
    "deadline": "timeout",
    "deadlock": "timeout",
    "lost": "crash",
    "launcher lost": "crash",
    "silent": "crash",
    "not run": "error",
    "different items": "error",
    "refused": "error",
    "strict xpass": "stale",
}


class ToldRank(msgspec.Struct):
    """What the harness tells of one rank."""

    rank: int
    outcome: str
    phase: str = ""
    text: str = ""
    where: str = ""
    seconds: float = 0.0
    notes: dict[str, Any] = {}


class Told(msgspec.Struct):
    """What the harness reports of one test (``pytest_everyrank_result``)."""

    rule: str
    size: int
    repeat: str
    worlds_up: int = 0
    world: int | None = None
    passes_alone: bool = False
    not_kept: str = ""
    ranks: list[ToldRank] = []
    leaks: list[LeakPart] = []
    rollcall: list[StancePart] = []
    blame: BlamePart | None = None


def line(reports: Sequence[Any], told: Told | None, said: Mapping[str, str]) -> CaseLine:
    """The line of a test that ended. ``said``: what was known of it before it ran."""
    last = reports[-1]
    said = {**said, **{str(name): str(value) for one in reports for name, value in one.user_properties}}
    told = told or Told("", 0, "")
    outcome = _outcome(reports, told.rule, said)
    worker = getattr(last, "worker_id", "")
    noted = _noted(told, "message") if outcome != "pass" else ""
    return CaseLine(
        id=last.nodeid,
        outcome=outcome,
        rule=told.rule,
        **_identity(said),
        message=_brief(noted or _message(reports, outcome)),
        text=cut_middle(_text(reports, outcome, noted), TEXT),
        size=told.size,
        world="" if told.world is None else f"{worker}-{told.world}".lstrip("-"),
        worker=worker,
        started=min(getattr(one, "start", 0.0) for one in reports),
        seconds=max(getattr(one, "stop", 0.0) for one in reports)
        - min(getattr(one, "start", 0.0) for one in reports),
        phases=[PhasePart(one.when, one.outcome, one.duration) for one in reports],
        ranks=[_rank(one) for one in told.ranks],
        error=_error(told.ranks),
        steps=_steps(told.ranks),
        deviations=_deviations(told.ranks),
        refused=_refused(told.ranks),
        leaks=_leaks(told.leaks),
        rollcall=told.rollcall,
        blame=told.blame,
        output=_output(reports, told),
        repeat=told.repeat,
        passes_alone=told.passes_alone,
        not_kept=_brief(told.not_kept),
    )


def crash_line(report: Any, said: Mapping[str, str]) -> CaseLine:
    """For a test whose pytest process ended: pytest-xdist says so in a report of its own."""
    text = str(report.longrepr)
    return CaseLine(
        id=report.nodeid, outcome="crash", rule="worker lost", message=_brief(text), text=cut_middle(text, TEXT),
        **_identity(said),
    )  # fmt: skip


def not_run_line(id: str, said: Mapping[str, str]) -> CaseLine:
    """For a test that was collected and never told."""
    return CaseLine(id=id, outcome="not-run", message="the run ended before it was told", **_identity(said))


def _brief(text: str) -> str:
    """On one line, shortened."""
    text = " ".join(text[: 10 * BRIEF].split())
    return text if len(text) <= BRIEF else f"{text[:BRIEF]} ..."


def _identity(said: Mapping[str, str]) -> dict[str, Any]:
    """What the kit says of a case; nothing of any other test, whatever properties it records."""
    if not {"subject", "contract", "law", "case"} <= said.keys():
        return {}
    found: dict[str, Any] = {name: said[name] for name in ("subject", "contract", "law", "case")}
    found["optimizer"] = said.get("optimizer", "")
    found["lack"] = said.get("lack", "")
    if "ledger-kind" in said:
        kind, issue = said["ledger-kind"], said.get("ledger-issue", "unreported")
        more = (said.get(f"ledger-{name}", "") for name in ("note", "file", "link", "expects"))
        found["ledger"] = LedgerPart(kind, issue, *more)
    return found


def _outcome(reports: Sequence[Any], rule: str, said: Mapping[str, str]) -> Ending:
    if _identity(said) and said.get("outcome") in _ENDINGS:
        return said["outcome"]  # type: ignore[return-value]
    failed = next((one for one in reports if one.outcome == "failed"), None)
    if failed is not None:
        return _RULES.get(rule) or ("fail" if failed.when == "call" else "error")
    if any(one.outcome == "skipped" for one in reports):
        return "known" if any(hasattr(one, "wasxfail") for one in reports) else "skipped"
    return "pass"


def _message(reports: Sequence[Any], outcome: Ending) -> str:
    for one in reports:
        if one.outcome == "failed":
            crash = getattr(one.longrepr, "reprcrash", None)
            return failure_message(str(crash.message if crash is not None else one.longrepr))
    for one in reports:
        if hasattr(one, "wasxfail"):
            return f"xpassed: {one.wasxfail}" if one.outcome == "passed" else str(one.wasxfail)
        if one.outcome == "skipped" and isinstance(one.longrepr, (tuple, list)):
            return str(one.longrepr[2]).removeprefix("Skipped: ")
    return ""


def _text(reports: Sequence[Any], outcome: Ending, noted: str) -> str:
    failed = [one.longreprtext for one in reports if one.outcome == "failed"]
    if failed or outcome in RED:
        return "\n\n".join(failed)
    # What the kit knows of is told by its message; a traceback of pytest.xfail() would say no more.
    expected = [one.longreprtext for one in reports if hasattr(one, "wasxfail") and one.longrepr]
    return "" if noted else "\n\n".join(expected)


def _rank(one: ToldRank) -> RankPart:
    return RankPart(one.rank, one.outcome, one.phase, _brief(one.text), one.where, one.seconds)


def _leaks(found: Sequence[LeakPart]) -> list[LeakPart]:
    parts = [LeakPart(one.kind, _brief(one.what), one.ranks) for one in found]
    if len(parts) > LEAKS:
        ranks = sorted({rank for one in parts[LEAKS:] for rank in one.ranks})
        parts = [*parts[:LEAKS], LeakPart("...", f"{len(parts) - LEAKS} more leaks are left out", ranks)]
    return parts


def _output(reports: Iterable[Any], told: Told) -> list[OutputPart]:
    """What was captured, each text once; what else stands in sections has a place of its own in the line."""
    found = {part: None for one in reports for part in one.sections if part[1] and part[0].startswith("Captured")}
    parts = [OutputPart(name, cut_middle(text, OUTPUT), _ranks_in(name, told.size)) for name, text in found]
    # Of many texts some are left out: never those of a rank that failed, if others have any.
    blamed = set(told.blame.ranks if told.blame is not None else ())
    bad = {rank.rank for rank in told.ranks if rank.outcome in ("failed", "lost")}

    def urgency(part: OutputPart) -> tuple[bool, bool, int]:
        others = blamed.isdisjoint(part.ranks), bad.isdisjoint(part.ranks)
        return *others, 0 if all(others) else len(part.ranks)

    parts.sort(key=urgency)
    if len(parts) > OUTPUTS:
        left = f"{len(parts) - OUTPUTS} more captured texts are left out"
        parts = [*parts[:OUTPUTS], OutputPart("...", left)]
    return parts


def _ranks_in(name: str, size: int) -> list[int]:
    """The ranks that the harness names at the end of a section's name: ``..., ranks 0-2,5``."""
    _, _, who = name.rpartition(", ")
    if who == f"all {size} ranks":
        return list(range(size))
    found = _RANKS.fullmatch(name)
    spans = [span.partition("-") for span in found[1].split(",")] if found is not None else []
    return [rank for first, _, last in spans for rank in range(int(first), int(last or first) + 1) if rank < size]


# --- what the ranks noted ----------------------------------------------------------------------------


def _noted(told: Told, name: str) -> str:
    """A text that a rank noted; of the ranks that failed first."""
    ranks = sorted(told.ranks, key=lambda one: (one.outcome != "failed", one.rank))
    return next((str(one.notes[name]) for one in ranks if one.notes.get(name)), "")


def _error(ranks: Iterable[ToldRank]) -> ErrorPart | None:
    """The largest that a rank noted."""
    found = [
        msgspec.convert({**one.notes["error"], "rank": one.rank}, ErrorPart, strict=False)
        for one in ranks
        if "error" in one.notes
    ]
    return max(found, key=lambda one: (one.relative, one.ulps, -one.rank), default=None)


def _steps(ranks: Iterable[ToldRank]) -> list[StepPart]:
    """The largest of all ranks after each step; nothing where all agree bit for bit."""
    largest: dict[int, tuple[float, float]] = {}
    for one in ranks:
        for step, (relative, ulps) in one.notes.get("steps", {}).items():
            before = largest.get(int(step), (0.0, 0.0))
            largest[int(step)] = (max(before[0], relative), max(before[1], ulps))
    if not any(relative or ulps for relative, ulps in largest.values()):
        return []
    return [StepPart(step, relative, ulps) for step, (relative, ulps) in sorted(largest.items())]


def _refused(ranks: Iterable[ToldRank]) -> dict[str, str]:
    """Return what a rank noted as refused, each part once."""
    return {name: _brief(text) for rank in ranks for name, text in rank.notes.get("refused", {}).items()}


def _deviations(ranks: Iterable[ToldRank]) -> list[DeviationPart]:
    """What the ranks deviated by: each way once, with its ranks, and the largest error of those."""
    found: dict[tuple[str, tuple[str, ...]], DeviationPart] = {}
    for one in ranks:
        if "deviation" in one.notes:
            noted = {**one.notes["deviation"], "ranks": [one.rank]}
            part = msgspec.convert({**noted, "text": _brief(noted["text"])}, DeviationPart, strict=False)
            same = found.get((part.text, tuple(part.raised)))
            if same is not None:
                off = max((off for off in (same.off, part.off) if off is not None), default=None)
                part = msgspec.structs.replace(part, ranks=[*same.ranks, one.rank], off=off)
            found[part.text, tuple(part.raised)] = part
    return list(found.values())[:DEVIATIONS]
