"""What a training over several layouts has shown, as values and as a text."""

from __future__ import annotations

from dataclasses import dataclass

from everyrank.model.counts import count
from everyrank.suites.compare.patterns.texts import ranks_text


@dataclass(frozen=True)
class Stray:
    """Something that is not what it is in one process, where it shows first."""

    layout: int
    """The number of the layout, from 1."""
    size: int
    event: str
    """"load" or "train"."""
    step: int
    """How many steps were made before."""
    kind: str
    """What the optimizer calls it; empty for a parameter, "rates" for the rates."""
    tensor: str
    words: str
    ranks: tuple[int, ...]

    def sentence(self) -> str:
        """Return it in one sentence."""
        if self.kind == "rates":
            subject = "the learning rate"
        else:
            subject = f"`{self.kind}` of `{self.tensor}`" if self.kind else f"`{self.tensor}`"
        event = "load=" if self.event == "load" else f"step {self.step}"
        position = f"after {event} in layout {self.layout}, of {count(self.size, 'rank')}"
        return f"{subject} {self.words} on {ranks_text(self.ranks)} ({position})"


@dataclass(frozen=True)
class Resharded:
    """What was compared, and what was found."""

    findings: tuple[Stray, ...]
    """All that shows at the first event at which something does, the first tensor first."""
    sizes: tuple[int, ...]
    steps: int

    @property
    def passed(self) -> bool:
        """Whether the training went on as that of one process does."""
        return not self.findings

    def text(self) -> str:
        """Return the report, its first sentence first."""
        layouts = ", ".join(map(str, self.sizes))
        if self.passed:
            return f"reshard: {count(self.steps, 'step')} on {layouts} ranks, in turn, train as one process does"
        lines = [f"reshard: {self.findings[0].sentence()}", ""]
        lines += [f"  ! {each.sentence()}" for each in self.findings[1:12]]
        more = len(self.findings) - 12
        lines += [f"  ... {more} more"] if more > 0 else []
        lines.append(f"layouts of {layouts} ranks, {count(self.steps, 'step')} in all, compared in fp64")
        return "\n".join(lines)


class Strayed(AssertionError):
    """A training that was saved and loaded does not go on as one process does."""

    __module__ = "everyrank.parity"

    def __init__(self, report: Resharded) -> None:
        super().__init__(report.text())
        self.report = report
