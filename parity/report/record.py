"""Note for reports what a call has compared and found: bounded, as plain data, if somebody reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from everyrank.model.notes import notes
from everyrank.model.parity import (
    NAMES,
    NOTE,
    ROWS,
    STEPS,
    ParityFaultPart,
    ParityPart,
    ParityPassPart,
    ParityRowPart,
    most_urgent,
    two_figures,
)
from everyrank.parity.judge.steps import KINDS, Judged, in_order
from everyrank.parity.report.maps import Held, maps_of
from everyrank.parity.report.placements import held_parameters, tabled
from everyrank.parity.report.report import Finding, Report
from everyrank.parity.run.plain import FORWARD, START
from everyrank.parity.setup.ranks import Ranks
from everyrank.suites.compare.patterns.fit import PATTERNS
from everyrank.suites.compare.patterns.texts import short

#: How many calls of a test are kept.
CALLS = 8
#: The characters that are kept of a text.
_TEXT = 400


def note(ranks: Ranks, report: Report, passes: Iterable[tuple[torch.dtype, Sequence[Judged]]], held: Held) -> None:
    """Note what a call has found; every rank calls it, and the first one's notes have it."""
    noted = notes()
    if noted is None:
        return
    made = record(report, passes, held.store.notes)
    names = dict.fromkeys(each.tensor for each in report.findings)
    names |= dict.fromkeys(row.tensor for each in made.passes for row in each.rows)
    mapped = ranks.decide(
        held.layouts({*names}), lambda gathered: maps_of(gathered, [*names], _states_of_outputs(made))
    )
    if ranks.rank:
        return
    calls = noted.setdefault(NOTE, [])
    noted[f"{NOTE}-calls"] = noted.get(f"{NOTE}-calls", 0) + 1
    # The last call of a test is the one that it ends with.
    calls[CALLS - 1 :] = []
    outputs = [*dict.fromkeys(name for each in report.outputs for name in each)]
    tensors = {
        "parameter": (held_parameters(report.holdings, report.sizes), [*report.sizes]),
        "output": (report.outputs, outputs),
    }
    axes, rows = tabled(tensors, report.groups, report.ranks)
    made = msgspec.structs.replace(made, maps=mapped[0], mapped=mapped[1], axes=axes, placements=rows)
    calls.append(msgspec.to_builtins(made))


def record(
    report: Report, passes: Iterable[tuple[torch.dtype, Sequence[Judged]]], order: Mapping[str, Any]
) -> ParityPart:
    """Return all of a record but the maps; ``order`` has the outputs and the gradients as the plain model's run."""
    return ParityPart(
        compared=report.compared,
        tensors=report.tensors,
        dtypes=list(report.dtypes),
        ranks=report.ranks,
        steps=report.steps,
        split=report.split[:_TEXT],
        faults=[_fault(each) for each in report.findings],
        passes=[_pass(dtype, judged, report, order) for dtype, judged in passes],
        not_compared=list(report.not_compared[:NAMES]),
        not_compared_left_out=max(len(report.not_compared) - NAMES, 0),
        remarks=[each[:_TEXT] for each in report.remarks[:NAMES]],
    )


def _fault(found: Finding) -> ParityFaultPart:
    return ParityFaultPart(
        found.kind,
        found.tensor,
        found.step,
        found.sentence()[:_TEXT],
        two_figures(found.error),
        two_figures(found.limit),
        found.pattern,
        PATTERNS[found.pattern].sentence if found.pattern else "",
        list(found.ranks),
        list(found.dtypes),
        list(found.same[:NAMES]),
        max(len(found.same) - NAMES, 0),
    )


# -- rows ------------------------------------------------------------------------------------------------------------


def _pass(dtype: torch.dtype, judged: Sequence[Judged], report: Report, order: Mapping[str, Any]) -> ParityPassPart:
    mine = [each for each in report.findings if short(dtype) in each.dtypes]
    states = _States(mine, report.not_compared, judged)
    steps = [each for each in judged if each.step != START]
    shown = steps[-STEPS:]
    rows = []
    for kind, name in _order(order, judged, mine):
        of_kind = [each for each in judged if each.step == START] if kind == "initialization" else shown
        row = _row(kind, name, of_kind, states)
        if row is not None:
            rows.append(row)
    kept = most_urgent(rows, ROWS)
    first = shown[0].step + 1 if shown else 1
    return ParityPassPart(short(dtype), kept, first, first - 1 + len(shown), len(rows) - len(kept))


def _order(order: Mapping[str, Any], judged: Sequence[Judged], findings: Iterable[Finding]) -> list[tuple[str, str]]:
    """Return all kinds and names in the order of the plain model's run; what it has not comes last."""
    found = [*in_order(order), *((each.kind, each.tensor) for each in findings)]
    found += [name for each in judged for name in sorted(each.errors)]  # buffers
    return sorted(dict.fromkeys(found), key=lambda each: KINDS.index(each[0]))


class _States:
    """What is said of a tensor at a step beside its error."""

    def __init__(self, findings: Sequence[Finding], not_compared: Iterable[str], judged: Iterable[Judged]) -> None:
        self.findings = findings
        self._not_compared = set(not_compared)
        self._deviating = {(each.step, found.kind, found.name) for each in judged for found in each.deviations}
        self._sums = {(each.step, kind, output[0]) for each in judged for kind, output in each.partial}

    def state(self, kind: str, name: str, judged: Judged) -> str:
        """Return ok, first, same, also, follows, sum or not-compared; empty if it is nothing to compare."""
        deviates = (judged.step, kind, name) in self._deviating
        for number, found in enumerate(self.findings):
            # A pass may deviate in another step than the first pass did.
            if found.kind != kind or not (deviates or found.step == judged.step + 1):
                continue
            if found.tensor == name:
                return "also" if number else "first"
            if name in found.same:
                return "same" if found.is_explained else "also"
        if deviates:
            return "follows"
        if (kind, name) in judged.compared:
            return self._within(kind, name, judged)
        if kind == "forward" and (judged.step, FORWARD, name) in self._sums:
            return "sum"
        listed = "gradient" if kind == "initialization" else kind
        missing = f"{listed} {name}" in self._not_compared or (kind, name) in judged.not_compared
        return "not-compared" if missing else ""

    def _within(self, kind: str, name: str, judged: Judged) -> str:
        error, limit = judged.errors[kind, name], judged.limits.get((kind, name))
        if limit is None:
            return "not-compared"
        if error <= limit:
            return "ok"
        # A wrong gradient made the update; a factor on gradients of outputs alone is a convention.
        return "follows" if kind == "update" else "not-compared"


def _row(kind: str, name: str, steps: Sequence[Judged], states: _States) -> ParityRowPart | None:
    found = [states.state(kind, name, each) for each in steps]
    fault = next((each for each in states.findings if (each.kind, each.tensor) == (kind, name)), None)
    if not any(found):
        # Its ranks hold nothing that could be compared.
        return (
            ParityRowPart(kind, name[:_TEXT], [two_figures(fault.error)], [], ["first"])
            if fault is not None
            else None
        )
    errors = [_error(kind, name, *each, fault) for each in zip(steps, found, strict=True)]
    unknown = fault.limit if fault is not None else 0.0
    limits = [two_figures(each.limits.get((kind, name), unknown)) for each in steps]
    if len({limit for limit, error in zip(limits, errors, strict=True) if error is not None}) < 2:
        limits = limits[:1]
    return ParityRowPart(kind, name[:_TEXT], errors, limits, found if {*found} != {"ok"} else [])


def _error(kind: str, name: str, judged: Judged, state: str, fault: Finding | None) -> float | None:
    if state == "not-compared":
        return None
    known = judged.errors.get((kind, name), fault.error if fault is not None and state == "first" else None)
    return None if known is None else two_figures(known)


def _states_of_outputs(made: ParityPart) -> dict[str, set[str]]:
    """Return what is said of each output in the first pass."""
    rows = [row for each in made.passes[:1] for row in each.rows if row.kind == "forward"]
    return {row.tensor: set(row.states) or {"ok"} for row in rows}
