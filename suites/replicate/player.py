"""The player of ``replicate``: its moves, and the models on which they are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from everyrank.suites.arena.groups import NAMES_RANKS
from everyrank.suites.replicate.model import BUFFERS, Buffer, Model, Param
from everyrank.suites.replicate.moves_of_modules import ApartMoves
from everyrank.suites.replicate.outline import BUILT, FEATURES, Outline
from everyrank.suites.trainer.model import PARAMS
from everyrank.suites.trainer.outline import needed_by_itself

#: In which module each of three parameters is: of the whole, or of the parts that are replicated or ignored.
_HOMES = {
    "": ("", "inner.", "other.deep."),
    "apart": ("inner.", "other.deep.", "inner."),
    "ignored": ("inner.", "", "other."),
}

#: More than one chunk of 2**20 elements, and not a multiple of it. Draws alone have it: it takes its time.
_PAGE = Param("", (2**20 + 3,))


class ReplicatePlayer(ApartMoves):
    """Subject and reference of ``replicate``."""

    features = FEATURES
    claims = {NAMES_RANKS: frozenset({"errors", "idle ranks"})}
    crossings = "crossings.txt"
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

    @classmethod
    def outline(cls, model: Model) -> Outline:
        return Outline(model)

    @classmethod
    def settled(cls, traits: Mapping[str, Any]) -> dict[str, Any]:
        """Return the traits without those that exclude each other."""
        found = dict(traits)
        params = [found["param1"], found["param2"], found["param3"]]
        if found["built"] == "static-graph" and "unused" in params:
            found["built"] = ""
        if "sparse" in params:
            found["optimizer"] = "SGD"  # the others refuse sparse gradients
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
        homes = _homes(built)
        params = [
            _placed(param, f"p{number}{part}", home, "" if homes == _HOMES[""] else home)
            for number, home in enumerate(homes, 1)
            for part, param in zip("ab", PARAMS[traits[f"param{number}"]], strict=False)
            if features.issuperset(needed_by_itself(param, size))
        ]
        return Model(
            size=size,
            params=tuple(params),
            buffers=BUFFERS[traits["buffers"]] if "buffers" in features else (),
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
            yield from needed_by_itself(param, model.size)

    @classmethod
    def label(cls, traits: Mapping[str, Any]) -> str:
        params = [traits[name] for name in ("param1", "param2", "param3")]
        return "-".join((traits["built"] or "whole", *params))

    @classmethod
    def draw_model(cls, drawing: Any) -> Model:
        model: Model = super().draw_model(drawing)
        if drawing.sometimes("large parameters") and drawing.chance(5):
            return replace(model, params=(*model.params, _placed(_PAGE, "page", _homes(model.built)[0])))
        return model

    @classmethod
    def simpler(cls, model: Model) -> Iterator[Model]:
        for number in range(len(model.params)):
            yield replace(model, params=model.params[:number] + model.params[number + 1 :])
        yield replace(model, built="")
        yield replace(model, buffers=())
        yield replace(model, optimizer="SGD")
        if not any(param.unused for param in model.params):
            yield replace(model, asked=False)
        for number, param in enumerate(model.params):
            plain = Param(param.name, (2,))
            yield replace(model, params=(*model.params[:number], plain, *model.params[number + 1 :]))


def _homes(built: str) -> tuple[str, ...]:
    return _HOMES.get(built, _HOMES[""])


def _placed(param: Param, name: str, home: str, home_of_second: str = "") -> Param:
    also = f"{home_of_second}{name}{param.also}" if param.also else ""
    return replace(param, name=f"{home}{name}", also=also)
