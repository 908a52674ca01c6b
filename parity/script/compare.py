"""Compare the runs of two sizes, moment by moment, in the order of the script's own run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import torch
from everyrank.parity.run.activations import LIMIT
from everyrank.parity.script.figures import Figures
from everyrank.parity.script.kept import Moment, Part
from everyrank.parity.script.losses import bound_of_losses, has_losses, means, parting_of_losses, with_loss
from everyrank.parity.script.parting import DOINGS, SUBJECTS, Parting
from everyrank.parity.script.runs import GRADIENTS, TIMES, Run, has_shards, nth, rounding, tensors, whole
from everyrank.parity.script.texts import text_of
from everyrank.suites.compare.patterns.fit import Fit
from everyrank.suites.compare.patterns.likeness import Held, distance
from everyrank.suites.compare.patterns.texts import ranks_text, short
from torch import Tensor

#: Of its largest value a gradient of the first step is off by less than this if it is rounding.
_CLEAR = 1e-2


class Comparison:
    """One size beside the reference."""

    def __init__(self, reference: Run, other: Run, moved: Run | None, called: str) -> None:
        self._reference, self._other, self._moved, self._called = reference, other, moved, called
        self._eps = max(reference.facts[0].eps, other.facts[0].eps)
        self.compared: Counter[str] = Counter()
        self.missing: list[str] = []
        self.figures = Figures()
        self.found: Parting | None = None
        """What parts first, once that was asked for."""

    @property
    def dtype(self) -> str:
        """The dtype of the first weight that is kept."""
        parts = (part for moment in self._reference.steps[0].moments[0] for part in moment.parts.values())
        return next((short(part.values.dtype) for part in parts), "")

    def parting(self, steps: int) -> Parting | None:
        """Return the first moment that parts within these steps."""
        for step in range(steps):
            self.found = self._of_step(step)
            if self.found is not None:
                return self.found
        return None

    @property
    def has_moved(self) -> bool:
        """Whether it is known how far rounding goes, by a moved run."""
        return self._moved is not None

    @property
    def may_be_rounding(self) -> bool:
        """Whether what parts may be rounding that grows, so far as its size shows."""
        found = self.found
        if found is None or found.kind in ("", "weight", "rate") or found.pattern:
            return False
        grows = found.step > 1 or found.kind in ("parameter", "state")
        return self.is_small or (grows and not math.isinf(self._off(found)))

    @property
    def is_small(self) -> bool:
        """Whether what parts is as little as rounding may be that a script makes larger, whatever its pattern."""
        found = self.found
        return found is not None and found.kind not in ("", "weight", "rate") and self._off(found) < _CLEAR

    def _off(self, found: Parting) -> float:
        return max(self.figures.error(found.step - 1, found.kind, name) for name in found.names)

    def look_on(self) -> None:
        """Look at the rest of the step that parts, for its figures alone."""
        if self.found is None:
            return
        step, compared, missing = self.found.step - 1, self.compared.copy(), [*self.missing]
        first, wanted = (
            [moment for moment in run.steps[step].moments[0] if moment.kind != "loss"]
            for run in (self._other, self._reference)
        )
        for index, (ours, theirs) in enumerate(zip(first, wanted, strict=False)):
            if ours.kind != theirs.kind:
                break
            self.moment(step, index, ours.kind)
        self.compared, self.missing = compared, missing

    def _of_step(self, step: int) -> Parting | None:
        truth, mine = self._reference.steps[step], self._other.steps[step]
        agreed: list[str] = []
        loss: Parting | None = None
        if has_losses(truth, mine):
            again = self._moved.steps[step] if self._moved is not None and step < len(self._moved.steps) else None
            loss = parting_of_losses(truth, mine, again, step + 1, self._called, self._eps)
            expected, bound = means(truth), bound_of_losses(truth, again, self._eps)
            off = abs(means(mine) - expected) if loss is not None else min(abs(means(mine) - expected), bound)
            self.figures.note(step, "loss", "", off, bound, abs(expected))
            self.compared["loss"] += 1
            agreed += [] if loss is not None else ["loss"]
        first = [moment for moment in mine.moments[0] if moment.kind != "loss"]
        wanted = [moment for moment in truth.moments[0] if moment.kind != "loss"]
        for index, (ours, theirs) in enumerate(zip_longest(first, wanted)):
            if ours is None or theirs is None or ours.kind != theirs.kind:
                return self._other_order(step, ours, theirs)
            found = self.moment(step, index, ours.kind)
            if found is not None:
                if loss is not None and ours.kind in (*GRADIENTS, "norm"):
                    return with_loss(loss, found, tuple(agreed))
                if ours.kind == "gradient at the clip" and _are_alike_later(self._other, step, index):
                    found = replace(found, text=f"{found.text}: ranks are made alike only after the clip")
                return replace(found, agreed=tuple(agreed))
            if ours.parts:
                agreed.append(SUBJECTS[ours.kind][1])
        return None

    def _other_order(self, step: int, ours: Moment | None, theirs: Moment | None) -> Parting:
        size = f"{self._other.size} ranks"
        doing = "nothing more" if theirs is None else f"{DOINGS[theirs.kind]} ({theirs.line})"
        first = self._other.steps[step].moments[0][-1].line
        if ours is None:
            return Parting(step + 1, "the step", f"ends on {size}, where {self._called} has {doing}", first)
        return Parting(
            step + 1,
            "the step",
            f"goes on with {DOINGS[ours.kind]} on {size}, where {self._called} has {doing}",
            ours.line,
        )

    # --- tensors ----------------------------------------------------------------------------------

    def moment(self, step: int, index: int, kind: str) -> Parting | None:
        """Return what parts in a moment."""
        truth = tensors(self._reference, step, index)
        mine = tensors(self._other, step, index)
        moved = tensors(self._moved, step, index) if self._moved else {}
        wholes = {name: whole(parts) for name, parts in truth.items()}
        largest = max(
            (float(each.abs().max()) for each in wholes.values() if each is not None and each.numel()), default=0.0
        )
        ours = nth(self._other.steps[step].moments[0], index)
        wrong: list[tuple[str, Fit]] = []
        for name, expected in wholes.items():
            if expected is None or expected.numel() == 0:
                self._miss(step, kind, name)
                continue
            parts = mine.get(name, [])
            lacking = [
                rank for rank, part in enumerate(parts) if part is None and not self._other.lacks(rank, name)
            ] or ([] if parts else [0])
            if not any(part is not None for part in parts):
                if kind in (*GRADIENTS, "state") and not has_shards(self._other):
                    wrong.append((name, Fit("", f"is missing on {ranks_text(range(self._other.size))}")))
                    self.figures.note(step, kind, name, math.inf, 0.0, 1.0)
                else:
                    self._miss(step, kind, name)
                continue
            is_whole = all(part is None or part.ids is None for part in parts)
            if kind in (*GRADIENTS, "state") and lacking and is_whole and not has_shards(self._other):
                wrong.append((name, Fit("", f"is missing on {ranks_text(lacking)}")))
                self.figures.note(step, kind, name, math.inf, 0.0, 1.0)
                continue
            held = {rank: Held(part.positions, part.values) for rank, part in enumerate(parts) if part is not None}
            if any(part is not None and part.shape != tuple(expected.shape) for part in parts):
                self._miss(step, kind, name)  # a part that somebody has cut by hand
                continue
            self.compared[kind] += 1
            again = whole(moved[name]) if name in moved else None
            allowed = _allowed(kind, expected, again, largest, parts, self._eps)
            flat = expected.reshape(-1)
            off = {rank: distance(each.values, flat[each.ids]) for rank, each in held.items()}
            bad = [rank for rank, by in off.items() if not by <= allowed]
            self.figures.note(step, kind, name, max(off.values()), allowed, float(expected.abs().max()))
            if bad:
                wrong.append(
                    (
                        name,
                        text_of(
                            self._reference,
                            self._other,
                            (step, index, kind, name),
                            expected,
                            held,
                            bad,
                            max(off.values()),
                        ),
                    )
                )
        if not wrong:
            return None
        common, _ = Counter(fit.text for _, fit in wrong).most_common(1)[0]
        alike = {name: fit for name, fit in wrong if fit.text == common}
        name = next(iter(alike))
        return Parting(
            step + 1,
            SUBJECTS[kind][0].format(name),
            common.replace("the plain model", self._called),
            ours.line if ours is not None and kind != "weight" else "",
            len(alike) - 1,
            kind=kind,
            names=tuple(alike),
            pattern=alike[name].id,
        )

    def _miss(self, step: int, kind: str, name: str) -> None:
        self.figures.miss(step, kind, name)
        text = SUBJECTS[kind][0].format(name)
        if text not in self.missing:
            self.missing.append(text)


def _are_alike_later(run: Run, step: int, index: int) -> bool:
    """Return whether all ranks have the same gradients at the optimizer, and not at the clip."""
    moments = run.steps[step].moments[0]
    kinds = [moment.kind for moment in moments if moment.kind != "loss"]
    if "gradient" not in kinds[index:]:
        return False

    def alike(number: int) -> bool:
        every = tensors(run, step, number).values()
        return all(
            part is not None and part.shape == parts[0].shape and bool((part.values == parts[0].values).all())
            for parts in every
            for part in parts
            if parts[0] is not None
        )

    return not alike(index) and alike(kinds.index("gradient", index))


def _allowed(
    kind: str, expected: Tensor, moved: Tensor | None, largest: float, parts: Sequence[Part | None], eps: float
) -> float:
    """Return how far a tensor may be off."""
    dtype = next(part.values.dtype for part in parts if part is not None)
    if not dtype.is_floating_point:
        return 0.0
    own = torch.finfo(dtype).eps
    scale = largest if kind in GRADIENTS else float(expected.abs().max())
    noise = distance(moved, expected) if moved is not None and moved.shape == expected.shape else 0.0
    if kind == "weight":
        return 0.0  # Nothing has been computed yet.
    if kind == "parameter":
        return TIMES * noise + max(min(8 * own, rounding(own)), LIMIT) * scale
    return TIMES * noise + max(rounding(own), rounding(eps)) * scale
