"""The laws of ``sharded-optimizer`` about names and state."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from everyrank.fixtures.models import MODELS, fill
from everyrank.suites.acts import subject_acts
from everyrank.suites.compare import check
from everyrank.suites.contract import Point
from everyrank.suites.sharded_optimizer import points
from everyrank.suites.sharded_optimizer.arena import Arena, Parameter, Spec, pieces_of
from everyrank.suites.sharded_optimizer.geometry import chunked
from everyrank.suites.sharded_optimizer.laws import CONTRACT, SGD, built, step
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor

law = CONTRACT.law

#: The SGD that laws about models use: a momentum shows a step that was taken twice, a decay one without a gradient.
_KEYWORDS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}


def _cut(place: Arena, model: nn.Module, names: Sequence[str], dim: int = 0) -> None:
    """Cut these parameters by the subject's own tool."""
    for name in names:
        with subject_acts(f"cutting {name} into {place.size} chunks along dim {dim}"):
            place.tool("shard_parameter")(model, name, place.spec(dim))


def _named(place: Arena, model: nn.Module, **arguments: Any) -> list[tuple[str, Any]]:
    with subject_acts():
        return list(place.tool("named_parameters")(model, **arguments))


def _train(place: Arena, named: dict[str, Any], still: Sequence[str] = ()) -> None:
    """Three steps over the parameters that the arena has adopted; these names stay without a gradient."""
    with subject_acts():
        ours = place.build_over(SGD, named, **_KEYWORDS)
    reference = SGD([one.twin for one in place.parameters], **_KEYWORDS)
    comparison = place.comparison()
    used = [one for one in place.parameters if one.name not in still]
    for number in (1, 2, 3):
        place.give_gradients(used, number)
        with subject_acts():
            ours.step()
        reference.step()
        place.compare(comparison, number)
    comparison.verdict()


def _adopt(place: Arena, model: nn.Module, found: list[tuple[str, Any]]) -> None:
    """Pair what was found in the cut model with the same names of an uncut one."""
    twins = dict(model.named_parameters())
    check(
        sorted(name for name, _ in found) == sorted(twins),
        f"the parameters are {sorted(name for name, _ in found)}, those of the model {sorted(twins)}",
    )
    values = dict(found)
    for name, twin in twins.items():
        place.adopt(name, values[name], twin)


def _namings() -> Iterator[Point]:
    for label, arguments in (
        ("nested", {}),
        ("prefix", {"prefix": "model"}),
        ("top-only", {"recurse": False}),
        ("top-only-prefix", {"prefix": "model", "recurse": False}),
        ("bare", {}),
        ("bare-prefix", {"prefix": "model"}),
    ):
        yield points.plain(label, 3, core=label in ("nested", "prefix", "top-only", "bare"), arguments=arguments)


class Nested(nn.Module):
    """A parameter of its own, and modules with theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6, 2, dtype=torch.float64))
        self.block = MODELS["plain"].build(3)
        self.table = nn.Parameter(torch.ones(6, 3, dtype=torch.float64))


@law("names", _namings)
def names(place: Arena, point: Point) -> None:
    """The named parameters are exactly the model's: sharded in place, none twice, none missing, prefixes kept."""
    arguments = point.values["arguments"]
    wanted = [name for name, _ in Nested().named_parameters(**arguments)]
    model = Nested()
    _cut(place, model, ["block.first.weight", "scale"])
    start = f"{arguments['prefix']}." if "prefix" in arguments else ""
    sharded = {f"{start}block.first.weight": (6, 4), f"{start}scale": (6, 2)}
    if point.label.startswith("bare"):
        # A ShardedTensor may stand in a module without being a Parameter.
        bare = place.make([Spec((6, 3))])[0].given
        del model.table
        model.table = bare
        sharded[f"{start}table"] = (6, 3)
    found = _named(place, model, **arguments)
    listed = [name for name, _ in found]
    twice = sorted({name for name in listed if listed.count(name) > 1})
    check(not twice, f"named twice: {', '.join(twice)}")
    check(sorted(listed) == sorted(wanted), f"the names are {sorted(listed)}, those of the model {sorted(wanted)}")
    for name, value in found:
        own = sharded.get(name)
        check(isinstance(value, ShardedTensor) == (own is not None), f"{name} is a {type(value).__name__}")
        if own is not None:
            check(tuple(value.size()) == own, f"{name} is of {tuple(value.size())}, not {own}")
            check(len(pieces_of(value)) == 1, f"{name} has {len(pieces_of(value))} shards on rank {place.rank}")
        else:
            inside = model.get_parameter(name.removeprefix(start))
            check(value is inside, f"{name} is not the model's own parameter")


class OfLength(nn.Module):
    """A matrix with this many rows, or columns, to be cut; and a bias that stays whole."""

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.empty((length, 2) if dim == 0 else (2, length), dtype=torch.float64))
        self.bias = nn.Parameter(torch.empty(2, dtype=torch.float64))


def _of_lengths(point: Point) -> nn.Module:
    """A model with one of each for each length and dim, named after them."""
    cuts = [(dim, length) for dim in point.values["dims"] for length in point.values["lengths"]]
    model = nn.ModuleDict({f"dim{dim}_of_{length}": OfLength(length, dim) for dim, length in cuts})
    fill(model, seed=5)
    return model


@law("parity.shard-parameter", points.lengths_to_cut)
def by_its_own_tool(place: Arena, point: Point) -> None:
    """shard_parameter cuts any number of rows or columns, also fewer than ranks; each shard gets its own update.

    `past-the-end` has the lengths where a chunk of the usual size would begin beyond the last row.
    """
    model, uncut = _of_lengths(point), _of_lengths(point)
    for name, module in model.named_children():
        with place.may_part():
            _cut(place, model, [f"{name}.weight"], module.dim)
    _adopt(place, uncut, _named(place, model))
    for param in place.parameters:
        check(param.whole == param.name.endswith("bias"), f"{param.name} is {'whole' if param.whole else 'cut'} now")
    _train(place, {param.name: param.given for param in place.parameters})


_FROZEN = {"sharded": "first.weight", "whole": "first.bias", "sharded-last": "last.weight"}


def _freezings() -> Iterator[Point]:
    for label, name in _FROZEN.items():
        yield points.plain(label, 3, core=label == "sharded", frozen=name)


@law("frozen", _freezings)
def frozen(place: Arena, point: Point) -> None:
    """A frozen parameter is frozen after sharding too, and never moves; those beside it get their own update."""
    still = point.values["frozen"]
    model, uncut = MODELS["plain"].build(5), MODELS["plain"].build(5)
    for each in (model, uncut):
        each.get_parameter(still).requires_grad_(False)
    _cut(place, model, ["first.weight", "last.weight"])
    _adopt(place, uncut, _named(place, model))
    for one in place.parameters:
        for tensor, _ in one.pieces:
            wanted = one.name != still
            check(
                tensor.requires_grad == wanted,
                f"{one.name} {'requires' if tensor.requires_grad else 'does not require'} grad after sharding",
            )
    _train(place, {one.name: one.given for one in place.parameters}, still=[still])


def _ties() -> Iterator[Point]:
    for label in ("whole", "sharded", "model", "model-sharded"):
        yield points.plain(label, 3, core=label != "model")


@law("tied", _ties)
def tied(place: Arena, point: Point) -> None:
    """A parameter with two names is stepped once, and still one after sharding."""
    if not point.label.startswith("model"):
        first, last = place.make([Spec((6, 3), chunked if point.label == "sharded" else None), Spec((5,))])
        _train(place, {"encoder.weight": first.given, last.name: last.given, "decoder.weight": first.given})
        return
    model, uncut = MODELS["tied"].build(5), MODELS["tied"].build(5)
    _cut(place, model, ["0.weight", "2.weight"] if point.label == "model-sharded" else ["2.weight"])
    _adopt(place, uncut, _named(place, model))
    check(model.get_parameter("0.weight") is model.get_parameter("4.weight"), "sharding has untied 4.weight")
    _train(place, {one.name: one.given for one in place.parameters})


def _specs(point: Point) -> list[Spec]:
    needs = point.values["row"].needs
    if "sparse" in needs:  # which are the gradients of tables, and those are sharded
        return [Spec((7, 3)), Spec((6, 2)), Spec((5, 2))]
    if "2d" in needs:
        return [Spec((7, 3)), Spec((4, 3), None), Spec((6, 2)), Spec((5, 2), None)]
    return [Spec((7, 3)), Spec((4, 3), None), Spec((6, 2)), Spec((5,), None)]


@law("state.round-trip", points.saved)
def round_trip(place: Arena, point: Point) -> None:
    """Train, save, load into fresh objects, train on: as if never stopped; by name, in whatever order names come."""
    parameters = place.make(_specs(point))
    pair = built(place, parameters, point)
    with subject_acts():
        pair[0].state_dict()  # of a fresh optimizer: to ask changes nothing
    steps = 2 if "closure" in point.values["row"].needs else 3  # where each evaluates many times
    comparison = place.comparison()
    for number in range(1, steps + 1):
        step(place, pair, point, parameters, number)
        place.compare(comparison, number)
    with subject_acts():
        saved = copy.deepcopy(pair[0].state_dict())
    fresh = place.again()
    order = fresh[::-1] if point.values.get("reordered") else fresh
    # Built with another learning rate: the saved one must come back with the state.
    variant = {**point.values["variant"].make(), "lr": 0.5}
    with subject_acts():
        ours = place.build(point.values["row"].optimizer, order, **variant)
        ours.load_state_dict(saved)
    for number in range(steps + 1, 2 * steps + 1):
        step(place, (ours, pair[1]), point, fresh, number)
        place.compare(comparison, number)
    comparison.verdict()


@law("state.groups", points.grouped)
def groups(place: Arena, point: Point) -> None:
    """add_param_group takes names and values of its own for them; what is saved has the group, and loads it."""
    row, variant = point.values["row"], point.values["variant"]
    place.make(_specs(point))

    def dealt(parameters: Sequence[Parameter]) -> list[Sequence[Parameter]]:
        return [parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]]

    def subject(parameters: Sequence[Parameter]) -> Any:
        first, second = dealt(parameters)
        arguments = variant.make_groups()
        with subject_acts():
            ours = place.build(row.optimizer, first, **arguments[0])
            ours.add_param_group({"params": {one.name: one.given for one in second}, **arguments[1]})
        return ours

    arguments = variant.make_groups()
    first, second = dealt(place.parameters)
    reference = row.optimizer([one.twin for one in first], **arguments[0])
    reference.add_param_group({"params": [one.twin for one in second], **arguments[1]})
    ours = subject(place.parameters)
    comparison = place.comparison()
    for number in (1, 2):
        step(place, (ours, reference), point, place.parameters, number, own=True)
        place.compare(comparison, number)
    with subject_acts():
        saved = copy.deepcopy(ours.state_dict())
    fresh = place.again()
    ours = subject(fresh)
    with subject_acts():
        ours.load_state_dict(saved)
    for number in (3, 4):
        step(place, (ours, reference), point, fresh, number, own=True)
        place.compare(comparison, number)
    comparison.verdict()
