"""What came of the ledgers, in words; for a dry run, as a unified diff."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from everyrank.reports.accept import Edit, Left
from everyrank.reports.words import count, plain

#: Cases of one reason that are named.
_MOST = 10


def told(edits: Sequence[Edit], left: Sequence[Left], dry_run: bool) -> str:
    """What was written (or would be), and what is left."""
    lines: list[str] = []
    for edit in edits:
        lines += _dry(edit) if dry_run else _written(edit)
    lines += _left(left)
    lines.append(_sum(edits, left, dry_run))
    return "\n".join(lines) + "\n"


def _written(edit: Edit) -> Iterator[str]:
    yield str(edit.ledger.path)
    yield from (f"  - {plain(entry.case)}" for entry in edit.removed)
    yield from (f"  + {plain(entry.case)}" for entry in edit.added)


def _dry(edit: Edit) -> Iterator[str]:
    path = str(edit.ledger.path)
    before = edit.ledger.text.splitlines() if edit.ledger.path.exists() else []
    yield from difflib.unified_diff(before, edit.text.splitlines(), path, path, lineterm="")


def _left(left: Sequence[Left]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for one in left:
        reasons.setdefault(one.why, []).append(f"{one.case.subject} {one.case.case or one.case.id}")
    for why, names in reasons.items():
        yield f"not accepted: {plain(why)}"
        yield from (f"  {plain(name)}" for name in names[:_MOST])
        if len(names) > _MOST:
            yield f"  ... and {len(names) - _MOST:,} more"


def _sum(edits: Sequence[Edit], left: Sequence[Left], dry_run: bool) -> str:
    added, removed = (sum(len(getattr(edit, name)) for edit in edits) for name in ("added", "removed"))
    parts = []
    if added:
        parts.append(f"{count(added, 'deviation')} added as unreported")
    if removed:
        parts.append(f"{'1 stale entry' if removed == 1 else f'{removed:,} stale entries'} removed")
    if left:
        parts.append(f"{count(len(left), 'case')} not accepted")
    return ("dry run, nothing was written: " if dry_run else "") + (", ".join(parts) or "nothing to accept")
