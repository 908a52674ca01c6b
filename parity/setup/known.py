"""What is known before a run: the plain model, and what each rank holds of it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from everyrank.parity.errors import Unusable
from everyrank.parity.setup.given import Setup, own_dtype
from everyrank.parity.setup.memory import collect
from everyrank.parity.setup.models import of_plain, parallelize
from everyrank.parity.setup.ranks import Ranks, groups_of_torch, named_groups
from everyrank.parity.setup.split import Cut, check_rows, choose, cuts_weights
from everyrank.parity.values import dye
from everyrank.parity.values.dye import Holdings
from everyrank.parity.values.names import parameters, without_number
from everyrank.parity.values.tree import local
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import keystr, tree_flatten_with_path


@dataclass(frozen=True)
class Known:
    """What is known of the plain model without building it again, which takes long if it is large."""

    dtype: torch.dtype
    """The dtype in which the user trains."""
    sizes: dict[str, torch.Size]
    """The sizes of its parameters, by name."""
    sums: dict[str, float]
    """The sums of their first values."""
    batch_norms: tuple[str, ...] = ()
    """The modules that normalize by the rows that they get."""

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return sum(size.numel() for size in self.sizes.values())


def same_model(setup: Setup, ranks: Ranks) -> Known:
    """Check that the plain model is the same on each rank; that it is so each time is seen when it is built again."""
    same_batches(setup, ranks)
    known = of_plain(setup, _known)
    if setup.one_rank:
        # What is built next is built on all ranks, and may be another.
        _check_again(ranks, known, of_plain(setup, _sums))
    for rank, other in enumerate(ranks.gather(known.sums)):
        for name, value in known.sums.items():
            if other.get(name) != value:
                raise Unusable(
                    f"model() returns other values of {name} on rank {rank} than on rank {ranks.rank}: the plain "
                    "model is the same on every rank; what differs by rank belongs into parallelize."
                )
    return known


def _known(model: torch.nn.Module) -> Known:
    sizes = {name: local(each.detach()).shape for name, each in model.named_parameters()}
    norms = tuple(
        name for name, module in model.named_modules() if isinstance(module, _BatchNorm) and module.training
    )
    return Known(own_dtype(model), sizes, _sums(model), norms)


def still(build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Return a model whose batch norms normalize by their running statistics, also after `model.train()`."""
    model = build()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
            module.register_forward_pre_hook(_in_evaluation)
    return model


def _in_evaluation(module: torch.nn.Module, _: Any) -> None:
    module.eval()


def same_batches(setup: Setup, ranks: Ranks) -> None:
    """Check that a step's batch is the same each time it is asked for, and on each rank."""
    first, again = (_numbers(setup.whole_batch(0, torch.float64)) for _ in range(2))
    steps = [first, *(_numbers(setup.whole_batch(step, torch.float64)) for step in range(1, setup.steps))]
    gathered = ranks.gather((_other(first, again), steps))
    for other, _ in gathered:
        if other is not None:
            raise Unusable(
                f"batch(0) returns another batch each time{other}: each run asks for it again, so make it from the "
                "number of the step alone, as `batches[step]`, not from an iterator or a generator that goes on."
            )
    for rank, (_, theirs) in enumerate(gathered):
        for step, (known, mine) in enumerate(zip(gathered[0][1], theirs, strict=True)):
            other = _other(known, mine)
            if other is not None:
                raise Unusable(
                    f"batch({step}) returns another batch on rank {rank} than on rank 0{other}: it is the whole "
                    "batch, the same on every rank; which part of it a rank trains on is said by split= or in step=."
                )


def _numbers(batch: Any) -> dict[str, int]:
    """Return a number for each tensor of a batch, which is another if the tensor is."""
    found = {}
    for path, leaf in tree_flatten_with_path(batch)[0]:
        if isinstance(leaf, torch.Tensor) and not leaf.is_nested:
            values = local(leaf.detach()).cpu().contiguous()
            held = values.reshape(-1).view(torch.uint8).numpy().data
            found[keystr(path)] = zlib.crc32(held, zlib.crc32(f"{tuple(leaf.shape)} {leaf.dtype}".encode()))
    return found


def _other(numbers: dict[str, int], others: dict[str, int]) -> str | None:
    """Return where the first tensor is that two batches do not have alike, as words; None if there is none."""
    names = [name for name in {**numbers, **others} if numbers.get(name) != others.get(name)]
    return (names[0] and f", in {names[0]}") if names else None


def _check_again(ranks: Ranks, known: Known, sums: dict[str, float]) -> None:
    """Raise Unusable on all ranks if a rank's model has other values than the first time."""
    other = next((name for name, value in known.sums.items() if sums.get(name) != value), None)
    for name in ranks.gather(other):
        if name is not None:
            raise Unusable(f"model() returns other values of {name} each time: build it from the same numbers.")


def _sums(model: torch.nn.Module) -> dict[str, float]:
    without = next((name for name, each in model.named_parameters() if each.is_meta), None)
    if without is not None:
        raise Unusable(
            f"model() makes {without} on the meta device, where it has no values: build the plain model on the CPU. "
            'What parallelize needs without values it can make with model.to("meta"), and load= gives it values.'
        )
    return {name: float(local(each.detach()).sum(dtype=torch.float64)) for name, each in model.named_parameters()}


@dataclass(frozen=True)
class Found:
    """What the dye shows of the parallel model on this rank."""

    holdings: Holdings
    everywhere: tuple[Holdings, ...]
    """What each rank holds."""
    cut: Cut
    mixed: torch.dtype | None
    """The dtype in which FSDP2's modules compute, if it is another than their parameters'."""
    groups: Mapping[str, list[list[int]]]
    """The groups of all ranks, by name."""


def dyed(setup: Setup, ranks: Ranks, known: Known) -> Found:
    """Dye the plain model, make it parallel, and read what this rank holds; also how it cuts a batch."""

    def prepare(fresh: torch.nn.Module) -> None:
        if not setup.one_rank:
            _check_again(ranks, known, _sums(fresh))
        dye.dye(fresh)

    parallel = parallelize(setup, torch.float64, exact=True, prepare=prepare)
    without = [key for key, each in parameters(parallel.modules) if each.is_meta]
    for key in (keys[0] for keys in ranks.gather(without) if keys):
        raise Unusable(
            f"parallelize leaves {without_number(key)} on the meta device, where it has no values: pass load=, which "
            "gives it those of the plain model's state dict."
        )
    held = dye.read(parallel.modules, known.sizes, dye.offsets(known.sizes), parallel.rename)
    everywhere = tuple(ranks.gather(held))
    cut = any(cuts_weights(each, known.sizes) for each in everywhere)
    chosen = choose(setup, parallel.modules, cut, ranks.rank, ranks.size)
    check_rows(setup, ranks, chosen)
    found = Found(held, everywhere, chosen, parallel.mixed, named_groups(ranks, groups_of_torch(parallel.modules)))
    del parallel
    collect(known.elements)
    return found
