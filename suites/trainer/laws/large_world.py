"""The law of ``trainer`` about worlds that are too large to start: one process is each of their ranks in turn.

torch's fake process group answers every collective at once, with what was in memory. So nothing is trained: the ranks
are asked what they own, which needs no communication.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from everyrank.suites.arena.cover import Cover, Owned
from everyrank.suites.arena.fake_world import fake_world
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.engine.contract import Point
from everyrank.suites.errors import BrokenAdapter
from everyrank.suites.trainer.arena import ANY_ORDER, Arena
from everyrank.suites.trainer.contract import CONTRACT
from torch import nn
from torch.distributed.tensor import DTensor


class _Parameters(nn.Module):
    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        for number, shape in enumerate(shapes):
            self.register_parameter(f"p{number}", nn.Parameter(torch.ones(shape)))


#: Models whose parameters no number of ranks here divides: with more rows than ranks and with fewer; with more
#: elements than 16 bits can number; without dimensions; without elements.
MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "long": lambda: _Parameters((70_001,), (20, 3)),
    "scalars": lambda: _Parameters((5,), ()),
    "empty": lambda: _Parameters((5,), (0, 4)),
    "layers": lambda: nn.Sequential(nn.Linear(1, 1500, bias=False), nn.Linear(1500, 7, bias=False)),
}


@dataclass(frozen=True, kw_only=True)
class LargePoint(Point):
    """A point with a model and with the world that is simulated."""

    model: str
    simulated: int
    every: bool
    """Whether every rank is asked, and not only some."""


#: Models and world sizes. ``fully_shard`` takes 4 ms to build as one of 1,024 ranks, and 0.1 s as one of 16,384.
_ALL, _SOME = ("layers", 256), (("long", 1024), ("scalars", 1024), ("empty", 1024), ("layers", 1024), ("long", 16384))


def _points() -> Iterator[LargePoint]:
    for model, simulated in (*_SOME, _ALL):
        yield LargePoint(
            f"{model}-ws{simulated}",
            1,
            core=(model, simulated) == ("long", 1024),
            model=model,
            simulated=simulated,
            every=(model, simulated) == _ALL,
        )


@CONTRACT.law("large-world", _points, fixtures=(), fresh=True)
def large_world(arena: Arena, point: LargePoint) -> None:
    """In a world of hundreds or thousands of ranks, each element of a parameter has as many owners as is stated.

    Where only some ranks are asked: no more owners, and the parts of neighbours meet without a gap.
    """
    make = MODELS[point.model]
    shapes = {name: tuple(value.shape) for name, value in make().named_parameters()}
    cover = Cover(shapes, point.simulated, ordered=ANY_ORDER not in arena.subject.declares)
    for rank in range(point.simulated) if point.every else sampled(shapes, point.simulated):
        cover.add(rank, _ask(arena, make().to(arena.device), rank, point.simulated))
    if point.every:
        cover.check_whole()


def _ask(arena: Arena, model: nn.Module, rank: int, size: int) -> dict[str, Owned]:
    """Build the subject as one rank of a large world; return what it owns there."""
    with fake_world(rank, size):
        acting = f"rank {rank} of {size}: "
        with subject_acts(f"{acting}build"):
            trainer = arena.subject.build(model, torch.optim.SGD, lr=0.1)
        with subject_acts(f"{acting}owns()"):
            answer = trainer.owns()
        held = {
            name: tuple(value.to_local().shape)
            for name, value in model.named_parameters()
            if isinstance(value, DTensor)
        }
        return _read(answer, held, acting)


def _read(answer: Any, held: Mapping[str, tuple[int, ...]], acting: str) -> dict[str, Owned]:
    try:
        return {
            name: Owned(
                tuple((tuple(map(int, offsets)), tuple(map(int, sizes))) for offsets, sizes in boxes),
                int(copies),
                held.get(name),
            )
            for name, (boxes, copies) in answer.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        form = "{name: ([(offsets, sizes), ...], copies)}"
        raise BrokenAdapter(f"{acting}owns() must return {form}, not {str(answer)[:200]}") from error


def sampled(shapes: Mapping[str, tuple[int, ...]], size: int) -> list[int]:
    """Return some pairs of neighbours: at the ends, where a parameter may end, where a number overflows."""
    edges = {1, 256, size // 2, size - 1, *random.Random(size).sample(range(1, size), 2)}
    for shape in shapes.values():
        for count in filter(None, shape[:1]):
            part = -(-count // size)
            edges |= {-(-count // part), -(-(2**16) // part)}
    near = {rank for edge in edges for rank in (edge - 1, edge)}
    return sorted(rank for rank in near if 0 <= rank < size)
