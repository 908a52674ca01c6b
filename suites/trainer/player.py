"""The player of ``trainer``: its moves, and the models on which they are made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from everyrank.fixtures.optimizers import row
from everyrank.suites.arena.groups import NAMES_RANKS, own_group
from everyrank.suites.moves.model import (
    PARAMS,
    named_traits,
    params_of,
    placed,
    plain,
    takes,
    with_each,
    without_each,
    without_two_kinds,
)
from everyrank.suites.trainer.arena import SAME_COUNT, SAME_GRAPH, SETS_MODES, TRUSTS_INIT, TRUSTS_ORDER
from everyrank.suites.trainer.features import FEATURES, OPTIMIZERS
from everyrank.suites.trainer.model import Group, Model, Param
from everyrank.suites.trainer.moves_of_states import ApartMoves
from everyrank.suites.trainer.outline import Outline, needed_by

#: Optimizers that differ in what they keep: nothing, a buffer that comes with the second step, counts, sums, ...
_OPTIMIZERS = (
    "SGD-lr",
    "SGD-momentum",
    "Adam-everything",
    "SGD-everything",
    "AdamW-defaults",
    "Adagrad-lr",
    "RMSprop-everything",
    "Adadelta-defaults",
    "ASGD-defaults",
)

#: Optimizers that evaluate the loss several times a step.
_CLOSURES = ("LBFGS-everything",)

#: What a parameter is like, in crossings of any layer.
_PARAMS = PARAMS | {
    "cancels": (Param("", (3,), cancels=True),),
    "complex-scalar": (Param("", (), dtype="complex128"),),
    "complex-transposed": (Param("", (3, 4), "transposed", dtype="complex128"),),
    "complex64": (Param("", (3,), dtype="complex64"),),
    "large-fp32": (Param("", (1031,), dtype="float32"),),
    "complex-row": (Param("", (1, 3), dtype="complex128"),),
    "fp32-row": (Param("", (1, 3), dtype="float32"),),
    "bf16": (Param("", (3,), dtype="bfloat16"),),
    # A gradient of zero has no error, which would hide one in the norm.
    "fp32-zero": (Param("", (3,), dtype="float32", zero=True),),
    "bf16-zero": (Param("", (3,), dtype="bfloat16", zero=True),),
    "none": (),
}

#: The kinds that those with two properties are of.
_LIKE = {
    "complex-scalar": "complex",
    "complex-transposed": "complex",
    "complex64": "fp32",
    "large-fp32": "fp32",
    "complex-row": "complex",
}

#: Those of further crossings: beside a coarse sum and beside sparse gradients only optimizers without a state go.
_USUAL = (*(name for name in PARAMS if name not in ("fp32", "sparse")), "cancels")

#: Those of the third layer.
_UNUSUAL = (*_USUAL, "complex-scalar", "complex-transposed", "complex64", "large-fp32")

#: Those whose gradients can be clipped, whatever the optimizer: none is complex.
_CLIPPED = tuple(name for name in _USUAL if name != "complex")

#: What torch's LBFGS takes: it views each gradient as a line.
_EVALUATED = ("plain", "scalar", "gaps", "shared", "tied", "zero", "empty", "row")

#: How the parameters are grouped: not at all; in two groups; in one, so that the others are added.
_GROUPS = ("", "two", "some")

#: Those of the third layer: two whose options are zero; one, so that a state is saved before the others are added.
_FURTHER_GROUPS = (*_GROUPS, "zeros", "later")

#: What differs between the ranks as they start.
_STARTS = ("alike", "values", "buffers", "orders")

#: Models for flows of state: each of their optimizers keeps something, and no parameter excludes another optimizer.
_FLOW_TRAITS = ("size", "optimizer", "param1", "param2", "param3", "groups", "start", "layers")
_FLOWS = (
    (3, "Adam-everything", "plain", "scalar", "row", "two", "values", "one"),
    (2, "SGD-momentum", "frozen", "shared", "row", "", "buffers", "two"),
    (3, "AdamW-defaults", "transposed", "zero", "unused", "two", "orders", "one"),
    (2, "Adagrad-lr", "large", "gaps", "plain", "", "alike", "two"),
    (3, "RMSprop-everything", "empty", "frozen", "scalar", "two", "buffers", "one"),
    (2, "Adadelta-defaults", "tied", "transposed", "zero", "", "values", "two"),
    (3, "ASGD-defaults", "shared", "unused", "large", "two", "alike", "one"),
    (2, "SGD-everything", "row", "plain", "gaps", "", "orders", "two"),
)


#: The features of a subject whose user may ask for the state after any move.
_STATES = (
    frozenset(feature for feature in FEATURES if feature == "states" or feature.startswith("states of "))
    - {f"states of {row.name}" for row in OPTIMIZERS}
    - {"states of some groups", "states of the first rank"}
)
_STATES |= {"states in between"}

#: The models for flows of the third layer.
_FURTHER_TRAITS = (*_FLOW_TRAITS, "values", "watched")
_FURTHER_FLOWS = (
    (3, "Adam-everything", "plain", "scalar", "row", "later", "counts", "one", "", True),
    (2, "SGD-momentum", "plain", "transposed", "row", "", "counts", "two", "equal", True),
    (3, "AdamW-defaults", "large", "zero", "plain", "zeros", "values", "one", "", True),
    (2, "Adagrad-lr", "shared", "complex-scalar", "plain", "later", "buffers", "two", "", False),
    (3, "RMSprop-everything", "gaps", "row", "scalar", "zeros", "counts", "one", "equal", True),
    (2, "Adadelta-defaults", "row", "complex-transposed", "zero", "later", "alike", "two", "", True),
    (3, "SGD-everything", "plain", "unused", "cancels", "two", "buffers", "one", "", False),
    (2, "ASGD-defaults", "large", "scalar", "plain", "zeros", "orders", "two", "", True),
)

#: Those for flows to a parameter that is used later than others.
_FLOWS_OF_USE = (
    (3, "Adam-everything", "unused", "frozen", "unused", "two", "alike", "one", "", False),
    (2, "SGD-momentum", "unused", "unused", "frozen", "", "values", "two", "", False),
    (3, "RMSprop-everything", "frozen", "unused", "frozen", "", "alike", "one", "", False),
    (2, "AdamW-defaults", "unused", "frozen", "unused", "two", "buffers", "one", "", False),
    (3, "Adagrad-lr", "frozen", "unused", "unused", "", "alike", "two", "", False),
)

#: Those for flows to a group that is added after a load, and for the position in an epoch.
_FLOWS_OF_POSITIONS = (
    (2, "SGD-momentum", "plain", "transposed", "scalar", "", "alike", "one", "", False),
    (3, "Adam-everything", "row", "plain", "unused", "two", "values", "two", "", False),
    (3, "Adam-everything", "plain", "scalar", "plain", "later", "alike", "one", "", False),
    (2, "SGD-everything", "row", "plain", "plain", "later", "values", "two", "", False),
    (3, "AdamW-defaults", "transposed", "plain", "scalar", "later", "alike", "one", "", False),
)


#: Those of several dtypes, whose optimizer keeps something: on two ranks a coarse sum has the same bits anywhere.
_FLOWS_OF_DTYPES = (
    (2, "SGD-momentum", "fp32-row", "frozen", "plain", "", "alike", "one", "", False),
    (2, "Adam-everything", "bf16", "complex-row", "frozen", "", "values", "two", "", False),
    (2, "SGD-everything", "fp32-row", "bf16", "frozen", "", "buffers", "one", "", False),
)
#: That for flows to what a step draws.
_FLOWS_OF_GENERATORS = ((2, "SGD-momentum", "plain", "scalar", "row", "", "values", "one", "", False, True),)
#: That for flows of what an optimizer keeps of a parameter while this is frozen.
_FLOWS_OF_FROZEN = ((2, "SGD-momentum", "plain", "scalar", "row", "two", "values", "one", "", False),)
#: That for flows of rates that are tensors, with a first parameter of single precision.
_FLOWS_OF_TENSORS = ((2, "SGD-momentum", "fp32-zero", "plain", "scalar", "tensors", "values", "last", "", False),)
#: What a subject is not asked for whose ranks must go through as many microbatches.
_ONE_COUNT = frozenset({"other numbers of microbatches on other ranks"})


class TrainerPlayer(ApartMoves):
    """Subject and reference of ``trainer``."""

    features = FEATURES
    features_since = {"clipping of complex parameters": 8, "generators": 9}
    claims = {NAMES_RANKS: frozenset({"errors", "training after errors of a rank"})}
    choices = {
        TRUSTS_INIT: frozenset({"own values", "own frozen values", "own buffers"}),
        TRUSTS_ORDER: frozenset({"orders of registration"}),
        SAME_GRAPH: _ONE_COUNT | {"parameters that some ranks use", "microbatches of some ranks"},
        SAME_COUNT: _ONE_COUNT,
        SETS_MODES: frozenset({"modes of parts"}),
    }
    crossings = "crossings.txt"
    flows = named_traits(_FLOW_TRAITS, _FLOWS)
    further_flows: ClassVar[Mapping[int, tuple[Mapping[str, Any], ...]]] = {
        3: named_traits(_FURTHER_TRAITS, _FURTHER_FLOWS),
        5: named_traits(_FURTHER_TRAITS, _FLOWS_OF_USE),
        7: named_traits(_FURTHER_TRAITS, _FLOWS_OF_POSITIONS),
        8: named_traits(_FURTHER_TRAITS, _FLOWS_OF_DTYPES),
        10: named_traits((*_FURTHER_TRAITS, "draws"), _FLOWS_OF_GENERATORS),
        12: named_traits(_FURTHER_TRAITS, _FLOWS_OF_FROZEN),
        13: named_traits(_FURTHER_TRAITS, _FLOWS_OF_TENSORS),
    }
    outline = Outline
    drawing = "everyrank.suites.trainer.drawing:ModelDrawing"
    named_by = ("optimizer", "param1", "param2", "param3")
    kinds = (Model, Param, Group)
    traits = {
        "size": (3, 2),
        "optimizer": _OPTIMIZERS,
        "param1": tuple(PARAMS),
        "param2": tuple(PARAMS),
        "param3": tuple(PARAMS),
        "groups": _GROUPS,
        "start": _STARTS,
        "layers": ("one", "two"),
    }

    further: ClassVar[tuple[Mapping[str, tuple[Any, ...]], ...]] = (
        {"param1": _USUAL, "param2": _USUAL, "param3": _USUAL, "values": ("", "edges")},
        {"start": (*_STARTS, "counts"), "watched": (False, True)},
        {
            "param1": _UNUSUAL,
            "param2": _UNUSUAL,
            "param3": _UNUSUAL,
            "groups": _FURTHER_GROUPS,
            "values": ("", "edges", "equal"),
        },
        dict.fromkeys(("param1", "param2", "param3"), _CLIPPED),
        dict.fromkeys(("param1", "param2", "param3"), ("unused", "frozen")),
        {
            **dict.fromkeys(("param1", "param2", "param3"), _EVALUATED),
            "optimizer": _CLOSURES,
            "start": ("alike", "values"),
            "groups": ("",),
            "values": ("", "edges"),
        },
        {
            **dict.fromkeys(("param1", "param2", "param3"), ("plain", "scalar", "row", "unused", "frozen")),
            "optimizer": _OPTIMIZERS,
            "start": _STARTS,
            "groups": ("", "two", "later"),
        },
        {
            "param1": ("complex-row",),
            "param2": ("frozen",),
            "param3": ("plain",),
            "size": (2,),
            "optimizer": ("SGD-momentum", "SGD-everything"),  # Adam hides the scale of a gradient
            "start": ("alike", "values", "buffers"),
            "groups": ("", "two"),
            "values": ("",),
            "watched": (False,),
        },
        {
            **dict.fromkeys(("param1", "param2", "param3"), ("plain", "scalar", "row", "unused", "frozen")),
            "size": (3, 2),
            "optimizer": ("SGD-momentum", "Adam-everything"),
            "start": _STARTS,
            "groups": ("", "two", "some"),
            "draws": (True,),
        },
        {},
        {  # a rank may own nothing that has a gradient, or nothing at all
            "param1": ("none",),
            "param2": ("unused",),
            "param3": ("none",),
            "size": (4,),
            "groups": ("",),
            "draws": (False,),
            "layers": ("bare",),
        },
        {},
        {
            "param1": ("bf16-zero",),
            "param2": ("plain",),
            "param3": ("row",),
            "size": (2,),
            "optimizer": ("SGD-momentum",),
            "start": ("values",),
            "groups": ("tensors",),
            "layers": ("last",),
        },
    )
    further_scripts = {2: 20, 3: 32, 4: 4, 5: 2, 6: 3, 7: 2, 8: 3, 9: 1, 10: 0, 11: 2, 12: 0, 13: 1}
    layers_alone = frozenset({4, 5, 7, 8, 10, 11, 12, 13})
    layers_changed_again = frozenset({7})

    @classmethod
    def settled(cls, traits: Mapping[str, Any]) -> dict[str, Any]:
        """Return the traits without those that exclude each other."""
        found, special = without_two_kinds(traits, ("sparse", "fp32", "complex"), _LIKE)
        params = [traits["param1"], traits["param2"], traits["param3"]]
        if "fp32" in (*params, special) or not takes(found["optimizer"], special):
            found["optimizer"] = "SGD-lr"  # others amplify the error of a coarse sum
        if found["start"] == "orders" and "tied" in params:
            found["start"] = "values"  # a parameter with two names goes by that which was registered first
        return found

    @classmethod
    def model_of(cls, traits: Mapping[str, Any], features: frozenset[str]) -> Model:
        size = traits["size"]
        params = [
            placed(param, name)
            for _, name, param in params_of(traits, _PARAMS)
            if features.issuperset(needed_by(param, size))
        ]
        optimizer, variant = traits["optimizer"].split("-", 1)
        if ("closures" if optimizer == "LBFGS" else optimizer) not in features:
            optimizer, variant = "SGD", "momentum"
        start = traits["start"]
        counts = start == "counts" and {"buffers", "counting buffers"} <= features
        groups = traits["groups"] if traits["groups"] != "later" or "states of some groups" in features else "some"
        bare = traits["layers"] == "bare" and "frozen parameters" in features
        frozen = bare or any(param.frozen for param in params)
        own_values = "own values" in features and (not frozen or "own frozen values" in features)
        return Model(
            size=size,
            layers=(size,) if traits["layers"] == "two" or not (params or bare) else (),
            params=tuple(params),
            last=traits["layers"] == "last",
            bare=bare,
            buffer=(start == "buffers" and "buffers" in features) or counts,
            optimizer=optimizer,
            variant=variant,
            groups=_groups(groups, len(params), features, optimizer),
            own_values=start == "values" and own_values,
            own_buffer=start == "buffers" and {"buffers", "own buffers"} <= features,
            reordered=(size - 1,) if start == "orders" and "orders of registration" in features else (),
            edges=traits.get("values") == "edges",
            equal=traits.get("values") == "equal",
            counts=counts,
            watched=traits.get("watched", False) and _STATES | {f"states of {optimizer}"} <= features,
            saves_some=groups == "later",
            draws=traits.get("draws", False) and "generators" in features,
            losses="losses" in features,
            options="changed rates" in features,
        )

    @classmethod
    def needed(cls, model: Model) -> Iterator[str]:
        for param in model.params:
            yield from needed_by(param, model.size)

    @classmethod
    def simpler(cls, model: Model) -> Iterator[Model]:
        for fewer in without_each(model):
            yield replace(fewer, groups=())
        yield replace(model, groups=())
        yield replace(model, layers=())
        yield replace(model, optimizer="SGD", variant="lr")
        yield replace(model, optimizer="SGD", variant="momentum")
        yield replace(model, own_values=False, own_buffer=False, reordered=())
        yield replace(model, edges=False, equal=False)
        yield replace(model, buffer=False, own_buffer=False, counts=False)
        yield replace(model, watched=False)
        yield replace(model, draws=False)
        yield replace(model, bare=False)
        yield replace(model, last=False)
        yield from with_each(model, plain)

    @classmethod
    @contextlib.contextmanager
    def stage(cls, model: Model) -> Iterator[None]:
        # A trainer whose ranks evaluate a closure unequally often would wait for ever, if no group lost patience.
        with own_group() if model.optimizer == "LBFGS" else contextlib.nullcontext():
            yield


def _groups(kind: str, count: int, features: frozenset[str], optimizer: str) -> tuple[Group, ...]:
    if kind == "two" and count and "groups" in features:
        return (Group(count - 1), Group(1, lr=0.25))
    if kind == "tensors" and count and {"groups", "rates that are tensors"} <= features:
        return tuple(Group(each, lr=0.25, tensor=True) for each in (0, *[1] * count))
    if kind == "zeros" and count and "groups" in features:
        decay = 0.0 if "weight_decay" in row(optimizer).fullest.arguments else None
        return (Group(count - 1, weight_decay=decay), Group(1, lr=0.0))
    return (Group(0),) if kind in ("some", "later") and count and "added groups" in features else ()
