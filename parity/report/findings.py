"""Make the report of what the passes have found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from everyrank.parity.judge.claims import unseen_claims
from everyrank.parity.judge.patterns import Patterns
from everyrank.parity.judge.steps import Deviation, Fault, Judged, in_order
from everyrank.parity.judge.training import Pass, Training
from everyrank.parity.report.report import Finding, Line, Report
from everyrank.parity.run.activations import LIMIT
from everyrank.parity.run.plain import START, STATE
from everyrank.parity.run.truth import unequal_parts
from everyrank.suites.compare.patterns.fit import Fit
from everyrank.suites.compare.patterns.texts import short

#: How many names a remark has.
_NAMED = 4


def findings(
    training: Training, patterns: Patterns, faults: list[Fault], own: list[tuple[torch.dtype, Pass]]
) -> list[Finding]:
    """Return the faults, each with the dtypes in which it shows."""
    found, truth = [], training.truth
    for fault in faults:
        deviation, pattern = fault.deviation, fault.pattern
        seen = [short(truth.dtype)]
        absent: list[str] = []
        for dtype, each in own:
            # A claim is one in each dtype.
            is_claim = pattern is not None and pattern.id == "wrong-annotation"
            shows = each.shows(deviation) or deviation.step == START or is_claim
            (seen if shows else absent).append(short(dtype))
        if absent and not any(each.deviates or training.hides(dtype, deviation) for dtype, each in own):
            # That it is there in one dtype alone says more than what it is: a test in the other sees nothing.
            words = pattern.text if pattern is not None else "differs"
            words = f"in {' and '.join(seen)}, and not in {' and '.join(absent)}, {words}"
            pattern = Fit("other-dtype-only", words)
        found.append(_finding(deviation, pattern, tuple(seen), fault.same))
    if found:
        return found
    for dtype, each in own:
        if each.deviates:
            first = each.judged[-1].deviations[0]
            pattern = patterns.explain(each, first)
            if pattern is None or not pattern.id:
                kept = pattern.text if pattern is not None and first.key[0] == STATE else "differs"
                words = f"{kept} in {short(dtype)}, and not in {short(truth.dtype)}"
                pattern = Fit("other-dtype-only", words)
            found.append(_finding(first, pattern, (short(dtype),), ()))
    return found


def _finding(deviation: Deviation, pattern: Fit | None, dtypes: tuple[str, ...], same: tuple[str, ...]) -> Finding:
    """Return a fault as the report has it."""
    words = pattern.text if pattern is not None else deviation.words
    if not words:
        words = deviation.differs
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


def written(
    training: Training,
    judged: Iterable[Judged],
    shown: Judged,
    found: list[Finding],
    remarks: Iterable[str],
) -> Report:
    """Return the report, with the tensors of the step that is shown; of those judged are the tensors compared."""
    setup, truth, cut = training.setup, training.truth, training.found.cut
    norms = training.known.batch_norms
    # Where the loss is right, the mean of the parts' is the whole's.
    is_wrong = any(each.kind == "loss" for each in shown.deviations)
    unequal = unequal_parts(setup, truth, cut, norms, found[0].tensor) if found and is_wrong else ()
    reached = {each for step in judged for each in step.compared} | {(each.kind, each.tensor) for each in found}
    everything = [
        each
        for each in in_order(truth.store.notes)
        if each[0] in ("forward", "gradient", "update") and not setup.skips(each[1])
    ]
    if shown.step == START or shown.deviations:
        reached |= {each for each in everything if each[0] == "update"}  # Not reached: no reason for doubt.
    missing = [each for each in everything if each not in reached]
    return Report(
        tuple(found),
        tuple(_lines(shown, found, truth.store.notes)),
        len(everything) - len(missing),
        len(everything),
        tuple(f"{kind} {name}" for kind, name in missing),
        tuple(map(short, (truth.dtype, *training.dtypes()))),
        training.ranks.size,
        setup.steps,
        cut.words,
        (*remarks, *unequal, *_other_rates(shown, found), *_put_together(training, found), *_undecided(training)),
        training.lacking(),
        training.found.everywhere,
        training.known.sizes,
    )


def _put_together(training: Training, found: list[Finding]) -> tuple[str, ...]:
    """Return how the plain loop takes it that ranks put gradients together, if it may be the other way."""
    setup, cut = training.setup, training.found.cut
    is_settled = setup.step is not None or setup.gradients is not None or cut.averages or cut.ranks == 1
    if is_settled or not found or (found[0].kind, found[0].pattern) != ("gradient", "sum-for-mean"):
        return ()
    taken, other, word = (
        ("add gradients up", "average them", "mean") if setup.numbers else ("average gradients", "add them up", "sum")
    )
    return (f'the plain loop takes it that ranks {taken}: if they {other}, pass gradients="{word}"',)


def _undecided(training: Training) -> tuple[str, ...]:
    """Return which parameters claim to be cut while the dye does not show how."""
    names = unseen_claims(training.found.everywhere, training.known.sizes)
    if not names:
        return ()
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (f"whether they are cut as their placements claim could not be seen: {', '.join(names[:_NAMED])}{more}",)


def _other_rates(shown: Judged, found: list[Finding]) -> tuple[str, ...]:
    is_scheduled = shown.step > 0 or shown.is_scheduled
    if shown.rates is None or not is_scheduled or all(each.kind != "update" for each in found):
        return ()
    return (
        "the plain optimizer has the learning rate that optimizer= gives it: a scheduler that step= steps is its "
        "scheduler, too, only if optimizer= returns both, as [optimizer, scheduler]",
    )


def _lines(shown: Judged, findings: list[Finding], notes: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the tensors of the step that deviates, in the order of the plain model's run."""
    wrong = {(each.kind, each.name): each for each in shown.deviations}
    named = [(each.kind, name) for each in findings for name in (each.tensor, *each.same)]
    initial = bool(findings) and findings[0].kind == "initialization"
    for each in in_order(notes):
        if (each[0] == "initialization") != initial or (shown.step == START and not initial):
            continue
        deviation = wrong.get(each)
        if initial:
            bad = each in named or deviation is not None
            yield Line(*each, math.inf if bad else 0.0, LIMIT, "first" if bad else "ok")
        elif deviation is None and named[:1] == [each] and findings[0].step == shown.step + 1:
            yield Line(*each, findings[0].error, findings[0].limit, "first")
        elif deviation is None:
            if each in shown.errors:
                yield Line(*each, shown.errors[each], shown.limits.get(each, LIMIT), "ok")
        else:
            state = "first" if named[:1] == [each] else "also" if each in named else "follows"
            if findings and each[0] == findings[0].kind and each[1] in findings[0].same:
                state = "same" if findings[0].is_explained else "also"
            yield Line(*each, deviation.error, deviation.limit, state)
