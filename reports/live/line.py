"""Make the line of one test from its reports and from the harness's result."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from everyrank.model.counts import count
from everyrank.model.outcome import ENDINGS, RED, Ending, PhaseEnd, ending
from everyrank.model.parity import NOTE, ParityPart
from everyrank.model.result import LeakPart, RankResult, TestResult
from everyrank.reports.live.failure_message import failure_message
from everyrank.reports.runfile.model import (
    CaseLine,
    DeviationPart,
    ErrorPart,
    LedgerPart,
    OutputPart,
    PhasePart,
    RankPart,
    StepPart,
)
from everyrank.reports.shorten import cut_middle

#: Characters that are kept of the start of a longer text, and as many of its end.
TEXT, OUTPUT, BRIEF = 8_000, 2_000, 300
#: How many captured texts, leaks and deviations are kept.
OUTPUTS, LEAKS, DEVIATIONS = 16, 50, 8

_RANKS = re.compile(r".*, ranks? ([0-9]{1,6}(?:[,-][0-9]{1,6})*)", re.DOTALL)


def line(reports: Sequence[Any], result: TestResult | None, properties: Mapping[str, str]) -> CaseLine:
    """Return the line of a test that ended. ``properties`` are those that it was collected with."""
    last = reports[-1]
    properties = {
        **properties,
        **{str(name): str(value) for report in reports for name, value in report.user_properties},
    }
    result = result or TestResult("", 0, "")
    outcome = _outcome(reports, result.rule, properties)
    worker = getattr(last, "worker_id", "")
    noted = _noted(result, "message") if outcome != "pass" else ""
    return CaseLine(
        id=last.nodeid,
        outcome=outcome,
        rule=result.rule,
        **_identity(properties),
        message=_brief(noted or _message(reports)),
        text=cut_middle(_text(reports, outcome, noted), TEXT),
        size=result.size,
        world="" if result.world is None else f"{worker}-{result.world}".lstrip("-"),
        worker=worker,
        started=min(getattr(report, "start", 0.0) for report in reports),
        seconds=max(getattr(report, "stop", 0.0) for report in reports)
        - min(getattr(report, "start", 0.0) for report in reports),
        phases=[PhasePart(report.when, report.outcome, report.duration) for report in reports],
        ranks=[_rank(rank) for rank in result.ranks],
        error=_error(result.ranks),
        steps=_steps(result.ranks),
        deviations=_deviations(result.ranks),
        parity=_parity(result.ranks),
        parity_calls=max((rank.notes.get(f"{NOTE}-calls", 0) for rank in result.ranks), default=0),
        refused=_refused(result.ranks),
        leaks=_leaks(result.leaks),
        rollcall=result.rollcall,
        blame=result.blame,
        output=_output(reports, result),
        repeat=result.repeat,
        passes_alone=result.passes_alone,
        not_kept=_brief(result.not_kept),
        remarks=result.remarks,
        mutation=result.mutation,
        sweep=result.sweep,
    )


def crash_line(report: Any, properties: Mapping[str, str]) -> CaseLine:
    """Return the line of a test whose pytest process ended, which pytest-xdist reports."""
    text = str(report.longrepr)
    return CaseLine(
        id=report.nodeid, outcome="crash", rule="worker lost", message=_brief(text), text=cut_middle(text, TEXT),
        **_identity(properties),
    )  # fmt: skip


def not_run_line(id: str, properties: Mapping[str, str]) -> CaseLine:
    """Return the line of a test that was collected and did not run."""
    return CaseLine(id=id, outcome="not-run", message="the run ended before the test did", **_identity(properties))


def _brief(text: str) -> str:
    """Return the text on one line, shortened."""
    text = " ".join(text[: 10 * BRIEF].split())
    return text if len(text) <= BRIEF else f"{text[:BRIEF]} ..."


def _identity(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the kit's properties of a case; nothing for any other test, whatever properties it records."""
    if not {"subject", "contract", "law", "case"} <= properties.keys():
        return {}
    fields: dict[str, Any] = {name: properties[name] for name in ("subject", "contract", "law", "case")}
    fields["optimizer"] = properties.get("optimizer", "")
    fields["lack"] = properties.get("lack", "")
    fields["missing"] = properties.get("missing", "").split()
    fields["stated_by"] = properties.get("stated-by", "").split()
    if "ledger-kind" in properties:
        kind, issue = properties["ledger-kind"], properties.get("ledger-issue", "unreported")
        more = (properties.get(f"ledger-{name}", "") for name in ("note", "file", "link", "expects", "shared"))
        fields["ledger"] = LedgerPart(kind, issue, *more)
    return fields


def _outcome(reports: Sequence[Any], rule: str, properties: Mapping[str, str]) -> Ending:
    if _identity(properties) and properties.get("outcome") in ENDINGS:
        return properties["outcome"]  # type: ignore[return-value]
    return ending(rule, [PhaseEnd(report.when, report.outcome, hasattr(report, "wasxfail")) for report in reports])


def _message(reports: Sequence[Any]) -> str:
    for report in reports:
        if report.outcome == "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            return failure_message(str(crash.message if crash is not None else report.longrepr))
    for report in reports:
        if hasattr(report, "wasxfail"):
            return f"xpassed: {report.wasxfail}" if report.outcome == "passed" else str(report.wasxfail)
        if report.outcome == "skipped" and isinstance(report.longrepr, (tuple, list)):
            return str(report.longrepr[2]).removeprefix("Skipped: ")
    return ""


def _text(reports: Sequence[Any], outcome: Ending, noted: str) -> str:
    failed = [report.longreprtext for report in reports if report.outcome == "failed"]
    if failed or outcome in RED:
        return "\n\n".join(failed)
    # The message describes a known deviation. A traceback of pytest.xfail() would add nothing.
    expected = [report.longreprtext for report in reports if hasattr(report, "wasxfail") and report.longrepr]
    return "" if noted else "\n\n".join(expected)


def _rank(rank: RankResult) -> RankPart:
    return RankPart(rank.rank, rank.outcome, rank.phase, _brief(rank.text), rank.where, rank.seconds)


def _leaks(leaks: Sequence[LeakPart]) -> list[LeakPart]:
    parts = [LeakPart(leak.kind, _brief(leak.what), leak.ranks) for leak in leaks]
    if len(parts) > LEAKS:
        ranks = sorted({rank for leak in parts[LEAKS:] for rank in leak.ranks})
        parts = [*parts[:LEAKS], LeakPart("...", f"{count(len(parts) - LEAKS, 'more leak')} left out", ranks)]
    return parts


def _output(reports: Iterable[Any], result: TestResult) -> list[OutputPart]:
    """Return the captured texts, each text once. Other sections have keys of their own in the line."""
    texts = {
        part: None for report in reports for part in report.sections if part[1] and part[0].startswith("Captured")
    }
    parts = [OutputPart(name, cut_middle(text, OUTPUT), _ranks_in(name, result.size)) for name, text in texts]
    # If there are too many texts, those of ranks that did not fail are left out first.
    blamed = set(result.blame.ranks if result.blame is not None else ())
    bad = {rank.rank for rank in result.ranks if rank.outcome in ("failed", "lost")}

    def urgency(part: OutputPart) -> tuple[bool, bool, int]:
        others = blamed.isdisjoint(part.ranks), bad.isdisjoint(part.ranks)
        return *others, 0 if all(others) else len(part.ranks)

    parts.sort(key=urgency)
    if len(parts) > OUTPUTS:
        note = f"{count(len(parts) - OUTPUTS, 'more captured text')} left out"
        parts = [*parts[:OUTPUTS], OutputPart("...", note)]
    return parts


def _ranks_in(name: str, size: int) -> list[int]:
    """Return the ranks that the harness names at the end of a section's name: ``..., ranks 0-2,5``."""
    _, _, last_part = name.rpartition(", ")
    if last_part == f"all {size} ranks":
        return list(range(size))
    match = _RANKS.fullmatch(name)
    spans = [span.partition("-") for span in match[1].split(",")] if match is not None else []
    return [rank for first, _, last in spans for rank in range(int(first), int(last or first) + 1) if rank < size]


# --- what the ranks noted ----------------------------------------------------------------------------


def _noted(result: TestResult, name: str) -> str:
    """Return a text that a rank noted. The notes of ranks that failed come first."""
    ranks = sorted(result.ranks, key=lambda rank: (rank.outcome != "failed", rank.rank))
    return next((str(rank.notes[name]) for rank in ranks if rank.notes.get(name)), "")


def _error(ranks: Iterable[RankResult]) -> ErrorPart | None:
    """Return the largest error that a rank noted."""
    errors = [
        msgspec.convert({**rank.notes["error"], "rank": rank.rank}, ErrorPart, strict=False)
        for rank in ranks
        if "error" in rank.notes
    ]
    return max(errors, key=lambda error: (error.relative, error.ulps, -error.rank), default=None)


def _steps(ranks: Iterable[RankResult]) -> list[StepPart]:
    """Return the largest error of all ranks after each step; nothing if all agree bit for bit."""
    largest: dict[int, tuple[float, float]] = {}
    for rank in ranks:
        for step, (relative, ulps) in rank.notes.get("steps", {}).items():
            before = largest.get(int(step), (0.0, 0.0))
            largest[int(step)] = (max(before[0], relative), max(before[1], ulps))
    if not any(relative or ulps for relative, ulps in largest.values()):
        return []
    return [StepPart(step, relative, ulps) for step, (relative, ulps) in sorted(largest.items())]


def _parity(ranks: Iterable[RankResult]) -> list[ParityPart]:
    """Return what the calls of parity have found; one rank of the test notes them."""
    noted: list[Any] = next((rank.notes[NOTE] for rank in ranks if NOTE in rank.notes), [])
    return msgspec.convert(noted, list[ParityPart], strict=False)


def _refused(ranks: Iterable[RankResult]) -> dict[str, str]:
    """Return what the ranks noted as refused, each part once; with ranks if not all of them refused it alike.

    A rank that did not use the subject noted nothing, not even that it was refused nothing.
    """
    noted = {rank.rank: rank.notes["refused"] for rank in ranks if "refused" in rank.notes}
    refused_parts = {}
    for name in dict.fromkeys(name for refused in noted.values() for name in refused):
        texts: dict[str, list[int]] = {}
        for rank, refused in noted.items():
            texts.setdefault(refused.get(name, "not refused"), []).append(rank)
        differing = [
            f"on rank{'s' if len(those) > 1 else ''} {','.join(map(str, those))}: {text}"
            for text, those in texts.items()
        ]
        refused_parts[name] = _brief(next(iter(texts)) if len(texts) == 1 else "; ".join(differing))
    return refused_parts


def _deviations(ranks: Iterable[RankResult]) -> list[DeviationPart]:
    """Return the deviations of the ranks, each once, with its ranks and their largest error."""
    parts: dict[tuple[str, tuple[str, ...]], DeviationPart] = {}
    for rank in ranks:
        if "deviation" in rank.notes:
            noted = {**rank.notes["deviation"], "ranks": [rank.rank]}
            part = msgspec.convert({**noted, "text": _brief(noted["text"])}, DeviationPart, strict=False)
            same = parts.get((part.text, tuple(part.raised)))
            if same is not None:
                off = max((off for off in (same.off, part.off) if off is not None), default=None)
                part = msgspec.structs.replace(part, ranks=[*same.ranks, rank.rank], off=off)
            parts[part.text, tuple(part.raised)] = part
    return list(parts.values())[:DEVIATIONS]
