"""Find out which elements of the plain model each rank holds: give each weight a value that names its position.

The weights of the plain model become 1, 2, 3, ... through all its parameters, exact in fp64 up to 2**53. The user's
code makes it parallel, and what each rank then holds is read off: whole, cut along any dimension, fused, interleaved,
padded or tied, without an annotation and without trust in what placements claim.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from everyrank.parity.values.claims import Claim, claims_of
from everyrank.parity.values.names import Rename, known_name, parameters, without_number
from everyrank.parity.values.tree import local
from torch import nn

#: How many elements of a tensor are looked at closely, the first: what happened to it shows in a part.
MOST = 1 << 20


@dataclass(frozen=True)
class Strided:
    """Elements of a flat tensor at regular distances, which can be seen without a copy."""

    start: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def select(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.as_strided(self.sizes, self.strides, flat.storage_offset() + self.start).reshape(-1)

    def mark(self, flat: torch.Tensor) -> None:
        flat.as_strided(self.sizes, self.strides, self.start).fill_(True)

    @property
    def count(self) -> int:
        return math.prod(self.sizes)

    def ids(self) -> torch.Tensor:
        return _grid(self.start, self.sizes, self.strides).reshape(-1)


@dataclass(frozen=True)
class Listed:
    """Elements of a flat tensor, one by one."""

    indices: torch.Tensor

    def select(self, flat: torch.Tensor) -> torch.Tensor:
        return flat[self.indices]

    def mark(self, flat: torch.Tensor) -> None:
        flat[self.indices] = True

    @property
    def count(self) -> int:
        return len(self.indices)

    def ids(self) -> torch.Tensor:
        return self.indices


Elements = Strided | Listed


def alike(mine: Elements, other: Elements) -> bool:
    """Return whether these are the same elements, in the same order."""
    if isinstance(mine, Strided) and isinstance(other, Strided):
        return mine == other
    return mine.count == other.count and torch.equal(mine.ids(), other.ids())


@dataclass(frozen=True)
class Share:
    """A part of one parameter of the plain model, within a tensor that a rank holds."""

    name: str
    """The parameter in the plain model."""
    key: str
    """The parameter of this rank."""
    mine: Elements
    """Its positions in the rank's tensor."""
    plain: Elements
    """Its positions in the plain model's."""
    dyed: bool = True
    """Whether the dye has shown it; else the name and an equal shape have."""

    def read(self, values: torch.Tensor) -> torch.Tensor:
        """Return this part of the rank's tensor."""
        return self.mine.select(values.detach().reshape(-1))

    def write(self, values: torch.Tensor, part: torch.Tensor) -> None:
        """Put values in place of this part of the rank's tensor."""
        if values.is_contiguous():
            values.view(-1)[self.mine.ids()] = part.to(values)

    def expected(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this part of the plain model's tensor."""
        return self.plain.select(whole.reshape(-1))

    def looked_at(self, part: torch.Tensor) -> torch.Tensor:
        """Return a copy of what is looked at closely of values of this part."""
        return part[self.plain.ids() < MOST]


@dataclass(frozen=True)
class Holdings:
    """All that one rank holds of the plain model."""

    shares: tuple[Share, ...]
    unknown: tuple[str, ...]
    """Parameters of the rank whose values are nothing of the plain model, and whose names neither."""
    lost: tuple[tuple[str, str], ...]
    """Parameters that the plain model has under this name, whose values are not its values: (key, name)."""
    empty: tuple[tuple[str, str], ...]
    """Parameters that the plain model has under this name, and that are zero: (key, name)."""
    mixed: tuple[tuple[str, str], ...]
    """Parameters that hold their own values, but at other positions: (key, name)."""
    misplaced: tuple[tuple[str, str, str], ...]
    """Parameters that hold another than their name says: (key, name, the one that they hold)."""
    claims: tuple[Claim, ...] = ()
    """Where DTensors say that their elements are."""

    def names(self) -> set[str]:
        """Return the names in the plain model of all that the rank has, whatever its values."""
        odd = (*self.lost, *self.empty, *self.mixed, *self.misplaced)
        return {share.name for share in self.shares} | {each[1] for each in odd}


def offsets(sizes: Mapping[str, torch.Size]) -> dict[str, int]:
    """Return the number of the first element of each parameter."""
    return dict(zip(sizes, itertools.accumulate((size.numel() for size in sizes.values()), initial=0), strict=False))


def dye(plain: nn.Module) -> None:
    """Give each element of each parameter the value 1 + its number."""
    with torch.no_grad():
        named = {name: local(each) for name, each in plain.named_parameters()}
        for name, start in offsets({name: each.shape for name, each in named.items()}).items():
            values = named[name]
            values.copy_(torch.arange(start + 1, start + 1 + values.numel(), dtype=torch.float64).view(values.shape))


def read(
    modules: Iterable[nn.Module], plain: Mapping[str, torch.Size], starts: Mapping[str, int], rename: Rename | None
) -> Holdings:
    """Read what a rank holds off its dyed parameters."""
    modules = [*modules]
    shares: list[Share] = []
    unknown: list[str] = []
    lost: list[tuple[str, str]] = []
    empty: list[tuple[str, str]] = []
    mixed: list[tuple[str, str]] = []
    misplaced: list[tuple[str, str, str]] = []
    bounds = torch.tensor([*starts.values()], dtype=torch.int64)
    names = [*starts]
    total = sum(size.numel() for size in plain.values())
    for key, parameter in parameters(modules):
        values = local(parameter.detach())
        name = known_name(without_number(key), rename, plain)
        found = _shares(key, values, bounds, names, total)
        if found:
            shares += found
            held = {share.name for share in found}
            if name is not None and name not in held:
                misplaced.append((key, name, found[0].name))
            elif name is not None and not _in_order(found[0].plain, plain[name]):
                mixed.append((key, name))
        elif not values.numel() or not values.any():
            # Padding, or a part that this rank has not.
            empty += [(key, name)] if name is not None and values.numel() else []
        elif name is not None and values.shape == plain[name]:
            whole = Strided(0, (values.numel(),), (1,))
            shares.append(Share(name, key, whole, whole, dyed=False))
        elif name is not None:
            lost.append((key, name))
        else:
            unknown.append(key)
    claims = claims_of(modules)
    return Holdings(tuple(shares), tuple(unknown), tuple(lost), tuple(empty), tuple(mixed), tuple(misplaced), claims)


def _in_order(elements: Elements, shape: torch.Size) -> bool:
    """Return whether elements that are cut out along dimensions stand as in the whole; others stand as they like."""
    if isinstance(elements, Listed) or len(elements.sizes) != len(shape):
        return True
    natural = torch.empty(shape, device="meta").stride()
    return all(
        size == 1 or mine == theirs
        for size, mine, theirs in zip(elements.sizes, elements.strides, natural, strict=True)
    )


def _shares(key: str, values: torch.Tensor, bounds: torch.Tensor, names: list[str], total: int) -> list[Share]:
    """Return the parts that a tensor holds; none if a value of it is no dye."""
    flat = values.double()
    numbers = flat.round().to(torch.int64) - 1
    if not numbers.numel() or not torch.equal(flat, numbers.double() + 1):
        return []
    if int(numbers.max()) >= total or int(numbers.min()) < -1 or int(numbers.max()) < 0:
        return []
    owner = torch.searchsorted(bounds, numbers.reshape(-1), right=True) - 1
    owner[numbers.reshape(-1) < 0] = -1
    found = []
    for number in owner.unique().tolist():
        if number < 0:
            continue
        mine = (owner == number).nonzero().reshape(-1)
        plain = numbers.reshape(-1)[mine] - int(bounds[number])
        whole = len(mine) == numbers.numel()
        shape = tuple(numbers.shape) if whole else (len(mine),)
        found.append(Share(names[number], key, _elements(mine, (len(mine),)), _elements(plain, shape)))
    return found


def _elements(indices: torch.Tensor, shape: tuple[int, ...]) -> Elements:
    """Return the indices in the shortest form."""
    grid = indices.view(shape)
    start = int(indices[0])
    strides = []
    for dimension, size in enumerate(shape):
        following = grid.select(dimension, 1).reshape(-1)[0] if size > 1 else indices[0]
        strides.append(int(following) - start)
    if all(stride >= 0 for stride in strides) and torch.equal(grid, _grid(start, shape, tuple(strides))):
        return Strided(start, shape, tuple(strides))
    return Listed(indices)


def _grid(start: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    grid = torch.tensor(start)
    for size, stride in zip(sizes, strides, strict=True):
        grid = grid.unsqueeze(-1) + torch.arange(size) * stride
    return grid.reshape(sizes)
