"""The actions of a draw of ``trainer`` that have trainers of their own, and leave the draw's as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from everyrank.fixtures.failing import InjectedError
from everyrank.suites.arena.groups import NAMES_RANKS, collect, error_of, names_rank, own_group, root, text_of
from everyrank.suites.compare.comparison import check, same
from everyrank.suites.compare.reference import SEED
from everyrank.suites.trainer import grammar as g
from everyrank.suites.trainer.arena import Arena
from everyrank.suites.trainer.batches import Failing
from everyrank.suites.trainer.drawn_objects import FRESH, TrainerObjects
from everyrank.suites.trainer.laws.state import Mutation, Part, mutate

_STEP = g.Step()


def fail(arena: Arena, draw: g.Draw, action: g.Fail, number: int) -> None:
    """Check that the failing rank gets its own error, all others one as well, and nobody changes parameters."""
    with own_group() as group:
        objects = _objects(arena, draw, number)
        objects.step(_STEP, 0)
        training = objects.training
        before = training.own
        batches = training.batches(_STEP, number, 1)
        if arena.rank == action.rank:
            batches = [Failing(batch.inputs, batch.targets) for batch in batches]
        error = error_of(partial(training.trainer.step, *batches))
        group.leave()
        raised, own = error is not None, isinstance(root(error), InjectedError)
        text = text_of(error)
        named = NAMES_RANKS not in arena.subject.declares or names_rank(error, action.rank)
        after = training.own
        del training, objects, error  # they hold the group's sockets
        collect()
    if arena.rank == action.rank:
        check(own, f"rank {action.rank}'s own error did not reach it: {text}")
    else:
        check(raised, f"trained on, though rank {action.rank} had failed")
        check(named, f"the error does not name rank {action.rank}: {text}")
    for name, value in after.items():
        if value.shape == before[name].shape:  # else it was put together for the step that was interrupted
            same(value, before[name], f"{name}, after the step that failed,")


def load_wrong_state(arena: Arena, draw: g.Draw, action: g.WrongState, number: int) -> None:
    """Check that a state with a wrong entry is refused on this rank."""
    params = tuple(param for param in draw.params if param.shape and _is_plain(param))
    draw = replace(draw, params=params, optimizer="SGD", variant="momentum")  # each parameter has a state
    objects = _objects(arena, draw, number)
    for time in (0, 1):
        objects.step(_STEP, time)
    state = objects.state()
    part, mutation = cast(Part, action.part), cast(Mutation, action.mutation)
    mutate(state, part, mutation, len(set(objects.training.names.values())))
    fresh = objects.begin(FRESH)
    error = error_of(lambda: fresh.trainer.load_state_dict(state))
    check(error is not None, f"a state with a {action.mutation} entry of the {action.part} was loaded")


def _is_plain(param: g.Param) -> bool:
    plain = param.layout in ("plain", "transposed", "gaps", "shared") and param.dtype == "float64"
    return plain and not (param.frozen or param.unused) and 0 not in param.shape


def reshard(arena: Arena, draw: g.Draw, action: g.Reshard, number: int) -> None:
    """Check that a state that was saved on some ranks goes on on others, each of which loads that of rank 0."""
    file = f"{arena.world.folder}/drawn-shards"

    def before() -> None:
        objects = _objects(arena, draw, number)
        objects.step(_STEP, 0)
        objects.state()  # also before the state that counts
        objects.step(_STEP, 1)
        state = objects.state()
        if arena.rank == 0:
            torch.save((state, objects.alone), file)

    def after() -> None:
        state, alone = torch.load(file, weights_only=False)
        objects = _objects(arena, draw, number, FRESH)
        objects.load(state, objects.training)
        objects.alone = alone
        objects.exact_so_far = not objects.coarse  # the steps before were not compared
        objects.compare()
        for time in (2, 3):
            objects.step(_STEP, time)
            objects.compare()

    if _in_group(arena, action.before, before):
        _in_group(arena, action.after, after)


def _in_group(arena: Arena, size: int, act: Callable[[], None]) -> bool:
    """Let the first ranks act in a group of their own; return whether nothing went wrong on any of them."""
    error: Exception | None = None
    with own_group(size):
        if arena.rank < size:
            error = error_of(act)
        collect()
    failed = any(arena.meet("the group has acted", "" if error is None else "failed"))
    if error is not None:
        raise error
    return not failed


def _objects(arena: Arena, draw: g.Draw, number: int, seed: int = SEED) -> TrainerObjects:
    """Return objects of the draw as it begins, without groups: those are added by actions."""
    objects = TrainerObjects(arena, replace(draw, groups=()), seed)
    objects.number = number
    return objects
