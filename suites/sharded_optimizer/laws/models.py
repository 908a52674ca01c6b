"""The laws of ``sharded-optimizer`` about names and state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from everyrank.fixtures.optimizers import Row
from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.engine.contract import Point
from everyrank.suites.sharded_optimizer import points
from everyrank.suites.sharded_optimizer.arena import Arena
from everyrank.suites.sharded_optimizer.contract import CONTRACT
from everyrank.suites.sharded_optimizer.law_player import playing
from everyrank.suites.sharded_optimizer.model import Param
from everyrank.suites.sharded_optimizer.points import cut, whole

law = CONTRACT.law


#: The parameters of a small model.
_PLAIN = {"first.weight": (6, 4), "first.bias": (6,), "last.weight": (3, 6), "last.bias": (3,)}


def _of_module(name: str, shape: tuple[int, ...], cut: bool = True, dim: int = 0, **other: Any) -> Param:
    """Return a parameter of a module, which the subject's own tool cuts, or which stays whole."""
    return Param(name, shape, geometry="chunked" if cut else "", dim=dim, tool=cut, **other)


@dataclass(frozen=True, kw_only=True)
class NamePoint(Point):
    """A point with the arguments of named_parameters."""

    arguments: Mapping[str, Any]
    bare: bool = False
    """Whether the module has a ShardedTensor that is not a Parameter."""


def _namings() -> Iterator[NamePoint]:
    prefix: dict[str, Any] = {"prefix": "model"}
    yield NamePoint("nested", 3, core=True, arguments={})
    yield NamePoint("prefix", 3, core=True, arguments=prefix)
    yield NamePoint("top-only", 3, core=True, arguments={"recurse": False})
    yield NamePoint("top-only-prefix", 3, arguments={**prefix, "recurse": False})
    yield NamePoint("bare", 3, core=True, arguments={}, bare=True)
    yield NamePoint("bare-prefix", 3, arguments=prefix, bare=True)


@law("names", _namings)
def names(arena: Arena, point: NamePoint) -> None:
    """named_parameters yields exactly the model's parameters, sharded in place: each once, with its prefix."""
    params = [
        _of_module("scale", (6, 2)),
        *(_of_module(f"block.{name}", shape, cut=name == "first.weight") for name, shape in _PLAIN.items()),
        Param("table", (6, 3), geometry="chunked" if point.bare else ""),
    ]
    with playing(arena, point, params, module=True) as player:
        player.names(**point.arguments)


@law("parity.shard-parameter", points.lengths_to_cut)
def shard_parameter(arena: Arena, point: points.LengthPoint) -> None:
    """shard_parameter cuts any number of rows or columns, even fewer than ranks; each shard gets its own update.

    `past-the-end` has the lengths at which a chunk of the usual size would begin beyond the last row.
    """
    params = []
    for dim in point.dims:
        for length in point.lengths:
            name, shape = f"dim{dim}_of_{length}", (length, 2) if dim == 0 else (2, length)
            params += [_of_module(f"{name}.weight", shape, dim=dim), Param(f"{name}.bias", (2,))]
    with playing(arena, point, params, module=True) as player:
        player.follow(3)


_FROZEN = {"sharded": "first.weight", "whole": "first.bias", "sharded-last": "last.weight"}


@dataclass(frozen=True, kw_only=True)
class FrozenPoint(Point):
    """A point with the name of the parameter that is frozen, and the step before which it is unfrozen."""

    frozen: str
    thaw: int = 0


def _freezings() -> Iterator[FrozenPoint]:
    for label, name in _FROZEN.items():
        yield FrozenPoint(label, 3, core=label == "sharded", frozen=name)
    for label in ("sharded", "whole"):
        yield FrozenPoint(f"{label}-thawed", 3, core=True, frozen=_FROZEN[label], thaw=2)


@law("frozen", _freezings)
def frozen(arena: Arena, point: FrozenPoint) -> None:
    """A frozen parameter stays frozen after sharding and does not change; the others get their own update.

    Unfrozen after the optimizer was built, it is stepped like the others.
    """
    params = [
        _of_module(name, shape, cut=name.endswith("weight"), frozen=name == point.frozen)
        for name, shape in _PLAIN.items()
    ]
    with playing(arena, point, params, module=True) as player:
        player.follow(1)
        if point.thaw:
            player.thaw([*_PLAIN].index(point.frozen))
        player.follow(2)


@dataclass(frozen=True, kw_only=True)
class TiedPoint(Point):
    """A point that fixes whether a parameter with two names is sharded, and whether a model has it."""

    sharded: bool
    in_model: bool


def _ties() -> Iterator[TiedPoint]:
    for label, sharded, in_model in (
        ("whole", False, False),
        ("sharded", True, False),
        ("model", False, True),
        ("model-sharded", True, True),
    ):
        yield TiedPoint(label, 3, core=label != "model", sharded=sharded, in_model=in_model)


@law("tied", _ties)
def tied(arena: Arena, point: TiedPoint) -> None:
    """A parameter with two names is stepped once, and is still one parameter after sharding."""
    if point.in_model:
        params = [
            _of_module("0.weight", (4, 4), cut=point.sharded, also="4.weight"),
            _of_module("2.weight", (4, 4)),
            *(Param(f"{number}.bias", (4,)) for number in (0, 2, 4)),
        ]
    else:
        params = [
            Param("encoder.weight", (6, 3), geometry="chunked" if point.sharded else "", also="decoder.weight"),
            cut(5),
        ]
    with playing(arena, point, params, module=point.in_model) as player:
        player.follow(3)


def _saved(row: Row) -> tuple[list[Param], torch.dtype]:
    """Return the parameters whose state is saved and loaded, and their dtype.

    NAdam keeps a product of fp32, which torch's own load_state_dict casts to the dtype of the parameter
    (pytorch#75224): a subject may use that, and with other dtypes it would not go on as if never stopped.
    """
    dtype = torch.float32 if row.name == "NAdam" else torch.float64
    if "sparse" in row.needs:  # sparse gradients are those of tables, which are sharded
        return [cut(7, 3), cut(6, 2), cut(5, 2)], dtype
    return [cut(7, 3), whole(4, 3), cut(6, 2), whole(5, 2) if "2d" in row.needs else whole(5)], dtype


@law("state.round-trip", points.saved)
def round_trip(arena: Arena, point: points.SavedPoint) -> None:
    """Training that is saved and loaded into fresh objects goes on as if never stopped, in any order of names.

    A parameter that had fewer gradients keeps its own step count, and a rate that is set afterwards counts.
    """
    times = 2 if "closure" in point.row.needs else 3  # each of these steps evaluates the closure many times
    with playing(arena, point, *_saved(point.row)) as player:
        player.save()  # the state of a fresh optimizer, which changes nothing
        player.follow(1)
        player.follow(1, missing=(3,) if point.rests else ())
        player.follow(times - 2)
        player.save()
        player.load(fresh=True, reordered=point.reordered)
        if point.rate is not None:
            for group in player.both_groups(0):
                group["lr"] = point.rate
        player.follow(times)


@law("state.groups", points.grouped, groups=("AVERAGED",))
def groups(arena: Arena, point: OptimizerPoint) -> None:
    """add_param_group takes names and the group's own options; the saved state has these, and loading restores it."""
    params, dtype = _saved(point.row)
    first = len(params) // 2
    with playing(arena, point, params, dtype, first=first) as player:
        player.sides.add_group(len(params) - first, point.variant.make_groups()[1])
        player.follow(2, own=True)
        player.save()
        player.load(fresh=True)
        player.follow(2, own=True)
