"""An earlier run beside the page's own: how each case ended then, and what the change means."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from everyrank.model.outcome import RED
from everyrank.reports.diff import diff, render
from everyrank.reports.diff.pairing import Aliases, pair
from everyrank.reports.page.columns import Column, figure, one_line
from everyrank.reports.page.outcomes import shown
from everyrank.reports.runfile.model import CaseLine
from everyrank.reports.runfile.read import Run

_ARROW = "\N{RIGHTWARDS ARROW}"


class Against:
    """The cases of an earlier run, by the ids that they have in the later run."""

    def __init__(self, old: Run, new: Run) -> None:
        self.old = old
        self.verdict = render.verdict(diff.diff(old, new))
        self._before = {case.id: before for before, case in pair(old, new, Aliases()).both}

    def column(self) -> Column:
        """Return the column that names each case's step from the earlier run, by which a person filters and sorts."""
        return Column(
            name="step", value=self._step, heading="since then", filter="all changes", fact="{}",
            wide="minmax(90px, 0.8fr)",
        )  # fmt: skip

    def _step(self, case: CaseLine) -> str:
        before = self._before.get(case.id)
        if before is None:
            return f"{'regression: new' if case.outcome in RED else 'new'} {_ARROW} {shown(case)}"
        kind = diff.judged(before.outcome, case.outcome)
        return f"{kind}: {shown(before)} {_ARROW} {shown(case)}" if kind else "as before"

    def facts(self) -> dict[str, str]:
        """Return what the page says of the earlier run as a whole."""
        return {"file": PurePath(self.old.path).name, "verdict": self.verdict}

    def detail(self, case: CaseLine) -> dict[str, Any]:
        """Return how a case ended then."""
        before = self._before.get(case.id)
        if before is None:
            return {}
        ended = {
            "outcome": shown(before),
            "seconds": before.seconds,
            "ulps": figure(before.error.ulps if before.error else None),
            "message": one_line(before.message),
        }
        return {"before": ended}
