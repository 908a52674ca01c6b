"""Run one shard of the collected tests, as ``--shard`` asks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from everyrank.model.counts import count
from everyrank.reports.errors import ReportError
from everyrank.reports.runfile.model import ShardPart
from everyrank.reports.runfile.read import read
from everyrank.reports.shards.deal import deal, digest

#: What this process runs, once it has collected.
SHARD: pytest.StashKey[dict[str, Any]] = pytest.StashKey()


@dataclass(frozen=True)
class Asked:
    """The values of the options."""

    number: int
    count: int
    times: Path | None


def asked(config: pytest.Config) -> Asked | None:
    """Return what the options ask for, or None. Raise a UsageError if it makes no sense."""
    shard, times = config.getoption("shard"), config.getoption("shard_times")
    if shard is None:
        if times is not None:
            raise pytest.UsageError("--shard-times: it balances the shards of --shard=K/N, which is missing")
        return None
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise pytest.UsageError(f"--shard: must be K/N with K from 1 to N, such as 3/8, not {shard!r}")
    path = None if times is None else Path(config.invocation_params.dir, times)
    return Asked(int(match[1]), int(match[2]), path)


def choose(config: pytest.Config, items: list[pytest.Item], asked: Asked) -> None:
    """Keep this shard's tests in the list, and deselect the others."""
    times = {} if asked.times is None else _times(asked.times)
    ids = [item.nodeid for item in items]
    shards = deal(ids, times, asked.count)
    mine = set(shards[asked.number - 1])
    own_items = [item for item in items if item.nodeid in mine]
    others = [item for item in items if item.nodeid not in mine]
    shard = ShardPart(
        number=asked.number,
        count=asked.count,
        digest=digest(shards),
        tests=len(own_items),
        all_tests=len(items),
        seconds=sum(times.get(id, 0.0) for id in ids if id in mine),
        all_seconds=sum(times.get(id, 0.0) for id in ids),
    )
    config.stash[SHARD] = msgspec.to_builtins(shard)
    if others:
        items[:] = own_items
        config.hook.pytest_deselected(items=others)


def _times(path: Path) -> Mapping[str, float]:
    """Return how long each test took in an earlier run, which may have been killed. Of several times the longest."""
    try:
        run = read(path, partial=True)
    except ReportError as error:
        raise pytest.UsageError(f"--shard-times: {error}") from None
    seconds: dict[str, float] = {}
    for case in run.reported:
        seconds[case.id] = max(case.seconds, seconds.get(case.id, 0.0))
    return seconds


def text(data: Mapping[str, Any]) -> str:
    """Return one line for the terminal."""
    shard = msgspec.convert(data, ShardPart)
    line = f"shard {shard.number} of {shard.count}: {shard.tests:,} of {count(shard.all_tests, 'test')}"
    if shard.all_seconds:
        line += f", which took {shard.seconds:.0f} s of {shard.all_seconds:.0f} s before"
    return line
