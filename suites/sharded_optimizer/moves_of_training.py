"""The moves of ``sharded-optimizer`` that train: gradients, what is done with them, and steps."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
from everyrank import current_world
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import EXACT, Comparison, Tolerance, check
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.move import by_model, first_trained, last_trained, move, only_if
from everyrank.suites.moves.player import Player
from everyrank.suites.moves.together import reference_acts
from everyrank.suites.sharded_optimizer.arena import Arena
from everyrank.suites.sharded_optimizer.evaluations import Evaluations
from everyrank.suites.sharded_optimizer.home import Home
from everyrank.suites.sharded_optimizer.model import Model
from everyrank.suites.sharded_optimizer.outline import Outline
from everyrank.suites.sharded_optimizer.sides import Sides

#: A norm is summed over ranks in another order than over whole tensors.
_NORM = {
    "float16": Tolerance(relative=4e-3),
    "float32": Tolerance(relative=1e-5),
    "complex64": Tolerance(relative=1e-5),
    "float64": Tolerance(relative=1e-12),
}

#: Rows of a table that a rank looks up: none, one, several in any order, and some of them again.
_ROWS = ((), (0,), (0, 2), (2, 0), (1, 1), (3, 0, 3))


#: What each step looks at.
_READ = ("parameter", "optimizer state", "step count", "option", "group", "frozen")


def _missing_needs(outline: Outline, missing: tuple[int, ...]) -> Iterator[str]:
    yield "missing gradients"
    yield from only_if(set(missing) <= set(outline.trained))


def _rows_needs(outline: Outline, rows: tuple[tuple[int, ...], ...]) -> Iterator[str]:
    yield from only_if(outline.tables and len(rows) in (1, outline.model.size))
    if any(list(looked_up) != sorted(set(looked_up)) for looked_up in rows):
        yield "repeated rows"


def _alike_needs(outline: Outline, rows: tuple[tuple[int, ...], ...]) -> Iterator[str]:
    yield from _rows_needs(outline, rows)
    yield from only_if(len(rows) == 1)  # what a second step is to do with gradients that differ is not defined


def _trained(outline: Outline, **given: Any) -> None:
    outline.differ = bool(given.get("own")) or len(given.get("rows", ())) > 1


def _alike(outline: Outline, **given: Any) -> None:
    outline.differ = False


def _own_needs(outline: Outline) -> Sequence[str]:
    return only_if(outline.wholes and not outline.clamped)


def _clipping_needs(outline: Outline) -> Iterator[str]:
    yield "clipping"
    # A sparse gradient has no defined norm, and in half precision one of few digits.
    yield from only_if(not (outline.differ or outline.tables or "bfloat16" in outline.model.dtypes))


def _some_missing(outline: Outline) -> Sequence[tuple[int, ...]]:
    chosen = [some for count in (1, 2, 3) for some in itertools.combinations(outline.trained, count)]
    return [()] * 2 * len(chosen) + chosen


def _some_rows(outline: Outline) -> Sequence[tuple[tuple[int, ...], ...]]:
    if not outline.tables:
        return [()]
    return [*((rows,) for rows in _ROWS), *itertools.product(_ROWS, repeat=outline.model.size)]


class TrainingMoves(Player):
    """What is done to train, on both sides."""

    def __init__(self, subject: Subject, model: Model, arena: Arena | None = None) -> None:
        super().__init__(subject, model)
        self.arena = arena or Arena(subject, Point("script", model.size), current_world())
        self.saved: tuple[Any, Any] | None = None
        """The states of the subject and of the reference that were saved last."""

    @functools.cached_property
    def sides(self) -> Sides:
        """Subject and reference; a move with objects of its own needs none of these."""
        return Sides(self.arena, self.model, self.home)

    @functools.cached_property
    def home(self) -> Any:
        """The module of the parameters, if they have one."""
        return Home(self.arena, self.model) if self.model.module else None

    def compare(self) -> str:
        comparison = Comparison(self.sides.tolerance, self.subject.bound)
        comparison.step(self.number, *self.sides.values())
        self.conclude(comparison)
        self.sides.check_frozen()
        return ""

    def conclude(self, comparison: Comparison) -> None:
        """Raise what a comparison has found."""
        comparison.raise_first()

    def refuse(self, text: str) -> NoReturn:
        """Raise what a closure raises that is not evaluated as by torch.optim."""
        raise Deviation(text)

    @move(
        "grad.none",
        needs=lambda outline: only_if(not outline.closures_only),
        needs_of={"missing": _missing_needs, "rows": _alike_needs},
        then=_alike,
        drawn={"missing": _some_missing, "rows": lambda outline: [(rows,) for rows in _ROWS if outline.tables]},
        kinds=({}, {"missing": first_trained}),
        beside=({"rows": lambda outline: ((),) if outline.tables else None}, {"missing": last_trained}),
        writes=("gradient",),
        reads=("frozen",),
    )
    def give(self, missing: tuple[int, ...] = (), rows: tuple[tuple[int, ...], ...] = ()) -> None:
        """Set new gradients of all that is trained, and of nothing else.

        ``missing``: these parameters get none. ``rows``: the rows of tables that each rank looks up, or that all do.
        """
        self.sides.give(self.number, missing, rows)

    @move(
        "parity.shard",
        laws={"missing": "grad.none", "own": "parity.whole", "rows": "parity.embeddings"},
        needs=lambda outline: only_if(not outline.closures_only),
        needs_of={
            "missing": _missing_needs,
            "rows": _rows_needs,
            "own": _own_needs,
        },
        then=_trained,
        drawn={
            "missing": _some_missing,
            "rows": _some_rows,
            "own": (False, True),
        },
        kinds=(
            {},
            {"missing": first_trained},
            {"missing": last_trained},
            {"own": True},
            {"rows": lambda outline: ((3, 0, 3),) if outline.tables else None},
        ),
        beside=(
            {"own": True},
            {"rows": lambda outline: ((2, 0),) if outline.tables else None},
            {"missing": last_trained},
        ),
        often=4,
        writes=("gradient", "parameter", "optimizer state", "step count"),
        reads=(*_READ, "failed step", "acting hook"),
    )
    def train(
        self,
        missing: tuple[int, ...] = (),
        rows: tuple[tuple[int, ...], ...] = (),
        own: bool = False,
    ) -> None:
        """Set new gradients as ``give`` does, and step.

        ``own``: whole parameters get another gradient on each rank, if the subject claims to average them: it lies
        transposed in memory on every other rank.
        """
        self.sides.give(self.number, missing, rows, own)
        self._step()

    @move(
        "parity.shard",
        needs=lambda outline: only_if(not (outline.closures_only or outline.differ)),
        often=2,
        writes=("parameter", "optimizer state", "step count"),
        reads=(*_READ, "gradient", "failed step", "acting hook"),
    )
    def step(self) -> None:
        """Step with the gradients that there are."""
        self._step()

    # Of a table, gradients are dense in a closure; of what has grown large in half precision, they are infinite.
    @move(
        "closure",
        laws={"own": "parity.whole"},
        needs=lambda outline: ["closures", *only_if(not (outline.tables or "float16" in outline.model.dtypes))],
        needs_of={"own": _own_needs},
        then=_trained,
        drawn={"own": (False, False, True)},
        beside=({"own": True},),
        writes=("gradient", "parameter", "optimizer state", "step count"),
        reads=(*_READ, "failed step", "acting hook"),
    )
    def step_with_closure(self, own: bool = False) -> None:
        """Step with a closure, which sets the gradients itself; ``own`` as in ``train``."""
        sides = self.sides
        evaluations = Evaluations(sides.arena, sides.trained, self.number, self.refuse, own)
        with reference_acts():
            expected = float(sides.reference.step(evaluations.of_reference))
        loss = evaluations.let_step(sides.ours)
        self.check(evaluations.alike, evaluations.count)
        self.check(loss is not None, "step returned None instead of the closure's loss")
        if loss is not None:
            self.check(float(loss) == expected, f"step returned {float(loss)}, not the closure's loss {expected}")

    def _step(self) -> None:
        with reference_acts():
            self.sides.reference.step()
        with subject_acts():
            self.sides.ours.step()

    @move(
        "grad.zero",
        needs=lambda outline: ["zero_grad", *only_if(not outline.differ)],
        drawn={"set_to_none": (None, False, True)},
        beside=({"set_to_none": True},),
        kinds=({}, {"set_to_none": False}),
        after="give",
        writes=("gradient",),
        reads=("gradient", "group"),
    )
    def clear(self, set_to_none: bool | None = None) -> None:
        """Call ``zero_grad``, with ``set_to_none`` unless it is None."""
        arguments = {} if set_to_none is None else {"set_to_none": set_to_none}
        self.sides.reference.zero_grad(**arguments)
        with subject_acts():
            self.sides.ours.zero_grad(**arguments)
        self._compare_gradients(EXACT, f", after zero_grad({arguments})")

    def _compare_gradients(self, tolerance: Tolerance, when: str = "") -> None:
        comparison = Comparison(tolerance)
        self.sides.compare_gradients(comparison, self.number, when)
        self.conclude(comparison)

    @move(
        "clip",
        needs=_clipping_needs,
        needs_of={"norm": lambda outline, norm: only_if(not (outline.empty and math.isinf(norm)))},
        drawn={"most": (0.5, 2.0, 100.0), "norm": (2.0, float("inf"), 1.0, float("inf"), 3.0)},
        kinds=({"norm": by_model((2.0, 1.0, 2.0, 3.0))}, {"norm": float("inf")}),
        beside=({"most": 100.0}, {"most": 2.0}),
        after="give",
        shown_by="step",
        writes=("gradient",),
        reads=("gradient", "group"),
    )
    def clip(self, most: float = 0.5, norm: float = 2.0) -> None:
        """Call ``clip_grad_norm_``, and go on from the reference's gradients."""
        sides = self.sides
        tolerance = next(_NORM[dtype] for dtype in _NORM if dtype in {*self.model.dtypes, "float64"})
        with reference_acts():
            expected = float(torch.nn.utils.clip_grad_norm_(sides.handed_twins, most, norm))
        with subject_acts():
            total = sides.ours.clip_grad_norm_(most, norm)
        check(torch.is_tensor(total) or isinstance(total, float), f"the norm is {total!r}, which is no number")
        off = abs(float(total) - expected)
        relative = off / abs(expected) if expected else math.inf
        check(
            off <= tolerance.relative * abs(expected),
            f"the norm is {float(total)}, that of the whole tensors {expected}: off by {relative:.1e} relative",
        )
        self._compare_gradients(tolerance)
        sides.take_gradients_of_reference()
