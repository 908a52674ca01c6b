"""Print the changes of the ledgers; for a dry run, as a unified diff."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Sequence

from everyrank.model.counts import count
from everyrank.reports.ledger.accept import Edit, NotAccepted, Siblings
from everyrank.reports.runfile.conclusion import Reason
from everyrank.reports.text import plain, some

#: How many cases are named for one reason.
_MOST = 10
#: The module of the test that `everyrank run` runs.
_BY_NAME = "named_subject"
#: The limit of a reason beside the cases, in characters.
_REASON = 400


def render_edits(
    edits: Sequence[Edit],
    refused: Sequence[NotAccepted],
    dry_run: bool,
    beside: Sequence[Reason] = (),
    siblings: Siblings | None = None,
) -> str:
    """Return what was written (or would be), what was not accepted, and what went wrong beside the cases."""
    lines: list[str] = []
    for edit in edits:
        lines += _dry(edit) if dry_run else _written(edit)
    lines += _not_accepted(refused)
    lines += [f"not accepted: {plain(reason.text, _REASON)}" for reason in beside]
    lines.append(_sum(edits, refused, dry_run))
    lines += _others(siblings) if siblings is not None else ()
    return "\n".join(lines) + "\n"


def _written(edit: Edit) -> Iterator[str]:
    yield str(edit.ledger.path)
    yield from (f"  - {plain(entry.case)}" for entry in edit.removed)
    yield from (f"  + {plain(entry.case)}" for entry in edit.added)
    yield from (f"  ~ {plain(entry.case)}" for entry in edit.restated)
    yield from (f"  lacks {plain(name)}" for name in edit.lacks)


def _dry(edit: Edit) -> Iterator[str]:
    path = str(edit.ledger.path)
    before = edit.ledger.text.splitlines() if edit.ledger.path.exists() else []
    yield from difflib.unified_diff(before, edit.text.splitlines(), path, path, lineterm="")


def _not_accepted(refused: Sequence[NotAccepted]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for item in refused:
        name = f"{item.case.subject} {item.case.case}" if item.case.subject else item.case.id
        reasons.setdefault(item.reason, []).append(name)
    for reason, names in reasons.items():
        yield f"not accepted: {plain(reason)}"
        yield from (f"  {line}" for line in some([plain(name) for name in names], _MOST))


def _others(siblings: Siblings) -> Iterator[str]:
    """Yield how to accept the cases of these laws that the run's profile left out."""
    yield (
        f"{siblings.filter} had a part of the cases of {', '.join(map(plain, siblings.laws))}, and takes others next "
        "time: those that deviate alike will be red. All of them:"
    )
    words = ["-k", " or ".join(f"{law}[" for law in siblings.laws), "--profile=full", "--run-file=full.jsonl"]
    by_name = any(_BY_NAME in test for test in siblings.tests)  # `everyrank run` names no test of the user's
    start = "everyrank run MODULE:SUBJECT" if by_name else f"pytest {shlex.join(siblings.tests)}"
    yield f"    {plain(start)} {plain(shlex.join(words))}"
    yield "    everyrank accept full.jsonl"


def _sum(edits: Sequence[Edit], refused: Sequence[NotAccepted], dry_run: bool) -> str:
    names = ("added", "removed", "restated")
    added, removed, restated = (sum(len(getattr(edit, name)) for edit in edits) for name in names)
    parts = []
    if added:
        parts.append(f"{count(added, 'deviation')} added as unreported")
    if removed:
        parts.append(f"{'1 stale entry' if removed == 1 else f'{removed:,} stale entries'} removed")
    if restated:
        parts.append(f"{'1 entry' if restated == 1 else f'{restated:,} entries'} restated")
    if lacks := sum(len(edit.lacks) for edit in edits):
        parts.append("1 lack declared" if lacks == 1 else f"{lacks:,} lacks declared")
    if refused:
        parts.append(f"{count(len(refused), 'case')} not accepted")
    return ("dry run, nothing was written: " if dry_run else "") + (", ".join(parts) or "nothing to accept")
