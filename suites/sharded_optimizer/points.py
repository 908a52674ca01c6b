"""The points of the laws of ``sharded-optimizer``: optimizers, variants, geometries and world sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from everyrank.fixtures.optimizers import Row, Variant, row, rows
from everyrank.suites.engine.contract import Point
from everyrank.suites.sharded_optimizer.arena import Spec
from everyrank.suites.sharded_optimizer.geometry import GEOMETRIES, Geometry, chunked, on_rank_1, past_the_end

#: Needs that are not met here: a GPU, or tensors that are not leaves.
_NOT_MET = {"cuda", "non-leaf"}

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "complex": torch.complex128}

#: The core points, on which rogues are tried: one that shows a wrong scale, one that hides it, with weight decay.
_CORE = {("SGD", "momentum", 0), ("AdamW", "weight-decay", 1)}


def point(
    label: str, optimizer: Row, variant: Variant | str, size: int = 3, core: bool = False, **more: Any
) -> Point:
    chosen = optimizer.variant(variant) if isinstance(variant, str) else variant
    return Point(label, size, {"row": optimizer, "variant": chosen, **more}, core, optimizer=optimizer.name)


def plain(label: str, size: int, core: bool = False, **values: Any) -> Point:
    """Return a point for a law that is not about optimizers."""
    return Point(label, size, values, core)


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


def shards() -> Iterator[Point]:
    """Yield every optimizer in every variant, cut along dims 0 and 1; every dtype."""
    for optimizer, variant in _every(whole_tensor=False):
        for dim in (0, 1):
            core = (optimizer.name, variant.name, dim) in _CORE
            yield point(f"{optimizer.name}-{variant.name}-dim{dim}", optimizer, variant, core=core, dim=dim)
    for optimizer in elementwise():
        for name, dtype in DTYPES.items():
            if name != "complex" or "complex" in optimizer.takes:
                yield point(f"{optimizer.name}-{name}", optimizer, "defaults", dim=0, dtype=dtype)
        yield point(f"{optimizer.name}-defaults-dim0", optimizer, "defaults", 4, dim=0)
        if "sparse" in optimizer.needs | optimizer.takes and optimizer.name != "LBFGS":
            yield point(
                f"{optimizer.name}-repeated-rows",
                optimizer,
                "lr",
                core=optimizer.name == "Adagrad",
                dim=0,
                repeated=True,
            )


def tables() -> Iterator[Point]:
    """Yield every optimizer that takes sparse gradients."""
    for optimizer in elementwise():
        if "sparse" in optimizer.needs | optimizer.takes:
            yield point(optimizer.name, optimizer, "lr", core=optimizer.name == "Adagrad")


_CORE_CUTS = {"uneven", "several-shards", "last-without-shard", "grid"}


def geometries() -> Iterator[Point]:
    """Yield every cut with every optimizer; along dim 1 and at other world sizes with SGD."""
    for name in GEOMETRIES:
        for optimizer in elementwise():
            yield point(f"{name}-{optimizer.name}", optimizer, "defaults", dim=0, geometry=name)
        core = name in _CORE_CUTS
        yield point(f"{name}-SGD-momentum", row("SGD"), "momentum", core=core, dim=0, geometry=name)
        if name != "grid":
            yield point(f"{name}-SGD-momentum-dim1", row("SGD"), "momentum", dim=1, geometry=name)
        for size in (2, 4):
            yield point(f"{name}-SGD-momentum", row("SGD"), "momentum", size, dim=0, geometry=name)
    yield point("even-SGD-momentum", row("SGD"), "momentum", 1, dim=0, geometry="even")


def cut(name: str, dim: int) -> list[Spec]:
    """Return three parameters cut this way."""
    geometry, lengths = GEOMETRIES[name]
    return [Spec((length, 3 + n) if dim == 0 else (3 + n, length), geometry, dim) for n, length in enumerate(lengths)]


def lengths_to_cut() -> Iterator[Point]:
    """Yield every length up to 2W + 1, many in one case. Lengths that torch cannot cut have their own case."""
    for size in (2, 3, 4):
        lengths = range(1, 2 * size + 2)
        beyond = [length for length in lengths if past_the_end(length, size)]
        usual = [length for length in lengths if length not in beyond]
        for dim in (0, 1):
            yield plain(f"dim{dim}", size, core=(size, dim) == (3, 1), lengths=usual, dims=(dim,))
        if beyond:
            yield plain("past-the-end", size, core=size == 3, lengths=beyond, dims=(0, 1))


def uneven(dim: int, dense_only: bool = True) -> list[Spec]:
    """Return unequal shapes; only the last can be cut evenly over three ranks."""
    if dim == 0:
        return [Spec((7, 3)), Spec((5,) if dense_only else (5, 2)), Spec((6, 2))]
    return [Spec((2, 7), dim=1), Spec((3, 5), dim=1), Spec((4, 6), dim=1)]


_BESIDE = {
    "beside": [Spec((7, 3)), Spec((4, 3), None), Spec((5,))],
    "first": [Spec((4, 3), None), Spec((7, 3))],
    "alone": [Spec((4, 3), None), Spec((5,), None)],
    "view": [Spec((7, 3)), Spec((4, 3), None, layout="view")],
    "non-contiguous": [Spec((7, 3)), Spec((4, 3), None, layout="transposed")],
    "zero-dim": [Spec((7, 3)), Spec((), None)],
    "empty": [Spec((7, 3)), Spec((0, 3), None), Spec((4,), None)],
}


def beside() -> Iterator[Point]:
    """Yield whole parameters of every kind, and whole ones beside sharded ones with every optimizer."""
    for name, specs in _BESIDE.items():
        core = name in ("beside", "non-contiguous")
        yield point(f"{name}-SGD-momentum", row("SGD"), "momentum", core=core, specs=specs)
        yield point(f"{name}-Adam", row("Adam"), "defaults", specs=specs)
    for optimizer in elementwise():
        if "sparse" not in optimizer.needs:
            yield point(f"each-{optimizer.name}", optimizer, "defaults", specs=_BESIDE["beside"])
            if optimizer.name not in ("SGD", "Adam"):
                yield point(f"empty-{optimizer.name}", optimizer, "everything", specs=_BESIDE["empty"])
    for size in (1, 2, 4):
        yield point("beside-SGD-momentum", row("SGD"), "momentum", size, specs=_BESIDE["beside"])
    for name in ("fp32", "bf16", "complex"):
        yield point(f"beside-SGD-{name}", row("SGD"), "momentum", specs=_BESIDE["beside"], dtype=DTYPES[name])


#: Core variants: one optimizer that needs the whole matrix, and one that needs all parameters.
_CORE_WHOLE = {("Muon", "defaults"), ("LBFGS", "history-size")}


def whole_tensors() -> Iterator[Point]:
    """Yield every optimizer that needs the whole tensor: its variants, other cuts with its defaults, a subclass."""
    for optimizer, variant in _every(whole_tensor=True):
        core = (optimizer.name, variant.name) in _CORE_WHOLE
        yield point(f"{optimizer.name}-{variant.name}", optimizer, variant, core=core, specs=matrices(chunked, 0))
    for optimizer in rows():
        if "whole-tensor" in optimizer.needs:
            for name in ("several-shards", "permuted", "last-without-shard", "grid"):
                geometry = GEOMETRIES[name][0]
                specs = [Spec((6, 4), geometry), Spec((3, 5), None), Spec((11, 5), geometry)]
                core = (optimizer.name, name) == ("Muon", "permuted")
                yield point(f"{optimizer.name}-{name}", optimizer, "defaults", core=core, specs=specs)
            core = optimizer.name == "Muon"
            yield point(f"{optimizer.name}-dim1", optimizer, "defaults", core=core, specs=matrices(chunked, 1))
            for size in (2, 4):
                yield point(f"{optimizer.name}-ranks", optimizer, "defaults", size, specs=matrices(chunked, 0))
            if "closure" not in optimizer.needs:
                specs = [Spec((4, 5), on_rank_1), Spec((3, 5), None)]
                yield point(f"empty-shard-{optimizer.name}", optimizer, "lr", specs=specs)
            specs = matrices(chunked, 0)
            yield point(f"{optimizer.name}-subclass", optimizer, "defaults", core=core, specs=specs, subclass=True)


def subclasses() -> Iterator[Point]:
    """Yield a subclass that changes nothing of every elementwise optimizer, and one with its own step()."""
    for optimizer in elementwise():
        if "sparse" not in optimizer.needs:
            yield point(f"unchanged-{optimizer.name}", optimizer, "everything", core=optimizer.name == "Adam")
    yield point("signed-SGD", row("SGD"), "everything", core=True)


def matrices(geometry: Geometry, dim: int) -> list[Spec]:
    """Return matrices, since some optimizers take nothing else: two sharded, without empty shards, and one whole."""
    return [Spec((7, 5), geometry, dim), Spec((3, 5), None), Spec((8, 6), geometry, dim)]


def nones() -> Iterator[Point]:
    """Yield a None gradient at every position, with every optimizer."""
    for unused in ("first", "middle", "last", "all"):
        for optimizer in elementwise():
            if "sparse" not in optimizer.needs:
                yield point(f"{unused}-{optimizer.name}", optimizer, "defaults", unused=unused)
        yield point(f"{unused}-SGD-with-decay", row("SGD"), "everything", core=unused != "middle", unused=unused)


def zeros() -> Iterator[Point]:
    for name, arguments in (("default", {}), ("to-none", {"set_to_none": True}), ("to-zero", {"set_to_none": False})):
        yield plain(name, 3, core=name != "to-none", arguments=arguments)


def closures() -> Iterator[Point]:
    """Yield every optimizer. Those that need the whole tensor get whole ones; `parity.whole-tensor` has shards."""
    for optimizer in rows():
        if "sparse" not in optimizer.needs and "2d" not in optimizer.needs:
            cut = None if "whole-tensor" in optimizer.needs else chunked
            specs = [Spec((7, 3), cut), Spec((4, 3), None)]
            yield point(optimizer.name, optimizer, "defaults", core=optimizer.name == "Adam", specs=specs)


def clips() -> Iterator[Point]:
    for name in ("even", "uneven", "rank-without-rows", "last-without-shard", "several-shards", "grid"):
        yield plain(name, 3, core=name == "uneven", geometry=name, norm=2.0, most=0.5)
    for label, norm in (("one", 1.0), ("three", 3.0), ("infinity", float("inf"))):
        yield plain(f"norm-{label}", 3, core=label == "infinity", geometry="uneven", norm=norm, most=0.5)
    yield plain("nothing-to-clip", 3, geometry="uneven", norm=2.0, most=1e6)
    yield plain("ranks", 2, geometry="even", norm=2.0, most=0.5)
    yield plain("ranks", 4, geometry="uneven", norm=2.0, most=0.5)


def saved() -> Iterator[Point]:
    """Yield every optimizer, plain and with all its options."""
    for optimizer in rows():
        for variant in ("defaults", "everything"):
            core = (optimizer.name, variant) in {("SGD", "everything"), ("Adam", "defaults")}
            yield point(f"{optimizer.name}-{variant}", optimizer, variant, core=core)
    for optimizer in (row("SGD"), row("Adam")):
        yield point(f"reordered-{optimizer.name}", optimizer, "everything", core=True, reordered=True)


def grouped() -> Iterator[Point]:
    """Yield every optimizer that takes groups, with each of its variants of groups."""
    for whole_tensor in (False, True):
        for optimizer, variant in _every(whole_tensor, grouped=True):
            core = (optimizer.name, variant.name) == ("SGD", "groups")
            yield point(f"{optimizer.name}-{variant.name}", optimizer, variant, core=core)
