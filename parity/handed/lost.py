"""Elements of the model that the other has not, and what it has in their stead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from everyrank.model.counts import count
from everyrank.parity.handed.given import Pair
from everyrank.parity.handed.report import Misfit
from everyrank.parity.handed.trace import MIXED, NOTHING, Sources, Traced
from everyrank.suites.compare.patterns.texts import index_text


def covered(sources: Sources, every: Sequence[Mapping[str, Traced]]) -> torch.Tensor:
    """Return which elements of the model are in the other, on some rank."""
    found = torch.zeros(sources.total, dtype=torch.bool)
    for made in every:
        for each in made.values():
            found[each.numbers[each.numbers >= 0]] = True
    return found


def lost(
    pair: Pair, sources: Sources, every: Sequence[Mapping[str, Traced]], has: torch.Tensor, agrees: bool
) -> list[Misfit]:
    """Return the model's tensors of which elements are lost.

    Without a tensor that is lost whole outputs may agree: of a buffer, or one that is in what is made of several.
    """
    is_mixed = any(bool((each.numbers == MIXED).any()) for made in every for each in made.values())
    found = []
    for name, shape in sources.shapes.items():
        lacking = (~has[sources.span(name)]).nonzero().reshape(-1)
        whole = len(lacking) == shape.numel()
        is_fine = agrees and whole and (is_mixed or name not in sources.trained)
        if len(lacking) and not is_fine and not pair.skips(name):
            first = int(lacking[0])
            start = sources.span(name).start
            words = f"`{name}`{'' if whole else index_text(first, shape)} is lost: nothing of the other has it"
            if len(lacking) > 1:
                words += f" (so {len(lacking)} of its {count(shape.numel(), 'element')})"
            words += _instead(sources, every, name, start + first)
            found.append(Misfit("lost", name, index_text(first, shape), words))
    return found


def _instead(sources: Sources, every: Sequence[Mapping[str, Traced]], name: str, number: int) -> str:
    """Return what the other has where an element should be, as words; nothing if that is not known."""
    span = sources.span(name)
    for made in every:
        near = [each for each in made.values() if bool(_within(each, span).any())]
        for each in near or [made[known] for known in (name,) if known in made]:
            odd = _odd(each, number)
            if odd is not None:
                has = int(each.numbers.reshape(-1)[odd])
                position = f"`{each.name}`{index_text(odd, each.numbers.shape)} there"
                if has == NOTHING:
                    return f"; {position} is as it was built"
                return f"; {position} has {sources.text(has)}"
    return ""


def _within(each: Traced, span: slice) -> torch.Tensor:
    found: torch.Tensor = (each.numbers >= span.start) & (each.numbers < span.stop)
    return found


def _odd(each: Traced, number: int) -> int | None:
    """Return the position at which an element should be: where nothing is, or what is twice, beside its neighbour."""
    flat = each.numbers.reshape(-1)
    _, inverse, counts = flat.unique(return_inverse=True, return_counts=True)
    is_odd = (flat < 0) | (counts[inverse] > 1)
    beside = [int(index) + 1 for index in (flat == number - 1).nonzero()]
    beside += [int(index) - 1 for index in (flat == number + 1).nonzero()]
    odd = [index for index in beside if 0 <= index < len(flat) and is_odd[index]] or is_odd.nonzero().reshape(
        -1
    ).tolist()
    return odd[0] if odd else (0 if len(flat) and not beside else None)
