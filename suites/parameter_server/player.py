"""The player of ``parameter-server``: its moves, and the models on which they are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from everyrank.fixtures.optimizers import row
from everyrank.suites.parameter_server.model import Model, Param
from everyrank.suites.parameter_server.moves_of_meetings import MeetingMoves
from everyrank.suites.parameter_server.outline import FEATURES, Outline, needed_by
from everyrank.suites.parameter_server.points import AGENT

#: What a parameter is like: the parameters that stand for it.
_PARAMS: dict[str, tuple[Param, ...]] = {
    "plain": (Param("", (3, 2)),),
    "scalar": (Param("", ()),),
    "transposed": (Param("", (3, 4), "transposed"),),
    "gaps": (Param("", (3, 2), "gaps"),),
    "shared": (Param("", (3,), "shared"), Param("", (4,), "shared")),
    "tied": (Param("", (3,), also="_again"),),
    "frozen": (Param("", (2,), frozen=True),),
    "large": (Param("", (1031,)),),
    "empty": (Param("", (0, 2)),),
    "row": (Param("", (1, 3)),),
    "zero": (Param("", (3,), zero=True),),
    "sparse": (Param("", (4, 2), sparse=True),),
    "fp32": (Param("", (3,), dtype="float32"),),
    "complex": (Param("", (3,), dtype="complex128"),),
}

#: Optimizers that differ in what they keep, and in their groups.
_OPTIMIZERS = (
    "SGD-momentum",
    "Adam-defaults",
    "SGD-groups",
    "AdamW-weight-decay",
    "SGD-lr",
    "Adagrad-defaults",
    "RMSprop-defaults",
    "Adadelta-defaults",
    "SGD-everything",
)

#: The trainers in the server's process, and those of a world of three ranks.
_NEAR = {"two": (None,) * 2, "three": (None,) * 3, "four": (None,) * 4, "one": (None,)}
_FAR = {"two": (1, 2), "three": (None, 2, None), "four": (0, None, 1, None), "one": (1,)}


class ServerPlayer(MeetingMoves):
    """Subject and reference of ``parameter-server``."""

    features = FEATURES
    crossings = "crossings.txt"
    kinds = (Model, Param)
    traits = {
        "size": (1, 3),
        "trainers": tuple(_NEAR),
        "optimizer": _OPTIMIZERS,
        "param1": tuple(_PARAMS),
        "param2": tuple(_PARAMS),
        "param3": tuple(_PARAMS),
        "limit": ("", "finite", "expires", "any-value"),
        "home": ("", "modules"),
    }

    @classmethod
    def outline(cls, model: Model) -> Outline:
        return Outline(model)

    @classmethod
    def fixtures_for(cls, size: int) -> tuple[str, ...]:
        return AGENT if size > 1 else ()

    @classmethod
    def settled(cls, traits: Mapping[str, Any]) -> dict[str, Any]:
        """Return the traits without those that exclude each other."""
        found = dict(traits)
        params = {name: found[name] for name in ("param1", "param2", "param3")}
        special = [kind for kind in params.values() if kind in ("sparse", "complex")]
        for name, kind in params.items():
            if kind in special and kind != special[0]:
                found[name] = "plain"  # no optimizer takes both
        optimizer, variant = found["optimizer"].split("-", 1)
        taken = special[0] if special else ""
        if taken and (taken not in row(optimizer).takes or taken in row(optimizer).variant(variant).refuses):
            found["optimizer"] = "SGD-lr"
        if "gaps" in params.values() and optimizer != "SGD":
            # The server chooses which kernels run on a parameter with gaps, and whether on a copy: only those of SGD
            # are known to give the same values.
            found["optimizer"] = "SGD-lr" if taken else "SGD-momentum"
        return found

    @classmethod
    def model_of(cls, traits: Mapping[str, Any], features: frozenset[str]) -> Model:
        able = set(features)
        optimizer, variant = traits["optimizer"].split("-", 1)
        if f"{optimizer} {variant}" not in able:
            optimizer, variant = "SGD", "lr"
        far = traits["size"] > 1 and "trainers on other workers" in able
        limit = traits["limit"]
        finite = {"finite": False, "any-value": True if "values that are not finite" in able else None}
        model = Model(
            size=traits["size"],
            params=(),
            trainers=(_FAR if far else _NEAR)[traits["trainers"]],
            optimizer=optimizer,
            variant=variant,
            non_finite=finite.get(limit),
            expires=limit == "expires" and "expired rounds" in able,
            keeps="answers that are kept or changed" in able,
            buffer=bool(traits["home"]) and "buffers" in able,
        )
        params = [
            _made(param, f"{'inner.' if traits['home'] and number == 2 else ''}p{number}{part}")
            for number in (1, 2, 3)
            for part, param in zip("ab", _PARAMS[traits[f"param{number}"]], strict=False)
        ]
        fitting = tuple(param for param in params if able.issuperset(needed_by(param, model)))
        return replace(model, params=fitting or (_made(_PARAMS["plain"][0], "p0"),))

    @classmethod
    def needed(cls, model: Model) -> Iterator[str]:
        for param in model.params:
            yield from needed_by(param, model)

    @classmethod
    def label(cls, traits: Mapping[str, Any]) -> str:
        params = [traits[name] for name in ("param1", "param2", "param3")]
        return "-".join((traits["optimizer"].split("-")[0], *params))

    @classmethod
    def draw_model(cls, drawing: Any) -> Model:
        from everyrank.suites.parameter_server.drawing import ModelDrawing

        return ModelDrawing(drawing.draw, drawing.size, drawing.features).make()

    @classmethod
    def simpler(cls, model: Model) -> Iterator[Model]:
        if len(model.params) > 1:
            for number in range(len(model.params)):
                yield replace(model, params=model.params[:number] + model.params[number + 1 :])
        yield replace(model, optimizer="SGD", variant="lr")
        yield replace(model, optimizer="SGD", variant="momentum")
        for count in (1, 2, 3):
            if count < len(model.trainers):
                yield replace(model, trainers=model.trainers[:count])
        yield replace(model, trainers=(None,) * len(model.trainers))
        yield replace(model, non_finite=None)
        yield replace(model, expires=False)
        yield replace(model, keeps=False)
        yield replace(model, buffer=False)
        for number, param in enumerate(model.params):
            plain = Param(param.name.rpartition(".")[2], (2,))
            yield replace(model, params=(*model.params[:number], plain, *model.params[number + 1 :]))


def _made(param: Param, name: str) -> Param:
    return replace(param, name=name, also=param.also and f"{name.rpartition('.')[2]}{param.also}")
