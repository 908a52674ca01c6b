"""One call of parity: the passes in their order, and what follows from them."""

from __future__ import annotations

from dataclasses import replace

import torch
from everyrank.parity import passes, record
from everyrank.parity.errors import Unusable
from everyrank.parity.judging.fault import Fault
from everyrank.parity.judging.pattern import Pattern
from everyrank.parity.maps import Held
from everyrank.parity.passes import Pass
from everyrank.parity.ranks import Ranks
from everyrank.parity.report import Finding, Report, short
from everyrank.parity.reporting import finding, written
from everyrank.parity.runs.plain import BACKWARD, FORWARD, START
from everyrank.parity.search import Search
from everyrank.parity.setup import Setup
from everyrank.parity.split import cuts_tokens, lacks_weights
from everyrank.parity.training import Training


def report(setup: Setup, ranks: Ranks) -> Report:
    """Run all passes and say what they have found; every rank calls it at the same time."""
    remarks: list[str] = []
    training = _begun(setup, ranks, remarks)
    _check_names(training)
    wide = training.wide()
    clip = _found_clip(training, wide)
    if clip is not None:
        # The plain model clips as the ranks do.
        setup = replace(setup, clip=clip)
        truth = passes.truth(setup, ranks, training.known.dtype, training.cut, [])
        training = replace(training, setup=setup, truth=truth, parts={}, _limits={})
        wide = training.wide()
    search = Search(training)
    faults = list(search.faults(wide))
    own = [(dtype, training.own(dtype, wide)) for dtype in training.dtypes()]
    findings = _findings(training, search, faults, own)
    shown = wide.judged[-1]
    if findings and not faults:
        # The user's dtype alone deviates: its pass is shown.
        shown = next(each for _, each in own if each.deviates).judged[-1]
    made = written(
        setup,
        training.truth.store.notes,
        [judged.compared for judged in wide.judged],
        shown,
        findings,
        dtypes=tuple(map(short, (training.truth.dtype, *training.dtypes()))),
        ranks=ranks.size,
        split=training.cut.words,
        remarks=(*remarks, *(passes.unequal_parts(setup, training.truth, training.cut) if findings else ())),
        cut=_cut(training),
    )
    runs = [(training.truth.dtype, wide.judged), *((dtype, each.judged) for dtype, each in own)]
    record.note(ranks, made, runs, Held(training.holdings, training.parts, training.truth.store))
    return made


def _cut(training: Training) -> frozenset[str]:
    """Return what a rank has not all of."""
    parts = [part for (_, kind, _), part in training.parts.items() if kind == FORWARD]
    mine = {
        "weights": lacks_weights(training.holdings, training.known.sizes),
        "tokens": cuts_tokens(parts),
    }
    return frozenset(name for each in training.ranks.gather(mine) for name, cut in each.items() if cut)


def _begun(setup: Setup, ranks: Ranks, remarks: list[str]) -> Training:
    """Find out what each rank holds, and run the plain model."""
    known = passes.same_model(setup, ranks)
    found = passes.dyed(setup, ranks, known)
    truth = passes.truth(setup, ranks, known.dtype, found.cut, remarks)
    return Training(setup, ranks, known, truth, found.holdings, found.cut, found.mixed, found.groups)


def _check_names(training: Training) -> None:
    """Raise Unusable if too few parameters of the plain model are on any rank."""
    held = {name for each in training.ranks.gather(training.holdings.names()) for name in each}
    trained = [name for name in training.truth.store.notes[BACKWARD] if not training.setup.skips(name)]
    lost = [name for name in trained if name not in held]
    if len(lost) > (1 - training.setup.compared) * len(trained):
        raise Unusable(
            f"only {len(trained) - len(lost)} of {len(trained)} parameters can be compared, as no rank holds "
            f"values of {', '.join(sorted(lost)[:4])}: pass load= or rename=, or lower "
            f"compared={training.setup.compared:g}."
        )


def _found_clip(training: Training, wide: Pass) -> float | None:
    """Return to which norm the user's step clips, if nobody has said it."""
    if training.setup.clip is not None:
        return None
    clips = {each for each in training.ranks.gather(wide.trace.clipped) if each is not None}
    if len(clips) > 1:
        norms = " and ".join(f"{clip:g}" for clip in sorted(clips))
        raise Unusable(f"the ranks clip to different norms, {norms}: clip to the same on all of them.")
    return clips.pop() if clips else None


def _findings(
    training: Training, search: Search, faults: list[Fault], own: list[tuple[torch.dtype, Pass]]
) -> list[Finding]:
    """Return the faults, each with the dtypes in which it shows."""
    findings, truth = [], training.truth
    for fault in faults:
        deviation, pattern = fault.deviation, fault.pattern
        seen = [short(truth.dtype)]
        absent: list[str] = []
        for dtype, each in own:
            shows = each.shows(deviation) or deviation.step == START
            (seen if shows else absent).append(short(dtype))
        if absent and not any(each.deviates or training.hides(dtype, deviation) for dtype, each in own):
            # That it is there in one dtype alone says more than what it is: a test in the other sees nothing.
            words = pattern.words if pattern is not None else "differs"
            words = f"in {' and '.join(seen)}, and not in {' and '.join(absent)}, {words}"
            pattern = Pattern("other-dtype-only", words)
        findings.append(finding(deviation, pattern, tuple(seen), fault.same))
    if findings:
        return findings
    for dtype, each in own:
        if each.deviates:
            first = each.judged[-1].deviations[0]
            pattern = search.pattern(each, first)
            if pattern is None or not pattern.id:
                words = f"differs in {short(dtype)}, and not in {short(truth.dtype)}"
                pattern = Pattern("other-dtype-only", words)
            findings.append(finding(first, pattern, (short(dtype),), ()))
    return findings
