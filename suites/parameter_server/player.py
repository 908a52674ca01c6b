"""The player of ``parameter-server``: its moves, and the models on which they are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from everyrank.suites.moves.model import (
    PARAMS,
    named_traits,
    params_of,
    placed,
    takes,
    with_each,
    without_each,
    without_two_kinds,
)
from everyrank.suites.parameter_server.arena import BLOCKS
from everyrank.suites.parameter_server.model import Model, Param
from everyrank.suites.parameter_server.moves_of_meetings import MeetingMoves
from everyrank.suites.parameter_server.outline import FEATURES, Outline, needed_by
from everyrank.suites.parameter_server.points import AGENT

#: What a parameter is like: the parameters that stand for it.
_PARAMS: dict[str, tuple[Param, ...]] = {
    **{name: PARAMS[name] for name in ("plain", "scalar", "transposed", "gaps", "shared", "tied")},
    "frozen": (Param("", (2,), frozen=True),),
    **{name: PARAMS[name] for name in ("large", "empty", "row", "zero")},
    "sparse": (Param("", (4, 2), sparse=True),),
    **{name: PARAMS[name] for name in ("fp32", "complex")},
}

#: Those of a later layer alone.
_LATER: dict[str, tuple[Param, ...]] = {"element": (Param("", (1,)),)}

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

#: More trainers than bits of a byte. The mean of ten exact gradients is exact.
_TEN = {"ten": (None,) * 10}

#: A model for flows of state: its rounds expire, and take any value.
_FLOW_TRAITS = ("size", "trainers", "optimizer", "param1", "param2", "param3", "limit", "home")
_FLOWS = (1, "three", "Adam-defaults", "plain", "scalar", "fp32", "expires-any-value", "")

#: Models on which all flows come again, with what layers have.
_FLOWS_AGAIN = (
    (1, "ten", "SGD-momentum", "plain", "fp32", "shared", "", "modules"),
    (1, "three", "SGD-lr", "sparse", "plain", "scalar", "finite", "modules"),
    (1, "two", "AdamW-weight-decay", "plain", "fp32", "large", "finite", ""),
    (3, "three", "SGD-everything", "plain", "transposed", "row", "finite", ""),
    (1, "four", "Adagrad-defaults", "sparse", "sparse", "plain", "", "modules"),
    (1, "three", "Adam-defaults", "tied", "frozen", "complex", "finite", "modules"),
    (1, "two", "SGD-momentum", "gaps", "shared", "empty", "any-value", ""),
    (3, "ten", "RMSprop-defaults", "scalar", "zero", "plain", "", "modules"),
)


class ServerPlayer(MeetingMoves):
    """Subject and reference of ``parameter-server``."""

    features = FEATURES
    choices = {BLOCKS: frozenset({"reports again"})}  # nobody knows when it has a report
    crossings = "crossings.txt"
    holes = {
        "option": "the contract gives no access to the optimizer on the server",
        "group": "the contract gives no access to the optimizer on the server",
        "scheduler": "the contract gives no access to the optimizer on the server",
        "generator": "a server computes no forward",
        "hook": "the contract gives no access to the optimizer on the server",
        "saved state": "the contract does not ask for states",
    }
    flows = named_traits(_FLOW_TRAITS, [_FLOWS])
    flows_again = {1: named_traits(_FLOW_TRAITS, _FLOWS_AGAIN)}
    flow_length = 36
    layers_before_again = 1
    further = (
        {"trainers": ("ten", "three", "two"), "home": ("modules", "")},
        {
            "trainers": ("three", "two", "four"),
            "optimizer": _OPTIMIZERS[:6],
            "limit": ("expires", "expires-any-value"),
        },
        {"limit": ("", "finite", "any-value")},
        {
            "optimizer": ("SGD-momentum", "Adam-defaults", "AdamW-weight-decay", "SGD-everything"),
            "param3": (*_LATER, "plain", "fp32"),
        },
    )
    further_scripts = {2: 8, 3: 9, 4: 5}
    layers_alone = frozenset({2, 3, 4})
    outline = Outline
    drawing = "everyrank.suites.parameter_server.drawing:ModelDrawing"
    named_by = ("optimizer", "param1", "param2", "param3")
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
    def fixtures_for(cls, size: int) -> tuple[str, ...]:
        return AGENT if size > 1 else ()

    @classmethod
    def settled(cls, traits: Mapping[str, Any]) -> dict[str, Any]:
        """Return the traits without those that exclude each other."""
        found, special = without_two_kinds(traits, ("sparse", "complex"))
        if not takes(found["optimizer"], special):
            found["optimizer"] = "SGD-lr"
        params = [found["param1"], found["param2"], found["param3"]]
        if "gaps" in params and not traits["optimizer"].startswith("SGD-"):
            # The server chooses which kernels run on a parameter with gaps, and whether on a copy: only those of SGD
            # are known to give the same values.
            found["optimizer"] = "SGD-lr" if special else "SGD-momentum"
        return found

    @classmethod
    def model_of(cls, traits: Mapping[str, Any], features: frozenset[str]) -> Model:
        able = set(features)
        optimizer, variant = traits["optimizer"].split("-", 1)
        if f"{optimizer} {variant}" not in able:
            optimizer, variant = "SGD", "lr"
        trainers = traits["trainers"] if traits["trainers"] != "ten" or "many trainers" in able else "three"
        far = traits["size"] > 1 and "trainers on other workers" in able
        limit = traits["limit"]
        finite = {"finite": False, "any-value": True if "values that are not finite" in able else None}
        model = Model(
            size=traits["size"],
            params=(),
            trainers={**(_FAR if far else _NEAR), **_TEN}[trainers],
            optimizer=optimizer,
            variant=variant,
            non_finite=finite.get(limit.removeprefix("expires-")),
            expires=limit.startswith("expires") and "expired rounds" in able,
            keeps="answers that are kept or changed" in able,
            buffer=bool(traits["home"]) and "buffers" in able,
        )
        params = [
            placed(param, name, "inner." if traits["home"] and number == 2 else "")
            for number, name, param in params_of(traits, _PARAMS | _LATER)
        ]
        fitting = tuple(param for param in params if able.issuperset(needed_by(param, model)))
        return replace(model, params=fitting or (placed(_PARAMS["plain"][0], "p0"),))

    @classmethod
    def needed(cls, model: Model) -> Iterator[str]:
        for param in model.params:
            yield from needed_by(param, model)

    @classmethod
    def simpler(cls, model: Model) -> Iterator[Model]:
        yield from without_each(model, least=1)
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
        yield from with_each(model, lambda param: [Param(param.name.rpartition(".")[2], (2,))])
