"""Find out which rows of a batch a rank trains on, where the user does not say it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from everyrank.model.counts import count
from everyrank.parity.errors import Unusable
from everyrank.parity.setup.given import Setup
from everyrank.parity.setup.ranks import Ranks
from everyrank.parity.values.dye import Holdings
from everyrank.parity.values.parts import Part
from everyrank.parity.values.tree import rows, rows_of, tokens
from torch import nn


@dataclass(frozen=True)
class Cut:
    """How this rank comes to its part of a batch, and the words for it."""

    apply: Callable[[Any], Any]
    words: str
    pieces: int
    ranks: int
    """How many ranks put gradients together for the whole batch."""
    averages: bool
    """Whether a wrapper was found that averages them."""

    def weight(self, is_sum: bool, gradients: str | None) -> float:
        """Return how much a rank's share of the loss counts, so that gradients put together are the whole batch's."""
        if is_sum:
            return self.ranks if gradients == "mean" or (gradients is None and self.averages) else 1.0
        return 1 / self.ranks if gradients == "sum" else 1.0


def choose(setup: Setup, modules: Iterable[nn.Module], cuts_weights: bool, rank: int, size: int) -> Cut:
    """Return how the batch is cut: as the user says, or by wrapper averages gradients."""
    found = _data_parallel(modules)
    averages = found is not None
    if callable(setup.split):
        return Cut(setup.split, "by split=", 1, size if found is None else found[1], averages)
    if setup.step is not None:
        return Cut(lambda batch: batch, "the step's own", 1, 1, averages)
    if setup.split == "none":
        return Cut(lambda batch: batch, "none", 1, 1, averages)
    if setup.split == "sequence":
        return Cut(lambda batch: tokens(batch, rank, size), "tokens over all ranks", 1, size, averages)
    index, count, wrapper = rank, size, "all ranks"
    if setup.split is None:
        if found is not None:
            index, count, wrapper = found
        elif cuts_weights:
            return Cut(lambda batch: batch, "none, since ranks hold parts of weights", 1, 1, averages)
    return Cut(lambda batch: rows(batch, index, count), f"rows over {wrapper}", count, count, averages)


def usual_microbatches(setup: Setup, size: int) -> int:
    """Return into how many microbatches the plain loop cuts a rank's rows: not as many as there are ranks, if it can.

    A factor of 2 on two ranks with two microbatches may come from either.
    """
    if size != 2 or setup.has_own_parts:
        return 2
    return 2 if rows_of(setup.whole_batch(0, torch.float64)) % (3 * size) else 3


def check_rows(setup: Setup, ranks: Ranks, cut: Cut) -> None:
    """Raise Unusable on every rank if the plain loop cannot cut the rows of one into microbatches."""
    for fault in ranks.gather(_not_to_be_cut(setup, cut)) if setup.step is None else ():
        if fault:
            raise Unusable(
                f"{fault}: return another number of rows from batch(step), change microbatches=, or cut the batch in "
                "a step= of your own."
            )


def _not_to_be_cut(setup: Setup, cut: Cut) -> str:
    """Return why the rows of this rank cannot be cut into microbatches, with the whole and the part, or nothing."""
    batch, parts = setup.whole_batch(0, torch.float64), setup.microbatches
    if callable(setup.split) and parts == 1:
        return ""
    total = rows_of(batch)
    if not callable(setup.split) and total % cut.pieces:
        return f"the batch has {count(total, 'row')}, which cannot be cut for {cut.pieces} ranks"
    mine = rows_of(cut.apply(batch))
    if mine % parts == 0:
        return ""
    if mine == total:
        return f"the batch has {count(total, 'row')}, which cannot be cut into {parts} microbatches"
    return (
        f"the batch has {count(total, 'row')}, of which a rank has {mine}, and {count(mine, 'row')} cannot be cut "
        f"into {parts} microbatches"
    )


def cuts_weights(holdings: Holdings, sizes: Mapping[str, torch.Size]) -> bool:
    """Return whether a rank holds a part of a weight."""
    return any(elements < sizes[name].numel() for name, elements in _held(holdings).items())


def lacks_weights(holdings: Holdings, sizes: Mapping[str, torch.Size]) -> bool:
    """Return whether a rank lacks a weight, or a part of one."""
    held = _held(holdings)
    return any(held.get(name, 0) < size.numel() for name, size in sizes.items())


def cuts_tokens(parts: Iterable[Part]) -> bool:
    """Return whether an output of a rank is a part of the second of three dimensions: rows, tokens, features."""
    return any(len(part.shape) == 3 and len(part.indices) > 1 and part.indices[1] is not None for part in parts)


def _held(holdings: Holdings) -> dict[str, int]:
    held: dict[str, int] = {}
    for share in holdings.shares:
        held[share.name] = held.get(share.name, 0) + share.plain.count
    return held


def _data_parallel(modules: Iterable[nn.Module]) -> tuple[int, int, str] | None:
    """Return this rank's number among those that train on other rows, how many there are, and their wrapper."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    for module in modules:
        for each in module.modules():
            if isinstance(each, (DistributedDataParallel, FullyShardedDataParallel)):
                group: Any = each.process_group
                if isinstance(each, DistributedDataParallel) or not hasattr(each, "_inter_node_pg"):
                    return group.rank(), group.size(), type(each).__name__
                inner, outer = group, each._inter_node_pg
                return outer.rank() * inner.size() + inner.rank(), outer.size() * inner.size(), "FSDP"
            if isinstance(each, FSDPModule):
                found = _of_fsdp(each)
                if found is not None:
                    return found
    return None


def _of_fsdp(module: Any) -> tuple[int, int, str] | None:
    from everyrank.parity.values.exact import param_groups

    for group in param_groups(module._get_fsdp_state()):
        mesh = group.mesh_info.mesh
        coordinate = mesh.get_coordinate()
        index = 0
        for position, size in zip(coordinate, mesh.mesh.shape, strict=True):
            index = index * size + position
        return index, mesh.size(), "fully_shard's mesh"
    return None
