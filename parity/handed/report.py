"""What handover has found, as values and as a text."""

from __future__ import annotations

from dataclasses import dataclass

from everyrank.model.counts import count

#: How many lines of each kind the text has.
_LINES = 12


@dataclass(frozen=True)
class Misfit:
    """One fault of a handover: the tensor and the element at which it shows first."""

    kind: str
    """One of lost, rounded, moved, built, outputs."""
    tensor: str
    """The model's tensor of what is lost, and else the other's; a module for outputs, empty if none is known."""
    index: str
    """The index of the element, as "[3, 5]"; empty if there is none."""
    words: str

    def sentence(self) -> str:
        """Return the fault in one sentence."""
        return self.words


@dataclass(frozen=True)
class Handover:
    """What was compared, and what was found."""

    findings: tuple[Misfit, ...]
    origins: tuple[str, ...]
    """Of each tensor of the other, which of the model's tensors it has, as a line."""
    elements: int
    traced: int
    """How many elements the model has, and of how many it is known where they are in the other."""
    remarks: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the other module is the model."""
        return not self.findings

    def text(self) -> str:
        """Return the report, its first sentence first."""
        first = self.findings[0].sentence() if self.findings else "the other module is the same model"
        lines = [f"handover: {first}", ""]
        lines += [f"also: {each.sentence()}" for each in self.findings[1:_LINES]]
        lines += self.remarks
        if self.findings:
            lines += [f"  {each}" for each in self.origins[:_LINES]]
            more = len(self.origins) - _LINES
            lines += [f"  ... {count(more, 'more tensor')}"] if more > 0 else []
        lines.append(f"{self.traced} of {count(self.elements, 'element')} traced into the other module")
        return "\n".join(lines)


class Unlike(AssertionError):
    """The other module is not the same model."""

    __module__ = "everyrank.parity"

    def __init__(self, report: Handover) -> None:
        super().__init__(report.text())
        self.report = report
