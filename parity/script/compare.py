"""Compare the runs of two sizes, moment by moment, in the order of the script's own run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from everyrank.parity.judge.numbers import of_numbers
from everyrank.parity.script.kept import Facts, Moment, Part
from everyrank.suites.compare.patterns.evidence import AllRanks
from everyrank.suites.compare.patterns.fit import of_all_ranks
from everyrank.suites.compare.patterns.likeness import Held, distance
from everyrank.suites.compare.patterns.texts import ranks_text
from torch import Tensor

#: How many times more than one rank's own noise ranks may be off, and so many roundings besides.
_TIMES, _ROUNDINGS = 16.0, 64.0
#: Gradients are compared with the largest of all: one that is rounding alone has no value of its own.
_GRADIENTS = ("gradient at the clip", "gradient")


@dataclass(frozen=True)
class Step:
    """A step as all ranks of a size have kept it."""

    rows: list[list[list[str]]]
    moments: list[list[Moment]]


@dataclass(frozen=True)
class Run:
    """What all ranks of a size have kept."""

    facts: list[Facts]
    steps: list[Step]

    @property
    def size(self) -> int:
        return len(self.facts)


@dataclass(frozen=True)
class Parting:
    """The first moment at which two sizes part."""

    step: int
    subject: str
    text: str
    line: str
    same: int = 0
    """To how many others of the kind the same has happened."""
    agreed: tuple[str, ...] = ()
    """What agrees before it, in this step."""
    besides: str = ""
    """What a further line says."""


Key = tuple[int, int, str]
"""A step, the index of a moment in it, and a name."""


def whole(parts: Sequence[Part | None]) -> Tensor | None:
    """Return a tensor of which each rank has a part; None if some elements are nowhere."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    if found[0].ids is None:
        return found[0].values.double().reshape(found[0].shape)
    size = int(torch.Size(found[0].shape).numel())
    values = torch.full((size,), float("nan"), dtype=torch.float64)
    for part in found:
        values[part.positions] = part.values.double()
    if values.isnan().any() and sum(int(part.positions.numel()) for part in found) < size:
        return None
    return values.reshape(found[0].shape)


class Comparison:
    """One size beside the reference."""

    def __init__(self, reference: Run, other: Run, moved: Run | None, called: str) -> None:
        self._reference, self._other, self._moved, self._called = reference, other, moved, called
        self.compared = 0
        self.missing: list[str] = []

    def parting(self, steps: int) -> Parting | None:
        """Return the first moment that parts within these steps."""
        for step in range(steps):
            if (found := self._of_step(step)) is not None:
                return found
        return None

    def _of_step(self, step: int) -> Parting | None:
        truth, mine = self._reference.steps[step], self._other.steps[step]
        agreed: list[str] = []
        loss: Parting | None = None
        if self._losses_are_whole(truth, mine):
            loss = self._loss(step, truth, mine)
            agreed += [] if loss is not None else ["loss"]
        first = [moment for moment in mine.moments[0] if moment.kind != "loss"]
        wanted = [moment for moment in truth.moments[0] if moment.kind != "loss"]
        for index, (ours, theirs) in enumerate(zip_longest(first, wanted)):
            if ours is None or theirs is None or ours.kind != theirs.kind:
                return self._other_order(step, ours, theirs)
            found = self._moment(step, index, ours.kind)
            if found is not None:
                if loss is not None and ours.kind in (*_GRADIENTS, "norm"):
                    return _with_loss(loss, found, tuple(agreed))
                if ours.kind == "gradient at the clip" and self._are_alike_later(step, index):
                    found = replace(found, text=f"{found.text}: ranks are made alike only after the clip")
                return replace(found, agreed=tuple(agreed))
            if ours.parts:
                agreed.append(_SUBJECTS[ours.kind][1])
        return None

    def _other_order(self, step: int, ours: Moment | None, theirs: Moment | None) -> Parting:
        size = f"{self._other.size} ranks"
        doing = "nothing more" if theirs is None else f"{_DOINGS[theirs.kind]} ({theirs.line})"
        first = self._other.steps[step].moments[0][-1].line
        if ours is None:
            return Parting(step + 1, "the step", f"ends on {size}, where {self._called} has {doing}", first)
        return Parting(
            step + 1,
            "the step",
            f"goes on with {_DOINGS[ours.kind]} on {size}, where {self._called} has {doing}",
            ours.line,
        )

    # --- losses -----------------------------------------------------------------------------------

    @staticmethod
    def _losses_are_whole(*steps: Step) -> bool:
        losses = [moment for step in steps for each in step.moments for moment in each if moment.kind == "loss"]
        return bool(losses) and all(moment.parts for moment in losses)

    def _loss(self, step: int, truth: Step, mine: Step) -> Parting | None:
        numbers, wanted, moved = _losses(mine), _losses(truth), None
        if self._moved is not None and step < len(self._moved.steps):
            moved = _losses(self._moved.steps[step])
        expected = sum(wanted) / len(wanted)
        allowed = _ROUNDINGS * 1.2e-7 * max(abs(expected), 1e-3)
        if moved:
            allowed += _TIMES * abs(sum(moved) / len(moved) - expected)
        mean, total = sum(numbers) / len(numbers), sum(numbers)
        self.compared += 1
        if abs(mean - expected) <= allowed or all(abs(number - expected) <= allowed for number in numbers):
            return None
        line = next(moment.line for moment in mine.moments[0] if moment.kind == "loss")
        if abs(total - expected) <= allowed * len(numbers):
            text = f"is 1/{len(numbers)} of {self._called}'s, if the mean of the ranks' is taken: they add up to it"
            return Parting(step + 1, "loss", text, line, besides="DDP and FSDP average gradients, and add none up")
        text = of_numbers([mean], expected, self._other.size, []).text
        return Parting(step + 1, "loss", f"{text} (the mean over ranks, and {self._called}'s)", line)

    def _are_alike_later(self, step: int, index: int) -> bool:
        """Return whether all ranks have the same gradients at the optimizer, and not at the clip."""
        moments = self._other.steps[step].moments[0]
        kinds = [moment.kind for moment in moments if moment.kind != "loss"]
        if "gradient" not in kinds[index:]:
            return False

        def alike(number: int) -> bool:
            every = self._tensors(self._other, step, number).values()
            return all(
                part is not None and part.shape == parts[0].shape and bool((part.values == parts[0].values).all())
                for parts in every
                for part in parts
                if parts[0] is not None
            )

        return not alike(index) and alike(kinds.index("gradient", index))

    # --- tensors ----------------------------------------------------------------------------------

    def _moment(self, step: int, index: int, kind: str) -> Parting | None:
        """Return what parts in a moment."""
        truth = self._tensors(self._reference, step, index)
        mine = self._tensors(self._other, step, index)
        moved = self._tensors(self._moved, step, index) if self._moved else {}
        wholes = {name: whole(parts) for name, parts in truth.items()}
        largest = max(
            (float(each.abs().max()) for each in wholes.values() if each is not None and each.numel()), default=0.0
        )
        ours = _nth(self._other.steps[step].moments[0], index)
        wrong: list[tuple[str, str]] = []
        for name, expected in wholes.items():
            if expected is None or expected.numel() == 0:
                self._miss(kind, name)
                continue
            parts = mine.get(name, [])
            lacking = [rank for rank, part in enumerate(parts) if part is None] or ([] if parts else [0])
            if not any(part is not None for part in parts):
                if kind in (*_GRADIENTS, "state") and not _shards(self._other):
                    wrong.append((name, f"is missing on {ranks_text(range(self._other.size))}"))
                else:
                    self._miss(kind, name)
                continue
            is_whole = all(part is None or part.ids is None for part in parts)
            if kind in (*_GRADIENTS, "state") and lacking and is_whole and not _shards(self._other):
                wrong.append((name, f"is missing on {ranks_text(lacking)}"))
                continue
            held = {rank: Held(part.positions, part.values) for rank, part in enumerate(parts) if part is not None}
            if any(part is not None and part.shape != tuple(expected.shape) for part in parts):
                shapes = " and ".join(sorted({str([*part.shape]) for part in parts if part is not None}))
                wrong.append((name, f"has the shape {shapes} instead of {[*expected.shape]}"))
                continue
            self.compared += 1
            allowed = self._allowed(kind, expected, whole(moved[name]) if name in moved else None, largest, parts)
            flat = expected.reshape(-1)
            off = {rank: distance(each.values, flat[each.ids]) for rank, each in held.items()}
            bad = [rank for rank, by in off.items() if not by <= allowed]
            if bad:
                wrong.append((name, self._text(step, index, kind, name, expected, held, bad, max(off.values()))))
        if not wrong:
            return None
        common, _ = Counter(text for _, text in wrong).most_common(1)[0]
        name = next(name for name, text in wrong if text == common)
        return Parting(
            step + 1,
            _SUBJECTS[kind][0].format(name),
            common.replace("the plain model", self._called),
            ours.line if ours is not None and kind != "weight" else "",
            sum(text == common for _, text in wrong) - 1,
        )

    def _miss(self, kind: str, name: str) -> None:
        text = _SUBJECTS[kind][0].format(name)
        if text not in self.missing:
            self.missing.append(text)

    @staticmethod
    def _tensors(run: Run | None, step: int, index: int) -> dict[str, list[Part | None]]:
        """Return what each rank has of the tensors of a moment."""
        if run is None or step >= len(run.steps):
            return {}
        moments = [_nth(each, index) for each in run.steps[step].moments]
        names = dict.fromkeys(name for moment in moments if moment is not None for name in moment.parts)
        return {
            name: [moment.parts.get(name) if moment is not None else None for moment in moments] for name in names
        }

    @staticmethod
    def _allowed(
        kind: str, expected: Tensor, moved: Tensor | None, largest: float, parts: Sequence[Part | None]
    ) -> float:
        dtype = next(part.values.dtype for part in parts if part is not None)
        if not dtype.is_floating_point:
            return 0.0
        eps = torch.finfo(dtype).eps
        scale = largest if kind in _GRADIENTS else float(expected.abs().max())
        noise = distance(moved, expected) if moved is not None and moved.shape == expected.shape else 0.0
        if kind == "weight":
            return 0.0  # Nothing has been computed yet.
        return _TIMES * noise + (_ROUNDINGS if kind != "parameter" else 8) * eps * scale

    def _text(
        self,
        step: int,
        index: int,
        kind: str,
        name: str,
        expected: Tensor,
        held: Mapping[int, Held],
        bad: list[int],
        off: float,
    ) -> str:
        """Return what happened to a tensor."""
        if kind == "rate":
            return self._rates(expected, held, bad)
        if kind == "norm":
            numbers = [float(held[rank].values.reshape(-1)[0]) for rank in held]
            return of_numbers(numbers, float(expected.reshape(-1)[0]), self._other.size, []).text
        others, before = {}, None
        if kind in _GRADIENTS or kind == "weight":
            tensors = self._tensors(self._reference, step, index)
            others = {
                other: value
                for other, parts in tensors.items()
                if other != name and (value := whole(parts)) is not None and value.shape == expected.shape
            }
        if kind in _GRADIENTS and step:
            parts = self._tensors(self._reference, step - 1, index - self._shift(step)).get(name, [])
            before = whole(parts)
        if expected.numel() < 1 << 20:
            seen = AllRanks(
                expected, held, bad, self._other.size, self._microbatches(), before=before, others=others, times=20.0
            )
            if (fit := of_all_ranks(seen)) is not None:
                return fit.text
        scale = float(expected.abs().max())
        by = f"{off / scale:.2g} of its largest value" if scale else f"{off:.2g}, and is 0 in {self._called}"
        return f"differs by {by} on {ranks_text(bad)}"

    def _shift(self, step: int) -> int:
        """Return by how many moments a step is longer than the one before: the first has the weights besides."""
        lengths = [
            len([m for m in self._reference.steps[number].moments[0] if m.kind != "loss"])
            for number in (step, step - 1)
        ]
        return lengths[0] - lengths[1]

    def _microbatches(self) -> int:
        """Return how many backwards a step has."""
        facts = self._other.facts[0]
        return max(1, facts.backwards // max(1, facts.rounds))

    @staticmethod
    def _rates(expected: Tensor, held: Mapping[int, Held], bad: list[int]) -> str:
        mine = " and ".join(f"{value:g}" for value in held[bad[0]].values.tolist())
        return (
            f"is {mine} instead of {' and '.join(f'{value:g}' for value in expected.tolist())} on {ranks_text(bad)}"
        )


#: How a tensor of a moment is called, and all of its tensors together.
_SUBJECTS = {
    "weight": ("weight `{}`", "weights"),
    "buffer": ("buffer `{}`", "buffers"),
    "gradient at the clip": ("gradient of `{}`, as the clip gets it,", "gradients"),
    "norm": ("norm of the gradients", "norm"),
    "gradient": ("gradient of `{}`", "gradients"),
    "rate": ("learning rate", "learning rates"),
    "state": ("the optimizer's `{}`", "the optimizer's state"),
    "parameter": ("`{}` after the optimizer's step", "parameters"),
}
_DOINGS = {
    "weight": "a module that is called for the first time",
    "buffer": "buffers",
    "gradient at the clip": "a clip of the gradients",
    "norm": "a clip of the gradients",
    "gradient": "an optimizer's step",
    "rate": "an optimizer's step",
    "state": "an optimizer's step",
    "parameter": "an optimizer's step",
}


def _nth(moments: Sequence[Moment], index: int) -> Moment | None:
    found = [moment for moment in moments if moment.kind != "loss"]
    return found[index] if 0 <= index < len(found) else None


def _losses(step: Step) -> list[float]:
    """Return the loss of each rank: the sum of those with which its backwards began."""
    return [
        sum(float(moment.parts[""].values.reshape(-1)[0]) for moment in moments if moment.kind == "loss")
        for moments in step.moments
    ]


def _with_loss(loss: Parting, found: Parting, agreed: tuple[str, ...]) -> Parting:
    """Return that the loss parts; or the gradients, if ranks have shares of the loss: right if these are added up."""
    if loss.besides:
        return replace(found, agreed=agreed, besides=f"the loss ({loss.line}) {loss.text}; {loss.besides}")
    return replace(loss, agreed=agreed)


def _shards(run: Run) -> bool:
    """Return whether each rank's optimizer may have parameters that others have not."""
    return any("Zero" in name for facts in run.facts for name in facts.optimizers)


def lines_of(parting: Parting) -> Iterator[str]:
    """Yield the parting as lines; the first says it all."""
    line = f" ({parting.line})" if parting.line else ""
    same = f", as {parting.same} other{'s' if parting.same > 1 else ''} of its kind" if parting.same else ""
    time = f"step {parting.step}" if parting.line else f"before step {parting.step}"
    yield f"{time}: {parting.subject} {parting.text}{line}{same}"
    if parting.besides:
        yield f"  {parting.besides}"
    if parting.agreed:
        yield f"  before it, in this step, these agree: {', '.join(dict.fromkeys(parting.agreed))}"
