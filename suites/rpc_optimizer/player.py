"""The player of ``rpc-optimizer``: its moves, and the models on which they are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from everyrank.suites.moves.model import named_traits, takes, with_each
from everyrank.suites.rpc_optimizer.arena import KEEPS_LETTERS
from everyrank.suites.rpc_optimizer.model import Model, Optimizer, Param
from everyrank.suites.rpc_optimizer.moves_of_parts import PartMoves
from everyrank.suites.rpc_optimizer.outline import Outline, features, fits, needed_by, needed_of

#: What a parameter is like; its owner comes from the model.
_PARAMS: dict[str, Param] = {
    "plain": Param(0, (3, 2)),
    "scalar": Param(0, ()),
    "transposed": Param(0, (3, 4), layout="transposed"),
    "frozen": Param(0, (3,), frozen=True),
    "rows": Param(0, (3, 2), layout="rows"),
    "zero": Param(0, (3,), gradient="zero"),
    "sparse": Param(0, (4, 2), gradient="sparse"),
    "again": Param(0, ()),
    "large": Param(0, (1031,)),
    "empty": Param(0, (0, 3)),
    "equal": Param(0, (3, 2)),
    "repeated": Param(0, (4, 2), gradient="repeated"),
    "nobody": Param(0, (3, 2)),
}

#: Those of further crossings: dtypes beside each other, values near the least numbers.
_MIXED: dict[str, Param] = {
    "bf16": Param(0, (3, 2), dtype="bfloat16"),
    "fp32-transposed": Param(0, (3, 4), layout="transposed", dtype="float32"),
    "complex64": Param(0, (2, 2), dtype="complex64"),
    "tiny": Param(0, (3,), gradient="tiny", tiny=True),
    "tiny-fp32": Param(0, (2, 3), gradient="tiny", dtype="float32", tiny=True),
    "tiny-rows": Param(0, (3, 2), layout="rows", gradient="tiny", tiny=True),
}

#: Which parameters these are with.
_BESIDE = (*_MIXED, "plain", "scalar", "frozen", "again")

#: What siblings are like that are equal at the start.
_SIBLINGS = ("plain", "scalar", "transposed", "large", "sparse", "rows")

#: Optimizers whose options have defaults that are no zeros, or a rate that is a tensor.
_FALSY = ("AdamW-defaults", "NAdam-defaults", "SGD-tensor-lr", "RMSprop-defaults", "SGD-momentum", "Adagrad-lr")

#: The owners of the parameters.
_OWNERS: dict[str, tuple[int, ...]] = {
    "each": (1, 2, 0),
    "one": (1, 1, 1),
    "two": (1, 2, 1),
    "caller": (0, 0, 0),
    "some": (0, 2, 0),
    "four": (1, 2, 0, 3),
    "last": (3, 3, 1, 2),
}

#: How many ranks there are, if not three.
_RANKS = {"four": 4, "last": 4}

#: Optimizers that differ in what they keep: a buffer, counts, nothing, sums; some have a functional twin in torch.
_OPTIMIZERS = (
    "SGD-momentum",
    "Adam-everything",
    "SGD-weight-decay",
    "Adagrad-lr",
    "SGD-lr",
    "AdamW-weight-decay",
    "NAdam-defaults",
    "SGD-everything",
    "RMSprop-everything",
    "Adafactor-defaults",
)

#: What a second optimizer is like: there is none; it is over the same parameters, also in reverse order; of another
#: client; over the last parameters, which the first does not have; of another class.
_SECOND = ("", "same", "client", "rest", "reversed", "class")

#: The dtypes, and how ids call them.
_DTYPES = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "complex128": "complex"}

#: Models for flows of state: in half of them one owner has all, so that two steps may meet there.
_FLOW_TRAITS = (
    *("size", "optimizer", "own", "second", "client", "given"),
    *("owners", "param1", "param2", "param3", "dtype"),
)
_FLOWS = (
    (3, "SGD-momentum", "planted", "same", 0, "named", "one", "plain", "scalar", "transposed", "float64"),
    (3, "Adam-everything", "planted", "client", 1, "positional", "each", "plain", "frozen", "rows", "float32"),
    (3, "SGD-everything", "planted", "same", 1, "explicit", "one", "large", "zero", "again", "bfloat16"),
    (3, "AdamW-weight-decay", "planted", "rest", 0, "named", "two", "empty", "plain", "equal", "float64"),
    (3, "Adagrad-lr", "planted", "same", 0, "named", "one", "plain", "repeated", "sparse", "float64"),
    (3, "RMSprop-everything", "planted", "reversed", 0, "named", "one", "rows", "plain", "nobody", "float64"),
    (3, "NAdam-defaults", "planted", "same", 0, "explicit", "each", "plain", "equal", "scalar", "float64"),
    (3, "SGD-momentum", "planted", "same", 1, "named", "two", "plain", "plain", "again", "complex128"),
    (3, "Adam-everything", "planted", "same", 0, "named", "one", "transposed", "plain", "large", "bfloat16"),
    (3, "SGD-everything", "planted", "same", 0, "positional", "one", "rows", "plain", "zero", "float32"),
    (3, "Adadelta-defaults", "planted", "same", 1, "named", "one", "scalar", "plain", "frozen", "float64"),
    (3, "SGD-lr", "signed", "class", 0, "named", "each", "plain", "again", "scalar", "float64"),
    (3, "SGD-weight-decay", "planted", "same", 1, "named", "some", "plain", "equal", "zero", "float64"),
    (3, "Adamax-defaults", "planted", "same", 0, "named", "one", "plain", "large", "rows", "float32"),
    (3, "SGD-everything", "planted", "same", 1, "named", "one", "plain", "equal", "transposed", "float64"),
)


class RpcPlayer(PartMoves):
    """Subject and reference of ``rpc-optimizer``."""

    features = features()
    features_since = {"steps of other parameters at the same time": 4}
    claims = {KEEPS_LETTERS: frozenset({"letters in errors"})}
    crossings = "crossings.txt"
    holes = {
        "buffer": "an optimizer has none",
        "group": "build takes a flat list of RRefs, as torch's DistributedOptimizer does, which adds no group either",
        "generator": "no optimizer of torch draws numbers",
    }
    flows = named_traits(_FLOW_TRAITS, _FLOWS)
    flow_layer = 1
    flow_length = 64
    flows_from_start = True
    outline = Outline
    drawing = "everyrank.suites.rpc_optimizer.drawing:ModelDrawing"
    named_by = ("optimizer", "dtype", "param1", "param2", "param3")
    called = _DTYPES
    kinds = (Model, Param, Optimizer)
    traits = {
        "size": (3,),
        "optimizer": _OPTIMIZERS,
        "own": ("planted", "", "signed", "subclass"),
        "second": _SECOND,
        "client": (0, 1),
        "given": ("named", "positional", "explicit"),
        "owners": tuple(name for name in _OWNERS if name not in _RANKS),
        "param1": tuple(_PARAMS),
        "param2": tuple(_PARAMS),
        "param3": tuple(_PARAMS),
        "dtype": tuple(_DTYPES),
    }

    further = (
        {
            "param1": _BESIDE,
            "param2": _BESIDE,
            "param3": _BESIDE,
            "optimizer": _FALSY,
            "given": ("zeros", "named"),
            "owners": ("four", "one", "last", "two", "each"),
        },
        {"own": ("planted",), "second": ("", "client"), "owners": ("four", "last", "one")},
        {},
        {
            **dict.fromkeys(("param1", "param2", "param3"), _SIBLINGS),
            "siblings": ("values", "all"),
            "owners": ("one", "two", "caller", "some"),
            "optimizer": _OPTIMIZERS,
            "given": ("named", "explicit", "positional"),
            # The last is over all but the first parameter, while the first optimizer is over all but the last.
            "second": (*_SECOND, "overlapping"),
        },
    )
    further_scripts = {4: 9}

    @classmethod
    def settled(cls, traits: Mapping[str, Any]) -> dict[str, Any]:
        """Return the traits without those that exclude each other."""
        found = cls._among_siblings(traits)
        params = {found["param1"], found["param2"], found["param3"]}
        sparse = bool({"sparse", "repeated"} & params)
        if sparse and found["dtype"] == "complex128":
            found["dtype"] = "float64"
        found["size"] = _RANKS.get(found["owners"], found["size"])
        taken = "sparse" if sparse else "complex" if found["dtype"] == "complex128" or "complex64" in params else ""
        optimizer = found["optimizer"].split("-")[0]
        if not takes(found["optimizer"], taken):
            found["optimizer"] = "SGD-momentum" if optimizer == "SGD" else "Adagrad-lr"
        elif optimizer == "Adafactor" and "empty" in params:
            found["optimizer"] = "SGD-lr"  # torch.optim divides by the number of elements
        if found["own"] == "signed" and taken == "complex":
            found["own"] = "subclass"  # a complex gradient has no sign
        if found["own"] in ("signed", "subclass") and not found["optimizer"].startswith("SGD"):
            found["own"] = "planted"
        return found

    @classmethod
    def _among_siblings(cls, traits: Mapping[str, Any]) -> dict[str, Any]:
        """Return the traits with parameters of one kind on each owner, if siblings are equal."""
        found, firsts = dict(traits), dict[int, Any]()
        for number, owner in enumerate(_OWNERS[traits["owners"]] if traits.get("siblings") else (), 1):
            found[f"param{number}"] = firsts.setdefault(owner, found[f"param{number}"])
        return found

    @classmethod
    def model_of(cls, traits: Mapping[str, Any], features: frozenset[str]) -> Model:
        params: list[Param] = []
        alike = traits.get("siblings", "")
        for number, owner in enumerate(_OWNERS[traits["owners"]]):
            kind = traits.get(f"param{number + 1}", "plain")
            twins = [each for each, param in enumerate(params) if param.owner == owner and param.same_as is None]
            if kind == "again" and twins:
                params.append(replace(params[twins[0]], same_as=twins[0]))
            else:
                params.append(replace((_PARAMS | _MIXED)[kind], owner=owner, alike=alike))
        firsts = [number for number, param in enumerate(params) if param.same_as is None]
        given = [number for number in firsts if traits.get(f"param{number + 1}") != "nobody"] or firsts
        model = Model(traits["size"], tuple(params), (), _dtype(traits["dtype"], features))
        return _fitted(replace(model, optimizers=_optimizers(traits, given)), features)

    @classmethod
    def needed(cls, model: Model) -> Iterator[str]:
        for number, param in enumerate(model.params):
            yield from needed_by(model, param, number)
        for optimizer in model.optimizers:
            yield from needed_of(optimizer, model)

    @classmethod
    def simpler(cls, model: Model) -> Iterator[Model]:
        yield replace(model, optimizers=model.optimizers[:1])
        for number in range(len(model.params)):
            fewer = _without(model, number)
            if fewer is not None:
                yield fewer
        yield replace(model, dtype="float64")
        yield replace(model, params=tuple(replace(param, alike="") for param in model.params))
        changes: dict[str, Any]
        for changes in (
            {"given": "named"},
            {"client": 0},
            {"own": ""},
            {"own": "planted"},
            {"name": "SGD", "variant": "lr"},
            {"name": "SGD", "variant": "momentum"},
        ):
            yield replace(model, optimizers=tuple(replace(each, **changes) for each in model.optimizers))
        yield from with_each(
            model, lambda param: [Param(1, (2,), alike=param.alike)] if param.same_as is None else []
        )


def _dtype(dtype: str, features: frozenset[str]) -> str:
    return "float32" if dtype == "bfloat16" and "bf16" not in features else str(dtype)


def _optimizers(traits: Mapping[str, Any], given: list[int]) -> tuple[Optimizer, ...]:
    name, variant = traits["optimizer"].split("-", 1)
    first = Optimizer(tuple(given), name, variant, traits["own"], traits["given"], traits["client"])
    second = {
        "same": first,
        "client": replace(first, client=first.client + 1),
        "rest": replace(first, params=tuple(given[-1:])),
        "reversed": replace(first, params=tuple(given[::-1])),
        "class": replace(first, name="SGD", variant="momentum"),
        "overlapping": replace(first, params=tuple(given[1:] or given)),
    }.get(traits["second"])
    if traits["second"] in ("rest", "overlapping") and len(given) > 1:
        first = replace(first, params=tuple(given[:-1]))
    return (first,) if second is None else (first, second)


def _fitted(model: Model, features: frozenset[str]) -> Model:
    """Return the model as far as a subject with these features claims it."""
    for number, param in enumerate(model.params):
        if param.gradient in ("sparse", "repeated") and not all(
            f"{each.name} with sparse gradients" in features for each in model.optimizers
        ):
            param = replace(param, gradient="dense")
        if param.dtype and not _has_dtype(param.dtype, model, features):
            param = replace(param, dtype="")
        needs = set(needed_by(model, param, number))
        if param.frozen and not needs <= features:
            param = replace(param, frozen=False)
        model = replace(model, params=(*model.params[:number], param, *model.params[number + 1 :]))
    optimizers = tuple(_claimed(each, model, features) for each in model.optimizers)
    if "parameters of no optimizer" not in features:
        firsts = tuple(number for number in range(len(model.params)) if model.tensor(number) == number)
        optimizers = (replace(optimizers[0], params=firsts), *optimizers[1:])
    model = replace(model, optimizers=optimizers)
    if not features.issuperset(RpcPlayer.needed(model)) and model.dtype == "complex128":
        return _fitted(replace(model, dtype="float64"), features)
    return model


def _has_dtype(dtype: str, model: Model, features: frozenset[str]) -> bool:
    if dtype == "complex64":
        return all(
            {f"{each.name} complex", f"{each.name} complex with arguments"} <= features for each in model.optimizers
        )
    return dtype != "bfloat16" or "bf16" in features


def _claimed(optimizer: Optimizer, model: Model, features: frozenset[str]) -> Optimizer:
    """Return the optimizer, or the nearest one that a subject with these features claims."""
    if optimizer.own and "classes of the user's own" not in features:
        optimizer = replace(optimizer, own="")
    able: list[dict[str, Any]] = [{}, {"name": "SGD", "variant": "momentum"}, {"name": "SGD", "variant": "lr"}]
    for changes in ({**other, **given} for other in able for given in ({}, {"given": "named"})):
        found = replace(optimizer, **changes)
        if fits(found, model) and features.issuperset(needed_of(found, model)):
            return found
    return optimizer


def _without(model: Model, number: int) -> Model | None:
    """Return the model without a parameter, or None if another is of its tensor or an optimizer had none left."""
    if len(model.params) == 1 or any(param.same_as == number for param in model.params):
        return None

    def moved(other: int) -> int:
        return other - (other > number)

    params = [
        replace(param, same_as=None if param.same_as is None else moved(param.same_as))
        for other, param in enumerate(model.params)
        if other != number
    ]
    optimizers = [
        replace(each, params=tuple(moved(other) for other in each.params if other != number))
        for each in model.optimizers
    ]
    kept = tuple(each for each in optimizers if each.params)
    return replace(model, params=tuple(params), optimizers=kept) if kept else None
