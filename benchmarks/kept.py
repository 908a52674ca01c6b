"""The ratios of the table that is kept, as data, and what got slower since.

Only ratios within one run are compared: milliseconds differ from machine to machine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.measure import HERE, Cost, Row

FILE = HERE / "kept.json"

#: A ratio may be this many times the one that is kept. README.md has the spread of ratios from run to run.
TOLERANCE = Cost(seconds=1.5, processor=1.4)

#: What is compared, as it is called in a message.
_KINDS = {"seconds": "time", "processor": "processor time"}


def write(rows: Sequence[Row], file: Path = FILE) -> None:
    ratios = {row.work: _known(row.ratio) for row in rows if row.ratio}
    file.write_text(json.dumps(ratios, indent=1) + "\n")


def read(file: Path = FILE) -> dict[str, Cost]:
    """Return the ratios that are kept, by the rows' names."""
    unknown = dict.fromkeys(_KINDS, math.nan)
    return {work: Cost(**{**unknown, **kinds}) for work, kinds in json.loads(file.read_text()).items()}


def _known(ratio: Cost) -> dict[str, float]:
    return {kind: round(value, 4) for kind in _KINDS if not math.isnan(value := getattr(ratio, kind))}


def slower(rows: Sequence[Row], kept: Mapping[str, Cost], whole: bool) -> Iterator[str]:
    """Yield a sentence for each row whose ratio has grown by more than the tolerance. A new row has none yet.

    A whole run must have every row that is kept.
    """
    if whole:
        measured = {row.work for row in rows if row.ratio}
        yield from (
            f"{work}: the row is kept, and this run does not have it" for work in kept if work not in measured
        )
    for row in rows:
        before = kept.get(row.work)
        if row.ratio is None or before is None:
            continue
        for kind, name in _KINDS.items():
            now, then = getattr(row.ratio, kind), getattr(before, kind)
            if now > then * getattr(TOLERANCE, kind):
                yield f"{row.work}: {name} is {now:.3g} times the other side's; it was {then:.3g} times"
