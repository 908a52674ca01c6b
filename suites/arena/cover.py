"""Which rank owns which elements: what ranks state is added up, and compared with what must hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import torch
from everyrank.model.counts import count
from everyrank.suites.errors import Deviation

Shape = tuple[int, ...]
Box = tuple[Shape, Shape]


@dataclass(frozen=True)
class Owned:
    """What one rank owns of one parameter."""

    boxes: tuple[Box, ...]
    """The offsets and sizes of each box."""
    copies: int
    """How many ranks own each element of the parameter."""
    held: Shape | None = None
    """The shape of what it has in memory, if that can be seen."""

    @property
    def full(self) -> tuple[Box, ...]:
        """The boxes that have elements."""
        return tuple(box for box in self.boxes if prod(box[1]))


@dataclass
class Cover:
    """The elements of all parameters, and how many of the ranks asked so far own each. Ranks come in their order."""

    shapes: Mapping[str, Shape]
    size: int
    ordered: bool = True
    """Whether the parts go in the order of the ranks."""
    counts: dict[str, torch.Tensor] = field(init=False)
    copies: dict[str, int] = field(init=False, default_factory=dict)
    _last: tuple[int, Mapping[str, Owned]] = field(init=False, default=(-1, {}))

    def __post_init__(self) -> None:
        self.counts = {name: torch.zeros(shape, dtype=torch.int32) for name, shape in self.shapes.items()}

    def add(self, rank: int, owned: Mapping[str, Owned]) -> None:
        """Add what a rank owns. Raise a Deviation if that cannot be, after what other ranks own."""
        if wrong := sorted(set(self.shapes) ^ set(owned)):
            raise Deviation(f"rank {rank} of {self.size}: owns() and the model differ in {wrong[0]}")
        for name, part in owned.items():
            problem = self._add(name, part)
            if self.ordered and not problem:
                problem = self._in_order(name, rank, part)
            if problem:
                raise Deviation(f"rank {rank} of {self.size}: {name}: {problem}")
        self._last = (rank, owned)

    def _add(self, name: str, part: Owned) -> str:
        shape, counts = self.shapes[name], self.counts[name]
        copies = self.copies.setdefault(name, part.copies)
        if part.copies != copies:
            return f"is owned by {count(part.copies, 'rank')}, as this one states; another stated {copies}"
        if not 1 <= copies <= self.size:
            return f"is owned by {count(copies, 'rank')}, as it states, in a world of {self.size}"
        for offsets, sizes in part.boxes:
            if not _inside(offsets, sizes, shape):
                return f"the box at {offsets} of {sizes} is not inside of {shape}"
        for number, box in enumerate(part.full):
            if any(_overlap(box, other) for other in part.full[:number]):
                return f"owns elements twice: {_text(part)}"
        if part.held is not None and sum(prod(sizes) for _, sizes in part.full) != prod(part.held):
            return f"holds a tensor of {part.held}, and owns {_text(part)}"
        for offsets, sizes in part.full:
            counted = counts[
                tuple(slice(first, first + length) for first, length in zip(offsets, sizes, strict=True))
            ]
            counted += 1
            if int(counted.max()) > copies:
                return f"{_text(part)} has elements that {copies} other ranks own, which is all that may"
        return ""

    def _in_order(self, name: str, rank: int, part: Owned) -> str:
        """Return a problem if a part does not go on where the rank before has ended, or begins or ends too early."""
        asked, parts = self._last
        shape = self.shapes[name]
        cut = _interval(part, shape)
        if rank == 0 and cut and cut.first > 0:
            return f"the first rank owns {_text(part)}"
        if rank == self.size - 1 and cut and cut.last < cut.length:
            return f"the last rank owns {_text(part)}, which is not the end"
        if asked != rank - 1 or name not in parts or not (_plain(part, shape) and _plain(parts[name], shape)):
            return ""
        return (
            ""
            if _meet(_interval(parts[name], shape), cut)
            else (f"this rank owns {_text(part)}, and the one before {_text(parts[name])}")
        )

    def check_whole(self) -> None:
        """Raise a Deviation unless each element has as many owners as was stated. Every rank was added."""
        for name, counts in self.counts.items():
            copies = self.copies[name]
            if wrong := int((counts != copies).sum()):
                text = (
                    f"{wrong} of {counts.numel()} elements have not {count(copies, 'owner')} but {int(counts.min())}"
                )
                raise Deviation(f"{self.size} ranks: {name}: {text}, at the least")


def _inside(offsets: Shape, sizes: Shape, shape: Shape) -> bool:
    if not len(offsets) == len(sizes) == len(shape):
        return False
    return all(
        min(offset, size) >= 0 and offset + size <= length
        for offset, size, length in zip(offsets, sizes, shape, strict=True)
    )


def _overlap(first: Box, second: Box) -> bool:
    return all(
        offset < other + other_length and other < offset + length
        for offset, length, other, other_length in zip(*first, *second, strict=True)
    )


class Cut(NamedTuple):
    """A part that is cut in one dimension at the most: where it begins and ends there, and how long the whole is."""

    dim: int
    first: int
    last: int
    length: int


def _interval(part: Owned, shape: Shape) -> Cut | None:
    """Return the part as a cut; None for one without elements, of several boxes, or cut in several dimensions."""
    if len(part.full) != 1:
        return None
    ((offsets, sizes),) = part.full
    cut = [dim for dim, length in enumerate(shape) if sizes[dim] != length]
    if len(cut) > 1 or not shape:
        return None
    dim = cut[0] if cut else 0
    return Cut(dim, offsets[dim], offsets[dim] + sizes[dim], shape[dim])


def _plain(part: Owned, shape: Shape) -> bool:
    """Return whether the order of such a part is known: it has no elements, or is a cut."""
    return not part.full or _interval(part, shape) is not None


def _meet(left: Cut | None, right: Cut | None) -> bool:
    """Return whether two neighbours own the same, or one part after the other, or the end and the next beginning."""
    if left == right:
        return True
    ended = left is None or left.last == left.length
    if right is None or right.first == 0:
        return ended
    return left is not None and left.dim == right.dim and left.last == right.first


def _text(part: Owned) -> str:
    return " and ".join(f"{sizes} at {offsets}" for offsets, sizes in part.full) or "nothing"
