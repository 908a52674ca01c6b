"""The points of the laws of ``sharded-optimizer``: optimizers, variants, geometries and world sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import torch
from everyrank.fixtures.optimizers import Row, Variant, row, rows
from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.engine.contract import Point
from everyrank.suites.sharded_optimizer.geometry import GEOMETRIES, past_the_end
from everyrank.suites.sharded_optimizer.model import Param

#: Needs that are not met here: a GPU, or tensors that are not leaves.
_NOT_MET = {"cuda", "non-leaf"}

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "complex": torch.complex128}

#: The core points, on which rogues are tried: one that shows a wrong scale, one that hides it, with weight decay.
_CORE = {("SGD", "momentum", 0), ("AdamW", "weight-decay", 1)}


T = TypeVar("T", bound=OptimizerPoint)


def point(make: Callable[..., T], label: str, row: Row, variant: Variant | str, size: int = 3, **fields: Any) -> T:
    """Return a point of this class with this optimizer, and its other fields."""
    chosen = row.variant(variant) if isinstance(variant, str) else variant
    return make(label, size, optimizer=row.name, row=row, variant=chosen, **fields)


def cut(*shape: int, by: str = "chunked", dim: int = 0, **other: Any) -> Param:
    """Return a parameter that is cut by this geometry; a law names it by its number."""
    return Param("", shape, geometry=by, dim=dim, **other)


def whole(*shape: int, layout: str = "plain") -> Param:
    """Return a parameter that is not cut."""
    return Param("", shape, layout=layout)


def _every(whole_tensor: bool, grouped: bool = False) -> Iterator[tuple[Row, Variant]]:
    for optimizer in rows():
        for variant in optimizer.variants:
            if (optimizer.needs | variant.needs) & _NOT_MET or bool(variant.group_arguments) != grouped:
                continue
            if ("whole-tensor" in optimizer.needs) == whole_tensor:
                yield optimizer, variant


def elementwise() -> Iterator[Row]:
    """Return every optimizer that can step a shard on its own."""
    return (optimizer for optimizer in rows() if "whole-tensor" not in optimizer.needs)


def _is_plainest(optimizer: Row, variant: str) -> bool:
    return (optimizer.name, variant) == ("SGD", "defaults")


@dataclass(frozen=True, kw_only=True)
class ShardPoint(OptimizerPoint):
    """A point with the dim along which all parameters are cut."""

    dim: int
    dtype: torch.dtype = torch.float64
    repeated: bool = False
    """Whether gradients are sparse and have some rows twice."""


def shards() -> Iterator[ShardPoint]:
    """Yield every optimizer in every variant, cut along dims 0 and 1; every dtype."""
    for optimizer, variant in _every(whole_tensor=False):
        plainest = _is_plainest(optimizer, variant.name)
        for dim in (0, 1):
            label = f"{optimizer.name}-{variant.name}-dim{dim}"
            core = (optimizer.name, variant.name, dim) in _CORE
            yield point(ShardPoint, label, optimizer, variant, core=core, plainest=plainest, dim=dim)
    for optimizer in elementwise():
        for name, dtype in DTYPES.items():
            if name != "complex" or "complex" in optimizer.takes:
                yield point(ShardPoint, f"{optimizer.name}-{name}", optimizer, "defaults", dim=0, dtype=dtype)
        label, plainest = f"{optimizer.name}-defaults-dim0", _is_plainest(optimizer, "defaults")
        yield point(ShardPoint, label, optimizer, "defaults", 4, plainest=plainest, dim=0)
        if "sparse" in optimizer.needs | optimizer.takes and optimizer.name != "LBFGS":
            label, core = f"{optimizer.name}-repeated-rows", optimizer.name == "Adagrad"
            yield point(ShardPoint, label, optimizer, "lr", core=core, dim=0, repeated=True)


def tables() -> Iterator[OptimizerPoint]:
    """Yield every optimizer that takes sparse gradients."""
    for optimizer in elementwise():
        if "sparse" in optimizer.needs | optimizer.takes:
            yield point(OptimizerPoint, optimizer.name, optimizer, "lr", core=optimizer.name == "Adagrad")


_CORE_CUTS = {"uneven", "several-shards", "last-without-shard", "grid"}


@dataclass(frozen=True, kw_only=True)
class GeometryPoint(OptimizerPoint):
    """A point with the name of a geometry, and the dim along which parameters are cut."""

    geometry: str
    dim: int = 0


def geometries() -> Iterator[GeometryPoint]:
    """Yield every cut with every optimizer; along dim 1 and at other world sizes with SGD."""
    sgd, make = row("SGD"), GeometryPoint
    for name in GEOMETRIES:
        for optimizer in elementwise():
            yield point(make, f"{name}-{optimizer.name}", optimizer, "defaults", geometry=name)
        core = name in _CORE_CUTS
        yield point(make, f"{name}-SGD-momentum", sgd, "momentum", core=core, geometry=name)
        if name != "grid":
            yield point(make, f"{name}-SGD-momentum-dim1", sgd, "momentum", dim=1, geometry=name)
        for size in (2, 4):
            yield point(make, f"{name}-SGD-momentum", sgd, "momentum", size, geometry=name)
    yield point(make, "even-SGD-momentum", sgd, "momentum", 1, geometry="even")


def cuts(name: str, dim: int) -> list[Param]:
    """Return three parameters cut this way."""
    by, lengths = GEOMETRIES[name]
    shapes = [(length, 3 + number) for number, length in enumerate(lengths)]
    return [cut(*(shape if dim == 0 else shape[::-1]), by=by, dim=dim) for shape in shapes]


@dataclass(frozen=True, kw_only=True)
class LengthPoint(Point):
    """A point with the lengths that are cut, along each of these dims."""

    lengths: Sequence[int]
    dims: Sequence[int]


def lengths_to_cut() -> Iterator[LengthPoint]:
    """Yield every length up to 2W + 1, many in one case. Lengths that torch cannot cut have their own case."""
    for size in (2, 3, 4):
        lengths = range(1, 2 * size + 2)
        beyond = [length for length in lengths if past_the_end(length, size)]
        usual = [length for length in lengths if length not in beyond]
        for dim in (0, 1):
            yield LengthPoint(f"dim{dim}", size, core=(size, dim) == (3, 1), lengths=usual, dims=(dim,))
        if beyond:
            yield LengthPoint("past-the-end", size, core=size == 3, lengths=beyond, dims=(0, 1))


def uneven(dim: int, table: bool) -> list[Param]:
    """Return unequal shapes; only the last can be cut evenly over three ranks."""
    shapes = ((7, 3), (5, 2) if table else (5,), (6, 2)) if dim == 0 else ((2, 7), (3, 5), (4, 6))
    return [cut(*shape, dim=dim, table=table) for shape in shapes]


_BESIDE = {
    "beside": [cut(7, 3), whole(4, 3), cut(5)],
    "first": [whole(4, 3), cut(7, 3)],
    "alone": [whole(4, 3), whole(5)],
    "view": [cut(7, 3), whole(4, 3, layout="view")],
    "non-contiguous": [cut(7, 3), whole(4, 3, layout="transposed")],
    "zero-dim": [cut(7, 3), whole()],
    "empty": [cut(7, 3), whole(0, 3), whole(4)],
}


#: Whole parameters that are neither tied nor one, and those of a rank that has nothing else.
_BESIDE_MORE = {
    "one-buffer": [cut(7, 3), whole(4, 3, layout="shared"), whole(5, layout="shared")],
    "rank-without-shard": [cut(4, 3, by="last_without"), whole(4, 3), cut(6, 2, by="last_without")],
}


@dataclass(frozen=True, kw_only=True)
class SpecPoint(OptimizerPoint):
    """A point with the specs of its parameters."""

    specs: list[Param]


@dataclass(frozen=True, kw_only=True)
class WholePoint(SpecPoint):
    """A point with whole parameters."""

    dtype: torch.dtype = torch.float64


def beside() -> Iterator[WholePoint]:
    """Yield whole parameters of every kind, and whole ones beside sharded ones with every optimizer."""
    sgd, make = row("SGD"), WholePoint
    for name, specs in _BESIDE.items():
        core = name in ("beside", "non-contiguous")
        yield point(make, f"{name}-SGD-momentum", sgd, "momentum", core=core, specs=specs)
        yield point(make, f"{name}-Adam", row("Adam"), "defaults", specs=specs)
    for optimizer in elementwise():
        if "sparse" not in optimizer.needs:
            yield point(make, f"each-{optimizer.name}", optimizer, "defaults", specs=_BESIDE["beside"])
            if optimizer.name not in ("SGD", "Adam"):
                yield point(make, f"empty-{optimizer.name}", optimizer, optimizer.fullest, specs=_BESIDE["empty"])
    for size in (1, 2, 4):
        yield point(make, "beside-SGD-momentum", sgd, "momentum", size, specs=_BESIDE["beside"])
    for name in ("fp32", "bf16", "complex"):
        yield point(make, f"beside-SGD-{name}", sgd, "momentum", specs=_BESIDE["beside"], dtype=DTYPES[name])
    for name, specs in _BESIDE_MORE.items():
        yield point(make, f"{name}-SGD-momentum", sgd, "momentum", core=True, specs=specs)


#: Core variants: one optimizer that needs the whole matrix, and one that needs all parameters.
_CORE_WHOLE = {("Muon", "defaults"), ("LBFGS", "history-size")}


@dataclass(frozen=True, kw_only=True)
class WholeTensorPoint(SpecPoint):
    """A point with an optimizer that needs the whole tensor, or a subclass of it that changes nothing."""

    subclass: bool = False


def whole_tensors() -> Iterator[WholeTensorPoint]:
    """Yield every optimizer that needs the whole tensor: its variants, other cuts with its defaults, a subclass."""
    make = WholeTensorPoint
    for optimizer, variant in _every(whole_tensor=True):
        core = (optimizer.name, variant.name) in _CORE_WHOLE
        specs = matrices(0)
        yield point(make, f"{optimizer.name}-{variant.name}", optimizer, variant, core=core, specs=specs)
    for optimizer in rows():
        if "whole-tensor" in optimizer.needs:
            for name in ("several-shards", "permuted", "last-without-shard", "grid"):
                by = GEOMETRIES[name][0]
                specs = [cut(6, 4, by=by), whole(3, 5), cut(11, 5, by=by)]
                core = (optimizer.name, name) == ("Muon", "permuted")
                yield point(make, f"{optimizer.name}-{name}", optimizer, "defaults", core=core, specs=specs)
            core = optimizer.name == "Muon"
            specs = matrices(1)
            yield point(make, f"{optimizer.name}-dim1", optimizer, "defaults", core=core, specs=specs)
            for size in (2, 4):
                specs = matrices(0)
                yield point(make, f"{optimizer.name}-ranks", optimizer, "defaults", size, specs=specs)
            if "closure" not in optimizer.needs:
                specs = [cut(4, 5, by="on_rank_1"), whole(3, 5)]
                yield point(make, f"empty-shard-{optimizer.name}", optimizer, "lr", specs=specs)
            label, specs = f"{optimizer.name}-subclass", matrices(0)
            yield point(make, label, optimizer, "defaults", core=core, specs=specs, subclass=True)


@dataclass(frozen=True, kw_only=True)
class SubclassPoint(OptimizerPoint):
    """A point with a subclass: one with its own step(), which takes signs, or one that changes nothing."""

    signed: bool = False


def subclasses() -> Iterator[SubclassPoint]:
    """Yield a subclass that changes nothing of every elementwise optimizer, and one with its own step()."""
    for optimizer in elementwise():
        if "sparse" not in optimizer.needs:
            label, core = f"unchanged-{optimizer.name}", optimizer.name == "Adam"
            yield point(SubclassPoint, label, optimizer, optimizer.fullest, core=core)
    yield point(SubclassPoint, "signed-SGD", row("SGD"), "everything", core=True, signed=True)


def matrices(dim: int) -> list[Param]:
    """Return matrices, since some optimizers take nothing else: two sharded, without empty shards, and one whole."""
    return [cut(7, 5, dim=dim), whole(3, 5), cut(8, 6, dim=dim)]


Unused = Literal["first", "middle", "last", "all"]


@dataclass(frozen=True, kw_only=True)
class NonePoint(OptimizerPoint):
    """A point with the parameter that has no gradient; for ``all``, in the second step only."""

    unused: Unused


def nones() -> Iterator[NonePoint]:
    """Yield a None gradient at every position, with every optimizer."""
    for unused in get_args(Unused):
        for optimizer in elementwise():
            if "sparse" not in optimizer.needs:
                yield point(NonePoint, f"{unused}-{optimizer.name}", optimizer, "defaults", unused=unused)
        label, core = f"{unused}-SGD-with-decay", unused != "middle"
        yield point(NonePoint, label, row("SGD"), "everything", core=core, unused=unused)


@dataclass(frozen=True, kw_only=True)
class ZeroPoint(Point):
    """A point with the arguments of ``zero_grad``."""

    arguments: Mapping[str, bool]


def zeros() -> Iterator[ZeroPoint]:
    for name, arguments in (("default", {}), ("to-none", {"set_to_none": True}), ("to-zero", {"set_to_none": False})):
        yield ZeroPoint(name, 3, core=name != "to-none", arguments=arguments)


def closures() -> Iterator[SpecPoint]:
    """Yield every optimizer. Those that need the whole tensor get whole ones; `parity.whole-tensor` has shards."""
    for optimizer in rows():
        if "sparse" not in optimizer.needs and "2d" not in optimizer.needs:
            first = whole(7, 3) if "whole-tensor" in optimizer.needs else cut(7, 3)
            specs = [first, whole(4, 3)]
            yield point(SpecPoint, optimizer.name, optimizer, "defaults", core=optimizer.name == "Adam", specs=specs)


@dataclass(frozen=True, kw_only=True)
class ClipPoint(Point):
    """A point with the arguments of ``clip_grad_norm_``, and the name of a geometry."""

    geometry: str
    norm: float = 2.0
    most: float = 0.5


def clips() -> Iterator[ClipPoint]:
    for name in ("even", "uneven", "rank-without-rows", "last-without-shard", "several-shards", "grid"):
        yield ClipPoint(name, 3, core=name == "uneven", geometry=name)
    for label, norm in (("one", 1.0), ("three", 3.0), ("infinity", float("inf"))):
        yield ClipPoint(f"norm-{label}", 3, core=label == "infinity", geometry="uneven", norm=norm)
    yield ClipPoint("nothing-to-clip", 3, geometry="uneven", most=1e6)
    yield ClipPoint("ranks", 2, geometry="even")
    yield ClipPoint("ranks", 4, geometry="uneven")


@dataclass(frozen=True, kw_only=True)
class SavedPoint(OptimizerPoint):
    """A point that fixes in which order the parameters load the state, and what happens before and after."""

    reordered: bool = False
    rests: bool = False
    """Whether one parameter has no gradient in a step before the save."""
    rate: float | None = None
    """The learning rate that is set after the load."""


def saved() -> Iterator[SavedPoint]:
    """Yield every optimizer, plain and with all its options."""
    for optimizer in rows():
        for variant in dict.fromkeys(("defaults", optimizer.fullest.name)):
            label, plainest = f"{optimizer.name}-{variant}", _is_plainest(optimizer, variant)
            core = (optimizer.name, variant) in {("SGD", "everything"), ("Adam", "defaults")}
            yield point(SavedPoint, label, optimizer, variant, core=core, plainest=plainest)
    for optimizer in (row("SGD"), row("Adam")):
        yield point(SavedPoint, f"reordered-{optimizer.name}", optimizer, "everything", core=True, reordered=True)
    yield point(SavedPoint, "rests-Adam", row("Adam"), "everything", core=True, rests=True)
    yield point(SavedPoint, "rate-after-load-SGD", row("SGD"), "everything", core=True, rate=0.25)


def grouped() -> Iterator[OptimizerPoint]:
    """Yield every optimizer that takes groups, with each of its variants of groups."""
    for whole_tensor in (False, True):
        for optimizer, variant in _every(whole_tensor, grouped=True):
            core = (optimizer.name, variant.name) == ("SGD", "groups")
            yield point(OptimizerPoint, f"{optimizer.name}-{variant.name}", optimizer, variant, core=core)
