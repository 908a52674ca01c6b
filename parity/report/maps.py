"""The maps of tensors over ranks: which rank holds which part, from the dye and from where outputs were found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch
from everyrank.model.parity import ParityMapPart
from everyrank.parity.report import layout
from everyrank.parity.report.layout import Block
from everyrank.parity.run.activations import Parts
from everyrank.parity.run.plain import FORWARD, PARAMETER, START
from everyrank.parity.run.store import Store
from everyrank.parity.values.dye import Holdings

#: How many maps are kept, and how many ranks and edges all of them name together.
MAPS, NUMBERS = 64, 20_000
#: Of how many modules it is kept where what they return is.
OUTPUTS = 1024


@dataclass(frozen=True)
class Layout:
    """What a rank has of a tensor."""

    shape: tuple[int, ...]
    blocks: tuple[Block, ...] | None
    """None if they are too many."""
    partial: bool = False
    """Whether it is a term of a sum over ranks."""

    def __or__(self, more: Layout) -> Layout:
        both = None
        if self.blocks is not None and more.blocks is not None:
            both = tuple(dict.fromkeys([*self.blocks, *more.blocks]))
        return Layout(self.shape, both, self.partial or more.partial)


@dataclass(frozen=True)
class Held:
    """What this rank holds of the plain model's parameters, and sees of its outputs."""

    holdings: Holdings
    parts: Parts
    store: Store

    def layouts(self, wanted: set[str]) -> dict[str, Layout]:
        """Return what this rank has of these tensors."""
        names = {share.name for share in self.holdings.shares} & wanted
        shapes = {name: self.store[PARAMETER, START, name].shape for name in names}
        return joined([*of_parameters(self.holdings, shapes), *self._outputs(wanted)])

    def outputs(self) -> dict[str, Layout]:
        """Return what this rank has of what modules return: the first of them."""
        names = dict.fromkeys(name for name, _, number in self.store.notes[FORWARD] if not number)
        return joined(self._outputs({*[*names][:OUTPUTS]}))

    def _outputs(self, wanted: set[str]) -> Iterable[tuple[str, Layout]]:
        calls: dict[str, int] = {}
        for name, _, number in self.store.notes[FORWARD]:
            calls[name] = calls.get(name, 0) + (not number)
        for (step, kind, (name, call, number)), part in self.parts.items():
            partial = kind == f"partial {FORWARD}"
            # The first step stands for the others, as do a tuple's first tensor and the plain model's first call.
            if step or number or name not in wanted or not (kind == FORWARD or partial):
                continue
            whole = self.store.get((FORWARD, 0, (name, 0, 0)))
            if whole is not None and whole.numel() and not call % calls.get(name, 1):
                yield name, Layout(tuple(whole.shape), _known(layout.of_part(part, whole.shape)), partial)


def of_parameters(holdings: Holdings, shapes: Mapping[str, torch.Size]) -> Iterable[tuple[str, Layout]]:
    """Yield what a rank has of the parameters with these shapes, part by part."""
    for share in holdings.shares:
        if (shape := shapes.get(share.name)) is not None:
            yield share.name, Layout(tuple(shape), _known(layout.of_elements(share.plain, shape or (1,))))


def joined(parts: Iterable[tuple[str, Layout]]) -> dict[str, Layout]:
    """Return what a rank has of each tensor."""
    found: dict[str, Layout] = {}
    for name, more in parts:
        found[name] = found[name] | more if name in found else more
    return found


def _known(blocks: list[Block] | None) -> tuple[Block, ...] | None:
    return None if blocks is None else tuple(blocks)


def maps_of(
    gathered: Sequence[Mapping[str, Layout]], names: Iterable[str], outputs: Mapping[str, set[str]]
) -> tuple[list[ParityMapPart], dict[str, int]]:
    """Return the maps, each once, and which tensor has which; the first names have precedence.

    ``outputs`` has what is said of each output at the steps.
    """
    known: dict[bytes, int] = {}
    maps: list[ParityMapPart] = []
    mapped: dict[str, int] = {}
    room = NUMBERS
    for name in names:
        made = _map({rank: each[name] for rank, each in enumerate(gathered) if name in each}, outputs.get(name))
        if made is None:
            continue
        key = msgspec.msgpack.encode(made)
        if key not in known:
            room -= sum(len(region.ranks) + 5 for region in made.regions)
            if len(maps) == MAPS or room < 0:
                break
            known[key] = len(maps)
            maps.append(made)
        mapped[name] = known[key]
    return maps, mapped


def _map(having: Mapping[int, Layout], states: set[str] | None) -> ParityMapPart | None:
    """Return the map of a tensor; None if it is not known."""
    blocks = {rank: each.blocks for rank, each in having.items() if each.blocks is not None}
    if not having or len(blocks) < len(having) or len({each.shape for each in having.values()}) > 1:
        return None
    partial = any(each.partial for each in having.values())
    made = layout.picture(blocks, next(iter(having.values())).shape, partial=partial)
    if states is None or all(region.ranks for region in made.regions):
        return made
    # An output's parts are looked for by value. Of one that is right, all is somewhere.
    return None if "not-compared" in states else msgspec.structs.replace(made, alike=states == {"ok"})
