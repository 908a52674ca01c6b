"""The moves of ``sharded-optimizer`` that train: gradients, what is done with them, and steps."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from everyrank import current_world
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import Comparison
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.move import first_trained, last_trained, move, only_if
from everyrank.suites.moves.player import Player
from everyrank.suites.moves.together import exchanged, reference_acts
from everyrank.suites.sharded_optimizer.arena import Arena
from everyrank.suites.sharded_optimizer.evaluations import Evaluations
from everyrank.suites.sharded_optimizer.faults import FAULTS, check_own_errors, error_text, own_message
from everyrank.suites.sharded_optimizer.home import Home
from everyrank.suites.sharded_optimizer.model import Model
from everyrank.suites.sharded_optimizer.outline import Outline
from everyrank.suites.sharded_optimizer.sides import Sides

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


def _failed_needs(outline: Outline) -> Iterator[str]:
    yield from ("errors", "closures", "errors in closures")
    # A closure gives dense gradients, and what a hook has made of those of a step that fails is not defined.
    yield from only_if(not (outline.tables or outline.clamped))


def _without_needs(outline: Outline, without: int, own: bool) -> Iterator[str]:
    yield "gradients of some ranks"
    yield from only_if(own and without in range(outline.model.size) and not outline.tables)


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
        laws={"failed": "errors.rank", "missing": "grad.none", "own": "parity.whole", "rows": "parity.embeddings"},
        needs=lambda outline: only_if(not outline.closures_only),
        needs_of={
            "missing": _missing_needs,
            "rows": _rows_needs,
            "own": _own_needs,
            "without": _without_needs,
            "failed": _failed_needs,
        },
        then=_trained,
        drawn={
            "missing": _some_missing,
            "rows": _some_rows,
            "own": (False, True),
            "without": lambda outline: [None, None, *range(outline.model.size)],
            "failed": (False, False, False, True),
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
            {"own": True, "failed": True},
            {"own": True, "without": lambda outline: outline.model.size - 1},
            {"missing": last_trained},
            {"without": 0},
            {"failed": True},
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
        without: int | None = None,
        failed: bool = False,
    ) -> None:
        """Set new gradients as ``give`` does, and step.

        ``own``: whole parameters get another gradient on each rank, if the subject claims to average them: it lies
        transposed in memory on every other rank, and the rank ``without`` has none. ``failed``: before that, a step
        with a closure fails on all ranks.
        """
        if failed:
            self._fail_everywhere()
        self.sides.give(self.number, missing, rows, own, without)
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
        laws={"failed": "errors.rank", "own": "parity.whole"},
        needs=lambda outline: ["closures", *only_if(not (outline.tables or "float16" in outline.model.dtypes))],
        needs_of={"own": _own_needs, "failed": _failed_needs},
        then=_trained,
        drawn={"own": (False, False, True), "failed": (False, False, False, True)},
        beside=({"own": True}, {"own": True, "failed": True}, {"failed": True}),
        writes=("gradient", "parameter", "optimizer state", "step count"),
        reads=(*_READ, "failed step", "acting hook"),
    )
    def step_with_closure(self, own: bool = False, failed: bool = False) -> None:
        """Step with a closure, which sets the gradients itself; ``own`` and ``failed`` as in ``train``."""
        if failed:
            self._fail_everywhere()
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

    def _fail_everywhere(self) -> None:
        """Let a closure fail on each rank, with a text of its own; so none waits for a gradient of another."""
        rank = self.arena.rank
        check_own_errors(
            self.exchange(lambda: error_text(self.sides, FAULTS["closure"], rank, "", own_message(rank)))
        )

    def exchange(self, act: Callable[[], str]) -> list[str]:
        """Act on all ranks, and return the texts of all."""
        return exchanged(act)
