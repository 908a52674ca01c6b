"""The rows of the table: each honest subject at each size, and each rogue; and what parity must say of a row."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from everyrank.parity import Finding, Parted, Report, parity
from everyrank.suites.kill.sample import Sample

from tests.parity.parallel.rogue import Rogue
from tests.parity.parallel.rogues import ROGUES
from tests.parity.parallel.subject import Parallel
from tests.parity.parallel.subjects import SUBJECTS

#: The text of a report has fewer lines than this.
_LINES = 40


@dataclass(frozen=True)
class Row:
    """A subject at a world size, which is honest or a rogue."""

    name: str
    size: int
    rogue: Rogue | None = None

    @property
    def id(self) -> str:
        return f"{'honest' if self.rogue is None else 'rogue'}-{self.name}-ws{self.size}"

    def run(self) -> Report:
        """Compare the subject with the plain model, on every rank: an honest one in each dtype that it takes."""
        kind: type[Parallel] = SUBJECTS[self.name] if self.rogue is None else self.rogue.subject
        wanted = kind.dtypes if self.rogue is None else (self.rogue.dtype,)
        narrow = tuple(getattr(torch, dtype) for dtype in wanted if dtype != "float64")
        subject = kind()
        try:
            return parity(**subject.arguments(), dtypes=narrow or None)
        except Parted as parted:
            return parted.report
        finally:
            subject.close()

    def fault(self, report: Report) -> str:
        """Return in which way the report is not what it must be, or nothing."""
        if self.rogue is None:
            return "" if report.passed else f"is honest, but {report.findings[0].sentence()}"
        if report.passed:
            return f"survives: it must be found as {named(self.rogue)}"
        first = report.findings[0]
        if not is_named(self.rogue, first):
            return f"is found as {shown(first)}, and must be as {named(self.rogue)}"
        lines = len(report.text().splitlines())
        return "" if lines < _LINES else f"has a report of {lines} lines"


def rows() -> list[Row]:
    """Return all rows."""
    honest = [Row(name, size) for name, subject in SUBJECTS.items() for size in subject.sizes]
    return honest + [Row(name, rogue.size, rogue) for name, rogue in ROGUES.items()]


def sampled(sample: Sample) -> list[Row]:
    """Return the rows of a sample."""
    return [row for row in rows() if sample.has(row.name, str(row.size), ())]


def is_named(rogue: Rogue, first: Finding) -> bool:
    """Return whether a finding has the kind, the tensor and the pattern that a rogue names."""
    right_tensor = not first.tensor or any(fnmatchcase(first.tensor, pattern) for pattern in rogue.tensors or ("*",))
    return first.kind in rogue.kinds and right_tensor and (not any(rogue.patterns) or first.pattern in rogue.patterns)


def shown(found: Finding) -> str:
    """Return where a finding is, in a line."""
    return " ".join(word for word in (found.kind, found.tensor, found.pattern) if word)


def named(rogue: Rogue) -> str:
    """Return what a rogue names, in a line."""
    words = (rogue.kinds, rogue.tensors, rogue.patterns)
    return " ".join(" or ".join(each) for each in words if any(each))
