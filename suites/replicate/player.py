"""The player of ``replicate``: its moves, and the models on which they are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from everyrank.suites.arena.groups import NAMES_RANKS
from everyrank.suites.moves.model import PARAMS, named_traits, params_of, placed, plain, with_each, without_each
from everyrank.suites.replicate.model import BUFFERS, MORE_BUFFERS, Buffer, Model, Param
from everyrank.suites.replicate.moves_of_modules import ApartMoves
from everyrank.suites.replicate.outline import BUILT, FEATURES, Outline
from everyrank.suites.trainer.outline import needed_by_itself

#: In which module each of three parameters is: of the whole, or of the parts that are replicated or ignored.
_HOMES = {
    "": ("", "inner.", "other.deep."),
    "apart": ("inner.", "other.deep.", "inner."),
    "ignored": ("inner.", "", "other."),
}

#: What a parameter is like, in crossings of any layer: further ones have two properties, or a narrow dtype.
_PARAMS = PARAMS | {
    "complex-transposed": (Param("", (3, 4), "transposed", dtype="complex128"),),
    "complex64-gaps": (Param("", (3, 2), "gaps", dtype="complex64"),),
    "complex64": (Param("", (2,), dtype="complex64"),),
    "fp32-transposed": (Param("", (4, 3), "transposed", dtype="float32"),),
    "fp16": (Param("", (3,), dtype="float16"),),
    "huge": (Param("", (2, 3), dtype="float16", huge=True),),
    "bf16-large": (Param("", (1031,), dtype="bfloat16"),),
    "fp32-tied": (Param("", (3,), dtype="float32", also="_again"),),
    "frozen-transposed": (Param("", (3, 2), "transposed", frozen=True),),
    "equal": (Param("", (3, 2)), Param("", (3, 2))),
}

#: Those of further crossings.
_FURTHER = (*(name for name in _PARAMS if name not in PARAMS), "plain", "unused", "empty", "sparse")

#: Dtypes in which Adam divides zero by zero.
_NARROW = {"fp16", "huge", "bf16-large"}

#: More than one chunk of 2**20 elements, and not a multiple of it. Draws alone have it: it takes its time.
_PAGE = Param("", (2**20 + 3,))

#: Models for flows of state.
_FLOW_TRAITS = ("size", "param1", "param2", "param3", "built", "buffers", "optimizer", "asked")
_FLOWS = (
    (3, "plain", "scalar", "row", "", "counts", "Adam", True),
    (2, "transposed", "tied", "shared", "own-buffers", "gaps", "momentum", True),
    (3, "frozen", "unused", "large", "small-buckets", "counts", "SGD", True),
)


class ReplicatePlayer(ApartMoves):
    """Subject and reference of ``replicate``."""

    features = FEATURES
    claims = {NAMES_RANKS: frozenset({"errors", "idle ranks"})}
    crossings = "crossings.txt"
    holes = {
        "step count": "the optimizers are plain torch.optim's, which no subject has",
        "option": "the optimizers are plain torch.optim's, which no subject has",
        "group": "the optimizers are plain torch.optim's, which no subject has",
        "scheduler": "the optimizers are plain torch.optim's, which no subject has",
        "generator": "open: no model draws numbers, as dropout does",
    }
    flows = named_traits(_FLOW_TRAITS, _FLOWS)
    flow_layer = 1
    flow_length = 36
    flows_from_start = True
    outline = Outline
    named_by = ("built", "param1", "param2", "param3")
    called = {"": "whole"}
    kinds = (Model, Param, Buffer)
    traits = {
        "size": (3, 2),
        "param1": tuple(PARAMS),
        "param2": tuple(PARAMS),
        "param3": tuple(PARAMS),
        "built": tuple(BUILT),
        "buffers": tuple(BUFFERS),
        "optimizer": ("SGD", "momentum", "Adam"),
        "asked": (True, False),
    }

    further = (
        {"param1": _FURTHER, "param2": _FURTHER, "param3": _FURTHER, "buffers": ("batches", "narrow", "")},
        {},
        {},
        {"buffers": ("unsaved", "counts", ""), "child": ("submodule.",), "asked": (True,)},
    )

    @classmethod
    def settled(cls, traits: Mapping[str, Any]) -> dict[str, Any]:
        """Return the traits without those that exclude each other."""
        found = dict(traits)
        params = [found["param1"], found["param2"], found["param3"]]
        if found["built"] == "static-graph" and "unused" in params:
            found["built"] = ""
        if "sparse" in params:
            found["optimizer"] = "SGD"  # the others refuse sparse gradients
        elif _NARROW.intersection(params) and found["optimizer"] == "Adam":
            found["optimizer"] = "momentum"
        if found["built"] == "apart":
            found["buffers"] = ""  # the whole module has them, which is not replicated
        elif found["built"] == "own-buffers" and not found["buffers"]:
            found["buffers"] = "counts"
        found["asked"] = "unused" in params or (found["asked"] and found["built"] != "static-graph")
        return found

    @classmethod
    def model_of(cls, traits: Mapping[str, Any], features: frozenset[str]) -> Model:
        size, built = traits["size"], traits["built"]
        if BUILT[built] and BUILT[built] not in features:
            built = ""
        child = traits.get("child", "")
        homes = tuple(f"{home}{child}" for home in _homes(built))
        params = [
            placed(param, name, homes[number - 1], homes[number - 1] if built in _HOMES and built else child)
            for number, name, param in params_of(traits, _PARAMS)
            if features.issuperset(_needed(param, size))
        ]
        return Model(
            size=size,
            params=tuple(params),
            buffers=MORE_BUFFERS[traits["buffers"]] if "buffers" in features else (),
            optimizer=traits["optimizer"],
            built=built,
            asked=traits["asked"] and "unused parameters" in features,
            equal_at_once="values as they are built" in features,
        )

    @classmethod
    def needed(cls, model: Model) -> Iterator[str]:
        if BUILT[model.built]:
            yield BUILT[model.built]
        for param in model.params:
            yield from _needed(param, model.size)

    @classmethod
    def draw_model(cls, drawing: Any) -> Model:
        model: Model = super().draw_model(drawing)
        if drawing.sometimes("large parameters") and drawing.chance(5):
            return replace(model, params=(*model.params, placed(_PAGE, "page", _homes(model.built)[0])))
        return model

    @classmethod
    def simpler(cls, model: Model) -> Iterator[Model]:
        yield from without_each(model)
        yield replace(model, built="")
        yield replace(model, buffers=())
        yield replace(model, optimizer="SGD")
        if not any(param.unused for param in model.params):
            yield replace(model, asked=False)
        yield from with_each(model, plain)


def _needed(param: Param, size: int) -> Iterator[str]:
    yield from needed_by_itself(param, size)
    if param.huge:
        yield "gradients near the largest number"


def _homes(built: str) -> tuple[str, ...]:
    return _HOMES.get(built, _HOMES[""])
