"""The moves of ``trainer`` that save and load, and those that have trainers of their own."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from everyrank.fixtures.failing import AROUND, MESSAGE, InjectedError
from everyrank.suites.arena.groups import NAMES_RANKS, collect, error_of, names_rank, own_group, root, text_of
from everyrank.suites.arena.subject_errors import in_a_line, subject_acts
from everyrank.suites.compare.comparison import check, same
from everyrank.suites.errors import NotApplicable
from everyrank.suites.moves.move import by_model, move, only_if
from everyrank.suites.trainer.as_torch import numbered, takes
from everyrank.suites.trainer.batches import Failing
from everyrank.suites.trainer.features import WRONG_STATES
from everyrank.suites.trainer.model import Model, Param, Step
from everyrank.suites.trainer.moves_of_users import UserMoves
from everyrank.suites.trainer.outline import Outline
from everyrank.suites.trainer.parameters import Values
from everyrank.suites.trainer.sides import FRESH, Sides, TrainingSide
from everyrank.suites.trainer.wrong_states import Mutation, Part, mutate, overwrite


def _saving_needs(outline: Outline) -> Iterator[str]:
    yield "states"
    yield from outline.saving_needs()
    some = outline.handed < outline.count
    if some:
        yield "states of some groups"
    yield from only_if(not some or outline.model.saves_some)
    yield from only_if(not (outline.closures or outline.spoiled))


def _saved(outline: Outline) -> None:
    # To ask for the state of a fresh trainer changes nothing; no law is about loading it.
    outline.saved = not outline.fresh
    outline.saved_keeps = outline.keeps
    outline.saved_still = outline.still, outline.stood
    outline.saved_idle = frozenset(outline.idle)


def _loading_needs(outline: Outline) -> Iterator[str]:
    if outline.scheduled:
        yield "states of scheduled rates"
    if outline.saved_idle - {*outline.idle}:
        yield "states of unused parameters"  # of what is trained by now the state has nothing
    yield from only_if(outline.saved)


def _loaded(outline: Outline, **given: Any) -> None:
    outline.loaded, outline.spoiled, outline.rate_hooked = True, False, False
    outline.still, outline.stood = outline.saved_still
    outline.keeps = outline.will_keep = outline.saved_keeps


def _resharding_needs(outline: Outline) -> Iterator[str]:
    yield "states of the first rank"
    yield "states of Adam"
    yield from _saving_needs(outline)
    if not outline.built_to_keep:
        yield "states of fresh trainers"


def _on_these(outline: Outline, before: int, after: int) -> Sequence[str]:
    return only_if(0 < before <= outline.model.size >= after > 0)


Found = TypeVar("Found")

#: What a rank says of a wrong state that was loaded, and that plain torch.optim loads as well.
AS_TORCH = "loaded, as torch.optim does"


@dataclass(frozen=True)
class Failure:
    """What a rank has seen of a step that fails on one rank."""

    raised: bool
    failed: bool
    """Whether this rank has raised, or has computed a loss: not every rank of a pipeline does."""
    own: bool
    named: bool
    text: str
    parts: int
    before: Values
    after: Values


@dataclass(frozen=True)
class WrongState:
    """What a rank has seen of a state that is wrong."""

    sides: Sides
    fresh: TrainingSide | None
    """The trainer that has loaded it, if it did."""
    changed: str
    """The name of the parameter whose entry is wrong."""
    as_torch: bool
    """Whether it has the form of torch.optim, which loads such a state as well."""

    @property
    def text(self) -> str:
        return "" if self.fresh is None else AS_TORCH if self.as_torch else "loaded"


class StateMoves(UserMoves):
    """What is done with states, on both sides."""

    overwrote = False
    """Whether the last state that was to be overwritten had parameters by their names."""

    @move(
        "state.inert",
        needs=_saving_needs,
        then=_saved,
        writes=("saved state",),
        reads=("parameter", "buffer", "optimizer state", "step count", "option", "group", "frozen", "scheduler"),
        # Where a generator is, its user saves beside the state.
        reads_further={7: ("position",), 10: ("generator",), 12: ("frozen state",)},
    )
    def save(self) -> None:
        """Copy the state, which replaces the last copy."""
        self.saved = self.sides.state(), self.sides.saved(), (self.position, self.epochs)

    @move(
        "state.round-trip",
        laws={"reordered": "state.in-order"},
        needs=_loading_needs,
        needs_of={
            "reordered": lambda outline, fresh: ["states in another order", *only_if(fresh and not outline.tied)],
            "of_first": "states of the first rank",
            "overwritten": "states that are overwritten",
        },
        then=_loaded,
        drawn={
            "fresh": (True, False),
            "reordered": (False, False, False, True, True),
            "of_first": (False, False, False, True, True),
            "overwritten": (False, False, True),
        },
        kinds=({}, {"fresh": True}, {"fresh": True, "reordered": True}, {"fresh": True, "of_first": True}),
        further={8: ({"overwritten": True}, {"fresh": True, "overwritten": True})},
        beside=({"of_first": True}, {"overwritten": True}),
        often=3,
        after="save",
        shown_by="step",
        writes=(
            "parameter",
            "buffer",
            "optimizer state",
            "step count",
            "option",
            "scheduler",
            "position",
            "generator",
            "frozen state",
        ),
        reads=("saved state", "group", "frozen"),
    )
    def load(
        self, fresh: bool = False, reordered: bool = False, of_first: bool = False, overwritten: bool = False
    ) -> None:
        """Load the last copy into the same trainer, or into a fresh one of another model.

        ``reordered``: the fresh model has registered its parameters in the opposite order, unless the state numbers
        them, as torch.optim's own does. ``of_first``: every rank loads the copy of rank 0. ``overwritten``: its
        user overwrites the parameters and buffers in that state afterwards.
        """
        sides = self.sides
        state, references, (self.position, self.epochs) = self.saved
        state = self._of_first(state) if of_first else copy.deepcopy(state)
        orders = range(self.model.size) if reordered and not self.saved_numbers else None
        sides.load(state, sides.begin(FRESH, orders) if fresh else sides.training)
        if overwritten:
            self.overwrote = overwrite(state, set(sides.training.names.values()))
        sides.go_back(*references)
        sides.alone.freeze(sides.frozen)
        self.schedulers.clear()
        self.unhook()
        self.epoch = None

    @property
    def saved_numbers(self) -> bool:
        """Whether the last copy has no names of parameters, on some rank."""
        return "numbered" in self.arena.meet("the form of the state", "numbered" if numbered(self.saved[0]) else "")

    def _of_first(self, state: Any) -> Any:
        """Return rank 0's copy of a state."""
        file = f"{self.arena.world.folder}/state-of-rank-0"
        if self.arena.rank == 0:
            torch.save(state, file)
        self.arena.meet("rank 0 has written its state")
        return torch.load(file, weights_only=False)


class ApartMoves(StateMoves):
    """What is done with trainers of its own, and leaves the player's as they are."""

    @move(
        "errors.arguments",
        needs="invalid arguments",
        drawn={"invalid": lambda outline: range(len(outline.model.row.invalid))},
        apart=True,
    )
    def refuse(self, invalid: int = 0) -> None:
        """Build a fresh trainer with the invalid arguments of this number, which must be refused."""
        wrong = self.model.row.invalid[invalid % len(self.model.row.invalid)]
        error = error_of(partial(self.sides.build_with, wrong.make()))
        as_due = isinstance(error, wrong.error) and re.search(wrong.match, str(error)) is not None
        raised = "nothing" if error is None else in_a_line(error)
        self.check(as_due, f"{wrong.name}: raised {raised} instead of {wrong.error.__name__}: {wrong.match}")

    @move(
        "state.strict",
        needs=lambda outline, part, mutation: [f"{part} states, {mutation}", *only_if(not outline.closures)],
        needs_of={"mutation": lambda outline, part, mutation: only_if((part, mutation) in WRONG_STATES)},
        drawn={"part": ("model", "optimizer"), "mutation": ("extra", "misshapen", "missing")},
        kinds=tuple({"part": part, "mutation": mutation} for part, mutation in WRONG_STATES),
        apart=True,
    )
    def load_wrong(self, part: str, mutation: str) -> None:
        """Load a state with one entry that is missing, extra or misshapen into a fresh trainer: it is refused.

        What plain torch.optim takes, a state of its form may be taken for, too.
        """
        params = tuple(param for param in self.model.params if param.shape and _is_plain(param))
        # Each parameter has a state.
        made_of = replace(self.model, params=params, optimizer="SGD", variant="momentum")
        found, texts = self._meeting(
            lambda: self._load_wrong(made_of, cast(Part, part), cast(Mutation, mutation)), lambda found: found.text
        )
        as_torch = set(texts) == {AS_TORCH}
        # A missing entry may be that of a parameter that never had a gradient: this starts anew, others go on.
        goes_on = part == "optimizer" and (mutation == "missing" or (mutation == "extra" and as_torch))
        if found.fresh is not None and "" not in texts and goes_on:
            if mutation == "missing":
                found.sides.alone.optimizer.state.pop(found.sides.alone.model.get_parameter(found.changed))
            found.sides.training = found.fresh
            self._go_on(found.sides)
        elif as_torch:
            raise NotApplicable("plain torch.optim loads such a state as well, and raises in the next step")
        else:
            article = "an" if mutation == "extra" else "a"
            self.check(found.fresh is None, f"a state with {article} {mutation} entry of the {part} was loaded")

    def _load_wrong(self, made_of: Model, part: Part, mutation: Mutation) -> WrongState:
        """Load a wrong state into a fresh trainer."""
        sides = self._sides(made_of)
        for time in (0, 1):
            sides.step(Step(), self.number, time)
        state = sides.state()
        as_torch = part == "optimizer" and numbered(state) and takes(sides.alone, mutation)
        names = list(dict.fromkeys(sides.training.names.values()))
        changed = mutate(state, part, mutation, len(names))
        fresh = sides.begin(FRESH)
        with subject_acts():
            load = fresh.trainer.load_state_dict  # that there is none is no refusal
        refused = error_of(lambda: load(state)) is not None
        name = changed if isinstance(changed, str) else names[changed]
        return WrongState(sides, None if refused else fresh, name, as_torch)

    @move(
        "errors.rank",
        needs=lambda outline: ["errors", *only_if(outline.model.size > 1 and not outline.closures)],
        drawn={"rank": lambda outline: range(outline.model.size), "text": tuple(AROUND)},
        kinds=({"rank": lambda outline: outline.model.size - 1, "text": by_model(tuple(AROUND))},),
        apart=True,
    )
    def fail(self, rank: int, text: str = "") -> None:
        """Let the loss raise on one rank in the second step, in a group of its own: all raise, nothing changes.

        ``text``: what stands around the text of the error; it may be empty, or have letters outside ASCII.
        """
        message = AROUND[text].format(MESSAGE)
        seen, computed = self._meeting(
            lambda: self._failing(rank, message), lambda seen: "computed" if seen.failed else ""
        )
        if not computed[rank] and seen.parts < self.arena.size:
            raise NotApplicable(f"rank {rank} computes no loss")  # not all ranks that share a part need do so
        for name, value in seen.after.items():
            if value.shape == seen.before[name].shape:  # else it was put together for the step that was interrupted
                same(value, seen.before[name], f"{name}, after the step that failed,")
        if self.arena.rank == rank:
            check(seen.own, f"rank {rank}'s own error did not reach it: {seen.text}")
        else:
            check(seen.raised, f"trained on, though rank {rank} had failed")
            check(seen.named, f"the error does not name rank {rank}: {seen.text}")

    def _failing(self, rank: int, message: str) -> Failure:
        with own_group() as group:
            sides = self._sides(self.model)
            sides.step(Step(), self.number, 0)
            training = sides.training
            before = training.own
            batches = training.batches(Step(), self.number, 1)
            failing = [Failing(batch.inputs, batch.targets, message=message) for batch in batches]
            error = error_of(partial(training.trainer.step, *(failing if self.arena.rank == rank else batches)))
            group.leave()
            found = Failure(
                raised=error is not None,
                failed=error is not None or any(batch.asked for batch in failing),
                own=isinstance(root(error), InjectedError),
                named=NAMES_RANKS not in self.subject.declares or names_rank(error, rank),
                text=text_of(error),
                parts=training.parts,
                before=before,
                after=training.own,
            )
            del training, sides, error  # they hold the group's sockets
            collect()
        return found

    @move(
        "state.reshard",
        needs=_resharding_needs,
        needs_of={"before": _on_these},
        drawn={"before": (2, 3), "after": (2, 3)},
        kinds=({"before": 2, "after": 3}, {"before": 3, "after": 2}),
        apart=True,
    )
    def reshard(self, before: int, after: int) -> None:
        """Train and save on the first ``before`` ranks, load on the first ``after`` ranks, and go on there."""
        file = f"{self.arena.world.folder}/resharded"

        def saving() -> None:
            sides = self._sides(self.model)
            for time in (0, 1):
                sides.step(Step(), self.number, time)
                sides.compare()
                state = sides.state()  # also before the state that counts
            sides.verdict()
            if self.arena.rank == 0:
                torch.save((state, sides.alone), file)

        def loading() -> None:
            state, alone = torch.load(file, weights_only=False)
            sides = self._sides(self.model, FRESH)
            sides.load(state, sides.training)
            sides.alone = alone
            sides.exact_so_far = not sides.coarse  # the steps before were not compared on all of these ranks
            self._go_on(sides)

        if self._in_group(before, saving):
            self._in_group(after, loading)

    def _meeting(self, act: Callable[[], Found], text: Callable[[Found], str]) -> tuple[Found, list[str]]:
        """Act, and return what was found with the texts of all ranks about it; a rank that raises has none."""
        found: list[Found] = []
        error = self.attempt(lambda: found.append(act()))
        texts = self.arena.meet("all have acted", text(found[0]) if found else "")
        if error is not None:
            raise error
        return found[0], texts

    def _in_group(self, size: int, act: Callable[[], None]) -> bool:
        """Let the first ranks act in a group of their own; return whether nothing went wrong on any of them."""
        error: Exception | None = None
        with own_group(size):
            if self.arena.rank < size:
                error = self.attempt(act)
            collect()
        failed = any(self.arena.meet("the group has acted", "" if error is None else "failed"))
        if error is not None:
            raise error
        return not failed

    def _sides(self, model: Model, *seed: int) -> Sides:
        """Return both sides of a training that begins as the script does, without groups: moves add those."""
        return self.sides_of(self.arena, replace(model, groups=()), *seed)

    def _go_on(self, sides: Sides) -> None:
        """Train on from a state that was loaded after two steps."""
        sides.steps = 2
        sides.compare()
        for time in (2, 3):
            sides.step(Step(), self.number, time)
            sides.compare()
        sides.verdict()


def _is_plain(param: Param) -> bool:
    plain = param.layout in ("plain", "transposed", "gaps", "shared") and param.dtype == "float64"
    return plain and not (param.frozen or param.unused) and 0 not in param.shape
