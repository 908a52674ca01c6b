"""The laws of ``sharded-optimizer`` about names and state."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from everyrank.fixtures.models import MODELS, fill
from everyrank.fixtures.optimizers import Row
from everyrank.model.counts import count
from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check
from everyrank.suites.engine.contract import Point
from everyrank.suites.errors import NotApplicable
from everyrank.suites.sharded_optimizer import points
from everyrank.suites.sharded_optimizer.arena import Arena, Parameter, Spec, pieces_of
from everyrank.suites.sharded_optimizer.contract import CONTRACT
from everyrank.suites.sharded_optimizer.geometry import chunked
from everyrank.suites.sharded_optimizer.laws.training import SGD, build_pair, step
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor

law = CONTRACT.law

#: The arguments of SGD for laws about models: momentum shows a step taken twice, decay one without a gradient.
_KEYWORDS: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}


def _cut(arena: Arena, model: nn.Module, names: Sequence[str], dim: int = 0) -> None:
    """Cut these parameters with the subject's own tool."""
    for name in names:
        with subject_acts(f"cutting {name} into {arena.size} chunks along dim {dim}"):
            arena.tool("shard_parameter")(model, name, arena.spec(dim))


def _named(arena: Arena, model: nn.Module, **arguments: Any) -> list[tuple[str, Any]]:
    with subject_acts():
        return list(arena.tool("named_parameters")(model, **arguments))


def _train(arena: Arena, named: dict[str, Any], still: Sequence[str] = (), thaw: int = 0) -> None:
    """Train the adopted parameters for three steps; the parameters of these names get no gradient.

    Before the step ``thaw``, if there is one, these parameters are unfrozen: from then on they have gradients.
    """
    with subject_acts():
        ours = arena.build_over(SGD, named, **_KEYWORDS)
    reference = SGD([param.twin for param in arena.parameters], **_KEYWORDS)
    comparison = arena.comparison()
    used = [param for param in arena.parameters if param.name not in still]
    for number in (1, 2, 3):
        if number == thaw:
            used = arena.parameters
            for param in used:
                param.given.requires_grad_(True)
                param.twin.requires_grad_(True)
        arena.give_gradients(used, number)
        with subject_acts():
            ours.step()
        reference.step()
        arena.compare(comparison, number)
    comparison.verdict()


def _adopt(arena: Arena, model: nn.Module, found: list[tuple[str, Any]]) -> None:
    """Pair the parameters found in the cut model with those of the same names in an uncut one."""
    twins = dict(model.named_parameters())
    check(
        sorted(name for name, _ in found) == sorted(twins),
        f"the parameters are {sorted(name for name, _ in found)}, those of the model {sorted(twins)}",
    )
    values = dict(found)
    for name, twin in twins.items():
        arena.adopt(name, values[name], twin)


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


class Nested(nn.Module):
    """A module with its own parameters and with submodules that have parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6, 2, dtype=torch.float64))
        self.block = MODELS["plain"].build(3)
        self.table = nn.Parameter(torch.ones(6, 3, dtype=torch.float64))


@law("names", _namings)
def names(arena: Arena, point: NamePoint) -> None:
    """named_parameters yields exactly the model's parameters, sharded in place: each once, with its prefix."""
    arguments = point.arguments
    wanted = [name for name, _ in Nested().named_parameters(**arguments)]
    model = Nested()
    _cut(arena, model, ["block.first.weight", "scale"])
    start = f"{arguments['prefix']}." if "prefix" in arguments else ""
    sharded = {f"{start}block.first.weight": (6, 4), f"{start}scale": (6, 2)}
    if point.bare:
        bare = arena.make([Spec((6, 3))])[0].given
        del model.table
        model.table = bare
        sharded[f"{start}table"] = (6, 3)
    found = _named(arena, model, **arguments)
    listed = [name for name, _ in found]
    twice = sorted({name for name in listed if listed.count(name) > 1})
    check(not twice, f"named twice: {', '.join(twice)}")
    check(sorted(listed) == sorted(wanted), f"the names are {sorted(listed)}, those of the model {sorted(wanted)}")
    for name, value in found:
        own = sharded.get(name)
        check(isinstance(value, ShardedTensor) == (own is not None), f"{name} is a {type(value).__name__}")
        if own is not None:
            check(tuple(value.size()) == own, f"{name} is of {tuple(value.size())}, not {own}")
            check(
                len(pieces_of(value)) == 1, f"{name} has {count(len(pieces_of(value)), 'shard')} on rank {arena.rank}"
            )
        else:
            inside = model.get_parameter(name.removeprefix(start))
            check(value is inside, f"{name} is not the model's own parameter")


class OfLength(nn.Module):
    """A matrix with this many rows or columns, which is cut, and a bias that stays whole."""

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.empty((length, 2) if dim == 0 else (2, length), dtype=torch.float64))
        self.bias = nn.Parameter(torch.empty(2, dtype=torch.float64))


def _of_lengths(point: points.LengthPoint) -> nn.Module:
    """Return a model with a module for each length and dim, named after them."""
    cuts = [(dim, length) for dim in point.dims for length in point.lengths]
    model = nn.ModuleDict({f"dim{dim}_of_{length}": OfLength(length, dim) for dim, length in cuts})
    fill(model, seed=5)
    return model


@law("parity.shard-parameter", points.lengths_to_cut)
def shard_parameter(arena: Arena, point: points.LengthPoint) -> None:
    """shard_parameter cuts any number of rows or columns, even fewer than ranks; each shard gets its own update.

    `past-the-end` has the lengths at which a chunk of the usual size would begin beyond the last row.
    """
    model, uncut = _of_lengths(point), _of_lengths(point)
    for name, module in model.named_children():
        assert isinstance(module, OfLength)
        _cut(arena, model, [f"{name}.weight"], module.dim)
    _adopt(arena, uncut, _named(arena, model))
    for param in arena.parameters:
        check(param.whole == param.name.endswith("bias"), f"{param.name} is {'whole' if param.whole else 'cut'} now")
    _train(arena, {param.name: param.given for param in arena.parameters})


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
    still = point.frozen
    model, uncut = MODELS["plain"].build(5), MODELS["plain"].build(5)
    for module in (model, uncut):
        module.get_parameter(still).requires_grad_(False)
    _cut(arena, model, ["first.weight", "last.weight"])
    _adopt(arena, uncut, _named(arena, model))
    for param in arena.parameters:
        for tensor, _ in param.pieces:
            wanted = param.name != still
            check(
                tensor.requires_grad == wanted,
                f"{param.name} {'requires' if tensor.requires_grad else 'does not require'} grad after sharding",
            )
    _train(arena, {param.name: param.given for param in arena.parameters}, still=[still], thaw=point.thaw)


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
    if not point.in_model:
        first, last = arena.make([Spec((6, 3), chunked if point.sharded else None), Spec((5,))])
        _train(arena, {"encoder.weight": first.given, last.name: last.given, "decoder.weight": first.given})
        return
    model, uncut = MODELS["tied"].build(5), MODELS["tied"].build(5)
    _cut(arena, model, ["0.weight", "2.weight"] if point.sharded else ["2.weight"])
    _adopt(arena, uncut, _named(arena, model))
    check(model.get_parameter("0.weight") is model.get_parameter("4.weight"), "sharding has untied 4.weight")
    _train(arena, {param.name: param.given for param in arena.parameters})


def _specs(row: Row) -> list[Spec]:
    if "sparse" in row.needs:  # sparse gradients are those of tables, which are sharded
        return [Spec((7, 3)), Spec((6, 2)), Spec((5, 2))]
    if "2d" in row.needs:
        return [Spec((7, 3)), Spec((4, 3), None), Spec((6, 2)), Spec((5, 2), None)]
    return [Spec((7, 3)), Spec((4, 3), None), Spec((6, 2)), Spec((5,), None)]


def _saved_dtype(row: Row) -> torch.dtype:
    """Return the dtype of parameters whose state is saved and loaded.

    NAdam keeps a product of fp32, which torch's own load_state_dict casts to the dtype of the parameter
    (pytorch#75224): a subject may use that, and with other dtypes it would not go on as if never stopped.
    """
    return torch.float32 if row.name == "NAdam" else torch.float64


@law("state.round-trip", points.saved)
def round_trip(arena: Arena, point: points.SavedPoint) -> None:
    """Training that is saved and loaded into fresh objects goes on as if never stopped, in any order of names.

    A parameter that had fewer gradients keeps its own step count, and a rate that is set afterwards counts.
    """
    parameters = arena.make(_specs(point.row), _saved_dtype(point.row))
    pair = build_pair(arena, parameters, point)
    with subject_acts():
        pair[0].state_dict()  # state_dict() of a fresh optimizer changes nothing
    steps = 2 if "closure" in point.row.needs else 3  # each of these steps evaluates the closure many times
    comparison = arena.comparison()
    for number in range(1, steps + 1):
        used = parameters[:-1] if point.rests and number == 2 else parameters
        step(arena, pair, point.row, used, number)
        arena.compare(comparison, number)
    with subject_acts():
        saved = copy.deepcopy(pair[0].state_dict())
    fresh = arena.again()
    order = fresh[::-1] if point.reordered else fresh
    # Build with another learning rate: loading the state must restore the saved one.
    variant = {**point.variant.make(), "lr": 0.5}
    with subject_acts():
        ours = arena.build(point.row.optimizer, order, **variant)
        ours.load_state_dict(saved)
    if point.rate is not None:
        if not hasattr(ours, "param_groups"):
            raise NotApplicable("the subject has no param_groups")
        for group in [*ours.param_groups, *pair[1].param_groups]:
            group["lr"] = point.rate
    for number in range(steps + 1, 2 * steps + 1):
        step(arena, (ours, pair[1]), point.row, fresh, number)
        arena.compare(comparison, number)
    comparison.verdict()


@law("state.groups", points.grouped, groups=("AVERAGED",))
def groups(arena: Arena, point: OptimizerPoint) -> None:
    """add_param_group takes names and the group's own options; the saved state has these, and loading restores it."""
    row, variant = point.row, point.variant
    arena.make(_specs(row), _saved_dtype(row))

    def halves(parameters: Sequence[Parameter]) -> list[Sequence[Parameter]]:
        return [parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]]

    def subject(parameters: Sequence[Parameter]) -> Any:
        first, second = halves(parameters)
        arguments = variant.make_groups()
        with subject_acts():
            ours = arena.build(row.optimizer, first, **arguments[0])
            ours.add_param_group({"params": {param.name: param.given for param in second}, **arguments[1]})
        return ours

    arguments = variant.make_groups()
    first, second = halves(arena.parameters)
    reference = row.optimizer([param.twin for param in first], **arguments[0])
    reference.add_param_group({"params": [param.twin for param in second], **arguments[1]})
    ours = subject(arena.parameters)
    comparison = arena.comparison()
    for number in (1, 2):
        step(arena, (ours, reference), row, arena.parameters, number, own=True)
        arena.compare(comparison, number)
    with subject_acts():
        saved = copy.deepcopy(ours.state_dict())
    fresh = arena.again()
    ours = subject(fresh)
    with subject_acts():
        ours.load_state_dict(saved)
    for number in (3, 4):
        step(arena, (ours, reference), row, fresh, number, own=True)
        arena.compare(comparison, number)
    comparison.verdict()
