"""Tensors of different sizes in one collective of gloo.

A rank to which more data came than it expected is aborted. Its flight recorder is gone with it, and either side may
be wrong. The other ranks, which lose their connection to it, know what they called.

If less came, gloo fills a part of the tensor, and all ranks pass: their records state what each gave and took.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from everyrank.model.counts import count
from everyrank.model.ranks import ranks_text
from everyrank.rollcall.rollcall import parse
from everyrank.stack.frames import is_users, standing
from everyrank.wire.messages import Collective, Phase, Record, Sizes

_MISMATCH = re.compile(r"op\.preamble\.length <= op\.nbytes(?:\. (\d+) vs (\d+))?|collective mismatch")


def is_mismatch(last_words: str) -> bool:
    """Return whether gloo has aborted a rank because of a peer's larger tensor."""
    return bool(_MISMATCH.search(last_words))


def called_last(
    failed: Sequence[Phase], called: Collective | None, record: Record | None
) -> tuple[Collective, str] | None:
    """Return the last collective of a rank that has lost a peer, or has passed; with the user's line, if known."""
    if called is not None and record is not None:
        return called, next((own.location for own in record.sizes[-1:] if own.name == called.name), "")
    return next(((phase.collective, phase.location) for phase in failed if phase.collective is not None), None)


def mismatch_text(last_words: str, rank: int, called: Mapping[int, tuple[Collective, str] | None]) -> str:
    """Return a line on such an end of a rank, and on what other ranks had called last; empty for other ends.

    ``called`` has the user's lines, too, as far as they are known.
    """
    match = _MISMATCH.search(last_words)
    if match is None:
        return ""
    stack, _ = parse(last_words)
    text = f"data of another size than expected came to rank {rank}"
    text += f" in {standing(stack)}" if any(is_users(frame.file) for frame in stack) else ""
    name = stack[0].function if stack else ""
    # gloo cuts what it reduces into pieces, and what all ranks gather
    piece = "a piece of " if re.search(r"reduce|all_gather", name) else ""
    text += f" ({piece}{match[1]} bytes, not {match[2]})" if match[1] else ""
    calls: dict[str, list[int]] = {}
    for other, call in called.items():
        if call is not None and name != "recv":  # a message is no collective
            line = f" at {call[1]}" if call[1] else ""
            calls.setdefault(f"last called {call[0].name} with {call[0].tensors}{line}", []).append(other)
    return "; ".join([text, *(f"{ranks_text(ranks)} {last}" for last, ranks in calls.items())]) + "\n"


def unequal_sizes(filed: Mapping[int, Sequence[Sizes]]) -> str:
    """Return lines on the first collective in which a rank took another size than a peer gave; or an empty text."""
    groups: dict[tuple[str, int], dict[int, list[Sizes]]] = {}
    for rank, sizes in filed.items():
        for noted in sizes:
            groups.setdefault((noted.group, noted.size), {}).setdefault(rank, []).append(noted)
    lines = next((text for (_, size), calls in groups.items() for text in _unequal_in_group(size, calls)), "")
    end = "\nno rank failed: gloo filled a part of the larger tensor, and left the rest as it was"
    return lines and lines + end


def _unequal_in_group(size: int, calls: Mapping[int, Sequence[Sizes]]) -> Iterator[str]:
    """Yield a line for each such collective of one group, by the calls of each rank.

    Torch's C++ functions are not noted, and a test may have two groups of one name: so ranks are compared as long as
    they have called the same, and if they are all ranks of one group.
    """
    numbers = {rank: {noted.rank for noted in own} for rank, own in calls.items()}
    if sorted(number for own in numbers.values() for number in own) != list(range(size)):
        return
    by_number = {numbers[rank].pop(): rank for rank in calls}
    for row in zip(*(calls[by_number[number]] for number in range(size)), strict=False):
        if len({(noted.number, noted.name) for noted in row}) > 1:
            return
        if text := _unequal(row, by_number):
            yield text


def _unequal(row: Sequence[Sizes], ranks: Mapping[int, int]) -> str:
    """Compare one collective; ``ranks`` are those of the world, by their numbers in the group."""
    located = next((f" at {noted.location}" for noted in row if noted.location), "")
    call = row[0].name + located
    if not any(noted.gives for noted in row):
        if len({noted.takes[0] for noted in row}) == 1:
            return ""
        tensors: dict[str, list[int]] = {}
        for noted in row:
            tensors.setdefault(noted.tensor, []).append(ranks[noted.rank])
        clauses = [f"{ranks_text(alike)} {'has' if len(alike) == 1 else 'have'} {t}" for t, alike in tensors.items()]
        return f"the sizes of {call} differ: {'; '.join(clauses)}"
    for taker in row:
        for giver in row:
            takes, gives = taker.takes[giver.rank], giver.gives[taker.rank]
            if takes != gives:
                unit, size = ("row", taker.row) if taker.row == giver.row != 0 else ("byte", 1)
                other = f"rank {ranks[giver.rank]}"
                taking = f"rank {ranks[taker.rank]} takes {count(takes // size, unit)} from {other}"
                return f"{taking} in {call}, and {other} gives it {gives // size}"
    return ""
