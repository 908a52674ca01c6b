"""The laws of ``trainer`` about saving and loading."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from everyrank.fixtures.optimizers import rows
from everyrank.suites.arena.groups import error_of, own_group
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.reference import Plan
from everyrank.suites.errors import NotApplicable
from everyrank.suites.trainer import points
from everyrank.suites.trainer.arena import Arena, Training
from everyrank.suites.trainer.contract import CONTRACT
from everyrank.suites.trainer.laws.ranks import reordered
from everyrank.suites.trainer.points import TrainingPoint

law = CONTRACT.law

#: The seed of a model into which a state is loaded: none of its values may stay.
_FRESH = 99


def _each_optimizer(core: tuple[str, ...] = ()) -> Iterator[TrainingPoint]:
    for row in rows():
        if not row.needs & {"closure", "sparse"}:
            model = points.model_for(row)
            plan = Plan(2, 4, model, row.name, row.fullest.name)
            yield TrainingPoint(row.name, 2, core=row.name in core, optimizer=row.name, plan=plan)


@dataclass(frozen=True, kw_only=True)
class RoundTripPoint(TrainingPoint):
    """A point that may change the learning rate before the state is saved."""

    rate: float | None = None


def _round_trips() -> Iterator[RoundTripPoint]:
    for point in _each_optimizer(core=("Adam",)):
        yield RoundTripPoint(point.label, point.size, core=point.core, optimizer=point.optimizer, plan=point.plan)
    for model in ("tied", "frozen", "unused", "buffers", "equal-shapes"):
        make = partial(RoundTripPoint)
        core = (3,) if model == "equal-shapes" else ()
        yield from points.each_size(make, 2, 3, label=model, model=model, steps=4, variant="momentum", core=core)
    for size in (1, 4):
        yield from points.each_size(RoundTripPoint, size, label="plain", steps=4, core=())
    yield from points.each_size(
        partial(RoundTripPoint, rate=0.25), 2, 3, label="rate", steps=4, variant="momentum", core=(2,)
    )
    yield from points.each_size(
        RoundTripPoint, 2, label="groups", steps=4, optimizer="Adam", variant="groups", core=(2,)
    )


@law("state.round-trip", _round_trips, groups=("TRAINED", "SCALED", "STATE"))
def round_trip(arena: Arena, point: RoundTripPoint) -> None:
    """A state, loaded into a fresh trainer of another model, goes on as if the training had never stopped.

    The state has the parameters, the optimizer's state with its step counts, and the options of the groups.
    """
    training = arena.begin(point.plan)
    alone = training.reference()
    for number in (1, 2):
        training.step(number)
        alone.step(number)
        save(training)  # also before the state that counts
    if point.rate is not None:
        for group in [*training.trainer.param_groups, *alone.optimizer.param_groups]:
            group["lr"] = point.rate
    state = save(training)
    training.step(3)  # what was saved does not change any more
    fresh = arena.begin(point.plan, arena.model(point.plan, _FRESH))
    with subject_acts("load_state_dict"):
        fresh.trainer.load_state_dict(state)
    compare(arena, fresh, alone.values)
    arena.follow_alone(fresh, alone, range(3, 5))


def save(training: Training) -> Any:
    """Return a copy of the state."""
    with subject_acts("state_dict"):
        return copy.deepcopy(training.trainer.state_dict())


def compare(arena: Arena, fresh: Training, expected: Mapping[str, torch.Tensor]) -> None:
    """Compare the parameters that were loaded with those of the training that was saved."""
    comparison = arena.comparison(fresh.plan)
    comparison.step(0, fresh.values, expected)
    comparison.raise_first("as it was loaded: ")


When = Literal["fresh", "between", "always"]


@dataclass(frozen=True, kw_only=True)
class InertPoint(TrainingPoint):
    """A point that asks for the state before the first step, after it, or always."""

    when: When


def _inert() -> Iterator[InertPoint]:
    for point in _each_optimizer():
        yield InertPoint(
            point.label, point.size, core=point.core, optimizer=point.optimizer, plan=point.plan, when="always"
        )
    for when in get_args(When):
        make = partial(InertPoint, when=when)
        core = (3,) if when == "always" else (2,)
        yield from points.each_size(
            make, 2, 3, label=when, steps=3, optimizer="Adam", variant="everything", core=core
        )


@law("state.inert", _inert, groups=("TRAINED", "SCALED"))
def inert(arena: Arena, point: InertPoint) -> None:
    """To save, or to ask for the state of a fresh trainer, changes nothing."""
    training = arena.begin(point.plan)
    alone = training.reference()
    comparison = arena.comparison(training.plan, alone.values)
    for number in range(1, point.plan.steps + 1):
        if point.when == "always" or (point.when == "fresh") == (number == 1):
            with subject_acts("state_dict"):
                training.trainer.state_dict()
            comparison.step(number - 1, training.values, alone.values)
        training.step(number)
        alone.step(number)
        comparison.step(number, training.values, alone.values)
    comparison.verdict()


@dataclass(frozen=True, kw_only=True)
class ReshardPoint(TrainingPoint):
    """A point at which a state is saved on some ranks and loaded on fewer or more."""

    before: int
    after: int


def _reshards() -> Iterator[ReshardPoint]:
    for before, after in ((2, 3), (3, 2), (1, 4), (4, 1), (2, 4)):
        make = partial(ReshardPoint, before=before, after=after)
        for optimizer in ("Adam", "SGD"):
            core = (3,) if optimizer == "Adam" and {before, after} == {2, 3} else ()
            plan = {"steps": 4, "optimizer": optimizer, "variant": "everything"}
            label = f"{optimizer}-{before}-to-{after}"
            yield from points.each_size(make, max(before, after), label=label, core=core, **plan)


@law("state.reshard", _reshards, groups=("TRAINED", "SCALED", "STATE"))
def reshard(arena: Arena, point: ReshardPoint) -> None:
    """A state that was saved on W ranks goes on on another number of ranks, where each loads that of rank 0."""
    sizes = arena.subject.sizes
    if sizes is not None and not {point.before, point.after} <= set(sizes):
        raise NotApplicable(f"the subject runs on {' or '.join(map(str, sizes))} ranks")
    file = f"{arena.world.folder}/state"
    plan = Plan(point.before, point.plan.steps, optimizer=point.plan.optimizer, variant=point.plan.variant)
    with own_group(point.before):
        if arena.rank < point.before:
            training = arena.begin(plan)
            alone = training.reference()
            arena.follow_alone(training, alone, range(1, 2))
        arena.meet("one step is done")  # a rank that is refused its state now leaves no other in a collective
        if arena.rank < point.before:
            save(training)
            arena.follow_alone(training, alone, range(2, 3))
            state = save(training)
            if arena.rank == 0:
                torch.save((state, alone.values, training.plan.size), file)
            del training, state
        arena.meet("the state is saved")
    state, values, parts = torch.load(file, weights_only=False)
    with own_group(point.after):
        if arena.rank < point.after:
            fresh = arena.begin(Plan(point.after, plan.steps, optimizer=plan.optimizer, variant=plan.variant))
            with subject_acts("load_state_dict"):
                fresh.trainer.load_state_dict(state)
            compare(arena, fresh, values)
            alone = _go_on(fresh, parts)
            arena.follow_alone(fresh, alone, range(3, 5))
        arena.meet("the training has gone on")


def _go_on(fresh: Training, parts: int) -> Any:
    """Return the reference at the point at which so many parts saved; from now on it has those of ``fresh``."""
    alone = fresh.reference()
    now = alone.plan
    alone.plan = Plan(parts, now.steps, optimizer=now.optimizer, variant=now.variant)
    for number in (1, 2):
        alone.step(number)
    alone.plan = now
    return alone


Mutation = Literal["missing", "extra", "misshapen", "transposed"]
Part = Literal["model", "optimizer"]


@dataclass(frozen=True, kw_only=True)
class MutationPoint(TrainingPoint):
    """A point with a state that is wrong: an entry of the model or of the optimizer."""

    part: Part
    mutation: Mutation

    @property
    def may_start_anew(self) -> bool:
        """Whether a parameter without its entry in the state is one that never had a gradient."""
        return (self.part, self.mutation) == ("optimizer", "missing")


def _mutations() -> Iterator[MutationPoint]:
    for part in get_args(Part):
        for mutation in get_args(Mutation):
            if (part, mutation) == ("model", "transposed"):
                continue  # it fails as a misshapen one does
            make = partial(MutationPoint, part=part, mutation=mutation)
            label = f"{part}-{mutation}"
            yield from points.each_size(make, 2, label=label, variant="momentum", steps=4, core=(2,))


@law("state.strict", _mutations)
def strict(arena: Arena, point: MutationPoint) -> None:
    """A state with an entry that is missing, extra or misshapen is refused with an error on every rank.

    A parameter that never had a gradient has no entry in the optimizer's state. A missing entry may be taken for
    that, as torch.optim does: then this parameter starts anew, and all others go on.
    """
    training = arena.begin(point.plan)
    alone = training.reference()
    for number in (1, 2):
        training.step(number)
        alone.step(number)
    state = save(training)
    changed = mutate(state, point.part, point.mutation, len(set(training.names.values())))
    fresh = arena.begin(point.plan, arena.model(point.plan, _FRESH))
    with subject_acts():
        load = fresh.trainer.load_state_dict  # that there is none is no refusal
    error = error_of(lambda: load(state))
    if point.may_start_anew and set(arena.meet("the state is loaded", str(error is None))) == {"True"}:
        names = list(dict.fromkeys(training.names.values()))
        name = changed if isinstance(changed, str) else names[changed]
        alone.optimizer.state.pop(alone.model.get_parameter(name))
        arena.follow_alone(fresh, alone, range(3, 5))
        return
    arena.check(error is not None, f"a state with a {point.mutation} entry of the {point.part} was loaded")


def mutate(state: Any, part: Part, mutation: Mutation, count: int) -> Any:
    """Change one entry of a state, of the parameters' values or of the optimizer's states; return its key."""
    entries = next(_entries(state, part == "model", count), None)
    if entries is None:
        text = "a dict with a tensor for each parameter" if part == "model" else "a dict with a dict for each"
        with subject_acts():
            raise NotImplementedError(f"the state has no entries that can be changed: no {text}")
    last = list(entries)[-1]
    if mutation == "transposed":
        last, key = next((name, key) for name, entry in entries.items() for key in entry if _is_oblong(entry[key]))
        entries[last][key] = entries[last][key].t().clone()
    elif mutation == "missing":
        del entries[last]
    elif mutation == "extra":
        entries["one more" if isinstance(last, str) else last + 1] = copy.deepcopy(entries[last])
    elif part == "model":
        entries[last] = _misshapen(entries[last])
    else:
        key = next(key for key, value in entries[last].items() if isinstance(value, torch.Tensor) and value.dim())
        entries[last][key] = _misshapen(entries[last][key])
    return last


def _is_oblong(value: Any) -> bool:
    """Return whether this is a matrix whose shape its transpose does not have."""
    return isinstance(value, torch.Tensor) and value.dim() == 2 and value.shape[0] != value.shape[1]


def _misshapen(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor])


def _entries(state: Any, values: bool, count: int) -> Iterator[dict[Any, Any]]:
    """Yield the dicts in a state that have a tensor, or a dict with a tensor, for each parameter."""
    if isinstance(state, (list, tuple)):  # such as what get_state_dict returns
        for part in state:
            yield from _entries(part, values, count)
    if not isinstance(state, Mapping):
        return
    fits: Callable[[Any], bool] = (
        (lambda value: isinstance(value, torch.Tensor))
        if values
        else (lambda value: isinstance(value, Mapping) and any(map(_is_tensor, value.values())))
    )
    if len(state) >= count and all(map(fits, state.values())):
        yield state  # type: ignore[misc]
    for value in state.values():
        yield from _entries(value, values, count)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.dim())


@law(
    "state.in-order",
    lambda: points.plain(2, 3, model="equal-shapes", optimizer="Adam", variant="everything", steps=4),
    groups=("TRAINED", "SCALED", "STATE"),
)
def state_in_order(arena: Arena, point: TrainingPoint) -> None:
    """A state, loaded by a model that has registered its parameters in another order, reaches the right ones."""
    training = arena.begin(point.plan)
    alone = training.reference()
    arena.follow_alone(training, alone, range(1, 2))
    save(training)
    arena.follow_alone(training, alone, range(2, 3))
    state = save(training)
    with subject_acts():
        fresh = arena.begin(point.plan, reordered(arena.model(point.plan, _FRESH)))
        fresh.trainer.load_state_dict(state)
    arena.follow_alone(fresh, alone, range(3, 5))
