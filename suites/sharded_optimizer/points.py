"""Where each law of ``sharded-optimizer`` is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from everyrank.fixtures.optimizers import Row, Variant, row, rows
from everyrank.suites.contract import Point
from everyrank.suites.sharded_optimizer.arena import Spec
from everyrank.suites.sharded_optimizer.geometry import GEOMETRIES, Geometry, chunked, on_rank_one, past_the_end

#: Written for a GPU, or refused on leaves.
_NOT_HERE = {"cuda", "non-leaf"}

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "complex": torch.complex128}

#: Rogues are tried on these: one that shows a wrong scale, one that hides it, with weight decay.
_CORE = {("SGD", "momentum", 0), ("AdamW", "weight-decay", 1)}


def point(label: str, of: Row, variant: Variant | str, size: int = 3, core: bool = False, **more: Any) -> Point:
    chosen = of.variant(variant) if isinstance(variant, str) else variant
    return Point(label, size, {"row": of, "variant": chosen, **more}, core, optimizer=of.name)


def plain(label: str, size: int, core: bool = False, **values: Any) -> Point:
    """No matter of optimizers."""
    return Point(label, size, values, core)


def _every(whole_tensor: bool, grouped: bool = False) -> Iterator[tuple[Row, Variant]]:
    for each in rows():
        for variant in each.variants:
            if (each.needs | variant.needs) & _NOT_HERE or bool(variant.group_arguments) != grouped:
                continue
            if ("whole-tensor" in each.needs) == whole_tensor:
                yield each, variant


def elementwise() -> Iterator[Row]:
    """Every optimizer that a shard can be stepped by alone."""
    return (each for each in rows() if "whole-tensor" not in each.needs)


def shards() -> Iterator[Point]:
    """Every optimizer in every variant, cut along dims 0 and 1; every dtype."""
    for each, variant in _every(whole_tensor=False):
        for dim in (0, 1):
            core = (each.name, variant.name, dim) in _CORE
            yield point(f"{each.name}-{variant.name}-dim{dim}", each, variant, core=core, dim=dim)
    for each in elementwise():
        for name, dtype in DTYPES.items():
            if name != "complex" or "complex" in each.takes:
                yield point(f"{each.name}-{name}", each, "defaults", dim=0, dtype=dtype)
        yield point(f"{each.name}-defaults-dim0", each, "defaults", 4, dim=0)
        if "sparse" in each.needs | each.takes and each.name != "LBFGS":
            yield point(f"{each.name}-repeated-rows", each, "lr", core=each.name == "Adagrad", dim=0, repeated=True)


def tables() -> Iterator[Point]:
    """Every optimizer that takes sparse gradients."""
    for each in elementwise():
        if "sparse" in each.needs | each.takes:
            yield point(each.name, each, "lr", core=each.name == "Adagrad")


_CORE_CUTS = {"uneven", "several-shards", "last-without-shard", "grid"}


def geometries() -> Iterator[Point]:
    """Every cut with every optimizer; along dim 1 and at other world sizes with one."""
    for name in GEOMETRIES:
        for each in elementwise():
            yield point(f"{name}-{each.name}", each, "defaults", dim=0, geometry=name)
        core = name in _CORE_CUTS
        yield point(f"{name}-SGD-momentum", row("SGD"), "momentum", core=core, dim=0, geometry=name)
        if name != "grid":
            yield point(f"{name}-SGD-momentum-dim1", row("SGD"), "momentum", dim=1, geometry=name)
        for size in (2, 4):
            yield point(f"{name}-SGD-momentum", row("SGD"), "momentum", size, dim=0, geometry=name)
    yield point("even-SGD-momentum", row("SGD"), "momentum", 1, dim=0, geometry="even")


def cut(name: str, dim: int) -> list[Spec]:
    """Three parameters cut this way."""
    how, lengths = GEOMETRIES[name]
    return [Spec((length, 3 + n) if dim == 0 else (3 + n, length), how, dim) for n, length in enumerate(lengths)]


def lengths_to_cut() -> Iterator[Point]:
    """Every length up to 2W + 1, many in one case. Those that torch cannot cut have a case of their own."""
    for size in (2, 3, 4):
        lengths = range(1, 2 * size + 2)
        beyond = [length for length in lengths if past_the_end(length, size)]
        usual = [length for length in lengths if length not in beyond]
        for dim in (0, 1):
            yield plain(f"dim{dim}", size, core=(size, dim) == (3, 1), lengths=usual, dims=(dim,))
        if beyond:
            yield plain("past-the-end", size, core=size == 3, lengths=beyond, dims=(0, 1))


def uneven(dim: int, dense_only: bool = True) -> list[Spec]:
    """Unequal shapes, none of which three ranks share evenly but the last."""
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
    """Whole parameters of every kind; beside sharded ones with every optimizer, at every world size."""
    for name, specs in _BESIDE.items():
        core = name in ("beside", "non-contiguous")
        yield point(f"{name}-SGD-momentum", row("SGD"), "momentum", core=core, specs=specs)
        yield point(f"{name}-Adam", row("Adam"), "defaults", specs=specs)
    for each in elementwise():
        if "sparse" not in each.needs:
            yield point(f"each-{each.name}", each, "defaults", specs=_BESIDE["beside"])
            if each.name not in ("SGD", "Adam"):
                yield point(f"empty-{each.name}", each, "everything", specs=_BESIDE["empty"])
    for size in (1, 2, 4):
        yield point("beside-SGD-momentum", row("SGD"), "momentum", size, specs=_BESIDE["beside"])
    for name in ("fp32", "bf16", "complex"):
        yield point(f"beside-SGD-{name}", row("SGD"), "momentum", specs=_BESIDE["beside"], dtype=DTYPES[name])


#: Core: one that looks at the matrix, one at everything there is.
_CORE_WHOLE = {("Muon", "defaults"), ("LBFGS", "history-size")}


def whole_tensors() -> Iterator[Point]:
    """Every optimizer that looks at the whole tensor, in every variant; other cuts with its defaults; subclasses."""
    for each, variant in _every(whole_tensor=True):
        core = (each.name, variant.name) in _CORE_WHOLE
        yield point(f"{each.name}-{variant.name}", each, variant, core=core, specs=matrices(chunked, 0))
    for each in rows():
        if "whole-tensor" in each.needs:
            for name in ("several-shards", "permuted", "last-without-shard", "grid"):
                how = GEOMETRIES[name][0]
                specs = [Spec((6, 4), how), Spec((3, 5), None), Spec((11, 5), how)]
                core = (each.name, name) == ("Muon", "permuted")
                yield point(f"{each.name}-{name}", each, "defaults", core=core, specs=specs)
            core = each.name == "Muon"
            yield point(f"{each.name}-dim1", each, "defaults", core=core, specs=matrices(chunked, 1))
            for size in (2, 4):
                yield point(f"{each.name}-ranks", each, "defaults", size, specs=matrices(chunked, 0))
            if "closure" not in each.needs:
                specs = [Spec((4, 5), on_rank_one), Spec((3, 5), None)]
                yield point(f"empty-shard-{each.name}", each, "lr", specs=specs)
            specs = matrices(chunked, 0)
            yield point(f"{each.name}-subclass", each, "defaults", core=core, specs=specs, subclass=True)


def subclasses() -> Iterator[Point]:
    """A do-nothing subclass of every optimizer that a shard can be stepped by, and one with a step of its own."""
    for each in elementwise():
        if "sparse" not in each.needs:
            yield point(f"unchanged-{each.name}", each, "everything", core=each.name == "Adam")
    yield point("signed-SGD", row("SGD"), "everything", core=True)


def matrices(how: Geometry, dim: int) -> list[Spec]:
    """Matrices only, since some take no others: two sharded, none of whose shards is empty, and one whole."""
    return [Spec((7, 5), how, dim), Spec((3, 5), None), Spec((8, 6), how, dim)]


def nones() -> Iterator[Point]:
    """A None gradient in every place, with every optimizer."""
    for where in ("first", "middle", "last", "all"):
        for each in elementwise():
            if "sparse" not in each.needs:
                yield point(f"{where}-{each.name}", each, "defaults", where=where)
        yield point(f"{where}-SGD-with-decay", row("SGD"), "everything", core=where != "middle", where=where)


def zeros() -> Iterator[Point]:
    for name, arguments in (("default", {}), ("to-none", {"set_to_none": True}), ("to-zero", {"set_to_none": False})):
        yield plain(name, 3, core=name != "to-none", arguments=arguments)


def closures() -> Iterator[Point]:
    """Every optimizer; those that look at the whole tensor over whole ones: `parity.whole-tensor` has shards."""
    for each in rows():
        if "sparse" not in each.needs and "2d" not in each.needs:
            cut = None if "whole-tensor" in each.needs else chunked
            specs = [Spec((7, 3), cut), Spec((4, 3), None)]
            yield point(each.name, each, "defaults", core=each.name == "Adam", specs=specs)


def clips() -> Iterator[Point]:
    for name in ("even", "uneven", "rank-without-rows", "last-without-shard", "several-shards", "grid"):
        yield plain(name, 3, core=name == "uneven", geometry=name, norm=2.0, most=0.5)
    for label, norm in (("one", 1.0), ("three", 3.0), ("infinity", float("inf"))):
        yield plain(f"norm-{label}", 3, core=label == "infinity", geometry="uneven", norm=norm, most=0.5)
    yield plain("nothing-to-clip", 3, geometry="uneven", norm=2.0, most=1e6)
    yield plain("ranks", 2, geometry="even", norm=2.0, most=0.5)
    yield plain("ranks", 4, geometry="uneven", norm=2.0, most=0.5)


def saved() -> Iterator[Point]:
    """Every optimizer, plain and with all that it has."""
    for each in rows():
        for variant in ("defaults", "everything"):
            core = (each.name, variant) in {("SGD", "everything"), ("Adam", "defaults")}
            yield point(f"{each.name}-{variant}", each, variant, core=core)
    for each in (row("SGD"), row("Adam")):
        yield point(f"reordered-{each.name}", each, "everything", core=True, reordered=True)


def grouped() -> Iterator[Point]:
    """Every optimizer that takes groups, with each of its groups."""
    for whole_tensor in (False, True):
        for each, variant in _every(whole_tensor, grouped=True):
            core = (each.name, variant.name) == ("SGD", "groups")
            yield point(f"{each.name}-{variant.name}", each, variant, core=core)
