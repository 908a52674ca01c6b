"""Make pytest's reports of a verdict: one set of reports for the test, whatever its ranks reported."""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback
from _pytest.skipping import evaluate_xfail_marks
from everyrank.declare.job import Job
from everyrank.errors import LeakWarning, RankLost, RankWarning, WorldTimeout
from everyrank.model.outcome import RULES, Rule
from everyrank.model.ranks import rank_seed, ranks_text
from everyrank.rank.warnings_filed import folded, is_ignored
from everyrank.rollcall import rollcall
from everyrank.verdict.fates import Fates, blamed
from everyrank.verdict.leak_lines import ALL_LEAKS, folded_leak_lines, leak_lines, lines_beside_failure
from everyrank.verdict.repeat import lasting_id, repeat_line
from everyrank.verdict.rules import Verdict
from everyrank.wire.messages import Phase, Warned

When = Literal["setup", "call", "teardown"]
_PHASES: tuple[When, ...] = ("setup", "call", "teardown")

#: Outcomes of tests that an exception stopped before they could close what they had opened.
_BAD = ("failed", "error", "xfailed")

#: The rules of worlds that did not finish.
_WITH_ROLL_CALL = (Rule.DEADLINE, Rule.DEADLOCK, Rule.INTERRUPTED, Rule.LOST, Rule.CUT)


@dataclass(frozen=True)
class ReportContext:
    """What a report needs to know besides the verdict."""

    job: Job
    served: tuple[str, ...] = ()  # the tests that a warm world ran before
    passes_alone: bool = False


def reports(verdict: Verdict, fates: Fates, context: ReportContext) -> list[pytest.TestReport]:
    """Return the reports to log for one test: setup, then call if the setup passed, then teardown."""
    verdict = _expected_loss(verdict, context.job.item)
    logged: list[pytest.TestReport] = []
    for when in _PHASES:
        report = _phase_report(when, fates, context)
        if verdict.when == when and verdict.outcome != "passed":
            _apply(report, verdict, fates, context)
        elif phase := _beside_verdict(when, verdict, fates):
            _file(report, phase, context)
        if when != "call" or (logged[0].passed and not fates.setup_only):
            logged.append(report)
    teardown = logged.pop()
    if verdict.when != "teardown":
        _add_teardown_failures(teardown, verdict, fates, context)
    _add_leaks(logged, teardown, verdict, fates, context)
    logged.append(teardown)
    if fates.waited:
        logged[-2].user_properties.append(("waited", fates.waited))
        logged[-2].sections.append(("waited", fates.waited))
    _add_output(logged, verdict, fates)
    return logged


def _phase_report(when: When, fates: Fates, context: ReportContext) -> pytest.TestReport:
    """Return a passing report of one phase: rank 0's own, with the duration of the slowest rank."""
    item = context.job.item
    filed = [
        phase
        for fate in fates.ranks
        if fate.record
        for phase in fate.record.phases
        if phase.when == when and phase.report
    ]
    if filed and filed[0].outcome == "passed" and "nodeid" in filed[0].report:
        report = _revive(item, filed[0])
        report.sections = []
        report.longrepr = None
        report.duration = max(phase.report.get("duration", 0.0) for phase in filed)
        return report
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="passed",
        longrepr=None,
        when=when,
        duration=max((phase.report.get("duration", 0.0) for phase in filed), default=0.0),
    )
    if when == "call" and not filed:
        report.duration = fates.seconds
    noted = filed[0].report.get("user_properties", []) if filed else item.user_properties
    report.user_properties = [(name, value) for name, value in noted]
    return report


def _beside_verdict(when: When, verdict: Verdict, fates: Fates) -> Phase | None:
    """Return what stands for all ranks in a phase that the verdict is not about: a skip, or an expected failure."""
    if when == "setup" and verdict.when == "call":
        return None
    lived = [fate for fate in fates.ranks if not fate.planned_end]
    for outcome in ("xfailed", "skipped", "xpassed"):
        same = [phase for fate in lived for phase in fate.phases(outcome) if phase.when == when]
        if same and (len(same) >= len(lived) or (when != "setup" and outcome != "skipped")):
            return same[0]
    return None


def _file(report: pytest.TestReport, phase: Phase, context: ReportContext) -> None:
    """Change a passing report into that of a rank which skipped the phase, or failed in it as expected."""
    filed = _revive(context.job.item, phase)
    report.outcome, report.longrepr, report.user_properties = filed.outcome, filed.longrepr, filed.user_properties
    if hasattr(filed, "wasxfail"):
        report.wasxfail = filed.wasxfail


def _revive(item: pytest.Item, phase: Phase) -> pytest.TestReport:
    report = item.config.hook.pytest_report_from_serializable(config=item.config, data=dict(phase.report))
    assert isinstance(report, pytest.TestReport)
    # Serialising turns tuples into lists, and pytest's terminal needs tuples.
    longrepr: Any = report.longrepr
    report.longrepr = tuple(longrepr) if isinstance(longrepr, list) else longrepr
    report.nodeid, report.location = item.nodeid, item.location  # theirs may hold escapes
    report.user_properties = [(name, value) for name, value in report.user_properties]
    return report


def _apply(report: pytest.TestReport, verdict: Verdict, fates: Fates, context: ReportContext) -> None:
    """Change a passing report into one of the verdict."""
    root = _revive(context.job.item, verdict.root) if verdict.root and "nodeid" in verdict.root.report else None
    if verdict.outcome == "skipped":
        first = next((fate.skipped for fate in fates.ranks if fate.skipped is not None), None)
        assert first is not None
        skip = _revive(context.job.item, first)
        report.outcome, report.longrepr = "skipped", skip.longrepr
        return
    if verdict.outcome in ("xfailed", "xpassed"):
        report.outcome = "skipped" if verdict.outcome == "xfailed" else "passed"
        report.wasxfail = getattr(root, "wasxfail", verdict.headline)
        if root is not None:
            report.longrepr = root.longrepr
            report.user_properties = root.user_properties
        return
    report.outcome = "failed"
    if root is not None:
        report.user_properties = (
            root.user_properties
        )  # the properties that the failed rank noted, not those of rank 0
    report.user_properties.append(("verdict", verdict.rule.value))
    longrepr = getattr(root, "longrepr", None)
    if verdict.rule is Rule.STRICT_XPASS:
        report.longrepr = longrepr
        return
    text = verdict.root.report.get("text") if verdict.root and root is None else None
    report.longrepr = _failure(longrepr if text is None else text, verdict, context)
    _add_sections(report.longrepr, verdict, fates, context)


def _failure(root: Any, verdict: Verdict, context: ReportContext) -> ExceptionChainRepr:
    """Return the headline and the root cause's traceback; and a remark if the test passes alone."""
    label = f"[{verdict.label}] " if verdict.label else ""
    if not context.passes_alone:
        return _longrepr(root, verdict.headline, label, context.job.item)
    return _longrepr(
        root, f"{verdict.headline}\n{_passes_alone(context)}", f"{label}(passes alone) ", context.job.item
    )


def _longrepr(root: Any, headline: str, label: str, item: pytest.Item) -> ExceptionChainRepr:
    """Return a headline and a traceback in the form that travels and that all reporters read.

    The label begins the line in pytest's summary.
    """
    head = ReprTraceback([ReprEntryNative([headline + "\n"])], None, style="native") if headline else None
    chain: list[Any]
    if isinstance(root, (ExceptionChainRepr, ReprExceptionInfo)):
        chain = list(getattr(root, "chain", [(root.reprtraceback, root.reprcrash, None)]))
        crash = chain[-1][1]
    elif root is not None:
        chain = [(ReprTraceback([ReprEntryNative([str(root) + "\n"])], None, style="native"), None, None)]
        crash = None
    else:
        chain, crash = [], None
    path, line, _ = item.location
    if crash is None:
        crash = ReprFileLocation(path, (line or 0) + 1, _reason(str(root)) if root else _first_line(headline))
    crash = ReprFileLocation(crash.path, crash.lineno, label + crash.message)
    if head is not None:
        chain.insert(0, (head, None, None))
    last, _, descr = chain[-1]
    chain[-1] = (last, crash, descr)
    longrepr = ExceptionChainRepr(chain)
    longrepr.sections = list(getattr(root, "sections", ()))
    return longrepr


def put_first(report: pytest.TestReport, headline: str, item: pytest.Item) -> None:
    """Let a failure of a test in one process begin with a headline."""
    if isinstance(report.longrepr, ExceptionChainRepr):
        report.longrepr = _longrepr(report.longrepr, headline, "", item)


def add_teardown(report: pytest.TestReport, late: pytest.TestReport, item: pytest.Item) -> None:
    """Add to the report of a teardown on ranks how the teardown of the pytest process's own fixtures ended."""
    source = "in the teardown of fixtures of tests in one process"
    if report.failed:
        report.longrepr = _longrepr(report.longrepr, "", "", item)
        report.longrepr.addsection(source, str(late.longrepr))
    elif late.failed or report.passed:
        report.outcome, report.longrepr = late.outcome, late.longrepr
        vars(report).pop("wasxfail", None)
        put_first(report, source, item)


def refusal(item: pytest.Item, text: str) -> ExceptionChainRepr:
    """Return the longrepr of a test that got no world: the reason, without a traceback, also for the summary."""
    return _longrepr(None, text, "", item)


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]


def _reason(text: str) -> str:
    """Return the line that says what failed: pytest marks it by an E, a group begins with it, or it is the last."""
    lines = text.strip().splitlines()
    marked = (found[1] for line in lines if (found := re.match(r"(?:E {2,}|  \| )(\S.*)", line)))
    return next(marked, lines[-1])


def _passes_alone(context: ReportContext) -> str:
    before = context.served[-3:]
    more = f" and {len(context.served) - len(before)} before" if len(context.served) > len(before) else ""
    return (
        "This test passes alone: run again in a fresh world, it passed.\n"
        f"In its warm world it came after {', '.join(before)}{more}, and one of them changed what this test sees.\n"
        "Find what was left behind, or mark this test @pytest.mark.world(fresh=True)."
    )


def _add_sections(longrepr: ExceptionChainRepr, verdict: Verdict, fates: Fates, context: ReportContext) -> None:
    if verdict.others:
        lead = fates.ranks[verdict.lead]
        lists_all = verdict.rule in (Rule.SOME_SKIPPED, Rule.CUT) or (lead.record is None and lead.early)
        longrepr.addsection("the ranks" if lists_all else "the other ranks", "\n".join(verdict.others))
    stances = [fate.stance for fate in fates.ranks if fate.stance is not None]
    if stances and verdict.rule in _WITH_ROLL_CALL:
        longrepr.addsection("roll call", rollcall.render(stances, blamed(fates), cause_is_known=bool(fates.deadlock)))
    for fate in fates.ranks:
        if fate.lost and fate.last_words:
            longrepr.addsection(f"last words of rank {fate.rank}", fate.last_words)
    seed = rank_seed(lasting_id(context.job.item), context.job.seed, verdict.lead)
    line = repeat_line(context.job.item)
    longrepr.addsection("to repeat", f"{line}  # rank {verdict.lead} had the seed {seed}")


def _add_teardown_failures(report: pytest.TestReport, verdict: Verdict, fates: Fates, context: ReportContext) -> None:
    """Report a failure in teardown in addition to one in the call, as pytest does."""
    failed = [
        (phase.ended_at, fate.rank, phase)
        for fate in fates.ranks
        for phase in fate.phases("failed")
        if phase.when == "teardown"
    ]
    if failed and verdict.outcome != "error":
        _, rank, phase = min(failed, key=lambda failure: failure[:2])
        alike = [other_rank for _, other_rank, other in failed if other.signature == phase.signature]
        headline = f"in teardown, on {ranks_text(alike)}"
        late = replace(
            verdict, rule=Rule.FAILED, outcome="failed", headline=headline, root=phase, lead=rank, others=(), label=""
        )
        _apply(report, late, fates, context)
    elif fates.late:
        rank, text = min(fates.late.items())
        headline = f"in the teardown of wider fixtures, on {ranks_text(list(fates.late))}"
        late = Verdict(rule=Rule.FAILED, when="teardown", headline=headline, lead=rank)
        report.outcome = "failed"
        vars(report).pop("wasxfail", None)
        report.longrepr = _failure(text, late, context)
        _add_sections(report.longrepr, late, fates, context)


def _add_leaks(
    logged: list[pytest.TestReport],
    teardown: pytest.TestReport,
    verdict: Verdict,
    fates: Fates,
    context: ReportContext,
) -> None:
    lines = leak_lines(fates)
    if not lines:
        return
    logged[-1].user_properties.append(("leaks", "; ".join(lines)))
    if _leaks_fail(verdict, context.job) and teardown.outcome == "passed":
        headline = "\n".join(["the test left something behind", *lines])
        late = Verdict(rule=Rule.LEAKS, when="teardown", headline=headline)
        teardown.outcome = "failed"
        teardown.longrepr = _failure(None, late, context)
        _add_sections(teardown.longrepr, late, fates, context)
        return
    if verdict.outcome in _BAD and context.job.item.config.get_verbosity() < ALL_LEAKS:
        lines = lines_beside_failure(fates)
    logged[-1].sections.append(("left behind", "\n".join(lines)))


def _leaks_fail(verdict: Verdict, job: Job) -> bool:
    return job.leaks == "fail" and verdict.outcome == "passed"


def _add_output(logged: list[pytest.TestReport], verdict: Verdict, fates: Fates) -> None:
    """Add what the ranks printed and logged: each text once, with the ranks that it came from."""
    for report in logged:
        filed = [
            (name, content, fate.rank)
            for fate in fates.ranks
            for phase in (fate.record.phases if fate.record else ())
            for name, content in phase.report.get("sections", ())
            if phase.when == report.when and content
        ]
        texts: dict[tuple[str, str], list[int]] = {}
        for name, content, rank in sorted(filed, key=lambda text: _part_of(text[0])):
            if rank not in (ranks := texts.setdefault((name, content), [])):
                ranks.append(rank)
        every = len(fates.ranks)
        for (name, content), ranks in texts.items():
            source = f"all {every} ranks" if len(ranks) == every > 1 else ranks_text(ranks)
            report.sections.append((f"{name}, {source}", content))


def _part_of(section: str) -> int:
    """Return the position of the phase that a section is about: a report repeats those of the phases before it."""
    return next((index for index, when in enumerate(_PHASES) if section.endswith(f" {when}")), len(_PHASES))


def _expected_loss(verdict: Verdict, item: pytest.Item) -> Verdict:
    """Return the verdict as xfailed if it is a crash or a timeout that the test's mark ``xfail`` names."""
    kind = {"crash": RankLost, "timeout": WorldTimeout}.get(RULES.get(verdict.rule, ""))
    if kind is None:
        return verdict
    expected = None if item.config.getoption("runxfail", False) else evaluate_xfail_marks(item)
    if expected is None:
        return verdict
    named = expected.raises if isinstance(expected.raises, tuple) else (expected.raises,)
    if kind not in named:
        return verdict
    reason = f"{expected.reason}: " if expected.reason else ""
    return replace(verdict, outcome="xfailed", headline=f"{reason}{_first_line(verdict.headline)}")


def pass_on_warnings(config: pytest.Config, verdict: Verdict, fates: Fates, job: Job) -> None:
    """Pass the ranks' warnings to pytest as if they had been raised in this process, where one test ran once.

    The rank that raised one most often decides how often. Leaks become warnings too, unless the test failed or
    xfailed, for them or anyhow: then its report has them.
    """
    item = job.item
    seen: Counter[Warned] = Counter()
    for fate in fates.ranks:
        filed = fate.record.warnings if fate.record else ()
        seen |= Counter(msgspec.structs.replace(warned, text=folded(warned.text)) for warned in filed)
    path, line = str(item.reportinfo()[0]), (item.location[1] or 0) + 1
    messages = [_message(warned) for warned in seen.elements()]
    if verdict.outcome not in _BAD and not _leaks_fail(verdict, job):
        leaks = [LeakWarning(leak) for leak in folded_leak_lines(fates)]
        leaking = [warnings.WarningMessage(leak, LeakWarning, path, line) for leak in leaks]
        messages += [message for message in leaking if not is_ignored(item, message)]
    for message in messages:
        config.hook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, "nodeid": item.nodeid, "when": "runtest", "location": None}
        )


def _message(warned: Warned) -> warnings.WarningMessage:
    category = getattr(sys.modules.get(warned.module), warned.category, None)
    text = warned.text
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category, text = RankWarning, f"{warned.category}: {text}"
    try:
        message = category(text)
    except Exception:  # a category whose constructor wants more than a text
        category = RankWarning
        message = RankWarning(f"{warned.category}: {text}")
    return warnings.WarningMessage(message, category, warned.filename, warned.lineno)
