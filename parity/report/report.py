"""What a call of parity has found, as values and as a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from everyrank.model.counts import count
from everyrank.parity.report.maps import Layout
from everyrank.parity.report.placements import held_parameters, of_mesh
from everyrank.parity.values.dye import Holdings
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement

#: How many tensors of a kind the text names.
_NAMED = 4

_KINDS = {
    "initialization": "initialization",
    "forward": "output",
    "loss": "loss",
    "activation-gradient": "gradient of the output",
    "gradient": "gradient",
    "norm": "norm of the gradients",
    "update": "update",
}


@dataclass(frozen=True)
class Finding:
    """One fault: the first tensor at which it shows."""

    kind: str
    """One of initialization, forward, loss, activation-gradient, gradient, norm, update."""
    tensor: str
    """The name in the plain model; empty for the loss and the norm."""
    step: int
    """The step, from 1; 0 is the initialization."""
    pattern: str
    """The id of the pattern, or empty."""
    words: str
    error: float
    limit: float
    ranks: tuple[int, ...]
    dtypes: tuple[str, ...]
    """The dtypes in which it shows."""
    same: tuple[str, ...] = ()
    """Other tensors of the kind to which the same has happened; or that differ, too, if it is not known what has."""

    def sentence(self) -> str:
        """Return the finding in one sentence."""
        subject = f"{_KINDS[self.kind]} of `{self.tensor}`" if self.tensor else f"the {_KINDS[self.kind]}"
        when = "before the first step" if self.step == 0 else f"step {self.step}"
        return f"{subject} {self.words} ({when}, {' and '.join(self.dtypes)}){self._others()}"

    @property
    def is_explained(self) -> bool:
        """Whether more is known than that it differs: what has happened to it."""
        return bool(self.pattern) or not self.words.startswith("differs by ")

    def _others(self) -> str:
        others = f"{count(len(self.same), 'other')} of its kind"
        if not self.same:
            return ""
        return (
            f", as {others}" if self.is_explained else f"; {others} {'differ' if self.same[1:] else 'differs'}, too"
        )


@dataclass(frozen=True)
class Line:
    """One tensor in the order of the plain model's run."""

    kind: str
    tensor: str
    error: float
    limit: float
    state: str
    """ok, first, same (the same has happened to it), also (it deviates, too), or follows (none of these)."""


@dataclass(frozen=True)
class Report:
    """What was compared, and what was found."""

    findings: tuple[Finding, ...]
    """The faults, the first one first. The text says of each other one whether it may have the same cause."""
    lines: tuple[Line, ...]
    compared: int
    tensors: int
    not_compared: tuple[str, ...]
    dtypes: tuple[str, ...]
    ranks: int
    steps: int
    split: str
    remarks: tuple[str, ...] = ()
    cut: frozenset[str] = frozenset()
    """What a rank has not all of: "weights"; "tokens", of rows that it has."""
    holdings: tuple[Holdings, ...] = field(default=(), repr=False)
    """What each rank was seen to hold of the parameters."""
    sizes: Mapping[str, torch.Size] = field(default_factory=dict, repr=False)
    """The sizes of the plain model's parameters, by name."""

    outputs: tuple[Mapping[str, Layout], ...] = field(default=(), repr=False)
    """What each rank was seen to have of what modules return, in the first step."""
    groups: Mapping[str, list[list[int]]] = field(default_factory=dict, repr=False)
    """The groups of the ranks, by name."""

    @property
    def passed(self) -> bool:
        """Whether the parallel model trains as the plain one."""
        return not self.findings

    def placements(
        self, mesh: DeviceMesh | None = None, kind: Literal["parameters", "outputs"] = "parameters"
    ) -> dict[str, tuple[Placement | None, ...]]:
        """Return where each parameter is over each axis of a mesh, or over all ranks, as the dye has shown it.

        Or where what each module returns is, by its values. None stands for what DTensor has no word for, as parts
        that are cut in another way, and for what could not be seen.
        """
        if kind == "outputs":
            return of_mesh(self.outputs, [*dict.fromkeys(name for each in self.outputs for name in each)], mesh)
        return of_mesh(held_parameters(self.holdings, self.sizes), [*self.sizes], mesh)

    def text(self) -> str:
        """Return the report in less than 40 lines, its first sentence first."""
        lines = [f"parity: {self.findings[0].sentence()}" if self.findings else self._agrees(), ""]
        if self.findings:
            lines += [*self._table(), ""]
        lines += [f"{self._also(finding)}: {finding.sentence()}" for finding in self.findings[1:4]]
        lines += self.remarks
        if self.not_compared:
            names = ", ".join(self.not_compared[:_NAMED])
            more = f" and {len(self.not_compared) - _NAMED} more" if len(self.not_compared) > _NAMED else ""
            lines.append(f"not compared: {names}{more}")
        lines.append(
            f"{self.compared} of {self.tensors} tensors compared on {count(self.ranks, 'rank')}; split: {self.split}"
        )
        if self.findings:
            lines.append(f"to repeat: steps={max(self.findings[0].step, 1)} is enough")
        return "\n".join(lines)

    def _also(self, finding: Finding) -> str:
        """Return what another fault is to the first: who computes something else has other gradients, too."""
        first = self.findings[0]
        if first.kind == "loss" and first.step == finding.step:
            return "also, perhaps by the same cause, as another loss has other gradients"
        if first.kind == "forward" and self._goes_back_through(first.tensor, finding):
            return "also, perhaps by the same cause, as what makes another output has another backward"
        return "also, independent of it"

    def _goes_back_through(self, output: str, finding: Finding) -> bool:
        """Return whether a gradient has gone back through what makes an output: it is one of a module up to there."""
        if finding.kind not in ("activation-gradient", "gradient", "norm"):
            return False
        order = {line.tensor: number for number, line in enumerate(self.lines) if line.kind == "forward"}
        module = finding.tensor.rpartition(".")[0] if finding.kind == "gradient" else finding.tensor
        return module not in order or output not in order or order[module] <= order[output]

    def _agrees(self) -> str:
        steps = (
            f"{count(self.steps, 'step')} on {count(self.ranks, 'rank')} {'trains' if self.steps == 1 else 'train'}"
        )
        return f"parity: {steps} as one process does, in {' and '.join(self.dtypes)}"

    def _table(self) -> list[str]:
        """Return the tensors before and after the first, in the plain model's order."""
        rows = []
        first = next((number for number, line in enumerate(self.lines) if line.state == "first"), 0)
        shown = self.lines[max(first - 3, 0) : first + 12]
        for line in shown:
            mark = {"first": ">", "ok": " "}.get(line.state, "!")
            note = {
                "first": "here",
                "follows": "follows from it",
                "also": "differs",
                "same": "the same",
                "ok": "",
            }.get(line.state, line.state)
            error = f"{line.error:>8.1e} of {line.limit:<8.1e}"
            rows.append(f"  {mark} {line.kind:<20} {line.tensor[:44]:<44} {error} {note}".rstrip())
        left = len(self.lines) - first - 12
        if left > 0:
            wrong = sum(line.state not in ("ok", "not-compared") for line in self.lines[first + 12 :])
            rows.append(f"    ... {left} more, {wrong} of them {'differs' if wrong == 1 else 'differ'}")
        return rows


class Parted(AssertionError):
    """The parallel model does not train as the plain one does."""

    __module__ = "everyrank.parity"

    def __init__(self, report: Report) -> None:
        super().__init__(report.text())
        self.report = report
