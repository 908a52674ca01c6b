"""Models of scripts: what they state of their parameters, and modules that are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from everyrank.fixtures.optimizers import row
from torch import nn

#: The length of the storage that parameters share.
_STORAGE = 1024

AnyParam = TypeVar("AnyParam")
#: A contract's model: a frozen dataclass with ``params``.
AnyModel = TypeVar("AnyModel", bound=Any)


@dataclass(frozen=True)
class Param:
    """One parameter. If its name has dots, it is in a submodule."""

    name: str
    shape: tuple[int, ...]
    layout: str = "plain"
    """plain, transposed, gaps (its elements do not lie side by side), shared (one storage for all of this layout) or
    embedding, whose gradients are sparse."""
    dtype: str = "float64"
    frozen: bool = False
    sparse: bool = False
    """Whether it is given sparse gradients, where there is no forward."""
    also: str = ""
    """A second name of the same parameter."""
    unused: bool = False
    """Whether no forward ever uses it."""
    zero: bool = False
    """Whether its gradient is always zero."""
    cancels: bool = field(default=False, repr=False)
    """Whether its gradients on the first two ranks cancel, and others have zero."""
    huge: bool = field(default=False, repr=False)
    """Whether its gradient is so near to the largest number of its dtype that two of them have no sum."""


#: What a parameter is like: the parameters that stand for it, by a name of their own.
PARAMS: dict[str, tuple[Param, ...]] = {
    "plain": (Param("", (3, 2)),),
    "scalar": (Param("", ()),),
    "transposed": (Param("", (3, 4), "transposed"),),
    "gaps": (Param("", (3, 2), "gaps"),),
    "shared": (Param("", (3,), "shared"), Param("", (4,), "shared")),
    "tied": (Param("", (3,), also="_again"),),
    "frozen": (Param("", (3,), frozen=True),),
    "unused": (Param("", (3,), unused=True),),
    "zero": (Param("", (3,), zero=True),),
    "large": (Param("", (1031,)),),
    "empty": (Param("", (0, 2)),),
    "row": (Param("", (1, 3)),),
    "sparse": (Param("", (3, 2), "embedding"),),
    "fp32": (Param("", (3,), dtype="float32"),),
    "complex": (Param("", (3,), dtype="complex128"),),
}

_LAYOUTS = {
    "transposed": "transposed parameters",
    "gaps": "parameters with gaps",
    "shared": "shared storage",
    "embedding": "sparse gradients",
}

_MIXED = ("float32", "float16", "bfloat16", "complex64")


def needed_by(param: Param) -> Iterator[str]:
    """Yield the features that a parameter needs of every subject."""
    found = {
        _LAYOUTS.get(param.layout, ""): True,
        "mixed dtypes": param.dtype in _MIXED,
        "complex parameters": param.dtype.startswith("complex"),
        "frozen parameters": param.frozen,
        "unused parameters": param.unused,
        "tied parameters": bool(param.also),
        "scalars": not param.shape,
        "empty parameters": not math.prod(param.shape),
    }
    yield from (feature for feature, needed in found.items() if feature and needed)
    if param.sparse:
        yield "sparse gradients"


# --- from traits to models ---------------------------------------------------------------------------


def named_traits(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> tuple[dict[str, Any], ...]:
    """Return the traits of models that stand in rows, each by its name."""
    return tuple(dict(zip(names, values, strict=True)) for values in rows)


def params_of(
    traits: Mapping[str, Any], kinds: Mapping[str, tuple[AnyParam, ...]]
) -> Iterator[tuple[int, str, AnyParam]]:
    """Yield the parameters that traits have: the number of the trait, a name such as p1a, and what it is like."""
    for number in (1, 2, 3):
        for part, param in zip("ab", kinds[traits[f"param{number}"]], strict=False):
            yield number, f"p{number}{part}", param


def placed(param: Param, name: str, home: str = "", home_of_second: str = "") -> Param:
    """Return a parameter with this name in a module, and with its second name, if it has one, in another."""
    return replace(param, name=f"{home}{name}", also=param.also and f"{home_of_second}{name}{param.also}")


def without_two_kinds(
    traits: Mapping[str, Any], special: Collection[str], like: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], str]:
    """Return the traits with parameters of one of these kinds at the most, and that kind: no optimizer takes two.

    ``like``: the kind that other parameters are of.
    """
    found = dict(traits)
    kinds = {name: (like or {}).get(found[name], found[name]) for name in ("param1", "param2", "param3")}
    names = [name for name, kind in kinds.items() if kind in special]
    kind = kinds[names[0]] if names else ""
    return found | {name: "plain" for name in names if kinds[name] != kind}, kind


def takes(optimizer: str, kind: str) -> bool:
    """Return whether an optimizer, with its variant, takes what is ``sparse`` or ``complex``, or plain anyway."""
    name, variant = optimizer.split("-", 1)
    return not kind or kind in row(name).takes - row(name).variant(variant).refuses


# --- simpler models ----------------------------------------------------------------------------------


def without_each(model: AnyModel, least: int = 0) -> Iterator[AnyModel]:
    """Yield the model without each of its parameters, as long as so many are left."""
    for number in range(len(model.params) if len(model.params) > least else 0):
        yield replace(model, params=model.params[:number] + model.params[number + 1 :])


def with_each(model: AnyModel, simpler: Callable[[Any], Iterable[Any]]) -> Iterator[AnyModel]:
    """Yield the model with what is simpler in place of each of its parameters."""
    for number, param in enumerate(model.params):
        for other in simpler(param):
            yield replace(model, params=(*model.params[:number], other, *model.params[number + 1 :]))


def plain(param: Param) -> Iterator[Param]:
    """Yield the plainest parameter of this name."""
    yield Param(param.name, (2,))


# --- what a script has done so far -------------------------------------------------------------------


@dataclass
class ModelOutline(Generic[AnyModel]):
    """Which parameters of a model are frozen; a contract adds what else its moves depend on."""

    model: AnyModel
    frozen: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.frozen = {number for number, param in enumerate(self.model.params) if param.frozen}

    @property
    def count(self) -> int:
        return len(self.model.params)


# --- modules -----------------------------------------------------------------------------------------


def new_parameters(params: Sequence[Param]) -> Iterator[tuple[Param, nn.Parameter]]:
    """Yield each parameter of a model with a new one of its layout, dtype and shape, whose values are not set yet."""
    used = 0
    shared: dict[str, torch.Tensor] = {}
    for param in params:
        storage = shared.setdefault(param.dtype, torch.empty(_STORAGE, dtype=getattr(torch, param.dtype)))
        yield param, nn.Parameter(_laid_out(param, storage[used:]), requires_grad=not param.frozen)
        used += math.prod(param.shape) + 1 if param.layout == "shared" else 0


def add_parameters(module: nn.Module, params: Sequence[Param]) -> list[nn.Parameter]:
    """Add new parameters to a module under all of their names, and return them."""
    added = []
    for param, parameter in new_parameters(params):
        added.append(parameter)
        for name in filter(None, (param.name, param.also)):
            put(module, name, parameter)
    return added


def _laid_out(param: Param, storage: torch.Tensor) -> torch.Tensor:
    dtype = storage.dtype
    if param.layout == "transposed":
        return torch.empty(param.shape[::-1], dtype=dtype).t()
    if param.layout == "gaps":
        *other, last = param.shape
        return torch.empty((*other, 2 * last), dtype=dtype)[..., ::2]
    if param.layout == "shared":
        return storage[: math.prod(param.shape)].view(param.shape)
    return torch.empty(param.shape, dtype=dtype)


def put(module: nn.Module, name: str, value: Any) -> None:
    """Set a parameter, or a bare ShardedTensor, under a dotted name; add the modules that the name needs."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = getattr(module, part)
    setattr(module, last, value)
