"""The end of a rank to which data of another size came than it expected: gloo aborts the process.

Its flight recorder is gone with it, and either side may be wrong. The other ranks, which lose their connection to it,
know what they called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from everyrank.model.ranks import ranks_text
from everyrank.wire.messages import Collective

_MISMATCH = re.compile(r"op\.preamble\.length <= op\.nbytes|collective mismatch")


def is_mismatch(last_words: str) -> bool:
    """Return whether gloo has aborted a rank because of a peer's larger tensor."""
    return bool(_MISMATCH.search(last_words))


def mismatch_text(last_words: str, rank: int, collectives: Mapping[int, Collective | None]) -> str:
    """Return a line on such an end of a rank, and on what other ranks had called last; empty for other ends."""
    if not is_mismatch(last_words):
        return ""
    calls: dict[str, list[int]] = {}
    for other, collective in collectives.items():
        if collective is not None:
            calls.setdefault(f"last called {collective.name} with {collective.tensors}", []).append(other)
    clauses = [f"{ranks_text(ranks)} {called}" for called, ranks in calls.items()]
    return "; ".join([f"data of another size than expected came to rank {rank}", *clauses]) + "\n"
