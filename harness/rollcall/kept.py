"""Why a world of ranks that all waited was kept until its deadline: processes that they had started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everyrank.model.counts import count
from everyrank.rollcall.rollcall import Stance

#: A line names the processes of so many ranks.
_MOST = 4


def why_kept(stances: Sequence[Stance], children: Mapping[int, Sequence[str]]) -> str:
    """Return a line of its own, by the children that might have acted; empty if there are none, or a rank works."""
    if not children or any(stance.evidence.waits is False for stance in stances):
        return ""
    held = [f"rank {rank} has {' and '.join(titles)}" for rank, titles in sorted(children.items())]
    if len(held) > _MOST:
        held[_MOST:] = [f"and {count(len(held) - _MOST, 'more rank')}"]
    return f"\nIt was not ended before, since a child process may let a rank go on: {', '.join(held)}"
