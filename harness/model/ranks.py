"""How ranks are named in texts, and the seed of a rank."""

from __future__ import annotations

import hashlib


def rank_seed(nodeid: str, run: int, rank: int) -> int:
    """Return a rank's own seed, the same whenever this test runs with the same ``--world-seed``."""
    base = int.from_bytes(hashlib.sha256(f"{nodeid} {run}".encode("utf-8", "backslashreplace")).digest()[:4], "big")
    return (base + rank * 1_000_003) % 2**31


def ranks_text(ranks: list[int]) -> str:
    """Return ``rank 1``, ``ranks 0-3`` or ``ranks 0,2,3``."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return "ranks " + ",".join(map(str, ranks))


def few_ranks_text(ranks: list[int], most: int = 8) -> str:
    """Return the same, shortened: if many ranks form no range, their number and the first of them."""
    text = ranks_text(ranks)
    if len(ranks) <= most or "-" in text:
        return text
    return f"{len(ranks)} ranks ({','.join(map(str, sorted(ranks)[:most]))},...)"


def ordinal(number: int) -> str:
    """Return ``1st``, ``2nd``, ``3rd``, ``4th``, ..."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
