"""Find the first collective that ranks called from different lines, before those in which they wait.

Ranks match their collectives by number alone. So a rank that makes one more than the others, of the same kind, goes
on until a later one does not fit. Ranks may also call one collective from different lines on purpose (``if rank == 0:
broadcast(x)``, ``else: broadcast(y)``): then their calls after it fit as they are, number by number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everyrank.model.ranks import few_ranks_text, ordinal
from everyrank.wire.messages import PlacedCall, WitnessStatement

#: The most calls that one rank has made and another has not, in a row.
_MOST_EXTRA = 16
#: A sentence names this many lines.
_MOST_LINES = 3


def parting(statements: Mapping[int, WitnessStatement], inside: Mapping[int, WitnessStatement]) -> str:
    """Return a clause on where ranks parted in the group in which some wait; empty if that shows nothing."""
    for group in dict.fromkeys(statement.group for statement in inside.values() if statement.number is not None):
        calls = {rank: stated.calls[group] for rank, stated in statements.items() if group in stated.calls}
        number = first(calls)
        if number is not None:
            return f"already the {ordinal(number)} was {_from(number, calls)}"
    return ""


def first(calls: Mapping[int, Sequence[PlacedCall]]) -> int | None:
    """Return the number of the first call at which ranks parted, by what each rank called in a group, from 1."""
    for number, together in enumerate(zip(*calls.values(), strict=False), 1):
        if len(set(together)) > 1:
            rest = list(
                {call: own[number - 1 :] for call, own in zip(together, calls.values(), strict=True)}.values()
            )
            if not any(map(_goes_on, rest)):
                return None  # all wait in it
            if any(_is_longer(rest[0], other) for other in rest[1:]):
                return number
    return None


def _goes_on(rest: Sequence[PlacedCall]) -> bool:
    return len(rest) > 1


def _is_longer(own: Sequence[PlacedCall], other: Sequence[PlacedCall]) -> bool:
    """Return whether the calls fit better if one rank made some that the other did not make, or fit in no way."""
    here = _fits(own[1:], other[1:])
    shifted = [max(_fits(own[extra:], other), _fits(own, other[extra:])) for extra in range(1, _MOST_EXTRA + 1)]
    return max(shifted) > here or here == 0


def _fits(own: Sequence[PlacedCall], other: Sequence[PlacedCall]) -> int:
    """Return how many calls are equal before the first that are not."""
    for number, (call, beside) in enumerate(zip(own, other, strict=False)):
        if call != beside:
            return number
    return min(len(own), len(other))


def _from(number: int, calls: Mapping[int, Sequence[PlacedCall]]) -> str:
    by_call: dict[PlacedCall, list[int]] = {}
    for rank, own in sorted(calls.items()):
        if len(own) >= number:
            by_call.setdefault(own[number - 1], []).append(rank)
    one_line = len({call.location for call in by_call}) < len(by_call)
    texts = [
        f"{f'{call.name} at ' if one_line else ''}{call.location} on {few_ranks_text(ranks)}"
        for call, ranks in list(by_call.items())[:_MOST_LINES]
    ]
    return f"{'' if one_line else 'called from '}{' and '.join(texts)}"
