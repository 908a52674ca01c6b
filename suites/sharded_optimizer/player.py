"""The player of ``sharded-optimizer``: its moves, and the models on which they are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from everyrank.fixtures.optimizers import row
from everyrank.suites.moves.model import named_traits, params_of, takes, with_each, without_each
from everyrank.suites.sharded_optimizer.arena import DROPS_REFUSED, NONE_IS_ZERO
from everyrank.suites.sharded_optimizer.geometry import chunks
from everyrank.suites.sharded_optimizer.model import Model, Param
from everyrank.suites.sharded_optimizer.moves_of_states import StateMoves
from everyrank.suites.sharded_optimizer.outline import FEATURES, Outline, needed_by

#: How a parameter is cut, for each rank of a world the length of its block, or None if it has none.
_CUTS: dict[str, tuple[int | None, ...]] = {
    "uneven": (2, 1, 2),
    "absent": (3, None, 2),
    "few": (1, 0, 0),
}

#: What a parameter is like: the parameters that stand for it. A cut one has no shape along the dimension of its cut.
_PARAMS: dict[str, tuple[Param, ...]] = {
    "cut": (Param("even", (-1, 2)),),
    "scalar": (Param("", ()),),
    "columns": (Param("uneven", (3, -1), dim=1),),
    "several": (Param("several", (-1, 2)),),
    "tied": (Param("uneven", (-1,), also="_again"),),
    "plain": (Param("", (3, 2)),),
    "absent": (Param("absent", (-1,)),),
    "transposed": (Param("", (3, 4), layout="transposed"),),
    "shared": (Param("", (3,), layout="shared"), Param("", (4,), layout="shared")),
    "frozen": (Param("uneven", (-1, 2), frozen=True),),
    "zero": (Param("uneven", (-1,), zero=True),),
    "large": (Param("large", (-1,)),),
    "permuted": (Param("permuted", (-1, 2)),),
    "empty": (Param("", (0, 2)),),
    "table": (Param("uneven", (-1, 2), table=True),),
    "few": (Param("few", (-1, 2)),),
    "frozen-whole": (Param("", (2,), frozen=True),),
    "whole-table": (Param("", (5, 2), table=True),),
    "again": (Param("", (3,), also="_again"),),
}

#: Optimizers that differ in what they keep; some look at the whole tensor, and two are subclasses.
_OPTIMIZERS = (
    "SGD-momentum",
    "Adam-everything",
    "SGD-lr",
    "Adafactor-defaults",
    "SGD-everything-signed",
    "Adagrad-lr",
    "LBFGS-defaults",
    "AdamW-defaults-unchanged",
    "RMSprop-everything",
    "Adadelta-defaults",
    "SGD-everything",
)

#: Those of the further crossings: two properties of one parameter, equal blocks of one rank, one element that is cut.
_OF_TWO: dict[str, tuple[Param, ...]] = {
    "permuted-columns": (Param("permuted", (3, -1), dim=1),),
    "few-columns": (Param("few", (3, -1), dim=1),),
    "equal": (Param("equal", (-1, 2)),),
    "equal-columns": (Param("equal", (2, -1), dim=1),),
    "elements": (Param("elements", (-1,)),),
    "element": (Param("element", (-1,)),),
    "whole-element": (Param("", (1,)),),
    "large-columns": (Param("large", (1, -1), dim=1, dtype="float32"),),
    "absent-zero": (Param("absent", (-1, 2), zero=True),),
    "again-transposed": (Param("", (3, 4), layout="transposed", also="_again"),),
    "frozen-several": (Param("several", (-1,), frozen=True),),
}

#: Parameters of other dtypes than the model's, and gradients with other values.
_OF_DTYPES: dict[str, tuple[Param, ...]] = {
    "bf16-tiny": (Param("uneven", (-1,), dtype="bfloat16", values="tiny"),),
    "fp16-huge": (Param("even", (-1, 2), dtype="float16", values="huge"),),
    "opposite": (Param("", (3, 2), values="opposite"),),
    "complex64": (Param("uneven", (-1, 2), dtype="complex64"),),
    "whole-fp16-huge": (Param("", (3,), dtype="float16", values="huge"),),
    "whole-complex": (Param("", (3, 2), dtype="complex128"),),
    "several-tiny": (Param("several", (-1,), values="tiny"),),
    "opposite-fp32": (Param("", (3,), dtype="float32", values="opposite"),),
    "whole-bf16-tiny": (Param("", (3, 2), dtype="bfloat16", values="tiny"),),
}

#: What a parameter is like in models for flows alone: two that are cut; one of another dtype than the others.
_FOR_FLOWS: dict[str, tuple[Param, ...]] = {
    "pair": (Param("even", (-1, 2)), Param("uneven", (-1,))),
    "fp32": (Param("even", (-1, 2), dtype="float32"),),
    "whole-fp32": (Param("", (3, 2), dtype="float32"),),
}

_EVERY_PARAM = {**_PARAMS, **_OF_TWO, **_OF_DTYPES, **_FOR_FLOWS}

#: Models for flows of state: in half of them each parameter is cut, so that a step may fail.
_FLOW_TRAITS = ("size", "optimizer", "param1", "param2", "param3", "groups", "home", "dtype")
_FLOWS = (
    (3, "Adam-everything", "cut", "pair", "several", "some", "", "float64"),
    (2, "SGD-everything", "pair", "fp32", "pair", "some", "", "float64"),
    (3, "AdamW-defaults-unchanged", "pair", "plain", "shared", "some", "module", "bfloat16"),
    (2, "SGD-momentum", "permuted", "pair", "pair", "some", "", "bfloat16"),
    (3, "RMSprop-everything", "pair", "zero", "shared", "some", "tool", "float32"),
    (2, "Adafactor-defaults", "plain", "fp32", "shared", "some", "", "float64"),
    (3, "Adadelta-defaults", "pair", "pair", "columns", "some", "module", "float64"),
    (2, "SGD-everything-signed", "pair", "whole-fp32", "shared", "some", "", "float64"),
    (3, "SGD-lr", "table", "pair", "whole-table", "some", "", "float64"),
    (3, "SGD-everything", "shared", "pair", "large", "some", "", "float64"),
    (2, "Adam-everything", "pair", "frozen", "pair", "some", "tool", "bfloat16"),
    (3, "Adagrad-lr", "whole-table", "table", "table", "some", "module", "float64"),
    (2, "Adam-everything", "shared", "pair", "shared", "some", "", "float32"),
    (3, "SGD-momentum", "pair", "pair", "pair", "some", "", "float64"),
)

_FLOWS_AGAIN = (
    (3, "SGD-momentum", "elements", "permuted-columns", "equal", "some", "", "float64"),
    (2, "Adam-everything", "equal", "element", "equal-columns", "some", "", "float64"),
    (2, "SGD-momentum", "fp16-huge", "pair", "whole-fp16-huge", "some", "", "float32"),
    (3, "Adam-tensor-lr", "few-columns", "elements", "cut", "some", "module", "float64"),
    (2, "Adam-everything", "bf16-tiny", "cut", "several-tiny", "some", "module", "float64"),
    (3, "SGD-momentum", "complex64", "opposite", "whole-complex", "some", "", "float64"),
    (2, "Adadelta-tensor-lr", "permuted-columns", "whole-element", "large-columns", "some", "", "float32"),
    (3, "Adadelta-defaults", "opposite", "opposite-fp32", "element", "some", "tool", "float64"),
    (2, "RMSprop-everything", "equal-columns", "again-transposed", "frozen-several", "some", "module", "float64"),
    (3, "SGD-everything", "permuted-columns", "equal", "absent-zero", "some", "", "float32"),
    (3, "SGD-momentum", "fp16-huge", "pair", "elements", "some", "", "float64"),
    (2, "AdamW-defaults-unchanged", "whole-bf16-tiny", "elements", "bf16-tiny", "some", "", "float64"),
    (3, "Adafactor-defaults", "permuted-columns", "elements", "equal", "some", "", "float64"),
    (2, "Adagrad-lr", "several-tiny", "elements", "few-columns", "some", "", "float64"),
)

#: Complex parameters with optimizers that count or keep numbers; groups of several parameters are added.
_FLOWS_LATER = (
    (2, "ASGD-defaults", "pair", "complex64", "plain", "some", "module", "float64"),
    (3, "Adam-everything", "whole-complex", "complex64", "pair", "some", "", "float64"),
    (2, "Adam-everything", "pair", "whole-complex", "columns", "some", "tool", "float64"),
    (3, "NAdam-defaults", "pair", "plain", "columns", "some", "", "float32"),
    (3, "Adagrad-lr", "complex64", "pair", "whole-complex", "some", "module", "float64"),
    (2, "SGD-momentum", "complex64", "elements", "pair", "some", "", "float64"),
)

#: Optimizers of which some look at the whole tensor: a subject may keep a copy of it.
_WHOLE = ("Adafactor-defaults", "SGD-everything-signed", "LBFGS-defaults", "SGD-momentum", "AdamW-defaults-unchanged")


class ShardedPlayer(StateMoves):
    """Subject and reference of ``sharded-optimizer``."""

    features = FEATURES
    claims = {
        NONE_IS_ZERO: frozenset({"gradients of some ranks"}),
        DROPS_REFUSED: frozenset({"groups that a rank refuses"}),
    }
    crossings = "crossings.txt"
    flows = named_traits(_FLOW_TRAITS, _FLOWS)
    flows_again = {
        layer: named_traits(_FLOW_TRAITS, models) for layer, models in ((2, _FLOWS_AGAIN), (3, _FLOWS_LATER))
    }
    flow_layer = 1
    flow_length = 36
    flows_from_start = True
    holes = {
        "buffer": "an optimizer has none",
        "scheduler": "the contract does not ask for schedulers",
        "generator": "no optimizer of torch draws numbers",
    }
    outline = Outline
    drawing = "everyrank.suites.sharded_optimizer.drawing:ModelDrawing"
    named_by = ("optimizer", "param1", "param2", "param3")
    kinds = (Model, Param)
    traits = {
        "size": (3, 2),
        "optimizer": _OPTIMIZERS,
        "param1": tuple(_PARAMS),
        "param2": tuple(_PARAMS),
        "param3": tuple(_PARAMS),
        "groups": ("", "some"),
        "home": ("", "tool", "module"),
        "dtype": ("float64", "float32"),
    }
    further = (
        {
            "optimizer": (*_OPTIMIZERS, "Adadelta-tensor-lr", "Adam-tensor-lr"),
            **{f"param{number}": (*_OF_TWO, "cut", "columns") for number in (1, 2, 3)},
        },
        {f"param{number}": (*_OF_DTYPES, "pair", "plain") for number in (1, 2, 3)},
        {},
        {"optimizer": _WHOLE, **{f"param{number}": ("cut", "columns", "plain", "several") for number in (1, 2, 3)}},
    )
    further_scripts = {3: 0, 4: 4}
    layers_alone = frozenset({4})
    layers_before_again = 3

    @classmethod
    def settled(cls, traits: Mapping[str, Any]) -> dict[str, Any]:
        """Return the traits without those that exclude each other."""
        found = dict(traits)
        params = [found["param1"], found["param2"], found["param3"]]
        if any("table" in param for param in params):
            found["dtype"] = "float64"
            if found["optimizer"] not in ("SGD-lr", "Adagrad-lr"):
                found["optimizer"] = "SGD-lr" if found["optimizer"].startswith("SGD") else "Adagrad-lr"
        elif found["optimizer"].startswith("Adafactor") and "empty" in params:
            found["optimizer"] = "SGD-momentum"  # torch.optim divides by the number of elements
        dtypes = {part.dtype for param in params for part in _EVERY_PARAM[param]}
        # The squares of what is huge in half precision are infinite, and few optimizers take complex parameters.
        if "float16" in dtypes and not found["optimizer"].startswith("SGD"):
            found["optimizer"] = "SGD-momentum"
        if any(dtype.startswith("complex") for dtype in dtypes) and not _takes_complex(found["optimizer"]):
            found["optimizer"] = "SGD-momentum"
        if "no-groups" in row(found["optimizer"].split("-")[0]).needs:
            found["groups"] = ""
        return found

    @classmethod
    def model_of(cls, traits: Mapping[str, Any], features: frozenset[str]) -> Model:
        optimizer, variant, subclass = _named(traits["optimizer"])
        able = set(features)
        if optimizer in ("Adafactor", "LBFGS") and "optimizers that look at the whole tensor" not in able:
            optimizer, variant = "SGD", "momentum"
        if optimizer == "LBFGS" and "closures" not in able:
            optimizer, variant = "SGD", "momentum"
        home = traits["home"] if "modules" in able else ""
        model = Model(
            size=traits["size"],
            params=(),
            optimizer=optimizer,
            variant=variant,
            subclass=subclass if "subclasses" in able else "",
            dtype=traits["dtype"] if traits["dtype"] != "bfloat16" or "bf16" in able else "float32",
            first=1 if traits["groups"] == "some" and "groups" in able else 8,
            module=bool(home),
        )
        params = [
            _made(param, f"{'inner.' if home and number == 2 else ''}{name}", model.size, home)
            for number, name, param in params_of(traits, _EVERY_PARAM)
        ]
        fitting = tuple(param for param in params if able.issuperset(needed_by(param, model)))
        return replace(model, params=fitting or (_made(_PARAMS["cut"][0], "p0", model.size, home),))

    @classmethod
    def needed(cls, model: Model) -> Iterator[str]:
        for param in model.params:
            yield from needed_by(param, model)

    @classmethod
    def simpler(cls, model: Model) -> Iterator[Model]:
        yield from without_each(model, least=1)
        yield replace(model, first=8)
        yield replace(model, subclass="")
        if (model.optimizer, model.variant) not in (("SGD", "lr"), ("SGD", "momentum")):
            yield replace(model, optimizer="SGD", variant="lr")
            yield replace(model, optimizer="SGD", variant="momentum")
        yield replace(model, dtype="float64")
        untooled = tuple(replace(param, tool=False) for param in model.params)
        yield replace(model, module=False, params=untooled)
        yield from with_each(model, _simpler)


def _named(optimizer: str) -> tuple[str, str, str]:
    """Return the row, the variant and the subclass of an optimizer that a trait names."""
    name, _, variant = optimizer.partition("-")
    for subclass in ("signed", "unchanged"):
        if variant.endswith(f"-{subclass}"):
            return name, variant.removesuffix(f"-{subclass}"), subclass
    return name, variant, ""


def _takes_complex(optimizer: str) -> bool:
    name, variant, subclass = _named(optimizer)
    return not subclass and "closure" not in row(name).needs and takes(f"{name}-{variant}", "complex")


def _simpler(param: Param) -> Iterator[Param]:
    for plainer in (Param(param.name, (2,)), replace(param, shape=param.shape[:1] or (2,), also="")):
        if plainer.tool == param.tool and not param.dim:
            yield plainer


def _made(param: Param, name: str, size: int, home: str) -> Param:
    """Return a parameter with its name and its cut, for a world of this size."""
    cut = _cut(param.name, size)
    if home == "tool" and cut is not None and not param.table:
        length = sum(part for _, part in cut)
        cut = tuple(enumerate(chunks(max(length, size), size)))
    tool = home == "tool" and cut is not None and not param.table
    shape = param.shape
    if cut is not None:
        shape = tuple(sum(part for _, part in cut) if length < 0 else length for length in shape)
    also = f"{name}{param.also}" if param.also and (tool or not home or cut is None) else ""
    return replace(param, name=name, shape=shape, cut=cut, tool=tool, also=also)


def _cut(kind: str, size: int) -> tuple[tuple[int, int], ...] | None:
    """Return rank and length of each block of a cut of this kind; None if there is none."""
    if not kind:
        return None
    ranks = range(size)
    if kind == "even":
        return tuple((rank, 2) for rank in ranks)
    if kind == "several":
        return tuple((number % size, 1 + number % 2) for number in range(2 * size))
    if kind == "large":
        return tuple((rank, 1031) for rank in ranks)
    if kind == "equal":
        return tuple((rank, 2) for rank in (*ranks, *ranks))
    if kind == "elements":
        return tuple((rank, 1) for rank in ranks)
    if kind == "element":
        return tuple((rank, int(rank == size - 1)) for rank in ranks)
    if kind == "permuted":
        return tuple(((rank + 1) % size, 2 + rank % 2) for rank in ranks)
    lengths = _CUTS[kind][:size]
    return tuple((rank, length) for rank, length in enumerate(lengths) if length is not None)
