"""Deal tests to shards. Every machine does it for itself, and all must come to the same."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

#: No test takes less (in seconds): of tests that take no time, each shard gets as many.
_LEAST = 0.001


def deal(collected: Iterable[str], times: Mapping[str, float], count: int) -> list[list[str]]:
    """Return the ids of each shard.

    A test whose time is known goes to the shard that has the least to do so far, the longest first. The others are
    dealt in turn, beginning with the shard that has the least to do. A test that was collected several times under
    one id stays in one shard.
    """
    often = Counter(collected)
    expected = {id: max(_LEAST, times[id] * number) for id, number in often.items() if id in times}
    shards: list[list[str]] = [[] for _ in range(count)]
    loads = [(0.0, number) for number in range(count)]
    for id in sorted(expected, key=lambda id: (-expected[id], id)):
        load, number = loads[0]
        shards[number].append(id)
        heapq.heapreplace(loads, (load + expected[id], number))
    in_turn = [number for _, number in sorted(loads)]
    for turn, id in enumerate(sorted(often.keys() - expected.keys())):
        shards[in_turn[turn % count]].append(id)
    return shards


def digest(shards: Sequence[Iterable[str]]) -> str:
    """Return a digest of which test is whose. Run files with other digests are not of one run."""
    lines = [f"{number} {id}" for number, ids in enumerate(shards, 1) for id in sorted(ids)]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "backslashreplace")).hexdigest()
