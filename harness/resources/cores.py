"""Which cores the ranks of a worker of pytest-xdist run on, if the workers share them out."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

#: Values of ``--rank-cores``.
CHOICES = ALL, SHARE = "all", "share"


def share(number: int, count: int, cores: Sequence[int]) -> list[int]:
    """Return the cores of worker ``number`` of ``count``: a block of its own; one core if there are fewer cores."""
    if count >= len(cores):
        return [cores[number % len(cores)]]
    return list(cores[number * len(cores) // count : (number + 1) * len(cores) // count])


def of_ranks(config: pytest.Config, choice: str) -> list[int] | None:
    """Return the cores on which the ranks of this process run; None if they may run on all.

    Ranks wait for each other most of the time. To wake one on another core, which may be asleep, costs the kernel
    more than to wake it on the waker's own. Only ranks are bound: this process still counts all cores for its slots.
    """
    worker = getattr(config, "workerinput", None)
    if choice != SHARE or worker is None or not hasattr(os, "sched_getaffinity"):
        return None
    number = str(worker["workerid"]).removeprefix("gw")
    if not number.isdigit():
        return None
    return share(int(number), int(worker["workercount"]), sorted(os.sched_getaffinity(0)))
