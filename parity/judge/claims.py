"""Placements that are not as claimed: what DTensors say of parameters, beside what the dye shows of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from everyrank.parity.run.activations import GradientClaim
from everyrank.parity.values.claims import Axis, Claim, cut_by, is_sum
from everyrank.parity.values.dye import Holdings, Share, Strided, alike
from everyrank.suites.compare.patterns.fit import Fit
from everyrank.suites.compare.patterns.texts import ranks_text


@dataclass(frozen=True)
class Wrong:
    """A claim that is not so."""

    ranks: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class _Box:
    """A part of a plain parameter that is cut out along dimensions, as a rank's tensor has it."""

    axes: tuple[int, ...]
    """Which dimension of the plain parameter each of the rank's tensor is: a layer may keep it transposed."""
    runs: tuple[tuple[int, int], ...]
    """The first index, and how many, in each dimension of the rank's tensor."""


Shares = Mapping[str, list[Share]]

_OR_MEANT = ", by mistake or on purpose (then: skip=)"


def wrong_claims(held: Sequence[Holdings], sizes: Mapping[str, torch.Size]) -> dict[str, Wrong]:
    """Return the claims that the dye refutes, by the plain model's names."""
    found: dict[str, Wrong] = {}
    for claim, shares in _claims(held):
        if (wrong := _wrong(claim, shares, sizes)) is not None:
            for each in (share for rank in claim.ranks for share in shares[rank].get(claim.key, [])):
                found.setdefault(each.name, wrong)
    return found


def unseen_claims(held: Sequence[Holdings], sizes: Mapping[str, torch.Size]) -> list[str]:
    """Return the parameters that claim to be cut, of which the dye does not show how, by this rank's names."""
    found: dict[str, None] = {}
    for claim, shares in _claims(held):
        is_cut = any(cut_by(axis.placement) is not None for axis in claim.axes())
        having = [mine for rank in claim.ranks if (mine := shares[rank].get(claim.key))]
        if is_cut and (not having or any(_box(mine, sizes) is None for mine in having)):
            found.setdefault(claim.key.partition(":")[2])
    return [*found]


def _claims(held: Sequence[Holdings]) -> Iterator[tuple[Claim, list[Shares]]]:
    """Yield each claim once, with what all ranks hold."""
    shares: list[Shares] = [_by_key(holdings) for holdings in held]
    for claim in dict.fromkeys(claim for holdings in held for claim in holdings.claims):
        yield claim, shares


def _by_key(holdings: Holdings) -> dict[str, list[Share]]:
    found: dict[str, list[Share]] = {}
    for share in holdings.shares:
        found.setdefault(share.key, []).append(share)
    return found


def _wrong(claim: Claim, shares: list[Shares], sizes: Mapping[str, torch.Size]) -> Wrong | None:
    for axis in claim.axes():
        for group in axis.groups:
            # A rank may have no elements of a tensor that is cut.
            having = {rank: mine for rank in group if (mine := shares[rank].get(claim.key))}
            if text := _of_group(claim.shape, axis, having, sizes):
                return Wrong(group, text)
    return _in_another_order(claim, shares, sizes)


def _of_group(
    shape: tuple[int, ...], axis: Axis, having: Mapping[int, list[Share]], sizes: Mapping[str, torch.Size]
) -> str:
    """Return what is wrong of a claim on the ranks along an axis that have elements, or nothing."""
    if len(having) < 2:
        return ""
    ranks = ranks_text(tuple(having))
    first, *others = having.values()
    same = all(_same_elements(first, other) for other in others)
    if axis.placement.is_replicate():
        return "" if same else f"{axis.text}, and is not the same on {ranks}"
    if axis.placement.is_partial():
        is_whole = is_sum(axis.placement) and _is_dyed(first) and same
        return f"{axis.text}, and is no term of a sum, but the same on {ranks}" if is_whole else ""
    boxes = [_box(mine, sizes) for mine in having.values()]
    known = [box for box in boxes if box is not None]
    if len(known) < len(boxes) or len({box.axes for box in known}) > 1:
        return ""
    if same:
        # What is as long as the plain one is kept once, if its placement is right.
        meant = "" if shape == sizes[first[0].name] else _OR_MEANT
        return f"{axis.text}, and is the same on {ranks}{meant}"
    cut = [number for number, runs in enumerate(zip(*(box.runs for box in known), strict=True)) if len({*runs}) > 1]
    claimed = cut_by(axis.placement)
    if len(cut) != 1:
        return ""
    if cut[0] != claimed:
        return f"{axis.text}, and is Shard({cut[0]}) on {ranks}"
    starts = {rank: box.runs[cut[0]][0] for rank, box in zip(having, known, strict=True)}
    order = sorted(starts, key=lambda rank: starts[rank])
    if order == [*starts]:
        return ""
    return f"{axis.text}, and has its parts in the order of ranks {', '.join(map(str, order))}"


def _in_another_order(claim: Claim, shares: list[Shares], sizes: Mapping[str, torch.Size]) -> Wrong | None:
    """Return that ranks have other blocks of the tensor than the placements of all axes together give them."""
    wrong = []
    for rank in claim.ranks:
        mine = shares[rank].get(claim.key, [])
        box = _box(mine, sizes) if mine else None
        if mine and (box is None or box.axes != (*range(len(box.axes)),) or sizes[mine[0].name] != claim.shape):
            return None
        if box is not None and mine and not _has(claim.indices(rank), box):
            wrong.append(rank)
    if not wrong:
        return None
    over = " and ".join(axis.name for axis in claim.axes())
    placements = ", ".join(axis.text.removeprefix("claims ").rpartition(" over ")[0] for axis in claim.axes())
    words = f"claims ({placements}) over {over}, and other parts than these are on {ranks_text(tuple(wrong))}"
    return Wrong(tuple(wrong), words)


def _has(indices: list[torch.Tensor], box: _Box) -> bool:
    return all(
        mine.numel() == length and (not length or torch.equal(mine, torch.arange(start, start + length)))
        for mine, (start, length) in zip(indices, box.runs, strict=True)
    )


def _same_elements(mine: list[Share], other: list[Share]) -> bool:
    return [each.name for each in mine] == [each.name for each in other] and all(
        alike(a.plain, b.plain) for a, b in zip(mine, other, strict=True)
    )


def _is_dyed(shares: list[Share]) -> bool:
    return all(share.dyed for share in shares)


def _box(shares: list[Share], sizes: Mapping[str, torch.Size]) -> _Box | None:
    """Return which block of a plain parameter a tensor is; None if it is none, or the dye does not show it."""
    share, shape = shares[0], sizes[shares[0].name]
    plain = share.plain
    if len(shares) > 1 or not share.dyed or not isinstance(plain, Strided) or len(plain.sizes) != len(shape):
        return None
    steps = torch.empty(shape, device="meta").stride()
    starts, rest = [], plain.start
    for step in steps:
        starts.append(rest // step)
        rest %= step
    left = [*range(len(shape))]
    axes: dict[int, int] = {}
    for number, (size, stride) in enumerate(zip(plain.sizes, plain.strides, strict=True)):
        fitting = [axis for axis in left if steps[axis] == stride and shape[axis] > 1]
        if size > 1 and not fitting:
            return None
        if size > 1:
            axes[number] = fitting[0]
            left.remove(fitting[0])
    # Which dimension a single index belongs to shows in none of its values: the order is believed.
    axes |= dict(zip((number for number in range(len(shape)) if number not in axes), left, strict=True))
    ordered = tuple(axes[number] for number in range(len(shape)))
    runs = tuple((starts[axis], plain.sizes[number]) for number, axis in enumerate(ordered))
    return (
        _Box(ordered, runs) if all(a + n <= shape[axis] for (a, n), axis in zip(runs, ordered, strict=True)) else None
    )


def of_gradient(every: Sequence[GradientClaim | None], pattern: Fit | None) -> Fit | None:
    """Return what is wrong of the claims of a gradient that deviates, if they are why."""
    for claim in dict.fromkeys(each.claim for each in every if each is not None):
        axes = [*claim.axes()]
        for number, axis in enumerate(axes):
            if is_sum(axis.placement) and (group := _summed(axis, every)):
                text = f"{axis.text}, and is summed already on {ranks_text(group)}"
                return Fit("wrong-annotation", text if pattern is None else f"{text}: it {pattern.text}")
            # The axis before a cut one is that of replicas: FSDP2 reduces there, whatever a gradient claims.
            is_whole = axis.placement.is_replicate() and all(cut_by(each.placement) is None for each in axes[number:])
            if is_whole and pattern is not None and _is_unreduced(axis, pattern, len(every)):
                return Fit("wrong-annotation", f"{axis.text}, and {pattern.text}")
    return None


def _summed(axis: Axis, every: Sequence[GradientClaim | None]) -> tuple[int, ...]:
    """Return the first ranks along an axis each of which has the sum."""
    whole = {rank for rank, each in enumerate(every) if each is not None and each.is_whole}
    return next((group for group in axis.groups if whole.issuperset(group)), ())


def _is_unreduced(axis: Axis, pattern: Fit, size: int) -> bool:
    names = {axis.name, *(["ranks"] if axis.groups == ((*range(size),),) else [])}
    return pattern.id == "not-reduced" and any(
        pattern.text.startswith(f"is not reduced over {name}:") for name in names
    )
