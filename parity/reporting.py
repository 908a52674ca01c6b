"""Make the report of what the passes have found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from everyrank.parity.judging.pattern import Pattern, ranks_text
from everyrank.parity.judging.steps import KINDS, Deviation, Judged
from everyrank.parity.report import Finding, Line, Report
from everyrank.parity.runs.activations import LIMIT
from everyrank.parity.runs.plain import BACKWARD, FORWARD, START
from everyrank.parity.setup import Setup


def written(
    setup: Setup,
    notes: Mapping[str, Any],
    steps: list[frozenset[tuple[str, str]]],
    shown: Judged,
    findings: list[Finding],
    *,
    dtypes: tuple[str, ...],
    ranks: int,
    split: str,
    remarks: tuple[str, ...],
    cut: frozenset[str],
) -> Report:
    """Return the report, with the tensors of the step that is shown; ``steps`` are the tensors compared in each."""
    names = [*dict.fromkeys(output[0] for output in notes[FORWARD])]
    trained = [(kind, name) for kind in ("gradient", "update") for name in notes[BACKWARD]]
    everything = [("forward", name) for name in names] + trained
    everything = [each for each in everything if not setup.skips(each[1])]
    compared = {each for step in steps for each in step}
    if shown.step == START or shown.deviations:
        compared |= {each for each in trained if each[0] == "update"}  # Not reached: no reason for doubt.
    missing = [each for each in everything if each not in compared]
    return Report(
        tuple(findings),
        tuple(_lines(shown, findings, names, notes[BACKWARD])),
        len(everything) - len(missing),
        len(everything),
        tuple(f"{kind} {name}" for kind, name in missing),
        dtypes,
        ranks,
        setup.steps,
        split,
        remarks,
        cut,
    )


def finding(deviation: Deviation, pattern: Pattern | None, dtypes: tuple[str, ...], same: tuple[str, ...]) -> Finding:
    """Return a fault as the report has it."""
    words = pattern.words if pattern is not None else deviation.words
    if not words:
        words = f"differs by {deviation.error:.2g} of its largest value on {ranks_text(deviation.ranks)}"
    elif pattern is None:
        words = f"is wrong: {words}"
    return Finding(
        deviation.kind,
        deviation.name,
        deviation.step + 1,
        pattern.id if pattern is not None else "",
        words,
        deviation.error,
        deviation.limit,
        deviation.ranks,
        dtypes,
        same,
    )


def _lines(shown: Judged, findings: list[Finding], forward: list[str], backward: list[str]) -> Iterator[Line]:
    """Yield the tensors of the step that deviates, in the order of the plain model's run."""
    wrong = {(each.kind, each.name): each for each in shown.deviations}
    named = [(each.kind, name) for each in findings for name in (each.tensor, *each.same)]
    if findings and findings[0].kind == "initialization":
        for name in reversed(backward):
            bad = ("initialization", name) in named or ("initialization", name) in wrong
            yield Line("initialization", name, math.inf if bad else 0.0, LIMIT, "first" if bad else "ok")
        return
    order: list[tuple[str, str]] = []
    if shown.step != START:
        order = [("forward", name) for name in forward] + [("loss", "")]
        order += [("activation-gradient", name) for name in reversed(forward)]
        order += [("gradient", name) for name in backward] + [("norm", "")] + [("update", name) for name in backward]
    for each in sorted(order, key=lambda item: KINDS.index(item[0])):
        deviation = wrong.get(each)
        if deviation is None:
            if each in shown.errors:
                yield Line(*each, shown.errors[each], shown.limits.get(each, LIMIT), "ok")
            continue
        state = "first" if named[:1] == [each] else "also" if each in named else "follows"
        if findings and each[0] == findings[0].kind and each[1] in findings[0].same:
            state = "same"
        yield Line(*each, deviation.error, deviation.limit, state)
