"""Make the page's data: columns with one entry for each case, each text once, and the details in deflated chunks.

A page of 20,000 cases must open in a moment. So lists, the matrix and filters read plain columns. The other data of a
case (failure texts, ranks, stacks, output) is inflated when a person opens it.
"""

from __future__ import annotations

import base64
import itertools
import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import msgspec
from everyrank.model.parity import ParityPart, most_urgent
from everyrank.reports.cause import causes
from everyrank.reports.history.history import History
from everyrank.reports.history.index import case_key
from everyrank.reports.page.against import Against
from everyrank.reports.page.columns import column_data, milliseconds, one_line
from everyrank.reports.page.nights import NIGHTS
from everyrank.reports.page.outcomes import SHOWN, SHOWN_RED
from everyrank.reports.runfile.conclusion import conclude_together
from everyrank.reports.runfile.model import CaseLine, OutputPart, RankPart
from everyrank.reports.runfile.read import Run
from everyrank.reports.runfile.source import of_header
from everyrank.reports.shorten import WITHIN, cut_middle

#: Cases whose details are inflated together: few enough to be quick, many enough to be small.
CHUNK = 128
#: The limit of a page's deflated details, in bytes of base64. If they are larger, texts are shortened further.
BUDGET = 6_500_000


@dataclass(frozen=True)
class Bounds:
    """How much of one case the page has."""

    text: int  # the longest failure text
    output: int  # the longest captured output
    rows: int  # of a pass of parity


#: From generous to harsh.
BOUNDS = (Bounds(16_000, 8_000, 1_000), Bounds(4_000, 1_500, 200), Bounds(1_200, 300, 60), Bounds(300, 0, 20))


def page_data(runs: Sequence[Run], against: Against | None = None) -> dict[str, Any]:
    """Return the columns, and the facts of the runs."""
    listed = [_as_listed(run) for run in runs]
    cases = [case for of_run in listed for case in of_run]
    first = min((case.started for case in cases if case.started), default=0.0)
    data = column_data(cases, [against.column()] if against else ())
    data["values"]["run"] = [number for number, of_run in enumerate(listed) for _ in of_run]
    data["values"]["cause"] = causes(cases)
    data["values"]["started"] = [milliseconds(case.started - first) if case.started else -1 for case in cases]
    return {
        "outcomes": SHOWN,
        "red": sorted(SHOWN_RED),
        "chunk": CHUNK,
        "count": len(cases),
        "conclusion": _conclusion(runs),
        "runs": [_run_facts(run) for run in runs],
        "against": against.facts() if against else None,
        **data,
    }


def _conclusion(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the state of all runs of the page together, with sentences whose start is bold."""
    counts = sum((Counter(run.counts) for run in runs), Counter())
    noun = "case" if any(case.subject for run in runs for case in run.cases) else "test"
    state, sentences = conclude_together([(PurePath(run.path).name, run.conclusion) for run in runs], counts, noun)
    return {"state": state, "sentences": [(lead, one_line(rest)) for lead, rest in sentences]}


def details(
    runs: Sequence[Run], budget: int = BUDGET, history: History | None = None, against: Against | None = None
) -> tuple[list[str], bool]:
    """Return the details of all cases in chunks, and whether texts were shortened to fit."""
    cases = [case for run in runs for case in _as_listed(run)]
    for bounds in BOUNDS:
        parts = [
            _detail(case, bounds) | _nights(case, history) | (against.detail(case) if against else {})
            for case in cases
        ]
        chunks = [_chunk(parts[start : start + CHUNK]) for start in range(0, len(parts), CHUNK)]
        if sum(map(len, chunks)) <= budget:
            break
    return chunks, bounds != BOUNDS[0]


def _as_listed(run: Run) -> list[CaseLine]:
    """Return the cases in the order in which they were collected, which is that of the laws.

    The cases of a run in random order are sorted by name, so that the pages of all nights have the same rows.
    """
    order = {case: index for index, case in enumerate(run.header.cases)}
    listed = sorted(run.cases, key=lambda case: order[case.id])
    blocks = [law for law, _ in itertools.groupby(_law(case) for case in listed if case.law)]
    if len(set(blocks)) == len(blocks):
        return listed
    return sorted(listed, key=lambda case: (not case.law, *_law(case), case.id if case.law else ""))


def _law(case: CaseLine) -> tuple[str, str, str]:
    return case.contract, case.subject, case.law


def _run_facts(run: Run) -> dict[str, Any]:
    facts = msgspec.structs.asdict(run.header)  # with default values, which a line leaves out
    facts["cases"] = len(run.header.cases)
    return {
        **facts,
        "file": PurePath(run.path).name,
        "seconds": run.footer.seconds if run.footer else None,
        "exit": run.footer.exit if run.footer else None,
        "crossings": run.footer.crossings if run.footer else [],
        "came": run.came,
        "source": str(of_header(run.header)),
        "complete": run.complete,
    }


def _nights(case: CaseLine, history: History | None) -> dict[str, str]:
    """Return the outcomes of the case in the nights that are drawn, a letter for each night."""
    letters = history.cases.get(case_key(case), "") if history is not None else ""
    return {"nights": letters[-NIGHTS:]} if letters else {}


def _chunk(cases: Sequence[dict[str, Any]]) -> str:
    packed = zlib.compress(msgspec.json.encode(cases), 6)
    return base64.b64encode(packed).decode()


#: Keys that are left out of the details: the columns have them.
_IN_COLUMNS = ("line", "id", "outcome", "subject", "contract", "law", "case", "optimizer", "size", "world", "worker")


def _detail(case: CaseLine, bounds: Bounds) -> dict[str, Any]:
    kept = msgspec.structs.replace(
        case,
        text=cut_middle(case.text, bounds.text // 2, WITHIN),
        output=[
            OutputPart(part.name, cut_middle(part.text, bounds.output // 2, WITHIN), part.ranks)
            for part in case.output
            if bounds.output
        ],
        parity=[_within(call, bounds.rows) for call in case.parity],
        ranks=_without_the_message(case),
    )
    detail: dict[str, Any] = msgspec.to_builtins(kept)
    for name in (*_IN_COLUMNS, "started", "seconds"):
        detail.pop(name, None)
    return _finite(detail)  # type: ignore[no-any-return]


def _within(call: ParityPart, rows: int) -> ParityPart:
    """Return a call of parity with as many rows in each pass, the most urgent."""
    passes = [
        msgspec.structs.replace(
            each, rows=most_urgent(each.rows, rows), left_out=each.left_out + max(len(each.rows) - rows, 0)
        )
        for each in call.passes
    ]
    return msgspec.structs.replace(call, passes=passes)


def _without_the_message(case: CaseLine) -> list[RankPart]:
    """Return the ranks of a case. On each rank of a known deviation, pytest has said again what the ledger says."""
    if case.outcome != "known":
        return case.ranks
    return [
        msgspec.structs.replace(part, text="") if part.text.startswith("XFailed: known: ") else part
        for part in case.ranks
    ]


def _finite(value: Any) -> Any:
    """Return the value with inf and nan as text: JSON has neither, and an error may be one of them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
