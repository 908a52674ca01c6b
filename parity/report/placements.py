"""Where each parameter and output is over the axes of a mesh, as DTensor says it, from what was seen on ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from everyrank.model.parity import NAMES, ParityPlacementPart
from everyrank.parity.report import layout
from everyrank.parity.report.maps import Layout, joined, of_parameters
from everyrank.parity.values.claims import Claim, cut_by, placement_text
from everyrank.parity.values.dye import Holdings
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

#: What was seen of a tensor over each axis: None is what DTensor has no word for, or what could not be seen.
Placements = dict[str, tuple[Placement | None, ...]]
#: The ranks along an axis, once for each position on the others.
Groups = Sequence[Sequence[int]]

#: How many axes the page shows.
_AXES = 4


def of_mesh(held: Sequence[Mapping[str, Layout]], names: Sequence[str], mesh: DeviceMesh | None) -> Placements:
    """Return the placements of tensors over each axis of a mesh, without one over all ranks."""
    if mesh is None:
        return {name: _over([[[*range(len(held))]]], [each.get(name) for each in held]) for name in names}
    sizes, ranks = tuple(mesh.mesh.shape), tuple(mesh.mesh.reshape(-1).tolist())
    axes = [mesh.mesh.movedim(axis, -1).reshape(-1, size).tolist() for axis, size in enumerate(sizes)]
    found = {name: _over(axes, [each.get(name) for each in held]) for name in names}
    return {
        name: _nested(placements, [each.get(name) for each in held], sizes, ranks)
        for name, placements in found.items()
    }


def held_parameters(holdings: Sequence[Holdings], sizes: Mapping[str, torch.Size]) -> list[dict[str, Layout]]:
    """Return what each rank holds of each parameter."""
    return [joined(of_parameters(each, sizes)) for each in holdings]


def tabled(
    held: Mapping[str, tuple[Sequence[Mapping[str, Layout]], Sequence[str]]],
    groups: Mapping[str, list[list[int]]],
    count: int,
) -> tuple[list[str], list[ParityPlacementPart]]:
    """Return the axes, and the placements over them with the tensors that have them, by kind of tensor.

    An axis is a name under which all ranks are in groups of one size; without any all ranks are one.
    """
    named = {name: each for name, each in groups.items() if _has_all(each, count)}
    axes = dict([*named.items()][:_AXES]) or {"all ranks": [[*range(count)]]}
    tensors: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for kind, (layouts, names) in held.items():
        for name in names:
            having = [each.get(name) for each in layouts]
            if any(having):
                seen = _over([*axes.values()], having)
                tensors.setdefault(
                    (kind, tuple("" if each is None else placement_text(each) for each in seen)), []
                ).append(name)
    rows = [
        ParityPlacementPart(kind, [*seen], names[:NAMES], max(len(names) - NAMES, 0))
        for (kind, seen), names in tensors.items()
    ]
    return [*axes] if rows else [], rows


def _has_all(groups: Groups, count: int) -> bool:
    return sorted(rank for group in groups for rank in group) == [*range(count)] and len({*map(len, groups)}) == 1


def _over(axes: Sequence[Groups], held: Sequence[Layout | None]) -> tuple[Placement | None, ...]:
    """Return the placement over each axis; a term of a sum is one over the only axis along which it may be."""
    found = [_along(held, groups) for groups in axes]
    if any(each is not None and each.partial for each in held):
        whole = [number for number, each in enumerate(found) if each is not None and each.is_replicate()]
        long = [number for number in whole if len(axes[number][0]) > 1]
        for number in long:
            found[number] = Partial() if len(long) == 1 else None
    return tuple(found)


def _nested(
    found: tuple[Placement | None, ...], held: Sequence[Layout | None], sizes: tuple[int, ...], ranks: tuple[int, ...]
) -> tuple[Placement | None, ...]:
    """Return the placements with those right that cut the same dimension: the first of them may come last."""
    cuts = [cut_by(each) if each is not None and size > 1 else None for each, size in zip(found, sizes, strict=True)]
    twice = {cut for cut in cuts if cut is not None and cuts.count(cut) > 1}
    if not twice or any(each is None for each in found):
        return found
    strided = list(found)
    for axis, cut in enumerate(cuts):
        later = [size for size, other in zip(sizes[axis + 1 :], cuts[axis + 1 :], strict=True) if other == cut]
        if cut is not None and later:
            strided[axis] = _StridedShard(cut, split_factor=math.prod(later))
    for way in (found, tuple(strided)):
        known = tuple(each for each in way if each is not None)
        if all(_is_there(known, rank, held[rank], sizes, ranks) for rank in ranks):
            return way
    return tuple(None if cut in twice else each for each, cut in zip(found, cuts, strict=True))


def _is_there(
    placements: tuple[Placement, ...],
    rank: int,
    mine: Layout | None,
    sizes: tuple[int, ...],
    ranks: tuple[int, ...],
) -> bool:
    """Return whether a rank has what placements give it."""
    if mine is None or mine.blocks is None:
        return False
    claim = Claim("", sizes, ranks, (), placements, mine.shape)
    runs = tuple(layout.runs_of(indices) for indices in claim.indices(rank))
    return layout.joined([*mine.blocks], len(mine.shape)) == [runs]


def _along(held: Sequence[Layout | None], groups: Groups) -> Placement | None:
    """Return the placement that the ranks of each group show, if it is one; a group that has nothing shows none."""
    found = [_of_group([held[rank] for rank in group]) for group in groups if any(held[rank] for rank in group)]
    return found[0] if found and all(each == found[0] for each in found) else None


def _of_group(layouts: Sequence[Layout | None]) -> Placement | None:
    having = [each for each in layouts if each is not None]
    blocks = [layout.joined([*each.blocks], len(each.shape)) for each in having if each.blocks is not None]
    if len(blocks) < len(having):
        return None
    if len(blocks) < len(layouts):
        return _of_uneven(layouts, blocks)
    if all(each == blocks[0] for each in blocks):
        return Replicate()
    return _of_parts(blocks)


def _of_uneven(layouts: Sequence[Layout | None], blocks: list[list[layout.Block]]) -> Placement | None:
    """Return the placement of a tensor of which the last ranks have nothing, if the others' parts are no whole."""
    is_last = all(each is not None for each in layouts[: len(blocks)])
    return _of_parts(blocks) if is_last and len(blocks) > 1 else None


def _of_parts(blocks: list[list[layout.Block]]) -> Placement | None:
    if any(len(each) != 1 for each in blocks):
        return None
    parts = [each[0] for each in blocks]
    cut = [axis for axis in range(len(parts[0])) if any(part[axis] != parts[0][axis] for part in parts)]
    if len(cut) != 1 or any(len(part[cut[0]]) != 1 for part in parts):
        return None
    edges = [edge for part in parts for edge in part[cut[0]][0]]
    return Shard(cut[0]) if edges == sorted(edges) else None
