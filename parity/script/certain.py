"""Faults that show though ranks part by design: neither batch norm nor dropout lets replicas train apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from everyrank.parity.script.compare import Comparison
from everyrank.parity.script.kept import Part
from everyrank.parity.script.parting import SUBJECTS, Parting
from everyrank.parity.script.runs import Run, has_shards, tensors
from everyrank.suites.compare.patterns.texts import ranks_text


def fault(truth: Run, run: Run, moved: Run | None, called: str, steps: int) -> Parting | None:
    """Return the first fault that no random number and no norm of a rank's own rows explains.

    ``steps`` is how many steps have the rows of the reference.
    """
    found = [*_without_gradient(truth, run, steps), *_rates(truth, run, moved, called, steps), *_apart(truth, run)]
    return min(found, key=lambda each: each.step, default=None)


def _moments(run: Run, step: int, kind: str) -> Iterator[tuple[int, str]]:
    """Yield the index and the line of each moment of a kind; none if ranks have other moments."""
    first, *others = ([each for each in moments if each.kind != "loss"] for moments in run.steps[step].moments)
    if all([each.kind for each in first] == [each.kind for each in other] for other in others):
        yield from ((index, moment.line) for index, moment in enumerate(first) if moment.kind == kind)


def _rates(truth: Run, run: Run, moved: Run | None, called: str, steps: int) -> Iterator[Parting]:
    """Yield learning rates that differ, but those that may go by a loss or by gradients."""
    comparison = Comparison(truth, run, moved, called)
    listens = any(each.listens for each in (*truth.facts, *run.facts))
    for step in range(min(steps, 1) if listens else steps):
        indices, others = ([index for index, _ in _moments(each, step, "rate")] for each in (truth, run))
        if indices != others:
            return
        for index in indices:
            mine, again = (tensors(each, step, index).get("", []) for each in (truth, moved))
            if again and _alike([*mine, *again]):
                found = comparison.moment(step, index, "rate")
                yield from [] if found is None else [found]


def _without_gradient(truth: Run, run: Run, steps: int) -> Iterator[Parting]:
    """Yield parameters that have a gradient in each step of the reference, and on no rank in any."""
    if steps < 2 or any(each.draws for each in (*truth.facts, *run.facts)) or has_shards(run):
        return
    lost = None
    for step in range(steps):
        kept = {name for index, _ in _moments(truth, step, "gradient") for name in tensors(truth, step, index)}
        for moments in run.steps[step].moments:
            kept &= {name for moment in moments if moment.kind == "gradient" for name in moment.absent}
        lost = kept if lost is None else lost & kept
    if lost:
        line = next((line for _, line in _moments(run, 0, "gradient")), "")
        text = f"is missing on {ranks_text(range(run.size))}, in all steps"
        yield Parting(1, SUBJECTS["gradient"][0].format(min(lost)), text, line, len(lost) - 1)


def _apart(truth: Run, run: Run) -> Iterator[Parting]:
    """Yield where weights that are alike on all ranks at first part, and are so when the next step begins."""
    if has_shards(run) or any(each.moves for each in run.facts):
        return
    began = _weights(run)
    wanted = {name: _shapes(parts) for name, parts in _weights(truth).items()}
    for step in range(len(run.steps) - 1):
        gradients = {
            name: (parts, line)
            for index, line in _moments(run, step, "gradient")
            for name, parts in tensors(run, step, index).items()
        }
        for index, line in _moments(run, step, "parameter"):
            apart = [
                name
                for name, parts in tensors(run, step, index).items()
                if not _alike(parts)
                and name in began
                and _alike(began[name])
                and _shapes(parts) <= wanted.get(name, set())
            ]
            own = [name for name in apart if name in gradients and not _alike(gradients[name][0])]
            if not apart:
                continue
            kind, text, names = "parameter", f"is not the same on {ranks_text(range(run.size))}", apart
            if own:
                kind, text, names = "gradient", "is each rank's own when the optimizer steps", own
                line = gradients[own[0]][1]
            besides = f"all ranks began with the same weights, and begin step {step + 2} with others"
            yield Parting(step + 1, SUBJECTS[kind][0].format(names[0]), text, line, len(names) - 1, besides=besides)
            return


def _weights(run: Run) -> dict[str, list[Part | None]]:
    """Return the weights with which modules begin."""
    moments = ((step, index) for step in range(len(run.steps)) for index, _ in _moments(run, step, "weight"))
    return {name: parts for moment in moments for name, parts in tensors(run, *moment).items()}


def _shapes(parts: Sequence[Part | None]) -> set[tuple[int, ...]]:
    return {part.shape for part in parts if part is not None}


def _alike(parts: Sequence[Part | None]) -> bool:
    """Return whether all ranks have the same of a tensor; true where they have other elements of it."""
    found = [(part.values.nan_to_num(), part.positions) for part in parts if part is not None]
    return all(
        torch.equal(mine, other) or not torch.equal(own, others)
        for (mine, own), (other, others) in itertools.combinations(found, 2)
    )
